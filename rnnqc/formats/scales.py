"""Arithmetic of scales: of symmetric formats, powers of two, and the form A / 2**n with a whole A."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

MULTIPLIER_BITS = 24
"""Widest whole multiplier of a scale A / 2**n that float32 holds."""
SMALLEST_BOUND = 2.0**-100
"""Bounds below count as zero: a scale and everything derived from it stay normal float32 numbers."""


def symmetric_scale(bound: npt.ArrayLike, bits: int) -> npt.NDArray[np.float64]:
    """Scale of a symmetric format whose largest magnitude is `bound`; 1 where that is below `SMALLEST_BOUND`."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(np.where(b < SMALLEST_BOUND, 1.0, b / max(2 ** (bits - 1) - 1, 1)))


def is_power_of_two(value: float | np.floating[Any]) -> bool:
    """Whether `value` is `2**n` with a whole n."""
    return bool(math.frexp(float(value))[0] == 0.5)


def power_of_two_from(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The least power of two that is not below `scale`, elementwise; positive numbers."""
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    return np.asarray(np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)))


def multiplier_and_shift(scale: npt.ArrayLike, bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A and n of the largest `A / 2**n` with a whole A of `bits` bits that is not above `scale`.

    `n = floor(log2((2**bits - 1) / scale))`, `A = floor(2**n * scale)`: at most `2**(1 - bits)` below, relatively.

    Args:
        scale: Positive numbers, any shape.
        bits: Width of A, at least 2.

    Returns:
        Two int64 arrays of that shape; n may be negative.
    """
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    shift = bits - exponent.astype(np.int64)
    shift = np.where(np.ldexp(mantissa, bits) > 2**bits - 1, shift - 1, shift)
    multiplier = np.floor(np.ldexp(np.asarray(scale, np.float64), shift))
    return multiplier.astype(np.int64), np.asarray(shift, np.int64)
