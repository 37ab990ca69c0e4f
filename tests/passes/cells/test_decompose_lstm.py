"""decompose-lstm: fires, declines, edges.

What these would catch: a feature of LSTM that is lost on the way into the Scan, an output that loses its name, a node
that stays without a word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.errors import Outcome
from rnnqc.ir import CELL_TAG, FLOAT_TAG, Model, graph_info, info, subgraphs
from rnnqc.passes import Canonicalize, DecomposeLstm
from rnnqc.passes.cells.decompose_lstm import LARGEST_HIDDEN, LARGEST_INPUT
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import apply, before, declines, nodes_of, op_types, text_of
from tests.subjects.protos import of_nodes

CASE = RecurrentCase()


def _decomposed(case: RecurrentCase) -> Model:
    model = before("decompose-lstm", case.model())
    apply(DecomposeLstm(), model, [case.feeds(padding=0.0)])
    return model


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("decompose_lstm.txt", text_of(_decomposed(RecurrentCase(outputs=("Y_h",)))))


def test_one_scan_per_direction_with_named_values() -> None:
    model = _decomposed(RecurrentCase(direction="bidirectional"))
    scans = nodes_of(model, "Scan")
    assert sorted(model.cells) == ["the_lstm.forward", "the_lstm.reverse"]
    assert [info(s).metadata[CELL_TAG] for s in scans] == ["the_lstm.forward", "the_lstm.reverse"]
    for name, scan in zip(model.cells, scans, strict=True):
        (_, body), *_ = subgraphs(scan)
        values = {v.name for n in body.nodes for v in n.outputs}
        assert {
            f"{name}/{p}" for p in ("preactivation", "input_gate.value", "forget_gate.value", "hidden.value")
        } <= values
    assert [op for op in op_types(model.graph) if op in ("Concat", "Unsqueeze")].count("Concat") >= 3


def test_cells_describe_what_was_found() -> None:
    case = RecurrentCase(
        direction="reverse", lens=(2, 5), initial_h=True, initial_c=True, peepholes=True, clip=3.0, outputs=("Y", "Y_c")
    )
    (cell,) = _decomposed(case).cells.values()
    assert (cell.name, cell.node, cell.op, cell.form) == ("the_lstm.reverse", "the_lstm", "LSTM", "float")
    assert (cell.hidden_size, cell.input_size, cell.reverse, cell.clip, cell.input_forget) == (4, 3, True, 3.0, False)
    assert (cell.static_length, cell.static_batch, cell.x, cell.sequence_lens) == (5, 2, "X", "sequence_lens")
    assert cell.initial_h is not None
    assert cell.initial_c is not None
    assert cell.y is not None
    assert cell.y_c is not None
    assert cell.y_h is None
    assert cell.P is not None


def test_dynamic_sizes_are_not_fixed() -> None:
    (cell,) = _decomposed(RecurrentCase(dynamic_time=True, dynamic_batch=True)).cells.values()
    assert (cell.static_length, cell.static_batch) == (None, None)


def test_weights_are_transposed_and_biases_added() -> None:
    model = _decomposed(CASE)
    (cell,) = model.cells.values()
    held = {k: np.asarray(v.values) for k, v in graph_info(model.graph).initializers.items()}
    parameters = CASE.parameters()
    np.testing.assert_array_equal(held[cell.W], parameters["W"][0].T)
    np.testing.assert_array_equal(held[cell.R], parameters["R"][0].T)
    np.testing.assert_array_equal(held[cell.B], parameters["B"][0, :16] + parameters["B"][0, 16:])
    assert not {"W", "R", "B"} & held.keys(), "the originals are gone"


def test_two_layers_that_share_weights() -> None:
    layers = [RecurrentCase(I=4), RecurrentCase(I=4, seed=1)]
    model = before("decompose-lstm", stacked_model(layers, shared_weights=True))
    apply(DecomposeLstm(), model, [layers[0].feeds()])
    assert list(model.cells) == ["layer0.forward", "layer1.forward"]
    model.check()


def test_weights_another_node_uses_stay() -> None:
    proto = CASE.model()
    proto.graph.node.append(helper.make_node("Neg", ["R"], ["minus_R"]))
    proto.graph.output.append(helper.make_tensor_value_info("minus_R", TensorProto.FLOAT, [1, 16, 4]))
    model = before("decompose-lstm", proto)
    apply(DecomposeLstm(), model, [CASE.feeds()])
    assert "R" in graph_info(model.graph).initializers


def test_both_branches_of_an_if() -> None:
    case = RecurrentCase(placement="if")
    model = before("decompose-lstm", case.model())
    apply(DecomposeLstm(), model, [case.feeds(condition=c) for c in (True, False)])
    assert sorted(model.cells) == ["else_the_lstm.forward", "then_the_lstm.forward"]


@pytest.mark.parametrize("outputs", [("Y",), ("Y_h",), ("Y_c",), ("Y", "Y_h", "Y_c")])
def test_outputs_keep_their_names(outputs: tuple[str, ...]) -> None:
    model = _decomposed(CASE.replace(outputs=outputs))
    assert [v.name for v in model.graph.outputs] == list(outputs)
    assert model.proto.graph.output == CASE.replace(outputs=outputs).model().graph.output


def test_output_that_is_also_used_inside() -> None:
    proto = CASE.model()
    proto.graph.node.append(helper.make_node("Relu", ["Y"], ["rectified"], name="relu"))
    proto.graph.output.append(helper.make_tensor_value_info("rectified", TensorProto.FLOAT, [5, 1, 2, 4]))
    model = before("decompose-lstm", proto)
    apply(DecomposeLstm(), model, [CASE.feeds()])
    assert [v.name for v in model.graph.outputs] == ["Y", "Y_h", "Y_c", "rectified"]


def test_names_that_are_taken() -> None:
    proto = CASE.model()
    proto.graph.node.append(helper.make_node("Neg", ["X"], ["the_lstm.forward/preactivation"], name="the_lstm.forward"))
    proto.graph.output.append(
        helper.make_tensor_value_info("the_lstm.forward/preactivation", TensorProto.FLOAT, [5, 2, 3])
    )
    model = before("decompose-lstm", proto)
    apply(DecomposeLstm(), model, [CASE.feeds()])
    assert list(model.cells) == ["the_lstm.forward_2"]


# Declines


def _dynamic(which: str) -> onnx.ModelProto:
    proto = CASE.replace(peepholes=True).model()
    tensor = next(t for t in proto.graph.initializer if t.name == which)
    proto.graph.input.append(helper.make_tensor_value_info(which, TensorProto.FLOAT, list(tensor.dims)))
    proto.graph.initializer.remove(tensor)
    return proto


@pytest.mark.parametrize("which", ["W", "R", "B", "P"])
def test_weights_that_are_not_constant(which: str) -> None:
    model = before("decompose-lstm", _dynamic(which))
    result = declines(DecomposeLstm(), model, rf"^{which} is not constant\.$")
    assert op_types(model.graph) == ["LSTM"]
    assert result.modified, "the reason is noted in the node's metadata"
    assert info(nodes_of(model, "LSTM")[0]).metadata[FLOAT_TAG] == f"{which} is not constant."
    second = DecomposeLstm()(model)
    assert (second.modified, second.remarks) == (False, ())
    assert model.cells == {}


@pytest.mark.parametrize(("dtype", "name"), [(TensorProto.DOUBLE, "float64"), (TensorProto.FLOAT16, "float16")])
def test_other_types(dtype: int, name: str) -> None:
    proto = CASE.model()
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(name), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = dtype
    declines(DecomposeLstm(), before("decompose-lstm", proto), rf"^W is {name}\.$")


def _sized(inputs: int, hidden: int) -> onnx.ModelProto:
    """A layer whose weights are one Expand each, so that its file is small."""
    shapes = {"W": [1, 4 * hidden, inputs], "R": [1, 4 * hidden, hidden]}
    nodes = [helper.make_node("LSTM", ["X", "W", "R"], ["Y"], name="big", hidden_size=hidden)]
    stored = {k: np.zeros(s, np.float32) for k, s in shapes.items()}
    return of_nodes(nodes, {"X": [1, 1, inputs]}, {"Y": [1, 1, 1, hidden]}, stored, ir_version=10)


def test_too_many_inputs() -> None:
    assert DecomposeLstm()(before("decompose-lstm", _sized(LARGEST_INPUT, 1))).remarks[0].outcome is Outcome.NOTE
    result = declines(
        DecomposeLstm(), before("decompose-lstm", _sized(LARGEST_INPUT + 1, 1)), "too large for 32-bit accumulators"
    )
    assert f"input size {LARGEST_INPUT + 1}, hidden size 1" in result.remarks[0].found
    assert f"{LARGEST_INPUT} inputs and {LARGEST_HIDDEN} units" in result.remarks[0].action


def test_too_many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the documented limit R alone would have 64 GB, so the limit is lowered."""
    monkeypatch.setattr("rnnqc.passes.cells.decompose_lstm.LARGEST_HIDDEN", 8)
    assert DecomposeLstm()(before("decompose-lstm", _sized(1, 8))).remarks[0].outcome is Outcome.NOTE
    declines(DecomposeLstm(), before("decompose-lstm", _sized(1, 9)), "too large for 32-bit accumulators")


@pytest.mark.parametrize("which", ["W", "R", "B", "P"])
@pytest.mark.parametrize("value", [2.0**41, -(2.0**41)])
def test_enormous_weights(which: str, value: float) -> None:
    proto = CASE.replace(peepholes=True).model()
    tensor = next(t for t in proto.graph.initializer if t.name == which)
    array = numpy_helper.to_array(tensor).copy()
    array.ravel()[1] = value
    tensor.CopyFrom(numpy_helper.from_array(array, which))
    result = declines(DecomposeLstm(), before("decompose-lstm", proto), rf"^{which} has enormous entries\.$")
    assert result.remarks[0].found == f"{which} up to 2.2e+12"


def test_an_output_that_nothing_uses() -> None:
    proto = CASE.model()
    proto.graph.node.append(helper.make_node("Neg", ["X"], ["only"], name="neg"))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("only", TensorProto.FLOAT, [5, 2, 3]))
    declines(DecomposeLstm(), before("decompose-lstm", proto), "nothing uses it")


def test_one_of_two_layers_declines() -> None:
    layers = [RecurrentCase(), RecurrentCase(I=4, seed=1)]
    proto = stacked_model(layers)
    tensor = next(t for t in proto.graph.initializer if t.name == "R1")
    proto.graph.input.append(helper.make_tensor_value_info("R1", TensorProto.FLOAT, list(tensor.dims)))
    proto.graph.initializer.remove(tensor)
    model = Model.load(proto)
    Canonicalize()(model)
    result = DecomposeLstm()(model)
    assert {r.node: r.outcome for r in result.remarks} == {"layer0": Outcome.NOTE, "layer1": Outcome.FLOAT}
    assert list(model.cells) == ["layer0.forward"]
