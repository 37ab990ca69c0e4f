"""repair-lstm-export: fires, declines, edges.

What these would catch: a Squeeze that is right and is changed, a state or a length that means something and is dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from rnnqc.errors import Outcome
from rnnqc.ir import Model, input_or_none
from rnnqc.passes import RepairLstmExport
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.protos import of_nodes

T, I, H = 5, 3, 4  # noqa: E741 - the operator's name for it


def layer(
    axis: int,
    batch: int | str = 1,
    *,
    length: int | str = T,
    layout: int = 0,
    initial: npt.NDArray[Any] | None = None,
    lengths: npt.NDArray[Any] | None = None,
    listed: bool = False,
    measured: bool = False,
    direction: str = "forward",
) -> onnx.ModelProto:
    """One LSTM as Brevitas exports it, with a Squeeze of Y along `axis`."""
    rng = np.random.default_rng(0)
    directions = 2 if direction == "bidirectional" else 1
    held = {
        "W": rng.normal(0, 0.5, (directions, 4 * H, I)).astype(np.float32),
        "R": rng.normal(0, 0.5, (directions, 4 * H, H)).astype(np.float32),
        "axes": np.array([axis], np.int64),
    }
    inputs = ["X", "W", "R", "", "", "", ""]
    nodes = []
    if initial is not None:
        held["initial"] = initial
        inputs[5] = inputs[6] = "initial"
    if lengths is not None:
        held["lengths"] = lengths
        inputs[4] = "lengths"
    if measured:  # Shape -> Gather -> Cast, spread over zeros
        held |= {"zero": np.array(layout, np.int64), "zeros": np.zeros(2, np.int32)}
        nodes += [
            helper.make_node("Shape", ["X"], ["shape"], "shape"),
            helper.make_node("Gather", ["shape", "zero"], ["length"], "gather"),
            helper.make_node("Cast", ["length"], ["length32"], "cast", to=TensorProto.INT32),
            helper.make_node("Add", ["zeros", "length32"], ["lengths"], "add"),
        ]
        inputs[4] = "lengths"
    nodes += [
        helper.make_node(
            "LSTM", inputs, ["Y", "Y_h", "Y_c"], "lstm", hidden_size=H, layout=layout, direction=direction
        ),
        helper.make_node("Squeeze", ["Y", "axes"], ["y"], "squeeze"),
    ]
    inputs = {"X": [batch, length, I] if layout else [length, batch, I]}
    if listed:
        inputs["initial"] = list(held["initial"].shape)
    return of_nodes(nodes, inputs, {n: [f"{n}_{k}" for k in range(3)] for n in ("y", "Y_h", "Y_c")}, held, ir_version=9)


def axes_of(model: Model) -> list[int]:
    (squeeze,) = nodes_of(model, "Squeeze")
    return [int(a) for a in squeeze.inputs[1].values]


@pytest.mark.parametrize("axis", [2, -2])
def test_batch_axis(axis: int) -> None:
    proto = layer(axis)
    model = Model.load(proto)
    result = apply(RepairLstmExport(), model)
    assert [r.outcome for r in result.remarks] == [Outcome.NOTE]
    assert axes_of(model) == [1]
    feeds = {"X": np.random.default_rng(1).normal(size=(T, 1, I)).astype(np.float32)}
    assert_same_bits(run(plain_session(proto), feeds), run(plain_session(model.proto), feeds), "a batch of 1")


def test_a_larger_batch_runs() -> None:
    model = Model.load(layer(2, "B", length="T"))
    RepairLstmExport()(model)
    feeds = {"X": np.random.default_rng(1).normal(size=(T, 3, I)).astype(np.float32)}
    reference = run(plain_session(layer(1, 3)), feeds)
    assert_same_bits(reference, run(plain_session(model.proto), feeds), "a batch of 3")
    (y, *_) = model.proto.graph.output
    assert [d.dim_param or d.dim_value for d in y.type.tensor_type.shape.dim] == ["T", "B", H]


def test_time_axis_of_layout_1() -> None:
    model = Model.load(layer(1, 3, layout=1))
    assert RepairLstmExport()(model).statistics["squeezes"] == 1
    assert axes_of(model) == [2]


@pytest.mark.parametrize(
    "arguments", [{"axis": 1}, {"axis": 2, "layout": 1}, {"axis": 2, "direction": "bidirectional"}, {"axis": 0}]
)
def test_other_axes_stay(arguments: dict[str, Any]) -> None:
    model = Model.load(layer(**arguments))
    assert not RepairLstmExport()(model).modified
    assert axes_of(model) == [arguments["axis"]]


def test_zero_states() -> None:
    model = Model.load(layer(1, 2, initial=np.zeros((1, 2, H), np.float32)))
    assert apply(RepairLstmExport(), model).statistics["states"] == 2
    (node,) = nodes_of(model, "LSTM")
    assert input_or_none(node, 5) is None
    assert input_or_none(node, 6) is None


@pytest.mark.parametrize("what", ["a value", "an input"])
def test_states_that_mean_something(what: str) -> None:
    """A state that is not zero, and zeros that a run may replace, stay."""
    initial = np.zeros((1, 2, H), np.float32)
    initial[0, 1, 2] = float(what == "a value")
    model = Model.load(layer(1, 2, initial=initial, listed=what == "an input"))
    assert not RepairLstmExport()(model).modified


def test_zeros_of_another_size() -> None:
    """PyTorch's exporter writes such states for an LSTM with a projection, which the file loses."""
    model = Model.load(layer(1, 2, initial=np.zeros((1, 2, H + 1), np.float32)))
    assert not RepairLstmExport()(model).modified


@pytest.mark.parametrize("layout", [0, 1])
def test_whole_lengths(layout: int) -> None:
    constant = Model.load(layer(1, 2, layout=layout, lengths=np.full(2, T, np.int32)))
    assert RepairLstmExport()(constant).statistics["lengths"] == 1
    measured = Model.load(layer(1, 2, length="T", layout=layout, measured=True))
    assert RepairLstmExport()(measured).statistics["lengths"] == 1
    assert not nodes_of(measured, "Shape")


def test_whole_lengths_run() -> None:
    apply(RepairLstmExport(), Model.load(layer(1, 2, lengths=np.full(2, T, np.int32), measured=False)))


def test_shorter_lengths_stay() -> None:
    for lengths in ([T, T - 1], [T - 1, T - 1]):
        model = Model.load(layer(1, 2, lengths=np.array(lengths, np.int32)))
        assert not RepairLstmExport()(model).modified
    unknown = Model.load(layer(1, 2, length="T", lengths=np.full(2, T, np.int32)))
    assert not RepairLstmExport()(unknown).modified
