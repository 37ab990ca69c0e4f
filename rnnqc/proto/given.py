"""Models as programs hold them: a path, a ModelProto, or an object that has one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import onnx

from rnnqc.errors import MEMORY, UsageError
from rnnqc.proto.files import load_proto, load_proto_and_size, proto_size


@runtime_checkable
class Exported(Protocol):
    """What `torch.onnx.export` returns (`torch.onnx.ONNXProgram`)."""

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model."""


@runtime_checkable
class HoldsProto(Protocol):
    """What `rnnqc.lower` returns, and `rnnqc.Model`."""

    @property
    def proto(self) -> onnx.ModelProto:
        """The model."""


Given = str | os.PathLike[str] | onnx.ModelProto | Exported | HoldsProto
"""A model: a path, a ModelProto, a `torch.onnx.ONNXProgram`, or what `rnnqc.lower` returns."""


def as_given(model: Given) -> str | os.PathLike[str] | onnx.ModelProto:
    """The path of a model, or its ModelProto.

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
    """The ModelProto of a model; a file is read with its external data.

    Raises:
        CompileError: The file cannot be read.
        UsageError: It is no model.
    """
    held = as_given(model)
    return held if isinstance(held, onnx.ModelProto) else load_proto(Path(held))


def proto_and_size_of(model: Given) -> tuple[onnx.ModelProto, int]:
    """As `proto_of`; also the bytes of the model, external data included."""
    held = as_given(model)
    return (
        (held, proto_size(held, "The ModelProto"))
        if isinstance(held, onnx.ModelProto)
        else load_proto_and_size(Path(held))
    )


def name_of(model: Given, nameless: str = MEMORY) -> str:
    """How messages call a model: its path; `nameless` where it comes from no file."""
    held = as_given(model)
    return nameless if isinstance(held, onnx.ModelProto) else os.fspath(held)
