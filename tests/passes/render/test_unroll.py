"""unroll: fires, declines, edges.

What these would catch: a state handed to the wrong copy, a reversed sequence, initializers copied with the body, a loop
that stays without a word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from rnnqc.data.binding import bind_dimensions
from rnnqc.errors import CompileError, Outcome
from rnnqc.evaluation.numerics import Float16Close
from rnnqc.ir import Model, graph_info, shape_of
from rnnqc.passes import Canonicalize, Cleanup, Unroll
from rnnqc.passes.render import unroll
from rnnqc.passes.render.unroll import LARGEST_LENGTH
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import INT8, apply, before, nodes_of, op_types, text_of
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.protos import parse

HEADER = '<ir_version: 10, opset_import: ["": 17]>'
SCAN = """g (float[3, 2] x, float[2] start) => (float[2] last, float[3, 2] sums) {
  [scan] last, sums = Scan <num_scan_inputs = 1, EXTRA body = b (float[2] s, float[2] e) => (float[2] t,
    float[2] u) { t = Add(s, e) u = Mul(t, k) }> (start, x)
}"""
LOOP = """g (float[2] start) => (float[2] last, float[3, 2] all) {
  [loop] last, all = Loop <body = b (int64 i, bool go, float[2] s) => (bool go_on, float[2] t, float[2] u)
    { go_on = Identity(go) f = Cast <to = 1> (i) t = Add(s, f) u = Mul(t, k) }> (trips, true, start)
}"""


def _scan(extra: str = "") -> Model:
    model = Model.load(parse(f"{HEADER} {SCAN.replace('EXTRA', extra)}", k=np.array([2, 3], np.float32)))
    Canonicalize()(model)
    return model


def _loop(trips: int = 3, true: bool = True) -> Model:
    model = Model.load(
        parse(f"{HEADER} {LOOP}", k=np.array([2, 3], np.float32), trips=np.array(trips), true=np.array(true))
    )
    Canonicalize()(model)
    return model


def test_golden(golden: Callable[[str, str], None]) -> None:
    model = _scan()
    Unroll()(model)
    golden("unroll.txt", text_of(model))


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "scan_input_directions = [1],",
        "scan_output_directions = [1],",
        "scan_input_directions = [1], scan_output_directions = [1],",
    ],
)
def test_scan(extra: str) -> None:
    model = _scan(extra)
    result = apply(Unroll(), model)
    assert [(r.outcome, r.node, r.op, r.reason) for r in result.remarks] == [
        (Outcome.NOTE, "scan", "Scan", "unrolled 3 times.")
    ]
    assert op_types(model.graph).count("Add") == 3
    assert not nodes_of(model, "Scan")
    assert [v.name for v in model.graph.outputs] == ["last", "sums"]


def test_scan_over_other_axes() -> None:
    text = """g (float[2, 3] x, float[2] start) => (float[2] last, float[2, 3] sums) {
      [scan] last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        body = b (float[2] s, float[2] e) => (float[2] t, float[2] u) { t = Add(s, e) u = Identity(t) }>
          (start, x) }"""
    model = Model.load(parse(f"{HEADER} {text}"))
    Canonicalize()(model)
    apply(Unroll(), model)


def test_scan_over_a_negative_axis() -> None:
    text = """g (float[2, 3] x, float[2] start) => (float[2] last, float[2, 3] sums) {
      [scan] last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [-1], scan_output_axes = [-1],
        body = b (float[2] s, float[2] e) => (float[2] t, float[2] u) { t = Add(s, e) u = Identity(t) }>
          (start, x) }"""
    model = Model.load(parse(f"{HEADER} {text}"))
    Canonicalize()(model)
    apply(Unroll(), model)


def test_loop() -> None:
    model = _loop()
    (remark,) = apply(Unroll(), model).remarks
    assert (remark.node, remark.op, remark.reason) == ("loop", "Loop", "unrolled 3 times.")
    assert not nodes_of(model, "Loop")


def test_states_that_only_pass_through() -> None:
    text = """g (float[3, 2] x, float[2] a, float[2] b) => (float[2] p, float[2] q) {
      [scan] p, q, all = Scan <num_scan_inputs = 1, body = body (float[2] s, float[2] t, float[2] e) =>
        (float[2] t2, float[2] s2, float[2] e2)
        { t2 = Identity(t) s2 = Identity(s) e2 = Neg(e) }> (a, b, x) }"""
    model = Model.load(parse(f"{HEADER} {text}"))
    Canonicalize()(model)
    apply(Unroll(), model)
    assert not nodes_of(model, "Neg"), "what nothing uses goes"


def test_initializers_stay_single() -> None:
    case = RecurrentCase(T=4)
    model = before("unroll", case.model())
    sizes = {n: v.shape for g in model.graphs() for n, v in graph_info(g).initializers.items() if "lstm" in n}
    Unroll()(model)
    after = {n: v.shape for n, v in graph_info(model.graph).initializers.items() if "lstm" in n}
    assert after == sizes
    assert len(nodes_of(model, "MatMulInteger")) == 1 + 4, "the product with x is before the loop"


def test_body_with_its_own_initializers_and_subgraphs() -> None:
    text = """g (float[3, 2] x, float[2] start, bool c) => (float[3, 2] sums) {
      [scan] last, sums = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] t, float[2]
        u) <float[2] w = {5, 7}> {
        t = If (c) <then_branch = p () => (float[2] y) { a = Add(s, e) y = Add(a, w) }, else_branch = n () =>
          (float[2] z) { z = Sub(s, w) }> u = Neg(t) }> (start, x) }"""
    model = Model.load(parse(f"{HEADER} {text}"))
    Canonicalize()(model)
    feeds = [
        {"x": np.ones((3, 2), np.float32), "start": np.zeros(2, np.float32), "c": np.array(c)} for c in (True, False)
    ]
    apply(Unroll(), model, feeds)
    assert len(nodes_of(model, "If")) == 3
    assert [n for n in graph_info(model.graph).initializers if n.startswith("w")] == ["w_2"] or "w" in graph_info(
        model.graph
    ).initializers


def test_loop_inside_a_loop() -> None:
    case = RecurrentCase(placement="loop", initial_h=True)
    model = before("unroll", case.model())
    apply(Unroll(), model, [case.feeds()])
    assert not nodes_of(model, "Loop", "Scan")


@pytest.mark.few(2)
@pytest.mark.parametrize("placement", ["main", "if", "scan"])
def test_lowered_layers(placement: str) -> None:
    case = RecurrentCase(placement=placement, direction="bidirectional", lens=(2, 5))  # type: ignore[arg-type]
    model = before("unroll", case.model())
    feeds = case.feeds(padding=0.0)
    expected = run(plain_session(model.proto), feeds)
    Unroll()(model)
    Cleanup()(model)
    model.check()
    assert_same_bits(expected, run(plain_session(model.proto), feeds), "unrolled")
    onnx.checker.check_model(model.proto, full_check=True)


def test_nothing_to_unroll() -> None:
    model = Model.load(RecurrentCase().model())
    Canonicalize()(model)
    result = Unroll()(model)
    assert (result.modified, result.remarks) == (False, ())


# Declines


def test_unknown_length() -> None:
    model = before("unroll", RecurrentCase(dynamic_time=True).model(), INT8)
    with pytest.raises(
        CompileError,
        match=r"Scan.*'the_lstm\.forward'.*cannot be unrolled.*length of its sequence is not known.*dims={.T.: 100}",
    ):
        Unroll()(model)


def test_trips_that_depend_on_data() -> None:
    proto = _loop().proto
    del proto.graph.initializer[[t.name for t in proto.graph.initializer].index("trips")]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("trips", onnx.TensorProto.INT64, []))
    with pytest.raises(
        CompileError,
        match=r"'loop' \(Loop\) cannot be unrolled: its number of iterations depends on data.*without unroll=True",
    ):
        Unroll()(Model.load(proto))


def test_condition_that_depends_on_data() -> None:
    proto = _loop().proto
    body = next(a.g for n in proto.graph.node for a in n.attribute if a.name == "body")
    body.node[0].CopyFrom(onnx.helper.make_node("Not", ["go"], ["go_on"], name="not"))
    with pytest.raises(CompileError, match=r"number of iterations depends on data"):
        Unroll()(Model.load(proto))


@pytest.mark.parametrize("true", [False])
def test_loop_that_never_starts(true: bool) -> None:
    with pytest.raises(CompileError, match=r"'loop' \(Loop\)"):
        Unroll()(_loop(true=true))


def test_too_many_copies() -> None:
    with pytest.raises(
        CompileError,
        match=rf"copied {LARGEST_LENGTH + 1} times.*Supported: up to {LARGEST_LENGTH}.*without unroll=True",
    ):
        Unroll()(_loop(LARGEST_LENGTH + 1))


def test_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch copies that are not counted, or those of one loop only: each of these two is small enough alone."""
    monkeypatch.setattr(unroll, "LARGEST_MODEL", 150)
    model = before("unroll", RecurrentCase(T=6, placement="loop").model())
    with pytest.raises(
        CompileError, match=r"\(Scan\): 6 copies .* more than 150 nodes.*up to 150.*without unroll=True"
    ):
        Unroll()(model)


def test_no_copies() -> None:
    with pytest.raises(CompileError, match=r"'loop' \(Loop\): the sequence is empty"):
        Unroll()(_loop(0))


# Dimensions


def test_bind_dimensions() -> None:
    model = Model.load(RecurrentCase(dynamic_time=True, dynamic_batch=True, outputs=("Y",)).model())
    bind_dimensions(model, {"T": 7})
    assert shape_of(model.graph.inputs[0]) == [7, "B", 3]
    assert shape_of(model.graph.outputs[0]) == [7, 1, "B", 4]
    bind_dimensions(model, {"B": 2})
    assert model.proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 2


def test_bind_unknown_dimensions() -> None:
    with pytest.raises(CompileError, match=r"No input has a dimension 'S'.*Supported: T"):
        bind_dimensions(Model.load(RecurrentCase(dynamic_time=True).model()), {"S": 7})
    with pytest.raises(CompileError, match=r"no symbolic dimensions"):
        bind_dimensions(Model.load(RecurrentCase().model()), {"S": 7})
    with pytest.raises(CompileError, match=r"dims={.T.: 0}.*positive"):
        bind_dimensions(Model.load(RecurrentCase(dynamic_time=True).model()), {"T": 0})


def test_loops_in_float16_change_by_roundings() -> None:
    """The interpreter of onnx gives the same bits; onnxruntime leaves out roundings between operators of one graph."""
    text = SCAN.replace("EXTRA", "").replace("float[", "float16[").replace("[3, 2]", "[300, 2]")
    model = Model.load(parse(f"{HEADER} {text}", k=np.array([0.9, 0.7], np.float16)))
    Canonicalize()(model)
    assert apply(Unroll(), model).numerics == Float16Close()
    assert apply(Unroll(), _scan()).numerics is None
