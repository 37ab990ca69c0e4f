"""Detects weights that are already quantized, that is multiples of a step: those of models trained with quantizers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.formats.scales import SMALLEST_BOUND

FloatArray = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float64]
HIGHEST = 127
"""Largest multiple in 8 bits; formats of more bits do not need the original step."""
MOST_STEPS = 255
"""Largest multiple in 8 bits with any zero point."""
_LEAST_ROWS = 4
"""Fewer values are multiples of some step by chance."""
_NEAR = 2.0**-13
"""Tolerance for the distance from a multiple, above the float32 rounding of a scale times an integer."""
_SAMPLE = 16
"""The number of rows checked first."""


def own_steps(array: FloatArray, low: int, high: int) -> Vector | None:
    """Returns the step of each channel whose values are all multiples of it, 1 for zeros; None unless all have one.

    If several steps fit, the one that makes the largest magnitude `high`, else the largest one. All or none: single
    channels of floats, or of wider integers, may be multiples of a step by chance.

    Args:
        array: `[K,n]`, one channel per column.
        low: The lowest multiple, 0 or below.
        high: The highest multiple, 1 or above.
    """
    steps = np.ones(array.shape[1])
    channels = np.flatnonzero(array.any(axis=0))
    for channel in channels:  # one by one, to stop at the first channel of floats
        steps[channel] = _grid_step(array[:, channel], low, high)
        if np.isnan(steps[channel]):
            return None
    return steps if channels.size else None


def _grid_step(values: FloatArray, low: int, high: int) -> float:
    top = float(max(values.max(), -values.min()))
    if top < SMALLEST_BOUND:
        return np.nan
    steps = top / np.array([high, *range(1, high), *range(high + 1, 1 - low)])
    for rows in (values[np.linspace(0, len(values) - 1, min(_SAMPLE, len(values))).astype(int)], values):
        units = rows / steps[:, None]
        whole = np.rint(units)
        near = np.abs(units - whole).max(axis=1) <= _NEAR
        steps = steps[near & (whole.min(axis=1) >= low) & (whole.max(axis=1) <= high)]
        if not steps.size:
            return np.nan
    return float(steps[0])


def comes_quantized(array: FloatArray, low: int = -MOST_STEPS, high: int = MOST_STEPS) -> bool:
    """Whether every channel of a matrix `[K,n]` is multiples of a step, from `low` to `high`, except zero channels."""
    return len(array) >= _LEAST_ROWS and own_steps(array, low, high) is not None
