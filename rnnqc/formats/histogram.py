"""Histograms with power-of-two bin widths, so that they can grow and be merged exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HALF = 2048
"""The number of bins on either side of zero."""


@dataclass(frozen=True)
class Histogram:
    """The number of values in each bin.

    Attributes:
        width: Width of a bin, a power of two.
        first: Bin k holds the values from `(first + k) * width` on, up to `(first + k + 1) * width`.
        counts: int64; the first and the last one are not zero.
    """

    width: float
    first: int
    counts: npt.NDArray[np.int64]

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The `len(counts) + 1` bounds of the bins."""
        return np.arange(self.first, self.first + self.counts.size + 1, dtype=np.float64) * self.width

    @property
    def centers(self) -> npt.NDArray[np.float64]:
        """The centers of the bins."""
        return self.edges[:-1] + 0.5 * self.width

    @property
    def total(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    @property
    def magnitudes(self) -> Histogram:
        """The histogram of the absolute values: the bins below zero are mirrored."""
        first, last = self.first, self.first + self.counts.size - 1
        if first >= 0:
            return self
        size = max(-first, last + 1)
        counts = np.zeros(size, np.int64)
        counts[: max(last + 1, 0)] += self.counts[-first:]
        negative = self.counts[: min(-first, self.counts.size)][::-1]
        start = max(-last - 1, 0)
        counts[start : start + negative.size] += negative
        return trimmed(self.width, 0, counts)

    def percentile(self, percent: float) -> float:
        """Returns the value below which `percent` of all lie, interpolated within its bin; 0 if there are no values."""
        if self.total == 0:
            return 0.0
        wanted = percent / 100.0 * self.total
        below = np.concatenate([[0], np.cumsum(self.counts)])
        k = min(int(np.searchsorted(below[1:], wanted, side="left")), self.counts.size - 1)
        inside = (wanted - float(below[k])) / max(int(self.counts[k]), 1)
        return float((self.first + k + min(max(inside, 0.0), 1.0)) * self.width)


def trimmed(width: float, first: int, counts: npt.NDArray[np.int64]) -> Histogram:
    """Makes a histogram without the empty bins at its ends."""
    used = np.flatnonzero(counts)
    if used.size == 0:
        return Histogram(width, 0, np.zeros(0, np.int64))
    return Histogram(width, first + int(used[0]), counts[used[0] : used[-1] + 1].copy())
