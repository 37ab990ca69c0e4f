"""The measurements of single points that a bound leaves out.

What these would catch: the last cells of a model that are left out, whatever they cost, because cells come in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

import rnnqc
from rnnqc.recipes.rules import Rule
from rnnqc.search.quality import Score
from rnnqc.search.recurrences import Recurrence, quantized_points, recurrences_of
from rnnqc.search.sensitivity import CELL, KIND, find_sensitivities, kinds_of
from rnnqc.search.trials import Bounds, Budget, Trial, Trials
from tests.generate.layers import RecurrentCase


def cells(count: int) -> dict[str, Recurrence]:
    """Returns `count` cells with the same points."""
    lowered = rnnqc.lower(RecurrentCase(T=2, B=1, I=4, H=4).model(), overrides=["*.cell_state.bits=24"])
    [held] = recurrences_of(lowered.model).values()
    return {f"c{k}": replace(held, name=f"c{k}") for k in range(count)}


class Noise:
    """Trials of a model in which every point adds some noise.

    Args:
        points: The noise of each.
    """

    def __init__(self, points: Mapping[str, float]) -> None:
        self.points = points

    def of(self, rules: Sequence[Rule]) -> Trial:
        """The result with the points that rules match in float."""
        left = {p: n for p, n in self.points.items() if not any(r.matches(p) for r in rules)}
        return Trial(Score({"y": -10 * math.log10(sum(left.values()))}), 1, 0, 1, {}, dict.fromkeys(left))


@pytest.mark.parametrize("count", [2, 5])
def test_what_costs_most_is_measured_before_a_bound_ends_it(count: int) -> None:
    """The weights of the last cell cost most, then those of the one before."""
    recurrences = cells(count)
    last, second = f"c{count - 1}", f"c{count - 2}"
    noise = dict.fromkeys(quantized_points(recurrences), 1e-07)
    noise |= {f"{last}.W.weight": 8e-4, f"{last}.R.weight": 7e-4, f"{second}.W.weight": 1e-4, f"{second}.hidden": 5e-5}
    before = len(kinds_of(recurrences)) + (count if count > 3 else 0)
    more = 4 if count == 2 else 2 * count
    trials = cast(Trials, Noise(noise))
    found = find_sensitivities(trials, trials.of([]), recurrences, Budget(Bounds(models=before + more)))
    single = [s.points for s in found.measured if s.level not in (CELL, KIND)]
    assert len(single) == more and {f"{last}.W.weight", f"{last}.R.weight", f"{second}.W.weight"} <= set(single)
    assert len(found.left) >= 8 and not {f"{last}.W.weight", f"{second}.W.weight"} & set(found.left)
    again = find_sensitivities(trials, trials.of([]), recurrences, Budget(Bounds(models=before + more)))
    assert (again.measured, again.left) == (found.measured, found.left)


@pytest.mark.parametrize(("seconds", "whole"), [(60.0, True), (30.0, False)])
def test_in_little_time_single_points_are_measured_rather_than_cells(
    seconds: float, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a bound of time after which nothing is known that an override could mend."""
    recurrences = cells(5)
    noise = dict.fromkeys(quantized_points(recurrences), 1e-7) | {f"c{k}.W.weight": 1e-4 for k in range(5)}
    taken = 0

    class Slow(Noise):
        def of(self, rules: Sequence[Rule]) -> Trial:
            nonlocal taken
            taken += 1
            return super().of(rules)

    monkeypatch.setattr("rnnqc.search.trials.time", SimpleNamespace(monotonic=lambda: float(taken)))
    trials = cast(Trials, Slow(noise))
    budget = Budget(Bounds(seconds=seconds))
    found = find_sensitivities(trials, trials.of([]), recurrences, budget)
    assert taken <= 0.6 * seconds + 1 and found.left
    assert any(s.level == CELL for s in found.measured) == whole
    assert {f"c{k}.W.weight" for k in range(5)} <= {s.points for s in found.measured}


def test_cells_take_turns_between_equals() -> None:
    recurrences = cells(3)
    trials = cast(Trials, Noise(dict.fromkeys(quantized_points(recurrences), 1e-06)))
    bounds = Bounds(models=len(kinds_of(recurrences)) + 3)
    found = find_sensitivities(trials, trials.of([]), recurrences, Budget(bounds))
    single = [s.points.partition(".")[0] for s in found.measured if s.level not in (CELL, KIND)]
    assert sorted(single) == ["c0", "c1", "c2"]
