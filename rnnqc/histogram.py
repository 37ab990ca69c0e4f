"""Histograms whose bins are powers of two wide, so that they can grow and be merged without a rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.reproducible import ReproducibleSum

Array = npt.NDArray[Any]
HALF = 2048
"""Bins on either side of zero."""
FINEST = -160
"""Exponent of the narrowest bins; float32 numbers are multiples of 2**-149."""


@dataclass(frozen=True)
class Histogram:
    """How many values lie in each bin.

    Attributes:
        width: Of a bin, a power of two.
        first: Bin k holds the values from `(first + k) * width` on, up to `(first + k + 1) * width`.
        counts: int64, the first and the last one not zero.
    """

    width: float
    first: int
    counts: npt.NDArray[np.int64]

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The `len(counts) + 1` bounds of the bins."""
        return (self.first + np.arange(self.counts.size + 1)) * self.width

    @property
    def centers(self) -> npt.NDArray[np.float64]:
        """The middles of the bins."""
        return (self.first + np.arange(self.counts.size) + 0.5) * self.width

    @property
    def total(self) -> int:
        """How many values there are."""
        return int(self.counts.sum())

    @property
    def magnitudes(self) -> Histogram:
        """The histogram of the absolute values: the bins below zero turned over."""
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
        """The value below which `percent` of all lie, interpolated within its bin; of no values, 0."""
        if self.total == 0:
            return 0.0
        wanted = percent / 100.0 * self.total
        below = np.concatenate([[0], np.cumsum(self.counts)])
        k = min(int(np.searchsorted(below[1:], wanted, side="left")), self.counts.size - 1)
        inside = (wanted - float(below[k])) / max(int(self.counts[k]), 1)
        return float((self.first + k + min(max(inside, 0.0), 1.0)) * self.width)


def trimmed(width: float, first: int, counts: npt.NDArray[np.int64]) -> Histogram:
    """A histogram without the empty bins at its ends."""
    used = np.flatnonzero(counts)
    if used.size == 0:
        return Histogram(width, 0, np.zeros(0, np.int64))
    return Histogram(width, first + int(used[0]), counts[used[0] : used[-1] + 1].copy())


class GrowingHistogram:
    """Counts and sums of the values in 4096 bins around zero; where the range grows, pairs of bins become one.

    Any order and grouping of the same updates gives the same numbers.
    """

    def __init__(self) -> None:
        self.exponent = FINEST
        self.counts = np.zeros(2 * HALF, np.int64)
        self.sums = ReproducibleSum((2 * HALF,))

    def add(self, values: npt.NDArray[np.float64], largest: float) -> None:
        """Adds a vector of values.

        Args:
            values: float64, finite.
            largest: The largest magnitude among them.
        """
        part = GrowingHistogram()
        part.exponent = max(FINEST, math.frexp(largest)[1] - (HALF.bit_length() - 1))
        bins = np.floor(np.ldexp(values, -part.exponent)).astype(np.intp)
        bins += HALF
        part.counts = np.bincount(bins, minlength=2 * HALF).astype(np.int64)
        part.sums.add(np.bincount(bins, weights=values, minlength=2 * HALF))
        self.merge(part)

    def merge(self, other: GrowingHistogram) -> None:
        """Adds another histogram; it may get wider bins by it."""
        exponent = max(self.exponent, other.exponent)
        self._widen(exponent)
        other._widen(exponent)
        self.counts += other.counts
        self.sums.merge(other.sums)

    def _widen(self, exponent: int) -> None:
        shift = min(exponent - self.exponent, 63)
        if shift == 0:
            return
        index = (np.arange(-HALF, HALF) >> shift) + HALF
        counts = np.zeros(2 * HALF, np.int64)
        np.add.at(counts, index, self.counts)
        self.counts = counts
        self.sums.regroup(index, 2 * HALF)
        self.exponent = exponent

    @property
    def histogram(self) -> Histogram:
        """The counts."""
        return trimmed(math.ldexp(1.0, self.exponent), -HALF, self.counts)

    def mean_abs_dev(self, mean: float) -> float:
        """The mean of `|x - mean|`: exact but for the bin that `mean` lies in, where an even spread is assumed."""
        total = int(self.counts.sum())
        if total == 0:
            return 0.0
        width = math.ldexp(1.0, self.exponent)
        deviations = np.abs(self.sums.value - self.counts * mean)
        inside = math.floor(mean / width)
        k = inside + HALF
        if 0 <= k < deviations.size:
            left, right = mean - inside * width, (inside + 1) * width - mean
            even = float(self.counts[k]) * (left * left + right * right) / (2.0 * width)
            deviations[k] = max(float(deviations[k]), even)
        return float(deviations.sum()) / total
