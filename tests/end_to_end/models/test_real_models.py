"""Published models, lowered without calibration data, on real inputs.

What these would catch: exporter patterns that built cases do not have, and states that drift when they are fed back.
Each bar is about 1 dB below what was measured when it was set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from tests.runs.lowered import NATIVE, STOCK, assert_all_lowered, session
from tests.runs.sessions import Array, Outputs, assert_same_bits, plain_session, run, sqnr
from tests.subjects.published_models import (
    Calls,
    Find,
    byte_sb,
    dtln_1,
    dtln_2,
    dtln_aec,
    gtcrn,
    packed_reviews,
    reviews,
    rnnoise,
    silero,
)

SILERO_MEAN_PROBABILITY = 0.6397
IMDB_POINTS = 0.5
RNNOISE_DB = {"gains": 39.5, "vad": 46.5, "vad_hn": 46.5, "noise_hn": 31.5, "denoise_hn": 35.5}
RNNOISE_CALIBRATED_DB = {"gains": 45.5, "vad": 52.0, "vad_hn": 52.0, "noise_hn": 41.0, "denoise_hn": 40.5}
RNNOISE_DRIFT_DB = 2.0
RNNOISE_FRAMES, RNNOISE_PART, RNNOISE_CALIBRATION, RNNOISE_CHUNKED = 6000, 1000, 600, 600
GTCRN_DB = {"enh": 54.0, "conv_cache_out": 39.0, "tra_cache_out": 35.0, "inter_cache_out": 38.0}
SILERO_DB = {"output": 51.0, "stateN": 34.0}


@dataclass(frozen=True)
class Published:
    """A model with data of a stream.

    Attributes:
        calls: The data.
        bars: dB of outputs.
        rest: What becomes of the layers around the recurrent ones.
        sized: Whether sizes of outputs that the file leaves open may be there after lowering.
        level: onnxruntime's optimizations.
        share: The lowered file is less than this part of the float one.
    """

    calls: Callable[[Find], Calls]
    bars: Mapping[str, float]
    rest: str = "float"
    sized: bool = False
    level: str = "ORT_ENABLE_ALL"
    share: float = 1.0


USUAL = Published(byte_sb, {})
DTLN_2 = partial(dtln_2, steps=300)
PUBLISHED = {
    "dtln/model_1": Published(partial(dtln_1, steps=300), {"activation_2": 36.0, "tf_op_layer_stack_2": 39.0}),
    # Its cells are written out as MatMul, Split, Sigmoid, Tanh for one step; they are recognized.
    "dtln/model_2": Published(DTLN_2, {"conv1d_3": 42.0, "tf_op_layer_stack_5": 37.5}, sized=True),
    "dtln/model_2, rest int8": Published(DTLN_2, {"conv1d_3": 36.0, "tf_op_layer_stack_5": 37.5}, "int8", sized=True),
    # Two steps, `Gemm(x, W, C)` with C = h R, on magnitudes of speech.
    "exporters/dtln_aec_128_1": Published(
        partial(dtln_aec, steps=200), {"Identity": 34.0, "Identity_1": 47.0}, share=0.4
    ),
    # It has a layer more, in a branch for states of another rank than its input declares.
    "silero_vad/silero_vad_16k_op15": Published(partial(silero, steps=300), SILERO_DB),
    # Its steps are written out, x as wide as h, the product of h first.
    "silero_vad/silero_vad_op18_ifless": Published(partial(silero, steps=300, layers=2), SILERO_DB),
    "gtcrn/gtcrn_simple": Published(partial(gtcrn, steps=40), GTCRN_DB),
    # The shapes around its GRUs are computed. With optimizations, onnxruntime fuses the float convolutions of a model
    # with inlined functions in another way than those of one with native nodes.
    "gtcrn/gtcrn": Published(partial(gtcrn, steps=40), GTCRN_DB, sized=True, level="ORT_DISABLE_ALL"),
    "byte_sb_bidi_lstm/model": Published(byte_sb, {"output": 55.0}),
    # Its first layer takes int8 rows of the embedding, moved by a Transpose.
    "byte_sb_bidi_lstm/model, rest int8": Published(byte_sb, {"output": 56.2}, "int8"),
}
SLOW = [name for name in PUBLISHED if name.startswith("gtcrn")]


def _sessions(path: Path, layers: int, case: Published = USUAL) -> dict[str, ort.InferenceSession]:
    """Float, stock and native sessions; asserts that `layers` layers were lowered, and inputs and outputs kept."""
    lowered = rnnqc.lower(path, rest=case.rest, strict_rest=case.rest == "int8")
    assert_all_lowered(lowered, path.name)
    assert case.sized or _signature(onnx.load(path)) == _signature(lowered.proto), "names, types and shapes"
    assert len(lowered.report.entries) == layers
    assert lowered.proto.ByteSize() < case.share * path.stat().st_size
    models = {"float": onnx.load(path), STOCK: lowered.proto, NATIVE: lowered.proto}
    return {way: session(model, way, case.level) for way, model in models.items()}


def _signature(model: onnx.ModelProto) -> list[Any]:
    return [(v.name, v.type.SerializeToString(deterministic=True)) for v in (*model.graph.input, *model.graph.output)]


def _compare(outputs: Mapping[str, Outputs], bars: Mapping[str, float], what: str) -> None:
    """Stock and native: same bits; each output named in `bars`: at least so many dB against float."""
    assert_same_bits(outputs[STOCK], outputs[NATIVE], f"{what}: native against stock")
    reached = {name: sqnr(outputs["float"][name], outputs[STOCK][name]) for name in bars}
    print(what, {name: f"{value:.2f} dB" for name, value in reached.items()})
    for name, bar in bars.items():
        assert reached[name] >= bar, f"{what}: {name} reaches {reached[name]:.2f} dB of {bar} dB"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in PUBLISHED])
def test_streams(name: str, shared: Find) -> None:
    case = PUBLISHED[name]
    calls = case.calls(shared)
    path = shared(f"models/{name.partition(',')[0]}.onnx")
    sessions = _sessions(path, calls.layers, case)
    outputs = {way: calls.outputs(running) for way, running in sessions.items()}
    _compare(outputs, case.bars, name)
    if "silero" in name:
        means = {way: float(got["output"].mean()) for way, got in outputs.items()}
        assert abs(means["float"] - SILERO_MEAN_PROBABILITY) < 1e-3
        assert abs(means[STOCK] - means["float"]) < 5e-3
    if "byte_sb" in name:
        with np.load(shared("models/byte_sb_bidi_lstm/io.npz")) as data:
            assert np.abs(outputs["float"]["output"] - data["Add_26"].ravel()).max() < 1e-4


def _accuracy(probability: Array, label: Array) -> float:
    return 100.0 * float(((probability > 0.5) == label).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "bar"),
    [("imdb_lstm_torch", None, 46.0), ("imdb_lstm_torch_dynamo", 200, 46.0), ("imdb_gru_torch", None, 44.0)],
)
def test_imdb(name: str, count: int | None, bar: float, shared: Find) -> None:
    sessions = _sessions(shared(f"models/vitis_rnn/{name}.onnx"), 1)
    tokens, _, label = reviews(shared, count)
    calls = Calls([{"tokens": tokens[k : k + 200]} for k in range(0, len(tokens), 200)])
    outputs = {way: calls.outputs(running) for way, running in sessions.items()}
    accuracy = {way: _accuracy(got["prob"], label) for way, got in outputs.items()}
    print(name, len(tokens), "reviews", {k: f"{v:.2f} %" for k, v in accuracy.items()})
    assert accuracy[NATIVE] >= accuracy["float"] - IMDB_POINTS
    _compare(outputs, {"prob": bar}, name)


@pytest.mark.parametrize(
    ("name", "count", "bars"),
    [
        ("imdb_lstm_torch", 400, (42.6, 41.7)),
        ("imdb_gru_torch", 400, (44.4, 42.8)),
        pytest.param("imdb_lstm_torch", None, (45.4, 44.3), marks=pytest.mark.slow),
        pytest.param("imdb_gru_torch", None, (43.6, 42.3), marks=pytest.mark.slow),
    ],
)
def test_imdb_with_an_int8_embedding(name: str, count: int | None, bars: tuple[float, float], shared: Find) -> None:
    """The layer takes the rows as they are: it is nearer to float than one that quantizes them again."""
    path = shared(f"models/vitis_rnn/{name}.onnx")
    tokens, _, label = reviews(shared, count)
    calls = Calls([{"tokens": tokens[k : k + 200]} for k in range(0, len(tokens), 200)])
    floats = calls.outputs(plain_session(path))
    reached = []
    for bar, overrides in zip(bars, ([], ["*.input.chain=false"]), strict=True):
        lowered = rnnqc.lower(path, rest="int8", overrides=overrides)
        outputs = {way: calls.outputs(session(lowered.proto, way)) for way in (STOCK, NATIVE)} | {"float": floats}
        _compare(outputs, {"prob": bar}, f"{name} {overrides}")
        reached.append(sqnr(floats["prob"], outputs[STOCK]["prob"]))
        accuracy = [_accuracy(got["prob"], label) for got in (floats, outputs[NATIVE])]
        assert accuracy[1] >= accuracy[0] - IMDB_POINTS
    assert reached[0] > reached[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("calibrated", [False, True], ids=["without data", "calibrated"])
def test_rnnoise(calibrated: bool, shared: Find) -> None:
    """Three GRUs with Relu candidates over 6,000 frames: nothing limits the states, and their errors do not add up."""
    path, calls = shared("models/rnnoise/rnnoise.onnx"), rnnoise(shared, [slice(None), slice(RNNOISE_CALIBRATION)])
    whole, few = ({**calls.initial, **feed} for feed in calls.feeds)
    assert len(whole["features"]) == RNNOISE_FRAMES
    lowered = rnnqc.lower(path, calibration=[few] if calibrated else None)
    assert_all_lowered(lowered, path.name)
    assert len(lowered.report.entries) == 3
    outputs = {way: run(session(lowered.proto, way), whole) for way in (STOCK, NATIVE)}
    outputs["float"] = run(plain_session(path), whole)
    _compare(outputs, RNNOISE_CALIBRATED_DB if calibrated else RNNOISE_DB, path.name)
    for name in ("gains", "vad"):
        first, last = (
            sqnr(outputs["float"][name][part], outputs[STOCK][name][part])
            for part in (slice(RNNOISE_CALIBRATION, RNNOISE_CALIBRATION + RNNOISE_PART), slice(-RNNOISE_PART, None))
        )
        print(f"{name}: first {RNNOISE_PART} frames behind the calibration {first:.2f} dB, last {last:.2f} dB")
        assert last >= first - RNNOISE_DRIFT_DB, name


@pytest.mark.slow
@pytest.mark.parametrize("way", [STOCK, NATIVE])
def test_rnnoise_frame_by_frame(way: str, shared: Find) -> None:
    """As it runs in a call: one frame each time, states handed on, the same bits as the whole."""
    running = session(rnnqc.lower(shared("models/rnnoise/rnnoise.onnx")).proto, way)
    (whole,) = rnnoise(shared, [slice(RNNOISE_CHUNKED)]).run(running)
    steps = rnnoise(shared, [slice(k, k + 1) for k in range(RNNOISE_CHUNKED)]).run(running)
    joined = {n: steps[-1][n] if n.endswith("_hn") else np.concatenate([s[n] for s in steps]) for n in whole}
    assert_same_bits(whole, joined, "one frame each time")


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["sorted", "unsorted"])
def test_imdb_packed(order: str, shared: Find) -> None:
    """Lengths as a live input; the tokens beyond them must not matter."""
    sessions = _sessions(shared(f"models/vitis_rnn/imdb_lstm_packed_{order}.onnx"), 1)
    feeds = packed_reviews(shared, 96, 10**6, order == "sorted")
    outputs = {way: run(running, feeds) for way, running in sessions.items()}
    _compare(outputs, {"prob": 46.0, "padded": 38.5}, f"imdb_lstm_packed_{order}")
    within = np.arange(feeds["tokens"].shape[1]) < feeds["lengths"][:, None]
    other = {**feeds, "tokens": np.where(within, feeds["tokens"], 7)}
    for way in (STOCK, NATIVE):
        assert_same_bits(outputs[way], run(sessions[way], other), f"{way}: other padding")
