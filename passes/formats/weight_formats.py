"""The number format of a weight matrix, from a recipe's settings and the weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.formats.format_request import MAX_CODE, FormatRequest
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.formats.weight_scales import WeightRule, fit_weights
from rnnqc.passes.formats.point_format import naming_point, weight_point
from rnnqc.recipes.keys import Settings

FloatArray = npt.NDArray[np.float32]
Scales = tuple[FloatArray, npt.NDArray[np.int64]]


def weight_format(
    s: Settings, array: FloatArray, sensitivity: npt.NDArray[np.float64], path: str, gates: int
) -> PointFormat:
    """Returns the format of a weight matrix that does not share its scales.

    Args:
        s: Its settings in the recipe.
        array: `[K,n]`.
        sensitivity: Factor of the error of each channel, `[n]`.
        path: Name of the quantization point, for messages.
        gates: Number of gates among the channels.

    Raises:
        CompileError: Settings contradict each other, or do not result in a number format.
    """
    if not s.get("bits"):
        return FLOAT
    scales = weight_scales(s, array, gates)
    with naming_point(path):
        return weight_point(s, array, sensitivity, path, scales)


def weight_scales(s: Settings, array: FloatArray, gates: int) -> Scales | None:
    """Returns scales and zero points, `[n]` or `[1]`, of a matrix with `gates` gates; None if set, or in groups."""
    if "scale" in s or s.get("group_size"):
        return None
    s = {"signed": True, **s}
    rule = WeightRule(
        s.get("range", "min-max"), s.get("granularity", "per-channel"), s.get("percentile"), s.get("limit"), gates
    )
    return fit_weights(array, rule, format_request(s))


def format_request(s: Settings) -> FormatRequest:
    """Returns the format of a point, without scale and zero point."""
    return FormatRequest(
        bits=s["bits"],
        signed=bool(s.get("signed", True)),
        narrow=bool(s.get("narrow", False)),
        symmetric=bool(s.get("symmetric", True)),
        levels=s.get("levels", MAX_CODE),
        zero_point=s.get("zero_point"),
        pow2=bool(s.get("pow2", False)),
        max_fix_position=s.get("max_fix_position"),
        scale_bits=s.get("scale_bits"),
    )
