"""Reads the data of tensors from files beside the model, and from nowhere else unless the user allows links.

The author of a model chooses the names of its files. A file is opened part by part, starting at the model's folder,
without following links, and the checks apply to the open file: nothing can be exchanged between check and reading.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.tensor_checks import tensor_bytes, tensors_of

ALLOW_LINKS = "RNNQC_ALLOW_LINKED_DATA"
"""Environment variable: "1" lets data files be symbolic or hard links, as in the cache of huggingface_hub."""
LARGEST_TENSOR = 2**31 - 1
"""The largest number of bytes of a tensor in protobuf."""
_BLOCK = 2**20
_BESIDE = "files in the folder of the model"
_AGAIN = "export the model again"
_COPY = (
    "copy model and data with the links followed (cp -rL FOLDER COPY) and name the copy; "
    f"or set {ALLOW_LINKS}=1 if you trust the model and all that its links lead to"
)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
# Does not block if the file is a pipe.
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def links_are_allowed() -> bool:
    """Whether the user has set ALLOW_LINKS."""
    return os.environ.get(ALLOW_LINKS) == "1"


def external_tensors(proto: onnx.ModelProto) -> list[tuple[onnx.TensorProto, str]]:
    """Returns the tensors whose data is in other files, with their names for messages."""
    return [(t, where) for t, where in tensors_of(proto) if t.data_location == onnx.TensorProto.EXTERNAL]


def refuse_external(proto: onnx.ModelProto) -> None:
    """Refuses a proto with external data, because its folder is unknown.

    Raises:
        CompileError: With the first such tensor.
    """
    for _, where in external_tensors(proto):
        raise CompileError(
            f"The ModelProto refers to external data that is not loaded: {where}.",
            supported="protos that hold all their data",
            action="pass the path of the file, or load the proto with its external data",
        )


def load_external(proto: onnx.ModelProto, path: Path) -> int:
    """Reads the external data of a model into it.

    Args:
        proto: The model; it is modified.
        path: Its file.

    Returns:
        The number of bytes read.

    Raises:
        CompileError: A file is missing, too short, of another kind, outside the folder, or does not fit the tensor.
    """
    folder = path.parent.resolve()
    total = 0
    for tensor, where in external_tensors(proto):
        tensor.raw_data = _read(tensor, folder, f"{path}: external data of {where}")
        total += len(tensor.raw_data)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    return total


def check_external(proto: onnx.ModelProto, path: Path) -> None:
    """Checks the external data of a model that other code is going to read.

    Raises:
        CompileError: As `load_external`.
    """
    folder = path.parent.resolve()
    for tensor, where in external_tensors(proto):
        os.close(_opened(tensor, folder, f"{path}: external data of {where}")[0])


def external_digests(proto: onnx.ModelProto, path: Path) -> dict[str, str]:
    """The SHA-256 of each file with external data of a model, by its location in the model.

    Raises:
        CompileError: As `load_external`.
    """
    folder = path.parent.resolve()
    made: dict[str, str] = {}
    for tensor, where in external_tensors(proto):
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        if location in made:
            continue
        where = f"{path}: external data of {where}"
        digest = hashlib.sha256()
        with os.fdopen(_opened(tensor, folder, where)[0], "rb") as stream:
            try:
                while block := stream.read(_BLOCK):
                    digest.update(block)
            except OSError as error:
                raise CompileError(f"{where}: {error.strerror}.", action="check the data file") from error
        made[location] = digest.hexdigest()
    return made


def _read(tensor: onnx.TensorProto, folder: Path, where: str) -> bytes:
    handle, offset, length = _opened(tensor, folder, where)
    with os.fdopen(handle, "rb") as stream:
        try:
            stream.seek(offset)
            data = stream.read(length)
        except OSError as error:
            raise CompileError(f"{where}: {error.strerror}.", action="check the data file") from error
    if len(data) != length:
        raise CompileError(f"{where}: the file became shorter.", action="check the data file")
    return data


def _opened(tensor: onnx.TensorProto, folder: Path, where: str) -> tuple[int, int, int]:
    """Opens a tensor's file; returns the descriptor, and offset and length of the tensor's data."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    parts = _parts(location, where)
    offset, declared = (_number(entries, key, where) for key in ("offset", "length"))
    linked = links_are_allowed()
    target = folder / location
    if not linked:
        _refuse_links(folder, parts, where)
    try:
        handle = os.open(target, _FILE) if linked else _open_beside(folder, parts)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CompileError(
            f"{where}: {target}: {reason}.", supported=_BESIDE, action="put the data file beside the model"
        ) from error
    try:
        status = os.fstat(handle)
        _check_kind(status, target, where, linked=linked)
        expected = tensor_bytes(tensor, where)
        _check_span(
            offset or 0, expected if declared is None else declared, expected, f"{target}", status.st_size, where
        )
    except CompileError:
        os.close(handle)
        raise
    return handle, offset or 0, expected


def _check_span(offset: int, length: int, expected: int, target: str, size: int, where: str) -> None:
    """Checks that the file contains the data and that its length matches the tensor's shape."""
    if length != expected or offset + length > size:
        raise CompileError(
            f"{where}: {length} bytes at offset {offset} of {target}, which has {size} bytes.",
            supported=f"the {expected} bytes that the tensor's shape needs",
            action="export the model again; the data file is incomplete or belongs to another model",
        )
    if length > LARGEST_TENSOR:
        raise CompileError(
            f"{where}: {length} bytes.", supported=f"up to {LARGEST_TENSOR} in a tensor", action="split the tensor"
        )


def _parts(location: str, where: str) -> tuple[str, ...]:
    """Returns the folders and the file in a location."""
    if not location:
        raise CompileError(f"{where}: no location.", supported=_BESIDE, action=_AGAIN)
    parts = Path(location).parts
    if os.path.isabs(location) or Path(location).drive or ".." in parts or not parts:
        raise CompileError(
            f"{where}: location {location!r} is an absolute path or leaves the folder.",
            supported=_BESIDE,
            action="put the data file beside the model and save the model with its plain name",
        )
    return parts


def _refuse_links(folder: Path, parts: tuple[str, ...], where: str) -> None:
    """Raises a readable error for links that `_open_beside` would refuse."""
    step = folder
    for part in parts:
        step = step / part
        try:
            linked = stat.S_ISLNK(os.lstat(step).st_mode)
        except (OSError, ValueError):
            return
        if linked:
            raise CompileError(
                f"{where}: {step} is a symbolic link, as the cache of huggingface_hub makes them.",
                supported="regular files",
                action=_COPY,
            )


def _open_beside(folder: Path, parts: tuple[str, ...]) -> int:
    """Opens a file below a folder without following a link."""
    if os.open not in os.supports_dir_fd:
        return os.open(folder.joinpath(*parts), _FILE | _NO_LINK)
    current = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER | _NO_LINK, dir_fd=current)
            os.close(current)
            current = inner
        return os.open(parts[-1], _FILE | _NO_LINK, dir_fd=current)
    finally:
        os.close(current)


def _check_kind(status: os.stat_result, target: Path, where: str, *, linked: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CompileError(
            f"{where}: {target} is not a file.", supported="regular files", action="put the data file beside the model"
        )
    if status.st_nlink > 1 and not linked:
        raise CompileError(
            f"{where}: {target} is a hard link ({status.st_nlink} names), so it may be a file of another folder.",
            supported="regular files with one name",
            action=_COPY,
        )


def _number(entries: Mapping[str, str], key: str, where: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise CompileError(f"{where}: {key} {text!r}.", supported="whole numbers from 0 on", action=_AGAIN)
    return int(text)
