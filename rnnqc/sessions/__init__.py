"""onnxruntime sessions for lowered models."""

from __future__ import annotations

import mmap
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from rnnqc import runtime_ops
from rnnqc.cells.keys import CELLS_KEY
from rnnqc.codes import Code, told
from rnnqc.errors import CompileError
from rnnqc.sessions.opening import Opener

if TYPE_CHECKING:
    from rnnqc.proto.given import Given

_EXTERNAL = b"location"
"""Every reference to another file has this key."""


def session(
    model: Given,
    native: bool = True,
    options: ort.SessionOptions | None = None,
    **kwargs: Any,
) -> ort.InferenceSession:
    """Makes an onnxruntime session on the CPU.

    Examples:
        >>> import numpy, rnnqc
        >>> session = rnnqc.session(rnnqc.lower("models/digits_lstm.onnx"))
        >>> (logits,) = session.run(None, {"x": numpy.zeros((1, 8, 8), numpy.float32)})
        >>> logits.shape
        (1, 10)

    A Brevitas export that onnxruntime does not run is lowered first, with its own quantization; recurrent layers with
    the batch in front (layout 1) get Transposes around them. If an exporter lost layers, so that outputs do not depend
    on the inputs, a `UserWarning` says so.

    Args:
        model: A path, a ModelProto, or what `rnnqc.lower` returns.
        native: Whether to register rnnqc's library; without it the functions of standard operators run. Same bits.
        options: Session options to start from, by default onnxruntime's with `session.disable_quant_qdq`: products of
            int8 weights do not saturate on x86 without VNNI. They are not changed and can serve for any number of
            sessions. Exception: if they hold another operator library that the model needs, which onnxruntime does
            not copy, rnnqc's is registered with them, too.
        kwargs: Passed to `onnxruntime.InferenceSession`.

    Raises:
        CompileError: The library is missing, onnxruntime refuses the model, or the model has functions of its own in
            rnnqc's domain.
    """
    made = _of_lowered_file(model, native, options, kwargs) if isinstance(model, str | os.PathLike) else None
    if made is not None:
        return made
    from rnnqc.sessions.any_model import session_of_any  # loads the compiler, ten times the time of onnxruntime

    made, warning = session_of_any(model, native, options, kwargs)
    if warning is not None:
        warnings.warn(told(Code.CONSTANT_OUTPUT, warning), stacklevel=2)
    return made


def _of_lowered_file(
    path: str | os.PathLike[str], native: bool, options: ort.SessionOptions | None, arguments: dict[str, Any]
) -> ort.InferenceSession | None:
    """Makes a session of a file that `rnnqc.lower` wrote, with its data in it; None for others, and if it fails."""
    path = Path(path)
    try:
        if not path.is_file():  # a pipe is read once
            return None
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.rfind(CELLS_KEY.encode()) < 0 or data.find(_EXTERNAL) >= 0:
                return None
        made = Opener(options, native, arguments, runtime_ops.operators_of(path))(os.fspath(path))
    except CompileError:
        raise
    except Exception:
        return None
    return made if CELLS_KEY in made.get_modelmeta().custom_metadata_map else None
