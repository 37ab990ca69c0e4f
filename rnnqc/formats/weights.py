"""Quantizes weight matrices: plain, with some channels wider than the others, and in groups with integer multipliers.

Matrices are `[K,n]` with one output channel per column. They are processed in blocks: temporaries of a whole matrix
would multiply the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats import codebooks
from rnnqc.formats.format import Format
from rnnqc.formats.packing import largest_multiplier
from rnnqc.formats.rounding import Rounding, round_to_integer
from rnnqc.formats.scales import symmetric_scale
from rnnqc.formats.weight_grids import HIGHEST, own_steps

FloatArray = npt.NDArray[np.float32]
BLOCK = 256


def blocks(rows: int, size: int = BLOCK) -> Iterator[slice]:
    """Returns slices of `size` rows that cover `rows`; the last one may reach beyond."""
    return (slice(start, start + size) for start in range(0, rows, size))


def quantize_matrix(format_: Format, array: FloatArray) -> npt.NDArray[Any]:
    """Quantizes a matrix with one scale or one for each channel."""
    codes = np.empty(array.shape, format_.dtype)
    for rows in blocks(len(array)):
        codes[rows] = format_.quantize(array[rows])
    return codes


def largest_magnitudes(array: FloatArray) -> FloatArray:
    """Returns the largest magnitude of each channel, `[n]`."""
    return np.asarray(np.maximum(array.max(axis=0), -array.min(axis=0)))


def mixed_scales(
    array: FloatArray, format_: Format, wide_bits: int, fraction: float, sensitivity: npt.NDArray[np.float64]
) -> FloatArray:
    """Returns scales `[n]` of `format_`, but of `wide_bits` for the channels with the largest error.

    Args:
        array: The weights.
        format_: A symmetric format with one scale for each channel.
        wide_bits: Width of the exceptions.
        fraction: Their share of all channels, rounded up: those with the largest sum of squared errors.
        sensitivity: Weights of the errors of each channel, `[n]`.
    """
    noise = np.zeros(array.shape[1])
    for rows in blocks(len(array)):
        error = format_.dequantize(format_.quantize(array[rows])) - array[rows]
        noise += np.square(error * sensitivity, dtype=np.float64).sum(axis=0)
    wide = widest(noise, fraction)
    scales = np.asarray(format_.scale, np.float32)
    steps = own_steps(array[:, wide], -HIGHEST, HIGHEST)  # within `wide_bits`
    scales[wide] = symmetric_scale(largest_magnitudes(array)[wide], wide_bits) if steps is None else steps
    return scales


def widest(noise: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.int64]:
    """Returns the channels with the most noise, `fraction` of all, rounded up; of equals the first."""
    return np.argsort(-noise, kind="stable")[: math.ceil(fraction * len(noise))]


def group_scales(array: FloatArray, bits: int, codebook: str | None = None) -> FloatArray:
    """Returns scales `[n]` that make a channel's largest weight the largest multiplier times the largest value.

    If the weights of all channels are already multiples of a step within `bits`, a channel's step is its scale, unless
    the largest weight is the largest value times that step.
    """
    if codebook is not None:
        return np.asarray(symmetric_scale(largest_magnitudes(array) / codebooks.LARGEST_UNIT, 1), np.float32)
    top, largest = 2 ** (bits - 1) - 1, symmetric_scale(largest_magnitudes(array), bits)
    fitted, steps = largest / largest_multiplier(bits), own_steps(array, -top, top)
    return np.asarray(fitted if steps is None else np.where(steps == largest, fitted, steps), np.float32)


def quantize_groups(
    array: FloatArray, scale: FloatArray, bits: int, group_size: int, rounding: Rounding
) -> npt.NDArray[np.int8]:
    """Quantizes to int8 values that are symmetric values of `bits` times the multipliers of `group_multipliers`.

    Args:
        array: The weights.
        scale: Real value of one int8 step, one or one for each channel.
        bits: Width of a quantized value before multiplication, up to 6.
        group_size: Rows of a group.
        rounding: How reals become integers.
    """
    multipliers = group_multipliers(array, scale, bits, group_size, rounding)
    return quantize_with_multipliers(array, scale, bits, group_size, rounding, multipliers)


def group_multipliers(
    array: FloatArray, scale: FloatArray, bits: int, group_size: int, rounding: Rounding
) -> npt.NDArray[np.uint8]:
    """Returns for each group and channel the multiplier with the smallest sum of squared errors, from 1 to the largest.

    Args:
        array: The weights.
        scale: Real value of one int8 step, one or one for each channel.
        bits: Width of a quantized value before multiplication, up to 6.
        group_size: Rows of a group.
        rounding: How reals become integers.

    Returns:
        `[ceil(K / group_size),n]`; the smaller one of equals.
    """
    found = np.ones((-(-len(array) // group_size), array.shape[1]), np.uint8)
    for group, rows in enumerate(blocks(len(array), group_size)):
        units = _units(array[rows], scale, bits)
        least = np.full(array.shape[1], np.inf, np.float32)
        for multiplier in range(1, largest_multiplier(bits) + 1):
            noise = np.square(_multiples(units, np.float32(multiplier), bits, rounding) - units).sum(axis=0)
            better = noise < least
            found[group, better], least[better] = multiplier, noise[better]
    return found


def quantize_with_multipliers(
    array: FloatArray,
    scale: FloatArray,
    bits: int,
    group_size: int,
    rounding: Rounding,
    multipliers: npt.NDArray[np.uint8],
) -> npt.NDArray[np.int8]:
    """Quantizes to int8: symmetric values of `bits` times given multipliers `[ceil(K / group_size),n]`."""
    codes = np.empty(array.shape, np.int8)
    for group, rows in enumerate(blocks(len(array), group_size)):
        steps = multipliers[group].astype(np.float32)
        codes[rows] = _multiples(_units(array[rows], scale, bits), steps, bits, rounding)
    return codes


def quantize_codebooks(
    array: FloatArray, scale: FloatArray, group_size: int, importance: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """Quantizes groups to int8 values, each with the codebook and multiplier of the smallest sum of squared errors.

    Args:
        array: The weights `[K,n]`.
        scale: Real value of one int8 step, one or one for each channel.
        group_size: Rows of a group.
        importance: Weights of the squared errors of each row, `[K]`; equal by default.

    Returns:
        The nearest values, the lower one at equal distance, `[K,n]`; and for each group and channel the row of
        `rnnqc.formats.codebooks.VALUES` that they are from, the first one of equals, `[ceil(K / group_size),n]`.
    """
    codes = np.empty(array.shape, np.int8)
    counts = np.ones(len(array)) if importance is None else np.asarray(importance)
    counts = counts.astype(np.float32)[:, None]
    chosen = np.zeros((-(-len(array) // group_size), array.shape[1]), np.int64)
    for group, rows in enumerate(blocks(len(array), group_size)):
        units = np.asarray(np.clip(array[rows] / scale, -_FAR, _FAR), np.float32)
        least = np.full(array.shape[1], np.inf, np.float32)
        for row, values in enumerate(codebooks.VALUES.astype(np.float32)):
            nearest = values[np.searchsorted((values[1:] + values[:-1]) / 2, units)]
            noise = (np.square(nearest - units) * counts[rows]).sum(axis=0)
            better = noise < least
            chosen[group, better], least[better] = row, noise[better]
            codes[rows][:, better] = nearest[:, better]
    return codes, chosen


_FAR = np.float32(256)
"""Twice the largest magnitude of quantized values."""


def _units(array: FloatArray, scale: FloatArray, bits: int) -> FloatArray:
    # Values twice too large for any multiplier are clipped: their square might overflow float32.
    limit = 2 * largest_multiplier(bits) * _top(bits)
    return np.asarray(np.clip(array / scale, -limit, limit))


def _multiples(units: FloatArray, step: FloatArray | np.float32, bits: int, rounding: Rounding) -> FloatArray:
    return np.asarray(np.clip(round_to_integer(units / step, rounding), -_top(bits), _top(bits)) * step)


def _top(bits: int) -> np.float32:
    return np.float32(2 ** (bits - 1) - 1)
