"""Collects arrays that grow along their first axis in temporary files, and writes them as one `.npz`."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BUFFER = 2**23
COPIED = 2**20


class Spool:
    """The arrays of one `.npz`, written to disk as they arrive.

    Args:
        folder: A folder of its own for temporary files; made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buffer: dict[str, list[Array]] = {}
        self._buffered = 0
        self.lengths: dict[str, int] = {}
        self.forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.fixed: dict[str, Array] = {}

    def append(self, name: str, array: Array) -> None:
        """Appends along the first axis.

        Raises:
            ValueError: The other axes or the type differ from those of earlier parts.
        """
        form = self.forms.setdefault(name, (array.dtype, array.shape[1:]))
        if form != (array.dtype, array.shape[1:]):
            raise ValueError(name)
        self.lengths[name] = self.lengths.get(name, 0) + len(array)
        self._buffer.setdefault(name, []).append(np.ascontiguousarray(array))
        self._buffered += array.nbytes
        if self._buffered > BUFFER:
            self._flush()

    def fix(self, name: str, array: Array) -> None:
        """Adds an array that does not grow."""
        self.fixed[name] = array

    def write(self, path: Path) -> None:
        """Writes all arrays to `path`, in the order of their first parts; arrays that do not grow come last."""
        numbers = {name: k for k, name in enumerate(self.forms)}
        with zipfile.ZipFile(path, "w") as archive:
            for name, (dtype, shape) in self.forms.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                    header = {
                        "descr": np.lib.format.dtype_to_descr(dtype),
                        "fortran_order": False,
                        "shape": (self.lengths[name], *shape),
                    }
                    np.lib.format.write_array_header_1_0(stream, header)
                    stored = self._folder / str(numbers[name])
                    if stored.exists():
                        with stored.open("rb") as held:
                            shutil.copyfileobj(held, stream, COPIED)
                    for array in self._buffer.get(name, ()):
                        stream.write(_bytes(array))
            for name, array in self.fixed.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _flush(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = {name: k for k, name in enumerate(self.forms)}
        for name, arrays in self._buffer.items():
            with (self._folder / str(numbers[name])).open("ab") as stream:
                for array in arrays:
                    stream.write(_bytes(array))
        self._buffer.clear()
        self._buffered = 0


def _bytes(array: Array) -> memoryview:
    """Returns the bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data
