"""The number format of a weight matrix, from a recipe's settings, the weights and what they are multiplied with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.compensation import search_scale
from rnnqc.grids import MAX_CODE, GridFormat
from rnnqc.passes.quantization import FLOAT, PACKED_BITS, check_point, encoding_of, format_of, weight_point
from rnnqc.recipe import Settings
from rnnqc.weight_scales import WeightRule, weight_grids

FloatArray = npt.NDArray[np.float32]
Scales = tuple[FloatArray, npt.NDArray[np.int64]]


def weight_format(
    s: Settings, array: FloatArray, sensitivity: npt.NDArray[np.float64], path: str, moment: npt.ArrayLike | None = None
) -> dict[str, Any]:
    """The resolved point of a weight matrix that shares its scales with no other.

    Args:
        s: What the recipe says.
        array: `[K,n]`.
        sensitivity: What an error of each channel is multiplied by, `[n]`.
        path: Of the quantization point, for messages.
        moment: Second moments of the values that the matrix is multiplied with.

    Raises:
        CompileError: Settings contradict each other, or make no number format.
    """
    if not s.get("bits"):
        return FLOAT
    point = weight_point(s, array, sensitivity, path, weight_scales(s, array, moment))
    check_point(path, point)
    return point


def weight_scales(s: Settings, array: FloatArray, moment: npt.ArrayLike | None = None) -> Scales | None:
    """Scales and zero points, `[n]` or `[1]`; None where the scale is given, or that of groups.

    Codes of up to 4 bits that will be compensated get scales that cut the largest weights off, where that leaves less
    error; unless the recipe names a rule.
    """
    if "scale" in s or s.get("group_size"):
        return None
    s = {"signed": True, **s}
    rule = WeightRule(
        s.get("range", "min-max"), s.get("granularity", "per-channel"), s.get("percentile"), s.get("limit")
    )
    scale, zero_point = weight_grids(array, rule, grid_format(s))
    symmetric = s["signed"] and s.get("symmetric", True)
    ruled = "range" in s or s.get("limit")
    if moment is None or not s.get("compensation") or s["bits"] > PACKED_BITS or not symmetric or ruled:
        return scale, zero_point
    axis = 1 if len(scale) > 1 else None
    like = {**format_of({**s, "zero_point": 0}), "scale": [float(v) for v in scale], "axis": axis}
    found = np.asarray(search_scale(encoding_of(like), array, moment).scale)
    return grid_format(s).finished(found).astype(np.float32), zero_point


def grid_format(s: Settings) -> GridFormat:
    """The format of a point, but for scale and zero point."""
    return GridFormat(
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
