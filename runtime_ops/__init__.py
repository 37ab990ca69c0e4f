"""The native kernels of lowered models: where the library is, and how a session of onnxruntime gets it.

The library registers the operators of domain `ai.rnnqc`. Models written by rnnqc run without it too, in standard
operators, with the same bits. This package is `rnnqc.runtime_ops` of the compiler, and alone `rnnqc_runtime`, for
programs that run models and lower none.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import onnxruntime

__version__ = "0.2.0"
__all__ = ["isa", "library_path", "operators_of", "register"]

_LIBRARY_NAMES = {"win32": "librnnqc_ops.dll", "darwin": "librnnqc_ops.dylib"}
_OPERATORS = "rnnqc.operators"
"""An entry of session options, which the library reads."""
_REGISTERED = "_registered_with_rnnqc"
"""In onnxruntime, options that have the library: `rnnqc.runtime_ops` and `rnnqc_runtime` may be in one process."""


def library_path() -> Path:
    """Where the native library is.

    The environment variable `RNNQC_LIBRARY` names another file than the installed one.

    Raises:
        FileNotFoundError: it has not been built, or `RNNQC_LIBRARY` names no file.
    """
    override = os.environ.get("RNNQC_LIBRARY")
    if override:
        path = Path(override)
        if not path.is_file():
            raise FileNotFoundError(f"RNNQC_LIBRARY is {override!r}, which is not a file; unset it or name the library")
        return path.resolve()
    name = _LIBRARY_NAMES.get(sys.platform, "librnnqc_ops.so")
    # In an editable installation the library and the Python files are in different folders.
    for folder in __path__:
        path = Path(folder) / name
        if path.is_file():
            return path.resolve()
    raise FileNotFoundError(
        f"the native library {name} is in none of {', '.join(map(str, __path__))}. Build it with `pip install .` (or "
        "`pip install -e .`) in the checkout, or with `cmake -S runtime_ops -B build/native && cmake --build "
        "build/native` and RNNQC_LIBRARY set to the file. Models run without it, in standard operators."
    )


def register(session_options: onnxruntime.SessionOptions, operators: Iterable[str] | None = None) -> None:
    """Registers the native kernels with every session that is created from `session_options`; once, if called again.

    Args:
        session_options: Of the sessions.
        operators: The names of the operators of domain `ai.rnnqc` that their models need; others run in their function
            bodies. Each takes some 40 us whenever a session is created. By default they are all there; `operators_of`
            names those of a file.

    Raises:
        FileNotFoundError: the library has not been built.
        RuntimeError: the environment variable `RNNQC_ISA` names an instruction set that is not available.
    """
    isa()
    import onnxruntime

    registered: weakref.WeakSet[onnxruntime.SessionOptions]
    registered = onnxruntime.__dict__.setdefault(_REGISTERED, weakref.WeakSet())
    if session_options not in registered:  # onnxruntime opens no session from options that have a library twice
        if operators is not None:
            session_options.add_session_config_entry(_OPERATORS, ";".join(sorted(set(operators))))
        session_options.register_custom_ops_library(str(library_path()))
        registered.add(session_options)


def operators_of(path: str | os.PathLike[str]) -> set[str]:
    """The operators of domain `ai.rnnqc` for which a file has function bodies, as every file has that rnnqc writes.

    Weights and nodes are skipped: it takes a tenth of a millisecond however large the file is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an ONNX model.
    """
    with open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        functions = [stream.read(n) for field, n in _fields(stream, size) if field == _FUNCTIONS]
    names = set()
    for function in functions:
        held: dict[int, bytes] = {}
        body = io.BytesIO(function)
        for field, n in _fields(body, len(function)):
            if field in (_NAME, _DOMAIN):
                held[field] = body.read(n)
        if held.get(_DOMAIN) == _OUR_DOMAIN:
            names.add(held.get(_NAME, b"").decode())
    return names


_FUNCTIONS, _NAME, _DOMAIN = 25, 1, 10
"""Fields of ModelProto and FunctionProto in onnx.proto."""
_OUR_DOMAIN = b"ai.rnnqc"
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""How a field is written in protobuf."""


def _fields(stream: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """The numbers and sizes of a message's fields with bytes; the stream stands at the bytes, which may be read."""
    while (at := stream.tell()) < size:
        field, kind = divmod(_varint(stream), 8)
        length = _varint(stream) if kind in (_VARINT, _BYTES) else {_EIGHT: 8, _FOUR: 4}.get(kind)
        if length is None:
            raise ValueError(f"not an ONNX model: protobuf has no kind {kind} of field (at byte {at})")
        at = stream.tell() + (0 if kind == _VARINT else length)
        if at > size:
            raise ValueError(f"not an ONNX model: a field ends at byte {at} of {size}")
        if kind == _BYTES:
            yield field, length
        stream.seek(at)


def _varint(stream: BinaryIO) -> int:
    value = shift = 0
    while shift < 70:  # 10 bytes
        byte = stream.read(1)
        if not byte:
            raise ValueError("not an ONNX model: it ends within a number")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
        shift += 7
    raise ValueError("not an ONNX model: a number of more than 10 bytes")


def isa() -> str:
    """The instruction set of the kernels: the best available one, or the one that `RNNQC_ISA` names.

    Raises:
        FileNotFoundError: the library has not been built.
        RuntimeError: `RNNQC_ISA` names one that is not built in or that this processor does not have.
    """
    library = ctypes.CDLL(str(library_path()))
    library.rnnqc_isa.restype = ctypes.c_char_p
    library.rnnqc_isa.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    message = ctypes.create_string_buffer(1024)
    name: bytes | None = library.rnnqc_isa(message, ctypes.sizeof(message))
    if name is None:
        raise RuntimeError(message.value.decode())
    return name.decode()
