"""Loops over steps as jax2onnx writes `jax.lax.scan`, for Keras with the backend of JAX and for functions.

What these would catch: a layer that stays a loop, or steps in one, because every state goes through a Cast to the type
that it has, because the body does not declare how wide states are, or because its rows have names of their own.
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
from tests.laws.law import law
from tests.runs.lowered import INTEGER
from tests.subjects.protos import parse

T, I, H = 5, 6, 8  # noqa: E741 - as in equations
BOTH = "p = MatMul (x, W) q = MatMul (h, R) pq = Add (p, q)"
ONE_PRODUCT = "xh = Concat <axis = 1> (x, h) pq = Gemm <beta = 0.0> (xh, WR, none)"
LSTM_GATES = """ g = Add (pq, b) a0, a1, a2, a3 = Split <axis = 1, num_outputs = 4> (g)
  i = Sigmoid (a0) f = Sigmoid (a1) fc = Mul (f, c) n = Tanh (a2) in = Mul (i, n) c_new = Add (fc, in)
  o = Sigmoid (a3) t = Tanh (c_new) h_new = Mul (o, t)"""
STEPS = {
    "LSTM": (BOTH + LSTM_GATES, 4),
    "LSTM, one product": (ONE_PRODUCT + LSTM_GATES, 4),
    "GRU": (
        """p = MatMul (x, W) pb = Add (p, b) q = MatMul (h, R) p0, p1, p2 = Split <axis = 1, num_outputs = 3> (pb)
        q0, q1, q2 = Split <axis = 1, num_outputs = 3> (q) s0 = Add (p0, q0) z = Sigmoid (s0) s1 = Add (p1, q1)
        r = Sigmoid (s1) rq = Mul (r, q2) s2 = Add (p2, rq) n = Tanh (s2) zh = Mul (z, h) u = Sub (one, z)
        un = Mul (u, n) h_new = Add (zh, un)""",
        3,
    ),
    "RNN": (BOTH + " s = Add (pq, b) h_new = Tanh (s)", 1),
}


def looped(kind: str, step: str | None = None) -> onnx.ModelProto:
    """A layer that starts from zeros and gives all hidden states."""
    text, gates = STEPS[kind]
    text = text if step is None else step
    cell = kind.startswith("LSTM")
    formal, new, start = (", float[?,?] c", ", float[?,?] c_out", ", zeros") if cell else ("", "", "")
    rng = np.random.default_rng(0)
    arrays = {
        "W": rng.standard_normal((I, gates * H)).astype(np.float32) * np.float32(0.4),
        "R": rng.standard_normal((H, gates * H)).astype(np.float32) * np.float32(0.3),
        "b": rng.standard_normal(gates * H).astype(np.float32) * np.float32(0.2),
    }
    if "WR" in text:
        arrays = {"WR": np.concatenate([arrays["W"], arrays["R"]]), "b": arrays["b"]}
    body = f"""body (int64 i_th, bool going, float[?,?] h{formal}, float[{T},B,{I}] seq)
      => (bool more, float[?,?] h_out{new}, float[{T},B,{I}] seq_out, float[?,?] y_t) {{
      x = Gather <axis = 0> (seq, i_th) {text}
      more = Identity (going) h_out = Cast <to = 1> (h_new) {"c_out = Cast <to = 1> (c_new)" if cell else ""}
      seq_out = Identity (seq) y_t = Cast <to = 1> (h_out) }}"""
    return parse(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[B,{T},{I}] input) => (float[{T},B,{H}] y) {{
        seq = Transpose <perm = [1, 0, 2]> (input) sizes = Shape <start = 0, end = 1> (input)
        wide = Constant <value = int64[1] {{{H}}}> () shape = Concat <axis = 0> (sizes, wide)
        zero = Constant <value = float {{0.0}}> () one = Constant <value = float {{1.0}}> ()
        none = Constant <value = float {{0.0}}> () zeros = Expand (zero, shape)
        trips = Constant <value = int64 {{{T}}}> () always = Constant <value = bool {{1}}> ()
        h_last, {"c_last, " if cell else ""}seq_last, y = Loop <body = {body}> (trips, always, zeros{start}, seq) }}""",
        **arrays,
    )


def feed() -> dict[str, np.ndarray]:
    return {"input": np.random.default_rng(1).standard_normal((3, T, I)).astype(np.float32)}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", STEPS)
def test_becomes_one_layer(kind: str) -> None:
    proto = looped(kind)
    model = Model.load(proto)
    PassManager(normal_form()).run(model)
    recurrent = [n.op for g in model.graphs() for n in g.nodes if n.op in ("LSTM", "GRU", "RNN", "Loop", "Scan")]
    assert recurrent == [kind.split(",")[0]]
    np.testing.assert_allclose(run_model(model.proto, feed())["y"], run_model(proto, feed())["y"], rtol=0, atol=1e-5)
    law(proto, feeds=[feed()], settings=(), ways=[INTEGER])


def test_other_cells_have_products_without_a_bias() -> None:
    """A Gemm with an ineffective third operand is a matmul like any other."""
    step = ONE_PRODUCT + " s = Softmax <axis = -1> (pq) d = Mul (s, s) h_new = Tanh (d)"
    lowered = rnnqc.lower(looped("RNN", step), strict=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [("Scan", "lowered")]
    expected = run_model(looped("RNN", step), feed())["y"]
    np.testing.assert_allclose(run_model(lowered.proto, feed())["y"], expected, rtol=0, atol=0.02)
