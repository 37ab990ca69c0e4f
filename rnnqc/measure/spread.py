"""What varies of an output: how far its values lie from their mean, or from that of their channel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FEWEST_VALUES = 8
"""With fewer values a channel's mean takes too much of what varies: all channels are one then."""
ROUNDINGS = 4.0
"""Deviations of so many units in the last place of the mean are no more than roundings."""


class Spread:
    """Collects how values vary around the mean of their channel, an index of the last axis, call by call."""

    def __init__(self) -> None:
        self._all = _Moments(1)
        self._channels: _Moments | None = None
        self._apart = True
        self._precision = 0.0

    def add(self, x: Array, finite: Array, dtype: np.dtype[Any], *, apart: bool) -> None:
        """Adds the values of one call, float64.

        Args:
            x: The values.
            finite: Which of them count.
            dtype: The type that they came in.
            apart: Whether the last axis holds channels, and not steps in time.
        """
        if dtype.kind == "f":
            self._precision = max(self._precision, float(np.finfo(dtype).eps))
        self._all.add(x.reshape(-1, 1), finite.reshape(-1, 1))
        size = x.shape[-1] if apart and x.ndim > 1 else 0
        if self._channels is None:
            self._channels = _Moments(size)
        self._apart &= size > 1 and size == self._channels.size
        if self._apart:
            self._channels.add(x.reshape(-1, size), finite.reshape(-1, size))

    @property
    def deviation(self) -> float:
        """Root of the mean square of what varies; 0 where that is no more than roundings."""
        apart = self._channels if self._apart else None
        moments = apart if apart is not None and apart.fewest >= FEWEST_VALUES else self._all
        found = moments.deviation
        return 0.0 if found <= ROUNDINGS * self._precision * moments.magnitude else found


class _Moments:
    """Number, mean and sum of squared deviations of each channel; sums are never of squares, which would cancel."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._count, self._mean, self._squares = np.zeros(size), np.zeros(size), np.zeros(size)

    def add(self, x: Array, finite: Array) -> None:
        """Adds values `[n, channels]`, of which those count that are finite."""
        more = finite.sum(axis=0, dtype=np.float64)
        mean = np.where(finite, x, 0.0).sum(axis=0) / np.maximum(more, 1.0)
        squares = np.square(np.where(finite, x - mean, 0.0)).sum(axis=0)
        count = np.maximum(self._count + more, 1.0)
        shift = mean - self._mean
        self._squares += squares + np.square(shift) * self._count * more / count
        self._mean += shift * more / count
        self._count += more

    @property
    def fewest(self) -> float:
        """How many values the channel with the fewest has."""
        return float(self._count.min(initial=math.inf))

    @property
    def deviation(self) -> float:
        """Root of the mean square of the deviations."""
        return math.sqrt(self._squares.sum() / max(1.0, self._count.sum()))

    @property
    def magnitude(self) -> float:
        """Root of the mean square of the means."""
        return math.sqrt(np.square(self._mean).sum() / max(1, self.size))
