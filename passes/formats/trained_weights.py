"""Weights of a model trained with quantizers that are quantized again with other values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.weight_grids import comes_quantized

FloatArray = npt.NDArray[np.float32]
Given = tuple[str, PointFormat, FloatArray, Callable[[], npt.NDArray[Any]]]
"""A quantization point, its format, the weights `[K,n]` before, and what makes their quantized values."""
UNCHANGED = 1e-10
"""Noise over signal of weights that are the same but for roundings of float32."""


def quantized_again(given: Iterable[Given]) -> tuple[str, str, str] | None:
    """Returns reason, found and action if weights of one node are quantized again; None if they stay or are floats."""
    losses: dict[str, float] = {}
    fits, fits_full = True, True  # in the integers, and in the integers including the lowest one
    for name, point, array, codes in given:
        if point.is_float or not comes_quantized(array):
            continue
        error = point.complete.dequantize(codes()) - array
        noise = np.square(error, dtype=np.float64).sum() / np.square(array, dtype=np.float64).sum()
        if noise > UNCHANGED:
            lowest = 2 ** (point.complete.bits - 1)
            losses[name] = -10.0 * np.log10(noise)
            fits &= not point.group_size and comes_quantized(array, 1 - lowest, lowest - 1)
            fits_full &= not point.group_size and comes_quantized(array, -lowest, lowest - 1)
    if not losses:
        return None
    sqnr = ", ".join(f"{name} with an SQNR of {db:.1f} dB" for name, db in losses.items())
    action = (
        "a recipe with more bits loses less; behind a DequantizeLinear they stay without --recipe, in float arithmetic"
    )
    found = "multiples of a step beyond what the number format of the recipe holds"
    if fits:
        found = "multiples of a step, which is not the scale in the recipe"
        action = "granularity = per-channel, range = min-max and no share, limit or pow2 hold them"
    elif fits_full:
        action = "--set " + " ".join(f"'{name}.narrow=false'" for name in losses)
    return f"its weights come quantized, and are quantized again: {sqnr}.", found, action
