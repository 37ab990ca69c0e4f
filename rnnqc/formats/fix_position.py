"""Power-of-two scales as fix positions: the search of the Vitis RNN quantizer and the mode over its calls.

A fix position `p` means the scale `2**-p`: `code = saturate(round(x * 2**p))`, `x = code * 2**-p`.
Sources: `DiffS` and `fix_neuron_v2` of https://github.com/Xilinx/Vitis-AI, src/vai_quantizer/vai_q_pytorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.formats.rounding import Rounding, round_to_integer

CANDIDATES = 5
"""The number of fix positions tried, from the one where nothing saturates upwards."""


def fix_position(
    values: npt.ArrayLike,
    bits: int,
    candidates: int = CANDIDATES,
    *,
    rounding: Rounding = Rounding.HALF_AWAY,
    largest: int | None = None,
) -> int:
    """Returns the fix position with the least sum of squared errors, the lowest of equals.

    Args:
        values: Real numbers, any shape.
        bits: Width of a quantized value.
        candidates: How many positions are tried, upwards from the highest one at which no value is more than half a
            step outside the format. With 1, that one is returned.
        rounding: How reals become integers during the search.
        largest: Upper bound of the result.

    Returns:
        The position; 0 if all values are zero, or `largest` if that is less.

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
    rows = x.reshape(1, -1)
    found = widest_positions(rows, bits)
    if candidates > 1:
        found = best_positions(np.ldexp(rows, found[:, None]), found, bits, candidates, rounding)
    best = int(found[0])
    return best if largest is None else min(best, largest)


def widest_positions(rows: npt.NDArray[np.float64], bits: int) -> npt.NDArray[np.int64]:
    """Returns for each of `rows` `[calls, n]` the highest position at which no value is more than half a step outside.

    Returns:
        `floor(log2(1 / step))`, computed exactly, with the least such step; 0 if all values are zero; `[calls]`.
    """
    half = 2 ** (bits - 1)
    step = np.maximum(rows.min(axis=1) / (-half - 0.5), rows.max(axis=1) / (half - 0.5))
    mantissa, exponent = np.frexp(step)
    return np.asarray(np.where(mantissa == 0.5, 1 - exponent, -exponent), np.int64)


def best_positions(
    units: npt.NDArray[np.float64],
    widest: npt.NDArray[np.int64],
    bits: int,
    candidates: int,
    rounding: Rounding,
) -> npt.NDArray[np.int64]:
    """Returns for each call the position with the least sum of squared errors, the lowest of equals.

    Args:
        units: Values times `2**widest`, `[calls, n]`.
        widest: The first candidate of each call.
        bits: Width of a quantized value.
        candidates: How many positions are tried.
        rounding: How reals become integers.
    """
    errors = np.empty((candidates, len(units)))
    for k in range(candidates):
        errors[k] = _squared_errors(units, bits, k, rounding)
    return np.asarray(widest + np.argmin(errors, axis=0))


def _squared_errors(
    units: npt.NDArray[np.float64], bits: int, shift: int, rounding: Rounding
) -> npt.NDArray[np.float64]:
    """Returns squared errors `[calls]` of quantized values that are `shift` bits finer than `units` `[calls, n]`."""
    fine = units * 2.0**shift
    codes = round_to_integer(fine, rounding)
    half = 2.0 ** (bits - 1)
    np.maximum(codes, -half, out=codes)
    np.minimum(codes, half - 1, out=codes)
    codes -= fine
    codes *= 2.0**-shift
    return np.asarray(np.einsum("ij,ij->i", codes, codes))


def mode_of(history: Mapping[int, int]) -> int:
    """Returns the fix position that was found most often, the smallest of equals (as `scipy.stats.mode`).

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
    """Returns the scale of a fix position."""
    return math.ldexp(1.0, -position)


def position_of(scale: float) -> int:
    """Returns the fix position of `scale`, a power of two."""
    return 1 - math.frexp(scale)[1]
