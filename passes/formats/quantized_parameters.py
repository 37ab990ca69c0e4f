"""The parameters of one cell in the formats its points ask for: codes of W and R, and a bias to go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import CANDIDATE, RESET_HIDDEN
from rnnqc.data.statistics import PointStatistics, Statistics
from rnnqc.formats.compensation import bias_correction, compensate_groups, compensate_matrix
from rnnqc.formats.encoding import Rounding
from rnnqc.formats.weights import quantize_groups, quantize_matrix
from rnnqc.passes.formats.point_format import encoding_of

FloatArray = npt.NDArray[np.float32]
# The points whose values W and R are multiplied with.
MULTIPLIED = {"W": "input", "R": "hidden"}


@dataclass(frozen=True)
class QuantizedParameters:
    """Parameters of a cell.

    Attributes:
        codes: Of W `[I,GH]` and R `[H,GH]`, those that are quantized.
        biases: B `[GH]` and, where the cell has it, hidden_bias `[H]`, on the grid of their point if it has one.
    """

    codes: Mapping[str, npt.NDArray[Any]]
    biases: Mapping[str, FloatArray]


def quantize_parameters(
    cell: Cell, arrays: Mapping[str, FloatArray], statistics: Statistics | None = None
) -> QuantizedParameters:
    """Quantizes the parameters of a cell whose points are resolved.

    Weights with `compensation` are rounded so that their errors cancel on the data of the calibration; with
    `bias_correction` the bias makes up for the mean of what remains.

    Args:
        cell: The cell.
        arrays: W, R, B and hidden_bias as floats.
        statistics: Of a calibration; without, weights are rounded one by one, and the bias stays.
    """
    codes: dict[str, npt.NDArray[Any]] = {}
    biases = {k: arrays[k] for k in ("B", "hidden_bias") if k in arrays}
    seen = statistics.points if statistics is not None else {}
    candidate = slice(CANDIDATE * cell.hidden_size, None)
    for key, source in MULTIPLIED.items():
        point, name = cell.points[f"{key}.weight"], f"{cell.name}.{source}"
        if point["bits"] is None:
            continue
        codes[key] = weight_codes(point, arrays[key], _moment(seen.get(name)))
        other = f"{cell.name}.{RESET_HIDDEN}"
        apart = key == "R" and other in seen  # the columns of a GRU's candidate meet other values
        if apart:
            codes[key][:, candidate] = weight_codes(point, arrays[key], _moment(seen[other]))[:, candidate]
        if not point.get("bias_correction") or name not in seen:
            continue
        error = encoding_of(point).dequantize(codes[key]) - arrays[key]
        correction = _correction(error, seen[name])
        if apart:
            correction[candidate] = _correction(error[:, candidate], seen[other])
        if key == "R" and "hidden_bias" in biases:
            biases["hidden_bias"] = np.asarray(biases["hidden_bias"] + correction[candidate], np.float32)
            correction[candidate] = 0.0
        biases["B"] = np.asarray(biases["B"] + correction, np.float32)
    if cell.points["bias"]["bits"] is not None:
        encoding = encoding_of(cell.points["bias"])
        biases["B"] = encoding.dequantize(encoding.quantize(biases["B"]))
        if "hidden_bias" in biases:
            per_channel = encoding.axis is not None
            of_gate = encoding
            if per_channel:
                zero_points = encoding.zero_points[candidate]
                of_gate = replace(encoding, scale=encoding.scale[candidate], zero_points=zero_points)
            biases["hidden_bias"] = of_gate.dequantize(of_gate.quantize(biases["hidden_bias"]))
    return QuantizedParameters(codes, biases)


def _moment(seen: PointStatistics | None) -> npt.NDArray[Any] | None:
    return None if seen is None else seen.second_moment


def _correction(error: npt.NDArray[Any], seen: PointStatistics) -> npt.NDArray[np.float64]:
    """What the bias gains, one number for each column of `error`; zeros where no mean was seen."""
    if seen.channel_mean is None:
        return np.zeros(error.shape[1])
    return np.array(bias_correction(error, seen.channel_mean), np.float64)


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
