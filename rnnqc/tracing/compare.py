"""Compares a dump with the arrays of another implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.diagnostics import CompileError
from rnnqc.feeds import read_npz

Array = npt.NDArray[Any]
_SUPPORTED = "a folder with the dump's .npz files: arrays [T,B,K] under the names of its tensors, or NAME.codes"


@dataclass(frozen=True)
class Difference:
    """Where a cell of another implementation parts from the dump.

    Attributes:
        cell: The cell.
        array: Name of the first array that differs, in the order in which a step makes them.
        step: The first step, in the order of the cell's direction, where any array differs.
        row: Row of the batch.
        column: Column of the array.
        expected: What the dump holds.
        found: What the other holds.
        arrays: How many arrays were compared.
    """

    cell: str
    array: str
    step: int
    row: int
    column: int
    expected: Any
    found: Any
    arrays: int

    def __str__(self) -> str:
        return (
            f"{self.cell}: step {self.step}, {self.array}, row {self.row}, column {self.column}: "
            f"{self.expected}, the other {self.found}"
        )


def compare(folder: Path, index: Mapping[str, Any], other: Path) -> tuple[list[Difference], dict[str, int]]:
    """Finds the first difference of each cell.

    Codes are compared where the other has some, real values where it has none.

    Args:
        folder: The dump.
        index: What its index says.
        other: The other folder; files and arrays that it does not have are left out.

    Returns:
        The differences, and for each cell that was compared the number of arrays.

    Raises:
        CompileError: The other folder has nothing to compare, or an array of another shape.
    """
    found: list[Difference] = []
    counts: dict[str, int] = {}
    for cell, entry in index["cells"].items():
        path = other / entry["file"]
        if not entry["steps"] or not path.is_file():
            continue
        ours, theirs = read_npz(folder / entry["file"]), read_npz(path)
        names = [n for t in entry["tensors"] for n in (f"{t}.codes", t) if n in ours and n in theirs]
        names = [n for n in names if n.endswith(".codes") or f"{n}.codes" not in names]
        if not names:
            continue
        counts[cell] = len(names)
        for name in names:
            if ours[name].shape != theirs[name].shape:
                raise CompileError(
                    f"{path}: array {name!r} has shape {list(theirs[name].shape)}.",
                    supported=str(list(ours[name].shape)),
                    action="compare the same steps and rows (--steps, --row)",
                )
        difference = _first(cell, entry, names, ours, theirs)
        if difference is not None:
            found.append(difference)
    if not counts:
        raise CompileError(
            f"{other}: holds nothing to compare.", supported=_SUPPORTED, action="name files and arrays as the dump does"
        )
    return found, counts


def _first(
    cell: str, entry: Mapping[str, Any], names: list[str], ours: Mapping[str, Array], theirs: Mapping[str, Array]
) -> Difference | None:
    """The first difference of one cell."""
    backwards = entry["direction"] == "reverse"
    firsts = []
    for k, name in enumerate(names):
        places = np.argwhere(ours[name] != theirs[name])
        if len(places):
            step = places[:, 0].max() if backwards else places[:, 0].min()
            firsts.append((-step if backwards else step, k, tuple(places[places[:, 0] == step][0].tolist())))
    if not firsts:
        return None
    _, k, (step, row, column) = min(firsts)
    expected, found = (array[names[k]][step, row, column].item() for array in (ours, theirs))
    return Difference(cell, names[k], step + (entry["first_step"] or 0), row, column, expected, found, len(names))
