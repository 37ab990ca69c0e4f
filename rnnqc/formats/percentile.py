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
    k = min(max(math.floor(0.01 * percent * values.size + 0.5), 1), values.size)
    return float(np.partition(values.ravel(), k - 1)[k - 1])
