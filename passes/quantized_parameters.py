"""The parameters of one cell in the formats its points ask for: codes of W and R, and a bias to go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.compensation import bias_correction, compensate_groups, compensate_matrix
from rnnqc.encoding import Rounding
from rnnqc.passes.quantization import encoding_of
from rnnqc.statistics import Statistics
from rnnqc.weights import quantize_groups, quantize_matrix

FloatArray = npt.NDArray[np.float32]
# The points whose values W and R are multiplied with.
MULTIPLIED = {"W": "input", "R": "hidden"}


@dataclass(frozen=True)
class QuantizedParameters:
    """Parameters of a cell.

    Attributes:
        codes: Of W `[I,4H]` and R `[H,4H]`, those that are quantized.
        bias: `[4H]`, on the grid of its point if it has one.
    """

    codes: Mapping[str, npt.NDArray[Any]]
    bias: FloatArray


def quantize_parameters(
    cell: Cell, arrays: Mapping[str, FloatArray], statistics: Statistics | None = None
) -> QuantizedParameters:
    """Quantizes the parameters of a cell whose points are resolved.

    Weights with `compensation` are rounded so that their errors cancel on the data of the calibration; with
    `bias_correction` the bias makes up for the mean of what remains.

    Args:
        cell: The cell.
        arrays: W, R and B as floats.
        statistics: Of a calibration; without, weights are rounded one by one, and the bias stays.
    """
    codes: dict[str, npt.NDArray[Any]] = {}
    bias = arrays["B"]
    for key, source in MULTIPLIED.items():
        point = cell.points[f"{key}.weight"]
        if point["bits"] is None:
            continue
        seen = statistics.points.get(f"{cell.name}.{source}") if statistics is not None else None
        codes[key] = weight_codes(point, arrays[key], None if seen is None else seen.second_moment)
        if point.get("bias_correction") and seen is not None and seen.channel_mean is not None:
            error = encoding_of(point).dequantize(codes[key]) - arrays[key]
            bias = np.asarray(bias + bias_correction(error, seen.channel_mean), np.float32)
    if cell.points["bias"]["bits"] is not None:
        encoding = encoding_of(cell.points["bias"])
        bias = encoding.dequantize(encoding.quantize(bias))
    return QuantizedParameters(codes, bias)


def weight_codes(point: Mapping[str, Any], array: FloatArray, moment: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
    """Codes of a weight matrix `[K,n]` in the format of its resolved point, as `encoding_of(point)` stores them.

    Args:
        point: With `compensation` and a moment the codes are chosen together.
        array: The weights.
        moment: Second moments of the values that the matrix is multiplied with.
    """
    if not point.get("compensation"):
        moment = None
    if point.get("group_size"):
        scale, rounding = np.asarray(point["scale"], np.float32), Rounding(point["rounding"])
        if moment is None:
            return quantize_groups(array, scale, point["bits"], point["group_size"], rounding)
        return compensate_groups(array, scale, point["bits"], point["group_size"], rounding, moment)
    if moment is None:
        return quantize_matrix(encoding_of(point), array)
    narrow = point["bits"] if point.get("wide_channels") else None
    return compensate_matrix(encoding_of(point), array, moment, narrow)
