"""fold-constants: what is known before a run is computed, and branches that are known are taken.

What these would catch: a size that is taken for known, a weight or codes that become a copy of their own, a branch
under names that another graph has, an output that loses its name, a value that is no longer made.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.errors import Outcome
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, FoldConstants, PassManager
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.protos import parse

KNOWN = '<ir_version: 10, opset_import: ["": 17]> g (float[1, T, 6] x) => (float[N, M] y)\n<{}> {{\n{}\n}}'
FOLDED = {
    "a size among unknown ones": (
        "int64 last = {2}, int64[1] minus = {-1}",
        """s = Shape (x) n = Gather (s, last) u = Unsqueeze (n, zero) d = Concat <axis = 0> (minus, u) y = Reshape
        (x, d)""",
        ["Reshape"],
    ),
    "some sizes of a shape": (
        "int64[1] one = {1}, int64[1] three = {3}, int64[1] minus = {-1}",
        "s = Shape (x) n = Slice (s, minus, three) d = Concat <axis = 0> (minus, n) y = Reshape (x, d)",
        ["Reshape"],
    ),
    "attributes of Shape": (
        "int64[1] minus = {-1}",
        "n = Shape <start = -1> (x) d = Concat <axis = 0> (minus, n) y = Reshape (x, d)",
        ["Reshape"],
    ),
    "what a Constant node makes": (
        "",
        """a = Constant <value_ints = [-1]> () b = Constant <value_ints = [6]> () d = Concat <axis = 0> (a, b) y =
        Reshape (x, d)""",
        ["Reshape"],
    ),
    "conditions": (
        "int64 first = {0}, int64 one = {1}",
        """s = Shape (x) n = Gather (s, first) c = Equal (n, one) z = If (c) <then_branch = t () => (r) { r =
        Squeeze (x, zero) }, else_branch = e () => (r) { r = Relu (x) }> y = Neg (z)""",
        ["Neg", "Squeeze"],
    ),
    "an If in a branch that is taken": (
        "bool no = {0}",
        """y = If (no) <then_branch = t () => (a) { a = Relu (x) }, else_branch = e () => (b) { b = If (no)
        <then_branch = t2 () => (a) { a = Neg (x) }, else_branch = e2 () => (a) { a = Squeeze (x, zero) }> }>""",
        ["Squeeze"],
    ),
}
"""Initializers, nodes, and the operators that stay."""
KEPT = {
    "a size that is not known": "one = Constant <value_int = 1> () s = Shape (x) n = Gather (s, one)"
    " u = Unsqueeze (n, zero) m = Constant <value_ints = [-1]> () d = Concat <axis = 0> (u, m) y = Reshape (x, d)",
    "all sizes of a shape": "s = Shape (x) q = Squeeze (x, zero) k = Sub (s, s) c = ReduceSum <keepdims = 0> (k)"
    " f = Cast <to = 1> (c) y = Add (q, f)",
    "a large weight": "q = Squeeze (x, zero) t = Transpose (W) y = MatMul (q, t)",
    "codes": "q = Squeeze (x, zero) w = DequantizeLinear (C, scale) y = MatMul (q, w)",
    "random numbers": "q = Squeeze (x, zero) r = RandomNormal <shape = [6], scale = 0.0> () y = Add (q, r)",
    "a condition that is not known": "l = ReduceMax <keepdims = 0> (x) b = Cast <to = 9> (l) y = If (b)"
    " <then_branch = t () => (r) { r = Squeeze (x, zero) }, else_branch = e () => (q) { q = Squeeze (x, zero) }>",
}


def known(initializers: str, nodes: str) -> Model:
    """A model with these in normal form; `W [600,6]`, codes `C [6,4]` and `zero` are there, too."""
    arrays = {"W": np.ones((600, 6), np.float32), "C": np.ones((6, 4), np.int8), "zero": np.zeros(1, np.int64)}
    arrays["scale"] = np.float32(0.5)
    model = Model.load(parse(KNOWN.format(initializers, nodes), **arrays))
    PassManager([Canonicalize()]).run(model)
    return model


@pytest.mark.parametrize("name", FOLDED)
def test_known_values_are_computed(name: str) -> None:
    initializers, nodes, left = FOLDED[name]
    model = known(initializers, nodes)
    assert apply(FoldConstants(), model).modified
    assert sorted(n.op for n in nodes_of(model) if n.op != "Constant") == left
    assert [v.name for v in model.graph.outputs] == ["y"]


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_known_or_is_a_weight_stays(name: str) -> None:
    assert not apply(FoldConstants(), known("", KEPT[name])).modified


def test_outputs_keep_their_names() -> None:
    """A branch returns a constant, a copy of another result, and has a value of a name that is in use."""
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2] x, bool maybe) => (float[2] b, float[2] c,
    float[2] d, float[2] e) <bool yes = {1}, float[2] k = {1.0, 2.0}> {
      r = Neg (x)
      b, c, d, z = If (yes) <
      then_branch = t () => (float[2] k2, float[2] s, float[2] s2, float[2] u) <float[2] k2 = {3.0, 4.0}> {
        s = Relu (x) s2 = Identity (s) w = Add (s, k2)
        u = If (maybe) <then_branch = t2 () => (float[2] v) { v = Add (w, s) },
        else_branch = e2 () => (float[2] v) { v = Identity (w) }> },
      else_branch = el () => (float[2] r2, float[2] r3, float[2] r4, float[2] r5) {
        r2 = Neg (x) r3 = Identity (r2) r4 = Identity (r2) r5 = Identity (r2) }>
      w = Mul (r, z)
      e = Add (w, k)
    }"""
    model = Model.load(parse(text))
    PassManager([Canonicalize()]).run(model)
    assert FoldConstants()(model).statistics == {"folded": 0, "branches": 1, "narrowed": 0}
    assert len(nodes_of(model, "If")) == 1
    x, k2 = np.array([-1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)
    s = np.maximum(x, 0)
    for maybe, u in ((True, s + k2 + s), (False, s + k2)):
        expected = {"b": k2, "c": s, "d": s, "e": -x * u + np.array([1.0, 2.0], np.float32)}
        assert_same_bits(expected, run(plain_session(model.proto), {"x": x, "maybe": np.array(maybe)}), "outputs")


def test_recurrent_layers_in_branches_keep_their_names() -> None:
    """Unless both branches have a layer of that name: then the path identifies it."""
    branch = "{} () => (Y) {{ [{}] Y = RNN <hidden_size = 4> (x, W, R) }}"
    for names, expected in ((("left", "right"), "left"), (("same", "same"), "Z:If/then_branch/same")):
        branches = ", ".join(
            f"{b} = {branch.format(b[0], n)}" for b, n in zip(("then_branch", "else_branch"), names, strict=True)
        )
        text = f"""<ir_version: 10, opset_import: ["": 17]> g (float[T, 1, 3] x) => (float[T, 1, 1, 4] Z)
        <bool yes = {{1}}> {{ Z = If (yes) <{branches}> }}"""
        arrays = {"W": np.ones((1, 4, 3), np.float32), "R": np.ones((1, 4, 4), np.float32)}
        model = Model.load(parse(text, **arrays))
        PassManager([Canonicalize()]).run(model)
        (note,) = apply(FoldConstants(), model).remarks
        assert [n.name for n in nodes_of(model, "RNN")] == [expected]
        assert (note.outcome, note.node) == (Outcome.NOTE, f"Z:If/else_branch/{names[1]}")
