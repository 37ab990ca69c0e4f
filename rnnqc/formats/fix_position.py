"""Power-of-two scales as fix positions: the search of the Vitis RNN quantizer and the mode over its calls.

A fix position `p` means the scale `2**-p`: `code = saturate(round(x * 2**p))`, `x = code * 2**-p`.
Sources: `DiffS` and `fix_neuron_v2` of https://github.com/Xilinx/Vitis-AI, src/vai_quantizer/vai_q_pytorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.formats.rounding import Rounding, round_to_integer
from rnnqc.formats.scales import times_power_of_two

Vector = npt.NDArray[np.float64]
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
    calls = Calls.of(x.reshape(1, -1))
    found = widest_positions(calls, bits)
    if candidates > 1:
        found = best_positions(calls, found, bits, candidates, rounding)
    best = int(found[0])
    return best if largest is None else min(best, largest)


class Calls(NamedTuple):
    """The values of many calls.

    Attributes:
        values: `[calls, n]`.
        low: The smallest value of each call, `[calls]`.
        high: The largest.
    """

    values: Vector
    low: Vector
    high: Vector

    @classmethod
    def of(cls, values: Vector) -> Calls:
        """Makes calls of `values` `[calls, n]`."""
        return cls(values, values.min(axis=1), values.max(axis=1))


def widest_positions(calls: Calls, bits: int) -> npt.NDArray[np.int64]:
    """Returns the highest position of each call at which no value is more than half a step outside.

    Returns:
        `floor(log2(1 / step))`, computed exactly, with the least such step; 0 if all values are zero; `[calls]`.
    """
    half = 2 ** (bits - 1)
    step = np.maximum(calls.low / (-half - 0.5), calls.high / (half - 0.5))
    mantissa, exponent = np.frexp(step)
    return np.asarray(np.where(mantissa == 0.5, 1 - exponent, -exponent), np.int64)


def best_positions(
    calls: Calls,
    widest: npt.NDArray[np.int64],
    bits: int,
    candidates: int,
    rounding: Rounding,
) -> npt.NDArray[np.int64]:
    """Returns for each call the position with the least sum of squared errors, the lowest of equals.

    Errors are computed only where the saturation of the extremes alone does not exceed the least error so far: a finer
    position saturates more.

    Args:
        calls: Their values.
        widest: The first candidate of each call.
        bits: Width of a quantized value.
        candidates: How many positions are tried.
        rounding: How reals become integers.
    """
    low, high = np.ldexp(calls.low, widest), np.ldexp(calls.high, widest)
    worst = 0.5 if rounding in _NEAREST else 1.0
    least = np.full(len(widest), calls.values.shape[1] * worst**2)
    undecided = np.flatnonzero(_saturation(low, high, bits, 1) < least)
    units = times_power_of_two(_rows(calls.values, undecided), widest[undecided][:, None])
    least[undecided] = _squared_errors(units, bits, 0, rounding)
    shifts = np.zeros_like(widest)
    for k in range(1, candidates):
        near = np.flatnonzero(_saturation(low[undecided], high[undecided], bits, k) < least[undecided])
        undecided, units = undecided[near], _rows(units, near)
        if not undecided.size:
            break
        errors = _squared_errors(units, bits, k, rounding)
        better = errors < least[undecided]
        least[undecided[better]], shifts[undecided[better]] = errors[better], k
    return widest + shifts


def _rows(array: Vector, chosen: npt.NDArray[np.intp]) -> Vector:
    """Returns some rows, in order; no copy if these are all."""
    return array if chosen.size == len(array) else array[chosen]


_NEAREST = (
    Rounding.HALF_EVEN,
    Rounding.HALF_AWAY,
    Rounding.HALF_UP,
    Rounding.HALF_EVEN_UP,
    Rounding.HALF_TOWARD_ZERO,
)
_SURELY = 1.0 - 2.0**-20
"""More than the roundings in a sum of squares can take away."""


def _saturation(low: Vector, high: Vector, bits: int, shift: int) -> Vector:
    """Returns less than the squared errors that the two extremes of each call contribute by saturation.

    Args:
        low: The smallest value of each call in steps of the first candidate, `[calls]`.
        high: The largest.
        bits: Width of a quantized value.
        shift: How many bits finer the candidate is.
    """
    half, step = 2.0 ** (bits - 1), 2.0**-shift
    above = np.maximum(high - (half - 1.0) * step, 0.0)
    below = np.maximum(-half * step - low, 0.0)
    return np.asarray((np.square(above) + np.square(below)) * _SURELY)


def _squared_errors(units: Vector, bits: int, shift: int, rounding: Rounding) -> Vector:
    """Returns squared errors `[calls]` of quantized values that are `shift` bits finer than `units` `[calls, n]`."""
    fine = units * 2.0**shift if shift else units
    errors = round_to_integer(fine, rounding)
    half = 2.0 ** (bits - 1)
    np.clip(errors, -half, half - 1, out=errors)
    errors -= fine
    return np.asarray(np.einsum("ij,ij->i", errors, errors) * 4.0**-shift)


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
