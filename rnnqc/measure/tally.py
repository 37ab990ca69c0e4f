"""Sums up the differences of two series of outputs, call by call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.data.streaming import Outputs
from rnnqc.evaluation.numerics import decibels
from rnnqc.measure.differences import GridCheck, OutputComparison, StepComparison, check_same_outputs, unlike_values
from rnnqc.measure.runs import Calls
from rnnqc.measure.spread import Spread
from rnnqc.measure.time_axes import TimeAxis

Array = npt.NDArray[Any]


def tallied(
    calls: Calls,
    first: Iterable[Outputs],
    second: Iterable[Outputs],
    axes: Mapping[str, TimeAxis],
    names: tuple[str, str],
    unit: Collection[str] = (),
) -> dict[str, OutputTally]:
    """Collects the differences of each output that is a tensor, by its name.

    Args:
        calls: The calls that both models ran on.
        first: Outputs of the first model, call by call.
        second: Outputs of the second one.
        axes: The time axes of outputs.
        names: The names of the two models in messages.
        unit: Outputs that a sigmoid makes.

    Raises:
        CompileError: A model does not run, or they have different outputs.
    """
    tallies: dict[str, OutputTally] = {}
    for call, a, b in zip(calls.pieces, first, second, strict=True):
        check_same_outputs(*names, a, b)
        for name in a:
            if isinstance(a[name], list) or isinstance(b[name], list):
                continue  # a sequence of tensors
            x, y = np.asarray(a[name]), np.asarray(b[name])
            if name not in tallies:
                axis = axes[name].of(x, call.feed) if name in axes else None
                tallies[name] = OutputTally(name, axis, bool(calls.carried), unit=name in unit)
            tallies[name].add(x, y, call.restart)
    return tallies


class OutputTally:
    """Collects the differences of one output, call by call.

    Args:
        name: Name of the output.
        axis: The time axis; None where there is none.
        stream: Whether calls continue the sequence of the call before.
        unit: Whether a sigmoid makes the output.
    """

    def __init__(self, name: str, axis: int | None, stream: bool, *, unit: bool = False) -> None:
        self.name = name
        self._unit = unit
        self._axis, self._stream = axis, stream
        self._rows = _Rows()
        self._spread = Spread()
        self._offset = 0
        self._calls = 0
        self._single = True
        self._same_bits = True
        self._unlike, self._first_unlike = 0, ""
        self._grid: GridCheck | None = GridCheck()
        self._whole = True
        self._first_text: Any = None

    def add(self, reference: Array, candidate: Array, restart: bool = True) -> None:
        """Adds one call; both arrays have the same shape.

        Args:
            reference: Output of the first model.
            candidate: Output of the second one.
            restart: Whether a stream starts with it.
        """
        if restart or not self._stream:
            self._offset = 0
        if self._same_bits:
            self._same_bits = reference.dtype == candidate.dtype and reference.tobytes() == candidate.tobytes()
        self._whole &= reference.dtype.kind in "iub"
        x, y = _numbers(reference), _numbers(candidate)
        if x is not None and y is not None:
            varying = x
        else:  # strings: only equality counts
            varying = self._unlike_first(reference)
            x, y = np.zeros(reference.shape), (reference != candidate).astype(np.float64)
            reference, candidate = x, y
        equal = np.asarray(reference == candidate)
        finite = np.isfinite(x) & np.isfinite(y)
        all_finite = bool(finite.all())
        every = all_finite and x.flags.c_contiguous and y.flags.c_contiguous  # then large outputs need fewer copies
        if not all_finite:
            equal |= np.isnan(x) & np.isnan(y)
            self._count_unlike(x, y)
        self._spread.add(varying, None if every else finite, reference.dtype, apart=self._axis != x.ndim - 1)
        start = self._offset
        steps = (in_steps(a, self._axis) for a in (x, y, equal))
        rows = self._rows.add(start, *steps, finite=every)
        if self._grid is not None and not self._grid.add(
            start, in_steps(x, self._axis), in_steps(y, self._axis), candidate.dtype
        ):
            self._grid = None
        self._single &= rows == 1
        self._offset += rows if self._axis is not None or self._stream else 0
        self._calls += 1

    def _count_unlike(self, x: Array, y: Array) -> None:
        unlike = unlike_values(x, y)
        if unlike.any() and not self._unlike:
            index = [int(k) for k in np.argwhere(unlike)[0]]
            self._first_unlike = f"call {self._calls}, {index}: {x[tuple(index)]:g} and {y[tuple(index)]:g}"
        self._unlike += int(np.count_nonzero(unlike))

    def _unlike_first(self, texts: Array) -> Array:
        """Where texts are not the first one of all."""
        if self._first_text is None and texts.size:
            self._first_text = texts.flat[0]
        return np.asarray(texts != self._first_text, np.float64)

    def spans(self, parts: int) -> list[tuple[int, float]]:
        """Returns the end and the SQNR of each of up to `parts` equal spans of time."""
        return [(b, self._rows.merged(a, b).sqnr_db) for a, b in _spans(self._rows.size, parts)]

    def result(self) -> OutputComparison:
        """Returns the comparison of everything added so far."""
        rows = self._rows
        codes = None
        step = self._grid.step() if self._grid is not None else None
        if self._grid is not None and step is not None:
            codes = self._grid.equal_codes(step, rows.size)
        total = rows.merged(0, rows.size)
        steps = None
        if self._axis is not None or self._stream:
            by_step = [rows.merged(t, t + 1) for t in range(rows.size)]
            quarters = [rows.merged(a, b) for a, b in _spans(len(by_step), 4)]
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
                tuple(q.sqnr_db for q in quarters),
                tuple(q.rms_error for q in quarters),
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
            self._whole and self._calls > 0,
            total.mean,
            self._spread.deviation,
            self._unit,
        )


def in_steps(array: Array, axis: int | None) -> Array:
    """Reshapes to `[steps, values of a step]`; without a time axis the call is one step."""
    if axis is None:
        return array.reshape(1, -1)
    steps = array.shape[axis]
    return np.moveaxis(array, axis, 0).reshape(steps, array.size // max(1, steps))


def _spans(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yields the bounds of up to `parts` equal parts of `count` steps."""
    edges = np.linspace(0, count, min(parts, count) + 1).round().astype(int).tolist()
    return itertools.pairwise(edges)


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 1.0


def _numbers(array: Array) -> Array | None:
    """Converts to float64; None for non-numeric arrays."""
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
    mean: float


class _Rows:
    """Sums over the values of each step."""

    def __init__(self) -> None:
        self.size = 0
        self._count, self._equal = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._signal, self._noise, self._dot, self._other, self._max = (np.zeros(0) for _ in range(5))
        self._sum = np.zeros(0)

    def add(self, start: int, x: Array, y: Array, equal: Array, *, finite: bool) -> int:
        """Adds steps from `start` on, `[steps, values]`; returns their number.

        Args:
            start: The first step.
            x: Values of the first model.
            y: Values of the second one.
            equal: Which are equal.
            finite: Whether all are known to be finite.
        """
        stop = start + len(x)
        self._grow(stop)
        at = slice(start, stop)
        a, b = x, y
        if not finite:
            counted = np.isfinite(x) & np.isfinite(y)
            a, b = np.where(counted, x, 0.0), np.where(counted, y, 0.0)
        difference = a - b
        self._sum[at] += a.sum(axis=1)
        self._signal[at] += np.einsum("ij,ij->i", a, a)
        self._noise[at] += np.einsum("ij,ij->i", difference, difference)
        self._dot[at] += np.einsum("ij,ij->i", a, b)
        self._other[at] += np.einsum("ij,ij->i", b, b)
        np.abs(difference, out=difference)
        if not finite:
            difference = np.where(counted | equal, difference, np.inf)
        largest = difference.max(axis=1, initial=0.0)
        self._max[at] = np.maximum(self._max[at], largest)
        self._equal[at] += np.count_nonzero(equal, axis=1)
        self._count[at] += x.shape[1]
        return len(x)

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """The number of values in each step."""
        return self._count[: self.size]

    def _grow(self, size: int) -> None:
        self.size = max(self.size, size)
        if size > len(self._count):
            more = max(size, 2 * len(self._count)) - len(self._count)  # a stream adds a step with each call
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, np.pad(array, (0, more)))

    def merged(self, start: int, stop: int) -> _Figures:
        """Returns the figures of the steps from `start` to `stop` together."""
        at = slice(start, stop)
        signal, noise = float(self._signal[at].sum()), float(self._noise[at].sum())
        other, dot = float(self._other[at].sum()), float(self._dot[at].sum())
        norm = math.sqrt(signal) * math.sqrt(other)
        count = int(self._count[at].sum())
        cosine = dot / norm if norm else 1.0 if signal == other else 0.0
        return _Figures(
            decibels(signal, noise),
            float(self._max[at].max(initial=0.0)),
            max(-1.0, min(1.0, cosine)),
            _share(self._equal[at].sum(), count),
            math.sqrt(signal / max(1, count)),
            math.sqrt(noise / max(1, count)),
            float(self._sum[at].sum()) / max(1, count),
        )
