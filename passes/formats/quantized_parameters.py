"""The parameters of one cell in the formats of its points: quantized W and R, and a matching bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.stages import QuantizedCell
from rnnqc.data.statistics import PointStatistics, Statistics
from rnnqc.formats.compensation import (
    bias_correction,
    compensate_codebooks,
    compensate_groups,
    compensate_matrix,
    squared_error,
)
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.weights import quantize_codebooks, quantize_groups, quantize_matrix, widest
from rnnqc.passes.formats.gate_noise import gate_noise

FloatArray = npt.NDArray[np.float32]
Moment = npt.NDArray[Any] | None
# The points whose values W and R multiply.
MULTIPLIED = {"W": "input", "R": "hidden"}


SATURATED = 1e-2
"""How much of its power a bias may lose at the ends of a range before it is told: 20 dB are left."""


@dataclass(frozen=True)
class SaturatedBias:
    """A bias that exceeds the range of its format by much.

    Attributes:
        bits: Width of the format.
        limit: The largest magnitude that it represents.
        greatest: The largest magnitude of the bias.
    """

    bits: int
    limit: float
    greatest: float


@dataclass(frozen=True)
class QuantizedParameters:
    """The parameters of a cell.

    Attributes:
        codes: Quantized W `[I,GH]` and R `[H,GH]`, where they are quantized.
        biases: B `[GH]` and, if the cell has it, hidden_bias `[H]`, rounded to the format of their point if it has one.
        saturated: Biases that exceed the range of their point.
    """

    codes: Mapping[str, npt.NDArray[Any]]
    biases: Mapping[str, FloatArray]
    saturated: tuple[SaturatedBias, ...] = ()


def quantize_parameters(
    cell: QuantizedCell, arrays: Mapping[str, FloatArray], statistics: Statistics | None
) -> QuantizedParameters:
    """Quantizes the parameters of a cell whose points are resolved.

    Weights with `compensation` are rounded so that their errors cancel on the calibration data; with `bias_correction`
    the bias compensates for the mean of the remaining error.

    Args:
        cell: The cell.
        arrays: W, R, B and hidden_bias as floats.
        statistics: Statistics of a calibration; without them weights are rounded separately and the bias stays.
    """
    codes: dict[str, npt.NDArray[Any]] = {}
    biases = {k: arrays[k] for k in ("B", "hidden_bias") if k in arrays}
    seen = statistics.points if statistics is not None else {}
    candidate = cell.candidate_columns
    noise = gate_noise(cell, arrays, statistics) if any(p.wide_channels for p in cell.points.values()) else None
    for key, source in MULTIPLIED.items():
        point, name = cell.points[f"{key}.weight"], f"{cell.name}.{source}"
        if point.is_float:
            continue
        other = f"{cell.name}.{RESET_HIDDEN}"
        apart = key == "R" and other in seen  # the columns of a GRU's candidate multiply other values
        others = (candidate, _moment(seen[other])) if apart else None
        codes[key] = weight_codes(point, arrays[key], _moment(seen.get(name)), noise, others)
        if not point.bias_correction or name not in seen:
            continue
        error = point.complete.dequantize(codes[key]) - arrays[key]
        correction = _correction(error, seen[name])
        if apart:
            correction[candidate] = _correction(error[:, candidate], seen[other])
        if key == "R" and "hidden_bias" in biases:
            biases["hidden_bias"] = np.asarray(biases["hidden_bias"] + correction[candidate], np.float32)
            correction[candidate] = 0.0
        biases["B"] = np.asarray(biases["B"] + correction, np.float32)
    held = cell.points["bias"].static
    saturated: list[SaturatedBias] = []
    for key in list(biases) if held is not None else ():
        assert held is not None
        if key == "hidden_bias" and held.axis is not None:
            held = replace(held, scale=held.scale[candidate], zero_points=held.zero_points[candidate])
        made = held.fake_quantize(biases[key])
        lost = np.abs(biases[key] - made) > held.scale  # more than rounding
        if np.square((biases[key] - made)[lost]).sum() > SATURATED * np.square(biases[key]).sum():
            limit, greatest = float(np.abs(made[lost]).max()), float(np.abs(biases[key]).max())
            saturated.append(SaturatedBias(held.bits, limit, greatest))
        biases[key] = made
    return QuantizedParameters(codes, biases, tuple(saturated))


def _moment(seen: PointStatistics | None) -> Moment:
    return None if seen is None else seen.shrunk_moment


def _correction(error: npt.NDArray[Any], seen: PointStatistics) -> npt.NDArray[np.float64]:
    """The correction of the bias, for each column of `error`; zeros if no mean was observed."""
    if seen.channel_mean is None:
        return np.zeros(error.shape[1])
    return np.array(bias_correction(error, seen.channel_mean), np.float64)


def weight_codes(
    point: PointFormat,
    array: FloatArray,
    moment: Moment,
    noise: npt.NDArray[np.float64] | None = None,
    others: tuple[slice, Moment] | None = None,
) -> npt.NDArray[Any]:
    """Returns the quantized values of a weight matrix `[K,n]` in the format of its point.

    Args:
        point: The format; with `compensation` and a moment the values are chosen jointly.
        array: The weights.
        moment: Second moments of the values that the matrix multiplies.
        noise: The weight of a squared error in each output channel, for formats in which some grouped channels are
            wide; None for equal weights.
        others: Columns that multiply other values, and the second moments of these.
    """

    def of_parts(function: Callable[[Moment], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        made = function(moment)
        if others is not None:
            columns, own = others
            made[..., columns] = function(own)[..., columns]
        return made

    if not point.group_size:
        return of_parts(lambda m: _whole_codes(point, array, m, point.bits if point.wide_channels else None))
    codes = of_parts(lambda m: _group_codes(point, array, m))
    if point.wide_channels:
        error = point.complete.dequantize(codes) - array
        squares = of_parts(lambda m: squared_error(error, np.eye(len(array)) if m is None else m))
        wide = widest(squares if noise is None else squares * noise, point.wide_channels)
        codes[:, wide] = of_parts(lambda m: _whole_codes(point, array, m))[:, wide]
    return codes


def _group_codes(point: PointFormat, array: FloatArray, moment: Moment) -> npt.NDArray[np.int8]:
    """Quantizes in groups."""
    held, bits, size = point.complete, point.bits, point.group_size
    assert bits is not None
    moment = moment if point.compensation else None
    scale = np.asarray(held.scale, np.float32)
    if point.codebook is not None:
        if moment is None:
            return quantize_codebooks(array, scale, size)[0]
        return compensate_codebooks(array, scale, size, moment)
    if moment is None:
        return quantize_groups(array, scale, bits, size, held.rounding)
    return compensate_groups(array, scale, bits, size, held.rounding, moment)


def _whole_codes(
    point: PointFormat, array: FloatArray, moment: Moment, narrow_bits: int | None = None
) -> npt.NDArray[Any]:
    """Quantizes without groups."""
    if moment is None or not point.compensation:
        return quantize_matrix(point.complete, array)
    return compensate_matrix(point.complete, array, moment, narrow_bits)
