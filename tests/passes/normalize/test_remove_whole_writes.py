"""Writes that overwrite all of a tensor go; all others stay.

What these would catch: a row that is not written, or in another place, and is lost; a shape that is only declared.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RemoveWholeWrites
from tests.passes.pass_testing import apply, nodes_of
from tests.subjects.protos import parse

HEAD = '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] a, float[N,3] u, float[2,3] d) => (float[2,3] o)'
WRITE = "e = Expand (n, size) r = Reshape (e, size) s = ScatterND (d, rows, r) o = Relu (s)"
OPERANDS = {
    "size": np.array([2, 3]), "rows": np.array([[0], [1]]), "swapped": np.array([[1], [0]]), "one": np.array([[1]]),
    "twice": np.array([[0], [0]]), "half": np.array([1, 3]),
}  # fmt: skip


def canonical(nodes: str) -> Model:
    model = Model.load(parse(f"{HEAD} {{ {nodes} }}", **OPERANDS))
    PassManager([Canonicalize()]).run(model)
    return model


def test_fires() -> None:
    """`apply` compares bits, runs the checker, and runs the pass twice."""
    model = canonical(f"n = Neg (a) {WRITE}")
    assert apply(RemoveWholeWrites(), model).modified
    assert [n.op for n in nodes_of(model)] == ["Neg", "Relu"]


def test_an_output_of_the_model_keeps_its_name() -> None:
    """The data that nothing but its own write reads is left out, too."""
    model = canonical("n = Neg (a) z = Exp (d) o = ScatterND (z, rows, n)")
    assert apply(RemoveWholeWrites(), model).modified
    assert [n.op for n in nodes_of(model)] == ["Neg", "Identity"]


KEPT = {
    "rows in another order": f"n = Neg (a) {WRITE.replace('rows', 'swapped')}",
    "a row twice": f"n = Neg (a) {WRITE.replace('rows', 'twice')}",
    "one row of two": f"n = Gather (a, zero) {WRITE.replace('rows', 'one').replace('size', 'half')}",
    "rows that are added": "n = Neg (a) " + WRITE.replace("ScatterND", 'ScatterND <reduction = "add">'),
    "rows that are not known": f"n = Neg (a) k = Cast <to = 7> (u) {WRITE.replace('rows', 'k')}",
    "a tensor of unknown size": "n = Neg (a) x = ScatterND (u, rows, n) o = Relu (x)",
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    """One test for each precondition."""
    text = KEPT[case].replace("zero", "first")
    proto = parse(f"{HEAD} {{ {text} }}", **OPERANDS, first=np.array([0]))
    model = Model.load(proto)
    before = model.proto.SerializeToString(deterministic=True)
    assert not RemoveWholeWrites().run(model).modified
    assert model.proto.SerializeToString(deterministic=True) == before


def test_a_shape_that_is_only_declared() -> None:
    """Files declare shapes that are wrong."""
    proto = parse(f"{HEAD} {{ n = Neg (u) s = ScatterND (d, rows, n) o = Relu (s) }}", **OPERANDS)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, [2, 3]))
    assert not RemoveWholeWrites().run(Model.load(proto)).modified
