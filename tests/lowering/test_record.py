"""The record of how a model was lowered, in the model.

What these would catch: a record of another recipe than the one that made the quantized weights, a file that says
nothing or too much, a size that is not that of the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError, UsageError
from rnnqc.ir import CELLS_KEY
from rnnqc.lowering.judge import judge
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.plan import Plan, make_plan
from rnnqc.lowering.record import record
from rnnqc.lowering.reports.report import Lowered
from rnnqc.lowering.run import run
from rnnqc.recipes.recipe_record import RECIPE_KEY
from tests.generate.layers import RecurrentCase
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm
from tests.subjects.protos import parse

CASE = RecurrentCase(T=4, dynamic_time=True)
MODELS = {
    "no layers": parse('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [n] y = Neg(x) }'),
    "quantized by Brevitas": one_cell(random_lstm(0), draw_feeds(random_lstm(0), 0, False, False)),
}


def recorded(proto: onnx.ModelProto, **options: object) -> tuple[Plan, Lowered]:
    plan = make_plan(proto, LowerOptions(**options))  # type: ignore[arg-type]
    passed = run(plan)
    return plan, record(plan, passed, judge(plan, passed))


def test_the_file_says_what_was_planned(tmp_path: Path) -> None:
    plan, lowered = recorded(CASE.model(), overrides=("*.weight.bits=6",), dims={"T": 3}, unroll=True)
    lowered.save(tmp_path / "out.onnx")
    said = {p.key: p.value for p in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert said[RECIPE_KEY] == plan.record.text
    assert CELLS_KEY in said
    assert lowered.report.bytes == (tmp_path / "out.onnx").stat().st_size


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_said_where_no_recipe_was_applied(name: str) -> None:
    _, lowered = recorded(MODELS[name], recipe=None)
    assert RECIPE_KEY not in lowered.model.metadata


def test_the_recipe_of_an_earlier_lowering_stays_in_the_form_of_now() -> None:
    first, once = recorded(CASE.model(), recipe="int16", form="qcdq")
    _, again = recorded(once.proto, recipe=None, dims={"T": 3}, unroll=True)
    text = first.record.text.replace('"form":"qcdq"', '"form":"integer"')
    assert again.model.metadata[RECIPE_KEY] == text.replace('"dims":{}', "").replace(
        '"form"', '"dims":{"T":3},"form"', 1
    ).replace('"rules"', '"rules"').replace("}]}", '}],"unroll":true}')


@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_formats_of_an_export_have_the_scales_of_channels(form: str) -> None:
    """They are in no lowered file of an integer form."""
    lstm = random_lstm(4, per_channel=True, weight_zero_point=3.0, weight_narrow=0)
    _, lowered = recorded(one_cell(lstm, draw_feeds(lstm, 4, False, False)), form=form)
    gates = [0, 3, 1, 2]  # ONNX's i, o, f, c of Brevitas' i, f, c, o
    scales = np.concatenate([np.ravel(lstm.weight[k].scale) for k in gates])
    points = {path.rpartition("forward.")[2]: point for path, point in lowered.report.points.items()}
    for key in ("W", "R"):
        point = points[f"{key}.weight"]
        assert np.array_equal(np.float32(point["scale"]), scales)
        assert (point["zero_point"], point["bits"], point["source"]) == (3, 8, "as exported")
    assert points["cell_state"]["scale"] == [float(lstm.quantizers["cell_state"].scale)]
    if form == "fused":
        _, again = recorded(lowered.proto)
        assert again.report.points == {}, "what is lowered already was not read now"


def test_a_damaged_record_is_refused() -> None:
    lowered = rnnqc.lower(CASE.model()).proto
    next(p for p in lowered.metadata_props if p.key == RECIPE_KEY).value = "{"
    with pytest.raises(UsageError, match="is damaged"):
        recorded(lowered)


def test_contents_are_said_of_files_that_have_grown() -> None:
    _, small = recorded(RecurrentCase(T=4, I=3, H=4).model())
    assert small.report.bytes > small.report.float_bytes and "function bodies" in small.report.contents
    _, large = recorded(RecurrentCase(T=4, I=64, H=256).model())
    assert large.report.bytes < large.report.float_bytes and large.report.contents == ""


@pytest.mark.parametrize("rest", ["float", "int8"])
def test_a_lowered_model_that_is_too_large_for_a_file(rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the option that makes it smaller, unless that was given."""

    def refused(*_: object) -> int:
        raise CompileError("cannot be written as one ONNX file.", action="split the model")

    monkeypatch.setattr("rnnqc.lowering.record.proto_size", refused)
    with pytest.raises(CompileError) as raised:
        recorded(CASE.model(), rest=rest)
    assert raised.value.action.endswith("split the model")
    assert ("--rest int8" in raised.value.action) == (rest == "float")
