"""Masks over the states of unrolled steps that no step is held by go; all other choices stay.

What these would catch: a mask that holds a step and is lost, a choice between values of other shapes, a layer that is
not found behind its masks.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RemoveOpenMasks
from tests.passes.pass_testing import apply, nodes_of
from tests.subjects.protos import parse

STEPS = 4
WEIGHTS = {
    "W": np.random.default_rng(0).normal(0, 0.5, (3, 8)).astype(np.float32),
    "R": np.random.default_rng(1).normal(0, 0.5, (8, 8)).astype(np.float32),
    "b": np.random.default_rng(2).normal(0, 0.5, 8).astype(np.float32),
}


def masked(size: str = str(STEPS), length: str = "length = Gather (size, one)", steps: int = STEPS) -> onnx.ModelProto:
    """Steps of an RNN as Keras exports them with PyTorch's backend: output and state are chosen by `length > t`."""
    lines = [f"size = Shape (x) {length} rows = Gather (size, none)", "shape = Concat <axis = 0> (rows, width)"]
    lines.append("h0 = ConstantOfShape (shape)")
    for t in range(steps):
        lines.append(f"g{t} = Greater (length, t{t})")
        lines.append(f"e{t} = Gather <axis = 1> (x, t{t}) p{t} = MatMul (e{t}, W) q{t} = Add (p{t}, b)")
        lines.append(f"k{t} = Cast <to = 1> (h{t}) r{t} = MatMul (k{t}, R) s{t} = Add (q{t}, r{t}) n{t} = Tanh (s{t})")
        lines.append(f"h{t + 1} = Where (g{t}, n{t}, h{t})")
    stored = {f"t{t}": np.array(t) for t in range(steps)} | {"one": np.array(1), "none": np.array([0])}
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[B,{size},3] x, int64 n) => (float[B,8] y) '
        f"{{ {' '.join(lines)} y = Neg (h{steps}) }}",
        width=np.array([8]), **stored, **WEIGHTS,
    )  # fmt: skip


def canonical(proto: onnx.ModelProto) -> Model:
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def test_fires() -> None:
    model = canonical(masked())
    assert apply(RemoveOpenMasks(), model).modified
    assert not {"Where", "Greater"} & {n.op for n in nodes_of(model)}


@pytest.mark.parametrize(
    "proto",
    [
        masked(size="T"),  # how many steps there are is not known
        masked(length="length = Identity (n)"),  # lengths are data
        masked(steps=1),  # one choice is no row
    ],
    ids=["unknown length", "data", "one step"],
)
def test_keeps(proto: onnx.ModelProto) -> None:
    model = canonical(proto)
    before = sum(n.op == "Where" for n in nodes_of(model))
    assert not apply(RemoveOpenMasks(), model).modified
    assert sum(n.op == "Where" for n in nodes_of(model)) == before


def test_a_held_state_stays_held() -> None:
    """The sequence is two steps shorter: the last two keep the state of the second."""
    proto = masked(length="all = Gather (size, one) length = Sub (all, two)")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "two"))
    model = canonical(proto)
    assert apply(RemoveOpenMasks(), model).modified  # compares bits
    assert sum(n.op == "Where" for n in nodes_of(model)) == 2, "what holds a state is no open mask"


def test_a_choice_that_broadcasts_stays() -> None:
    """The result has the rows of what is left out."""
    text = (
        '<ir_version: 9, opset_import: ["": 18]> m (float[2,3] x, float[1,3] r) => (float[2,3] y) '
        "{ size = Shape (x) n = Gather (size, none) g = Greater (n, none) a = Where (g, r, x) y = Where (g, r, a) }"
    )
    model = canonical(parse(text, none=np.array(0)))
    assert not apply(RemoveOpenMasks(), model).modified


def test_the_layer_behind_the_masks_is_found() -> None:
    """It used to stay float silently: tanh steps with choices in between were not found as a recurrence."""
    lowered = rnnqc.lower(masked(), strict=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [("RNN", "lowered")]
    feed = {"x": np.random.default_rng(3).standard_normal((5, STEPS, 3)).astype(np.float32), "n": np.array(0)}
    names = {i.name for i in rnnqc.session(lowered, native=False).get_inputs()}
    a, b = (rnnqc.session(m, native=False).run(None, {k: feed[k] for k in names})[0] for m in (masked(), lowered))
    assert np.mean((a - b) ** 2) < 1e-3 * np.mean(a**2)
