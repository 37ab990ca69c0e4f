"""Arithmetic of scales: of symmetric formats, powers of two, and the form A / 2**n with an integer A."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

MULTIPLIER_BITS = 24
"""The widest integer multiplier of a scale A / 2**n that float32 holds."""
SMALLEST_BOUND = 2.0**-100
"""Smaller bounds count as zero, so that a scale and all values derived from it stay normal float32 numbers."""
NORMAL_EXPONENT = 1000
"""Up to this magnitude of n, `2**n` is a normal float64."""


def symmetric_scale(bound: npt.ArrayLike, bits: int) -> npt.NDArray[np.float64]:
    """Returns the scale of a symmetric format with largest magnitude `bound`; 1 if that is below `SMALLEST_BOUND`."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(np.where(b < SMALLEST_BOUND, 1.0, b / max(2 ** (bits - 1) - 1, 1)))


def is_power_of_two(value: float | np.floating[Any]) -> bool:
    """Whether `value` is `2**n` with an integer n."""
    return bool(math.frexp(float(value))[0] == 0.5)


def power_of_two_from(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Rounds `scale` up to a power of two, elementwise; positive numbers."""
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    return np.asarray(np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)))


def times_power_of_two(
    values: npt.NDArray[np.float64], exponent: int | npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.float64]:
    """Returns `np.ldexp(values, exponent)`, bit for bit, and several times faster for usual exponents.

    Args:
        values: Any shape.
        exponent: One for all values, or an array that broadcasts to them.
    """
    largest = abs(exponent) if isinstance(exponent, int) else np.abs(exponent).max(initial=0)
    if largest > NORMAL_EXPONENT:
        return np.asarray(np.ldexp(values, exponent))
    return np.asarray(values * (math.ldexp(1.0, exponent) if isinstance(exponent, int) else np.ldexp(1.0, exponent)))


def multiplier_and_shift(scale: npt.ArrayLike, bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns A and n of the largest `A / 2**n` that is not above `scale`, with an integer A of `bits` bits.

    `n = floor(log2((2**bits - 1) / scale))`, `A = floor(2**n * scale)`: the relative error is at most `2**(1 - bits)`.

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
