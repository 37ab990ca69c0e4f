"""Differences between the outputs of two models: over all values, and step by step in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import decibels

Array = npt.NDArray[Any]

GROWTH_DB = 3.0
"""The error counts as growing if it is this much larger in the last quarter of time than in the first."""
GROWING, STEADY, UNJUDGED = "growing", "steady", "too short"
"""Trends of an error over time."""
FEWEST_STEPS = 8
"""With fewer steps growth is not judged."""
MOST_CODES = 2**16
"""Values with more different magnitudes are not quantized values."""
QUIET = 0.1
"""Below this share of the full scale, SQNR says little about an output, such as a probability of 2e-4 against 1e-4."""
_FEWEST_MAGNITUDES = 4
NEARLY_CONSTANT = 0.99
"""An output is nearly constant if its mean has this share of its power: values within a tenth around the mean."""


@dataclass(frozen=True)
class StepComparison:
    """The comparison of one output step by step. Entry t of each tuple covers the t-th step of every sequence.

    Attributes:
        unit: The kind of step: "time step" (along an axis of the output) or "call" (of a stream).
        axis: The time axis of the output; None where a step is a call.
        sqnr_db: Signal-to-quantization-noise ratio.
        max_abs: Largest absolute difference.
        cosine: Cosine similarity.
        equal: Share of equal values.
        equal_codes: Share of equal quantized values; None where the output is not quantized.
        spans_db: SQNR of up to eight equal spans of time, in order.
        quarters_db: SQNR of the four quarters of time; with fewer steps than four, of each step.
        quarters_error: Root mean square of the differences in each of them.
    """

    unit: str
    axis: int | None
    sqnr_db: tuple[float, ...]
    max_abs: tuple[float, ...]
    cosine: tuple[float, ...]
    equal: tuple[float, ...]
    equal_codes: tuple[float, ...] | None
    spans_db: tuple[float, ...]
    quarters_db: tuple[float, ...]
    quarters_error: tuple[float, ...]

    @property
    def worst(self) -> int:
        """The step with the lowest SQNR."""
        return int(np.argmin(self.sqnr_db))

    @property
    def growing(self) -> bool:
        """Whether the last quarter of time is the worst, and its error larger than in the first by `GROWTH_DB` or more.

        It has to be larger both by itself and against the signal: where the signal alone fades, nothing accumulates.
        (In the very first steps the states hardly differ yet, so a rising error there means nothing.)
        """
        first, last = self.quarters_db[0], self.quarters_db[-1]
        fallen = last < math.inf and last <= first - GROWTH_DB and last == min(self.quarters_db)
        risen = self.quarters_error[-1] >= self.quarters_error[0] * 10.0 ** (GROWTH_DB / 20.0)
        return len(self.sqnr_db) >= FEWEST_STEPS and fallen and risen

    @property
    def trend(self) -> str:
        """The trend of the error over time."""
        return trend(len(self.sqnr_db), growing=self.growing)


def trend(steps: int, *, growing: bool) -> str:
    """Returns the trend of an error over this many steps, in words."""
    return GROWING if growing else STEADY if steps >= FEWEST_STEPS else UNJUDGED


@dataclass(frozen=True)
class OutputComparison:
    """The comparison of one output of two models over all feeds.

    Attributes:
        name: Name of the output.
        sqnr_db: Signal-to-quantization-noise ratio of the second against the first, of values finite in both.
        max_abs: Largest absolute difference; infinite where a value is finite in only one of them.
        cosine: Cosine similarity of all values as one vector.
        equal: Share of equal values; NaN equals NaN.
        equal_codes: If the second model's values are multiples of a step s (integers: 1): the share of values less
            than s / 2 apart, that is of equal quantized values; else None.
        grid_step: That s, or None.
        same_bits: Whether the arrays hold the same bytes.
        unlike: How many values are NaN or infinite in only one of them.
        first_unlike: Where the first of these is, in words.
        values: How many values were compared.
        steps: The comparison step by step, where the output has known time steps; else None.
        rms: Root mean square of the first model's values, of those finite in both.
        rms_error: Root mean square of the differences.
        whole_numbers: Whether the first model's values are integers or booleans.
        mean: The mean of the first model's values, of those finite in both.
        deviation: Root mean square of their deviation from the mean (`rnnqc.measure.spread`); 0 if constant.
        unit: Whether a sigmoid makes the values: from 0 to 1.
    """

    name: str
    sqnr_db: float
    max_abs: float
    cosine: float
    equal: float
    equal_codes: float | None = None
    grid_step: float | None = None
    same_bits: bool = False
    unlike: int = 0
    first_unlike: str = ""
    values: int = 0
    steps: StepComparison | None = None
    rms: float = 0.0
    rms_error: float = 0.0
    whole_numbers: bool = False
    mean: float = 0.0
    deviation: float = 0.0
    unit: bool = False

    @property
    def near_zero(self) -> bool:
        """Whether these are values from 0 to 1 that stay so near zero on this data that their SQNR says little."""
        return self.unit and self.rms < QUIET

    @property
    def constant(self) -> bool:
        """Whether none of several values varies, within a channel of the last axis where it has enough of them."""
        return self.values > 1 and self.deviation == 0.0

    @property
    def varying_db(self) -> float:
        """The SQNR of the deviation from the mean, if the output is nearly constant, such as a predicted price.

        Also if each channel of its last axis is, such as prices of several things. Infinite for other outputs,
        and for exactly constant ones.
        """
        varying = self.deviation**2
        if not 0.0 < varying <= (1.0 - NEARLY_CONSTANT) * self.rms**2:
            return math.inf
        return decibels(varying, self.rms_error**2)


def unlike_text(name: str, count: int, first: str) -> str:
    """A sentence about values that are NaN or infinite in only one of the models; they fail every comparison.

    Args:
        name: Name of the output.
        count: How many such values it has.
        first: Where the first of them is.
    """
    return f"output {name!r}: {count} value(s) are NaN or infinite in one of the models only ({first})."


def unlike_texts(outputs: Iterable[OutputComparison]) -> list[str]:
    """Returns a sentence for each output with values that are NaN or infinite in only one of the models."""
    return [unlike_text(o.name, o.unlike, o.first_unlike) for o in outputs if o.unlike]


def unlike_values(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    """Returns which values of two float arrays are NaN or infinite in only one, or infinite with different signs."""
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.asarray(~(np.isfinite(x) & np.isfinite(y)) & ~equal)


def check_same_outputs(first: str, second: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Refuses outputs that cannot be those of two forms of one model.

    Args:
        first: Name of the first model.
        second: Name of the second one.
        a: Outputs of the first model, by name; sequences of tensors are lists.
        b: Outputs of the second one.

    Raises:
        CompileError: Their names differ, or the shapes of two tensors do.
    """
    belong = {"supported": "two forms of one model", "action": "compare a model with what it was lowered to"}
    if set(a) != set(b):
        raise CompileError(f"{first} and {second} have different outputs: {sorted(a)} and {sorted(b)}.", **belong)
    for name in a:
        tensors = not isinstance(a[name], list) and not isinstance(b[name], list)
        if tensors and np.shape(a[name]) != np.shape(b[name]):
            shapes = f"{list(np.shape(a[name]))} and {list(np.shape(b[name]))}"
            raise CompileError(f"output {name!r} has shape {shapes} in {first} and {second}.", **belong)


def _distinct(values: Array) -> Array:
    """Returns the distinct finite numbers, sorted. `np.unique` imports numpy.ma, which takes longer than a sort."""
    ordered = np.sort(values, axis=None)
    return ordered[np.diff(ordered, prepend=-np.inf) > 0]


def grid_step(values: Array, precision: float = 2.0**-24) -> float | None:
    """Returns the step s of which all `values` are integer multiples; None if there is none.

    There must be at least four different magnitudes, at most 2^16 quantized values, and two within six steps. If
    the quantized values that occur have a common divisor, s is that many steps.

    Args:
        values: Finite numbers.
        precision: Their relative rounding error.
    """
    seen = _distinct(np.abs(np.asarray(values, np.float64)))
    seen = seen[seen > 0]
    if not _FEWEST_MAGNITUDES <= seen.size <= MOST_CODES:
        return None
    gaps = np.diff(seen, prepend=0.0)
    gap = float(gaps[gaps > 4 * precision * seen[-1]].min(initial=np.inf))
    for divisor in range(1, 7):
        step = _fitted(seen, gap / divisor)
        codes = seen / step
        slack = 1e-3 + 4 * precision * codes
        if codes[-1] <= MOST_CODES and slack[-1] < 0.05 and bool(np.all(np.abs(codes - np.round(codes)) <= slack)):
            return step
    return None


def _fitted(seen: Array, step: float) -> float:
    """Refines `step` by least squares over ever larger values: the smallest gap alone is not exact enough."""
    limit = 16.0
    while True:
        near = seen[seen <= limit * step]
        codes = np.round(near / step)
        if codes.any():
            step = float(near @ codes / (codes @ codes))
        if near.size == seen.size:
            return step
        limit *= 16.0


class GridCheck:
    """Keeps pairs of values as long as the second ones may be multiples of a step."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Array, Array]] = []
        self._seen = np.zeros(0)
        self._precision = 0.0

    def add(self, start: int, x: Array, y: Array, dtype: np.dtype[Any]) -> bool:
        """Adds steps from `start` on. Returns False once the values cannot be multiples of a step."""
        if dtype.kind in "iub":
            self._precision = -1.0
        elif dtype.kind == "f":
            self._precision = max(self._precision, float(np.finfo(dtype).eps) / 2)
        else:
            return False
        self._held.append((start, x, y))
        if self._precision >= 0.0:
            few = y.ravel()[:: max(1, y.size // (2 * MOST_CODES))]  # enough for most outputs, without sorting them all
            if len(_distinct(np.abs(few[np.isfinite(few)]))) > MOST_CODES:
                return False
            self._seen = _distinct(np.concatenate([self._seen, np.abs(y[np.isfinite(y)])]))
        return len(self._seen) <= MOST_CODES and (len(self._seen) < 256 or self.step() is not None)

    def step(self) -> float | None:
        """Returns the step; None if there is none."""
        return 1.0 if self._precision < 0.0 else grid_step(self._seen, self._precision)

    def equal_codes(self, step: float, rows: int) -> Array:
        """Counts the equal quantized values in each time step."""
        result = np.zeros(rows, np.int64)
        for start, x, y in self._held:
            with np.errstate(invalid="ignore"):
                equal = (np.abs(x - y) < 0.5 * step) | (x == y) | (np.isnan(x) & np.isnan(y))
            result[start : start + len(x)] += np.count_nonzero(equal, axis=1)
        return result
