"""Published models as tf2onnx and Keras 3 write them: every layer becomes a cell, the file shrinks, the result stays.

What these would catch: a loop or step of an exporter that recovery no longer reads, weights that stay beside the codes.
Each bar is about 1 dB below what was measured when it was set.
"""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from tests.runs.lowered import NATIVE, STOCK, assert_all_lowered, session
from tests.runs.sessions import Array, assert_same_bits, plain_session, run, sqnr

Find = Callable[[str], Path]
FRAMES, SHIFT = 200, 128
KERAS = {
    "keras3_lstm_float_condition.onnx": (1, 0.60, 29.0),  # Relu in place of tanh: hidden.bits=16 gives 54 dB
    "keras3_lstm_loops.onnx": (3, 0.40, 60.0),
    "keras3_gru_loops.onnx": (3, 0.45, 47.0),
}
"""Layers, largest size in relation to the float file, dB."""
DTLN_AEC_DB = {"Identity": 34.0, "Identity_1": 47.0}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", KERAS)
def test_loops_of_keras(name: str, shared: Find) -> None:
    path = shared(f"models/exporters/{name}")
    layers, share, bar = KERAS[name]
    lowered = rnnqc.lower(path, strict=True)
    assert_all_lowered(lowered, name)
    assert len(lowered.report.entries) == layers
    assert not any(n.op_type in ("Loop", "Scan") for n in lowered.proto.graph.node)
    assert lowered.proto.ByteSize() < share * path.stat().st_size
    running = plain_session(path)
    (given,) = running.get_inputs()
    rng = np.random.default_rng(0)
    feeds = {given.name: rng.random([d if isinstance(d, int) else 3 for d in given.shape]).astype(np.float32)}
    stock, native = (run(session(lowered.proto, way), feeds) for way in (STOCK, NATIVE))
    assert_same_bits(stock, native, name)
    for output, value in run(running, feeds).items():
        assert sqnr(value, native[output]) >= bar


def test_dtln_aec(shared: Find) -> None:
    """Two steps, `Gemm(x, W, C)` with C = h R, on magnitudes of speech; states are fed back."""
    path = shared("models/exporters/dtln_aec_128_1.onnx")
    lowered = rnnqc.lower(path, strict=True)
    assert_all_lowered(lowered, path.name)
    assert [e.op for e in lowered.report.entries] == ["LSTM", "LSTM"]
    assert lowered.proto.ByteSize() < 0.4 * path.stat().st_size
    frames = _magnitudes(shared("models/silero_vad/test.wav"))
    found = {}
    for way, running in (
        ("float", plain_session(path)),
        (STOCK, session(lowered.proto, STOCK)),
        (NATIVE, session(lowered.proto, NATIVE)),
    ):
        state, steps = np.zeros((1, 2, 128, 2), np.float32), []
        for k in range(FRAMES):
            steps.append(run(running, {"input_3": frames[k], "input_4": frames[k + 7] / 2, "input_5": state}))
            state = steps[-1]["Identity_1"]
        found[way] = {name: np.stack([s[name] for s in steps]) for name in steps[0]}
    assert_same_bits(found[STOCK], found[NATIVE], path.name)
    for name, bar in DTLN_AEC_DB.items():
        assert sqnr(found["float"][name], found[NATIVE][name]) >= bar


def _magnitudes(path: Path) -> Array:
    """`[frames,1,1,257]` of speech."""
    with wave.open(str(path)) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), np.int16)[16000:] / np.float32(32768)
    frames = np.stack([samples[k * SHIFT : k * SHIFT + 512] for k in range(FRAMES + 7)])
    return np.abs(np.fft.rfft(frames)).astype(np.float32)[:, None, None, :]


@pytest.mark.slow
def test_steps_with_a_computed_bias_are_no_new_layers(shared: Find) -> None:
    """These models keep their one or two layers each, and no others are recovered."""
    for name, layers in (("ten_vad.onnx", 2), ("deepfilternet_enc.onnx", 1), ("deepfilternet_df_dec.onnx", 2)):
        path = shared(f"models/exporters/{name}")
        lowered = rnnqc.lower(path, strict=True)
        assert_all_lowered(lowered, name)
        assert len(lowered.report.entries) == layers
        assert sum(n.op_type in ("LSTM", "GRU") for n in onnx.load(path).graph.node) == layers
        assert lowered.proto.ByteSize() < path.stat().st_size
