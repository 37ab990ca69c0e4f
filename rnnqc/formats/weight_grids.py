"""Weights that are quantized values already, multiples of a step: those of models that were trained with quantizers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.formats.scales import SMALLEST_BOUND

FloatArray = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float64]
HIGHEST = 127
"""Of 8 bits; formats of more need no step of their own."""
MOST_STEPS = 255
"""Of 8 bits with any zero point."""
_LEAST_ROWS = 4
"""Fewer numbers than that are multiples of something by chance."""
_NEAR = 2.0**-13
"""How far from a whole number of steps a float32 product of scale and integer may be, and more."""
_SAMPLE = 16
"""Rows that are looked at first."""


def grid_steps(array: FloatArray, low: int, high: int) -> Vector:
    """The step of each channel all of whose values are whole multiples of it, from `low` to `high`; NaN for others.

    Of several the one in which the largest magnitude is `high`, else the largest one.

    Args:
        array: `[K,n]`, one channel per column.
        low: The lowest multiple, 0 or below.
        high: The highest multiple, 1 or above.
    """
    top = np.maximum(array.max(axis=0), -array.min(axis=0)).astype(np.float64)
    found = np.full(top.shape, np.nan)
    sample = array[np.linspace(0, len(array) - 1, min(_SAMPLE, len(array))).astype(int)]
    for count in (high, *range(1, high), *range(high + 1, 1 - low)):
        open_ = np.flatnonzero(np.isnan(found) & (top >= SMALLEST_BOUND))
        for rows in (sample, array):
            open_ = open_[_are_multiples(rows[:, open_], top[open_] / count, low, high)]
        found[open_] = top[open_] / count
    return found


def _are_multiples(part: FloatArray, step: Vector, low: int, high: int) -> npt.NDArray[np.bool_]:
    if not step.size:
        return np.zeros(0, np.bool_)
    units = part / step
    whole = np.rint(units)
    near = np.abs(units - whole).max(axis=0) <= _NEAR
    return np.asarray(near & (whole.min(axis=0) >= low) & (whole.max(axis=0) <= high))


def own_steps(array: FloatArray, low: int, high: int) -> Vector | None:
    """The steps of `grid_steps` where every channel has one, 1 for channels of zeros; None where one has none.

    All or none: some channels of floats, or of wider integers, may be multiples of a step by chance.
    """
    is_zero = ~array.any(axis=0)
    steps = np.where(is_zero, 1.0, grid_steps(array, low, high))
    return None if is_zero.all() or np.isnan(steps).any() else steps


def comes_quantized(array: FloatArray, low: int = -MOST_STEPS, high: int = MOST_STEPS) -> bool:
    """Whether every channel of a matrix `[K,n]` is multiples of a step, from `low` to `high`; zeros say nothing."""
    return len(array) >= _LEAST_ROWS and own_steps(array, low, high) is not None
