"""Making nodes.

What these would catch: names that collide, nodes without their cell's tag, an operator in the form of another operator
set.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from protos import parse
from running import plain_session, run

from rnnqc.ir import CELL_TAG, Model, graph_info, info
from rnnqc.ir.builder import Builder


def _model(opset: int = 17) -> Model:
    return Model.load(
        parse(f'<ir_version: 10, opset_import: ["": {opset}]> g (float[2, 3] x) => (float[N, M] y) {{ y = Neg(x) }}')
    )


def test_names_are_below_the_prefix_and_fresh() -> None:
    b = Builder(_model(), "layer.forward")
    first, second = (b.op("Neg", [b.model.graph.inputs[0]], "gate") for _ in range(2))
    assert [first.name, second.name] == ["layer.forward/gate", "layer.forward/gate_2"]
    assert b.nodes[0].name == first.name, "a node is called as the value it makes"
    assert len({n.name for n in b.nodes}) == 2
    assert Builder(_model()).op("Neg", [first], "plain").name == "plain"
    assert Builder(_model(), "cell", prefix="elsewhere").op("Neg", [first], "a").name == "elsewhere/a"


def test_nodes_carry_their_cell() -> None:
    model = _model()
    for builder, tag in ((Builder(model, "c"), "c"), (Builder(model, "c").body(), "c"), (Builder(model), None)):
        builder.op("Neg", [model.graph.inputs[0]], "a")
        assert info(builder.nodes[0]).metadata.get(CELL_TAG) == tag


def test_absent_inputs_and_outputs() -> None:
    b = Builder(_model())
    b.op("Clip", [b.model.graph.inputs[0], None, b.f32(1.0)], "a")
    kept, absent = b.ops("MaxPool", [b.model.graph.inputs[0]], ["values", ""], kernel_shape=[1])
    assert [v.name for v in b.nodes[0].inputs] == ["x", "", "rnnqc/float32_1"]
    assert (kept.name, absent.name) == ("values", "")
    assert b.nodes[1].attrs == {"kernel_shape": [1]}


def test_body_collects_its_own_nodes() -> None:
    b = Builder(_model(), "c")
    body = b.body()
    value = body.op("Neg", [b.model.graph.inputs[0]], "inner")
    graph = body.graph([], [value], "step")
    assert b.nodes == []
    assert (graph.name, [n.op for n in graph.nodes], graph.outputs) == ("c/step", ["Neg"], [value])


def test_constants() -> None:
    b = Builder(_model())
    made = [b.f32(2), b.i64(2), b.i32(2), b.u8(2)]
    assert [str(v.dtype) for v in made] == ["float32", "int64", "int32", "uint8"]
    assert all(graph_info(b.model.graph).initializers[v.name] is v for v in made)


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
def test_reductions_of_every_operator_set(opset: int) -> None:
    model = _model(opset)
    b = Builder(model)
    x, y = model.graph.inputs[0], model.graph.outputs[0]
    largest = b.reduce("ReduceMax", x, [1], "largest", keepdims=1)
    total = b.reduce_sum(b.op("Add", [x, largest], "sum"), [0], "total", keepdims=1)
    b.add("Cast", [b.cast(total, np.int64, "whole")], [y], "y", to=onnx.TensorProto.FLOAT)
    model.remove_nodes(model.graph, list(model.graph.nodes))
    model.graph.nodes.extend(b.nodes)
    model.check()
    onnx.checker.check_model(model.proto, full_check=True)
    feed = np.array([[1, 2, 3], [4, 6, 5]], np.float32)
    got = run(plain_session(model.proto), {"x": feed})["y"]
    np.testing.assert_array_equal(got, (feed + feed.max(1, keepdims=True)).sum(0, keepdims=True))
