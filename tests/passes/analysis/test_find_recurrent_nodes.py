"""The inventory of recurrent nodes.

What these would catch: a recurrent node that is not listed, one listed as lowerable that is not, a size that counts
shared weights twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, DecomposeLstm
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode, lowered_nodes, recurrent_nodes, weight_bytes
from tests.generate.layers import RecurrentCase, stacked_model
from tests.generate.recurrences import RecurrenceCase
from tests.passes.pass_testing import before, make_pass
from tests.subjects.protos import parse

HEADER = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1, "onnx.brevitas": 1, "test.other": 1]>'


def _nodes(proto: onnx.ModelProto) -> list[RecurrentNode]:
    model = Model.load(proto)
    Canonicalize()(model)
    return recurrent_nodes(model)


def test_a_layer() -> None:
    case = RecurrentCase(direction="bidirectional", peepholes=True)
    (node,) = _nodes(case.model())
    assert (node.path, node.name, node.op, node.status, node.refusal) == (
        "the_lstm",
        "the_lstm",
        "LSTM",
        "lowered",
        ("", "", ""),
    )
    assert node.weight_bytes == sum(v.nbytes for v in case.parameters().values())
    assert node.attributes["direction"] == "bidirectional"
    assert (node.attributes["hidden_size"], node.attributes["input_size"], node.attributes["peepholes"]) == (4, 3, True)


def test_paths_through_subgraphs() -> None:
    assert {n.path for n in _nodes(RecurrentCase(placement="if").model())} == {
        "choice/then_branch/then_the_lstm",
        "choice/else_branch/else_the_lstm",
    }
    assert [n.path for n in _nodes(RecurrentCase(placement="loop").model())] == ["the_loop/body/body_the_lstm"]


@pytest.mark.parametrize(
    ("call", "gates"),
    [("GRU <hidden_size = 4, linear_before_reset = 1> (X, W, R)", 3), ("RNN <hidden_size = 4> (X, W, R)", 1)],
)
def test_gru_and_rnn_are_lowered(call: str, gates: int) -> None:
    rng = np.random.default_rng(0)
    w, r = rng.random((1, 4 * gates, 2), np.float32), rng.random((1, 4 * gates, 4), np.float32)
    (node,) = _nodes(
        parse(f"{HEADER} g (float[3, 1, 2] X) => (float[3, 1, 1, 4] Y) {{ [layer] Y = {call} }}", W=w, R=r)
    )
    assert (node.name, node.op, node.status, node.weight_bytes) == ("layer", call[:3], "lowered", w.nbytes + r.nbytes)
    assert (node.attributes["hidden_size"], node.attributes["input_size"]) == (4, 2)


@pytest.mark.parametrize(
    ("call", "reason", "status"),
    [
        ("com.microsoft.DynamicQuantizeLSTM <hidden_size = 4> (X)", "already quantized", "quantized"),
        ("onnx.brevitas.QuantLSTMCell (X)", "Brevitas", "float"),
    ],
)
def test_quantized_layers_of_others(call: str, reason: str, status: str) -> None:
    (node,) = _nodes(parse(f"{HEADER} g (float[3, 1, 2] X) => (float[3, 1, 1, 4] Y) {{ [layer] Y = {call} }}"))
    assert (node.name, node.status) == ("layer", status)
    assert reason in node.refusal[0]
    assert all(node.refusal)


def test_an_lstm_of_another_domain_is_listed_and_stays_float() -> None:
    (node,) = _nodes(parse(f"{HEADER} g (float[3, 1, 2] X) => (float[3, 1, 1, 4] Y) {{ [a] Y = test.other.LSTM (X) }}"))
    assert (node.path, node.op, node.status) == ("a", "LSTM", "float")
    assert "test.other.LSTM" in node.refusal[1]


def test_weights_that_are_inputs() -> None:
    proto = RecurrentCase().model()
    tensor = next(t for t in proto.graph.initializer if t.name == "W")
    proto.graph.initializer.remove(tensor)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, list(tensor.dims)))
    (node,) = _nodes(proto)
    assert node.refusal[:2] == ("W is not constant.", "W is the graph input 'W'")


def test_what_an_earlier_run_left_float() -> None:
    proto = RecurrentCase().model()
    tensor = next(t for t in proto.graph.initializer if t.name == "W")
    proto.graph.initializer.remove(tensor)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, list(tensor.dims)))
    model = before("decompose-lstm", proto)
    DecomposeLstm()(model)
    (node,) = recurrent_nodes(Model.load(model.proto))
    assert node.status == "float"


def test_cells_are_listed_as_done() -> None:
    lowered = rnnqc.lower(RecurrentCase(initial_h=True, outputs=("Y", "Y_c")).model())
    again = Model.load(lowered.proto)
    assert recurrent_nodes(again) == []
    (node,) = lowered_nodes(again)
    assert (node.name, node.op, node.form, node.status) == ("the_lstm.forward", "LSTM", "fused", "done")
    assert node.attributes["inputs"] == ["initial_h"]
    assert node.attributes["outputs"] == ["Y", "Y_c"]


def test_fused_nodes_of_unknown_origin() -> None:
    proto = rnnqc.lower(RecurrentCase().model()).proto
    del proto.metadata_props[:]
    (node,) = lowered_nodes(Model.load(proto))
    assert (node.op, node.form, node.attributes["hidden_size"]) == ("QuantLSTMCell", "fused", 4)


@pytest.mark.parametrize("form", ["qcdq", "integer", "fused"])
def test_bytes_of_weights(form: str) -> None:
    model = rnnqc.lower(RecurrentCase(I=8, H=16).model(), form=form).model
    codes = 4 * 16 * (8 + 16)
    rest = 4 * 4 * 16 * (1 if form == "qcdq" else 3)  # the bias, and the multipliers
    assert weight_bytes(model, model.cells.values()) == codes + rest


def test_shared_weights_count_once() -> None:
    model = before("fuse-quant-lstm-cell", stacked_model([RecurrentCase(I=4), RecurrentCase(I=4)], shared_weights=True))
    make_pass("fuse-quant-lstm-cell")(model)
    first, second = model.cells.values()
    both, alone = weight_bytes(model, [first, second]), weight_bytes(model, [first])
    assert both < 2 * alone


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("form", "known", "after"),
    [
        ("scan", {"input_size": 5, "state_sizes": [6, 6], "sequence_length": 4, "batch": 3}, {}),
        ("loop", {"state_sizes": [6, 6], "batch": 3}, {"sequence_length": 4, "input_size": 5}),
        ("unrolled", {"sequence_length": 4}, {"input_size": 5, "state_sizes": [6, 6], "batch": 3}),
    ],
)
def test_sizes_of_other_recurrences(form: Any, known: dict[str, Any], after: dict[str, Any]) -> None:
    """As far as they are known, before as after; how often a loop runs, and over what, is found in between."""
    proto = RecurrenceCase(op="highway", form=form, time=4, batch=3).model()
    names = ("input_size", "state_sizes", "sequence_length", "batch")
    done = lowered_nodes(rnnqc.lower(proto).model)
    for nodes, expected in ((_nodes(proto), known), (done, known | after)):
        (node,) = nodes
        assert {k: node.attributes[k] for k in names if node.attributes.get(k) is not None} == expected


def test_a_trip_count_without_end_is_no_length() -> None:
    """tf2onnx writes 2^63 - 1 where a condition ends the loop."""
    case = RecurrenceCase(op="highway", form="keras", dynamic_time=True)
    (node,) = _nodes(case.model())
    assert node.attributes["sequence_length"] is None


def test_sizes_of_a_lowered_layer() -> None:
    lowered = rnnqc.lower(RecurrentCase(T=6).model())
    (node,) = lowered_nodes(lowered.model)
    assert (node.attributes["sequence_length"], node.attributes["hidden_size"]) == (6, 4)
