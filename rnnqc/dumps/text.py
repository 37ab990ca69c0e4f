"""Writes dumps as text: a folder for each step, a file for each tensor, a number on each line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.dumps.names import FileNames
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]
SHAPES = "shape.txt"
FRAME = "frame_"
FIXED = "_fix"
CODES = ".codes"


class TextFrames:
    """Writes `frame_<t>/<cell>_<tensor>.txt` for one row of the batch; quantized values as `<cell>_<tensor>_fix.txt`.

    Args:
        folder: The folder for the frames.
        row: The row.
        cells: The cells, in the order in which names are assigned.
    """

    def __init__(self, folder: Path, row: int, cells: Sequence[str]) -> None:
        self._folder, self._row = folder, row
        prefixes, self._names = FileNames(), FileNames()
        self._prefixes = {cell: prefixes.of((cell,), _plain(cell)) for cell in cells}
        self.files: dict[str, dict[str, str]] = {cell: {} for cell in cells}
        """For each cell, the file of each array in every frame."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._first: dict[str, int] = {}

    def write(self, cell: str, tensor: Tensor, first: int, *, taken: bool) -> None:
        """Writes some steps of a tensor; `taken` says that the row was already selected."""
        tensor = tensor if taken else tensor.row(self._row)
        arrays = {tensor.name: (tensor.values, "")}
        if tensor.codes is not None:
            arrays[f"{tensor.name}{CODES}"] = (tensor.codes, FIXED)
        self._first.setdefault(cell, first)
        for key, (array, suffix) in arrays.items():
            name = self._name(cell, key, f"{tensor.name}{suffix}")
            for k in range(len(array)):
                self._put(self._frame(first + k), name, array[k, 0])

    def write_weights(self, cell: str, weights: Mapping[str, Array]) -> None:
        """Writes constants once, to the first frame of the cell, real ones with all digits."""
        for name, array in weights.items():
            file = self._name(cell, name, f"{name.removesuffix(CODES)}{FIXED if array.dtype.kind in 'iu' else ''}")
            self._put(self._frame(self._first[cell]), file, array, exact=True)

    def finish(self) -> None:
        """Writes the list of shapes."""
        lines = [f"{list(shape)}: {name}\n" for name, shape in self._shapes.items()]
        (self._folder / SHAPES).write_text("".join(lines), encoding="utf-8")

    def _name(self, cell: str, array: str, text: str) -> str:
        name = self._names.of((cell, array), _plain(f"{self._prefixes[cell]}.{text}"))
        self.files[cell].setdefault(array, f"{name}.txt")
        return name

    def _frame(self, step: int) -> Path:
        frame = self._folder / f"{FRAME}{step}"
        frame.mkdir(exist_ok=True)
        return frame

    def _put(self, frame: Path, name: str, array: Array, *, exact: bool = False) -> None:
        self._shapes.setdefault(name, array.shape)
        digits = 9 if array.dtype == np.float32 else 17
        form = "%d" if array.dtype.kind in "iu" else f"%.{digits}g" if exact else "%12g"
        np.savetxt(frame / f"{name}.txt", array.reshape(-1), form)


def _plain(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "_", text)
