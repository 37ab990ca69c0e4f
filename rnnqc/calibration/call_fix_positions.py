"""The best fix position of each of many calls at once: `rnnqc.fix_position.fix_position`, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.statistics import SPANS

Array = npt.NDArray[Any]
BLOCK = 2**15  # values at a time, so that they stay in the cache


def fix_positions_of_calls(values: Array, bits: Sequence[int], candidates: int) -> dict[int, dict[str, Array]]:
    """For each width the position where nothing saturates, and the best of `candidates` from there on.

    To nearest, all ways of breaking ties make the same errors.

    Args:
        values: `[calls, n]`, finite; a row may be padded with zeros, which every position represents.
        bits: Widths of signed codes.
        candidates: How many positions are tried.

    Returns:
        For each width and kind of `rnnqc.statistics.SPANS` an int64 array `[calls]`.
    """
    rows = max(1, BLOCK // max(1, values.shape[1]))
    parts: dict[int, dict[str, list[Array]]] = {b: {kind: [] for kind in SPANS} for b in bits}
    for start in range(0, len(values), rows):
        block = values[start : start + rows].astype(np.float64)
        low, high = block.min(axis=1), block.max(axis=1)
        for width in bits:
            half = 2 ** (width - 1)
            step = np.maximum(low / (-half - 0.5), high / (half - 0.5))
            mantissa, exponent = np.frexp(step)
            widest = np.where(step > 0.0, np.where(mantissa == 0.5, 1 - exponent, -exponent), 0).astype(np.int64)
            units = np.ldexp(block, widest[:, None])
            parts[width]["max"].append(widest)
            for kind, rounded in (("mse", np.rint), ("mse-floor", np.floor)):
                errors = np.stack([_squared_error(units, half, k, rounded) for k in range(candidates)])
                parts[width][kind].append(widest + np.where(step > 0.0, np.argmin(errors, axis=0), 0))
    return {b: {kind: np.concatenate(found) for kind, found in kinds.items()} for b, kinds in parts.items()}


def _squared_error(units: Array, half: int, shift: int, rounded: Callable[[Array], Array]) -> Array:
    """Of codes that are finer than the units by `shift` bits; `[calls]`."""
    fine = units * 2.0**shift
    codes = rounded(fine)
    np.clip(codes, -half, half - 1, out=codes)
    codes -= fine
    codes *= 2.0**-shift
    return np.asarray(np.einsum("ij,ij->i", codes, codes))
