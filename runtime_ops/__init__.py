"""The native kernels of lowered models: where the library is, and how a session of onnxruntime gets it.

The library registers the operators of domain `ai.rnnqc`. Models written by rnnqc run without it too, in standard
operators, with the same bits. This package is `rnnqc.runtime_ops` of the compiler, and alone `rnnqc_runtime`, for
programs that run models and lower none.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
    path = library_path()
    _isa_of(path)
    import onnxruntime

    registered: weakref.WeakSet[onnxruntime.SessionOptions]
    registered = onnxruntime.__dict__.setdefault(_REGISTERED, weakref.WeakSet())
    if session_options not in registered:  # onnxruntime opens no session from options that have a library twice
        if operators is not None:
            session_options.add_session_config_entry(_OPERATORS, ";".join(sorted(set(operators))))
        session_options.register_custom_ops_library(str(path))
        registered.add(session_options)


def operators_of(path: str | os.PathLike[str]) -> set[str]:
    """The operators of domain `ai.rnnqc` for which a file has function bodies, as every file has that rnnqc writes.

    Weights and nodes are skipped: it takes some tenths of a millisecond however large the file is.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an ONNX model.
    """
    names: set[str] = set()
    with open(path, "rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            return names
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            bodies = [data[start:end] for field, start, end in _fields(data) if field == _FUNCTIONS]
    for body in bodies:
        if body.rfind(_OUR_DOMAIN) >= 0:  # a walk over all nodes of all bodies would take milliseconds
            names.add(next((body[start:end].decode() for field, start, end in _fields(body) if field == _NAME), ""))
    return names


_FUNCTIONS, _NAME = 25, 1
"""Fields of ModelProto and FunctionProto in onnx.proto."""
_OUR_DOMAIN = b"R\x08ai.rnnqc"
"""Field 10 of a FunctionProto, its domain; no other field of it has this number and length."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""How a field is written in protobuf."""


def _fields(message: bytes | mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """The fields of a message that hold bytes: the number of each, and where its bytes start and end."""
    at, size = 0, len(message)
    try:
        while at < size:
            key, at = _varint(message, at)
            field, kind = divmod(key, 8)
            if kind == _BYTES:
                length, at = _varint(message, at)
                yield field, at, at + length
                at += length
            elif kind == _VARINT:
                _, at = _varint(message, at)
            elif kind in (_EIGHT, _FOUR):
                at += 8 if kind == _EIGHT else 4
            else:
                raise ValueError(f"not an ONNX model: protobuf has no kind {kind} of field (at byte {at})")
    except IndexError:
        raise ValueError("not an ONNX model: it ends within a number") from None
    if at > size:
        raise ValueError(f"not an ONNX model: a field ends at byte {at} of {size}")


def _varint(message: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """The number that begins at a byte, and where it ends."""
    value = message[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("not an ONNX model: a number of more than 10 bytes")


def isa() -> str:
    """The instruction set of the kernels: the best available one, or the one that `RNNQC_ISA` names.

    Raises:
        FileNotFoundError: the library has not been built.
        RuntimeError: `RNNQC_ISA` names one that is not built in or that this processor does not have.
    """
    return _isa_of(library_path())


def _isa_of(path: Path) -> str:
    message = ctypes.create_string_buffer(1024)
    name: bytes | None = _loaded(path).rnnqc_isa(message, ctypes.sizeof(message))
    if name is None:
        raise RuntimeError(message.value.decode())
    return name.decode()


@functools.cache
def _loaded(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.rnnqc_isa.restype = ctypes.c_char_p
    library.rnnqc_isa.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library
