"""Power-of-two scales as fix positions: the search of the Vitis RNN quantizer and the mode over its calls.

A fix position `p` stands for the scale `2**-p`: `code = saturate(round(x * 2**p))`, `x = code * 2**-p`.
Sources: `DiffS` and `fix_neuron_v2` of https://github.com/Xilinx/Vitis-AI, src/vai_quantizer/vai_q_pytorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rnnqc.diagnostics import CompileError
from rnnqc.encoding import Rounding, round_to_integer

VITIS_ROUNDINGS: Mapping[int, Rounding] = {
    2: Rounding.HALF_UP,
    3: Rounding.HALF_AWAY,
    4: Rounding.FLOOR,
    5: Rounding.HALF_EVEN_UP,
    7: Rounding.CEIL,
    8: Rounding.HALF_EVEN,
}
"""Roundings by Vitis' number of the method: 2 features of CNNs, 3 weights and biases, 4 features of RNNs."""
CANDIDATES = 5
"""Fix positions that are tried, from the one on with which nothing saturates."""
LARGEST_RNN, LARGEST_WIDE = 12, 15
"""Vitis' caps: up to 8 bits and in RNNs, and otherwise."""


def fix_position(
    values: npt.ArrayLike,
    bits: int,
    candidates: int = CANDIDATES,
    *,
    rounding: Rounding = Rounding.HALF_AWAY,
    largest: int | None = None,
) -> int:
    """The fix position with the least sum of squared errors, the lowest of equals.

    Args:
        values: Real numbers, any shape.
        bits: Width of a signed code.
        candidates: How many positions are tried, from the highest one on with which no value is more than half a
            code outside the format. 1 takes that one.
        rounding: How reals become codes while searching.
        largest: Upper bound of the result.

    Returns:
        The position; 0 where all values are zero, or `largest` where that is less.

    Raises:
        CompileError: No values, a value is not finite, or a parameter makes no sense.
    """
    x = np.asarray(values, np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        raise CompileError(
            "A fix position needs finite numbers.",
            supported="at least one value, no NaN, no infinity",
            action="check the calibration data",
        )
    if not 2 <= bits <= 32 or candidates < 1:
        raise CompileError(
            f"bits = {bits}, candidates = {candidates} make no search for a fix position.",
            supported="2 to 32 bits, at least one candidate",
        )
    half = 2 ** (bits - 1)
    step = max(float(x.min()) / (-half - 0.5), float(x.max()) / (half - 0.5))
    best = 0 if step == 0.0 else _floor_of_log2_of_inverse(step)
    if step > 0.0 and candidates > 1:
        units = np.ldexp(x, best).ravel()
        best += int(np.argmin([_squared_error(units, bits, k, rounding) for k in range(candidates)]))
    return best if largest is None else min(best, largest)


def _floor_of_log2_of_inverse(step: float) -> int:
    """`floor(log2(1 / step))` without a rounding."""
    mantissa, exponent = math.frexp(step)
    return 1 - exponent if mantissa == 0.5 else -exponent


def _squared_error(units: npt.NDArray[np.float64], bits: int, shift: int, rounding: Rounding) -> float:
    """Of codes that are finer than the units by `shift` bits."""
    fine = units * 2.0**shift
    codes = np.clip(round_to_integer(fine, rounding), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    error = (fine - codes) * 2.0**-shift
    return float(np.dot(error, error))


def mode_of(history: Mapping[int, int]) -> int:
    """The fix position that was found most often, the smallest of equals (as `scipy.stats.mode`).

    Args:
        history: How often each position was found.

    Raises:
        CompileError: None was.
    """
    counts = {position: count for position, count in history.items() if count > 0}
    if not counts:
        raise CompileError(
            "No fix position was found in calibration.",
            supported="at least one call",
            action="calibrate with fix positions of this width",
        )
    return min(counts, key=lambda position: (-counts[position], position))


def scale_of(position: int) -> float:
    """The scale a fix position stands for."""
    return math.ldexp(1.0, -position)
