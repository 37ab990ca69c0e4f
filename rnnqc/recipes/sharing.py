"""Merges the statistics of quantization points that share one scale, as if they were one point."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from rnnqc.data.statistics import PointStatistics
from rnnqc.errors import UsageError
from rnnqc.formats.histogram import Histogram, trimmed
from rnnqc.formats.percentile import CALLS

STEP_RANK = 2
"""Dimensions of a call that is one time step; a sequence has one more."""


def merge_for_sharing(points: Sequence[PointStatistics], cells: Sequence[str] = ()) -> PointStatistics:
    """Returns the statistics of all values of `points` together.

    Exact except for `mean_abs_dev`, which comes from the histogram if means differ, and for the averages over samples
    if some samples are shorter than others. All gates of a cell are one tensor, with one smallest and one largest value
    per sample. Calls are in the order in which one quantizer of all points would see them: run by run, cell by cell,
    step by step. There are no per-channel statistics.

    Args:
        points: The points, those of a cell in the order in which a step computes them.
        cells: The cell of each, in the order in which they run; by default all are of one.

    Raises:
        UsageError: No points.
    """
    if not points:
        raise UsageError("A group that shares a scale has no points.", supported="at least one point")
    if len(points) == 1:
        return points[0]
    counts = np.array([p.count for p in points], np.float64)
    cells = cells or [""] * len(points)
    avg_min, avg_max = _averages(points, cells)
    means = np.array([p.mean for p in points])
    mean = float(np.average(means, weights=counts))
    variance = np.average([p.std**2 + (p.mean - mean) ** 2 for p in points], weights=counts)
    histogram = _merged([p.histogram for p in points])
    if (means == means[0]).all():
        deviation = float(np.average([p.mean_abs_dev for p in points], weights=counts))
    else:
        deviation = float(np.average(np.abs(histogram.centers - mean), weights=histogram.counts))
    votes: dict[int, dict[str, Counter[int]]] = {}
    for point in points:
        for bits, kinds in point.fix_positions.items():
            for kind, found in kinds.items():
                votes.setdefault(bits, {}).setdefault(kind, Counter()).update(found)
    return PointStatistics(
        shape=max((p.shape for p in points), key=lambda shape: (len(shape), shape)),
        count=sum(p.count for p in points),
        calls=sum(p.calls for p in points),
        min=min(p.min for p in points),
        max=max(p.max for p in points),
        avg_min=avg_min,
        avg_max=avg_max,
        mean=mean,
        std=math.sqrt(float(variance)),
        mean_abs_dev=deviation,
        histogram=histogram,
        call_percentiles=tuple(itertools.islice(_in_order(points, cells), CALLS)),
        fix_positions=votes,
    )


def _averages(points: Sequence[PointStatistics], cells: Sequence[str]) -> tuple[float, float]:
    """Averages the extremes of all samples; all gates of a cell are one tensor."""
    present = Counter(zip(cells, (p.gates for p in points), strict=True))
    made: dict[object, tuple[float, float, float]] = {}
    for number, (cell, point) in enumerate(zip(cells, points, strict=True)):
        gates = point.gates
        if gates is not None and present[cell, gates] == gates.count:
            made[cell, gates] = gates.avg_min, gates.avg_max, _samples(point)
        else:
            made[number] = point.avg_min, point.avg_max, _samples(point)
    lows, highs, samples = zip(*made.values(), strict=True)
    return float(np.average(lows, weights=samples)), float(np.average(highs, weights=samples))


def _in_order(points: Sequence[PointStatistics], cells: Sequence[str]) -> Iterator[float]:
    """Yields values in the order in which a single quantizer of all points sees them, call by call."""
    runs = [_runs(p) for p in points]
    for run in range(max(map(len, runs))):
        for cell in dict.fromkeys(cells):
            own = [(p, r[run]) for p, r, c in zip(points, runs, cells, strict=True) if c == cell and run < len(r)]
            # A sequence is one call before all steps. The initial state comes before the other states.
            steps = [calls for p, calls in own if len(p.shape) <= STEP_RANK]
            yield from (v for p, calls in own if len(p.shape) > STEP_RANK for v in calls)
            longest = max(map(len, steps), default=0)
            padded = [[None] * (longest - len(calls)) + list(calls) for calls in steps]
            yield from (v for step in zip(*padded, strict=True) for v in step if v is not None)


def _runs(point: PointStatistics) -> list[tuple[float, ...]]:
    ends = [*itertools.accumulate(point.call_runs or (len(point.call_percentiles),))]
    return [point.call_percentiles[a:b] for a, b in itertools.pairwise([0, *ends])]


def _samples(point: PointStatistics) -> float:
    """Returns the number of samples: all dimensions of a call except the batch form a sample."""
    batch = point.shape[-2] if len(point.shape) > 1 else 1
    return point.count * batch / max(1, math.prod(point.shape))


def _merged(histograms: Sequence[Histogram]) -> Histogram:
    width = max(h.width for h in histograms)
    firsts, lasts, indices = [], [], []
    for h in histograms:
        shift = round(math.log2(width / h.width))
        index = (h.first + np.arange(h.counts.size)) >> shift
        indices.append(index)
        firsts.append(int(index[0]))
        lasts.append(int(index[-1]))
    first = min(firsts)
    counts = np.zeros(max(lasts) - first + 1, np.int64)
    for h, index in zip(histograms, indices, strict=True):
        np.add.at(counts, index - first, h.counts)
    return trimmed(width, first, counts)
