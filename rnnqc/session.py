"""onnxruntime sessions for lowered models."""

from __future__ import annotations

import os
from typing import Any

import onnx
import onnxruntime as ort

from rnnqc import runtime_ops
from rnnqc.diagnostics import CompileError
from rnnqc.files import serialized
from rnnqc.pipeline import runnable


def session(
    model: str | os.PathLike[str] | onnx.ModelProto,
    native: bool = True,
    options: ort.SessionOptions | None = None,
    **kwargs: Any,
) -> ort.InferenceSession:
    """An onnxruntime session on the CPU.

    A model that onnxruntime refuses because Brevitas exported it is lowered first, with its own quantization.

    Args:
        model: A path or a ModelProto.
        native: Whether to register rnnqc's library; without it the functions of standard operators run. Same bits.
        options: Session options to start from; the library is registered with them.
        kwargs: Passed to `onnxruntime.InferenceSession`.

    Raises:
        CompileError: The library is missing, or onnxruntime refuses the model.
    """
    options = options if options is not None else ort.SessionOptions()
    if native:
        try:
            runtime_ops.register(options)
        except (OSError, RuntimeError) as error:
            raise CompileError(str(error)) from error
    kwargs.setdefault("providers", ["CPUExecutionProvider"])
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else os.fspath(model)
    try:
        return ort.InferenceSession(source, options, **kwargs)
    except Exception as error:
        exported = runnable(model)
        if exported is not None:
            return ort.InferenceSession(serialized(exported, "The lowered model"), options, **kwargs)
        name = "the model" if isinstance(model, onnx.ModelProto) else os.fspath(model)
        raise CompileError(f"onnxruntime {ort.__version__} refuses {name}: {error}") from error
