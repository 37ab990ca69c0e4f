"""Sums of products with a condition and its opposite, in loops, become choices.

What these would catch: sides exchanged, a sum of other products, a factor that is no condition; Keras' layers with a
mask of lengths (by tf2onnx) that stay loops.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, WriteChoices
from rnnqc.passes.pipeline import normal_form
from tests.passes.pass_testing import apply
from tests.subjects.protos import parse

NOT = "m = Greater (h, one) o = Not (m) a = Cast<to = 1> (m) b = Cast<to = 1> (o) new = Add (h, x)"
MINUS = "m = Greater (h, one) a = Cast<to = 1> (m) b = Sub (one, a) new = Add (h, x)"
SUM = "p = Mul (a, new) q = Mul (h, b) after = Add (p, q)"


def looped(nodes: str, outside: str = "y = Identity (last)") -> Model:
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x) => (float[2,3] y) {{
      one = Constant <value = float {{1.0}}> () trips = Constant <value = int64 {{2}}> ()
      two = Constant <value = float {{2.0}}> () always = Constant <value = bool {{1}}> ()
      last = Loop <body = b (int64 k, bool going, float[2,3] h) => (bool more, float[2,3] after)
        {{ more = Identity (going) {nodes} }}> (trips, always, x) {outside} }}"""
    model = Model.load(parse(text))
    PassManager([Canonicalize()]).run(model)
    return model


@pytest.mark.parametrize("condition", [NOT, MINUS], ids=["not", "1 - m"])
@pytest.mark.parametrize("sums", [SUM, SUM.replace("Add (p, q)", "Add (q, p)")])
def test_fires(condition: str, sums: str) -> None:
    model = looped(f"{condition} {sums}")
    assert apply(WriteChoices(), model).modified
    (node,) = [n for g in model.graphs() for n in g.nodes if n.op == "Where"]
    assert [v.name.rpartition("/")[2] for v in node.inputs] == ["m", "new", "h"]


KEPT = {
    "the same condition twice": f"{NOT.replace('o = Not (m)', 'o = Identity (m)')} {SUM}",
    "another number": f"{MINUS.replace('Sub (one', 'Sub (two')} {SUM}",
    "a factor that is no condition": f"{MINUS.replace('a = Cast<to = 1> (m)', 'a = Sigmoid (h)')} {SUM}",
    "a difference": f"{NOT} {SUM.replace('Add (p', 'Sub (p')}",
}


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    assert not apply(WriteChoices(), looped(KEPT[name])).modified


@pytest.mark.parametrize("perm", [[1, 0, 2], [0, 1, 2]])
def test_a_mask_of_lengths_as_keras_writes_it(perm: list[int]) -> None:
    """The mask is [B,T] and read through a view; outputs after the end are zeros."""
    rng = np.random.default_rng(2)
    text = f"""<ir_version: 10, opset_import: ["": 17]> g (float[T,B,5] x, int32[B] n)
      => (float[D,E,8] y, float[E,8] h) {{
      size = Shape (x) T = Gather (size, zero) rows = Slice (size, at1, at2) shape = Concat<axis = 0> (rows, units)
      start = Expand (nothing, shape) r = Range (zero, T, one) counter = Cast<to = 1> (r)
      column = Unsqueeze (n, at1) lengths = Cast<to = 1> (column) compared = Less (counter, lengths)
      wide = Unsqueeze (compared, last) mask = Transpose<perm = {perm}> (wide)
      h, y = Loop (T, , start) <body = b (int64 i, bool c, float[B,8] before)
        => (bool more, float[B,8] after, float[B,8] out) {{
        more = Identity (c) element = Gather (x, i) m = Gather (mask, i) p = MatMul (element, W) q = MatMul (before, R)
        s = Add (p, q) new = Tanh (s) o = Not (m) a = Cast<to = 1> (m) b_ = Cast<to = 1> (o)
        kept = Mul (before, b_) taken = Mul (new, a) after = Add (taken, kept)
        none = Mul (nothing, b_) some = Mul (new, a) out = Add (some, none) }}> }}"""
    ints = {"zero": 0, "one": 1, "at1": [1], "at2": [2], "last": [-1], "units": [8]}
    floats = {"W": rng.normal(0, 0.5, (5, 8)), "R": rng.normal(0, 0.5, (8, 8)), "nothing": 0.0}
    proto = parse(
        text,
        **{k: np.array(v, np.int64) for k, v in ints.items()},
        **{k: np.asarray(v, np.float32) for k, v in floats.items()},
    )
    model = Model.load(proto)
    PassManager(normal_form()).run(model)
    nodes = [n for g in model.graphs() for n in g.nodes]
    whole = perm == [1, 0, 2]
    assert not any(n.op == "Loop" for n in nodes)
    (layer,) = [n for n in nodes if n.op == "RNN"]
    assert layer.inputs[4].name
    # Elements of the other view are rows, not steps: it runs with as many of both.
    assert any(n.op == "TopK" for n in nodes) == (not whole)
    steps = 6 if whole else 3
    feeds = {"x": rng.normal(0, 1, (steps, 3, 5)).astype(np.float32), "n": np.array([steps, 2, 1], np.int32)}
    wanted, got = run_model(proto, feeds), run_model(model.proto, feeds)
    for key in wanted:
        np.testing.assert_allclose(got[key], wanted[key], atol=1e-5)
