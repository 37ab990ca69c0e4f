"""Squeeze and Unsqueeze nodes that a fused node absorbs.

What these would catch: a node that takes the axis of a value that others use without it, or of a state that has two
directions; a shape that is one axis off.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rnnqc.ir import Model
from rnnqc.passes import FuseQuantLstmCell
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import INT8, before, nodes_of
from tests.runs.lowered import session
from tests.runs.sessions import assert_same_bits, plain_session, run

STREAMING = RecurrentCase(T=1, B=1, initial_h=True, initial_c=True)
AXES = ("y_direction_axis", "state_direction_axis")


def _fused(proto: onnx.ModelProto) -> Model:
    model = before("fuse-quant-lstm-cell", proto, INT8)
    FuseQuantLstmCell()(model)
    return model


def _axes(model: Model) -> list[tuple[int, ...]]:
    return [tuple(n.attrs.get(k, 0) for k in AXES) for n in nodes_of(model, "QuantLSTMCell")]


def _check(proto: onnx.ModelProto, case: RecurrentCase, model: Model) -> None:
    """The same bits from the function body, the kernel and the integer form."""
    fused, integer = model.proto, before("fuse-quant-lstm-cell", proto, INT8).proto
    expected = run(plain_session(integer), case.feeds())
    for way in ("stock", "native"):
        assert_same_bits(expected, run(session(fused, way), case.feeds()), way)


@pytest.mark.few(3)
@in_turn(outputs=[("Y", "Y_h", "Y_c"), ("Y",), ("Y_h",), ("Y_c",), ("Y", "Y_c")], lens=[None, (1,)])
def test_a_streaming_cell_is_one_node(outputs: tuple[str, ...], lens: tuple[int, ...] | None) -> None:
    case = STREAMING.replace(outputs=outputs, lens=lens)
    model = _fused(case.model())
    assert not nodes_of(model, "Squeeze", "Unsqueeze", "Gather")
    assert _axes(model) == [(int("Y" in outputs), 1)]
    _check(case.model(), case, model)


def test_two_directions_keep_their_choice_of_states() -> None:
    case = STREAMING.replace(T=3, B=2, direction="bidirectional")
    model = _fused(case.model())
    assert not nodes_of(model, "Squeeze", "Unsqueeze")
    assert len(nodes_of(model, "Gather")) == 4
    assert _axes(model) == [(1, 1), (1, 1)]
    _check(case.model(), case, model)


@pytest.mark.parametrize("name", ["Y", "Y_h"])
def test_a_value_that_is_used_without_the_axis_has_none(name: str) -> None:
    case = STREAMING.replace(T=3, B=2)
    proto = case.model()
    axis, shape = {"Y": (1, (3, 2, 4)), "Y_h": (0, (2, 4))}[name]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([axis], np.int64), "the_axis"))
    proto.graph.node.append(helper.make_node("Squeeze", [name, "the_axis"], ["squeezed"]))
    proto.graph.node.append(helper.make_node("Neg", ["squeezed"], ["negative"]))
    proto.graph.output.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT, shape))
    model = _fused(proto)
    assert nodes_of(model, "Unsqueeze")
    assert _axes(model) == [(int(name != "Y"), int(name != "Y_h"))]
    _check(proto, case, model)


def test_cells_name_what_the_node_makes() -> None:
    (cell,) = _fused(STREAMING.model()).cells.values()
    assert (cell.y, cell.y_h, cell.y_c) == ("Y", "Y_h", "Y_c")
