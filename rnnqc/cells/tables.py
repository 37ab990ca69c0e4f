"""Activation tables: the value of an activation for every quantized value of its argument.

The default table is piecewise linear: `tanh` on [0, 8] with 64 equal segments between integer knots in units of 2**-14,
extended as an odd function; `sigmoid(x) = (1 + tanh(x / 2)) / 2` uses the same knots on [-16, 16]. Every entry is a
small integer times a power of two, so that any way of evaluating it (a look-up, or the segments in vector registers)
gives the same bits. Least-squares knots leave an error of at most 1.01e-3 for tanh and 5.1e-4 for sigmoid (near the
bends; 0.04 dB of a layer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

SEGMENTS = 64
PIECEWISE_LINEAR = "piecewise-linear"
"""The name of these tables in recipes."""
KNOT_UNIT = 2.0**-14
TANH_LIMIT = 8.0
SIGMOID_LIMIT = 16.0

# fmt: off
TANH_KNOTS: tuple[int, ...] = (
    0, 2043, 4023, 5885, 7587, 9103, 10422, 11548, 12492, 13272, 13908, 14424, 14837,
    15167, 15428, 15635, 15798, 15925, 16026, 16104, 16166, 16214, 16251, 16281, 16303, 16321,
    16335, 16346, 16354, 16361, 16366, 16370, 16373, 16375, 16377, 16379, 16380, 16381, 16382,
    16382, 16383, 16383, 16383, 16383, 16383, 16384, 16384, 16384, 16384, 16384, 16384, 16384,
    16384, 16384, 16384, 16384, 16384, 16384, 16384, 16384, 16384, 16384, 16384, 16384, 16384,
)
# fmt: on


def piecewise_linear_tanh(codes: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Computes tanh of `codes` (units of 8 / n) in units of 2**-14 from the knots; `n` is a multiple of 64.

    Quantized values beyond +-n saturate.
    """
    length = n // SEGMENTS
    knots = np.asarray(TANH_KNOTS, dtype=np.int64)
    u = np.minimum(np.abs(codes), n)
    segment = np.minimum(u // length, SEGMENTS - 1)
    v = u - segment * length
    low, high = knots[segment], knots[segment + 1]
    return np.asarray(np.sign(codes) * (low + ((high - low) * v + length // 2) // length))


def signed_codes(bits: int) -> npt.NDArray[np.int64]:
    """Returns all quantized values of a signed format in ascending order."""
    return np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), dtype=np.int64)


def table_of(
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], step: float, bits: int
) -> npt.NDArray[np.float32]:
    """Returns `function(step * code)` for all quantized values of `bits` bits, ascending, evaluated in float64."""
    return np.asarray(function(signed_codes(bits) * step), dtype=np.float64).astype(np.float32)


def by_code(ascending: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rolls an ascending table so that entry k belongs to the quantized value k, negative ones in the upper half."""
    return np.roll(ascending, -(ascending.size // 2))
