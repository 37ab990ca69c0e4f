"""recognize-steps: which written-out steps become LSTM nodes, and that they compute the same."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx.helper import make_node, make_tensor_value_info

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RecognizeSteps
from tests.laws.parametrize import in_turn

INPUTS, H = 5, 7


def step(order: str = "ifgo", gemm: bool = False, change: str = "") -> onnx.ModelProto:
    """One step as exporters write it; `order` says what the four parts of the Split are."""
    rng = np.random.default_rng(3)
    arrays = {
        "W": rng.normal(0, 0.5, (INPUTS, 4 * H)).astype(np.float32),
        "R": rng.normal(0, 0.5, (H, 4 * H)).astype(np.float32),
        "b": rng.normal(0, 0.5, 4 * H).astype(np.float32),
        "b2": rng.normal(0, 0.5, 4 * H).astype(np.float32),
    }
    if gemm:
        arrays["W"], arrays["R"] = arrays["W"].T.copy(), arrays["R"].T.copy()
        nodes = [
            make_node("Gemm", ["x", "W", "b"], ["xw"], transB=1),
            make_node("Gemm", ["h", "R", "b2"], ["hr"], transB=1),
            make_node("Add", ["xw", "hr"], ["sum"]),
        ]
    else:
        nodes = [
            make_node("MatMul", ["x", "W"], ["xw"]),
            make_node("MatMul", ["h", "R"], ["hr"]),
            make_node("Add", ["xw", "hr"], ["products"]),
            make_node("Add", ["products", "b"], ["sum"]),
        ]
    f_activation = "HardSigmoid" if change == "hard" else "Sigmoid"
    nodes += [
        make_node("Split", ["sum"], list(order), axis=1),
        make_node("Sigmoid", ["i"], ["i_"]),
        make_node(f_activation, ["f"], ["f_"]),
        make_node("Sigmoid", ["o"], ["o_"]),
        make_node("Tanh", ["g"], ["g_"]),
        make_node("Mul", ["f_", "c"], ["kept"]),
        make_node("Mul", ["i_", "g_"], ["added"]),
        make_node("Add", ["kept", "added"], ["c_next"]),
        make_node("Tanh", ["c_next"], ["squashed"]),
        make_node("Mul", ["o_", "squashed"], ["h_next"]),
    ]
    outputs = [make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["B", H]) for n in ("h_next", "c_next")]
    if change == "used":
        outputs.append(make_tensor_value_info("added", onnx.TensorProto.FLOAT, ["B", H]))
    inputs = [
        make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["B", k]) for n, k in (("x", INPUTS), ("h", H), ("c", H))
    ]
    if change == "weights":
        inputs.append(make_tensor_value_info("R", onnx.TensorProto.FLOAT, list(arrays.pop("R").shape)))
    used = {n for node in nodes for n in node.input}
    initializers = [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used]
    graph = onnx.helper.make_graph(nodes, "step", inputs, outputs, initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=10)


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {n: rng.uniform(-1, 1, (3, k)).astype(np.float32) for n, k in (("x", INPUTS), ("h", H), ("c", H))}


@pytest.mark.few(9)
@in_turn(order=["".join(p) for p in itertools.permutations("ifgo")], gemm=[False, True, True])
def test_every_order_of_gates(order: str, gemm: bool) -> None:
    proto = step(order, gemm)
    model = Model.load(proto)
    results = PassManager([Canonicalize(), RecognizeSteps()]).run(model)
    assert results[1].statistics == {"steps": 1}
    assert [n.op for n in model.graph.nodes if n.op not in ("Unsqueeze", "Squeeze", "Constant")] == ["LSTM"]
    expected, found = run_model(proto, feeds()), run_model(model.proto, feeds())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6)
    assert not RecognizeSteps()(model).modified


def test_a_part_without_columns_is_no_gate() -> None:
    """As tf2onnx writes the Split of a Keras GRU with reset_after=False: units, units and none."""
    proto = step()
    (split,) = (n for n in proto.graph.node if n.op_type == "Split")
    split.input.append("sizes")
    split.output.append("none")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([H, H, H, H, 0]), "sizes"))
    model = Model.load(proto)
    assert PassManager([Canonicalize(), RecognizeSteps()]).run(model)[1].statistics == {"steps": 1}
    np.testing.assert_allclose(
        run_model(model.proto, feeds())["h_next"], run_model(proto, feeds())["h_next"], atol=1e-6
    )


@pytest.mark.parametrize("change", ["hard", "used", "weights"])
def test_another_form_is_left_alone(change: str) -> None:
    model = Model.load(step(change=change))
    Canonicalize()(model)
    before = model.proto.SerializeToString(deterministic=True)
    assert not RecognizeSteps()(model).modified
    assert model.proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("name", "shape"),
    [("h", (1, H)), ("c", (1, H)), ("x", (1, INPUTS)), ("h", (H,)), ("c", ("other", H)), ("x", (None, INPUTS))],
)
def test_rows_that_are_broadcast_or_unknown(name: str, shape: tuple[object, ...]) -> None:
    """A value that is broadcast over the batch is no state of an LSTM."""
    proto = step()
    for value in proto.graph.input:
        if value.name == name:
            value.CopyFrom(make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape)))
    model = Model.load(proto)
    results = PassManager([Canonicalize(), RecognizeSteps()]).run(model)
    assert not results[1].modified


def test_constant_that_is_no_row() -> None:
    """A column is added to the rows of the batch, not to the columns of the gates."""
    proto = step()
    for tensor in proto.graph.initializer:
        if tensor.name == "b":
            tensor.dims[:] = [4 * H, 1]
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 4 * H
    model = Model.load(proto)
    assert not PassManager([Canonicalize(), RecognizeSteps()]).run(model)[1].modified


def test_the_step_is_lowered() -> None:
    lowered = rnnqc.lower(step())
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    expected, found = run_model(step(), feeds()), run_model(lowered.proto, feeds())
    assert max(float(np.abs(expected[n] - found[n]).max()) for n in expected) < 0.03
