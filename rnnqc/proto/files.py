"""Reads model files with their external data, and writes files atomically."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import google.protobuf.message
import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.external_data import load_external
from rnnqc.proto.respell_names import forget_negative_sizes

_FORMAT = "ONNX models (protobuf) up to 2 GB, larger ones with external data"
LARGEST_FILE = 2**31 - 1
"""The largest number of bytes of a model file that protobuf reads."""
_OTHER_FORMATS = (
    (4, b"ORTM", "onnxruntime's own format", "lower the ONNX model that it was made from, and convert the result"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to ONNX with tf2onnx, which reads such files"),
    (0, b"\x89HDF\r\n", "an HDF5 file, of Keras as it seems", "load it there and export it (docs/keras.md)"),
    (0, b"PK\x03\x04", "a ZIP archive, as PyTorch and Keras write", "export it there (docs/pytorch.md, docs/keras.md)"),
    (0, b"\x80\x02", "pickled Python objects, of PyTorch as it seems", "export it there (docs/pytorch.md)"),
)
"""Signatures of other file formats: offset, bytes, the kind of file, and what to do with it."""
_FROM_PIPES: dict[tuple[int, int], bytes] = {}
"""The bytes that pipes gave, by device and number: a pipe gives them once, and commands may read a model again."""
_NOT_THERE_AGAIN = ("/dev/", "/proc/")


def load_proto(path: Path) -> onnx.ModelProto:
    """Reads a model file with its external data; refuses data outside the model's folder.

    Raises:
        CompileError: With the file's name and what is wrong with it.
    """
    return load_proto_and_size(path)[0]


def load_proto_and_size(path: Path) -> tuple[onnx.ModelProto, int]:
    """Like `load_proto`; also returns the bytes of the model and of its external data.

    Raises:
        CompileError: With the file's name and what is wrong with it.
    """
    data = _content(path)
    if not data:
        raise CompileError(
            f"{path}: the file is empty.", supported=_FORMAT, action="export or download the model again"
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (google.protobuf.message.DecodeError, ValueError, RuntimeError) as error:
        what, action = f"not an ONNX model, or truncated ({error})", "export or download the model again"
        for start, first, kind, advice in _OTHER_FORMATS:
            if data.startswith(first, start):
                what, action = f"not an ONNX model, but {kind}", advice
        raise CompileError(f"{path}: {what}.", supported=_FORMAT, action=action) from error
    size = len(data)
    del data
    if not proto.HasField("graph"):
        raise CompileError(
            f"{path}: the file holds no graph.", supported=_FORMAT, action="export or download the model again"
        )
    size += load_external(proto, path)
    forget_negative_sizes(proto)
    return proto, size


def _content(path: Path) -> bytes:
    """Reads the bytes of a model file.

    Raises:
        CompileError: It cannot be read, is a folder or a device, or is larger than protobuf allows.
    """
    try:
        if path.is_dir():
            raise CompileError(f"{path}: is a directory.", supported=_FORMAT, action="name the .onnx file in it")
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                raise CompileError(f"{path}: is a device.", supported=_FORMAT, action="name a file")
            # The size of a pipe is unknown.
            data = stream.read(LARGEST_FILE + 1) if status.st_size <= LARGEST_FILE else b""
            if stat.S_ISFIFO(status.st_mode):
                number = (status.st_dev, status.st_ino)
                data = _FROM_PIPES[number] = data or _FROM_PIPES.get(number, b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CompileError(f"{path}: cannot be read ({reason}).", supported=_FORMAT, action="check the path") from error
    if max(len(data), status.st_size) > LARGEST_FILE:
        raise CompileError(
            f"{path}: has more than {LARGEST_FILE} bytes.",
            supported=_FORMAT,
            action="save the model with external data",
        )
    return data


def word_for(path: str, placeholder: str) -> str:
    """How a later command names a file: `placeholder` for a pipe, and for what another process has under this name."""
    is_passing = path.startswith(_NOT_THERE_AGAIN) or (os.path.exists(path) and not os.path.isfile(path))
    return placeholder if is_passing else path


def serialized(proto: onnx.ModelProto, name: str) -> bytes:
    """Serializes a model; equal models give equal bytes.

    Raises:
        CompileError: It is too large or too deep for protobuf.
    """
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (google.protobuf.message.EncodeError, ValueError, RuntimeError) as error:
        raise CompileError(
            f"{name}: cannot be written as one ONNX file ({error}).",
            supported="models up to 2 GB, subgraphs up to about 20 levels deep",
            action="split the model",
        ) from error


def proto_size(proto: onnx.ModelProto, name: str) -> int:
    """Returns the size of a model in bytes as one file, including loaded external data."""
    return len(serialized(proto, name))


def check_writable(path: Path, inputs: Iterable[str | None] = ()) -> None:
    """Checks before a long computation that `path` can be written, as far as that can be known.

    Args:
        path: The output.
        inputs: Input files, which must not be replaced.

    Raises:
        CompileError: It is a directory or means standard output, its folder does not exist, its name is too long, file
            or folder is write-protected, or it is one of the inputs.
    """
    for name in inputs:
        if name is not None and os.path.exists(name) and os.path.exists(path) and os.path.samefile(name, path):
            raise CompileError(
                f"{path}: is an input, which would be replaced.",
                supported="another file",
                action="choose another output path",
            )
    folder = path.parent
    if str(path) == "-":
        raise CompileError("-: outputs are written to files.", supported="names of files", action="name a file")
    if os.path.isdir(path):
        raise CompileError(f"{path}: is a directory.", supported="a file", action="name the file to write")
    if not os.path.isdir(folder):
        raise CompileError(f"{path}: its folder does not exist.", action="create it, or choose another output path")
    try:
        mode: int | None = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    replaced = mode is None or stat.S_ISREG(mode)
    if (mode is not None and not os.access(path, os.W_OK)) or (replaced and not os.access(folder, os.W_OK | os.X_OK)):
        raise CompileError(f"{path}: is write-protected, or its folder is.", action="choose another output path")


def write_atomically(path: Path, data: bytes) -> None:
    """Writes `data` to `path` through a temporary file in the same folder that is renamed; nothing is left on failure.

    Follows a symbolic link, and keeps the permissions of a replaced file. Anything but a regular file (`/dev/stdout`, a
    pipe) is written to directly.

    Raises:
        CompileError: The file cannot be written.
    """
    temporary = ""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        target = Path(os.path.realpath(path))
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".rnnqc.", suffix=".tmp")
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())  # some file systems report only here that they are full
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
        temporary = ""
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes files into a folder, which may exist, in order: the last one marks the set as complete.

    Raises:
        CompileError: One cannot be written.
    """
    remove_files(folder, contents)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    for name, data in contents.items():
        write_atomically(folder / name, data)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes files from a folder, the last one first; files and folder may be missing.

    Raises:
        CompileError: They cannot be removed.
    """
    if not folder.is_dir():
        return
    try:
        for name in reversed(list(names)):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _mode(target: Path) -> int:
    """Returns the permissions for `target`: its own, or those of a new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _cannot_write(path: Path, error: OSError | ValueError) -> CompileError:
    reason = getattr(error, "strerror", None) or error
    return CompileError(f"{path}: cannot be written ({reason}).", action="choose another output path")
