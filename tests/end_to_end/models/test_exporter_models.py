"""Published models as tf2onnx and Keras 3 write them: every layer becomes a cell, the file shrinks, the result stays.

What these would catch: a loop or step of an exporter that recovery no longer reads, weights that stay beside the codes.
Each bar is about 1 dB below what was measured when it was set.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from tests.runs.lowered import assert_all_lowered, run_both
from tests.runs.sessions import plain_session, run, sqnr
from tests.subjects.published_models import Find

KERAS = {
    "keras3_lstm_float_condition.onnx": (1, 0.60, 29.0),  # Relu in place of tanh: hidden.bits=16 gives 54 dB
    "keras3_lstm_loops.onnx": (3, 0.40, 60.0),
    "keras3_gru_loops.onnx": (3, 0.45, 47.0),
}
"""Layers, largest size in relation to the float file, dB."""


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
    stock = run_both(lowered.proto, feeds)
    for output, value in run(running, feeds).items():
        assert sqnr(value, stock[output]) >= bar


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
