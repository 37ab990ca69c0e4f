"""The page about custom cells: highway and projection layers, in loops and unrolled.

What these would catch: a recurrence that is left out, or whose states, ranges or sensitivities are those of something
else; a model whose recurrence changes because its states are watched; an override that does not do what the page says.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.lowering.reports.report import Lowered
from rnnqc.measure.compare import compare_models
from rnnqc.reporting.evidence import Evidence
from rnnqc.reporting.gather import gather
from rnnqc.reporting.page import page
from rnnqc.reporting.subject import Options, Subject
from rnnqc.search.recurrences import recurrences_of
from rnnqc.search.trials import Bounds
from tests.generate.recurrences import RecurrenceCase
from tests.laws.parametrize import in_turn
from tests.pages.report_pages import Page
from tests.runs.sessions import Array

T = 5
Feeds = list[dict[str, Array]]
UNMEASURED = Bounds(seconds=0.0)
"""No overrides are tried."""
FORMS = ("scan", "loop", "script", "unrolled")
# A range of a tenth or less of the values.
PLANTED = {"pow2-int16": 2.0**-19, "brevitas-int8": 0.0004, "int8": 0.0004, "int16": 0.0000015}


def case(op: str, form: str, **options: Any) -> tuple[onnx.ModelProto, Feeds]:
    made = RecurrenceCase(op=op, form=form, time=T, I=12, H=16, initial="zeros", **options)
    return made.model(), [made.feeds(seed) for seed in range(4)]


def report(
    model: onnx.ModelProto, lowered: onnx.ModelProto, data: Feeds, statistics: Statistics | None, bounds: Bounds
) -> Evidence:
    names = "float.onnx", "quant.onnx"
    return gather(Subject(model, lowered, *names, 1, 1, statistics=statistics, data=data), Options(bounds=bounds))


def planted_point(lowered: Lowered, recipe: str) -> str:
    """The point whose range to plant: the values of a tanh, or a matmul operand if values have no formats."""
    [entry] = lowered.report.entries
    ending = ".hidden" if recipe in ("int8", "int16") else ".tanh.value"
    [*_, point] = [p for p in entry.points if p.endswith(ending)]
    [name] = recurrences_of(lowered.model)
    return f"{name}.{point}"


def check_planted(model: onnx.ModelProto, data: Feeds, recipe: str) -> Evidence:
    """A planted range comes first in every list, and the printed override repairs it."""
    statistics = rnnqc.calibrate(model, data)
    never = rnnqc.lower(model, recipe, stats=statistics)
    point = planted_point(never, recipe)
    planted = f"{point}.scale={PLANTED[recipe]!r}"
    bad = rnnqc.lower(model, recipe, stats=statistics, overrides=[planted])
    evidence = report(model, bad.proto, data, statistics, Bounds(30))
    assert "bit for bit" in evidence.remade
    assert evidence.points[0].point == point
    assert evidence.points[0].clipped > 0.2
    assert evidence.sensitivities[0].points == point
    assert evidence.sensitivities[0].noise_share > 0.9
    repair = evidence.repairs[0]
    words = shlex.split(Page.read(page(evidence)).commands[0])
    assert words == ["--set", *repair.overrides]
    mended = rnnqc.lower(model, recipe, stats=statistics, overrides=[*words[1:], planted])
    levels = [_level(model, m.proto, data) for m in (bad, mended, never)]
    assert levels[0] == pytest.approx(repair.worst_before, abs=1e-6)
    assert levels[1] == pytest.approx(repair.worst_after, abs=1e-6)
    assert levels[0] < levels[2] - 6.0
    # One scale for all rows is not as good as one for each.
    assert levels[1] > levels[2] - (6.0 if point.endswith(".hidden") else 1.5)
    return evidence


def _level(model: onnx.ModelProto, lowered: onnx.ModelProto, data: Feeds) -> float:
    return min(c.sqnr_db for c in compare_models(model, lowered, data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "form", "recipe"),
    [
        ("highway", "scan", "brevitas-int8"),
        ("highway", "scan", "int8"),
        ("projection", "scan", "int16"),
        pytest.param("projection", "loop", "pow2-int16", marks=pytest.mark.slow),
        pytest.param("projection", "unrolled", "brevitas-int8", marks=pytest.mark.slow),
    ],
)
def test_a_planted_range_comes_first_and_the_override_mends_it(op: str, form: str, recipe: str) -> None:
    evidence = check_planted(*case(op, form), recipe)
    [layer] = evidence.layers
    points = {p.point for p in evidence.points}
    assert all(p.startswith(f"{layer.cell}.") for p in points)
    assert sum(p.endswith(".weight") for p in points) >= 2
    assert sum(p.endswith(".value") for p in points) >= (0 if recipe in ("int8", "int16") else 12)
    assert evidence.missing.keys() == {"times"}


@pytest.mark.few(1)
@in_turn(form=FORMS, made=[({}, "pow2-int16"), ({"backwards": True}, "int8")])
def test_the_states_are_those_that_the_outputs_are_made_of(form: str, made: tuple[dict[str, Any], str]) -> None:
    """Output y is the hidden states of all steps: both have one curve, in the order of the steps."""
    options, recipe = made
    model, data = case("highway", form, outputs=("y",), **options)
    evidence = report(model, rnnqc.lower(model, recipe, calibration=data).proto, data, None, UNMEASURED)
    [layer], [output] = evidence.layers, evidence.outputs
    assert layer.curve is not None
    assert layer.curve.stops == list(range(1, T + 1))
    assert layer.sqnr_db == pytest.approx(output.sqnr_db)
    if output.curve is not None:
        turned = -1 if options.get("backwards") else 1
        np.testing.assert_allclose(layer.curve.sqnr_db, output.curve.sqnr_db[::turned], rtol=1e-12)


def test_states_are_kept_behind_the_end_of_a_sequence() -> None:
    model, data = case("highway", "loop", outputs=("y",), lengths="held")
    evidence = report(model, rnnqc.lower(model, "int8").proto, data, None, UNMEASURED)
    [layer], [output] = evidence.layers, evidence.outputs
    assert layer.sqnr_db == pytest.approx(output.sqnr_db)


@pytest.mark.slow
def test_a_stream(tmp_path: Path) -> None:
    """States carried from call to call."""
    model = RecurrenceCase(op="projection", form="scan", time=1, batch=1, outputs=("y", "final")).model()
    rng = np.random.default_rng(0)
    data: Feeds = [{"x": rng.uniform(-1, 1, (1, 1, 5)).astype(np.float32)} for _ in range(30)]
    names = [o.name for o in model.graph.output]
    state = dict(zip([i.name for i in model.graph.input][1:], names[1:], strict=True))
    statistics = rnnqc.calibrate(model, data, state=state)
    lowered = rnnqc.lower(model, "pow2-int16", stats=statistics)
    subject = Subject(model, lowered.proto, "f", "q", 1, 1, statistics=statistics, data=data, state=state)
    evidence = gather(subject, Options(bounds=Bounds(1)))
    assert "bit for bit" in evidence.remade
    [layer] = evidence.layers
    assert layer.curve is not None
    assert layer.curve.unit == "call"
    output = next(o for o in evidence.outputs if o.name == names[1])
    assert output.curve is not None
    assert layer.curve.sqnr_db == pytest.approx(output.curve.sqnr_db)


@pytest.mark.slow
def test_both_kinds_on_one_page(tmp_path: Path) -> None:
    """An LSTM behind a recurrence of other equations: both in every section."""
    model, data = case("highway", "scan", outputs=("y",))
    rng = np.random.default_rng(0)
    for name, width in (("lstm.W", 16), ("lstm.R", 8)):
        array = rng.normal(0, 0.5, (1, 32, width)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model.graph.node.append(onnx.helper.make_node("LSTM", ["y", "lstm.W", "lstm.R"], ["z"], name="lstm", hidden_size=8))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [T, 1, None, 8]))
    evidence = report(model, rnnqc.lower(model, "int8").proto, data, None, Bounds(200))
    assert "bit for bit" in evidence.remade
    names = {layer.cell for layer in evidence.layers}
    assert len(names) == 2
    assert "lstm.forward" in names
    for name in names:
        assert any(p.point.startswith(f"{name}.") for p in evidence.points)
        assert any(s.points.startswith(f"{name}.") for s in evidence.sensitivities)
    assert evidence.unmeasured == []


def test_what_is_multiplied_and_weights_are_told_apart() -> None:
    """Each of them alone may stay float in form qcdq; 16-bit weights would exclude integer matmuls with row scales."""
    model, data = case("highway", "scan")
    few = ["*.weight.bits=3"]
    evidence = report(model, rnnqc.lower(model, "int8", overrides=few).proto, data, None, Bounds(30))
    groups = {s.points.rpartition(".")[2]: s for s in evidence.sensitivities if s.level == "group"}
    assert groups["weight"].gain_db > 20 > 1 > groups["hidden"].gain_db
    assert all(s.also == [] for s in evidence.sensitivities)
    [repair] = evidence.repairs
    assert repair.overrides == [f"{groups['weight'].points}.bits=8"]
    assert repair.forms == []


@pytest.mark.slow
def test_an_override_that_takes_the_integers_from_products_says_so() -> None:
    model, data = case("highway", "scan")
    evidence = report(model, rnnqc.lower(model, "int16").proto, data, None, Bounds(60))
    [repair] = evidence.repairs
    assert repair.overrides[0].endswith(".weight.bits=none")
    [entry] = rnnqc.lower(model, "int16", overrides=repair.overrides).report.entries
    assert entry.status == "float"
    assert repair.forms == ["float"]
    assert "The form is then float" in Page.read(page(evidence)).text


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scan", "script"])
def test_times_of_loops(form: str) -> None:
    """Alone, with the states and numbers of trips that they have."""
    model, data = case("projection", form)
    lowered = rnnqc.lower(model, "int8")
    subject = Subject(model, lowered.proto, "float.onnx", "quant.onnx", 1, 1, data=data)
    [time] = gather(subject, Options(bounds=Bounds(1), times=True)).times
    assert time.op in ("Scan", "Loop")
    assert time.node == lowered.report.entries[0].node
    assert min(time.float_us, time.stock_us, time.native_us or 0.0) > 0.0
