"""The percentiles of Brevitas, which do not interpolate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

CALLS = 300
"""The number of calls from which Brevitas collects statistics."""


def kth_smallest(values: npt.NDArray[Any], percent: float) -> float:
    """Returns the k-th smallest of n > 0 `values`, any shape, with `k = floor(0.01 * percent * n + 0.5)` in 1 to n."""
    k = _rank(values.size, percent)
    return float(np.partition(values.ravel(), k - 1)[k - 1])


def kth_smallest_magnitudes(rows: npt.NDArray[Any], percent: float) -> npt.NDArray[Any]:
    """Returns the k-th smallest magnitude of each of `rows` `[calls, n]` (see `kth_smallest`)."""
    count = rows.shape[1]
    k, magnitudes = _rank(count, percent), np.abs(rows)
    return np.asarray(magnitudes.max(axis=1) if k == count else np.partition(magnitudes, k - 1, axis=1)[:, k - 1])


def _rank(count: int, percent: float) -> int:
    return min(max(math.floor(0.01 * percent * count + 0.5), 1), count)
