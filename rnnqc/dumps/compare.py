"""Compares a dump with the arrays of another implementation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rnnqc.data.npz import read_npz
from rnnqc.dumps.differences import CODES, CellComparison, Choice, Compared, Difference
from rnnqc.errors import CompileError

Array = npt.NDArray[Any]
_SHOWN = 5
_SUPPORTED = "a folder with the dump's .npz files: arrays [T,B,K] under the names of its tensors, or NAME.codes"


@dataclass
class Comparison:
    """The result of comparing a dump with another folder.

    Attributes:
        cells: The cells that were compared.
        unknown: Arrays of the other folder that the dump lacks, by file; None for a whole file.
        missing: Cells that the other folder lacks, by name, with their files.
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
        """The number of compared values."""
        return sum(c.values for c in self.cells.values())

    @property
    def different(self) -> int:
        """The number of different values."""
        return sum(c.different for c in self.cells.values())


def compare(folder: Path, index: Mapping[str, Any], other: Path, choice: Choice | None = None) -> Comparison:
    """Finds the first difference of each cell.

    Compares quantized values where the other folder has them, otherwise real values. NaN equals NaN.

    Args:
        folder: The dump.
        index: The contents of its index.
        other: The other folder; files and arrays that it lacks are left out.
        choice: The arrays to compare, and how closely; by default all, bit for bit.

    Returns:
        The comparison, with the names that only one side has.

    Raises:
        CompileError: The other folder has nothing to compare, or an array of another shape or of non-numbers.
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
            made.cells[cell] = CellComparison(cell, entry, choice, index["row"] or 0).compared(names, ours, theirs)
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
    """Returns a text for each file or array that only one side has."""
    unknown = [
        f"{file}: the dump has no such file" if names is None else f"{file}: the dump has no {_listed(names)}"
        for file, names in made.unknown.items()
    ]
    return [*unknown, *(f"{cell}: the other folder has no {file}" for cell, file in made.missing.items())]


def _names(
    entry: Mapping[str, Any], ours: Mapping[str, Array], theirs: Mapping[str, Array], choice: Choice
) -> list[str]:
    """Returns the arrays to compare: parameters, then tensors in step order, quantized where both sides are."""
    both = [n for n in (*entry.get("parameters", ()), *_with_codes(entry["tensors"])) if n in ours and n in theirs]
    names = [n for n in both if n.endswith(CODES) or f"{n}{CODES}" not in both]
    if choice.codes:
        names = [n for n in names if ours[n].dtype.kind in "iu"]
    return [n for n in names if choice.takes(n)]


def _with_codes(tensors: Iterable[str]) -> Iterator[str]:
    for tensor in tensors:
        yield f"{tensor}{CODES}"
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
