"""The overrides that a report shows, and their order.

What these would catch: a small change that helps much, folded away behind one that takes back what the recipe is for; a
starting value that contradicts the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rnnqc
from rnnqc.recipes.recipe import load_recipe
from rnnqc.recipes.rules import Rule
from rnnqc.reporting.evidence import Evidence
from rnnqc.reporting.report import ErrorReport
from rnnqc.search.candidates import Candidates
from rnnqc.search.findings import Repair, Sensitivity
from rnnqc.search.quality import Score
from rnnqc.search.recurrences import quantized_points, recurrences_of
from rnnqc.search.repairs import Repairs
from rnnqc.search.trials import Bounds, Budget, Trial, Trials
from tests.generate.layers import RecurrentCase

POINTS = ("a.W.weight", "a.R.weight", "a.input", "b.W.weight", "b.R.weight", "b.input")
BEFORE = Trial(Score({"y": 30.0}), 1000, 0, 1000, {}, dict.fromkeys(POINTS))


def repair(override: str, gain: float, size: int, read: int | None = None, **more: Any) -> Repair:
    """A repair that costs some bytes of the file, and some bytes to read."""
    points, level = override.rpartition(".")[0], 30.0 + gain
    reads = (1000, 1000 + (size if read is None else read))
    return Repair(points, [override], "why", 30.0, level, 30.0, level, 1000, 1000 + size, read_bytes=reads, **more)


WHOLE = repair("*.weight.bits=8", 12.6, 690, members=4)
ONE = repair("a.W.weight.bits=6", 1.7, 20)
WIDE = repair("a.input.bits=16", 2.0, 0, read=250)
FREE = repair("b.input.rounding=half_even", 0.5, 0)


def apart(*repairs: Repair) -> list[Repair]:
    candidates = cast(Any, SimpleNamespace(recurrences={}))
    return Repairs(cast(Trials, None), BEFORE, candidates, Budget(Bounds())).apart(repairs)


def test_what_gains_most_for_each_byte_comes_first_and_hides_nothing_better() -> None:
    made = apart(WHOLE, WIDE, ONE, FREE)
    assert [r.points for r in made] == [FREE.points, ONE.points, WHOLE.points, WIDE.points]
    assert not any(r.inside for r in made), "more gain for more bytes is another offer"


def test_what_gains_no_more_for_as_many_bytes_is_inside() -> None:
    dear = repair("a.W.weight.bits=8", 1.9, 40)
    part = repair("*.rounding=half_even", 5.0, 0, members=6)
    found = {r.overrides[0]: r.inside for r in apart(ONE, dear, part, FREE)}
    assert found == {part.overrides[0]: "", FREE.overrides[0]: "*", ONE.overrides[0]: "", dear.overrides[0]: ONE.points}
    assert [r.inside for r in apart(ONE, replace(dear, points="*.W.weight"))] == ["", ONE.points]
    assert [r.inside for r in apart(ONE, repair("a.W.weight.bits=8", 3.0, 40))] == ["", ""]


def test_what_takes_the_integer_form_comes_last_and_never_beside_another() -> None:
    floats = repair("a.W.weight.bits=none", 9.0, 0, forms=["qcdq"])
    alone = repair("b.input.bits=none", 9.0, 0, forms=["qcdq"])
    assert [(r.points, bool(r.inside)) for r in apart(floats, alone, ONE)] == [
        (ONE.points, False), (floats.points, True), (alone.points, False)
    ]  # fmt: skip


class Lowering:
    """Trials in which more bits for one point win 5 dB; each takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0
        monkeypatch.setattr("rnnqc.search.trials.time", SimpleNamespace(monotonic=lambda: float(self.seconds)))

    def tried(self, rules: Sequence[Rule]) -> Trial:
        self.seconds += 1
        return replace(BEFORE, score=Score({"y": 35.0}))


def test_no_override_is_measured_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a bound of time that holds for sensitivities alone; overrides that are left out in silence."""
    [held] = recurrences_of(rnnqc.lower(RecurrentCase(T=2, B=1, I=4, H=4).model(), "w4a8").model).values()
    candidates = Candidates(load_recipe("w4a8"), {held.name: held}, {}, calibrated=False)
    costly = [Sensitivity(f"{held.name}.{p}", 1, "point", 40.0, 10.0, 0.9) for p in ("W.weight", "R.weight", "input")]
    for seconds, count in ((2, 2), (0, 0)):
        lowering = Lowering(monkeypatch)
        told: list[int] = []
        before = replace(BEFORE, points=dict.fromkeys(quantized_points({held.name: held})))
        budget = Budget(Bounds(seconds=seconds))
        made = Repairs(cast(Trials, lowering), before, candidates, budget, told.append)
        few = made.of_few(costly)
        assert lowering.seconds == len(told) == count
        assert made.untried and all(any(o.startswith(s.points) for s in costly) for o in made.untried)
        assert made.together(few) is None and lowering.seconds == count


def evidence(*repairs: Repair) -> Evidence:
    return Evidence("f.onnx", "q.onnx", {}, {}, {}, repairs=list(repairs))


def test_the_cheapest_and_the_best_are_printed() -> None:
    assert evidence().suggestions == []
    assert evidence(ONE).suggestions == ["30.0 -> 31.7 dB and weights 1000 B -> 1020 B with --set a.W.weight.bits=6"]
    cheapest, best = evidence(FREE, ONE, WHOLE).suggestions
    assert cheapest == "30.0 -> 30.5 dB with --set b.input.rounding=half_even"
    assert best.startswith("30.0 -> 42.6 dB and weights") and best.endswith("--set '*.weight.bits=8'")
    assert "and matmuls that read 1000 B -> 1250 B" in evidence(WIDE).suggestions[0]
    headline = ErrorReport(evidence(FREE, ONE, WHOLE)).headline
    assert cheapest in headline and best in headline


def test_where_there_are_several_outputs_the_worst_stands_first_as_in_the_verdict() -> None:
    several = replace(ONE, worst_before=28.0, worst_after=29.0)
    [text] = evidence(several).suggestions
    assert text.startswith("worst output 28.0 -> 29.0 dB, all outputs together 30.0 -> 31.7 dB, and weights")
