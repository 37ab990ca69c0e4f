"""The verdict on a lowering.

What these would catch: a verdict that changes the model, a node that is neither lowered nor explained, a check that
does not stop the lowering, a measurement that nobody asked for.
"""

from __future__ import annotations

import math

import onnx
import pytest

from rnnqc.errors import CompileError
from rnnqc.lowering.failures import first_failure
from rnnqc.lowering.judge import judge
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.plan import make_plan
from rnnqc.lowering.reports.report import Report
from rnnqc.lowering.run import run
from tests.generate.layers import RecurrentCase, stacked_model

CASE = RecurrentCase(T=4)


def judged(proto: onnx.ModelProto, **options: object) -> Report:
    plan = make_plan(proto, LowerOptions(**options))  # type: ignore[arg-type]
    return judge(plan, run(plan))


def weights_as_input() -> onnx.ModelProto:
    """Two layers; the weights of the first are an input."""
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    name = proto.graph.node[0].input[1]
    (tensor,) = (t for t in proto.graph.initializer if t.name == name)
    proto.graph.initializer.remove(tensor)
    proto.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(tensor.dims)))
    return proto


def test_the_model_stays_as_it_is() -> None:
    plan = make_plan(CASE.model(), LowerOptions(measure=True))
    passed = run(plan)
    before = passed.model.proto.SerializeToString(deterministic=True)
    report = judge(plan, passed)
    assert report.sqnr_db and report.bytes == 0
    assert passed.model.proto.SerializeToString(deterministic=True) == before


def test_every_node_is_lowered_or_explained() -> None:
    report = judged(weights_as_input())
    assert [e.status for e in report.entries] == ["float", "lowered"]
    assert "W is not constant" in report.entries[0].explanation
    assert report.is_changed
    assert [e.node for e in report.entries_not_lowered] == [report.entries[0].node]


def test_strict() -> None:
    judged(CASE.model(), strict=True)
    with pytest.raises(CompileError, match=r"stay float: .*W is not constant"):
        judged(weights_as_input(), strict=True)


def test_a_recipe_that_needs_data() -> None:
    """Without data nothing is lowered; with given scales everything is."""
    with pytest.raises(CompileError, match="calibration data"):
        judged(CASE.model(), recipe="int8-static")
    assert judged(CASE.model(), recipe="int8-static", overrides=("*.input.scale=0.03125",)).is_changed


@pytest.mark.parametrize(("measure", "patience", "levels"), [(False, math.inf, 0), (True, math.inf, 5), (True, 0.0, 1)])
def test_measurement(measure: bool, patience: float, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnnqc.lowering.measurement.LEAST_SECONDS", 0.0)
    report = judged(RecurrentCase(T=4, dynamic_time=True).model(), measure=measure, patience=patience)
    assert len(report.sqnr_levels) == levels
    assert bool(report.unmeasured) == (levels == 1)


def test_what_was_lowered_before_is_measured_with_endless_patience_alone() -> None:
    import rnnqc

    lowered = rnnqc.lower(CASE.model()).proto
    assert not judged(lowered).is_changed
    assert judged(lowered, measure=True, patience=4.0).sqnr_db == {}
    assert set(judged(lowered, measure=True).sqnr_db.values()) == {math.inf}


def test_verification_is_reported() -> None:
    report = judged(CASE.model(), verify=True)
    assert {"decompose-lstm", "insert-qcdq", "fold-scales"} <= set(report.verified)
    assert report.unverified == [] and {n for n, _ in report.checks} >= set(report.verified)
    plain = judged(CASE.model())
    assert plain.verified == [] and plain.checks == []


def test_a_model_that_is_too_large_for_a_session_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a lowering that ends because the model that it came from cannot be run in memory."""
    monkeypatch.setattr("rnnqc.lowering.plan.LARGEST_FILE", 100)
    report = judged(CASE.model(), measure=True)
    assert report.is_changed and not report.sqnr_db
    assert "rnnqc verify" in report.unmeasured
    assert any("the SQNR was not measured" in text for _, text in report.told())
    failure = first_failure(report, strict=False, strict_rest=False, form=None, verify=False, min_sqnr=10.0)
    assert failure is not None and "not measured" in failure.texts[0]
    assert not judged(CASE.model()).unmeasured, "nobody asked for it"
