"""Locates differences between the arrays of one cell and those of another implementation."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CODES = ".codes"


WEIGHT_SCALE = ".weight.scale"
LAST_BIT = 2.0**-22


@dataclass(frozen=True)
class Choice:
    """The arrays to compare, and the tolerance.

    Attributes:
        codes: Whether to compare only integers.
        only: Patterns of the names of tensors and parameters, without `.codes`.
        atol: Absolute tolerance for real values.
    """

    codes: bool = False
    only: Sequence[str] = ("*",)
    atol: float = 0.0

    def takes(self, name: str) -> bool:
        """Whether an array is compared."""
        plain = name.removesuffix(CODES)
        return any(fnmatch.fnmatchcase(n, p) for p in self.only for n in {name, plain})

    def differ(self, ours: Array, theirs: Array) -> Array:
        """Returns which values differ; real values within `atol` do not, and NaN equals NaN."""
        differs: Array = np.asarray((ours != theirs) & ~((ours != ours) & (theirs != theirs)))
        if self.atol and "f" in (ours.dtype.kind, theirs.dtype.kind):
            with np.errstate(invalid="ignore"):
                differs &= ~(np.abs(ours.astype(np.float64) - theirs) <= self.atol)
        return differs


@dataclass(frozen=True)
class Difference:
    """The first difference between a cell of another implementation and the dump.

    Attributes:
        cell: The cell.
        array: Name of the first different array, in the order of computation in a step; parameters come first.
        step: The first step, in the cell's own order, in which any array differs; None for a parameter.
        index: Row of the batch and column; for a parameter, its indices.
        expected: The value in the dump.
        found: The value in the other folder.
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
    """The counts for one cell: compared arrays, compared values, different values; and the first difference."""

    arrays: int
    values: int
    different: int = 0
    first: Difference | None = None


class CellComparison:
    """Compares the arrays of one cell.

    Args:
        name: The cell.
        entry: Its entry in the index of the dump.
        choice: The tolerance.
        first_row: Number of the first row in the files.
    """

    def __init__(self, name: str, entry: Mapping[str, Any], choice: Choice, first_row: int) -> None:
        self._name, self._entry, self._choice, self._first_row = name, entry, choice, first_row
        self._begin = entry["first_step"] or 0

    def compared(self, names: Sequence[str], ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Compared:
        """Compares arrays of equal names and shapes."""
        made = Compared(len(names), sum(ours[n].size for n in names))
        firsts: list[tuple[int, int, tuple[int, ...]]] = []
        for k, name in enumerate(names):
            differs = self._choice.differ(ours[name], theirs[name])
            if name.endswith(WEIGHT_SCALE):  # some forms derive them from products with other scales
                differs &= np.abs(ours[name] - theirs[name]) > LAST_BIT * np.abs(ours[name])
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
        """Clears the marks of steps that do not compute the tensor, and of unused columns."""
        tensor = self._entry["tensors"].get(name.removesuffix(CODES), {})
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
        """Returns the positions of steps in the order of execution: run by run, in a reverse cell from the last."""
        steps = entries + self._begin
        if self._entry["direction"] != "reverse":
            return steps
        runs = [run for run in self._entry["runs"] if run["steps"]]
        firsts, lengths = (np.array([run[key] for run in runs]) for key in ("first", "steps"))
        k = np.searchsorted(firsts, steps, side="right") - 1
        made: Array = 2 * firsts[k] + lengths[k] - 1 - steps
        return made
