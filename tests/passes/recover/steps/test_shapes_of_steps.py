"""Steps that a model computes for their shape alone.

What these would catch: Keras' masked layers by tf2onnx, whose step in front of the loop stayed float, so that --strict
refused them; a shape of other rows than the step's; a step that is dropped though its values are used.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form
from tests.subjects.protos import parse

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
LSTM = """p = MatMul (x, W) q = MatMul (h, R) m = Add (p, q) s = Add (m, b) i, f, g_, o = Split<axis = 1> (s)
I = Sigmoid (i) F = Sigmoid (f) G = Tanh (g_) O = Sigmoid (o) kept = Mul (F, h) added = Mul (I, G)
c_next = Add (kept, added) C = Tanh (c_next) h_next = Mul (O, C)"""
GRU = """p = MatMul (x, W) q = MatMul (h, R) pz, pr, ph, p4 = Split<axis = 1> (p) qz, qr, qh, q4 = Split<axis = 1> (q)
az = Add (pz, qz) ar = Add (pr, qr) z = Sigmoid (az) r = Sigmoid (ar) rq = Mul (r, qh) an = Add (ph, rq) n = Tanh (an)
nz = Sub (one, z) zh = Mul (z, h) zn = Mul (nz, n) h_next = Add (zh, zn)"""


def _model(step: str, used: str) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    text = f"""{HEAD}(float[A, 12] x, float[B, 1] rows) => (float[C, 8] y) {{
      size = Shape (rows) first = Slice (size, at0, at1) shape = Concat<axis = 0> (first, units)
      h = Expand (zero, shape)
      {step} like = Shape (h_next) zeros = ConstantOfShape (like) {used} }}"""
    held = {"W": (12, 32), "R": (8, 32), "b": (32,)}
    floats = {n: rng.normal(0, 0.4, s).astype(np.float32) for n, s in held.items()}
    floats |= {"zero": np.float32(0), "one": np.float32(1)}
    return parse(text, **floats, at0=np.array([0]), at1=np.array([1]), units=np.array([8]))


@pytest.mark.parametrize("step", [LSTM, GRU], ids=["LSTM", "GRU"])
@pytest.mark.parametrize(("a", "b"), [(3, 3), (3, 1), (1, 3)])
def test_the_shape_is_computed_without_the_step(step: str, a: int, b: int) -> None:
    model = _model(step, "y = Add (zeros, one)")
    lowered = rnnqc.lower(model, strict=True)
    assert lowered.report.entries == []
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    assert not {"MatMul", "Tanh", "LSTM", "GRU"} & {n.op for n in loaded.graph.nodes}
    feeds = {"x": np.ones((a, 12), np.float32), "rows": np.ones((b, 1), np.float32)}
    np.testing.assert_array_equal(run_model(lowered.proto, feeds)["y"], run_model(model, feeds)["y"])


def test_a_step_whose_values_are_used_stays() -> None:
    model = _model(GRU, "y = Add (zeros, h_next)")
    assert [e.op for e in rnnqc.lower(model).report.entries] == ["GRU"]
