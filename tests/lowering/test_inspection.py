"""The list of a model's layers, and how lowering would handle them.

What these would catch: a list that says otherwise than lowering does, a model that is changed by looking at it.
"""

from __future__ import annotations

import onnx
import pytest
from lstm_models import LstmCase, stacked_model

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.lowering.inspection import inspect_layers
from tests.generate.recurrences import RecurrenceCase


def weights_as_input() -> onnx.ModelProto:
    proto = LstmCase().model()
    (tensor,) = (t for t in proto.graph.initializer if t.name == proto.graph.node[0].input[1])
    proto.graph.initializer.remove(tensor)
    proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, list(tensor.dims)))
    return proto


MODELS = {
    "layers in a row": stacked_model([LstmCase(), LstmCase(I=4, seed=1)]),
    "both directions": LstmCase(direction="bidirectional").model(),
    "loop": RecurrenceCase(form="scan").model(),
    "custom cell": RecurrenceCase(op="highway", form="scan", time=4).model(),
    "weights that are an input": weights_as_input(),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_lowering_does(name: str) -> None:
    before = MODELS[name].SerializeToString(deterministic=True)
    found = inspect_layers(MODELS[name])
    assert MODELS[name].SerializeToString(deterministic=True) == before
    entries = rnnqc.lower(MODELS[name]).report.entries
    assert [(n.path, n.op, n.status) for n in found.nodes] == [(e.node, e.op, e.status) for e in entries]
    assert [list(found.cells.get(n.path, [])) for n in found.nodes] == [e.cells for e in entries]
    assert [n.weight_bytes for n in found.nodes] == [e.float_bytes for e in entries]


@pytest.mark.parametrize("name", ["layers in a row", "loop", "custom cell"])
def test_lowered_layers_are_done(name: str) -> None:
    lowered = rnnqc.lower(MODELS[name])
    nodes = inspect_layers(lowered.proto).nodes
    assert [n.status for n in nodes] == ["done"] * len(lowered.report.entries)
    assert [n.form for n in nodes] == [e.form for e in lowered.report.entries]


def test_invalid_models_are_refused() -> None:
    with pytest.raises(CompileError):
        inspect_layers(onnx.ModelProto())
