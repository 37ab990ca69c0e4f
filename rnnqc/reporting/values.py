"""Picks the values of one output of both models for display: those with the largest error, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.measure.tally import in_steps
from rnnqc.reporting.evidence import Values

Array = npt.NDArray[Any]
MOST = 160
"""At most this many steps are shown, around the worst one."""


def values_of(
    reference: Sequence[Array], lowered: Sequence[Array], axis: int | None, restarts: Sequence[bool], unit: str | None
) -> Values | None:
    """Picks the values of one output with the largest error.

    Args:
        reference: Outputs of the float model, call by call.
        lowered: Outputs of the lowered model, call by call.
        axis: The time axis; None where there is none.
        restarts: For each call, whether a stream starts with it; empty if the calls are independent.
        unit: The unit of a step; None for an output without time.

    Returns:
        The values; None where an output has fewer than two to draw.
    """
    pairs = list(zip(reference, lowered, strict=True))
    errors = [_power(x, y) for x, y in pairs]
    worst = int(np.argmax(errors))
    if restarts:
        first = max(k for k in range(worst + 1) if restarts[k] or k == 0)
        last = next((k for k in range(worst + 1, len(pairs)) if restarts[k]), len(pairs))
        group = [p for p in pairs[first:last] if p[0].shape[:axis] == pairs[worst][0].shape[:axis]]
        where = f"from call {first} on"
    else:
        group, where = [pairs[worst]], f"call {worst}"
    shape = group[0][0].shape
    if unit is None:
        return _line(*pairs[worst], f"call {worst}")
    if axis is None and any(x.shape != shape for x, _ in group):
        return None
    float_steps, other_steps = (np.concatenate([in_steps(p[k], axis) for p in group]) for k in (0, 1))
    if len(float_steps) < 2 or not float_steps.shape[1]:
        return None
    column = int(np.argmax(_squares(float_steps, other_steps).sum(axis=0)))
    index = list(map(str, np.unravel_index(column, shape if axis is None else shape[:axis] + shape[axis + 1 :])))
    if axis is not None:
        index.insert(axis, ":")
    return _made(unit, f"{where}, [{', '.join(index)}]", float_steps[:, column], other_steps[:, column])


def _line(x: Array, y: Array, where: str) -> Values | None:
    """The last axis of an output without time, at the row with the largest error."""
    if x.ndim == 0 or x.size < 2:
        return None
    rows = x.reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1])
    if rows[0].shape[1] < 2:
        rows = x.reshape(1, -1), y.reshape(1, -1)
    row = int(np.argmax(_squares(*rows).sum(axis=1)))
    index = [*map(str, np.unravel_index(row, x.shape[:-1])), ":"] if len(rows[0]) > 1 or x.ndim == 1 else [":"] * x.ndim
    return _made("entry", f"{where}, [{', '.join(index)}]", rows[0][row], rows[1][row])


def _made(unit: str, where: str, x: Array, y: Array) -> Values:
    """At most `MOST` steps, around the one with the largest error."""
    worst = int(np.argmax(_squares(x, y)))
    first = max(0, min(worst - MOST // 2, len(x) - MOST))
    shown = slice(first, first + MOST)
    return Values(unit, where, first, _numbers(x[shown]), _numbers(y[shown]))


def _numbers(values: Array) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]


def _squares(x: Array, y: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.nan_to_num(np.square(x.astype(np.float64) - y.astype(np.float64)), nan=0.0, posinf=1e300, neginf=0.0)


def _power(x: Array, y: Array) -> float:
    return float(_squares(x, y).sum())
