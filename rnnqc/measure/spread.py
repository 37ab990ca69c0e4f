"""Measures how far the values of an output deviate from their mean, or from the mean of their channel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FEWEST_VALUES = 8
"""With fewer values per channel, its mean follows the values too closely: all channels then share one mean."""
ROUNDINGS = 4.0
"""Deviations up to this many units in the last place of the mean count as rounding."""


class Spread:
    """Collects deviations from the mean of each channel, an index of the last axis, call by call."""

    def __init__(self) -> None:
        self._all = _Moments(1)
        self._channels: _Moments | None = None
        self._apart = True
        self._precision = 0.0

    def add(self, x: Array, finite: Array | None, dtype: np.dtype[Any], *, apart: bool) -> None:
        """Adds the values of one call, float64.

        Args:
            x: The values.
            finite: Which of them count; None if all do.
            dtype: The type that they came in.
            apart: Whether the last axis is channels rather than time.
        """
        if dtype.kind == "f":
            self._precision = max(self._precision, float(np.finfo(dtype).eps))
        self._all.add(x.reshape(-1, 1), None if finite is None else finite.reshape(-1, 1))
        size = x.shape[-1] if apart and x.ndim > 1 else 0
        if self._channels is None:
            self._channels = _Moments(size)
        self._apart &= size > 1 and size == self._channels.size
        if self._apart:
            self._channels.add(x.reshape(-1, size), None if finite is None else finite.reshape(-1, size))

    @property
    def deviation(self) -> float:
        """Root mean square of the deviations; 0 if they may be mere rounding."""
        apart = self._channels if self._apart else None
        moments = apart if apart is not None and apart.fewest >= FEWEST_VALUES else self._all
        found = moments.deviation
        return 0.0 if found <= ROUNDINGS * self._precision * moments.magnitude else found


class _Moments:
    """Count, mean and sum of squared deviations of each channel. It never sums raw squares, which would cancel."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._count, self._mean, self._squares = np.zeros(size), np.zeros(size), np.zeros(size)

    def add(self, x: Array, finite: Array | None) -> None:
        """Adds values `[n, channels]`; only finite ones count, or all."""
        if finite is None:
            more, counted = np.full(x.shape[1], float(len(x))), x
        else:
            more, counted = finite.sum(axis=0, dtype=np.float64), np.where(finite, x, 0.0)
        mean = counted.sum(axis=0) / np.maximum(more, 1.0)
        apart = x - mean if finite is None else np.where(finite, x - mean, 0.0)
        squares = np.square(apart, out=apart).sum(axis=0)
        count = np.maximum(self._count + more, 1.0)
        shift = mean - self._mean
        self._squares += squares + np.square(shift) * self._count * more / count
        self._mean += shift * more / count
        self._count += more

    @property
    def fewest(self) -> float:
        """The smallest number of values in a channel."""
        return float(self._count.min(initial=math.inf))

    @property
    def deviation(self) -> float:
        """Root mean square of the deviations."""
        return math.sqrt(self._squares.sum() / max(1.0, self._count.sum()))

    @property
    def magnitude(self) -> float:
        """Root mean square of the means."""
        return math.sqrt(np.square(self._mean).sum() / max(1, self.size))
