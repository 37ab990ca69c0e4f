"""Layers of one model whose batches have different sizes, as in networks that run along two axes.

What these would catch: one name for two sizes. onnxruntime takes shapes of equal names for equal, gives a value the
memory of another, and fails when the model runs.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import rnnqc
from rnnqc.ir import Model
from rnnqc.proto.graph_walks import blocks_of
from tests.laws.parametrize import every_pair
from tests.runs.lowered import NATIVE, STOCK, session
from tests.runs.sessions import assert_same_bits, plain_session, run, sqnr
from tests.subjects.protos import of_nodes

H, LAYERS = 6, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def model(op: str, time: int | str, directions: int) -> onnx.ModelProto:
    """Layers with twice the batch of the one before; outputs are Y and Y_h of the last."""
    rng = np.random.default_rng(0)
    arrays = {"shape": np.array([0, -1, 3])}
    nodes = []
    for k in range(LAYERS):
        arrays[f"W{k}"] = rng.normal(0, 0.4, (directions, GATES[op] * H, 3)).astype(np.float32)
        arrays[f"R{k}"] = rng.normal(0, 0.4, (directions, GATES[op] * H, H)).astype(np.float32)
        direction = "bidirectional" if directions == 2 else "forward"
        x = "X" if k == 0 else f"X{k}"
        made = [f"Y{k}", f"Y_h{k}"]
        nodes.append(
            helper.make_node(op, [x, f"W{k}", f"R{k}"], made, f"layer_{k}", hidden_size=H, direction=direction)
        )
        if k < LAYERS - 1:
            nodes.append(helper.make_node("Reshape", [f"Y{k}", "shape"], [f"X{k + 1}"]))
    return of_nodes(nodes, {"X": [time, "B", 3]}, dict.fromkeys((f"Y{LAYERS - 1}", f"Y_h{LAYERS - 1}")), arrays)


def dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


@pytest.mark.few(1)
@every_pair(op=GATES, form=["fused", "integer", "qcdq"], time=[4, "T"], directions=[1, 2])
def test_every_layer_has_its_batch(op: str, time: int | str, directions: int, form: str) -> None:
    made = model(op, time, directions)
    feeds = {"X": np.random.default_rng(1).normal(0, 1, (4, 7, 3)).astype(np.float32)}
    expected = run(plain_session(made), feeds)
    lowered = rnnqc.lower(made, form=form, strict=True).proto
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        stock, native = (session(lowered, way, level) for way in (STOCK, NATIVE))
        got = run(stock, feeds)
        assert_same_bits(got, run(native, feeds), level)
        assert all(sqnr(expected[n], got[n]) > 10 for n in expected), level


def test_the_name_of_a_batch_is_that_of_the_model() -> None:
    """Otherwise layers of one batch would not share the functions behind their nodes."""
    lowered = rnnqc.lower(model("LSTM", 4, 1)).proto
    assert [c.batch for c in Model.load(lowered).cells.values()] == ["B", None, None]
    named = [
        {d.dim_param for b in blocks_of([f]) if isinstance(b, onnx.GraphProto) for v in b.input for d in dims(v)} - {""}
        for f in lowered.functions
        if f.name.startswith("QuantLSTMCell")
    ]
    assert named == [{"B"}, set(), set()]
