"""Reads and writes `.npz` files of arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rnnqc.data.limits import physical_memory
from rnnqc.errors import CompileError

Arrays = dict[str, npt.NDArray[Any]]
RAGGED = (
    "pad rows of different lengths to one length (and give the lengths, where the model takes some), write a directory "
    "of .npz, one sample each, or give an iterable of dicts, one for each sample (on the command line module:function)"
)
"""Advice for an array of objects, which numpy makes from rows of different lengths."""


def read_npz(path: Path) -> Arrays:
    """Reads the arrays of an `.npz` file; refuses pickled contents.

    Raises:
        CompileError: The file cannot be read.
    """
    try:
        return _arrays_of(path)
    except CompileError:
        raise
    except OSError as error:
        raise CompileError(f"{path}: {error.strerror or error}.", supported=_NPZ, action="check the path") from error
    except MemoryError as error:
        raise CompileError(
            f"{path}: an array does not fit into memory.", supported=_NPZ, action="check the file"
        ) from error
    except Exception as error:  # zipfile, its decompressors and numpy's header parser raise many kinds
        raise CompileError(
            f"{path}: cannot be read as .npz ({error}).", supported=_NPZ, action="write it with numpy.savez"
        ) from error


_NPZ = ".npz files of arrays named as the model's inputs, without pickled objects"


def _arrays_of(path: Path) -> Arrays:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        strange = [n for n in names if not n.endswith(".npy")]
        if strange:
            raise CompileError(
                f"{path}: holds {strange[0]!r}, which is no array.",
                supported=_NPZ,
                action="write it with numpy.savez",
            )
        _check_size(archive, path)
        for name in names:
            with archive.open(name) as stream:
                arrays[name.removesuffix(".npy")] = _read_array(stream, name.removesuffix(".npy"), path)
    return arrays


def _read_array(stream: IO[bytes], name: str, path: Path) -> npt.NDArray[Any]:
    try:
        return np.lib.format.read_array(stream, allow_pickle=False)
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise CompileError(
            f"{path}: array {name!r} holds objects, as numpy.savez makes of rows of different lengths.",
            supported=_NPZ,
            action=RAGGED,
        ) from error


def _check_size(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuses an archive whose contents exceed the machine's memory: zeros compress to a thousandth."""
    size = sum(entry.file_size for entry in archive.infolist())
    limit = physical_memory()
    if limit is not None and size > limit:
        raise CompileError(
            f"{path}: its arrays have {size} bytes.",
            supported=f"up to {limit}, the memory of the machine",
            action="split the data over a directory of .npz, one feed each",
        )


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Returns the contents of an `.npz` file. Unlike numpy.savez, it accepts any array name.

    Raises:
        CompileError: An array holds objects.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                try:
                    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
                except ValueError as error:
                    raise CompileError(
                        f"output {name!r} of type {array.dtype} cannot be written as .npz ({error}).",
                        supported="numbers and booleans",
                        action="remove the output from the model",
                    ) from error
    return buffer.getvalue()


class NpzFolder:
    """The feeds in a directory, one `.npz` each, in the order of their names, read lazily.

    Args:
        path: The directory.

    Raises:
        CompileError: It holds no `.npz`.
    """

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.glob("*.npz"))
        if not self.files:
            raise CompileError(
                f"{path}: holds no .npz files.",
                supported="one .npz for each feed",
                action="name the folder with the data",
            )

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Arrays]:
        return map(read_npz, self.files)
