"""fold-weights: weights around the recurrent layers that a model computes from constants become constants.

What these would catch: a weight that stays float and unnamed because a Split or a Cast stands in front of it, quantized
values that are quantized once more, a large weight made of a small one, a source that is kept beside what it became.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, FoldWeights, PassManager
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import INTEGER, run_both, session
from tests.runs.sessions import Array, assert_same_bits, plain_session, run, sqnr
from tests.subjects.protos import parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,64] x)'
CASES = {
    "Split": ("(float[N,M] y, float[N,M] z)", "p, q = Split <axis = 1> (w) y = MatMul (x, p) z = MatMul (x, q)"),
    "Slice": ("(float[N,M] y)", "p = Slice (w, zero, forty, one) y = MatMul (x, p)"),
    "Cast of float16": ("(float[N,M] y)", "p = Cast <to = 1> (h) y = Gemm (x, p)"),
    "Cast and Transpose": ("(float[N,M] y)", "p = Cast <to = 1> (t) q = Transpose (p) y = MatMul (x, q)"),
    "weight norm": ("(float[N,M] y)", "s = ReduceL2 <axes = [0]> (w) d = Div (w, s) p = Mul (d, g) y = MatMul (x, p)"),
    "in a branch": (
        "(float[N,M] y)",
        """z = Size (x) c = Equal (z, z) y = If (c) <
            then_branch = a () => (float[N,M] q) { p = Concat <axis = 0> (k, k) q = MatMul (x, p) },
            else_branch = b () => (float[N,M] r) { r = Neg (x) }
        >""",
    ),
}
"""Outputs and nodes."""
WEIGHTS: dict[str, Array] = {
    "w": np.random.default_rng(0).standard_normal((64, 80)).astype(np.float32),
    "h": np.random.default_rng(1).standard_normal((64, 80)).astype(np.float16),
    "t": np.random.default_rng(2).standard_normal((80, 64)).astype(np.float16),
    "k": np.random.default_rng(3).standard_normal((32, 80)).astype(np.float32),
    "g": np.linspace(0.5, 2.0, 80, dtype=np.float32),
    "zero": np.array([0]), "forty": np.array([40]), "one": np.array([1]),
}  # fmt: skip


def _model(outputs: str, nodes: str) -> Model:
    used = {n: a for n, a in WEIGHTS.items() if f"({n}" in nodes or f", {n}" in nodes}
    model = Model.load(parse(f"{HEAD} => {outputs} {{ {nodes} }}", **used))
    PassManager([Canonicalize()]).run(model)
    return model


@pytest.mark.parametrize("name", CASES)
def test_computed_weights(name: str) -> None:
    model = _model(*CASES[name])
    x = np.random.default_rng(4).standard_normal((5, 64)).astype(np.float32)
    expected = run(plain_session(model.proto), {"x": x})
    assert apply(FoldWeights(), model, [{"x": x}]).modified
    assert not nodes_of(model, "Split", "Slice", "Cast", "Transpose", "Mul", "Concat")
    lowered = {form: rnnqc.lower(_model(*CASES[name]).proto, rest="int8", form=form) for form in ("fused", "integer")}
    assert {e.status for e in lowered["fused"].report.rest.entries} == {"quantized"}
    stock = run_both(lowered["fused"].proto, {"x": x})
    assert min(sqnr(expected[n], stock[n]) for n in stock) > 40
    assert_same_bits(stock, run(session(lowered["integer"].proto, INTEGER), {"x": x}), "integer")
    floats = sum(t.ByteSize() for t in lowered["fused"].proto.graph.initializer if t.data_type in (1, 10))
    assert floats < 2000


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [
        ("(float[N,M] y)", "p = Transpose <perm = [1, 0]> (k) q = Transpose <perm = [1, 0]> (p) y = MatMul (q, x)"),
        ("(float[N,M] y)", "r = Round (w) y = MatMul (x, r)"),
        ("(float[N,M] y)", "i = Cast <to = 3> (w) r = Cast <to = 1> (i) s = Mul (r, g) y = Gemm (x, s)"),
        ("(float[N,M] y)", "p = Mul (w, w) y = Add (p, g)"),
        ("(float[N,M] y)", "p = Mul (x, x) y = MatMul (p, w)"),
    ],
    ids=["views", "rounded", "quantized", "no weight", "data"],
)
def test_what_stays(outputs: str, nodes: str) -> None:
    assert not FoldWeights()(_model(outputs, nodes)).modified


def test_by_default_nothing_is_folded() -> None:
    proto = _model(*CASES["Cast of float16"]).proto
    assert [n.op_type for n in rnnqc.lower(proto).proto.graph.node] == ["Cast", "Gemm"]
