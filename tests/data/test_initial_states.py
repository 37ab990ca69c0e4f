"""The zeros that a stream starts from.

What these would catch: a state without an array that is refused although the other arrays say its rows; zeros of the
time axis instead of the batch; a guess where two sizes are possible.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from rnnqc.data.streaming import calls_of
from rnnqc.errors import CompileError
from tests.subjects.protos import of_nodes, parse

STATES = {"h": "g"}


def adder(x: str, h: str) -> onnx.ModelProto:
    return parse(f'<ir_version: 8, opset_import: ["": 17]> m ({x} x, {h} h) => ({h} g) {{ g = Add(x, h) }}')


@pytest.mark.parametrize(
    ("x", "given", "h", "wanted"),
    [
        ("float[A,2]", [1, 2], "float[C,2]", [1, 2]),  # names of their own, as tf2onnx gives them
        ("float[A,2]", [4, 2], "float[C,2]", [4, 2]),
        ("float[?,2]", [4, 2], "float[?,2]", [4, 2]),
        ("float[A,D,2]", [4, 16, 2], "float[C,2]", [4, 2]),  # batch first, as the state
        ("float[A,D,2]", [16, 4, 2], "float[1,C,2]", [1, 4, 2]),  # batch second, as the state
        ("float[A,1,2]", [4, 1, 2], "float[1,C,2]", [1, 4, 2]),  # the one open axis
        ("float[1,2]", [1, 2], "float[C,2]", [1, 2]),  # nothing else is open
    ],
)
def test_rows_without_a_name(x: str, given: list[int], h: str, wanted: list[int]) -> None:
    model = adder(x, h)
    first, second = calls_of([{"x": np.ones(given, np.float32)}] * 2, model, STATES)
    assert first.feed["h"].shape == tuple(wanted) and not first.feed["h"].any()
    assert first.feed["h"].dtype == np.float32
    assert first.restart and not second.restart and "h" not in second.feed


def test_minus_one_is_open() -> None:
    """Some tools write -1 for any size; zeros of no rows would end in onnxruntime."""
    model = adder("float[A,2]", "float[C,2]")
    for value in (model.graph.input[1], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    (call,) = calls_of([{"x": np.ones((3, 2), np.float32)}], model, STATES)
    assert call.feed["h"].shape == (3, 2)


def lstm(layout: int) -> onnx.ModelProto:
    """An LSTM that takes [B, 1, H] states by way of a Transpose of [B, T, C], with no name in common."""
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 12, 2), "R": (1, 12, 3)}
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    perm = [1, 0, 2] if layout else [0, 1, 2]
    nodes = [
        helper.make_node("Transpose", ["x"], ["seq"], perm=perm),
        helper.make_node("LSTM", ["seq", "W", "R", "", "", "h"], ["", "g", ""], hidden_size=3),
    ]
    return of_nodes(nodes, {"x": ["A", "D", 2], "h": [1, "E", 3]}, {"g": [1, "F", 3]}, weights)


@pytest.mark.parametrize(("batch_first", "shape"), [(1, [4, 16, 2]), (0, [16, 4, 2])])
def test_a_node_says_which_axis_is_the_batch(batch_first: int, shape: list[int]) -> None:
    (call,) = calls_of([{"x": np.ones(shape, np.float32)}], lstm(batch_first), STATES)
    assert call.feed["h"].shape == (1, 4, 3)


@pytest.mark.parametrize(
    ("x", "given", "h"),
    [
        ("float[A,1,D,2]", [4, 1, 16, 2], "float[1,C,2]"),  # 4 or 16
        ("float[A,2]", [4, 2], "float[C,D]"),  # nobody says what D is
    ],
)
def test_no_guess(x: str, given: list[int], h: str) -> None:
    with pytest.raises(CompileError, match=r"no array for the first 'h' of shape \[.*\?.*first value in the data"):
        list(calls_of([{"x": np.ones(given, np.float32)}], adder(x, h), STATES))


def test_a_smaller_last_batch_without_names() -> None:
    """onnxruntime would say that two shapes cannot be broadcast; names that differ hid it."""
    feeds = [{"x": np.ones((n, 2), np.float32)} for n in (4, 4, 3)]
    with pytest.raises(CompileError, match=r"sample 2: open dimensions are 3 in its arrays.*and 4 in the states"):
        list(calls_of(feeds, adder("float[A,2]", "float[C,2]"), STATES))
