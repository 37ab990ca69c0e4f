"""Trials of overrides: lowered once, measured, and refused where they cannot be lowered.

What these would catch: a model that is lowered again for every question about it, a metric that fails in silence, an
override that ends the search, noise of values that are NaN in one model counted as none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace

import pytest

import rnnqc
from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Outputs
from rnnqc.errors import CompileError, UsageError
from rnnqc.lowering.reports.report import Lowered
from rnnqc.measure.metrics import MetricFunction
from rnnqc.measure.runs import Calls
from rnnqc.recipes.rules import Rule
from rnnqc.search.overrides import settings_text
from rnnqc.search.quality import Quality, Score
from rnnqc.search.trials import Bounds, Budget, Trials
from tests.generate.layers import RecurrentCase

CASE = RecurrentCase(T=6, B=2, I=4, H=8)
NARROW = Rule("*.weight", {"bits": 4})
WIDE = Rule("*.hidden", {"bits": 16})
REFUSED = Rule("*.cell_state", {"bits": 3})


@cache
def quality(metric: MetricFunction | None = None) -> Quality:
    return Quality(CASE.model(), Calls.of([CASE.feeds()], CASE.model()), metric)


class Lowering:
    """Counts how often it lowers."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, rules: Sequence[Rule]) -> Lowered:
        self.count += 1
        if REFUSED in rules:
            raise CompileError("no such format.")
        return rnnqc.lower(CASE.model(), overrides=settings_text(rules))


def test_every_combination_is_lowered_once() -> None:
    lowering = Lowering()
    trials = Trials(lowering, quality())
    first = trials.of([NARROW])
    assert trials.tried([NARROW]) is first and trials.of([NARROW]) is first
    assert trials.of([NARROW, WIDE]) is not first
    assert (lowering.count, trials.count) == (2, 2)


def test_what_cannot_be_lowered_is_tried_once_and_refused() -> None:
    lowering = Lowering()
    trials = Trials(lowering, quality())
    assert trials.tried([REFUSED]) is None and trials.tried([REFUSED]) is None
    assert lowering.count == 1
    with pytest.raises(CompileError, match="no such format"):
        trials.of([REFUSED])


def test_a_metric_that_fails_is_no_unsuitable_override() -> None:
    def once(outputs: Sequence[Outputs], inputs: Sequence[Feeds]) -> float:
        raise KeyError("labels")

    with pytest.raises(UsageError, match="the metric failed"):
        Trials(Lowering(), quality(once)).tried([NARROW])


def test_figures_are_those_of_the_model() -> None:
    """Four bits take fewer bytes and lose more; activations of 16 bits cost a second matmul and no bytes."""
    trials = Trials(Lowering(), quality())
    usual, narrow, wide = trials.of([]), trials.of([NARROW]), trials.of([WIDE])
    assert narrow.weight_bytes < usual.weight_bytes == wide.weight_bytes
    assert usual.cost == usual.weight_bytes
    assert wide.cost == round(usual.cost * (1 + CASE.H / (CASE.I + CASE.H)))
    assert narrow.score.quality < usual.score.quality < wide.score.quality
    lowered = rnnqc.lower(CASE.model())
    compared = rnnqc.compare_models(CASE.model(), lowered.proto, [CASE.feeds()])
    assert usual.score.levels == pytest.approx({c.name: c.sqnr_db for c in compared}, abs=1e-9)
    assert usual.forms == dict.fromkeys(lowered.model.cells, "fused")
    assert {"the_lstm.forward.W.weight", "the_lstm.forward.hidden"} <= usual.points.keys()


def test_a_score_takes_the_worst_output_and_the_mean_of_noise() -> None:
    score = Score({"a": 20.0, "b": 40.0})
    assert (score.quality, score.damage) == (20.0, 0.01)
    assert score.worst_db == pytest.approx(20.0)
    assert score.mean_db == pytest.approx(-10 * math.log10((1e-2 + 1e-4) / 2))
    assert Score({}).mean_db == Score({}).quality == math.inf
    assert (Score({}, 0.25).quality, Score({}, 0.25).damage) == (0.25, -0.25)


def test_values_that_are_nan_in_one_model_are_worse_than_any_noise() -> None:
    score = Score({"a": -math.inf, "b": 200.0})
    assert score.quality == -math.inf
    assert score.damage == 1e30 and Score({"a": -4000.0}).damage == 1e30
    assert score.mean_db == pytest.approx(-300.0 + 10 * math.log10(2))


def test_a_budget_keeps_some_models_for_later() -> None:
    budget = Budget(Bounds(models=3))
    assert [budget.spend(kept=1), budget.spend(kept=1), budget.spend(kept=1)] == [True, True, False]
    assert [budget.spend(), budget.spend()] == [True, False]
    assert not Budget(Bounds(seconds=0.0)).spend()


def test_a_budget_keeps_some_time_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr("rnnqc.search.trials.time", SimpleNamespace(monotonic=lambda: now))
    budget = Budget(Bounds(seconds=10.0))
    now += 6.5
    assert (budget.spend(kept_time=0.4), budget.spend(kept_time=0.3), budget.is_late) == (False, True, False)
    now += 3.5
    assert budget.is_late and not budget.spend()
