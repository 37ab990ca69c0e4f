"""OpenVINO computes what onnxruntime computes, or refuses the file.

What these would catch: a construct in written-out cells that OpenVINO computes otherwise without a warning (it drops an
Abs of values computed from constants), a form that it takes and gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from tests import generate as testing
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.runs.sessions import Array, Outputs, plain_session, run

openvino = pytest.importorskip("openvino", reason="WARNING: openvino is absent, its results were NOT compared")

SAME = 60.0
"""dB. Float models have 130; what is computed wrong has less than 10."""
RECIPES = ("int8", "int8-static", "int16", "w4a8", "pow2-int8", "pow2-int16", "pow2-w8a16", "distiller-asym")
OPERATORS = ("LSTM", "GRU", "RNN")
CASES = {
    "LSTM, states": RecurrentCase(T=3, B=2, I=9, H=12, initial_h=True, initial_c=True),
    "GRU, states": RecurrentCase(op="GRU", T=3, B=2, I=9, H=12, initial_h=True),
    "LSTM, one row": RecurrentCase(T=2, B=1, I=20, H=33, direction="bidirectional"),
    "LSTM, lengths": RecurrentCase(T=4, B=3, I=9, H=12, lens=(2, 0, 4)),
    "LSTM, peepholes": RecurrentCase(T=3, B=2, I=9, H=12, peepholes=True, clip=0.7, direction="reverse"),
    "LSTM, Relu": RecurrentCase(T=3, B=1, I=9, H=12, activations=tuple(map(Activation, ("Sigmoid", "Relu", "Relu")))),
    "GRU, one row": RecurrentCase(op="GRU", T=2, B=1, I=9, H=12, linear_before_reset=True),
    "GRU, Softsign": RecurrentCase(
        op="GRU", T=3, B=2, I=9, H=12, activations=tuple(map(Activation, ("HardSigmoid", "Softsign")))
    ),
    "RNN, states": RecurrentCase(op="RNN", T=3, B=2, I=9, H=12, initial_h=True),
    "RNN, one row": RecurrentCase(op="RNN", T=2, B=1, I=9, H=12),
}  # fmt: skip


def _openvino(model: onnx.ModelProto, feeds: dict[str, Array], folder: Path) -> Outputs:
    onnx.save(model, folder / "model.onnx")
    compiled = openvino.Core().compile_model(folder / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = compiled([feeds[i.any_name] for i in compiled.inputs])
    return {o.name: np.array(found[k]) for k, o in enumerate(model.graph.output)}


def _assert_same(model: onnx.ModelProto, feeds: dict[str, Array], folder: Path) -> None:
    expected = run(plain_session(model), feeds)
    found = _openvino(model, feeds, folder)
    for name, wanted in expected.items():
        assert found[name].shape == wanted.shape
        assert sqnr_db(wanted, found[name]) > SAME, name


def _lowered(
    model: onnx.ModelProto, feeds: dict[str, Array], recipe: str, form: str, *overrides: str
) -> onnx.ModelProto:
    data = [feeds] if recipe in testing.cases.NEED_DATA else None
    lowered = rnnqc.lower(model, recipe, form=form, unroll=True, calibration=data, overrides=overrides)
    assert {e.status for e in lowered.report.entries} == {"lowered"}
    return lowered.proto


@pytest.mark.few(1)
@in_turn(case=[*CASES, "LSTM, states"], form=["integer", "qcdq"])
def test_written_out_cells(case: str, form: str, tmp_path: Path) -> None:
    made = CASES[case]
    feeds = made.feeds(padding=0.0)
    _assert_same(_lowered(made.model(), feeds, "int8", form), feeds, tmp_path)


@pytest.mark.few(1)
@in_turn(recipe=RECIPES[1:], op=OPERATORS)
def test_every_arithmetic(op: str, recipe: str, tmp_path: Path) -> None:
    made = CASES[f"{op}, states"]
    feeds = made.feeds()
    _assert_same(_lowered(made.model(), feeds, recipe, "integer"), feeds, tmp_path)


@pytest.mark.few(1)
@in_turn(op=[*OPERATORS, *OPERATORS[:1]], setting=[None, "*.hidden.mode=dynamic-row", "*.hidden.rounding=half_away"])
def test_constant_states(op: str, setting: str | None, tmp_path: Path) -> None:
    """Quantized values and magnitudes of constant states, some of them negative, are folded correctly."""
    made = CASES[f"{op}, states"]
    model, feeds = made.model(), made.feeds()
    for name in made.states:
        model.graph.input.remove(next(i for i in model.graph.input if i.name == name))
        model.graph.initializer.append(numpy_helper.from_array(3 * feeds.pop(name) - np.float32(0.5), name))
    overrides = [setting] if setting is not None else []
    _assert_same(_lowered(model, feeds, "int8", "integer", *overrides), feeds, tmp_path)


@in_turn(form=["fused", "integer", "qcdq"], op=OPERATORS)
def test_loops_are_refused_or_right(op: str, form: str, tmp_path: Path) -> None:
    made = CASES[f"{op}, one row"]
    model = rnnqc.lower(made.model(), form=form).proto
    try:
        _openvino(model, made.feeds(), tmp_path)
    except RuntimeError:
        return
    _assert_same(model, made.feeds(), tmp_path)


@pytest.mark.slow
def test_a_real_model(shared: Callable[[str], Path], tmp_path: Path) -> None:
    """RNNoise: three GRU layers between dense ones, states from outside."""
    path = shared("models/rnnoise/rnnoise.onnx")
    lowered = rnnqc.lower(path, unroll=True, dims={"T": 6, "B": 1}).proto
    with np.load(shared("models/rnnoise/features_test_wav.npz")) as data:
        features = data["features"].reshape(-1, 1, 42)[:6].astype(np.float32)
    states = {n: np.zeros((1, 1, size), np.float32) for n, size in (("vad_h", 24), ("noise_h", 48), ("denoise_h", 96))}
    _assert_same(lowered, {"features": features, **states}, tmp_path)
