"""float16 matmuls that crash onnxruntime are reported; others are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes.graph.float16_products import transposed_float16_products
from tests.generate.layers import RecurrentCase

FLOATS = {TensorProto.FLOAT16: np.float16, TensorProto.FLOAT: np.float32}


def product(kind: int, transposed: bool) -> onnx.ModelProto:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2])] if transposed else []
    nodes.append(helper.make_node("MatMul", ["t" if transposed else "x", "w"], ["y"], "product"))
    weights = numpy_helper.from_array(np.ones((4, 3), FLOATS[kind]), "w")
    described = [helper.make_tensor_value_info("x", kind, [2, 5, 4]), helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph(nodes, "g", described[:1], described[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_named(kind: int, transposed: bool) -> None:
    found = transposed_float16_products(Model.load(product(kind, transposed)))
    assert found == (["product"] if transposed and kind == TensorProto.FLOAT16 else [])


def test_lower_warns() -> None:
    """Would catch: a file that is called good and ends the process that runs it, without a word."""
    model = RecurrentCase(T=3, B=2, I=4, H=5).model()
    half = product(TensorProto.FLOAT16, True)
    model.graph.node.extend(half.graph.node)
    model.graph.initializer.extend(half.graph.initializer)
    model.graph.input.extend(half.graph.input)
    model.graph.output.extend(half.graph.output)
    texts = [w for w in rnnqc.lower(model, measure=False).report.warnings if "float16" in w]
    assert len(texts) == 1 and "'product'" in texts[0] and "float32" in texts[0]
