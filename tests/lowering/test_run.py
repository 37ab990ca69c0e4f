"""The passes of a plan.

What these would catch: sizes of generated inputs that are searched for twice, a measurement on other inputs than
without what is shared, a cell of Brevitas that a later lowering takes for one of rnnqc.
"""

from __future__ import annotations

from typing import Any

import pytest

import rnnqc
from rnnqc.ir import CELL_TAG, info
from rnnqc.lowering import judge, recovery
from rnnqc.lowering import run as running
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.plan import make_plan
from rnnqc.lowering.run import run
from rnnqc.measure.feeds import FeedGenerator
from rnnqc.passes import Instrument, Pass
from rnnqc.passes.base import PassResult
from rnnqc.passes.recover.loops import loop_layers
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm

LSTM = RecurrentCase(T=4, dynamic_time=True)
LOOP = RecurrenceCase(form="scan", dynamic_time=True, batch="B")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FeedGenerator]:
    """The generators that a lowering makes."""
    found: list[FeedGenerator] = []

    class Counted(FeedGenerator):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    for module in (recovery, running):
        monkeypatch.setattr(module, "FeedGenerator", Counted)
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("model", "options", "count"),
    [
        (LSTM, {}, 0),
        (LSTM, {"verify": True}, 1),
        (LSTM, {"measure": True}, 1),
        (LSTM, {"verify": True, "measure": True}, 1),
        (LOOP, {}, 1),
        (LOOP, {"verify": True}, 1),
        (LOOP, {"measure": True}, 1),
        (LOOP, {"verify": True, "measure": True}, 1),
    ],
)
def test_sizes_are_found_once(
    model: RecurrentCase | RecurrenceCase, options: dict[str, bool], count: int, made: list[FeedGenerator]
) -> None:
    recipe = "weight-only-int8" if "verify" in options else "int8"  # verified in a twentieth of the time
    rnnqc.lower(model.model(), recipe, **options)  # type: ignore[arg-type]
    assert len(made) == count


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"verify": True}])
def test_shared_inputs_are_those_of_a_generator_of_its_own(options: dict[str, bool]) -> None:
    """Every level of the measurement has the same SQNR, to the last bit, as with nothing shared."""
    proto = LOOP.model()
    shared = rnnqc.lower(proto, measure=True, **options).report.sqnr_levels  # type: ignore[arg-type]
    plan = make_plan(proto, LowerOptions(measure=True))
    passed = run(plan)
    assert passed.reference is not None and passed.reference.known is not None
    passed.reference.known = passed.reference.readable = None
    assert judge.judge(plan, passed).sqnr_levels == shared
    assert len(shared) > 1


def test_a_recovery_that_is_undone_shares_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that its generator has read is not the one that is lowered."""
    monkeypatch.setattr(loop_layers, "flipped", lambda b, value, axis, name: value)
    case = RecurrenceCase(form="scan", backwards=True)
    passed = run(make_plan(case.model(), LowerOptions(measure=True)))
    assert any("does not compute the same" in text for text in passed.recovery_warnings)
    assert passed.reference is not None and passed.reference.known is None and passed.reference.readable is not None


def test_all_passes_are_seen_and_timed() -> None:
    seen: list[tuple[str, bool]] = []

    class Watch(Instrument):
        def after_pass(self, pass_: Pass, model: Any, result: PassResult) -> None:
            seen.append((pass_.info.name, result.modified))

    plan = make_plan(LSTM.model(), LowerOptions())
    passed = run(plan, [Watch()])
    names = [p.info.name for p in (*plan.normal_form, *plan.passes, *plan.rest_passes, *plan.last_passes)]
    assert seen == [(n, r.modified) for n, r in zip(names, passed.results, strict=True)]
    assert [n for n, _ in passed.seconds] == names
    assert (passed.verifier.checks, passed.reference) == ([], None)


@pytest.mark.parametrize("form", ["fused", "qcdq"])
def test_cells_of_brevitas_are_released_where_rnnqc_cannot_go_on(form: str) -> None:
    """In form qcdq zero points are added before rounding; a later lowering has to leave that alone."""
    lstm = random_lstm(0)
    passed = run(make_plan(one_cell(lstm, draw_feeds(lstm, 0, False, False)), LowerOptions(recipe=None, form=form)))
    tagged = {
        info(n).metadata[CELL_TAG] for g in passed.model.graphs() for n in g.nodes if CELL_TAG in info(n).metadata
    }
    assert list(passed.cells) == ["cell_node.forward"]
    assert set(passed.model.cells) == tagged == ({"cell_node.forward"} if form == "fused" else set())
