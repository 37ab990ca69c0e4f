"""A histogram that grows with its range; the order and grouping of updates do not matter."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.reproducible import ReproducibleSum
from rnnqc.formats.histogram import HALF, Histogram, trimmed

FINEST = -160
"""Exponent of the narrowest bins; float32 numbers are multiples of 2**-149."""


class GrowingHistogram:
    """Counts and sums of values in 4096 bins around zero; when the range grows, pairs of bins are merged.

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
        if largest > 0.0:
            part.exponent = max(FINEST, math.frexp(largest)[1] - (HALF.bit_length() - 1))
        bins = np.floor(np.ldexp(values, -part.exponent)).astype(np.intp)
        bins += HALF
        part.counts = np.bincount(bins, minlength=2 * HALF).astype(np.int64)
        part.sums.add(np.bincount(bins, weights=values, minlength=2 * HALF))
        self.merge(part)

    def merge(self, other: GrowingHistogram) -> None:
        """Adds another histogram; this may widen the bins."""
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
        """Returns the mean of `|x - mean|`, exact except in the bin of `mean`, where an even spread is assumed."""
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
