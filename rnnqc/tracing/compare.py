"""Compares a dump with the arrays of another implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.diagnostics import CompileError
from rnnqc.feeds import read_npz

Array = npt.NDArray[Any]
_SHOWN = 5
_SUPPORTED = "a folder with the dump's .npz files: arrays [T,B,K] under the names of its tensors, or NAME.codes"


@dataclass(frozen=True)
class Difference:
    """Where a cell of another implementation parts from the dump.

    Attributes:
        cell: The cell.
        array: Name of the first array that differs, in the order in which a step makes them.
        step: The first step, in the order in which the cell makes them, where any array differs.
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


@dataclass
class Comparison:
    """What was compared.

    Attributes:
        differences: The first difference of each cell that has one.
        counts: For each cell that was compared the number of arrays.
        unknown: Arrays of the other that the dump does not have, by file; None for a whole file.
    """

    differences: list[Difference] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, list[str] | None] = field(default_factory=dict)


def compare(folder: Path, index: Mapping[str, Any], other: Path) -> Comparison:
    """Finds the first difference of each cell.

    Codes are compared where the other has some, real values where it has none. NaN is equal to NaN.

    Args:
        folder: The dump.
        index: What its index says.
        other: The other folder; files and arrays that it does not have are left out.

    Returns:
        The differences, what was compared, and what could not be because the dump has nothing of that name.

    Raises:
        CompileError: The other folder has nothing to compare, or an array of another shape or of no numbers.
    """
    made = Comparison()
    known = {entry["file"] for entry in index["cells"].values()}
    made.unknown = {p.name: None for p in sorted(other.glob("*.npz")) if p.name not in known}
    for cell, entry in index["cells"].items():
        path = other / entry["file"]
        if not entry["steps"] or not path.is_file():
            continue
        ours, theirs = read_npz(folder / entry["file"]), read_npz(path)
        unknown = [n for n in theirs if n not in ours]
        if unknown:
            made.unknown[entry["file"]] = unknown
        names = [n for t in entry["tensors"] for n in (f"{t}.codes", t) if n in ours and n in theirs]
        names = [n for n in names if n.endswith(".codes") or f"{n}.codes" not in names]
        if not names:
            continue
        made.counts[cell] = len(names)
        for name in names:
            _check_alike(path, name, ours[name], theirs[name])
        difference = _first(cell, entry, names, ours, theirs, index["row"] or 0)
        if difference is not None:
            made.differences.append(difference)
    if not made.counts:
        held = "".join(f" ({text})" for text in unknown_texts(made)[:_SHOWN])
        raise CompileError(
            f"{other}: holds nothing to compare{held}.",
            supported=_SUPPORTED,
            action="name files and arrays as the dump does",
        )
    return made


def unknown_texts(made: Comparison) -> list[str]:
    """What the other has and the dump does not, a text for each file."""
    return [
        f"{file}: the dump has no such file" if names is None else f"{file}: the dump has no {_listed(names)}"
        for file, names in made.unknown.items()
    ]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(n) for n in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _check_alike(path: Path, name: str, ours: Array, theirs: Array) -> None:
    """Checks that an array can be compared.

    Raises:
        CompileError: It cannot.
    """
    if theirs.dtype.kind not in "fiub":
        raise CompileError(
            f"{path}: array {name!r} holds {theirs.dtype}.", supported="numbers", action="store integers or floats"
        )
    if ours.shape != theirs.shape:
        raise CompileError(
            f"{path}: array {name!r} has shape {list(theirs.shape)}.",
            supported=str(list(ours.shape)),
            action="compare the same steps and rows (--steps, --row)",
        )


def _first(
    cell: str,
    entry: Mapping[str, Any],
    names: list[str],
    ours: Mapping[str, Array],
    theirs: Mapping[str, Array],
    first_row: int,
) -> Difference | None:
    """The first difference of one cell."""
    firsts = []
    for k, name in enumerate(names):
        a, b = ours[name], theirs[name]
        differs = (a != b) & ~((a != a) & (b != b))  # only NaN differs from itself
        absent = entry["tensors"][name.removesuffix(".codes")].get("absent", ())
        differs[[t - entry["first_step"] for t in absent]] = False
        places = np.argwhere(differs)
        if len(places):
            order = _order(entry, places[:, 0])
            firsts.append((order.min(), k, tuple(places[order == order.min()][0].tolist())))
    if not firsts:
        return None
    _, k, (step, row, column) = min(firsts)
    expected, found = (array[names[k]][step, row, column].item() for array in (ours, theirs))
    step, row = step + (entry["first_step"] or 0), row + first_row
    return Difference(cell, names[k], step, row, column, expected, found, len(names))


def _order(entry: Mapping[str, Any], entries: Array) -> Array:
    """Numbers of steps in the order in which the cell makes them: run by run, a reverse cell's from the last one."""
    steps = entries + (entry["first_step"] or 0)
    if entry["direction"] != "reverse":
        return steps
    runs = [run for run in entry["runs"] if run["steps"]]
    firsts, lengths = (np.array([run[key] for run in runs]) for key in ("first", "steps"))
    k = np.searchsorted(firsts, steps, side="right") - 1
    made: Array = 2 * firsts[k] + lengths[k] - 1 - steps
    return made
