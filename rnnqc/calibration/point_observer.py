"""Collects the statistics of one quantization point, piece by piece; any grouping of the pieces gives the same bits."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.call_fix_positions import fix_positions_of_calls
from rnnqc.calibration.growing_histogram import GrowingHistogram
from rnnqc.calibration.reproducible import ReproducibleSum
from rnnqc.calibration.second_moment import ROWS, second_moment
from rnnqc.data.statistics import FIX_POSITION_BITS, SPANS, GateAverages, PointStatistics
from rnnqc.formats.percentile import CALLS, kth_smallest

Array = npt.NDArray[Any]
PERCENT = 99.999
"""Brevitas' percentile of a call."""
ENOUGH = 2**16
"""The number of values from which a reduction is worthwhile."""


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


class NotFiniteError(ValueError):
    """A value is NaN or infinite."""


class SampleExtremes:
    """The averages over samples of the smallest and of the largest value of each."""

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = ReproducibleSum(), ReproducibleSum()

    def add(self, lows: Array, highs: Array, valid: Array | None, single: bool) -> None:
        """Adds the extremes `[calls, B]` of samples; of the whole batch if a sample is a single value."""
        if single:
            mask = np.ones(lows.shape, bool) if valid is None else valid
            lows = np.where(mask, lows, np.inf).min(axis=1)
            highs = np.where(mask, highs, -np.inf).max(axis=1)
        elif valid is not None:
            lows, highs = lows[valid], highs[valid]
        self.count += lows.size
        self.low.add(lows.astype(np.float64).sum())
        self.high.add(highs.astype(np.float64).sum())

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
        self._waiting: list[tuple[Array, Array | None]] = []
        self._waiting_size = 0

    def update(self, values: Values) -> None:
        """Adds the values of one run; small runs wait for more of the same shape.

        Raises:
            NotFiniteError: A value outside padding is NaN or infinite.
        """
        array, valid = values.array, values.valid
        flat = array if valid is None else array[valid]
        if flat.size == 0:
            return
        if not math.isfinite(float(flat.sum(dtype=np.float64))):
            raise NotFiniteError
        self._merge_shape(array.shape[1:] if values.steps else array.shape)
        self._count_calls(values)
        if not values.steps and len(array) > 1:
            self.flush()
            self._reduce(array, valid, steps=False)
            return
        if valid is not None:
            used = np.flatnonzero(valid.any(axis=1))
            array, valid = array[used], np.asarray(valid[used])
        if self._waiting and self._waiting[0][0].shape[1:] != array.shape[1:]:
            self.flush()
        self._waiting.append((array, valid))
        self._waiting_size += array.size
        if self._waiting_size >= ENOUGH:
            self.flush()

    def update_gates(self, lows: Array, highs: Array, valid: Array | None, count: int) -> None:
        """Adds the extremes `[T, B]` of one run over the same point of all `count` gates of the cell."""
        if lows.size and (valid is None or valid.any()):
            self.gates.setdefault(count, SampleExtremes()).add(lows, highs, valid, single=False)

    def _count_calls(self, values: Values) -> None:
        used = len(values.array) if values.valid is None else int(values.valid.any(axis=1).sum())
        calls = min(used if values.steps else 1, CALLS - sum(self.call_runs))
        if values.begins or not self.call_runs:
            self.call_runs += [calls] if calls else []
        else:
            self.call_runs[-1] += calls

    def flush(self) -> None:
        """Adds the waiting values. The points in time of this affect the last bits of sums."""
        if not self._waiting:
            return
        arrays = [a for a, _ in self._waiting]
        masks = [np.ones(a.shape[:2], np.bool_) if v is None else v for a, v in self._waiting]
        padded = any(v is not None for _, v in self._waiting)
        self._waiting, self._waiting_size = [], 0
        self._reduce(np.concatenate(arrays), np.concatenate(masks) if padded else None, steps=True)

    def _reduce(self, array: Array, valid: Array | None, *, steps: bool) -> None:
        wide = (array.reshape(-1, array.shape[2]) if valid is None else array[valid]).astype(np.float64)
        low, high = float(wide.min()), float(wide.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += wide.size
        self.rows += len(wide)
        self.sum.add(wide.sum())
        self.squares.add(np.square(wide).sum())
        self.histogram.add(wide.ravel(), max(-low, high))
        if self.channels:
            self._update_channels(wide)
        if self.squares_of_channels:
            self._update_squares(wide)
        if valid is not None:
            array = np.where(valid[:, :, None], array, np.float32(0.0))
        if steps:
            self._update_calls(array, valid)
        else:
            self._update_whole(array, valid)

    def _update_calls(self, array: Array, valid: Array | None) -> None:
        """Adds steps of which each is a call."""
        lows, highs = array.min(axis=2), array.max(axis=2)
        self.samples.add(lows, highs, valid, array.shape[2] == 1)
        self.calls += len(array)
        for step in range(min(len(array), CALLS - len(self.call_percentiles))):
            call = array[step] if valid is None else np.asarray(array[step])[valid[step]]
            self.call_percentiles.append(call_percentile(call))
        self._vote(array.reshape(len(array), -1))

    def _update_whole(self, array: Array, valid: Array | None) -> None:
        """Adds all steps together as one call."""
        if valid is None:
            lows, highs, used = array.min(axis=(0, 2)), array.max(axis=(0, 2)), None
        else:
            mask = valid[:, :, None]
            lows = np.where(mask, array, np.inf).min(axis=(0, 2))
            highs = np.where(mask, array, -np.inf).max(axis=(0, 2))
            used = np.asarray(valid.any(axis=0))[None]
        self.samples.add(lows[None], highs[None], used, array.shape[0] * array.shape[2] == 1)
        self.calls += 1
        if len(self.call_percentiles) < CALLS:
            self.call_percentiles.append(call_percentile(array if valid is None else array[valid]))
        voting = array if valid is None else array[valid.any(axis=1)]
        self._vote(voting.reshape(len(voting), -1))

    def _vote(self, calls: Array) -> None:
        found = fix_positions_of_calls(calls, FIX_POSITION_BITS, SPANS["mse"])
        for bits, kinds in found.items():
            for kind, positions in kinds.items():
                self.fix_positions[bits, kind].update(positions.tolist())

    def _update_channels(self, rows: Array) -> None:
        size = rows.shape[1]
        largest = np.maximum(rows.max(axis=0), -rows.min(axis=0))
        if self.channel_max is None or self.channel_sum is None:
            self.channel_max, self.channel_sum = largest, ReproducibleSum((size,))
        else:
            self.channel_max = np.maximum(self.channel_max, largest)
        self.channel_sum.add(rows.sum(axis=0))
        if self.moments:
            if self.moment is None:
                self.moment = ReproducibleSum((size, size), limbs=2)
            for start in range(0, len(rows), ROWS):
                self.moment.add(second_moment(rows[start : start + ROWS]))

    def _update_squares(self, rows: Array) -> None:
        if self.channel_sum is None or self.channel_squares is None:
            self.channel_sum, self.channel_squares = (ReproducibleSum((rows.shape[1],)) for _ in range(2))
        self.channel_sum.add(rows.sum(axis=0))
        self.channel_squares.add(np.square(rows).sum(axis=0))

    def merge(self, other: PointObserver) -> None:
        """Adds the values of an observer of later pieces."""
        self.flush()
        other.flush()
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
        self.flush()
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
    return kth_smallest(np.abs(values), PERCENT)
