"""Checks that values are, after a pass, what other values were before it, in other units.

A loop feeds roundings back, so the results of two right forms of a quantized cell differ by as much as a scale that is
wrong by a percent makes them differ. What tells the two apart is where the difference comes from: roundings have no
direction, a wrong scale or offset has. So the values are compared by a line through them, column by column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.passes.base import MOVED, Equivalent
from rnnqc.passes.cells.inner_values import Array, InnerValues
from rnnqc.passes.graph.point_names import alias
from rnnqc.passes.verify.divergence import names_by_alias
from rnnqc.proto.inlining import inlined

OFFSET_TOLERANCE = 0.125
"""Of the offset of the line, in the units that are declared for it."""
DEVIATIONS = 8.0
"""How many standard errors of slope and offset are allowed on top."""
FEWEST = 8
LEAST_DB = 45.0
"""Below that a product behind another cell drifts too far: the drift itself may be a factor of a percent."""
FITS = 3
"""How often a line is laid through what is near the last one."""


@dataclass(frozen=True)
class Comparison:
    """What comparing pairs of values gave.

    Attributes:
        compared: How many pairs were compared.
        passed_over: The second values of the others, each with what kept it from being compared.
        wrong: The first pair that does not belong together, and why.
    """

    compared: int
    passed_over: tuple[str, ...]
    wrong: tuple[Equivalent, str] | None

    def __str__(self) -> str:
        text = f"values inside in their units: {self.compared} compared"
        return (
            f"{text}, {len(self.passed_over)} passed over: {', '.join(self.passed_over)}" if self.passed_over else text
        )


def compare_equivalents(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Array]],
    equivalents: Sequence[Equivalent],
) -> Comparison:
    """Compares pairs of values; what cannot be brought out, or has too few values, is passed over."""
    sides = [inlined(model) for model in (before, after)]
    aliases = [names_by_alias(side) for side in sides]
    names = [
        [aliases[k].get(name, []) for name in (e.before if k == 0 else e.after for e in equivalents)] for k in (0, 1)
    ]
    given = [{v.name for v in side.graph.input} for side in sides]
    sources = {e.source for e in equivalents if e.source and any(e.source not in g for g in given)}
    both = [sorted(s for s in sources if s in aliases[k].get(alias(s)[0], [])) for k in (0, 1)]
    drifting = {s for s in sources if any(s not in names for names in both)}
    wanted = [[*(n for group in names[k] for n in group), *both[k]] for k in (0, 1)]
    inside = [InnerValues(side, wanted[k]) for k, side in enumerate(sides)]
    series: list[list[tuple[Array, Array]]] = [[] for _ in equivalents]
    for feed in feeds:
        values = [side.of(feed) for side in inside]
        drifting |= {s for s in sources - drifting if not _are_same(*(v.get(s, []) for v in values))}
        for k, into in enumerate(series):
            x, y = (_joined([values[s].get(n, []) for n in names[s][k]]) for s in (0, 1))
            if x is not None and y is not None and x.shape == y.shape and x.shape[1] == len(equivalents[k].factor):
                into.append((x, y))
    compared, passed_over = 0, []
    for equivalent, pairs in zip(equivalents, series, strict=True):
        x, y = _finite_rows(equivalent, pairs)
        if len(x) < FEWEST:
            reason = f"{len(x)} rows of finite values" if pairs else "not in both models"
            passed_over.append(f"{equivalent.after!r} ({reason})")
            continue
        pair = equivalent
        if pair.source in drifting:
            ratio = sqnr_db(x - x.mean(axis=0), y - y.mean(axis=0))
            if ratio < LEAST_DB:
                passed_over.append(f"{pair.after!r} ({ratio:.1f} dB behind another cell)")
                continue
            column, gate = (max(pair.tolerance[k], MOVED[k]) for k in (0, 1))
            pair = replace(pair, offset=None, tolerance=(column, gate))
        text = _difference(pair, x, y)
        if text is not None:
            return Comparison(compared, tuple(passed_over), (equivalent, text))
        compared += 1
    return Comparison(compared, tuple(passed_over), None)


def _are_same(a: Sequence[tuple[Any, Array]], b: Sequence[tuple[Any, Array]]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y, equal_nan=True) for (_, x), (_, y) in zip(a, b, strict=True))


def _joined(found: Sequence[Sequence[tuple[Any, Array]]]) -> Array | None:
    """All steps of a value, `[values of a column, columns]`: of the kind of operands that ran."""
    for steps in found:
        arrays = [a for _, a in steps if a.ndim >= 2]
        if arrays and len(arrays) == len(steps):
            return np.concatenate([a.reshape(-1, a.shape[-1]) for a in arrays]).astype(np.float64)
    return None


def _finite_rows(equivalent: Equivalent, pairs: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """What the second value should be but for an offset, and what it is, `[rows, columns]`."""
    if not pairs:
        return np.zeros((0, 0)), np.zeros((0, 0))
    x = np.concatenate([p[0] for p in pairs]) * np.asarray(equivalent.factor)
    y = np.concatenate([p[1] for p in pairs])
    rows = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    return np.asfortranarray(x[rows]), np.asfortranarray(y[rows])  # columns are sorted


def _difference(equivalent: Equivalent, x: Array, y: Array) -> str | None:
    """What is wrong with y for x, as `_finite_rows` gives them; None if nothing is."""
    # A code that is rounded the other way is rare and far off: the fifth that is furthest from the line does not count.
    # At first that is the line that is expected, which loses too much of what is far from zero if it is the wrong one:
    # so again from the line that was found.
    slope = np.ones(x.shape[1])
    for _ in range(FITS):
        rest = y - slope * x
        far = np.abs(rest - np.median(rest, axis=0))
        slope, rest, energy = _lines(x, y, far <= np.quantile(far, 0.8, axis=0))
        slope = np.where(energy > 0, slope, 1.0)  # of what does not vary, nothing is known but how much more it is
    of_column, of_gate = equivalent.tolerance
    allowed = of_column + DEVIATIONS * rest / np.sqrt(np.where(energy > 0, energy, np.inf))
    wrong = (energy > 0) & (np.abs(slope - 1.0) > allowed)
    if wrong.any():
        column = int(np.argmax(np.where(wrong, np.abs(slope - 1.0), -1.0)))
        return f"column {column} is {slope[column]:.5g} times what it should be ({int(wrong.sum())} such columns)"
    gates = np.arange(x.shape[1]) // max(1, equivalent.columns)
    for gate in np.unique(gates):  # where single columns vary too little, those of a gate together
        at = (gates == gate) & (energy > 0)
        total = float(energy[at].sum())
        mean = float(slope[at] @ energy[at]) / total if total else 1.0
        error = DEVIATIONS * float(np.sqrt(rest[at] ** 2 @ energy[at])) / total if total else 0.0
        if abs(mean - 1.0) > of_gate + error:
            first = gate * equivalent.columns
            return f"columns {first} to {first + equivalent.columns - 1} are {mean:.5g} times what they should be"
    if equivalent.offset is not None:
        offset = np.median(y - slope * x, axis=0)
        off = np.abs(offset - np.asarray(equivalent.offset))
        slope_error = rest / np.sqrt(np.where(energy > 0, energy, np.inf)) * np.abs(np.mean(x, axis=0))
        units = np.asarray(equivalent.units or 1.0)
        allowed = OFFSET_TOLERANCE * units + DEVIATIONS * (
            np.quantile(far, 0.5, axis=0) / np.sqrt(len(x)) + slope_error
        )
        wrong = off > allowed
        if wrong.any():
            column = int(np.argmax(np.where(wrong, off, -1.0)))
            expected = equivalent.offset[column]
            return f"column {column} is {offset[column]:.6g} more, not {expected:g} ({int(wrong.sum())} such columns)"
    return None


def _lines(x: Array, y: Array, kept: npt.NDArray[np.bool_]) -> tuple[Array, Array, Array]:
    """Slope, standard deviation from the line, and sum of squares of x, for each column; 0 where x hardly varies."""
    count = np.maximum(1, kept.sum(axis=0))
    u = np.where(kept, x - np.where(kept, x, 0.0).sum(axis=0) / count, 0.0)
    v = np.where(kept, y - np.where(kept, y, 0.0).sum(axis=0) / count, 0.0)
    energy = np.sum(u * u, axis=0)
    energy = np.where(energy > 1e-9 * max(1.0, float(energy.max(initial=0.0))), energy, 0.0)
    slope = np.sum(u * v, axis=0) / np.where(energy > 0, energy, 1.0)
    rest = np.sqrt(np.sum((v - slope * u) ** 2, axis=0) / np.maximum(1, count - 2))
    return slope, rest, energy
