"""Unused states, sequences and outputs of loops are removed.

What these would catch: float weights that stay as the state of a loop whose layer has become a cell, a state that goes
though something reads it, results that move to another place.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes.graph.loops.unused_states import drop_unused_states
from tests.generate.recurrences import RecurrenceCase

FEEDS = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
STEP = """
  a_next = Add(a, x_t)
  b_next = Mul(b, a)
  c_next = Identity(c)
  d_next = Identity(one)
  y = Add(a, c)
  z = Neg(b)
"""


def model(results: str, kind: str) -> onnx.ModelProto:
    """Sums a, products b of a, an unchanged c, a constant d; outputs y (of a and c) and z (of b)."""
    names = "(float[3] a, float[3] b, float[3] c, float[3] d"
    outputs = "=> (float[3] a_next, float[3] b_next, float[3] c_next, float[3] d_next, float[3] y, float[3] z)"
    if kind == "Scan":
        body = f"{names}, float[3] w_t, float[3] x_t) {outputs} {{ {STEP} }}"
        directions = "scan_input_directions = [0, 1], scan_output_directions = [1, 0]"
        call = f"Scan<num_scan_inputs = 2, {directions}, body = body {body}>(one, one, two, one, w, x)"
    else:
        body = f"(int64 i, bool k, {names[1:]}) {outputs.replace('(float', '(bool kept, float', 1)}"
        body += f"{{ kept = Identity(k) x_t = Gather(x, i) {STEP} }}"
        call = f"Loop<body = body {body}>(trips, yes, one, one, two, one)"
    shapes = {
        "fa": "float[3]",
        "fb": "float[3]",
        "fc": "float[3]",
        "fd": "float[3]",
        "ya": "float[4,3]",
        "za": "float[4,3]",
    }
    listed = ", ".join(f"{shapes[r]} {r}" for r in results.split())
    stored = "<float[3] one = {1, 1, 1}, float[3] two = {2, 2, 3}, int64 trips = {4}, bool yes = {1}>"
    text = f"g (float[4,3] x, float[4,3] w) => ({listed}) {stored} {{ fa, fb, fc, fd, ya, za = {call} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {text}')


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
@pytest.mark.parametrize(
    ("results", "states", "outputs"),
    [
        ("ya", 1, 1),  # a alone: c stays what it is, and is read from outside
        ("za", 2, 1),  # b reads a
        ("fb ya", 2, 1),
        ("fd", 1, 0),
        ("fc za ya", 3, 2),
        ("fa fb fc fd ya za", 4, 2),
    ],
)
def test_what_is_left(kind: str, results: str, states: int, outputs: int) -> None:
    proto = model(results, kind)
    loaded = Model.load(proto)
    drop_unused_states(loaded)
    loaded.remove_dead()
    loaded.check()
    made = loaded.proto
    onnx.checker.check_model(made, full_check=True)
    (loop,) = (n for n in made.graph.node if n.op_type == kind)
    body = next(a.g for a in loop.attribute if a.name == "body")
    assert (len(body.input), len(body.output)) == {
        "Loop": (2 + states, 1 + states + outputs),
        "Scan": (1 + states, states + outputs),  # one of the two sequences
    }[kind]
    feeds = {**FEEDS, "w": FEEDS["x"] + 1}
    expected, found = run_model(proto, feeds), run_model(made, feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    assert drop_unused_states(loaded) == 0


def test_weights_that_a_loop_carries() -> None:
    """The loop of a custom cell holds no float copy of what its products have as codes."""
    case = RecurrenceCase(op="highway", form="keras", time=5, I=48, H=64, initial="zeros", spare=True)
    lowered = rnnqc.lower(case.model())
    (entry,) = lowered.report.entries
    assert (entry.op, entry.status) == ("Scan", "lowered")
    large = [
        t for t in lowered.proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) > 999
    ]
    assert not large, [t.name for t in large]
    assert len(lowered.proto.SerializeToString()) < 0.5 * len(case.model().SerializeToString())
