"""SequenceMap becomes a Loop, in which cells and linear layers may be functions.

What these would catch: elements, tensors that every element gets, or results exchanged; a lowered model that
onnxruntime refuses.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, WriteSequenceMaps
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import NATIVE, STOCK
from tests.runs.lowered import session as session_of
from tests.runs.sessions import run
from tests.subjects.protos import parse

MAP = """<ir_version: 10, opset_import: ["": 20]>
g (float[2,6,3] x, float[2,3] z) => (float[N,2,M,3] y, float[N,2,M,3] d)
{ s = SplitToSequence <axis = 1> (x, two) r = SequenceInsert (s, x)
  p, q = SequenceMap <body = b (float[2,L,3] e, float[2,3] other, float[2,L,3] own)
      => (float[2,L,3] sum, float[2,L,3] same)
    { w = Unsqueeze (other, one) m = Mul (own, e) sum = Add (m, w) same = Identity (own) }> (s, z, r)
  y = ConcatFromSequence <axis = 0, new_axis = 1> (p) d = ConcatFromSequence <axis = 0, new_axis = 1> (q) }"""


def _model(text: str, **arrays: np.ndarray) -> Model:
    model = Model.load(parse(text, two=np.array(2), one=np.array([1]), **arrays))
    PassManager([Canonicalize()]).run(model)
    return model


def test_fires() -> None:
    """Two sequences, a tensor for all elements, and two results."""
    model = _model(MAP)
    assert apply(WriteSequenceMaps(), model).statistics == {"maps": 1}
    assert not nodes_of(model, "SequenceMap")
    (loop,) = nodes_of(model, "Loop")
    assert [n.op for n in loop.attrs["body"].nodes[:3]] == ["SequenceAt", "Identity", "SequenceAt"]


def test_in_a_branch() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (bool c, float[2,6,3] x) => (float[2,6,3] y)
    { s = SplitToSequence <axis = 1> (x, two)
      y = If (c) <then_branch = t () => (float[2,6,3] u) { m = SequenceMap <body = b (float[2,L,3] e)
        => (float[2,L,3] n) { n = Tanh (e) }> (s) u = ConcatFromSequence <axis = 1> (m) }, else_branch = o ()
        => (float[2,6,3] v) { v = Relu (x) }> }"""
    assert apply(WriteSequenceMaps(), _model(text)).statistics == {"maps": 1}


def test_other_models_stay() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2,6,3] x) => (float[2,6,3] y)
    { s = SplitToSequence <axis = 1> (x, two) y = ConcatFromSequence <axis = 1> (s) }"""
    assert not apply(WriteSequenceMaps(), _model(text)).modified


@pytest.mark.parametrize("rest", ["float", "int8"])
def test_a_layer_in_a_map(rest: str) -> None:
    rng = np.random.default_rng(0)
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[9,4,8] x) => (float[9,4,8] y)
    { s = SplitToSequence <axis = 1> (x, two)
      m = SequenceMap <body = b (float[9,L,8] e) => (float[9,L,8] n)
        { a = GRU <hidden_size = 32> (e, W, R) f = Squeeze (a, one) n = MatMul (f, P) }> (s)
      y = ConcatFromSequence <axis = 1> (m) }"""
    shapes = {"W": (1, 96, 8), "R": (1, 96, 32), "P": (32, 8)}
    proto = parse(text, two=np.array(2), one=np.array([1]),
                  **{k: rng.normal(0, 0.3, v).astype(np.float32) for k, v in shapes.items()})  # fmt: skip
    feeds = {"x": rng.standard_normal((9, 4, 8)).astype(np.float32)}
    lowered = rnnqc.lower(proto, rest=rest, strict=True)
    expected = run_model(proto, feeds)["y"]
    stock, native = (run(session_of(lowered.proto, how), feeds)["y"] for how in (STOCK, NATIVE))
    assert stock.tobytes() == native.tobytes()
    assert sqnr_db(expected, stock) > 30
