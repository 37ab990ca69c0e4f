"""Detection of the time axis of an output.

What these would catch: a batch or feature axis of the same size taken for time, a time axis that is lost on the way
through the usual operators, a guess where shapes do not say.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.measure.time_axes import TimeAxis, fixed_lengths, time_axes
from tests.subjects.protos import parse

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
WEIGHTS = {"W": np.zeros((1, 20, 4), np.float32), "R": np.zeros((1, 20, 5), np.float32)}
LSTM = "Y, Yh, Yc = LSTM <hidden_size = 5> ({x}, W, R)"


def model(signature: str, body: str, **constants: np.ndarray) -> onnx.ModelProto:
    return parse(f"{HEADER} g {signature} {{ {body} }}", **WEIGHTS, **constants)


@pytest.mark.parametrize(
    ("signature", "body", "expected"),
    [
        ("(float[T,B,4] x) => (float[T,1,B,5] Y)", LSTM.format(x="x"), {"Y": TimeAxis(0, ("x", 0))}),
        ("(float[7,3,4] x) => (float[7,1,3,5] Y)", LSTM.format(x="x"), {"Y": TimeAxis(0, ("x", 0))}),
        ("(float[5,5,4] x) => (float[5,1,5,5] Y)", LSTM.format(x="x"), {"Y": TimeAxis(0, ("x", 0))}),
        (
            "(float[B,T,4] x) => (float[B,T,5] y)",
            "t = Transpose <perm = [1,0,2]> (x) " + LSTM.format(x="t") + " s = Squeeze(Y, one)"
            " y = Transpose <perm = [1,0,2]> (s)",
            {"y": TimeAxis(1, ("x", 1))},
        ),
        ("(float[T,B,4] x) => (float[1,B,5] Yh)", LSTM.format(x="x"), {}),
        ("(float[N,N,4] x) => (float[N,1,N,5] Y)", LSTM.format(x="x"), {}),
        ("(float[T,B,4] x) => (float[T,B,4] y)", "y = Neg(x)", {}),
        (
            "(float[T,B,4] x) => (float[T,B,5] Y, float[B,T] z)",
            LSTM.format(x="x") + " r = ReduceSum <keepdims = 0> (x, two) z = Transpose (r)",
            {"Y": TimeAxis(0, ("x", 0)), "z": TimeAxis(1, ("x", 0))},
        ),
        ("(float[T,B,4] x) => (float[B,5] y)", LSTM.format(x="x") + " y = ReduceSum <keepdims = 0> (Y, zero_one)", {}),
    ],
    ids=["symbols", "sizes", "equal sizes", "batch first", "final state", "time and batch of one name",
         "no recurrent layer", "beside the layer", "summed over time"],
)  # fmt: skip
def test_what_shapes_say(signature: str, body: str, expected: dict[str, TimeAxis]) -> None:
    constants = {"one": np.array([1]), "two": np.array([2]), "zero_one": np.array([0, 1])}
    assert time_axes(model(signature, body, **constants)) == expected


def test_a_length_that_inference_does_not_know() -> None:
    """The layer's own time axis is followed from its output on."""
    body = "k = NonZero(x) c = Cast <to = 1> (k) f = Reshape(c, shape) " + LSTM.format(x="f") + " y = Squeeze(Y, one)"
    proto = model("(float[N,B] x) => (float[a,b,c] y)", body, shape=np.array([-1, 2, 4]), one=np.array([1]))
    assert time_axes(proto) == {"y": TimeAxis(0)}


def test_names_count_where_inference_ends() -> None:
    """The output goes through a Reshape to sizes that come from data; the model says which axis is time."""
    body = LSTM.format(x="x") + " y = Reshape(Y, sizes)"
    assert time_axes(model("(float[T,B,4] x, int64[3] sizes) => (float[B,T,5] y)", body)) == {
        "y": TimeAxis(1, ("x", 0))
    }
    assert time_axes(model("(float[T,B,4] x, int64[3] sizes) => (float[B,S,5] y)", body)) == {}
    assert time_axes(model("(float[7,2,4] x, int64[3] sizes) => (float[2,7,5] y)", body)) == {}


def test_two_axes_are_none() -> None:
    """Attention scores: both axes are time."""
    body = LSTM.format(x="x") + " s = Squeeze(Y, one) a = Transpose <perm = [1,0,2]> (s)"
    body += " b = Transpose <perm = [1,2,0]> (s) y = MatMul(a, b)"
    assert time_axes(model("(float[T,B,4] x) => (float[B,T,T] y)", body, one=np.array([1]))) == {}


def test_scans_run_along_their_sequences() -> None:
    proto = onnx.parser.parse_model(
        f"{HEADER} g (float[2] s, float[3,T,2] x) => (float[2] f, float[3,T,2] y) {{"
        "u = Transpose <perm = [1,0,2]> (x)"
        "f, v = Scan <num_scan_inputs = 1, body = b (float[2] i, float[3,2] k) => (float[2] o, float[3,2] p)"
        "{ o = Neg(i) p = Neg(k) }> (s, u)"
        "y = Transpose <perm = [1,0,2]> (v) }"
    )
    assert time_axes(proto) == {"y": TimeAxis(1, ("x", 1))}


@pytest.mark.parametrize(
    ("signature", "count"),
    [
        ("(float[T,B,4] x) => (float[24,1,B,5] Y)", 1),
        ("(float[T,B,4] x) => (float[T,1,B,5] Y)", 0),
        ("(float[T,B,4] x) => (float[t,1,B,5] Y)", 0),
        ("(float[24,B,4] x) => (float[24,1,B,5] Y)", 0),
        ("(float[T,B,4] x) => (float Y)", 0),
        ("(float[T,B,4] x) => (float[1,B,5] Yh)", 0),
    ],
)
def test_a_length_that_is_declared_and_not_so(signature: str, count: int) -> None:
    """As torch's dynamo exporter declares outputs; inspect and lower say so, and what to write."""
    proto = model(signature, LSTM.format(x="x"))
    found = fixed_lengths(rnnqc.Model.load(proto))
    assert len(found) == count
    lowered = rnnqc.lower(proto)
    for told in (rnnqc.inspect(proto).messages, lowered.messages):
        assert [t for t in told if "is declared with" in t] == [f"{text} [fixed-length]" for text in found]
    if found:
        assert "'Y' is declared with 24 steps on axis 0" in found[0] and "dim[0].dim_param = 'T')" in found[0]
        mended = onnx.ModelProto()
        mended.CopyFrom(proto)
        mended.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "T"
        assert not fixed_lengths(rnnqc.Model.load(mended)), "what the message says to do"
