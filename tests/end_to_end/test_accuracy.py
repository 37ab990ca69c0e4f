"""Accuracy without calibration data, and size.

What these would catch: a wrong scale, a lost bias, a table with too few entries - errors that equal bits do not show.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from float_lstm import Activation
from lstm_models import LstmCase
from onnxruntime.quantization import QuantType, quantize_dynamic
from running import options, plain_session, run, sqnr
from running_lowered import STOCK, assert_all_lowered, session

import rnnqc

SEEDS = range(3)
ALLOWED_BELOW_ONNXRUNTIME_DB = 0.5
FEATURE_BAR_DB = 36.0
FUNCTION_BYTES = 32_000
# A jump of the activation turns the smallest error into one of its height, in every quantizer alike.
DISCONTINUOUS = frozenset({"thresholded relu"})
A = Activation
BASE = LstmCase(T=30, B=3, I=64, H=64)
FEATURES = {
    "plain": BASE,
    "reverse": BASE.replace(direction="reverse"),
    "bidirectional": BASE.replace(direction="bidirectional"),
    "no bias": BASE.replace(bias=False),
    "lengths": BASE.replace(lens=(30, 7, 19)),
    "reverse lengths": BASE.replace(lens=(4, 30, 0), direction="reverse"),
    "states": BASE.replace(initial_h=True, initial_c=True),
    "peepholes": BASE.replace(peepholes=True),
    "clip 3": BASE.replace(clip=3.0),
    "clip 0.5": BASE.replace(clip=0.5),
    "input_forget": BASE.replace(input_forget=True),
    "layout 1": BASE.replace(layout=1),
    "hard sigmoid": BASE.replace(activations=(A("HardSigmoid", 0.2, 0.5), A("Tanh"), A("Tanh"))),
    "softsign": BASE.replace(activations=(A("Sigmoid"), A("Softsign"), A("Softsign"))),
    "scaled tanh": BASE.replace(activations=(A("Sigmoid"), A("ScaledTanh", 1.25, 0.75), A("ScaledTanh", 1.5, 0.5))),
    "relu output": BASE.replace(activations=(A("Sigmoid"), A("Tanh"), A("Relu"))),
    "leaky relu": BASE.replace(activations=(A("Sigmoid"), A("LeakyRelu", 0.125), A("Tanh"))),
    "elu": BASE.replace(activations=(A("Sigmoid"), A("Elu", 1.0), A("Elu", 1.0))),
    "softplus": BASE.replace(activations=(A("Sigmoid"), A("Tanh"), A("Softplus"))),
    "affine": BASE.replace(activations=(A("Sigmoid"), A("Affine", 0.5, 0.125), A("Affine", 0.5, 0.0))),
    "thresholded relu": BASE.replace(activations=(A("Sigmoid"), A("Tanh"), A("ThresholdedRelu", 0.125))),
    "everything": BASE.replace(
        direction="bidirectional", lens=(30, 0, 11), initial_h=True, initial_c=True, peepholes=True, clip=4.0
    ),
    "opset 7": BASE.replace(opset=7),
    "opset 22": BASE.replace(opset=22),
    "computed weights": BASE.replace(weights="computed"),
    "narrow": BASE.replace(I=16, H=32),
    "small inputs": BASE.replace(gain=0.25),
}


def _sqnr(case: LstmCase, model: onnx.ModelProto) -> float:
    feeds = case.feeds(padding=0.0)
    got = run(session(model, STOCK), feeds)
    return sqnr(case.expected(feeds)["Y"], got["Y"])


def _onnxruntime_per_channel(model: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    source, target = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(model, source)
    quantize_dynamic(source, target, op_types_to_quantize=["LSTM"], per_channel=True, weight_type=QuantType.QInt8)
    return ort.InferenceSession(target, options(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [32, 64, 128, 256])
def test_not_worse_than_dynamic_quantization(size: int, seed: int, tmp_path: Path) -> None:
    case = LstmCase(T=50, B=1, I=size, H=size, bias=False, outputs=("Y",), seed=seed)
    model, feeds = case.model(), case.feeds()
    expected = run(plain_session(model), feeds)["Y"]
    theirs = sqnr(expected, run(_onnxruntime_per_channel(model, tmp_path), feeds)["Y"])
    lowered = rnnqc.lower(model)
    assert_all_lowered(lowered, "int8")
    ours = sqnr(expected, run(session(lowered.proto, STOCK), feeds)["Y"])
    print(f"H = {size}, seed {seed}: {ours:.2f} dB, onnxruntime {theirs:.2f} dB")
    assert ours >= theirs - ALLOWED_BELOW_ONNXRUNTIME_DB, f"{ours:.2f} dB against onnxruntime's {theirs:.2f} dB"


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature(feature: str, tmp_path: Path) -> None:
    case = FEATURES[feature]
    model, bar = case.model(), FEATURE_BAR_DB
    if feature in DISCONTINUOUS:
        feeds = case.feeds(padding=0.0)
        theirs = run(_onnxruntime_per_channel(model, tmp_path), feeds)["Y"]
        bar = min(bar, sqnr(case.expected(feeds)["Y"], theirs) - ALLOWED_BELOW_ONNXRUNTIME_DB)
    lowered = rnnqc.lower(model)
    assert_all_lowered(lowered, feature)
    reached = _sqnr(case, lowered.proto)
    print(f"{feature}: {reached:.2f} dB, {bar:.2f} dB asked for")
    assert reached >= bar, f"{feature}: {reached:.2f} dB of {bar:.2f} dB"


def test_weights_take_a_quarter() -> None:
    """A fused file is a quarter of the float one plus per-channel scales and a constant for the function."""
    case = LstmCase(T=2, B=1, I=300, H=400)
    model = case.model()
    weights = sum(v.nbytes for n, v in case.parameters().items() if n in ("W", "R"))
    lowered = rnnqc.lower(model).proto.ByteSize()
    per_channel = 3 * 4 * 4 * case.H
    assert lowered <= weights / 4 + per_channel + FUNCTION_BYTES, (
        f"{lowered} bytes for {weights} bytes of float weights"
    )
