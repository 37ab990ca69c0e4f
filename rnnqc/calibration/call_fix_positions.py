"""The best fix position of each of many calls at once: `rnnqc.fix_position.fix_position`, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BLOCK = 2**15  # values at a time, so that they stay in the cache


def fix_positions_of_calls(values: Array, bits: Sequence[int], candidates: int) -> dict[int, tuple[Array, Array]]:
    """For each width the position where nothing saturates, and the best of `candidates` from there on.

    Args:
        values: `[calls, n]`, finite; a row may be padded with zeros, which every position represents.
        bits: Widths of signed codes.
        candidates: How many positions are tried.

    Returns:
        For each width two int64 arrays `[calls]`.
    """
    rows = max(1, BLOCK // max(1, values.shape[1]))
    parts: dict[int, tuple[list[Array], list[Array]]] = {b: ([], []) for b in bits}
    for start in range(0, len(values), rows):
        block = values[start : start + rows].astype(np.float64)
        low, high = block.min(axis=1), block.max(axis=1)
        for width in bits:
            half = 2 ** (width - 1)
            step = np.maximum(low / (-half - 0.5), high / (half - 0.5))
            mantissa, exponent = np.frexp(step)
            widest = np.where(step > 0.0, np.where(mantissa == 0.5, 1 - exponent, -exponent), 0).astype(np.int64)
            units = np.ldexp(block, widest[:, None])
            errors = np.stack([_squared_error(units, half, k) for k in range(candidates)])
            best = widest + np.where(step > 0.0, np.argmin(errors, axis=0), 0)
            parts[width][0].append(widest)
            parts[width][1].append(best)
    return {b: (np.concatenate(w), np.concatenate(m)) for b, (w, m) in parts.items()}


def _squared_error(units: Array, half: int, shift: int) -> Array:
    """Of codes, rounded half away from zero, that are finer than the units by `shift` bits; `[calls]`."""
    fine = units * 2.0**shift
    codes = np.trunc(fine + np.copysign(0.5, fine))
    np.clip(codes, -half, half - 1, out=codes)
    codes -= fine
    codes *= 2.0**-shift
    return np.asarray(np.einsum("ij,ij->i", codes, codes))
