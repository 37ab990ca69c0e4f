"""What this would catch: recursion as deep as the graph, and work that grows with the square of it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.ir import Model, Node
from rnnqc.passes.graph import constant_expressions
from rnnqc.passes.graph.constant_expressions import Constants, constant_expression

LENGTH = 3000


def chain(first: str) -> Model:
    """`first` + 1, + 1, ..: a row of sums, each of which reads the one before."""
    names = [first, *(f"v{k}" for k in range(LENGTH))]
    nodes = [helper.make_node("Add", [a, "one"], [b]) for a, b in itertools.pairwise(names)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [1])
    held = [numpy_helper.from_array(np.full(1, k, np.float32), n) for n, k in (("zero", 0), ("one", 1))]
    graph = helper.make_graph(nodes, "chain", [x], [y], held)
    return Model(onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


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
