"""Loops of custom cells that become Scans, and those that stay.

What these would catch: an element of another iteration, a result that is lost or in another place, a state whose shape
changes, a number of iterations that data decide, a loop that is changed though no cell of it becomes a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.custom_nodes import is_custom_node
from rnnqc.errors import Outcome
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import WriteScans
from tests.generate.recurrences import RecurrenceCase
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import apply, in_front_of, nodes_of
from tests.runs.lowered import STOCK, run_both, session
from tests.runs.sessions import Array, assert_same_bits, run
from tests.subjects.protos import parse

I, H = 5, 6  # noqa: E741 - inputs and units
SIZES = ((1, 3), (4, 1), (9, 2))
"""T and B."""

before = partial(in_front_of, WriteScans)


def written(model: Model, feeds: list[Mapping[str, Array]] | None = None) -> None:
    """Every Loop becomes a Scan, with the same bits."""
    count = len(nodes_of(model, "Loop"))
    result = apply(WriteScans(), model, feeds)
    assert result.statistics == {"scans": count}, [str(r) for r in result.remarks]
    assert count == len(nodes_of(model, "Scan"))
    assert not nodes_of(model, "Loop", "SequenceInsert", "SequenceEmpty")


CASES: tuple[dict[str, Any], ...] = (
    {"backwards": True, "batch_first": True},
    {"initial": "dynamic", "outputs": ("y",)},
    {"initial": "computed", "outputs": ("final",)},
    {"local": True, "spare": True, "products": "joined"},
    {"between": "normalized", "counter": "double"},
    {"twice": True, "I": 6, "counter": "trips"},
)


@pytest.mark.few(3)
@in_turn(form=["loop", "script", "keras"], case=CASES, op=["highway", "random", "projection"])
def test_loops_of_exporters(form: str, case: dict[str, Any], op: str) -> None:
    """For several lengths and batches."""
    op = "highway" if "twice" in case else op
    layer = RecurrenceCase(op=op, form=form, batch="B", dynamic_time=True, **case)
    model = before(layer.model())
    feeds: list[Mapping[str, Array]] = []
    for time, batch in SIZES:
        made = replace(layer, time=time, dynamic_time=False, batch=batch).feeds(time)
        feeds.append(made)
    written(model, feeds)
    proto = rnnqc.lower(layer.model(), strict=True).proto
    assert [n for n in proto.graph.node if is_custom_node(n.op_type)]
    for values in feeds:
        run_both(proto, values)


@pytest.mark.few(1)
@in_turn(lengths=["zeros", "held"], backwards=[False, True], op=["highway", "projection"])
def test_lengths(lengths: str, backwards: bool, op: str) -> None:
    """A mask of the number of the iteration is computed for all iterations in front of the Scan."""
    layer = RecurrenceCase(op=op, form="loop", lengths=lengths, backwards=backwards, batch="B", dynamic_time=True)
    model = before(layer.model())
    written(model, [replace(layer, time=t, dynamic_time=False).feeds(t) for t in (1, 4, 9)])
    assert len(nodes_of(model, "Where")) in (2, 3), "they stay in the body"
    proto = rnnqc.lower(layer.model(), strict=True).proto
    assert [n for n in proto.graph.node if is_custom_node(n.op_type)]
    same = layer.feeds()
    run_both(proto, same)


# A cell that no node computes: h' = tanh(x W + softmax(h R)).
STEP = "p = MatMul(x, W) q = MatMul(h, R) s = Softmax(q) d = Add(p, s) hn = Tanh(d)"
DEFAULTS = {
    "graph": "", "inputs": "", "element": "x = Gather<axis = 0>(X, i)", "step": STEP, "result": "y = Identity(hn)",
    "keep": "kept = Identity(go)", "trips": "size", "go": "true", "start": "first", "first": 'float[B,6] first',
    "X": 'float[T,B,5] X', "y": "float[b,6] y", "h": "float[b,6] h", "Y": "float[t,b,6] Y",
}  # fmt: skip


def loop(**given: str) -> onnx.ModelProto:
    """The cell in a Loop over X, with some lines replaced."""
    text = {**DEFAULTS, **given}
    rng = np.random.default_rng(3)
    return parse(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g ({text["X"]}, {text["first"]}{text["inputs"]}) => ({text["Y"]}, float[b,6] out) {{
          shape = Shape(X)
          size = Gather<axis = 0>(shape, zero)
          {text["graph"]}
          out, Y = Loop<body = body (int64 i, bool go, {text["h"]}) => (bool kept, float[b,6] hn, {text["y"]}) {{
            {text["element"]} {text["step"]} {text["result"]} {text["keep"]}
          }}>({text["trips"]}, {text["go"]}, {text["start"]})
        }}""",
        W=rng.standard_normal((I, H)).astype(np.float32),
        R=rng.standard_normal((H, H)).astype(np.float32),
        zero=np.array(0),
        one=np.array(1),
        three=np.array(3),
        axis_0=np.array([0]),
        half=np.float32(0.5),
        true=np.array(True),
    )


def feeds_of(*sizes: tuple[int, int]) -> list[Mapping[str, Array]]:
    rng = np.random.default_rng(1)
    return [
        {
            "X": rng.standard_normal((t, b, I)).astype(np.float32),
            "first": rng.standard_normal((b, H)).astype(np.float32),
        }
        for t, b in sizes
    ]


WRITTEN: dict[str, dict[str, str]] = {
    "as it is": {},
    "backwards": {"element": "last = Sub(size, one) at = Sub(last, i) x = Gather<axis = 0>(X, at)"},
    "along the second axis": {
        "X": "float[B,T,5] X",
        "graph": "steps = Gather<axis = 0>(shape, one)",
        "trips": "steps",
        "element": "x = Gather<axis = 1>(X, i)",
    },
    "from the second element on": {
        "graph": "less = Sub(size, one)",
        "trips": "less",
        "element": "at = Add(i, one) x = Gather<axis = 0>(X, at)",
    },
    "the first three elements": {"trips": "three"},
    "results with an axis of their own": {
        "result": "y = Unsqueeze(hn, axis_0)",
        "y": "float[n,b,6] y",
        "Y": "float[t,n,b,6] Y",
    },
    "the state before the step": {"result": "y = Identity(h)"},
    "the element itself": {"step": f"{STEP} e = MatMul(x, W)", "result": "y = Add(e, e)"},
}


@pytest.mark.parametrize("change", WRITTEN.values(), ids=WRITTEN)
def test_written_by_hand(change: dict[str, str]) -> None:
    proto = loop(**change)
    model = before(proto)
    feeds = feeds_of((4, 3), (9, 1))
    if "axis = 1" in change.get("element", ""):
        feeds = [{**values, "X": values["X"].swapaxes(0, 1)} for values in feeds]
    written(model, feeds)
    for values in feeds:
        assert_same_bits(run_model(proto, values), run_model(model.proto, values), "in the optimizing runtime")


STAY: dict[str, tuple[dict[str, str], str]] = {
    "data decide on the number": (
        {"keep": "m = ReduceMax<keepdims = 0>(hn) kept = Less(m, half)"},
        "its number of iterations depends on data",
    ),
    "the condition is read": (
        {"result": "f = Cast<to = 1>(go) y = Mul(hn, f)"},
        "its step reads its condition",
    ),
    "the number is read": (
        {"result": "f = Cast<to = 1>(i) y = Mul(hn, f)"},
        "its step reads the number of the iteration",
    ),
    "a condition that is one number": (
        {"result": "few = Less(i, three) y = Where(few, hn, h)"},
        "is no matrix of float32",
    ),
    "a state that grows": ({"first": "float[1,6] first"}, "another shape after an iteration"),
    "rows of other names": ({"first": "float[N,6] first"}, "another shape after an iteration"),
    "no elements": ({"element": "x = Identity(x0)", "inputs": ", float[B,5] x0"}, "takes no elements"),
    "an element of every second index": (
        {"element": "twice = Add(i, i) at = Mul(twice, one) x = Gather<axis = 0>(X, at)", "trips": "one"},
        "element by element",
    ),
    "a subgraph": (
        {
            "element": "x0 = Gather<axis = 0>(X, i) x = If<then_branch = a () => (float[b,5] u) { u = Relu(x0) }, "
            "else_branch = c () => (float[b,5] v) { v = Neg(x0) }>(flag)",
            "inputs": ", bool flag",
        },
        "has an operator that no node of a custom cell has",
    ),
    "a state of another rank": (
        {"first": "float[1,B,6] first", "h": "float[n,b,6] h", "y": "float[n,b,6] y"},
        "is no matrix of float32",
    ),
}


@pytest.mark.parametrize("change,reason", STAY.values(), ids=STAY)
def test_what_stays(change: dict[str, str], reason: str) -> None:
    """Nothing of the model changes, and a warning of the lowering says why."""
    model = before(loop(**change))
    old = model.proto.SerializeToString(deterministic=True)
    result = WriteScans()(model)
    assert not result.modified
    assert model.proto.SerializeToString(deterministic=True) == old
    (remark,) = result.remarks
    assert remark.outcome is Outcome.NOTE
    assert reason in remark.reason, str(remark)
    assert remark.found
    (warning,) = [w for w in rnnqc.lower(loop(**change)).report.warnings if "it stays a loop" in w]
    assert remark.reason.removeprefix("the loop stays: ").removesuffix(".") in warning


@pytest.mark.parametrize("options", [{"recipe": "weight-only-int8"}, {"form": "ort"}, {"recipe": "fp16"}])
def test_loops_of_cells_that_stay_float_stay_loops(options: dict[str, str]) -> None:
    """A Scan would gain nothing for them."""
    made = rnnqc.lower(loop(), **options)
    assert nodes_of(made.model, "Loop") and not nodes_of(made.model, "Scan")
    assert [e.status for e in made.report.entries] == ["float"]
    for feeds in feeds_of(*SIZES):
        assert_same_bits(run(session(loop(), STOCK), feeds), run(session(made.proto, STOCK), feeds), "")


def test_a_loop_without_a_custom_cell_stays() -> None:
    """A recurrence without a matmul, silently."""
    model = before(loop(step="p = MatMul(x, W) d = Add(p, h) hn = Tanh(d)"))
    result = WriteScans()(model)
    assert not result.modified
    assert not result.remarks


def test_sites_that_are_kept() -> None:
    """`lower` names such sites to the pass if their results differ."""
    model = before(loop())
    (name,) = (n.name for n in nodes_of(model, "Loop"))
    result = WriteScans().keeping({name: "a difference"})(model)
    assert not result.modified
    assert "does not compute the same" in result.remarks[0].reason
