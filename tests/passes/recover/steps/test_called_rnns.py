"""Steps of RNN layers that run once in each call of a model, with the state as input and output.

What these would catch: a stream over `torch.nn.RNN` (by torch's dynamo exporter, darts' `to_onnx`) that stays float and
passes --strict; a dense layer taken for a recurrent one; a state that is read as the input.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.state_hints import likely_states
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import run_model
from tests.subjects.protos import parse

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
INNER = "p = MatMul (x, W) q = MatMul ({h}, R) m = Add (p, q) n = Tanh (m)"
LAYERS = f"""i0 = Constant<value_ints = [0]> () i1 = Constant<value_ints = [1]> ()
h0, h1 = Split<axis = 0> (h, i) s0 = Squeeze (h0, i0) s1 = Squeeze (h1, i0)
{INNER.format(h="s0")} p1 = MatMul (n, R) q1 = MatMul (s1, Q) m1 = Add (p1, q1) n1 = Tanh (m1)
u0 = Unsqueeze (n, i0) u1 = Unsqueeze (n1, i0) hn = Concat<axis = 0> (u0, u1) y = Identity (n1)"""
STATES = {
    "the layout of torch.nn.RNN": ("float[1,B,12] x, float[1,B,16] h", "float[1,B,16] n", INNER.format(h="h"), 1),
    "names": ("float[B,12] x, float[B,16] state_in_0", "float[B,16] state_out_0", "", 1),
    "two layers in one state": ("float[B,12] x, float[2,B,16] h", "float[2,B,16] hn, float[B,16] y", LAYERS, 2),
}
OTHERS = {
    "two inputs of a dense layer": ("float[B,12] x, float[B,16] h", "float[B,16] n", INNER.format(h="h")),
    "the state of another output": (
        "float[1,B,12] x, float[1,B,16] h",
        "float[1,B,16] out, float[1,B,10] n",
        f"{INNER.format(h='h').replace('n = Tanh (m)', 't = Tanh (m) n = MatMul (t, P)')} out = Neg (t)",
    ),
}


def _model(inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    weights = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in SHAPES.items() if f" {n})" in body}
    given = {"i": np.array([1, 1])} if "Split" in body else {}
    return parse(f"{HEAD}({inputs}) => ({outputs}) {{ {body} }}", **weights, **given)


SHAPES = {"W": (12, 16), "R": (16, 16), "Q": (16, 16), "P": (16, 10)}


@pytest.mark.parametrize("name", STATES)
def test_the_step_is_a_layer(name: str) -> None:
    inputs, outputs, body, layers = STATES[name]
    body = body or INNER.format(h="state_in_0").replace("n = Tanh", "state_out_0 = Tanh")
    model = _model(inputs, outputs, body)
    lowered = rnnqc.lower(model, strict=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [("RNN", "lowered")] * layers
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.normal(0, 0.5, [d.dim_value or 3 for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
    }
    wanted, got = run_model(model, feeds), run_model(lowered.proto, feeds)
    for key in wanted:
        np.testing.assert_allclose(got[key], wanted[key], atol=0.03)


def test_names_decide_between_operands_of_one_shape() -> None:
    body = "p = MatMul (x, R) q = MatMul (h, Q) m = Add (p, q) n = Tanh (m)"
    for names in (("x", "h", "n"), ("x", "h_in", "h_out"), ("h_in", "x", "h_out")):
        x, h, n = names
        text = body.replace("(x,", f"({x},").replace("(h,", f"({h},").replace("n = Tanh", f"{n} = Tanh")
        model = _model(f"float[1,B,16] {x}, float[1,B,16] {h}", f"float[1,B,16] {n}", text)
        if n == "n":
            report = rnnqc.lower(model).report
            assert [e.status for e in report.entries] == ["float"] and "name its inputs" in report.entries[0].action
            with pytest.raises(CompileError, match="strict"):
                rnnqc.lower(model, strict=True)
        else:
            assert likely_states(rnnqc.lower(model, strict=True).proto) == {"h_in": "h_out"}


@pytest.mark.parametrize("name", OTHERS)
def test_other_dense_layers_are_left_alone(name: str) -> None:
    assert rnnqc.lower(_model(*OTHERS[name])).report.entries == []
