"""Weights beyond the range that an override or a recipe sets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rnnqc.passes.formats.quantized_parameters import SATURATED
from rnnqc.passes.formats.trained_weights import Given

Why = tuple[str, str, str]


def cut_weights(given: Iterable[Given]) -> Why | None:
    """Returns reason, found and action if weights of one node saturate; None if all of their error is from rounding.

    Binary weights do not represent magnitudes and are ignored.
    """
    texts: list[str] = []
    greatest: list[str] = []
    for name, point, array, _ in given:
        if point.is_float or point.bits == 1:
            continue
        held = point.complete
        step, zero = held.scale_array(2), held.zero_point_array(2)
        low, high = (held.minimum - zero) * step, (held.maximum - zero) * step
        is_cut = (array < low - step) | (array > high + step)  # by more than rounding
        if not is_cut.any():
            continue
        lost = np.square((array - np.clip(array, low, high))[is_cut], dtype=np.float64).sum()
        if lost > SATURATED * np.square(array, dtype=np.float64).sum():
            texts.append(f"{name} at {max(-float(low.min()), float(high.max())):.3g}")
            greatest.append(f"{float(np.abs(array).max()):.3g}")
    if not texts:
        return None
    action = "leave out what gives them a scale or a limit (scale, limit, range, max_fix_position)"
    return f"its weights saturate: {', '.join(texts)}.", f"values up to {', '.join(greatest)}", action
