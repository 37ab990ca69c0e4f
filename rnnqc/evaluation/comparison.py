"""How near two series of outputs are to each other: over all values, and step by step in time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import decibels

Array = npt.NDArray[Any]

GROWTH_DB = 3.0
"""By how much the last quarter of time is worse than the first where the error counts as growing."""
FEWEST_STEPS = 8
"""With fewer steps nothing is said about growth."""
MOST_CODES = 2**16
_FEWEST_MAGNITUDES = 4


@dataclass(frozen=True)
class StepComparison:
    """How one output compares step by step. Step t holds the t-th step of every sequence; entry t of each tuple is it.

    Attributes:
        unit: What a step is: "time step" (along an axis of the output) or "call" (of a stream).
        axis: The axis of the output that is time; None where a step is a call.
        sqnr_db: Signal-to-quantization-noise ratio.
        max_abs: Largest absolute difference.
        cosine: Cosine similarity.
        equal: Share of equal values.
        equal_codes: Share of equal codes; None where the output lies on no grid.
        spans_db: SQNR of up to eight equal spans of time, in order.
        quarters_db: SQNR of the four quarters of time; with fewer steps than four, of each step.
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

    @property
    def worst(self) -> int:
        """The step with the least SQNR."""
        return int(np.argmin(self.sqnr_db))

    @property
    def growing(self) -> bool:
        """Whether the last quarter of time is the worst, and worse than the first by `GROWTH_DB` or more.

        (At the very first steps the states hardly differ yet: that the error rises there says nothing.)
        """
        first, last = self.quarters_db[0], self.quarters_db[-1]
        grown = last < math.inf and last <= first - GROWTH_DB
        return len(self.sqnr_db) >= FEWEST_STEPS and grown and last == min(self.quarters_db)


@dataclass(frozen=True)
class OutputComparison:
    """How one output of two models compares over all feeds.

    Attributes:
        name: Name of the output.
        sqnr_db: Signal-to-quantization-noise ratio of the second against the first, of values finite in both.
        max_abs: Largest absolute difference; infinite where a value is finite in one of them only.
        cosine: Cosine similarity of all values as one vector.
        equal: Share of equal values; NaN equals NaN.
        equal_codes: Where the second model's values lie on a grid of steps s (integers: 1): the share of values less
            than s / 2 apart, that is of equal integer codes; else None.
        grid_step: That s, or None.
        same_bits: Whether the arrays hold the same bytes.
        unlike: How many values are NaN or infinite in one of them only.
        first_unlike: Where the first of these is, in words.
        values: How many values were compared.
        steps: The same step by step, where the output has steps in time that are known; else None.
        rms: Root of the mean square of the first model's values, of those finite in both.
        rms_error: The same of the differences.
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


class MayBeUnlike(Protocol):
    """What `unlike_texts` needs of an `OutputComparison`, which others keep, too."""

    @property
    def name(self) -> str:
        """Name of the output."""

    @property
    def unlike(self) -> int:
        """How many values are NaN or infinite in one of the models only."""

    @property
    def first_unlike(self) -> str:
        """Where the first of these is."""


def unlike_texts(outputs: Iterable[MayBeUnlike]) -> list[str]:
    """What fails a comparison whatever was asked for: values that are NaN or infinite in one of the models only."""
    return [
        f"output {o.name!r}: {o.unlike} value(s) are NaN or infinite in one of the models only ({o.first_unlike})."
        for o in outputs
        if o.unlike
    ]


def unlike_values(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    """Which values of two arrays of floats are NaN or infinite in one of them only; infinities of other sign, too."""
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.asarray(~(np.isfinite(x) & np.isfinite(y)) & ~equal)


def check_same_outputs(first: str, second: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Refuses outputs that are not those of two forms of one model.

    Args:
        first: What the first model is called.
        second: What the second one is called.
        a: Outputs of the first model, by name; sequences of tensors are lists.
        b: Of the second one.

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


def grid_step(values: Array, precision: float = 2.0**-24) -> float | None:
    """The step s of a grid on which `values` lie, that is of which all are whole multiples; None if there is none.

    At least four different magnitudes have to be seen, no more than 2^16 codes, and two of them within six steps. Where
    all codes that occur have a common divisor, s is that many steps.

    Args:
        values: Finite numbers.
        precision: Their relative rounding error.
    """
    seen = np.unique(np.abs(np.asarray(values, np.float64).ravel()))
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
    """A step near `step` by least squares, over ever larger values: the smallest gap alone is not exact enough."""
    limit = 16.0
    while True:
        near = seen[seen <= limit * step]
        codes = np.round(near / step)
        if codes.any():
            step = float(near @ codes / (codes @ codes))
        if near.size == seen.size:
            return step
        limit *= 16.0


class OutputTally:
    """Collects what there is to know about one output, call by call.

    Args:
        name: Name of the output.
        axis: The axis that is time; None where there is none.
        stream: Whether calls go on where the last one ended.
    """

    def __init__(self, name: str, axis: int | None, stream: bool) -> None:
        self.name = name
        self._axis, self._stream = axis, stream
        self._rows = _Rows()
        self._offset = 0
        self._calls = 0
        self._single = True
        self._same_bits = True
        self._unlike, self._first_unlike = 0, ""
        self._grid: _GridCheck | None = _GridCheck()

    def add(self, reference: Array, candidate: Array, restart: bool = True) -> None:
        """Adds one call; both arrays have the same shape.

        Args:
            reference: Of the first model.
            candidate: Of the second one.
            restart: Whether a stream starts with it.
        """
        if restart or not self._stream:
            self._offset = 0
        self._same_bits &= reference.dtype == candidate.dtype and reference.tobytes() == candidate.tobytes()
        x, y = _numbers(reference), _numbers(candidate)
        if x is None or y is None:  # texts: equal or not
            x, y = np.zeros(reference.shape), (reference != candidate).astype(np.float64)
            reference, candidate = x, y
        equal = (reference == candidate) | (np.isnan(x) & np.isnan(y))
        unlike = unlike_values(x, y)
        if unlike.any() and not self._unlike:
            index = [int(k) for k in np.argwhere(unlike)[0]]
            self._first_unlike = f"call {self._calls}, {index}: {x[tuple(index)]:g} and {y[tuple(index)]:g}"
        self._unlike += int(np.count_nonzero(unlike))
        start = self._offset
        rows = self._rows.add(start, self._in_steps(x), self._in_steps(y), self._in_steps(equal))
        if self._grid is not None and not self._grid.add(start, self._in_steps(x), self._in_steps(y), candidate.dtype):
            self._grid = None
        self._single &= rows == 1
        self._offset += rows if self._axis is not None or self._stream else 0
        self._calls += 1

    def _in_steps(self, array: Array) -> Array:
        """`[steps, values of a step]`."""
        if self._axis is None:
            return array.reshape(1, -1)
        steps = array.shape[self._axis]
        return np.moveaxis(array, self._axis, 0).reshape(steps, array.size // max(1, steps))

    def spans(self, parts: int) -> list[tuple[int, float]]:
        """Where each of up to `parts` equal spans of time ends, and its SQNR."""
        return [(b, self._rows.merged(a, b).sqnr_db) for a, b in _spans(len(self._rows.count), parts)]

    def result(self) -> OutputComparison:
        """The comparison of everything added so far."""
        rows = self._rows
        codes = None
        step = self._grid.step() if self._grid is not None else None
        if self._grid is not None and step is not None:
            codes = self._grid.equal_codes(step, len(rows.count))
        total = rows.merged(0, len(rows.count))
        steps = None
        if self._axis is not None or self._stream:
            by_step = [rows.merged(t, t + 1) for t in range(len(rows.count))]
            by_call = self._axis is None or (self._stream and self._single)
            steps = StepComparison(
                "call" if by_call else "time step",
                None if by_call else self._axis,
                tuple(s.sqnr_db for s in by_step),
                tuple(s.max_abs for s in by_step),
                tuple(s.cosine for s in by_step),
                tuple(s.equal for s in by_step),
                None if codes is None else tuple(_share(c, n) for c, n in zip(codes, rows.count, strict=True)),
                tuple(rows.merged(a, b).sqnr_db for a, b in _spans(len(by_step), 8)),
                tuple(rows.merged(a, b).sqnr_db for a, b in _spans(len(by_step), 4)),
            )
        return OutputComparison(
            self.name,
            total.sqnr_db,
            total.max_abs,
            total.cosine,
            total.equal,
            None if codes is None else _share(codes.sum(), rows.count.sum()),
            step,
            self._same_bits,
            self._unlike,
            self._first_unlike,
            int(rows.count.sum()),
            steps if steps is not None and steps.sqnr_db else None,
            total.rms,
            total.rms_error,
        )


def _spans(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """From where to where up to `parts` equal parts of `count` steps go."""
    edges = np.linspace(0, count, min(parts, count) + 1).round().astype(int).tolist()
    return itertools.pairwise(edges)


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 1.0


def _numbers(array: Array) -> Array | None:
    """As float64; None for what is no number."""
    if array.dtype.kind in "OUSM":
        return None
    return array.astype(np.float64)


@dataclass(frozen=True)
class _Figures:
    sqnr_db: float
    max_abs: float
    cosine: float
    equal: float
    rms: float
    rms_error: float


class _Rows:
    """Sums over the values of each step."""

    def __init__(self) -> None:
        self.count = np.zeros(0, np.int64)
        self._equal = np.zeros(0, np.int64)
        self._signal, self._noise, self._dot, self._other, self._max = (np.zeros(0) for _ in range(5))

    def add(self, start: int, x: Array, y: Array, equal: Array) -> int:
        """Adds steps from `start` on, `[steps, values]`; how many they are."""
        stop = start + len(x)
        self._grow(stop)
        at = slice(start, stop)
        finite = np.isfinite(x) & np.isfinite(y)
        a, b = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
        difference = a - b
        self._signal[at] += np.einsum("ij,ij->i", a, a)
        self._noise[at] += np.einsum("ij,ij->i", difference, difference)
        self._dot[at] += np.einsum("ij,ij->i", a, b)
        self._other[at] += np.einsum("ij,ij->i", b, b)
        largest = np.where(finite | equal, np.abs(difference), np.inf).max(axis=1, initial=0.0)
        self._max[at] = np.maximum(self._max[at], largest)
        self._equal[at] += np.count_nonzero(equal, axis=1)
        self.count[at] += x.shape[1]
        return len(x)

    def _grow(self, size: int) -> None:
        more = size - len(self.count)
        if more > 0:
            for name, array in vars(self).items():
                setattr(self, name, np.pad(array, (0, more)))

    def merged(self, start: int, stop: int) -> _Figures:
        """Figures of the steps from `start` to `stop` together."""
        at = slice(start, stop)
        signal, noise = float(self._signal[at].sum()), float(self._noise[at].sum())
        other, dot = float(self._other[at].sum()), float(self._dot[at].sum())
        norm = math.sqrt(signal) * math.sqrt(other)
        count = int(self.count[at].sum())
        cosine = dot / norm if norm else 1.0 if signal == other else 0.0
        return _Figures(
            decibels(signal, noise),
            float(self._max[at].max(initial=0.0)),
            max(-1.0, min(1.0, cosine)),
            _share(self._equal[at].sum(), count),
            math.sqrt(signal / max(1, count)),
            math.sqrt(noise / max(1, count)),
        )


class _GridCheck:
    """Keeps pairs of values for as long as the second ones may lie on a grid."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Array, Array]] = []
        self._seen = np.zeros(0)
        self._precision = 0.0

    def add(self, start: int, x: Array, y: Array, dtype: np.dtype[Any]) -> bool:
        """Whether there is still hope."""
        if dtype.kind in "iub":
            self._precision = -1.0
        elif dtype.kind == "f":
            self._precision = max(self._precision, float(np.finfo(dtype).eps) / 2)
        else:
            return False
        self._held.append((start, x, y))
        if self._precision >= 0.0:
            self._seen = np.union1d(self._seen, np.abs(y[np.isfinite(y)]))
        return len(self._seen) <= MOST_CODES and (len(self._seen) < 256 or self.step() is not None)

    def step(self) -> float | None:
        return 1.0 if self._precision < 0.0 else grid_step(self._seen, self._precision)

    def equal_codes(self, step: float, rows: int) -> Array:
        """How many codes of each step are equal."""
        result = np.zeros(rows, np.int64)
        for start, x, y in self._held:
            with np.errstate(invalid="ignore"):
                equal = (np.abs(x - y) < 0.5 * step) | (x == y) | (np.isnan(x) & np.isnan(y))
            result[start : start + len(x)] += np.count_nonzero(equal, axis=1)
        return result
