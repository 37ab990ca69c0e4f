"""Published models, lowered without calibration data, on real inputs.

What these would catch: exporter patterns that built cases do not have, and states that drift when they are fed back.
Each bar is about 1 dB below what was measured when it was set.
"""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from tests.runs.lowered import NATIVE, STOCK, assert_all_lowered, session
from tests.runs.sessions import Array, Outputs, assert_same_bits, options, plain_session, run, sqnr

Find = Callable[[str], Path]
Feeds = Mapping[str, Array]

DTLN_MASK_DB, DTLN_STATE_DB = 36.0, 39.0
DTLN_2_SIGNAL_DB, DTLN_2_STATE_DB = 42.0, 37.5
DTLN_2_REST_DB = 36.0
SILERO_DB, SILERO_STATE_DB = 51.0, 34.0
SILERO_MEAN_PROBABILITY = 0.6397
IMDB_DB = 46.0
IMDB_POINTS = 0.5
PACKED_DB, PACKED_PADDED_DB = 46.0, 38.5
BYTE_SB_DB = 55.0

GTCRN_DB = {"enh": 54.0, "conv_cache_out": 39.0, "tra_cache_out": 35.0, "inter_cache_out": 38.0}
RNNOISE_DB = {"gains": 39.5, "vad": 46.5, "vad_hn": 46.5, "noise_hn": 31.5, "denoise_hn": 35.5}
RNNOISE_CALIBRATED_DB = {"gains": 44.5, "vad": 50.0, "vad_hn": 50.0, "noise_hn": 40.0, "denoise_hn": 41.0}
RNNOISE_DRIFT_DB = 2.0
IMDB_GRU_DB = 44.0

GTCRN_STEPS, GTCRN_FRAME, GTCRN_SHIFT = 40, 512, 256
RNNOISE_FRAMES, RNNOISE_PART, RNNOISE_CALIBRATION, RNNOISE_CHUNKED = 6000, 1000, 600, 600
DTLN_STEPS = 300
DTLN_FRAME, DTLN_SHIFT = 512, 128
SILERO_CHUNKS = 300
SILERO_CHUNK, SILERO_CONTEXT = 512, 64
FEW_REVIEWS = 200
PACKED_REVIEWS = 96


def _sessions(path: Path, layers: int, rest: str = "float", *, sized: bool = False) -> dict[str, ort.InferenceSession]:
    """Float, stock and native sessions; asserts that `layers` layers were lowered, and inputs and outputs kept.

    With `sized` sizes of outputs that the file leaves open may be there.
    """
    lowered = rnnqc.lower(path, rest=rest, strict_rest=rest == "int8")
    assert_all_lowered(lowered, path.name)
    assert sized or _signature(onnx.load(path)) == _signature(lowered.proto), "names, types and shapes"
    assert len(lowered.report.entries) == layers
    float_session = ort.InferenceSession(str(path), options(), providers=["CPUExecutionProvider"])
    return {
        "float": float_session,
        STOCK: session(lowered.proto, STOCK),
        NATIVE: session(lowered.proto, NATIVE),
    }


def _stream(
    running: ort.InferenceSession, feeds: Iterable[Feeds], state: dict[str, Array], fed_back: Mapping[str, str]
) -> Outputs:
    """Outputs stacked over the steps; `fed_back` maps state inputs to the outputs that become them."""
    steps = []
    for feed in feeds:
        got = run(running, {**feed, **state})
        state = {name: got[source] for name, source in fed_back.items()}
        steps.append(got)
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def _compare(outputs: Mapping[str, Outputs], bars: Mapping[str, float], what: str) -> None:
    """Stock and native: same bits; each output named in `bars`: at least so many dB against float."""
    assert_same_bits(outputs[STOCK], outputs[NATIVE], f"{what}: native against stock")
    reached = {name: sqnr(outputs["float"][name], outputs[STOCK][name]) for name in bars}
    print(what, {name: f"{value:.2f} dB" for name, value in reached.items()})
    for name, bar in bars.items():
        assert reached[name] >= bar, f"{what}: {name} reaches {reached[name]:.2f} dB of {bar} dB"


def _speech(path: Path) -> Array:
    """Float32 samples in -1 .. 1."""
    with wave.open(str(path)) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), np.int16)
    return (samples / np.float32(32768)).astype(np.float32)


def _frames(find: Find) -> Array:
    """DTLN frames `[300,512]` of speech."""
    samples = _speech(find("models/silero_vad/test.wav"))[16000:]
    return np.stack([samples[k * DTLN_SHIFT : k * DTLN_SHIFT + DTLN_FRAME] for k in range(DTLN_STEPS)])


def test_dtln_1(shared: Find) -> None:
    sessions = _sessions(shared("models/dtln/model_1.onnx"), layers=2)
    magnitudes = np.abs(np.fft.rfft(_frames(shared))).astype(np.float32)[:, None, None, :]
    state = {"input_3": np.zeros((1, 2, 128, 2), np.float32)}
    outputs = {
        way: _stream(running, ({"input_2": m} for m in magnitudes), state, {"input_3": "tf_op_layer_stack_2"})
        for way, running in sessions.items()
    }
    _compare(outputs, {"activation_2": DTLN_MASK_DB, "tf_op_layer_stack_2": DTLN_STATE_DB}, "dtln/model_1")


@pytest.mark.few(1)
@pytest.mark.parametrize(("rest", "signal_db"), [("float", DTLN_2_SIGNAL_DB), ("int8", DTLN_2_REST_DB)])
def test_dtln_2(shared: Find, rest: str, signal_db: float) -> None:
    """Its cells are written out as MatMul, Split, Sigmoid, Tanh for one step; they are recognized."""
    sessions = _sessions(shared("models/dtln/model_2.onnx"), layers=2, rest=rest, sized=True)
    state = {"input_5": np.zeros((1, 2, 128, 2), np.float32)}
    feeds = [{"input_4": frame[None, None, :]} for frame in _frames(shared)]
    outputs = {
        way: _stream(running, feeds, state, {"input_5": "tf_op_layer_stack_5"}) for way, running in sessions.items()
    }
    _compare(outputs, {"conv1d_3": signal_db, "tf_op_layer_stack_5": DTLN_2_STATE_DB}, "dtln/model_2")


@pytest.mark.parametrize(("name", "layers"), [("silero_vad_16k_op15", 1), ("silero_vad_op18_ifless", 2)])
def test_silero_vad(name: str, layers: int, shared: Find) -> None:
    """The second one has its steps written out, x as wide as h, the product of h first.

    The first one has a layer more, in a branch for states of another rank than its input declares.
    """
    sessions = _sessions(shared(f"models/silero_vad/{name}.onnx"), layers=layers)
    samples = np.concatenate([np.zeros(SILERO_CONTEXT, np.float32), _speech(shared("models/silero_vad/test.wav"))])
    starts = range(0, SILERO_CHUNKS * SILERO_CHUNK, SILERO_CHUNK)
    rate = np.array(16000, np.int64)
    feeds = [{"input": samples[None, k : k + SILERO_CONTEXT + SILERO_CHUNK], "sr": rate} for k in starts]
    state = {"state": np.zeros((2, 1, 128), np.float32)}
    outputs = {way: _stream(running, feeds, state, {"state": "stateN"}) for way, running in sessions.items()}
    means = {way: float(got["output"].mean()) for way, got in outputs.items()}
    print("silero_vad mean probabilities", means)
    assert abs(means["float"] - SILERO_MEAN_PROBABILITY) < 1e-3
    assert abs(means[STOCK] - means["float"]) < 5e-3
    _compare(outputs, {"output": SILERO_DB, "stateN": SILERO_STATE_DB}, name)


def _accuracy(probability: Array, label: Array) -> float:
    return 100.0 * float(((probability > 0.5) == label).mean())


def _imdb(find: Find, name: str, count: int | None, ways: tuple[str, ...], bar: float = IMDB_DB) -> None:
    sessions = _sessions(find(f"models/vitis_rnn/{name}.onnx"), layers=1)
    with np.load(find("data/imdb/test.npz")) as data:
        tokens, label = data["tokens"][:count].astype(np.int64), data["label"][:count]
    pieces = [tokens[k : k + 200] for k in range(0, len(tokens), 200)]
    outputs = {
        way: {"prob": np.concatenate([run(sessions[way], {"tokens": piece})["prob"] for piece in pieces])}
        for way in ways
    }
    accuracy = {way: _accuracy(got["prob"], label) for way, got in outputs.items()}
    print(name, len(tokens), "reviews", {k: f"{v:.2f} %" for k, v in accuracy.items()})
    assert accuracy[NATIVE] >= accuracy["float"] - IMDB_POINTS
    outputs.setdefault(STOCK, outputs[NATIVE])
    _compare(outputs, {"prob": bar}, name)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["imdb_lstm_torch", "imdb_lstm_torch_dynamo"])
def test_imdb(name: str, shared: Find) -> None:
    _imdb(shared, name, FEW_REVIEWS, ("float", STOCK, NATIVE))


@pytest.mark.slow
def test_imdb_gru(shared: Find) -> None:
    _imdb(shared, "imdb_gru_torch", FEW_REVIEWS, ("float", STOCK, NATIVE), IMDB_GRU_DB)


@pytest.mark.slow
def test_imdb_gru_all_reviews(shared: Find) -> None:
    _imdb(shared, "imdb_gru_torch", None, ("float", NATIVE), IMDB_GRU_DB)


def _gtcrn_frames(find: Find, count: int) -> list[dict[str, Array]]:
    samples = _speech(find("models/silero_vad/test.wav"))[16000:]
    window = np.sqrt(np.hanning(GTCRN_FRAME + 1)[:-1])
    starts = range(0, count * GTCRN_SHIFT, GTCRN_SHIFT)
    spectra = [np.fft.rfft(samples[k : k + GTCRN_FRAME] * window) for k in starts]
    return [{"mix": np.stack([z.real, z.imag], -1).astype(np.float32)[None, :, None, :]} for z in spectra]


def _gtcrn_state() -> dict[str, Array]:
    shapes = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}
    return {k: np.zeros(v, np.float32) for k, v in shapes.items()}


GTCRN_FED_BACK = {k: f"{k}_out" for k in _gtcrn_state()}


@pytest.mark.slow
def test_gtcrn(shared: Find) -> None:
    """14 GRUs, 4 of which are bidirectional; spectra frame by frame, three caches fed back."""
    sessions = _sessions(shared("models/gtcrn/gtcrn_simple.onnx"), layers=14)
    feeds = _gtcrn_frames(shared, GTCRN_STEPS)
    outputs = {way: _stream(running, feeds, _gtcrn_state(), GTCRN_FED_BACK) for way, running in sessions.items()}
    _compare(outputs, GTCRN_DB, "gtcrn_simple")


@pytest.mark.slow
def test_gtcrn_as_exported(shared: Find) -> None:
    """The shapes around its GRUs are computed. Without optimizations: with, onnxruntime fuses the float convolutions of
    a model with inlined functions in another way than those of one with native nodes."""
    path = shared("models/gtcrn/gtcrn.onnx")
    lowered = rnnqc.lower(path)
    assert_all_lowered(lowered, path.name)
    assert len(lowered.report.entries) == 14
    sessions = {way: session(lowered.proto, way, "ORT_DISABLE_ALL") for way in (STOCK, NATIVE)}
    sessions["float"] = plain_session(path)
    feeds = _gtcrn_frames(shared, GTCRN_STEPS)
    outputs = {way: _stream(running, feeds, _gtcrn_state(), GTCRN_FED_BACK) for way, running in sessions.items()}
    _compare(outputs, GTCRN_DB, "gtcrn")


def _rnnoise_feeds(find: Find) -> dict[str, Array]:
    with np.load(find("models/rnnoise/features_test_wav.npz")) as data:
        features = data["features"].astype(np.float32)
    assert len(features) == RNNOISE_FRAMES
    sizes = {"vad_h": 24, "noise_h": 48, "denoise_h": 96}
    return {"features": features.reshape(RNNOISE_FRAMES, 1, 42)} | {
        k: np.zeros((1, 1, n), np.float32) for k, n in sizes.items()
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("calibrated", [False, True], ids=["without data", "calibrated"])
def test_rnnoise(calibrated: bool, shared: Find) -> None:
    """Three GRUs with Relu candidates over 6,000 frames: nothing limits the states, and their errors do not add up."""
    path, feeds = shared("models/rnnoise/rnnoise.onnx"), _rnnoise_feeds(shared)
    calibration = [feeds | {"features": feeds["features"][:RNNOISE_CALIBRATION]}] if calibrated else None
    lowered = rnnqc.lower(path, calibration=calibration)
    assert_all_lowered(lowered, path.name)
    assert len(lowered.report.entries) == 3
    outputs = {way: run(session(lowered.proto, way), feeds) for way in (STOCK, NATIVE)}
    outputs["float"] = run(plain_session(path), feeds)
    _compare(outputs, RNNOISE_CALIBRATED_DB if calibrated else RNNOISE_DB, path.name)
    for name in ("gains", "vad"):
        first, last = (
            sqnr(outputs["float"][name][part], outputs[STOCK][name][part])
            for part in (slice(None, RNNOISE_PART), slice(-RNNOISE_PART, None))
        )
        print(f"{name}: first {RNNOISE_PART} frames {first:.2f} dB, last {last:.2f} dB")
        assert last >= first - RNNOISE_DRIFT_DB, name


@pytest.mark.slow
@pytest.mark.parametrize("way", [STOCK, NATIVE])
def test_rnnoise_frame_by_frame(way: str, shared: Find) -> None:
    """As it runs in a call: one frame each time, states handed on, the same bits as the whole."""
    feeds = _rnnoise_feeds(shared)
    features = feeds.pop("features")[:RNNOISE_CHUNKED]
    running = session(rnnqc.lower(shared("models/rnnoise/rnnoise.onnx")).proto, way)
    whole = run(running, feeds | {"features": features})
    steps = _stream(running, ({"features": f[None]} for f in features), dict(feeds), {k: f"{k}n" for k in feeds})
    joined = {k: v[-1] if k.endswith("_hn") else v.reshape(whole[k].shape) for k, v in steps.items()}
    assert_same_bits(whole, joined, "one frame each time")


@pytest.mark.slow
def test_imdb_all_reviews(shared: Find) -> None:
    _imdb(shared, "imdb_lstm_torch", None, ("float", STOCK, NATIVE))


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ["sorted", "unsorted"])
def test_imdb_packed(order: str, shared: Find) -> None:
    """Lengths as a live input; the tokens beyond them must not matter."""
    sessions = _sessions(shared(f"models/vitis_rnn/imdb_lstm_packed_{order}.onnx"), layers=1)
    with np.load(shared("data/imdb/test.npz")) as data:
        padded = data["tokens"][:PACKED_REVIEWS].astype(np.int64)
        lengths = np.minimum(data["length"][:PACKED_REVIEWS], padded.shape[1]).astype(np.int64)
    if order == "sorted":
        descending = np.argsort(-lengths, kind="stable")
        padded, lengths = padded[descending], lengths[descending]
    tokens = np.zeros((PACKED_REVIEWS, int(lengths.max())), np.int64)
    for row, length in enumerate(lengths):
        tokens[row, :length] = padded[row, padded.shape[1] - length :]
    outputs = {way: run(running, {"tokens": tokens, "lengths": lengths}) for way, running in sessions.items()}
    _compare(outputs, {"prob": PACKED_DB, "padded": PACKED_PADDED_DB}, f"imdb_lstm_packed_{order}")
    other = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, 7)
    again = {way: run(running, {"tokens": other, "lengths": lengths}) for way, running in sessions.items()}
    for way in (STOCK, NATIVE):
        assert_same_bits(outputs[way], again[way], f"{way}: other padding")


def test_byte_sb_bidirectional(shared: Find) -> None:
    sessions = _sessions(shared("models/byte_sb_bidi_lstm/model.onnx"), layers=2)
    with np.load(shared("models/byte_sb_bidi_lstm/io.npz")) as data:
        feeds, published = {"input": data["input"]}, data["Add_26"]
    outputs = {way: run(running, feeds) for way, running in sessions.items()}
    assert np.abs(outputs["float"]["output"] - published).max() < 1e-4
    _compare(outputs, {"output": BYTE_SB_DB}, "byte_sb_bidi_lstm")


def _signature(model: onnx.ModelProto) -> list[Any]:
    return [(v.name, v.type.SerializeToString(deterministic=True)) for v in (*model.graph.input, *model.graph.output)]
