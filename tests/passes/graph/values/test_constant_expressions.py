"""Constant expressions of deep graphs; catches recursion as deep as the graph, and quadratic work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

from rnnqc.ir import Model, Node
from rnnqc.passes.graph.values import constant_expressions
from rnnqc.passes.graph.values.constant_expressions import Constants, constant_expression
from tests.subjects.protos import of_nodes

LENGTH = 1500


def chain(first: str) -> Model:
    """`first` + 1, + 1, ..: a row of sums, each of which reads the one before."""
    names = [first, *(f"v{k}" for k in range(LENGTH))]
    nodes = [helper.make_node("Add", [a, "one"], [b]) for a, b in itertools.pairwise(names)]
    held = {n: np.full(1, k, np.float32) for n, k in (("zero", 0), ("one", 1))}
    return Model(of_nodes(nodes, {"x": [1]}, {names[-1]: [1]}, held))


def test_a_long_row_of_constants() -> None:
    model = chain("zero")
    last = model.graph.outputs[0]
    array = Constants(model).array(last)
    assert array is not None and array.tolist() == [LENGTH]
    nodes = constant_expression(last)
    assert nodes is not None and [n.outputs[0].name for n in nodes] == [f"v{k}" for k in range(LENGTH)]


def test_what_depends_on_an_input_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain("x")
    constants, looked = Constants(model), []
    real = constant_expressions.makes_the_same

    def counted(node: Node) -> bool:
        looked.append(node)
        return real(node)

    monkeypatch.setattr(constant_expressions, "makes_the_same", counted)
    for node in reversed(model.graph.nodes):
        assert constants.array(node.outputs[0]) is None
    assert len(looked) == LENGTH


@pytest.mark.parametrize(
    ("array", "number"),
    [(np.ones((2, 3), np.float32), 1.0), (np.array([1, 2]), None), (np.zeros(0), 0.0), (np.full(2, np.nan), None)],
)
def test_the_only_number_of_a_value_of_unknown_shape(array: np.ndarray, number: float | None) -> None:
    """Also behind operators that repeat it: ones of the shape of an input."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Expand", ["a", "s"], ["e"])]
    nodes.append(helper.make_node("Cast", ["e"], ["y"], to=TensorProto.FLOAT))
    model = Model(of_nodes(nodes, {"x": ["N", *array.shape]}, {"y": None}, {"a": array}))
    constants = Constants(model)
    assert constants.uniform(model.graph.outputs[0]) == number
    assert constants.zero(model.graph.outputs[0]) == (number == 0)
    assert constants.uniform(model.graph.inputs[0]) is None
