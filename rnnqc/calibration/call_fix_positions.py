"""Finds the best fix position of many calls at once, with the results of `rnnqc.formats.fix_position.fix_position`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.data.statistics import SPANS
from rnnqc.formats.fix_position import Calls, best_positions, widest_positions
from rnnqc.formats.rounding import Rounding

Array = npt.NDArray[Any]
BLOCK = 2**15  # values at a time, to stay in the cache
SEARCHES = (("mse", Rounding.HALF_EVEN), ("mse-floor", Rounding.FLOOR))
"""Kinds of search. With rounding to nearest, all ways of breaking ties give the same errors."""


def fix_positions_of_calls(values: Array, bits: Sequence[int], candidates: int) -> dict[int, dict[str, Array]]:
    """Returns for each width the position where nothing saturates, and the best of `candidates` from there on.

    Args:
        values: `[calls, n]`, finite; a row may be padded with zeros, which every position represents.
        bits: Widths of signed values.
        candidates: How many positions are tried.

    Returns:
        For each width and kind of `rnnqc.data.statistics.SPANS` an int64 array `[calls]`.
    """
    rows = max(1, BLOCK // max(1, values.shape[1]))
    parts: dict[int, dict[str, list[Array]]] = {b: {kind: [] for kind in SPANS} for b in bits}
    for start in range(0, len(values), rows):
        calls = Calls.of(values[start : start + rows].astype(np.float64))
        for width in bits:
            widest = widest_positions(calls, width)
            parts[width]["max"].append(widest)
            for kind, rounding in SEARCHES:
                parts[width][kind].append(best_positions(calls, widest, width, candidates, rounding))
    return {b: {kind: np.concatenate(found) for kind, found in kinds.items()} for b, kinds in parts.items()}
