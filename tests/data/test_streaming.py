"""Running models over calls.

What these would catch: a state that is not carried, carried into a new stream, or taken from another model; data of
calls that is read as one call.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Outputs, calls_of, run_calls, stacked
from rnnqc.errors import CompileError
from tests.runs.sessions import save_arrays
from tests.subjects.protos import parse

STATES = {"h": "g"}
X = [np.full(2, k, np.float32) for k in (1, 2, 3)]
START = np.array([5, 5], np.float32)


def accumulator(x: str = "float[2]") -> onnx.ModelProto:
    return parse(
        f'<ir_version: 8, opset_import: ["": 17]> m ({x} x, float[2] h) => (float[2] y, float[2] g)'
        "{ g = Add(x, h) y = Neg(g) }"
    )


def add(feed: Feeds) -> Outputs:
    return {"y": -(feed["x"] + feed["h"]), "g": feed["x"] + feed["h"]}


def sums(feeds: list[Feeds]) -> list[float]:
    return [r["g"][0] for r in run_calls(add, calls_of(feeds, accumulator(), STATES), STATES)]


def test_states_go_from_call_to_call() -> None:
    assert sums([{"x": x} for x in X]) == [1, 3, 6]
    assert sums([{"x": X[0], "h": START}, {"x": X[1]}, {"x": X[2]}]) == [6, 8, 11]
    assert sums([{"x": X[0]}, {"x": X[1]}, {"x": X[2], "h": START}, {"x": X[0]}]) == [1, 3, 8, 9]


def test_states_that_are_left_are_named() -> None:
    """Every input without an array at once, with the pairs that are not given yet; not for data of other names."""
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> m (float[2] x, float[2] h, float[2] c, float[2] cache) =>'
        " (float[2] y, float[2] h_next, float[2] c_next, float[2] cache_next)"
        "{ y = Neg (x) h_next = Neg (h) c_next = Neg (c) cache_next = Neg (cache) }"
    )
    both = '{"c": "c_next", "cache": "cache_next"}'
    with pytest.raises(CompileError, match=f"no array for input 'c' and 'cache'; arrays: x.*the states: state={both}"):
        next(calls_of([{"x": X[0]}], proto, {"h": "h_next"}))
    states = dict.fromkeys(("h", "c", "cache"), X[0])
    with pytest.raises(CompileError, match=r"no array for input .x.; arrays: .*as the model.s inputs\.$"):
        next(calls_of([states], proto, {}))


def test_a_bound_input_is_checked_in_a_stream_too() -> None:
    proto = accumulator()
    proto.metadata_props.add(key="rnnqc.bind", value='{"rate": 8}')
    with pytest.raises(CompileError, match="array 'rate' is not 8, which the model is bound to"):
        next(calls_of([{"x": X[0], "rate": np.array(16)}], proto, STATES))


def test_without_states_every_feed_stands_alone() -> None:
    feeds = [{"x": x, "h": START} for x in X]
    assert [r["g"][0] for r in run_calls(add, calls_of(feeds, accumulator(), {}), {})] == [6, 7, 8]


@pytest.mark.parametrize("x", ["float[2]", "float"], ids=["known rank", "unknown rank"])
def test_an_npz_of_calls(tmp_path: Path, x: str) -> None:
    save_arrays(tmp_path / "calls.npz", {"x": np.stack(X), "h": START})
    proto = accumulator(x)
    if x == "float":
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    calls = list(calls_of(str(tmp_path / "calls.npz"), proto, STATES))
    assert [c.restart for c in calls] == [True, False, False]
    results = stacked(list(run_calls(add, calls, STATES)), STATES)
    assert results["y"].tolist() == [[-6, -6], [-8, -8], [-11, -11]]
    assert results["g"].tolist() == [11, 11], "the value after the last call"


def test_outputs_that_cannot_be_stacked() -> None:
    with pytest.raises(CompileError, match=r"output 'y' has shape \[2\] in one call and \[3\] in another"):
        stacked([{"y": np.zeros(2)}, {"y": np.zeros(3)}], {})


def test_no_data() -> None:
    with pytest.raises(CompileError, match="data is empty"):
        list(calls_of([], accumulator(), STATES))


def batched() -> onnx.ModelProto:
    return parse(
        '<ir_version: 8, opset_import: ["": 17]> m (float[B,2] x, float[B,2] h) => (float[B,2] g) { g = Add(x, h) }'
    )


def test_one_call_where_calls_may_be_meant(tmp_path: Path) -> None:
    """No state would be carried: the axis is ambiguous, and the message says how to write either meaning."""
    array = np.ones((60, 2), np.float32)
    save_arrays(tmp_path / "x.npz", {"x": array})
    wanted = r"array 'x' of shape \[60, 2\] is one call.*\[60, 1, 2\] is 60 calls of \[1, 2\].*x\[:, None\]"
    for data in (array, {"x": array}, str(tmp_path / "x.npz")):
        with pytest.raises(CompileError, match=wanted):
            list(calls_of(data, batched(), STATES))
    assert len(list(calls_of(array[:, None], batched(), STATES))) == 60
    plain = [array[:1], {"x": array, "h": array}, [{"x": array}], tmp_path]
    assert [len(list(calls_of(data, batched(), STATES))) for data in plain] == [1] * 4


def test_rows_of_a_first_state(tmp_path: Path) -> None:
    """A model that broadcasts would take 60 frames with the state of one stream as one call, and carry nothing."""
    one, rows = np.ones((1, 2), np.float32), np.ones((60, 2), np.float32)
    with pytest.raises(CompileError, match=r"array 'x' of shape \[60, 2\] is one call"):
        list(calls_of({"x": rows, "h": one}, batched(), STATES))
    assert len(list(calls_of({"x": rows[:, None], "h": one}, batched(), STATES))) == 60
    assert len(list(calls_of([{"x": rows, "h": one}], batched(), STATES))) == 1
    time_major = parse(
        '<ir_version: 8, opset_import: ["": 17]> m (float[T,B,2] x, float[B,2] h) => (float[T,B,2] g) { g = Add(x, h) }'
    )
    assert len(list(calls_of({"x": np.ones((60, 1, 2), np.float32), "h": one}, time_major, STATES))) == 1
    with pytest.raises(CompileError, match="is one call"):
        list(calls_of({"x": np.ones((60, 3, 2), np.float32), "h": one}, time_major, STATES))


def test_a_smaller_last_batch() -> None:
    """onnxruntime would say that two shapes cannot be broadcast."""
    feeds = [{"x": np.ones((n, 2), np.float32)} for n in (4, 4, 3)]
    wanted = r"sample 2: dimension 'B' is 3 in its arrays \('x' \[3, 2\]\), and 4 in the states.*drop_last=True"
    with pytest.raises(CompileError, match=wanted):
        list(calls_of(feeds, batched(), STATES))
    starts = [{**feed, "h": np.zeros_like(feed["x"])} for feed in feeds]
    assert [c.restart for c in calls_of(starts, batched(), STATES)] == [True] * 3
