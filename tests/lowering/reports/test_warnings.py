"""Warnings of a lowering.

What these would catch: a warning that nobody is told, one without a cause, an order that changes from run to run.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import rnnqc
from rnnqc.codes import Code, told
from rnnqc.lowering.judge import judge
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.plan import make_plan
from rnnqc.lowering.reports.entries import make_entries
from rnnqc.lowering.reports.report import Entry, Report
from rnnqc.lowering.reports.warnings import warnings_of
from rnnqc.lowering.run import run
from rnnqc.passes.verify.pass_comparison import NOT_COMPARED, OWN_LOSS
from tests.generate.layers import RecurrentCase
from tests.subjects.protos import parse

CASE = RecurrentCase(T=4)
RECIPE = """
name = "mine"
base = "int8"
[[rule]]
points = "*.wieght"
bits = 4
"""


def warned(proto: onnx.ModelProto, **options: object) -> list[str]:
    plan = make_plan(proto, LowerOptions(**options))  # type: ignore[arg-type]
    passed = run(plan)
    report = judge(plan, passed)
    assert warnings_of(plan, passed, report.entries) == report.warnings
    return report.warnings


def test_nothing_to_warn_of() -> None:
    assert warned(CASE.model()) == []


def test_overrides_without_effect_and_overrides_that_clip() -> None:
    """In this order."""
    statistics = rnnqc.calibrate(CASE.model(), [CASE.feeds()])
    overrides = ("*.W.weight.bits=8", "*.input.scale=0.001")
    idle, clipped = warned(CASE.model(), recipe="int8-static", overrides=overrides, statistics=statistics)
    assert "override '*.W.weight.bits=8' changes nothing: the_lstm.forward.W.weight: the recipe says so" in idle
    assert "override '*.input.scale=0.001' clips the calibration data at 'the_lstm.forward.input'" in clipped


def test_an_override_behind_another_that_matches() -> None:
    """The earlier override is named, unless the later one still applies to some point."""
    statistics = rnnqc.calibrate(CASE.model(), [CASE.feeds()])

    def told(*overrides: str) -> list[str]:
        return warned(CASE.model(), recipe="pow2-int8-floor", overrides=overrides, statistics=statistics)

    (idle,) = (t for t in told("*.same_as=none", "*.bias.same_as=input_product") if "changes nothing" in t)
    assert "'*.bias.same_as=input_product' changes nothing: the_lstm.forward.bias: '*.same_as=none' stands in" in idle
    assert not any("changes nothing" in t for t in told("*.bias.same_as=input_product", "*.same_as=none"))
    (idle,) = (t for t in told("*.W.weight.bits=4", "*.weight.bits=8") if "changes nothing" in t)
    assert "'*.weight.bits=8' changes nothing: the_lstm.forward.R.weight: the recipe says so already" in idle


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_a_bias_that_saturates(op: str) -> None:
    """Its scale is the product of two others: 16 bits of two scales of 16 bits reach 1e-4, and the bias is gone."""
    case = CASE.replace(op=op, linear_before_reset=1) if op == "GRU" else CASE
    statistics = rnnqc.calibrate(case.model(), [case.feeds()])

    def of_bias(*overrides: str) -> list[str]:
        found = warned(case.model(), recipe="brevitas-int8", overrides=overrides, statistics=statistics)
        return [w for w in found if "bias saturates" in w]

    text = of_bias("*.bits=16")[0]
    assert "its bias saturates: 16 bits at its scale reach +-" in text and ".bias.bits=32'" in text
    assert not of_bias() and not of_bias("*.bias.bits=32", "*.bits=16")


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("int8", "*.R.weight.limit=0.05", 1),
        ("int8", "*.W.weight.scale=0.0005", 1),
        ("weight-only-int8", "*.weight.limit=0.05", 1),
        ("int8", "*.weight.range=mse", 0),
        ("int8", "*.weight.bits=4", 0),
        ("w4a8", "*.weight.bits=2", 0),
    ],
)
def test_weights_that_saturate(recipe: str, override: str, said: int) -> None:
    """A range that cuts them off, in place of one that rounds them coarsely."""
    found = [w for w in warned(CASE.model(), recipe=recipe, overrides=(override,)) if "its weights saturate" in w]
    assert len(found) == said
    assert all("Found: values up to" in w and "Resolution: leave out what gives them a scale" in w for w in found)


@pytest.mark.parametrize(
    ("form", "overrides", "said"), [("qcdq", (), 1), ("integer", (), 0), ("qcdq", ("*.activation.table=exact",), 0)]
)
def test_tables_that_a_form_does_not_have(form: str, overrides: tuple[str, ...], said: int) -> None:
    statistics = rnnqc.calibrate(CASE.model(), [CASE.feeds()])
    found = warned(CASE.model(), recipe="pow2-int16", overrides=overrides, statistics=statistics, form=form)
    assert sum("in place of the recipe's tables" in text for text in found) == said


@pytest.mark.parametrize(
    ("form", "overrides", "said"),
    [
        ("integer", ("*.weight.bits=6",), 1),
        ("integer", ("*.R.weight.bits=4",), 1),
        ("integer", ("*.weight.bits=7",), 0),
        ("integer", ("*.weight.bits=4", "*.weight.wide_channels=0.1"), 0),  # a byte in every form
        ("fused", ("*.weight.bits=4",), 0),
    ],
)
def test_weights_of_few_bits_that_take_a_byte(form: str, overrides: tuple[str, ...], said: int) -> None:
    found = warned(CASE.model(), overrides=overrides, form=form)
    assert sum("as int8, a byte each" in text for text in found) == said


def test_rules_of_a_recipe_file_that_match_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE)
    (text,) = warned(CASE.model(), recipe=str(tmp_path / "mine.toml"))
    assert text == "recipe 'mine': no quantization point matches '*.wieght'. [idle-rule]"


def test_outputs_that_no_input_influences() -> None:
    proto = CASE.model()
    proto.graph.output.append(onnx.helper.make_tensor_value_info("constant", onnx.TensorProto.FLOAT, [1]))
    proto.graph.node.add(op_type="Identity", input=["one"], output=["constant"])
    proto.graph.initializer.append(onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0]))
    (text,) = warned(proto)
    assert text.startswith("no input has an influence on output 'constant'")


def test_a_lowered_model_under_another_recipe() -> None:
    lowered = rnnqc.lower(CASE.model()).proto
    assert warned(lowered, recipe=None) == warned(lowered, recipe="int8") == []
    plan = make_plan(lowered, LowerOptions(recipe="int16"))
    passed = run(plan)
    (text,) = warnings_of(plan, passed, make_entries(passed, plan.form))
    assert "recipe 'int16' does not apply to 1 recurrent node(s), the first 'the_lstm'" in text
    assert text.endswith("Resolution: lower the float model that it was made from. [lowered-before]")
    with pytest.raises(rnnqc.CompileError, match="'int16' does not apply"):
        judge(plan, passed)  # nor to anything else


def test_everything_is_told() -> None:
    """Nodes that stay float, warnings, comparisons that are missing, and a measurement that is; each once."""
    stays = Entry("b", "GRU", "float", reason="no.")
    checks = [("cleanup", f"{NOT_COMPARED}: it does not run")] * 2 + [("insert-qcdq", f"{OWN_LOSS} 1 dB")]
    checks += [("calibration data", f"{NOT_COMPARED}: sizes"), ("generated data", f"{NOT_COMPARED}: none")]
    report = Report(
        "m", "int8", "fused", [stays], warnings=[told(Code.STEP, "a.")], checks=checks, unmeasured="no data."
    )
    assert list(report.told()) == [
        ("", f"{stays.explanation} [layer]"),
        ("", "a. [step]"),
        ("--verify", "the models were not compared on the calibration data, only on generated data: sizes [verify]"),
        ("--verify", f"pass 'cleanup' was {NOT_COMPARED}: it does not run. [verify]"),
        ("--verify", "the models were not compared on generated data: none [verify]"),
        ("--verify", f"pass 'insert-qcdq': {OWN_LOSS} 1 dB. [verify]"),
        ("", "the SQNR was not measured: no data. [not-measured]"),
    ]


@pytest.mark.parametrize(("measured", "is_bounded", "count"), [(False, False, 1), (False, True, 0), (True, True, 1)])
def test_a_missing_measurement_is_an_error_where_a_bound_is_asked_for(
    measured: bool, is_bounded: bool, count: int
) -> None:
    report = Report("m", "int8", "fused", [Entry("a", "LSTM", "lowered")], unmeasured="no data.")
    report.sqnr_db = {"y": 30.0} if measured else {}
    assert len(list(report.told(is_bounded))) == count


def test_a_model_without_layers() -> None:
    proto = parse('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [n] y = Neg(x) }')
    assert list(rnnqc.lower(proto).report.told()) == [
        ("", "the model has no recurrent layer; nothing was quantized. [no-layer]")
    ]


def test_rules_of_a_layer_that_they_leave_float_do_match(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE.replace("*.wieght", "the_lstm.forward.W.weight"))
    found = warned(CASE.model(), recipe=str(tmp_path / "mine.toml"), overrides=["the_lstm.*.bits=none"])
    assert not [text for text in found if "no quantization point matches" in text]
