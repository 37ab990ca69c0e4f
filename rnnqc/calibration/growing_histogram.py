"""A histogram that grows with its range; the order and grouping of updates do not matter."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.reproducible import ReproducibleSum
from rnnqc.formats.histogram import HALF, Histogram, trimmed
from rnnqc.formats.scales import times_power_of_two

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
        self.add_parts(values[None], np.array([largest]))

    def add_parts(self, parts: npt.NDArray[np.float64], largest: npt.NDArray[np.float64]) -> None:
        """Adds values `[parts, n]` as if each part were added alone.

        Args:
            parts: float64, finite.
            largest: The largest magnitude in each part.
        """
        exponents = np.where(largest > 0.0, np.frexp(largest)[1] - (HALF.bit_length() - 1), FINEST)
        exponents = np.maximum(exponents, FINEST).astype(np.int64)
        places = np.floor(times_power_of_two(parts, -exponents[:, None])).astype(np.intp)
        places += (2 * HALF * np.arange(len(parts)) + HALF)[:, None]
        counts = np.bincount(places.ravel(), minlength=2 * HALF * len(parts))
        used = np.flatnonzero(counts)
        sums = np.asarray(np.bincount(places.ravel(), weights=parts.ravel(), minlength=counts.size), np.float64)
        self._widen(max(self.exponent, int(exponents.max())))
        bins = _wider(used % (2 * HALF), self.exponent - exponents[used // (2 * HALF)])
        np.add.at(self.counts, bins, counts[used])
        self.sums.add_at(bins, sums[used])

    def merge(self, other: GrowingHistogram) -> None:
        """Adds another histogram; this may widen the bins."""
        exponent = max(self.exponent, other.exponent)
        self._widen(exponent)
        other._widen(exponent)
        self.counts += other.counts
        self.sums.merge(other.sums)

    def _widen(self, exponent: int) -> None:
        if exponent == self.exponent:
            return
        index = _wider(np.arange(2 * HALF), exponent - self.exponent)
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


def _wider(bins: npt.NDArray[np.int64], shift: int | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the bins that contain `bins` when bins are `2**shift` times as wide."""
    return ((bins - HALF) >> np.minimum(shift, 63)) + HALF
