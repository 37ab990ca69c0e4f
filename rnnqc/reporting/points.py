"""Measures the error that the format of each quantization point causes on the float model's values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.growing_histogram import GrowingHistogram
from rnnqc.calibration.observation import Observers, Runner, Task
from rnnqc.calibration.point_observer import ENOUGH, MOST_PARTS, NotFiniteError, Values, stacked
from rnnqc.data.streaming import Piece
from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import decibels
from rnnqc.formats.format import Format
from rnnqc.formats.histogram import Histogram
from rnnqc.formats.point_format import CHAINED, EMBEDDED, ROWS, PointFormat
from rnnqc.formats.rounding import round_to_integer
from rnnqc.reference.codes import dynamic_scale, quantize_rows
from rnnqc.search.findings import Bars, PointEvidence
from rnnqc.search.recurrences import Recurrence

Array = npt.NDArray[Any]
BARS = 64
"""The approximate number of bars of a histogram."""
COUNTED_BITS = 16
"""Formats with more bits than this do not count their distinct quantized values."""


def _check_finite(rows: Array) -> None:
    if not math.isfinite(float(rows.sum(dtype=np.float64))):
        raise NotFiniteError


class FormatObserver:
    """Measures one quantization point piece by piece.

    Args:
        name: `<cell>.<point>`.
        point: Its format.
        limit: Magnitude beyond which values act like the limit, for pre-activations of a saturating activation.
    """

    def __init__(self, name: str, point: PointFormat, limit: float = math.inf) -> None:
        self.name, self.point, self.limit = name, point, limit
        self.bits = point.bits or point.integers.bits
        self.rows = point.mode in (ROWS, EMBEDDED)
        self.encoding = None if self.rows else point.complete
        self.count = self.clipped = 0
        self.low, self.high = math.inf, -math.inf
        self.signal = self.noise = 0.0
        self.histogram = GrowingHistogram()
        packed = point.group_size or point.wide_channels  # group multipliers change the set of values
        counted = self.encoding is not None and self.encoding.bits <= COUNTED_BITS and not packed
        self._waiting: list[Array] = []
        self.used: npt.NDArray[np.bool_] | None = np.zeros(2**COUNTED_BITS, np.bool_) if counted else None

    def update(self, values: Values) -> None:
        """Adds the values of one run of the cell, or lets them wait for more of the same shape.

        Raises:
            NotFiniteError: A value is NaN or infinite.
        """
        array, valid = values.array, values.valid
        rows = array.reshape(-1, array.shape[2]) if valid is None else array[valid]
        if rows.size == 0:
            return
        _check_finite(rows)
        if self._waiting and self._waiting[0].shape != rows.shape:
            self._settle()
        self._waiting.append(rows)
        if rows.size * len(self._waiting) >= ENOUGH or len(self._waiting) == MOST_PARTS:
            self._settle()

    def add(self, rows: Array, stored: Array | None = None) -> None:
        """Adds values `[n,K]`. `stored`: their dequantized values, if not the nearest quantized ones.

        Raises:
            NotFiniteError: A value is NaN or infinite.
        """
        if rows.size == 0:
            return
        rows = np.asarray(rows, np.float32)
        _check_finite(rows)
        self._reduce(rows[None], stored)

    def _settle(self) -> None:
        """Adds the runs that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._reduce(np.asarray(stacked(waiting), np.float32), None)

    def _reduce(self, parts: Array, stored: Array | None) -> None:
        """Adds values `[parts,n,K]`; signal and noise of each part are summed first."""
        flat = parts.reshape(len(parts), -1)
        low, high = flat.min(axis=1).astype(np.float64), flat.max(axis=1).astype(np.float64)
        self.low, self.high = min(self.low, *low.tolist()), max(self.high, *high.tolist())
        self.histogram.add_parts(flat.astype(np.float64), np.maximum(-low, high))
        rows = np.clip(parts.reshape(-1, parts.shape[2]), np.float32(-self.limit), np.float32(self.limit))
        wide = rows.astype(np.float64)
        if self.encoding is None:
            made = _row_values(
                rows, self.bits, unsigned=not self.point.integers.signed and self.name.endswith(".input")
            )
        else:
            made = self._static(rows, self.encoding)
        if stored is not None:
            made = stored
        self.count += rows.size
        for signal, noise in zip(_powers(wide, len(parts)), _powers(wide - made, len(parts)), strict=True):
            self.signal += signal
            self.noise += noise

    def _static(self, rows: Array, encoding: Format) -> Array:
        codes = encoding.quantize(rows)
        if encoding.bits > 1:
            raw = round_to_integer(rows / encoding.scale_array(2), encoding.rounding).astype(np.float64)
            raw += encoding.zero_point_array(2)
            spare = 0 if self.limit == math.inf else 1  # the limit itself may lie one step beyond the range
            clipped = (raw < encoding.minimum - spare) | (raw > encoding.maximum + spare)
            self.clipped += int(np.count_nonzero(clipped))
        if self.used is not None:
            self.used[np.unique(codes.astype(np.int64) - encoding.minimum)] = True
        return encoding.dequantize(codes)

    @property
    def evidence(self) -> PointEvidence | None:
        """The measurements; None if there were no values."""
        self._settle()
        if not self.count:
            return None
        e, bits = self.encoding, self.bits
        single = e is not None and len(set(e.scale)) == 1 and not e.zero_points
        scale, zero_point = (float(e.scale[0]), e.zero_point) if e is not None and single else (None, None)
        low = high = used = None
        if e is not None and scale is not None and zero_point is not None:
            low, high = (scale * (c - zero_point) for c in (e.minimum, e.maximum))
            used = max(0.0, min(self.high, high) - max(self.low, low)) / (high - low)
        return PointEvidence(
            point=self.name,
            format=_worded(self.point, bits, self.rows, single),
            bits=bits,
            scale=scale,
            zero_point=zero_point,
            low=low,
            high=high,
            count=self.count,
            min=self.low,
            max=self.high,
            clipped=self.clipped / self.count,
            codes_used=None if self.used is None else int(np.count_nonzero(self.used)),
            codes=2**bits if e is None or bits == 1 else e.maximum - e.minimum + 1,
            range_used=used,
            sqnr_db=decibels(self.signal, self.noise),
            bars=_bars(self.histogram.histogram),
        )


def _powers(values: Array, parts: int) -> list[float]:
    """Returns the sum of squares of each of so many equal parts of `values` `[rows,K]`."""
    squares = np.square(values)
    return [float(squares.sum())] if parts == 1 else squares.reshape(parts, -1).sum(axis=1).tolist()


def _worded(point: PointFormat, bits: int, rows: bool, single: bool) -> str:
    kind = f"{'int' if point.integers.signed else 'uint'}{bits}"
    wide = f", {point.wide_channels:.0%} of the channels int8" if point.wide_channels else ""
    if point.group_size:
        codebook = "" if point.codebook is None else f", {point.codebook} values"
        return f"{kind} in groups of {point.group_size}{codebook}{wide}"
    if wide:
        return f"{kind}{wide}"
    if point.mode == CHAINED:
        return f"{kind}, chained"
    if point.mode == EMBEDDED:
        return f"{kind} rows of the embedding"
    return kind if single else f"{kind} per {'row' if rows else 'channel'}"


def _row_values(rows: Array, bits: int, unsigned: bool) -> Array:
    """Quantizes and dequantizes `rows` with a dynamic scale for each row."""
    if unsigned:
        codes, scale, zero_point = quantize_rows(rows, bits)
        return np.asarray((codes.astype(np.float32) - zero_point) * scale)
    scale = dynamic_scale(rows, bits)
    return np.asarray(np.rint(rows / scale) * scale)


def _bars(histogram: Histogram) -> Bars:
    """Merges pairs of bins until there are at most `BARS`."""
    width, first, counts = histogram.width, histogram.first, histogram.counts
    while counts.size > BARS:
        counts = np.concatenate([np.zeros(first % 2, np.int64), counts])
        counts = np.concatenate([counts, np.zeros(counts.size % 2, np.int64)]).reshape(-1, 2).sum(axis=1)
        width, first = 2 * width, first // 2
    return Bars(width, first, counts.tolist())


class _Runner(Runner):
    """Passes the values that it observes to `FormatObserver`s."""

    def __init__(self, task: Task, observers: Mapping[str, FormatObserver]) -> None:
        super().__init__(task)
        self._formats = observers

    def _update(self, name: str, values: Values, observers: Observers, piece: Piece) -> None:
        if name not in self._formats:
            return
        try:
            self._formats[name].update(values)
        except NotFiniteError:
            raise CompileError(
                f"call {piece.first}: the model computes a value that is NaN or infinite at {name}.",
                supported="finite numbers",
                action="check the data; only padding beyond sequence_lens may hold anything",
            ) from None


def observe_activations(
    task: Task, pieces: Iterable[Piece], recurrences: Mapping[str, Recurrence]
) -> list[PointEvidence]:
    """Runs the float model and measures every quantized activation.

    Args:
        task: What can be observed.
        pieces: The data.
        recurrences: Recurrences with the formats of their points.
    """
    observers = {}
    for value in task.values:
        held = recurrences.get(value.cell)
        if held is not None and value.point in held.quantized:
            name = f"{value.cell}.{value.point}"
            observers[name] = FormatObserver(name, held.points[value.point], held.limit(value.point))
    _Runner(task, observers).run(pieces)
    return [e for e in (o.evidence for o in observers.values()) if e is not None]


def weight_evidence(name: str, point: PointFormat, array: Array, stored: Array) -> PointEvidence | None:
    """Measures one weight matrix.

    Args:
        name: `<recurrence>.<point>`.
        point: Its format.
        array: Its float values `[K,n]`.
        stored: The dequantized values of the stored matrix.
    """
    observer = FormatObserver(name, point)
    observer.add(array, stored)
    return observer.evidence
