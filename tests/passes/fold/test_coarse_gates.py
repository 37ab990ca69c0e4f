"""Layers whose states last for thousands of steps of time.

What these would catch: a cell state whose steps swallow what a step of time adds; a warning of the wrong gate or of
layers that forget soon, or none where states last; a setting in the warning that does not help.
"""

from __future__ import annotations

import re

import onnx
import pytest

import rnnqc
from rnnqc.passes.fold.coarse_gates import STEADY_BIAS
from tests.runs.sessions import plain_session, run, sqnr
from tests.subjects.slow_layers import Slow


def _warnings(lowered: rnnqc.Lowered) -> list[str]:
    return [w for w in lowered.report.warnings if "last for a thousand steps" in w]


def _sqnr(float_model: onnx.ModelProto, lowered: onnx.ModelProto) -> float:
    outputs = [run(plain_session(m), Slow.feeds())["y"] for m in (float_model, lowered)]
    return sqnr(*outputs)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["integer", "qcdq"])
def test_a_cell_that_adds_little_in_each_step(form: str) -> None:
    """Each step adds less than 2^-12, half a step of a cell state with steps of 2^-11, which would lose it."""
    case = Slow("LSTM", 2, 6.5, -7.5)
    lowered = rnnqc.lower(case.model(), form=form)
    assert not _warnings(lowered)
    whole = rnnqc.lower(case.model(), form=form, overrides=["*.cell_state.bits=24"])
    assert _sqnr(case.model(), whole.proto) < _sqnr(case.model(), lowered.proto) - 6.0
    assert _sqnr(case.model(), lowered.proto) > 40.0


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("case", "gate"),
    [
        (Slow("LSTM", 2, 10.0, -9.0), "forget gate and input gate"),
        (Slow("GRU", 0, 10.0), "update gate"),
        (Slow("LSTM", 0, -10.0, input_forget=True), "input gate"),
    ],
    ids=["LSTM", "GRU", "coupled gates"],
)
def test_the_setting_that_the_warning_names_helps(case: Slow, gate: str) -> None:
    lowered = rnnqc.lower(case.model(), form="integer")
    warnings = _warnings(lowered)
    assert len(warnings) == 1
    assert f"tables of the {gate} in steps" in warnings[0]
    overrides = re.findall(r"[^' ]+=[^'. ]+", warnings[0].split("--set ")[1])
    exact = rnnqc.lower(case.model(), form="integer", overrides=overrides)
    assert not _warnings(exact)
    assert _sqnr(case.model(), exact.proto) > max(40.0, _sqnr(case.model(), lowered.proto) + 10.0)


@pytest.mark.few(3)
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
