"""Splits weights that are only stored as int8 into groups with one scale each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

GROUP = 8
"""Elements of a group, where sizes have such divisors."""
LARGEST_GROUP = 64
"""Where they have none near, a group is a channel."""
SCALE_BYTES = 2


@dataclass(frozen=True)
class Groups:
    """A weight split into groups.

    Attributes:
        shape: Shape of the weight with one axis split in two.
        axes: The axes of that shape that a group spans.
        channel: The axis of the output channels.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    channel: int

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The shape of the scales, which broadcasts against `shape`."""
        return tuple(1 if k in self.axes else d for k, d in enumerate(self.shape))

    @property
    def bytes(self) -> int:
        """The size of int8 values and float16 scales."""
        return math.prod(self.shape) + SCALE_BYTES * math.prod(self.scale_shape)


def groups_of(shape: Sequence[int], axis: int) -> Groups:
    """Returns groups of about `GROUP` elements of one output channel.

    Args:
        shape: Shape of the weight.
        axis: Its output channels. If that is the first axis, groups are pieces of the row behind it, else pieces of the
            first axis with all others except the channels. A vector is one row.
    """
    shape = shape if len(shape) > 1 else (1, *shape)
    if axis == 0:
        inner = math.prod(shape[1:])
        size = _divisor(inner, 1)
        return Groups((shape[0], inner // size, size), (2,), 0)
    others = math.prod(shape) // (shape[0] * shape[axis])
    size = _divisor(shape[0], others)
    cut = (shape[0] // size, size, *shape[1:])
    return Groups(cut, tuple(k for k in range(1, len(cut)) if k != axis + 1), axis + 1)


def _divisor(count: int, others: int) -> int:
    """The divisor of `count` whose groups, `others` times as large, are nearest to `GROUP`; else `count`."""
    fitting = [d for d in range(1, count + 1) if count % d == 0 and GROUP <= 2 * d * others <= 2 * LARGEST_GROUP]
    return min(fitting, key=lambda d: abs(math.log(d * others / GROUP)), default=count)
