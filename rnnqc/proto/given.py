"""Models in the forms that programs have: a path, a ModelProto, or an object that contains one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import onnx

from rnnqc.errors import MEMORY, UsageError
from rnnqc.proto.files import load_proto, load_proto_and_size
from rnnqc.proto.large_models import loaded_size


@runtime_checkable
class Exported(Protocol):
    """The result of `torch.onnx.export` (`torch.onnx.ONNXProgram`)."""

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model."""


@runtime_checkable
class HoldsProto(Protocol):
    """The result of `rnnqc.lower`, or an `rnnqc.Model`."""

    @property
    def proto(self) -> onnx.ModelProto:
        """The model."""


Given = str | os.PathLike[str] | onnx.ModelProto | Exported | HoldsProto
"""A model: a path, a ModelProto, a `torch.onnx.ONNXProgram`, or what `rnnqc.lower` returns."""


def as_given(model: Given) -> str | os.PathLike[str] | onnx.ModelProto:
    """Returns the path of a model, or its ModelProto.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(model, str | os.PathLike | onnx.ModelProto):
        return model
    held: Any = getattr(model, "model_proto", None) or getattr(model, "proto", None)
    if isinstance(held, onnx.ModelProto):
        return held
    raise UsageError(
        f"the model is a {type(model).__module__}.{type(model).__qualname__}.",
        supported="a path, an onnx.ModelProto, a torch.onnx.ONNXProgram, or what rnnqc.lower returns",
        action="export a torch.nn.Module first: torch.onnx.export(module, inputs, dynamo=True)",
    )


def proto_of(model: Given) -> onnx.ModelProto:
    """Returns the ModelProto of a model; reads a file with its external data.

    Raises:
        CompileError: The file cannot be read.
        UsageError: It is not a model.
    """
    held = as_given(model)
    return held if isinstance(held, onnx.ModelProto) else load_proto(Path(held))


def proto_and_size_of(model: Given) -> tuple[onnx.ModelProto, int]:
    """Like `proto_of`; also returns the bytes of the model, external data included."""
    held = as_given(model)
    return (
        (held, loaded_size(held, "The ModelProto"))
        if isinstance(held, onnx.ModelProto)
        else load_proto_and_size(Path(held))
    )


def name_of(model: Given, nameless: str = MEMORY) -> str:
    """Returns the name of a model in messages: its path, or `nameless` if it does not come from a file."""
    held = as_given(model)
    return nameless if isinstance(held, onnx.ModelProto) else os.fspath(held)
