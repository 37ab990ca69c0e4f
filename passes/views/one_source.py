"""Searches for the fewest operators that produce a table from the elements of one value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rnnqc.passes.views.moves import Table, View, cost, gathered, reshaped, sliced, transposed

MOST_INDICES = 1024
"""A Gather with more indices is not made: they stand in the file, and each of them costs time."""


def from_one(target: Table, source: View) -> View | None:
    """Returns the cheapest view of `source` that equals `target`; None if none is found."""
    index = _places(target, source.table)
    if index is None:
        return None
    found = [v for v in _candidates(target, index, source) if np.array_equal(v.table, target)]
    return min(found, key=lambda v: cost([v]), default=None)


def _candidates(target: Table, index: Table, source: View) -> Iterator[View]:
    if _is_permutation(index, source.table.size):
        yield from _permuted(target.shape, index, source)
        return
    yield from _one_gather(target, index, source)
    if _is_once_each(index, source.table.size):
        yield from _boxes(target, index, source)


def _places(target: Table, table: Table) -> Table | None:
    """The position of each element of `target` in `table`; None if one is missing or any occurs twice."""
    flat = table.ravel()
    if flat.size and (flat[1:] - flat[:-1] == 1).all():  # like the numbering of a source
        index = target - flat[0]
        return index if ((index >= 0) & (index < flat.size)).all() else None
    order = np.arange(flat.size) if (flat[1:] > flat[:-1]).all() else np.argsort(flat, kind="stable")
    ordered = flat[order]
    if (ordered[1:] == ordered[:-1]).any():
        return None
    at = np.minimum(np.searchsorted(ordered, target), flat.size - 1)
    return order[at] if (ordered[at] == target).all() else None


def _is_permutation(index: Table, size: int) -> bool:
    return index.size == size and _is_once_each(index, size)


def _is_once_each(index: Table, size: int) -> bool:
    """Whether no position among `size` is used twice."""
    taken = np.zeros(size, np.bool_)
    taken[index] = True
    return int(np.count_nonzero(taken)) == index.size


def _permuted(shape: Sequence[int], index: Table, source: View) -> Iterator[View]:
    """Views for an index that contains every element of the source once."""
    flat = index.ravel()
    if (flat[1:] > flat[:-1]).all():
        yield reshaped(source, shape)
        return
    steps = _strides(flat)
    if steps is None or any(s <= 0 for _, s in steps):
        return
    order = sorted(range(len(steps)), key=lambda k: -steps[k][1])  # axes of the result, in the order of the source
    sizes = [steps[k][0] for k in order]
    if any(steps[k][1] != math.prod(sizes[n + 1 :]) for n, k in enumerate(order)):
        return
    groups = _groups(source.shape, sizes)
    if groups is not None:
        axes = [a for k in range(len(steps)) for a in groups[order.index(k)]]
        moved = transposed(source, _with_units(axes, source.shape, shape))
        yield reshaped(moved, shape)
    parts = _groups(shape, [size for size, _ in steps])
    if parts is not None:
        ones = [a for a, size in enumerate(shape) if size == 1]
        before = [*ones, *(a for k in order for a in parts[k])]
        yield transposed(reshaped(source, [shape[a] for a in before]), [before.index(a) for a in range(len(shape))])
    yield reshaped(transposed(reshaped(source, sizes), [order.index(k) for k in range(len(steps))]), shape)


def _strides(flat: Table) -> list[tuple[int, int]] | None:
    """Sizes and strides, outermost first, of the fewest axes that enumerate `flat`; None if there are none."""
    found: list[tuple[int, int]] = []
    while flat.size > 1:
        step = int(flat[1] - flat[0])
        breaks = np.flatnonzero(np.diff(flat) != step)
        size = int(breaks[0]) + 1 if breaks.size else flat.size
        if flat.size % size:
            return None
        rows = flat.reshape(-1, size)
        if (rows != rows[:, :1] + step * np.arange(size)).any():
            return None
        found.insert(0, (size, step))
        flat = rows[:, 0]
    return found


def _groups(shape: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """For each of `sizes` the adjacent axes of `shape` with that product, without those of length 1; else None."""
    found: list[list[int]] = []
    axes = [a for a, size in enumerate(shape) if size != 1]
    for size in sizes:
        group: list[int] = []
        while axes and math.prod(shape[a] for a in group) < size:
            group.append(axes.pop(0))
        if math.prod(shape[a] for a in group) != size:
            return None
        found.append(group)
    return found if not axes else None


def _with_units(axes: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
    """A permutation with the axes of length 1 where `after` has them, if the counts match; else in front."""
    units, others = [a for a, size in enumerate(before) if size == 1], list(axes)
    if [before[a] for a in axes] != [size for size in after if size != 1] or len(before) != len(after):
        return [*units, *others]
    return [units.pop(0) if size == 1 else others.pop(0) for size in after]


def _one_gather(target: Table, index: Table, source: View) -> Iterator[View]:
    """A Gather on one axis, replaced by the axes of its indices, and a Reshape if that is not yet the target."""
    places = np.unravel_index(index.ravel(), source.shape)
    for axis, size in enumerate(source.shape):
        front, behind = source.shape[:axis], source.shape[axis + 1 :]
        count, rest = divmod(index.size, math.prod(front) * math.prod(behind))
        if size == 1 or rest or not 0 < count <= MOST_INDICES:
            continue
        taken = places[axis].reshape(math.prod(front), count, -1)[0, :, 0]
        middle = target.shape[axis : target.ndim - len(behind)]
        if target.shape == (*front, *middle, *behind):
            yield gathered(source, axis, taken.reshape(middle))
        else:
            yield reshaped(gathered(source, axis, taken), target.shape)


def _boxes(target: Table, index: Table, source: View) -> Iterator[View]:
    """Parts of the source's axes, by one Slice or by Gathers, in the target's or their own order."""
    taken = [_distinct(np.asarray(p).ravel()) for p in np.unravel_index(index, source.shape)]
    if math.prod(t.size for t in taken) != index.size:
        return
    own = [np.sort(t) for t in taken]
    differs = any(not np.array_equal(t, o) for t, o in zip(taken, own, strict=True))
    for order in (taken, own) if differs else (taken,):
        cut = {a: t for a, t in enumerate(order) if not np.array_equal(t, np.arange(source.shape[a]))}
        for part in _parts(source, cut):
            rest = _places(target, part.table)
            if rest is not None and _is_permutation(rest, part.table.size):
                yield from _permuted(target.shape, rest, part)


def _distinct(places: Table) -> Table:
    """The distinct positions, in order of first occurrence."""
    if (places[1:] > places[:-1]).all():
        return places
    first = np.full(int(places.max()) + 1, -1)
    first[places[::-1]] = np.arange(places.size)[::-1]  # of equal ones the first remains
    return np.asarray(places[np.sort(first[first >= 0])])


def _parts(source: View, cut: dict[int, Table]) -> Iterator[View]:
    steps = {a: _progression(t) for a, t in cut.items()}
    irregular = [a for a, s in steps.items() if s is None]
    regular = [(a, int(cut[a][0]), s, cut[a].size) for a, s in steps.items() if s is not None]
    if len(irregular) > 1 or any(cut[a].size > MOST_INDICES for a in irregular):
        return
    part = sliced(source, regular) if regular else source
    for axis in irregular:
        part = gathered(part, axis, cut[axis])
    yield part
    if len(cut) == 1 and regular and regular[0][3] == 1:
        axis, start, *_ = regular[0]
        yield gathered(source, axis, np.asarray(start, np.int64))


def _progression(places: Table) -> int | None:
    """The constant difference of neighbours; None if it varies."""
    if places.size == 1:
        return 1
    steps = np.diff(places)
    return int(steps[0]) if (steps == steps[0]).all() else None
