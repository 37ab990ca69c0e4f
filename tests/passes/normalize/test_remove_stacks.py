"""A value that is taken from a stack becomes the stacked operand; ranges of several operands stay.

What these would catch: an operand beside the one that is meant, sizes that are not known, an axis that is lost or kept,
two layers of LSTM cells with stacked states that stay a loop of other operators, slower than in float.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RemoveStacks
from tests.passes.pass_testing import apply, nodes_of
from tests.subjects.protos import parse

HEAD = '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] a, float[2,3] b, float[N,2,3] u) => (float[M,K] o)'
STACK = "na = Neg (a) nb = Exp (b) ua = Unsqueeze (na, at0) ub = Unsqueeze (nb, at0) s = Concat <axis = 0> (ua, ub) "
OPERANDS = {
    "first": np.array(0), "last": np.array(-1), "at0": np.array([0]), "at1": np.array([1]), "at2": np.array([2]),
    "both": np.array([0, 1]), "ends": np.array([2**63 - 1]), "twos": np.array([2, 2]),
}  # fmt: skip


def canonical(nodes: str) -> Model:
    model = Model.load(parse(f"{HEAD} {{ {nodes} }}", **OPERANDS))
    PassManager([Canonicalize()]).run(model)
    return model


TAKEN = {
    "the first": "t = Gather (s, first) o = Relu (t)",
    "the last": "t = Gather (s, last) o = Relu (t)",
    "a Slice": "t = Slice (s, at1, ends, at0) r = Squeeze (t, at0) o = Relu (r)",
    "a Split": "t, r = Split <axis = 0, num_outputs = 2> (s) q = Squeeze (r, at0) o = Relu (q)",
    "a stack of stacks": "v = Concat <axis = 0> (ub, ua) w = Concat <axis = 0> (s, v) "
    "p, q = Split <axis = 0> (w, twos) t = Gather (q, first) o = Relu (t)",
    "columns": "v = Concat <axis = 1> (na, nb) c, d = Split <axis = 1, num_outputs = 2> (v) o = Relu (d)",
}
TAKEN_WITH = {"the first": "Neg", "a Slice": "Exp Unsqueeze Squeeze", "a Split": "Exp Unsqueeze Squeeze"}


@pytest.mark.parametrize("case", TAKEN)
def test_takes(case: str) -> None:
    """`apply` compares bits, runs the checker, and runs the pass twice."""
    model = canonical(STACK + TAKEN[case])
    assert apply(RemoveStacks(), model).modified
    assert [n.op for n in nodes_of(model)] == [*TAKEN_WITH.get(case, "Exp").split(), "Relu"]


def test_takes_an_operand_whose_axis_no_unsqueeze_has_added() -> None:
    cut = "d, e = Split <axis = 0, num_outputs = 2> (na) v = Concat <axis = 0> (e, d) t = Gather (v, last) "
    model = canonical(f"{STACK} {cut} k = Unsqueeze (t, at0) o = Relu (k)")
    assert apply(RemoveStacks(), model).modified
    assert [n.op for n in nodes_of(model)] == ["Neg", "Split", "Squeeze", "Unsqueeze", "Relu"]


KEPT = {
    "both operands": "t = Gather (s, both) q = ReduceSum <keepdims = 0> (t, at0) o = Relu (q)",
    "a part of each": "v = Concat <axis = 1> (na, nb) t = Slice (v, at1, at2, at1) o = Relu (t)",
    "along another axis": "t = Gather <axis = 1> (s, first) o = Relu (t)",
    "behind one of unknown size": "v = Concat <axis = 0> (u, s) t = Gather (v, last) o = Relu (t)",
    "an unknown index": "k = Cast <to = 7> (u) m = ReduceMin <keepdims = 0> (k) t = Gather (s, m) o = Relu (t)",
    "an output of the model": "o = Gather (s, first)",
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    """One test for each precondition."""
    assert not RemoveStacks()(canonical(STACK + KEPT[case])).modified


def stacked_layers(steps: int = 3) -> str:
    """Two layers of LSTM cells, whose states lie in one tensor each between the steps."""
    text, states = "", ("h0", "c0")
    for t in range(steps):
        text += f"x{t} = Gather (x, n{t}) "
        below = f"x{t}"
        for k in range(2):
            i = f"{t}{k}"
            text += f"h{i} = Gather ({states[0]}, n{k}) c{i} = Gather ({states[1]}, n{k}) "
            text += f"p{i} = MatMul ({below}, W{k}) q{i} = MatMul (h{i}, R{k}) m{i} = Add (p{i}, q{i}) "
            text += f"i{i}, f{i}, g{i}, o{i} = Split <axis = 1, num_outputs = 4> (m{i}) "
            text += f"I{i} = Sigmoid (i{i}) F{i} = Sigmoid (f{i}) G{i} = Tanh (g{i}) O{i} = Sigmoid (o{i}) "
            text += f"k{i} = Mul (F{i}, c{i}) a{i} = Mul (I{i}, G{i}) cn{i} = Add (k{i}, a{i}) T{i} = Tanh (cn{i}) "
            text += f"hn{i} = Mul (O{i}, T{i}) uh{i} = Unsqueeze (hn{i}, at0) uc{i} = Unsqueeze (cn{i}, at0) "
            below = f"hn{i}"
        states = f"hs{t}", f"cs{t}"
        text += f"hs{t} = Concat <axis = 0> (uh{t}0, uh{t}1) cs{t} = Concat <axis = 0> (uc{t}0, uc{t}1) "
    return text + f"y = Concat <axis = 0> ({', '.join(f'uh{t}1' for t in range(steps))})"


def test_layers_whose_states_are_stacked_become_one_node_each() -> None:
    rng = np.random.default_rng(0)
    shapes = {"W0": (5, 32), "W1": (8, 32), "R0": (8, 32), "R1": (8, 32)}
    weights = {n: rng.normal(0, 0.4, shape).astype(np.float32) for n, shape in shapes.items()}
    head = HEAD.partition("(")[0] + "(float[3,B,5] x, float[2,B,8] h0, float[2,B,8] c0) => (float[3,B,8] y)"
    numbers = {f"n{k}": np.array(k) for k in range(3)}
    model = parse(f"{head} {{ {stacked_layers()} }}", **weights, **numbers, at0=np.array([0]))
    lowered = rnnqc.lower(model, strict=True)
    assert [e.op for e in lowered.report.entries] == ["LSTM", "LSTM"]
    assert rnnqc.verify(model, lowered, native=True, min_sqnr=15).ok
