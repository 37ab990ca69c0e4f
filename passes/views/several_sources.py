"""Searches for the fewest operators that produce a table from several values, or several parts of one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from rnnqc.passes.views.moves import Table, View, cost, joined, parted, reshaped
from rnnqc.passes.views.one_source import from_one

DEPTH = 3
"""Of Concats inside Concats."""
MOST_PIECES = 64


def from_any(target: Table, sources: Sequence[View], more: Sequence[View] = (), depth: int = DEPTH) -> View | None:
    """Returns the cheapest view that equals `target`; None if none is found.

    Args:
        target: The elements.
        sources: The values of a region, with disjoint elements.
        more: Other views of them that may be used.
        depth: Maximum nesting of Concats.
    """
    used = [s for s in sources if np.isin(s.table, target).any()]
    found = [v for v in (from_one(target, s) for s in more) if v is not None]
    if len(used) == 1:
        found += [v for v in (from_one(target, used[0]),) if v is not None]
    elif depth:
        found += [v for v in _whole(target, used) if v is not None]
        found += _pieces(target, used, depth)
    return min(found, key=lambda v: cost([v]), default=None)


def parts_of(source: View, targets: Sequence[Table]) -> Iterator[list[View]]:
    """Yields ways to produce several tables from one value with a Split."""
    order = sorted(range(len(targets)), key=lambda k: int(targets[k].ravel()[0]))
    tables = _alike([targets[k] for k in order])
    for axis in range(tables[0].ndim):
        if not _fit(tables, axis):
            continue
        whole = from_one(np.concatenate(tables, axis), source)
        if whole is not None:
            pieces = parted(whole, axis, [t.shape[axis] for t in tables])
            yield [reshaped(pieces[order.index(k)], t.shape) for k, t in enumerate(targets)]


def _whole(target: Table, sources: Sequence[View]) -> Iterator[View | None]:
    """A Concat of whole values, or of slices of them, followed by the result of `from_one`."""
    parts = [_part(target, s) for s in sources]
    views = [p for p in parts if p is not None]
    if len(views) < len(parts) or target.size != sum(v.table.size for v in views):
        return
    flat = target.ravel()
    views.sort(key=lambda v: int(np.isin(flat, v.table).argmax()))
    shapes = [t.shape for t in _alike([v.table for v in views])]
    views = [reshaped(v, shape) for v, shape in zip(views, shapes, strict=True)]
    for axis in range(views[0].table.ndim):
        if _fit([v.table for v in views], axis):
            yield from_one(target, joined(views, axis))


def _part(target: Table, source: View) -> View | None:
    """The part of each axis of a source whose elements a table contains; None if it has other elements, too."""
    taken = np.isin(source.table, target)
    if taken.all():
        return source
    box = np.ix_(*(np.flatnonzero(taken.any(tuple(b for b in range(taken.ndim) if b != a))) for a in range(taken.ndim)))
    return from_one(source.table[box], source) if taken[box].all() else None


def _alike(tables: Sequence[Table]) -> list[Table]:
    """The tables; those of equal size get the shape that most of them have."""
    shapes = Counter(t.shape for t in tables)
    best = {t.size: max((s for s in shapes if np.prod(s) == t.size), key=lambda s: (shapes[s], s)) for t in tables}
    return [t.reshape(best[t.size]) for t in tables]


def _fit(tables: Sequence[Table], axis: int) -> bool:
    """Whether tables can be joined along an axis."""
    return len({(t.ndim, t.shape[:axis], t.shape[axis + 1 :]) for t in tables}) == 1


def _pieces(target: Table, sources: Sequence[View], depth: int) -> Iterator[View]:
    """Concats of pieces, each with elements of other values than its neighbours."""
    firsts = np.array([int(s.table.min()) for s in sources])
    owners = np.searchsorted(np.sort(firsts), target, side="right")
    for axis in range(target.ndim):
        rows = np.moveaxis(owners, axis, 0).reshape(target.shape[axis], -1)
        marks = np.stack([rows.min(1), rows.max(1)])
        cuts = np.flatnonzero((marks[:, 1:] != marks[:, :-1]).any(0)) + 1
        if not 0 < cuts.size < MOST_PIECES:
            continue
        pieces = [from_any(t, sources, depth=depth - 1) for t in np.split(target, cuts, axis)]
        known = [p for p in pieces if p is not None]
        if len(known) == len(pieces):
            yield joined(known, axis)
