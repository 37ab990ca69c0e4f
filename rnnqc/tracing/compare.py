"""Compares a dump with the arrays of another implementation."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.diagnostics import CompileError
from rnnqc.feeds import read_npz

Array = npt.NDArray[Any]
_SHOWN = 5
_CODES = ".codes"
_SUPPORTED = "a folder with the dump's .npz files: arrays [T,B,K] under the names of its tensors, or NAME.codes"


@dataclass(frozen=True)
class Choice:
    """What is compared, and when two values are equal.

    Attributes:
        codes: Whether to compare integers alone.
        only: Patterns of the names of tensors and parameters, without `.codes`.
        atol: By how much real values may differ.
    """

    codes: bool = False
    only: Sequence[str] = ("*",)
    atol: float = 0.0

    def takes(self, name: str) -> bool:
        """Whether the tensor or parameter of an array is compared."""
        plain = name.removesuffix(_CODES)
        return any(fnmatch.fnmatchcase(n, p) for p in self.only for n in {name, plain})

    def differ(self, ours: Array, theirs: Array) -> Array:
        """Which values are not equal: of real ones none that are close enough, and NaN is equal to NaN."""
        differs: Array = np.asarray((ours != theirs) & ~((ours != ours) & (theirs != theirs)))
        if self.atol and "f" in (ours.dtype.kind, theirs.dtype.kind):
            with np.errstate(invalid="ignore"):
                differs &= ~(np.abs(ours.astype(np.float64) - theirs) <= self.atol)
        return differs


@dataclass(frozen=True)
class Difference:
    """Where a cell of another implementation parts from the dump.

    Attributes:
        cell: The cell.
        array: Name of the first array that differs, in the order in which a step makes them; parameters come first.
        step: The first step, in the order in which the cell makes them, where any array differs; None of a parameter.
        index: Row of the batch and column; of a parameter, its indices.
        expected: What the dump holds.
        found: What the other holds.
        call: Number of the call of the model.
    """

    cell: str
    array: str
    step: int | None
    index: tuple[int, ...]
    expected: Any
    found: Any
    call: int = -1

    def __str__(self) -> str:
        names = ("row", "column") if len(self.index) > 1 else ("column",)
        places = [f"step {self.step}"] if self.step is not None else []
        places += [self.array, *(f"{n} {k}" for n, k in zip(names, self.index, strict=False))]
        return f"{self.cell}: {', '.join(places)}: {self.expected}, the other {self.found}"


@dataclass
class Compared:
    """What was compared of one cell: how many arrays and values, and how many values differ."""

    arrays: int
    values: int
    different: int = 0
    first: Difference | None = None


@dataclass
class Comparison:
    """What was compared.

    Attributes:
        cells: The cells that were compared.
        unknown: Arrays of the other that the dump does not have, by file; None for a whole file.
        missing: Cells that the other does not have, by name, with their files.
    """

    cells: dict[str, Compared] = field(default_factory=dict)
    unknown: dict[str, list[str] | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def differences(self) -> list[Difference]:
        """The first difference of each cell that has one, in the order of calls and of cells."""
        found = [c.first for c in self.cells.values() if c.first is not None]
        return sorted(found, key=lambda d: d.call)

    @property
    def values(self) -> int:
        """How many values were compared."""
        return sum(c.values for c in self.cells.values())

    @property
    def different(self) -> int:
        """How many of them differ."""
        return sum(c.different for c in self.cells.values())


def compare(folder: Path, index: Mapping[str, Any], other: Path, choice: Choice | None = None) -> Comparison:
    """Finds the first difference of each cell.

    Codes are compared where the other has some, real values where it has none. NaN is equal to NaN.

    Args:
        folder: The dump.
        index: What its index says.
        other: The other folder; files and arrays that it does not have are left out.
        choice: What is compared; by default everything, to the last bit.

    Returns:
        What was compared, and what could not be because one side has nothing of that name.

    Raises:
        CompileError: The other folder has nothing to compare, or an array of another shape or of no numbers.
    """
    choice = choice or Choice()
    made = Comparison()
    known = {entry["file"] for entry in index["cells"].values()}
    made.unknown = {p.name: None for p in sorted(other.glob("*.npz")) if p.name not in known}
    for cell, entry in index["cells"].items():
        path = other / entry["file"]
        if not entry["steps"]:
            continue
        if not path.is_file():
            made.missing[cell] = entry["file"]
            continue
        ours, theirs = read_npz(folder / entry["file"]), read_npz(path)
        unknown = [n for n in theirs if n not in ours]
        if unknown:
            made.unknown[entry["file"]] = unknown
        names = _names(entry, ours, theirs, choice)
        for name in names:
            _check_alike(path, name, ours[name], theirs[name])
        if names:
            made.cells[cell] = _Cell(cell, entry, choice, index["row"] or 0).compared(names, ours, theirs)
    if not made.cells:
        held = "".join(f" ({text})" for text in not_compared(made)[:_SHOWN])
        chosen = " with --codes and --only as given" if choice.codes or "*" not in choice.only else ""
        raise CompileError(
            f"{other}: holds nothing to compare{chosen}{held}.",
            supported=_SUPPORTED,
            action="name files and arrays as the dump does",
        )
    return made


def not_compared(made: Comparison) -> list[str]:
    """What one side has and the other does not, a text for each file."""
    unknown = [
        f"{file}: the dump has no such file" if names is None else f"{file}: the dump has no {_listed(names)}"
        for file, names in made.unknown.items()
    ]
    return [*unknown, *(f"{cell}: the other folder has no {file}" for cell, file in made.missing.items())]


def _names(
    entry: Mapping[str, Any], ours: Mapping[str, Array], theirs: Mapping[str, Array], choice: Choice
) -> list[str]:
    """The arrays to compare: parameters, then tensors in the order of a step, codes where both have some."""
    both = [n for n in (*entry.get("parameters", ()), *_with_codes(entry["tensors"])) if n in ours and n in theirs]
    names = [n for n in both if n.endswith(_CODES) or f"{n}{_CODES}" not in both]
    if choice.codes:
        names = [n for n in names if ours[n].dtype.kind in "iu"]
    return [n for n in names if choice.takes(n)]


def _with_codes(tensors: Iterable[str]) -> Iterator[str]:
    for tensor in tensors:
        yield f"{tensor}{_CODES}"
        yield tensor


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


class _Cell:
    """Compares the arrays of one cell."""

    def __init__(self, name: str, entry: Mapping[str, Any], choice: Choice, first_row: int) -> None:
        self._name, self._entry, self._choice, self._first_row = name, entry, choice, first_row
        self._begin = entry["first_step"] or 0

    def compared(self, names: Sequence[str], ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Compared:
        """Compares arrays that are alike."""
        made = Compared(len(names), sum(ours[n].size for n in names))
        firsts: list[tuple[int, int, tuple[int, ...]]] = []
        for k, name in enumerate(names):
            differs = self._choice.differ(ours[name], theirs[name])
            self._leave_out(name, differs)
            places = np.argwhere(differs)
            made.different += len(places)
            if not len(places):
                continue
            if self._is_parameter(name):
                firsts.append((-1, k, tuple(places[0].tolist())))
            else:
                order = self._order(places[:, 0])
                firsts.append((int(order.min()), k, tuple(places[order == order.min()][0].tolist())))
        if firsts:
            _, k, place = min(firsts)
            values = (array[names[k]][place].item() for array in (ours, theirs))
            made.first = self._difference(names[k], place, *values)
        return made

    def _is_parameter(self, name: str) -> bool:
        return name in self._entry.get("parameters", ())

    def _leave_out(self, name: str, differs: Array) -> None:
        """Steps that do not make a tensor, and columns that nothing uses."""
        tensor = self._entry["tensors"].get(name.removesuffix(_CODES), {})
        if "absent" in tensor:
            differs[[t - self._begin for t in tensor["absent"]]] = False
        unused = self._entry.get("unused_columns")
        if unused and differs.ndim and differs.shape[-1] > unused[1]:
            differs[..., slice(*unused)] = False

    def _difference(self, name: str, place: tuple[int, ...], expected: Any, found: Any) -> Difference:
        if self._is_parameter(name):
            return Difference(self._name, name, None, place, expected, found)
        step, row, column = place
        step += self._begin
        call = next(r["call"] for r in self._entry["runs"] if r["first"] <= step < r["first"] + r["steps"])
        return Difference(self._name, name, step, (row + self._first_row, column), expected, found, call)

    def _order(self, entries: Array) -> Array:
        """Numbers of steps in the order in which the cell makes them: run by run, a reverse cell's from the last."""
        steps = entries + self._begin
        if self._entry["direction"] != "reverse":
            return steps
        runs = [run for run in self._entry["runs"] if run["steps"]]
        firsts, lengths = (np.array([run[key] for run in runs]) for key in ("first", "steps"))
        k = np.searchsorted(firsts, steps, side="right") - 1
        made: Array = 2 * firsts[k] + lengths[k] - 1 - steps
        return made
