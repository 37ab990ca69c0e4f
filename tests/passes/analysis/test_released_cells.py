"""Brevitas' cells that a lowering wrote in form qcdq.

What these would catch: a cell that is forgotten, or remembered after its nodes are gone or were taken for others; a
list of layers that lacks it; a mixed model whose other layer is not lowered for it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import UsageError
from rnnqc.ir import RELEASED_TAG, Model
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes
from rnnqc.passes.analysis.released_cells import released_cells
from rnnqc.proto.graph_walks import blocks_of
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm

LSTM = random_lstm(9, pow2=True)
EXPORTED = one_cell(LSTM, draw_feeds(LSTM, 5, False, True))


def test_cells_of_form_qcdq_alone() -> None:
    (cell,) = released_cells(Model.load(rnnqc.lower(EXPORTED, form="qcdq").proto)).values()
    assert (cell.op, cell.form, cell.hidden_size) == ("QuantLSTMCell", "qcdq", 9)
    for form in ("fused", "integer"):
        assert released_cells(Model.load(rnnqc.lower(EXPORTED, form=form).proto)) == {}
    assert released_cells(Model.load(EXPORTED)) == {}


def test_a_cell_whose_nodes_are_gone() -> None:
    """Other tools keep a model's metadata, and drop that of its nodes."""
    proto = rnnqc.lower(EXPORTED, form="qcdq").proto
    for node in (n for block in blocks_of([proto.graph]) for n in block.node):
        kept = [p for p in node.metadata_props if p.key != RELEASED_TAG]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    model = Model.load(proto)
    assert RELEASED_TAG in model.metadata
    assert released_cells(model) == {}
    assert lowered_nodes(model) == []


def test_beside_a_float_layer() -> None:
    """The other layer is lowered to the form asked for."""
    proto = rnnqc.lower(EXPORTED, form="qcdq").proto
    for name, shape in {"W": (1, 16, 9), "R": (1, 16, 4)}.items():
        array = np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    proto.graph.node.append(onnx.helper.make_node("LSTM", ["outputs", "W", "R"], ["Y"], "float_layer", hidden_size=4))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("Y", 1, [None] * 4))
    entries = rnnqc.lower(proto, "int8", form="integer").report.entries
    assert [(e.op, e.form, e.earlier) for e in entries] == [
        ("LSTM", "integer", False),
        ("QuantLSTMCell", "qcdq", True),
    ]
    assert "stays in form qcdq" in entries[1].explanation
    with pytest.raises(UsageError, match="lowered already, to form qcdq"):
        rnnqc.lower(rnnqc.lower(EXPORTED, form="qcdq").proto, form="integer")
