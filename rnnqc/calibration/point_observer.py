"""Collects the statistics of one quantization point, piece by piece; any grouping of the pieces gives the same bits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.call_fix_positions import fix_positions_of_calls
from rnnqc.calibration.growing_histogram import GrowingHistogram
from rnnqc.calibration.reproducible import ReproducibleSum
from rnnqc.calibration.second_moment import ROWS, second_moment
from rnnqc.data.statistics import FIX_POSITION_BITS, SPANS, GateAverages, PointStatistics
from rnnqc.formats.percentile import CALLS, kth_smallest_magnitudes

Array = npt.NDArray[Any]
PERCENT = 99.999
"""Brevitas' percentile of a call."""
ENOUGH = 2**16
"""The number of values from which a reduction is worthwhile."""
MOST_PARTS = 64
"""The largest number of parts that are reduced together: each has a histogram of its own for that time."""


@dataclass(frozen=True)
class Values:
    """The values of a point in one run of a cell.

    Attributes:
        array: `[T, B, K]` float32, in the order of the steps.
        valid: `[T, B]`, False in the padding; None where there is none.
        steps: Whether each step is a call; otherwise the whole is one.
        begins: Whether a run of the cell begins with it; otherwise it continues the one before.
    """

    array: Array
    valid: npt.NDArray[np.bool_] | None = None
    steps: bool = True
    begins: bool = True


class Waiting(NamedTuple):
    """Values `[T, B, K]` that are not added yet, the mask `[T, B]` of those that count, and their number."""

    array: Array
    valid: npt.NDArray[np.bool_] | None
    number: int


class NotFiniteError(ValueError):
    """A value is NaN or infinite."""


class SampleExtremes:
    """The averages over samples of the smallest and of the largest value of each."""

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = ReproducibleSum(), ReproducibleSum()

    def add(self, lows: Array, highs: Array, single: bool) -> None:
        """Adds the extremes `[runs, calls, B]` of samples; of the whole batch if a sample is a single value."""
        if single:
            lows, highs = lows.min(axis=2), highs.max(axis=2)
        self.add_runs(lows.reshape(len(lows), -1), highs.reshape(len(highs), -1))

    def add_padded(self, lows: Array, highs: Array, valid: Array, single: bool) -> None:
        """Adds the extremes `[calls, B]` of samples in one run; those that are not `valid` `[calls, B]` are padding."""
        if single:
            lows = np.where(valid, lows, np.inf).min(axis=1)
            highs = np.where(valid, highs, -np.inf).max(axis=1)
        else:
            lows, highs = lows[valid], highs[valid]
        self.add_runs(lows[None], highs[None])

    def add_runs(self, lows: Array, highs: Array) -> None:
        """Adds the extremes `[runs, samples]` of samples; those of each run are summed in float64 first."""
        self.count += lows.size
        self.low.add_all(lows.astype(np.float64).sum(axis=1))
        self.high.add_all(highs.astype(np.float64).sum(axis=1))

    def merge(self, other: SampleExtremes) -> None:
        """Adds the samples of another one."""
        self.count += other.count
        self.low.merge(other.low)
        self.high.merge(other.high)

    @property
    def averages(self) -> tuple[float, float]:
        """The averages of the smallest and of the largest values, of at least one sample."""
        return float(self.low.value) / self.count, float(self.high.value) / self.count


class PointObserver:
    """The statistics of one quantization point so far.

    Args:
        channels: Whether to keep per-channel statistics.
        moments: Whether to keep second moments.
        squares: Whether to keep only per-channel means and mean squares.
    """

    def __init__(self, channels: bool = False, moments: bool = False, squares: bool = False) -> None:
        self.channels = channels
        self.moments = moments
        self.squares_of_channels = squares
        self.shape: tuple[int, ...] = ()
        self.count = self.calls = self.rows = 0
        self.low, self.high = math.inf, -math.inf
        self.sum, self.squares = ReproducibleSum(), ReproducibleSum()
        self.samples = SampleExtremes()
        self.gates: dict[int, SampleExtremes] = {}
        self.histogram = GrowingHistogram()
        self.call_percentiles: list[float] = []
        self.call_runs: list[int] = []
        self.fix_positions: dict[tuple[int, str], Counter[int]] = {
            (bits, kind): Counter() for bits in FIX_POSITION_BITS for kind in SPANS
        }
        self.channel_max: Array | None = None
        self.channel_sum: ReproducibleSum | None = None
        self.channel_squares: ReproducibleSum | None = None
        self.moment: ReproducibleSum | None = None
        self._calls_in_runs = 0
        self._waiting: list[Waiting] = []
        self._waiting_size = 0
        self._waiting_steps = True
        self._parts: list[Array] = []

    def update(self, values: Values, number: int = 0) -> None:
        """Adds the values of one run; small runs wait for more of the same shape.

        Args:
            values: The values.
            number: Tells them from others in `first_not_finite`.

        Raises:
            NotFiniteError: A value outside padding, of this run or of one that waited, is NaN or infinite.
        """
        array, valid = values.array, values.valid
        if not (array.size if valid is None else valid.any() and array.shape[2]):
            return
        shape = array.shape[1:] if values.steps else array.shape
        if shape != self.shape:
            self._merge_shape(shape)
        self._count_calls(values)
        whole = not values.steps and len(array) > 1
        if valid is not None and not whole:
            used = np.flatnonzero(valid.any(axis=1))
            array, valid = array[used], np.asarray(valid[used])
        if self._waiting and (whole or self._waiting[0].array.shape[1:] != array.shape[1:]):
            self.flush()
        self._waiting.append(Waiting(array, valid, number))
        self._waiting_size += array.size
        self._waiting_steps = not whole
        if whole or self._waiting_size >= ENOUGH:
            self.flush()

    def update_gates(self, lows: Array, highs: Array, count: int) -> None:
        """Adds the extremes `[runs, samples]` over the same point of all `count` gates of the cell."""
        if lows.size:
            self.gates.setdefault(count, SampleExtremes()).add_runs(lows, highs)

    def _count_calls(self, values: Values) -> None:
        if self._calls_in_runs == CALLS:
            return
        used = len(values.array) if values.valid is None else int(values.valid.any(axis=1).sum())
        calls = min(used if values.steps else 1, CALLS - self._calls_in_runs)
        self._calls_in_runs += calls
        if values.begins or not self.call_runs:
            self.call_runs.append(calls)
        else:
            self.call_runs[-1] += calls

    def flush(self) -> None:
        """Ends a part, which has the waiting values; sums of a part are rounded, so this affects their last bits.

        Parts of the same shape are reduced together, when they are many.

        Raises:
            NotFiniteError: A waiting value outside padding is NaN or infinite; then all go on waiting.
        """
        if not self._waiting:
            return
        array, valid = _joined([w.array for w in self._waiting]), None
        if any(w.valid is not None for w in self._waiting):
            masks = [np.ones(w.array.shape[:2], np.bool_) if w.valid is None else w.valid for w in self._waiting]
            valid = _joined(masks)
        counted = array if valid is None else array[valid]
        if not math.isfinite(float(counted.sum(dtype=np.float64))):
            raise NotFiniteError
        self._waiting, self._waiting_size = [], 0
        if valid is not None or not self._waiting_steps or (self._parts and self._parts[0].shape != array.shape):
            self._reduce_parts()
        if valid is not None:
            self._reduce_padded(array, valid)
        elif not self._waiting_steps:
            self._reduce_whole(array)
        else:
            self._parts.append(array)
            if array.size * len(self._parts) >= ENOUGH or len(self._parts) == MOST_PARTS:
                self._reduce_parts()

    def settle(self) -> None:
        """Adds all values that wait.

        Raises:
            NotFiniteError: One outside padding is NaN or infinite.
        """
        self.flush()
        self._reduce_parts()

    @property
    def first_not_finite(self) -> int | None:
        """The number of the first waiting values of which one outside padding is NaN or infinite; None without."""
        for array, valid, number in self._waiting:
            if not np.isfinite(array if valid is None else array[valid]).all():
                return number
        return None

    def _reduce_parts(self) -> None:
        """Reduces parts of which each step is a call, without padding."""
        if not self._parts:
            return
        parts = stacked(self._parts)
        self._parts = []
        self._add_rows(parts.reshape(len(parts), -1, parts.shape[3]))
        self.samples.add(parts.min(axis=3), parts.max(axis=3), single=parts.shape[3] == 1)
        calls = parts.reshape(parts.shape[0] * parts.shape[1], -1)
        self.calls += len(calls)
        first = kth_smallest_magnitudes(calls[: CALLS - len(self.call_percentiles)], PERCENT)
        self.call_percentiles += first.astype(np.float64).tolist()
        self._vote(calls)

    def _reduce_padded(self, array: Array, valid: Array) -> None:
        """Reduces one part with padding: each step is a call, or the whole is one."""
        self._add_rows(array[valid][None])
        array = np.where(valid[:, :, None], array, np.float32(0.0))
        if not self._waiting_steps:
            mask = valid[:, :, None]
            lows = np.where(mask, array, np.inf).min(axis=(0, 2))
            highs = np.where(mask, array, -np.inf).max(axis=(0, 2))
            used = np.asarray(valid.any(axis=0))[None]
            self.samples.add_padded(lows[None], highs[None], used, array.shape[0] * array.shape[2] == 1)
            self._add_call(array[valid])
            array = array[valid.any(axis=1)]
        else:
            self.samples.add_padded(array.min(axis=2), array.max(axis=2), valid, array.shape[2] == 1)
            self.calls += len(array)
            first = CALLS - len(self.call_percentiles)
            pairs = zip(array[:first], valid[:first], strict=True)
            self.call_percentiles += [call_percentile(call[rows]) for call, rows in pairs]
        self._vote(array.reshape(len(array), -1))

    def _reduce_whole(self, array: Array) -> None:
        """Reduces one part that is one call, without padding."""
        self._add_rows(array.reshape(1, -1, array.shape[2]))
        lows, highs = array.min(axis=(0, 2)), array.max(axis=(0, 2))
        self.samples.add(lows[None, None], highs[None, None], single=array.shape[0] * array.shape[2] == 1)
        self._add_call(array)
        self._vote(array.reshape(len(array), -1))

    def _add_call(self, values: Array) -> None:
        """Adds one call."""
        self.calls += 1
        if len(self.call_percentiles) < CALLS:
            self.call_percentiles.append(call_percentile(values))

    def _add_rows(self, parts: Array) -> None:
        """Adds rows of channels, `[parts, rows, K]`; each part is summed in float64 first."""
        rows = parts.astype(np.float64)
        flat = rows.reshape(len(rows), -1)
        low, high = flat.min(axis=1), flat.max(axis=1)
        self.low, self.high = min(self.low, *low.tolist()), max(self.high, *high.tolist())
        self.count += rows.size
        self.rows += rows.shape[0] * rows.shape[1]
        squares = np.square(rows)
        self.sum.add_all(flat.sum(axis=1))
        self.squares.add_all(squares.reshape(flat.shape).sum(axis=1))
        self.histogram.add_parts(flat, np.maximum(-low, high))
        if self.channels:
            self._update_channels(rows)
        if self.squares_of_channels:
            self._update_squares(rows, squares)

    def _vote(self, calls: Array) -> None:
        found = fix_positions_of_calls(calls, FIX_POSITION_BITS, SPANS["mse"])
        for bits, kinds in found.items():
            for kind, positions in kinds.items():
                self.fix_positions[bits, kind].update(positions.tolist())

    def _update_channels(self, parts: Array) -> None:
        """Adds rows of channels, `[parts, rows, K]`."""
        size = parts.shape[2]
        largest = np.maximum(parts.max(axis=1), -parts.min(axis=1))
        if self.channel_max is None or self.channel_sum is None:
            self.channel_max, self.channel_sum = largest[0], ReproducibleSum((size,))
        self.channel_max = np.maximum.reduce([self.channel_max, *largest])
        self.channel_sum.add_all(parts.sum(axis=1))
        if self.moments:
            if self.moment is None:
                self.moment = ReproducibleSum((size, size), limbs=2)
            for rows in parts:
                for start in range(0, len(rows), ROWS):
                    self.moment.add(second_moment(rows[start : start + ROWS]))

    def _update_squares(self, parts: Array, squares: Array) -> None:
        """Adds rows of channels, `[parts, rows, K]`, and their squares."""
        if self.channel_sum is None or self.channel_squares is None:
            self.channel_sum, self.channel_squares = (ReproducibleSum((parts.shape[2],)) for _ in range(2))
        self.channel_sum.add_all(parts.sum(axis=1))
        self.channel_squares.add_all(squares.sum(axis=1))

    def merge(self, other: PointObserver) -> None:
        """Adds the values of an observer of later pieces."""
        self.settle()
        other.settle()
        self._merge_shape(other.shape)
        self.count += other.count
        self.calls += other.calls
        self.samples.merge(other.samples)
        for count, extremes in other.gates.items():
            self.gates.setdefault(count, SampleExtremes()).merge(extremes)
        self.rows += other.rows
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        for name in ("sum", "squares", "histogram"):
            getattr(self, name).merge(getattr(other, name))
        self.call_percentiles += other.call_percentiles[: CALLS - len(self.call_percentiles)]
        self.call_runs = _first(CALLS, [*self.call_runs, *other.call_runs])
        self._calls_in_runs = sum(self.call_runs)
        for key, votes in other.fix_positions.items():
            self.fix_positions[key].update(votes)
        if other.channel_max is not None:
            self.channel_max = (
                other.channel_max if self.channel_max is None else np.maximum(self.channel_max, other.channel_max)
            )
        for name in ("channel_sum", "channel_squares", "moment"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None:
                setattr(self, name, theirs)
            elif theirs is not None:
                mine.merge(theirs)

    def _merge_shape(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(map(max, self.shape, shape)) if self.shape and shape else self.shape or tuple(shape)

    @property
    def statistics(self) -> PointStatistics | None:
        """The statistics; None if there were no values."""
        self.settle()
        if not self.count:
            return None
        mean = min(max(float(self.sum.value) / self.count, self.low), self.high)
        avg_min, avg_max = self.samples.averages
        gates = next((GateAverages(n, *e.averages) for n, e in self.gates.items()), None)
        variance = float(self.squares.value) / self.count - mean * mean
        return PointStatistics(
            shape=self.shape,
            count=self.count,
            calls=self.calls,
            min=self.low,
            max=self.high,
            avg_min=avg_min,
            avg_max=avg_max,
            mean=mean,
            std=math.sqrt(max(variance, 0.0)) if self.low < self.high else 0.0,
            mean_abs_dev=self.histogram.mean_abs_dev(mean) if self.low < self.high else 0.0,
            histogram=self.histogram.histogram,
            call_percentiles=tuple(self.call_percentiles),
            call_runs=tuple(self.call_runs),
            gates=gates,
            fix_positions={
                bits: {kind: dict(sorted(self.fix_positions[bits, kind].items())) for kind in sorted(SPANS)}
                for bits in FIX_POSITION_BITS
            },
            channel_max=self.channel_max,
            channel_mean=None if self.channel_sum is None else self.channel_sum.value / self.rows,
            channel_square=None if self.channel_squares is None else self.channel_squares.value / self.rows,
            second_moment=self._second_moment,
        )

    @property
    def _second_moment(self) -> Array | None:
        """The second moment with float32 precision; None where float32 cannot hold it."""
        if self.moment is None:
            return None
        moment = self.moment.value / self.rows
        if np.abs(moment).max() > float(np.finfo(np.float32).max):
            return None
        return np.asarray(moment.astype(np.float32).astype(np.float64))


def _first(most: int, runs: list[int]) -> list[int]:
    """Limits the calls of runs to the first `most`."""
    ends = np.minimum(np.cumsum(runs, dtype=np.int64), most)
    return [int(n) for n in np.diff(ends, prepend=0) if n]


def call_percentile(values: Array) -> float:
    """Returns the 99.999 percentile of the magnitudes of a call's values."""
    return float(kth_smallest_magnitudes(values.reshape(1, -1), PERCENT)[0])


def _joined(arrays: Sequence[Array]) -> Array:
    """Joins arrays along the first axis, in C order; no copy of a single one in that order."""
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def stacked(arrays: Sequence[Array]) -> Array:
    """Stacks arrays of one shape; no copy of a single one."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
