"""Layers whose states last for thousands of steps of time.

What these would catch: a cell state whose steps swallow what a step of time adds; a warning of the wrong gate or of
layers that forget soon, or none where states last; a setting in the warning that does not help.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.passes.fold.coarse_gates import STEADY_BIAS
from tests.runs.sessions import Array, plain_session, run, sqnr

UNITS, FEATURES, STEPS = 16, 8, 3000


@dataclass(frozen=True)
class Slow:
    """A layer with a bias of the gate that keeps the state, and one of the gate that adds to it."""

    op: str
    gate: int
    keep: float
    added: float = 0.0
    input_forget: bool = False

    def model(self) -> onnx.ModelProto:
        """The model: `x` `[T,1,FEATURES]` to `y`."""
        gates = {"LSTM": 4, "GRU": 3}[self.op]
        rng = np.random.default_rng(3)
        w = rng.uniform(-0.25, 0.25, (1, gates * UNITS, FEATURES))
        r = rng.uniform(-0.25, 0.25, (1, gates * UNITS, UNITS))
        b = rng.uniform(-0.25, 0.25, (1, 2 * gates * UNITS))
        b[0, self.gate * UNITS : (self.gate + 1) * UNITS] += self.keep
        b[0, :UNITS] += self.added
        held = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in (("W", w), ("R", r), ("B", b))]
        flags = {"input_forget": 1} if self.input_forget else {}
        node = helper.make_node(self.op, ["x", "W", "R", "B"], ["y"], "layer", hidden_size=UNITS, **flags)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 1, FEATURES])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 1, 1, UNITS])
        graph = helper.make_graph([node], "slow", [x], [y], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _warnings(lowered: rnnqc.Lowered) -> list[str]:
    return [w for w in lowered.report.warnings if "last for thousands of steps" in w]


def _sqnr(float_model: onnx.ModelProto, lowered: onnx.ModelProto) -> float:
    feeds: dict[str, Array] = {"x": np.random.default_rng(0).standard_normal((STEPS, 1, FEATURES)).astype(np.float32)}
    outputs = [run(plain_session(m), feeds)["y"] for m in (float_model, lowered)]
    return sqnr(*outputs)


@pytest.mark.parametrize("form", ["integer", "qcdq"])
def test_a_cell_that_adds_little_in_each_step(form: str) -> None:
    """What it adds is below 2^-12, half a step of a cell state in whole steps of 2^-11: those had 6.7 dB."""
    case = Slow("LSTM", 2, 7.5, -7.5)
    lowered = rnnqc.lower(case.model(), form=form)
    assert not _warnings(lowered)
    assert _sqnr(case.model(), lowered.proto) > 40.0


@pytest.mark.parametrize(
    ("case", "gate"),
    [
        (Slow("LSTM", 2, 10.0, -9.0), "forget gate"),
        (Slow("GRU", 0, 10.0), "update gate"),
        (Slow("LSTM", 0, -10.0, input_forget=True), "input gate"),
    ],
    ids=["LSTM", "GRU", "coupled gates"],
)
def test_the_setting_that_the_warning_names_helps(case: Slow, gate: str) -> None:
    lowered = rnnqc.lower(case.model(), form="integer")
    warnings = _warnings(lowered)
    assert len(warnings) == 1
    assert f"the table of the {gate}" in warnings[0]
    override = warnings[0].split("--set '")[1].split("'")[0]
    exact = rnnqc.lower(case.model(), form="integer", overrides=[override])
    assert not _warnings(exact)
    assert _sqnr(case.model(), exact.proto) > max(40.0, _sqnr(case.model(), lowered.proto) + 10.0)


@pytest.mark.parametrize(
    "case",
    [
        Slow("LSTM", 2, STEADY_BIAS - 1.0),
        Slow("LSTM", 0, 10.0),
        Slow("LSTM", 1, 10.0),
        Slow("GRU", 0, -10.0),
        Slow("GRU", 1, 10.0),
        Slow("LSTM", 0, 10.0, input_forget=True),
    ],
)
def test_no_warning_where_states_do_not_last(case: Slow) -> None:
    assert not _warnings(rnnqc.lower(case.model(), form="integer"))


def test_no_warning_without_tables() -> None:
    assert not _warnings(rnnqc.lower(Slow("GRU", 0, 10.0).model(), form="qcdq"))
