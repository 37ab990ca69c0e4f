"""store-shapes: a state that only branches of a cell read, and whose shape is asked for, reaches the cell.

What these would catch: a lowered file that onnxruntime opens and cannot run without the native library ("Missing
Input"), and shapes that are stored although nothing is lost without.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, QCDQ
from rnnqc.ir import Model
from rnnqc.passes import StoreShapes
from tests.runs.sessions import Array, assert_same_bits, plain_session, run
from tests.subjects.protos import parse

HEAD = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,1,6] x, float[1,3,6] hs, float[1,3,6] cs) => (float[1,6] h_next, float[1,6] c_next)"""
READ = {
    "directly": "shape = Shape (c)",
    "behind another operator": "turned = Transpose <perm = [0, 1]> (c) shape = Shape (turned)",
}


def one_step(read: str) -> onnx.ModelProto:
    """A step whose states are cut from tensors; the new cell state is written back in the shape of the old one."""
    rng = np.random.default_rng(0)
    body = f"""{{
        one = Constant <value_int = 1> () zero = Constant <value_ints = [0]> ()
        h = Gather <axis = 1> (hs, one) c = Gather <axis = 1> (cs, one)
        h1 = Unsqueeze (h, zero) c1 = Unsqueeze (c, zero)
        none, h2, c2 = LSTM <hidden_size = 6> (x, W, R, , , h1, c1)
        h_next = Squeeze (h2, zero) made = Squeeze (c2, zero) {read} c_next = Expand (made, shape)
    }}"""
    proto = parse(f"{HEAD} {body}")
    for node in proto.graph.node:
        if node.op_type == "LSTM":
            node.output[0] = ""
    for name in "WR":
        array = rng.standard_normal((1, 24, 6)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    sizes = {"x": (1, 1, 6), "hs": (1, 3, 6), "cs": (1, 3, 6)}
    return {k: rng.standard_normal(v).astype(np.float32) for k, v in sizes.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("form", [FUSED, INTEGER, QCDQ])
def test_the_state_reaches_the_cell(form: str, read: str) -> None:
    proto = one_step(READ[read])
    lowered = rnnqc.lower(proto, form=form, verify=read == "directly").proto
    want, stock = run(plain_session(proto), feeds()), run(rnnqc.session(lowered, native=False), feeds())
    for name, value in want.items():
        np.testing.assert_allclose(stock[name], value, rtol=0, atol=0.1)
    if form != QCDQ:
        assert_same_bits(run(rnnqc.session(lowered), feeds()), stock, "with the native library and without")


def test_other_shapes_stay() -> None:
    """A float model has no branch that reads the state; a size that only a run knows is no constant."""
    assert not StoreShapes().run(Model.load(one_step(READ["directly"]))).modified
    proto = one_step(READ["directly"])
    for value in [*proto.graph.input, *proto.graph.output]:
        shape = value.type.tensor_type.shape.dim
        shape[len(shape) - 1 if value.name == "cs" else 0].dim_param = f"{value.name}_size"
    lowered = rnnqc.lower(proto).proto
    assert "Shape" in [n.op_type for n in lowered.graph.node]
