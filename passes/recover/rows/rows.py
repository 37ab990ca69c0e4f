"""Values as rows: the expression of each row of a tensor, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rnnqc.passes.recover.rows.row_algebra import Atom, Atoms, Form

Lead = tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """A value of rank n as expressions of its rows.

    Attributes:
        lead: All dimensions but the last; at most one is not 1.
        segments: Its columns, in order.
    """

    lead: Lead
    segments: tuple[Form, ...]

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(s.width for s in self.segments)

    @property
    def single(self) -> Atom | None:
        """The atom that equals it, if there is one."""
        return self.segments[0].single if len(self.segments) == 1 else None

    def times(self, number: np.float32) -> Rows:
        """Multiplies every column by a number."""
        return Rows(self.lead, tuple(s.times(number) for s in self.segments))


def columns_of(atoms: Atoms, rows: Rows, low: int, high: int) -> Rows:
    """Returns the columns from `low` up to, but excluding, `high`."""
    segments, position = [], 0
    for segment in rows.segments:
        a, b = max(low - position, 0), min(high - position, segment.width)
        if a < b:
            segments.append(atoms.sliced(segment, a, b))
        position += segment.width
    return Rows(rows.lead, tuple(segments))


def aligned(atoms: Atoms, a: Rows, b: Rows) -> tuple[Lead, list[tuple[Form, Form]]] | None:
    """Splits both into the same columns; None if they cannot be added."""
    if a.width != b.width:
        return None
    lead = broadcast(a.lead, b.lead)
    if lead is None:
        return None
    ends = sorted(
        {*np.cumsum([s.width for s in a.segments]).tolist(), *np.cumsum([s.width for s in b.segments]).tolist()}
    )
    pairs, low = [], 0
    for high in ends:
        (x,), (y,) = (columns_of(atoms, r, low, high).segments for r in (a, b))
        pairs.append((x, y))
        low = high
    return lead, pairs


def checked(lead: Sequence[int | str | None], segments: tuple[Form, ...]) -> Rows | None:
    """Returns rows of these dimensions; None if more than one of them is not 1."""
    return Rows(tuple(lead), segments) if sum(d != 1 for d in lead) <= 1 else None


def broadcast(a: Lead, b: Lead) -> Lead | None:
    """Returns the dimensions of a sum; None if more than one would not be 1, or if they are unequal."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    result: list[int | str | None] = []
    for x, y in zip(a, b, strict=True):
        if x == 1 or y == 1:
            result.append(y if x == 1 else x)
        elif isinstance(x, int) and isinstance(y, int) and x != y:
            return None
        else:
            result.append(x if x is not None else y)
    return tuple(result) if sum(d != 1 for d in result) <= 1 else None
