"""Movements of elements as copies of boxes, the form that the native library runs for `ai.rnnqc::Rearrange`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.passes.views.moves import Table

MOST_BOXES = 64
"""Of one output: more are an arrangement without order, which a Gather makes as well."""


@dataclass(frozen=True)
class Box:
    """Elements of an output with a constant stride in one source along each of some axes.

    Attributes:
        source: Number of the source.
        to: Position of the first element in the output.
        start: Position of the first element in the source.
        axes: For each axis, outermost first, the number of elements, and their strides in the output and in the source.
    """

    source: int
    to: int
    start: int
    axes: Sequence[tuple[int, int, int]]


def boxes_of(table: Table, starts: Sequence[Table]) -> list[Box] | None:
    """Returns the boxes of an output; None for more than `MOST_BOXES`.

    Args:
        table: Table of the output.
        starts: Tables of the sources, each of consecutive numbers.
    """
    firsts = np.array([int(s.flat[0]) for s in starts])
    sources = np.searchsorted(firsts, table, side="right") - 1
    left = np.ones(table.shape, bool)
    strides = [math.prod(table.shape[axis + 1 :]) for axis in range(table.ndim)]
    found: list[Box] = []
    while left.any():
        if len(found) == MOST_BOXES:
            return None
        corner = tuple(int(i) for i in np.unravel_index(int(left.argmax()), left.shape))
        counts, steps = _extents(table, sources, left, corner)
        left[tuple(slice(i, i + n) for i, n in zip(corner, counts, strict=True))] = False
        to = sum(i * s for i, s in zip(corner, strides, strict=True))
        source = int(sources[corner])
        axes = _joined(list(zip(counts, strides, steps, strict=True)))
        found.append(Box(source, to, int(table[corner]) - int(firsts[source]), axes))
    return found


def _extents(
    table: Table, sources: Table, left: npt.NDArray[np.bool_], corner: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """The extent of a box from its corner along each axis, and the stride of its elements in the source."""
    counts, steps = [1] * table.ndim, [0] * table.ndim
    for axis in reversed(range(table.ndim)):
        ends = [i + n for i, n in zip(corner, counts, strict=True)]
        ends[axis] = table.shape[axis]
        place = tuple(slice(i, e) for i, e in zip(corner, ends, strict=True))
        rows = np.moveaxis(table[place], axis, 0).reshape(ends[axis] - corner[axis], -1)
        if len(rows) == 1:
            continue
        free = np.moveaxis(left[place], axis, 0).reshape(rows.shape).all(1)
        same = np.moveaxis(sources[place], axis, 0).reshape(rows.shape) == sources[corner]
        step = int(rows[1, 0] - rows[0, 0])
        even = (rows == rows[:1] + step * np.arange(len(rows))[:, None]).all(1) & same.all(1) & free
        counts[axis] = len(rows) if even.all() else int(even.argmin())
        steps[axis] = step if counts[axis] > 1 else 0
    return counts, steps


def _joined(axes: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merges axes with several elements where one continues the stride of the next."""
    found: list[tuple[int, int, int]] = []
    for count, to, start in axes:
        if count == 1:
            continue
        if found and found[-1][1:] == (count * to, count * start):
            found[-1] = (found[-1][0] * count, to, start)
        else:
            found.append((count, to, start))
    return found
