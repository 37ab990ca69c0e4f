"""Statistics of points that share a scale.

What these would catch: bins added at the wrong place when widths differ, moments averaged without the distance of the
means, votes lost.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rnnqc.calibration.point_observer import PointObserver, Values
from rnnqc.data.statistics import PointStatistics
from rnnqc.errors import UsageError
from rnnqc.formats.format_request import FormatRequest
from rnnqc.recipes.ranges import RULES, RangeRule, scale_of_statistics
from rnnqc.recipes.sharing import merge_for_sharing


def _observed(*arrays: np.ndarray) -> PointStatistics:
    observer = PointObserver(channels=True)
    for array in arrays:
        observer.update(Values(array.astype(np.float32)))
    statistics = observer.statistics
    assert statistics is not None
    return statistics


RNG = np.random.default_rng(11)
PARTS = [
    RNG.standard_normal((6, 4, 10)) * 0.01 + 0.02,
    RNG.standard_normal((6, 4, 10)) * 3.0 - 1.0,
    RNG.laplace(size=(6, 4, 10)) * 0.5,
]


def test_as_if_observed_together() -> None:
    merged = merge_for_sharing([_observed(p) for p in PARTS])
    together = _observed(*PARTS)
    for name in ("count", "calls", "min", "max", "shape", "fix_positions"):
        assert getattr(merged, name) == getattr(together, name), name
    for name in ("avg_min", "avg_max", "mean", "std"):
        assert getattr(merged, name) == pytest.approx(getattr(together, name), rel=1e-9, abs=1e-12), name
    assert merged.mean_abs_dev == pytest.approx(together.mean_abs_dev, rel=1e-3)
    a, b = merged.histogram, together.histogram
    assert (a.width, a.first, a.counts.tolist()) == (b.width, b.first, b.counts.tolist())
    assert sorted(merged.call_percentiles) == sorted(together.call_percentiles)
    assert (merged.channel_max, merged.second_moment) == (None, None)


def test_order_matters_only_to_the_percentiles_of_calls() -> None:
    points = [_observed(p) for p in PARTS]
    for rule in RULES:
        parameters = {"percentile": {"percentile": 99.0}, "n-std": {"n_std": 3.0}}.get(rule, {})
        if rule == "ema-percentile":
            continue
        grids = {
            scale_of_statistics(merge_for_sharing(order), RangeRule(rule, **parameters), FormatRequest(8))
            for order in itertools.permutations(points)
        }
        scales = [scale for scale, _ in grids]
        assert max(scales) <= min(scales) * (1 + 1e-6), rule


def test_samples_are_rows_of_calls() -> None:
    """A call of the input is the whole sequence: each of its rows counts once, each of the hidden in every step."""
    observer = PointObserver()
    observer.update(Values(PARTS[1].astype(np.float32), steps=False))
    whole, steps = observer.statistics, _observed(PARTS[2])
    assert whole is not None
    merged = merge_for_sharing([whole, steps])
    rows = np.concatenate([PARTS[1].max(axis=(0, 2)), PARTS[2].max(axis=2).ravel()]).astype(np.float32)
    assert rows.size == 4 + 24
    assert merged.avg_max == pytest.approx(float(rows.mean()), rel=1e-6)


def _ramp(runs: list[int], start: int, sequence: bool = False) -> PointStatistics:
    """A point whose n-th call has the percentile `start + n`; with `sequence` each run is one call."""
    observer, number = PointObserver(), start
    for calls in runs:
        array = np.full((calls, 2, 3), number, np.float32)
        if not sequence:
            array += np.arange(calls, dtype=np.float32)[:, None, None]
        observer.update(Values(array, steps=not sequence))
        number += 1 if sequence else calls
    made = observer.statistics
    assert made is not None
    return made


def test_all_gates_of_a_cell_are_one_tensor() -> None:
    """A sample has its least value in one of the gates; part of them are points as any others."""
    gates = np.stack(PARTS).astype(np.float32)
    extremes = gates.min(axis=(0, 3)).reshape(1, -1), gates.max(axis=(0, 3)).reshape(1, -1)
    observers = [PointObserver() for _ in PARTS]
    for observer, array in zip(observers, gates, strict=True):
        observer.update(Values(array))
        observer.update_gates(*extremes, len(PARTS))
    found = [o.statistics for o in observers]
    points = [p for p in found if p is not None]
    merged = merge_for_sharing([*points, *points], ["a"] * 3 + ["b"] * 3)
    assert (merged.avg_min, merged.avg_max) == pytest.approx((extremes[0].mean(), extremes[1].mean()), rel=1e-6)
    part = merge_for_sharing(points[:2], ["a"] * 2)
    assert part.avg_min == pytest.approx((points[0].avg_min + points[1].avg_min) / 2, rel=1e-6)
    assert part.avg_min > merged.avg_min


def test_calls_stand_as_one_quantizer_sees_them() -> None:
    """Run by run; in a run cell by cell; in a cell the sequence first, then the points of each step."""
    points = [_ramp([4, 2], 100, sequence=True), _ramp([2, 1], 200), _ramp([2, 1], 300), _ramp([2, 1], 400)]
    merged = merge_for_sharing(points, ["a", "a", "a", "b"])
    assert merged.call_percentiles == (100, 200, 300, 201, 301, 400, 401, 101, 202, 302, 402)


def test_an_initial_state_is_a_call_of_its_run() -> None:
    observer = PointObserver()
    for number in (1.0, 4.0):
        observer.update(Values(np.full((1, 2, 3), number, np.float32)))
        observer.update(Values(np.full((2, 2, 3), number + 1, np.float32), begins=False))
    hidden, others = observer.statistics, _ramp([2, 2], 10)
    assert hidden is not None
    assert merge_for_sharing([others, hidden]).call_percentiles == (1, 10, 2, 11, 2, 4, 12, 5, 13, 5)


def test_runs_end_with_the_calls_that_are_kept() -> None:
    first, second = PointObserver(), PointObserver()
    first.update(Values(np.ones((290, 1, 2), np.float32)))
    for observer in (second, second):
        observer.update(Values(np.ones((7, 1, 2), np.float32)))
    first.merge(second)
    made = first.statistics
    assert made is not None
    assert made.call_runs == (290, 7, 3)
    assert len(made.call_percentiles) == 300


def test_one_and_none() -> None:
    point = _observed(PARTS[0])
    assert merge_for_sharing([point]) is point
    with pytest.raises(UsageError, match="no points"):
        merge_for_sharing([])
