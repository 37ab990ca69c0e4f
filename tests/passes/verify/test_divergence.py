"""The first difference between two forms of a model.

What these would catch: a value inside a loop, a branch or a function that is not looked at, a later step named for an
earlier one, a consequence named for its cause, values that a pass only calls differently taken for others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.evaluation.numerics import Bitwise, Close, Numerics
from rnnqc.ir import Model
from rnnqc.passes import Instrument, Pass, PassResult
from rnnqc.passes.graph.point_names import alias
from rnnqc.passes.verify.divergence import first_divergence
from rnnqc.proto.inlining import inlined
from tests.generate.layer_specs import Placement
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import plain_op
from tests.runs.sessions import assert_same_bits, plain_session, run

Stages = dict[str, tuple[onnx.ModelProto, onnx.ModelProto, Numerics]]


class Snapshots(Instrument):
    """The model before and after every pass that changes it."""

    def __init__(self) -> None:
        self.stages: Stages = {}
        self._before = onnx.ModelProto()

    def before_pass(self, pass_: Pass, model: Model) -> None:
        self._before = model.proto

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        if result.modified:
            self.stages.setdefault(pass_.info.name, (self._before, model.proto, result.numerics or pass_.info.numerics))


def stages(case: RecurrentCase, form: str = "fused", unroll: bool = False) -> Stages:
    seen = Snapshots()
    rnnqc.lower(case.model(), form=form, unroll=unroll, instruments=[seen])
    return seen.stages


def nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)
        yield node


def planted(model: onnx.ModelProto, op: str, output: str, other: str) -> onnx.ModelProto:
    """A copy in which the nodes of this operator with this output have another one."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    found = [
        n
        for block in (wrong.graph, *wrong.functions)
        for n in nodes(block)
        if n.op_type == op and any(alias(o)[0].endswith(output) for o in n.output)
    ]
    assert found
    for node in found:
        node.op_type = other
    return wrong


CASES: dict[Placement, RecurrentCase] = {
    "main": RecurrentCase(T=4),
    "if": RecurrentCase(T=4, placement="if"),
    "loop": RecurrentCase(T=4, placement="loop", initial_h=True, initial_c=True),
    "scan": RecurrentCase(T=4, B=1, placement="scan", initial_h=True),
}


@pytest.mark.few(1)
@in_turn(placement=[*CASES, "main"], form=["fused", "integer", "fused", "integer", "integer"])
def test_no_divergence_where_there_is_none(placement: Placement, form: str) -> None:
    """For the integer form only unrolled, whose passes include those of the loop."""
    case, unroll = CASES[placement], form == "integer"
    for before, after, numerics in stages(case, form, unroll).values():
        assert first_divergence(before, after, case.feeds(), numerics) is None


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "op", "output", "other", "value", "inside"),
    [
        ("insert-qcdq", "Tanh", "cell_gate.value", "Sigmoid", "the_lstm.forward/cell_gate.value", ["Scan"]),
        ("insert-qcdq", "Add", "cell_state.sum", "Sub", "the_lstm.forward/cell_state.sum", ["Scan"]),
        (
            "cleanup", "Round", "hidden.squashed.rounded", "Floor",
            "the_lstm.forward/hidden.squashed.rounded", ["Scan"],
        ),
        (
            "fuse-quant-lstm-cell", "Round", "hidden.squashed.rounded", "Ceil",
            "the_lstm.forward/hidden.squashed.rounded", ["Scan"],
        ),
        (
            "fuse-quant-lstm-cell", "Mul", "hidden.value", "Add",
            "the_lstm.forward/hidden.value", ["Scan"],
        ),
        ("decompose-lstm", "Tanh", "cell_gate.value", "Sigmoid", "Y", []),
    ],
)  # fmt: skip
def test_the_planted_value_is_named(name: str, op: str, output: str, other: str, value: str, inside: list[str]) -> None:
    """Inside a Scan, its branch and its function; where only outputs have counterparts, the first of them."""
    case = CASES["main"]
    before, after, numerics = stages(case)[name]
    found = first_divergence(before, planted(after, op, output, other), case.feeds(), numerics)
    assert found is not None and alias(found.value)[0] == value
    assert [text.split()[0] for text in found.inside] == inside
    assert found.step == (0 if inside else None)


def test_inside_a_loop() -> None:
    case = CASES["loop"]
    before, after, numerics = stages(case)["fuse-quant-lstm-cell"]
    found = first_divergence(before, planted(after, "Mul", "hidden.value", "Add"), case.feeds(), numerics)
    assert found is not None and alias(found.value)[0] == "body_the_lstm.forward/hidden.value"
    assert [text.split()[0] for text in found.inside] == ["Loop", "Scan"]


def test_the_step_of_a_written_out_loop() -> None:
    """One copy of the body is wrong: the value of the loop is named, and the copy's step."""
    case = CASES["main"]
    before, after, numerics = stages(case, "integer", True)["unroll"]
    wrong = onnx.ModelProto()
    wrong.CopyFrom(after)
    (node,) = [n for n in wrong.graph.node if "/step_2/hidden.squashed.rounded" in n.output[0]]
    node.op_type = "Ceil"
    found = first_divergence(before, wrong, case.feeds(), numerics)
    assert found is not None and alias(found.value)[0] == "the_lstm.forward/hidden.squashed.rounded"
    assert found.step == 2 and found.inside[0].startswith("Scan")


SCAN = """<ir_version: 8, opset_import: ["": 17]> g (float[2] s, float[T,2] x) => (float[2] last, float[T,2] y) {
    last, y = Scan <num_scan_inputs = 1, body = b (float[2] i, float[2] k) => (float[2] o, float[2] p) {
        small = LIMIT
        sum = Add(i, small)
        o = Identity(sum)
        p = Neg(sum)
    }> (s, x)
}"""


def test_the_first_step_is_named() -> None:
    """The value that differs only from step 3 on, not those that follow from it, and not step 0."""
    before = onnx.parser.parse_model(SCAN.replace("LIMIT", "Identity(k)"))
    after = onnx.parser.parse_model(SCAN.replace("LIMIT", "Relu(k)"))
    x = np.ones((6, 2), np.float32)
    x[3:, 1] = -1
    found = first_divergence(before, after, {"s": np.zeros(2, np.float32), "x": x}, Close(1e-6))
    assert found is not None and (found.value, found.step) == ("small", 3)
    assert str(found) == "'small' in Scan 'last' at step 3: max abs difference 1, declared 1e-06"


def test_a_branch_that_is_not_taken_counts_for_nothing() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool q) => (float[2] y) {
        y = If <then_branch = t () => (float[2] a) { u = Neg(x) a = OP(u) },
                else_branch = e () => (float[2] b) { v = Abs(x) b = Neg(v) }> (q)
    }"""
    before, after = (onnx.parser.parse_model(text.replace("OP", op)) for op in ("Exp", "Sqrt"))
    x = np.array([-1, -4], np.float32)
    assert first_divergence(before, after, {"x": x, "q": np.array(False)}, Bitwise()) is None
    found = first_divergence(before, after, {"x": x, "q": np.array(True)}, Bitwise())
    assert found is not None and (found.value, found.inside, found.step) == ("a", ("If 'y'",), None)


def test_functions_are_inlined_with_their_callers_names() -> None:
    """Nested, with attributes that refer to the call's, subgraphs, and outputs that are left out."""
    case = CASES["main"]
    after = stages(case)["fuse-quant-lstm-cell"][1]
    flat = inlined(after)
    assert not flat.functions and "QuantLSTMCell" not in {plain_op(n.op_type) for n in flat.graph.node}
    onnx.checker.check_model(flat)
    assert_same_bits(run(plain_session(after), case.feeds()), run(plain_session(flat), case.feeds()), "inlined")
    text = """<ir_version: 8, opset_import: ["": 17, "d": 1]> g (float[2] x) => (float[2] y) {
        y, unused = d.outer <alpha = 0.5> (x)
    }
    <opset_import: ["": 17, "d": 1], domain: "d"> outer <alpha> (a) => (b, c) {
        b = d.inner <alpha: float = @alpha> (a)
        c = Neg(b)
    }
    <opset_import: ["": 17], domain: "d"> inner <alpha: float = 2.0> (a) => (b) {
        n = Neg(a)
        b = LeakyRelu <alpha: float = @alpha> (n)
    }"""
    nested = onnx.parser.parse_model(text)
    feeds = {"x": np.array([1, -2], np.float32)}
    wanted = run(plain_session(nested), feeds)
    assert_same_bits(wanted, run(plain_session(inlined(nested)), feeds), "nested functions")
    assert wanted["y"].tolist() == [-0.5, 2.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cell/hidden.value", ("cell/hidden.value", 0)),
        ("cell/hidden.value_12", ("cell/hidden.value", 0)),
        ("cell/step_7/hidden.value_3", ("cell/hidden.value", 7)),
        ("cell/uint8/hidden.value", ("cell/hidden.value", 0)),
        ("step_7", ("step", 0)),
    ],
)
def test_aliases(name: str, expected: tuple[str, int]) -> None:
    assert alias(name) == expected
