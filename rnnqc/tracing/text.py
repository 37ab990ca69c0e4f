"""Dumps as text: a folder for each step, a file for each tensor, a number on each line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]
SHAPES = "shape.txt"
FIXED = "_fix"


class TextFrames:
    """Writes `frame_<t>/<cell>_<tensor>.txt` of one row of the batch, and `<cell>_<tensor>_fix.txt` of its codes.

    Args:
        folder: Where the frames go.
        row: The row.
    """

    def __init__(self, folder: Path, row: int) -> None:
        self._folder, self._row = folder, row
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._first: dict[str, int] = {}

    def write(self, cell: str, tensor: Tensor, first: int, *, taken: bool) -> None:
        """Writes some steps of a tensor; `taken` says whether it has one row only, the one that is wanted."""
        tensor = tensor if taken else tensor.row(self._row)
        name = _file_name(cell, tensor.name)
        self._first.setdefault(cell, first)
        for k in range(len(tensor.values)):
            frame = self._frame(first + k)
            self._put(frame, name, tensor.values[k, 0])
            if tensor.codes is not None:
                self._put(frame, f"{name}{FIXED}", tensor.codes[k, 0])

    def write_weights(self, cell: str, codes: Mapping[str, Array]) -> None:
        """Writes constants once, to the first frame of the cell."""
        for name, array in codes.items():
            frame = self._frame(self._first[cell])
            self._put(frame, f"{_file_name(cell, name.removesuffix('.codes'))}{FIXED}", array)

    def finish(self) -> None:
        """Writes the list of shapes."""
        lines = [f"{list(shape)}: {name}\n" for name, shape in self._shapes.items()]
        (self._folder / SHAPES).write_text("".join(lines), encoding="utf-8")

    def _frame(self, step: int) -> Path:
        frame = self._folder / f"frame_{step}"
        frame.mkdir(exist_ok=True)
        return frame

    def _put(self, frame: Path, name: str, array: Array) -> None:
        self._shapes.setdefault(name, array.shape)
        form = "%d" if array.dtype.kind in "iu" else "%12g"
        np.savetxt(frame / f"{name}.txt", array.reshape(-1), form)


def _file_name(cell: str, tensor: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "_", f"{cell}.{tensor}")
