"""The decisions of a lowering before it runs.

What these would catch: a plan that changes the model already, a second reading that is another model, calibration data
that is used up before passes are verified on it, a model whose own quantization is replaced without being asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError, UsageError
from rnnqc.ir import Model
from rnnqc.lowering import inspection
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.plan import make_plan
from rnnqc.lowering.run import run
from rnnqc.lowering.verification_feeds import Remembered
from rnnqc.passes import Pass
from rnnqc.passes.pipeline import default_passes, exported_passes
from rnnqc.recipes.recipe import load_recipe
from tests.generate.layers import RecurrentCase
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm
from tests.subjects.protos import parse

CASE = RecurrentCase(T=4, dynamic_time=True)


def content(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)


def names(passes: Sequence[Pass]) -> list[str]:
    return [p.info.name for p in passes]


def test_options_are_the_arguments_of_lower() -> None:
    """One that is missing here would be an argument that does nothing."""
    arguments = {*inspect.signature(rnnqc.lower).parameters, "statistics"} - {
        "model",
        "stats",
        "instruments",
        "progress",
    }
    assert {f.name for f in fields(LowerOptions)} == arguments


def test_nothing_runs() -> None:
    """Model and caller's ModelProto are as they were."""
    proto = CASE.model()
    before = content(proto)
    plan = make_plan(proto, LowerOptions())
    assert content(proto) == before
    assert content(plan.model.proto) == content(Model.load(proto).proto)
    assert plan.model.provenance == []


def test_the_model_is_read_anew_as_it_was() -> None:
    plan = make_plan(CASE.model(), LowerOptions(dims={"T": 3}))
    before = content(plan.model.proto)
    assert plan.read().proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    run(plan)
    assert content(plan.model.proto) != before
    assert content(plan.read().proto) == before


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        ({"recipe": None}, None),
        ({"recipe": None, "form": "qcdq"}, None),
        ({"recipe": "int8"}, "int8"),
        ({"recipe": None, "overrides": ("*.weight.bits=4",)}, "int8"),
    ],
)
def test_own_quantization_is_kept_unless_another_is_asked_for(options: dict[str, Any], recipe: str | None) -> None:
    lstm = random_lstm(0)
    plan = make_plan(one_cell(lstm, draw_feeds(lstm, 0, False, False)), LowerOptions(**options))
    passes = names([*plan.normal_form, *plan.passes])
    assert plan.keeps_own == (recipe is None)
    if recipe is None:
        assert passes == names(exported_passes(plan.form, False))
    else:
        assert passes == names(default_passes(load_recipe(recipe), plan.form, False))


def test_a_float_model_gets_the_default_recipe() -> None:
    plan = make_plan(CASE.model(), LowerOptions(recipe=None))
    assert (plan.recipe.name, plan.form, plan.keeps_own, plan.is_asked_for) == ("int8", "fused", False, False)


def test_calibration_data_can_be_read_again_where_passes_are_verified() -> None:
    feeds = [CASE.replace(seed=k).feeds() for k in range(3)]
    plain = make_plan(CASE.model(), LowerOptions(calibration=(f for f in feeds)))
    assert not isinstance(plain.options.calibration, Remembered)
    plan = make_plan(CASE.model(), LowerOptions(calibration=(f for f in feeds), verify=True))
    assert isinstance(plan.options.calibration, Remembered)
    assert [id(f) for f in plan.options.calibration.first] == [id(f) for f in feeds]
    assert plan.record.statistics == plain.record.statistics != ""


def test_what_cannot_be_lowered_is_refused_before_a_calibration() -> None:
    """A calibration may take minutes."""

    def never() -> Iterator[dict[str, Any]]:
        pytest.fail("data was read")
        yield {}

    lowered = rnnqc.lower(CASE.model()).proto
    with pytest.raises(UsageError, match="is lowered already, to form fused"):
        make_plan(lowered, LowerOptions(form="qcdq", calibration=never()))


def test_the_record_is_of_recipe_form_and_data() -> None:
    options = {"recipe": "int8-static", "overrides": ("*.weight.bits=6",), "dims": {"T": 3}, "unroll": True}
    statistics = rnnqc.calibrate(CASE.model(), [CASE.feeds()])
    record = make_plan(CASE.model(), LowerOptions(**options, statistics=statistics)).record  # type: ignore[arg-type]
    assert (record.recipe.name, record.recipe.overrides, record.form) == ("int8-static", 1, "integer")
    assert (record.unroll, record.dims) == (True, {"T": 3})
    assert record.statistics != make_plan(CASE.model(), LowerOptions()).record.statistics == ""


def test_outputs_that_no_input_influences() -> None:
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y, float[2] z) <float[2] k = {1, 2}>'
    proto = parse(f"{head} {{ y = Relu(x) z = Relu(k) }}")
    assert list(make_plan(proto, LowerOptions()).constant_outputs) == ["z"]
    del proto.graph.output[0]
    with pytest.raises(CompileError, match="nothing in the model depends on its inputs"):
        make_plan(proto, LowerOptions())


@pytest.mark.parametrize(
    ("ratio", "mode", "told"), [(0.5, "true", True), (0.5, "false", False), (0.0, "true", False), (0.5, "m", False)]
)
def test_dropout_in_training_mode_is_told(ratio: float, mode: str, told: bool) -> None:
    """With a constant mode; one that is an input is the caller's."""
    inputs = "float[2] x, bool m" if mode == "m" else "float[2] x"
    constants = f"float r = {{{ratio}}}" + ("" if mode == "m" else f", bool k = {{{int(mode == 'true')}}}")
    head = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[2] y) <{constants}>'
    proto = parse(f"{head} {{ [drop] y = Dropout(x, r, {'m' if mode == 'm' else 'k'}) }}")
    lowered = rnnqc.lower(proto, measure=False).report
    found = [w for w in lowered.warnings if "(node 'drop'): training_mode is true" in w and "model.eval()" in w]
    assert bool(found) == told
    assert bool(inspection.inspect(proto).dropouts) == told


@pytest.mark.parametrize(("form", "asked"), [("fused", "integer"), ("fused", "qcdq"), ("integer", "qcdq")])
def test_passes_only_go_forward(form: str, asked: str) -> None:
    lowered = rnnqc.lower(CASE.model(), form=form).proto
    with pytest.raises(UsageError, match=f"is lowered already, to form {form}"):
        make_plan(lowered, LowerOptions(form=asked))
