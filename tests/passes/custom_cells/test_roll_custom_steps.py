"""Unrolled steps of custom cells that become Scans, and those that stay.

What these would catch: an element of another step, a state with another initial value, a value of a step that is lost,
a step that differs from the others and is computed like them, one that reads what an earlier step made as an element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.custom_nodes import is_custom_node
from rnnqc.passes import RollCustomSteps
from tests.generate.recurrences import RecurrenceCase
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import apply, in_front_of, nodes_of
from tests.runs.lowered import run_both
from tests.runs.sessions import Array
from tests.subjects.protos import parse

T, I, H = 5, 8, 10  # noqa: E741 - steps, inputs and units

before = partial(in_front_of, RollCustomSteps)


CASES: tuple[dict[str, Any], ...] = (
    {"backwards": True, "batch_first": True},
    {"initial": "computed", "outputs": ("final",)},
    {"initial": "dynamic", "batch": "B"},
    {"initial": "learned", "batch": "B"},
    {"between": "normalized", "outputs": ("y",)},
    {"between": "residual", "products": "joined", "gemm": True},
    {"twice": True, "I": H},
)


@pytest.mark.few(4)
@in_turn(case=CASES, op=["highway", "projection", "random"])
def test_layers_in_all_writings(case: dict[str, Any], op: str) -> None:
    """Two layers, of which the second reads each step of the first, are one."""
    op = "highway" if "twice" in case else op
    layer = RecurrenceCase(op=op, form="unrolled", **{"time": T, "I": I, "H": H, **case})
    model = before(layer.model())
    result = apply(RollCustomSteps(), model, [layer.feeds()])
    assert result.statistics == {"scans": 1, "steps": T}
    assert len(nodes_of(model, "Scan")) == 1
    products = [n.name for n in model.graph.nodes if n.op in ("MatMul", "Gemm")]
    assert len(products) == {"computed": 2}.get(layer.initial, 0), products
    lowered = rnnqc.lower(layer.model(), strict=True).proto
    assert sum(is_custom_node(n.op_type) for n in lowered.graph.node) == 1
    feeds = layer.feeds()
    run_both(lowered, feeds)


def steps(
    body: str = "",
    count: int = T,
    outputs: tuple[str, ...] = (f"h{T}",),
    change: Callable[[str, int], str] = lambda s, _: s,
    start: str = f"float[B,{H}] h0",
) -> onnx.ModelProto:
    """Steps of `h' = tanh(x V + h R) + h`, or of another body; `change` makes another text of a step."""
    body = body or "a = MatMul (x, V) b = MatMul (h, R) c = Add (a, b) d = Tanh (c) next = Add (d, h)"
    names = ("a", "b", "c", "d", "e", "f", "g", "k")
    text = ""
    for number in range(count):
        own = {"x": f"x{number}", "h": f"h{number}", "next": f"h{number + 1}"} | {w: f"{w}_{number}" for w in names}
        step = change(body, number)
        for sign in "(),":
            step = step.replace(sign, f" {sign} ")
        words = [own.get(w, w) for w in step.split()]
        text += " ".join(words) + "\n"
    given = ", ".join([*(f"float[B,{I}] x{k}" for k in range(count)), *([start] if start else [])])
    made = ", ".join(f"float[B,{H}] {o}" for o in outputs)
    rng = np.random.default_rng(3)
    arrays = {
        "V": rng.standard_normal((I, H)),
        "R": rng.standard_normal((H, H)) / 4,
        "S": rng.standard_normal((H, H)) / 4,
        "Q": rng.standard_normal((I, H)),
        "W": rng.standard_normal((H, I)) / 4,
    } | ({} if start else {"h0": rng.standard_normal((1, H))})
    header = '<ir_version: 8, opset_import: ["": 17]>'
    used = {k: np.asarray(v, np.float32) for k, v in arrays.items() if f" {k} " in f" {text} ".replace("\n", " ")}
    return parse(f"{header} steps ({given}) => ({made}) {{ {text} }}", **used)


def feeds_of(model: onnx.ModelProto, batch: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    sizes = {i.name: i.type.tensor_type.shape.dim[1].dim_value for i in model.graph.input}
    return {n: rng.standard_normal((batch, size)).astype(np.float32) for n, size in sizes.items()}


def test_values_of_steps_that_are_read() -> None:
    """States in the middle, a value that is no state, the last state: each is that of its step."""
    proto = steps(outputs=("h2", "d_3", f"h{T}", "d_0"))
    assert apply(RollCustomSteps(), before(proto), [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}


def test_one_matrix_in_a_matmul_and_a_gemm() -> None:
    """The last two products with the matrix are not alike: those of a step before are."""
    body = "a = MatMul (x, V) b = MatMul (h, R) c = Mul (a, b) d = Gemm (c, R, own) e = Tanh (d) next = Add (e, h)"
    proto = steps(body)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(H, np.float32), "own"))
    assert apply(RollCustomSteps(), before(proto), [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}


def two_states(other: str = "Tanh") -> onnx.ModelProto:
    """Two states that begin as zeros: the first step multiplies them once, later ones each. `other` is in one step."""
    text = "c0 = Mul (x0, none) "
    for t in range(T):
        text += f"h{t} = Add (c{t}, {'n' if t else 'c'}{t}) g{t} = MatMul (h{t}, R) k{t} = MatMul (x{t}, V) "
        text += f"f{t} = Add (g{t}, k{t}) p{t} = Mul (f{t}, c{t}) "
        text += f"q{t} = Mul (f{t}, n{t}) " if t else ""
        text += f"s{t} = Sigmoid (f{t}) u{t} = Add (p{t}, s{t}) c{t + 1} = {other if t == 2 else 'Tanh'} (u{t}) "
        text += f"n{t + 1} = Sub ({'q' if t else 'p'}{t}, s{t}) "
    given = ", ".join(f"float[B,{H}] x{k}" for k in range(T))
    rng = np.random.default_rng(3)
    arrays = {"V": rng.standard_normal((H, H)) / 2, "R": rng.standard_normal((H, H)) / 4, "none": np.zeros(())}
    header = '<ir_version: 8, opset_import: ["": 17]>'
    return parse(
        f"{header} steps ({given}) => (float[B,{H}] c{T}, float[B,{H}] n{T}) {{ {text} }}",
        **{k: np.asarray(v, np.float32) for k, v in arrays.items()},
    )


def test_a_node_that_the_first_step_shares() -> None:
    """States that begin equal: an exporter writes once what the later steps compute for each, as in an sLSTM."""
    proto = two_states()
    assert apply(RollCustomSteps(), before(proto), [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}
    lowered = rnnqc.lower(proto, strict=True).proto
    assert sum(is_custom_node(n.op_type) for n in lowered.graph.node) == 1
    run_both(lowered, feeds_of(proto))


def test_copies_that_do_not_help_are_taken_back() -> None:
    proto = two_states(other="Softsign")
    model = before(proto)
    nodes = [(n.op, [v.name for v in n.inputs]) for n in model.graph.nodes]
    assert not apply(RollCustomSteps(), model, [feeds_of(proto)]).modified
    assert nodes == [(n.op, [v.name for v in n.inputs]) for n in model.graph.nodes]


def test_constants_that_nodes_in_front_compute() -> None:
    """A limited decay, which every step reads, is an initializer in the Scan, and the cell one node."""

    def change(step: str, number: int) -> str:
        return step if number else f"kept = Sigmoid (decay) {step}"

    proto = steps(
        "a = MatMul (x, V) b = MatMul (h, R) c = Mul (h, kept) d = Add (b, c) next = Add (a, d)", change=change
    )
    decay = np.linspace(-2, 0, H, dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(decay, "decay"))
    assert apply(RollCustomSteps(), before(proto), [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}
    lowered = rnnqc.lower(proto, strict=True)
    assert not [w for w in lowered.report.warnings if "outside the loop" in w]
    assert sum(is_custom_node(n.op_type) for n in lowered.proto.graph.node) == 1
    run_both(lowered.proto, feeds_of(proto))


OWN = {
    "sum": ("b = MatMul (h, R) c = Add (a, b) d = Add (c, own)", [(H,)]),
    "sum, a row": ("b = MatMul (h, R) c = Add (a, b) d = Add (own, c)", [(1, H)]),
    "factor, a number": ("b = MatMul (h, R) c = Mul (b, own) d = Add (a, c)", [()]),
    "bias": ("b = Gemm (h, R, own) d = Add (a, b)", [(H,)]),
    "normalization": ("b = MatMul (h, R) c = BatchNormalization (b, own, beta, mean, var) d = Add (a, c)", [(H,)] * 4),
    "every row": ("b = MatMul (h, R) c = Add (a, b) d = Add (c, own)", [(3, H)]),
}
"""Steps with constants of their own, and the shapes of these."""
ONE_NODE = ("sum", "sum, a row", "factor, a number")


def with_constants(name: str) -> onnx.ModelProto:
    text, shapes = OWN[name]
    rng = np.random.default_rng(7)
    arrays: dict[str, Array] = {}

    def change(step: str, number: int) -> str:
        for held, shape in zip(("own", "beta", "mean", "var"), shapes, strict=False):
            arrays[f"{held}_{number}"] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
            step = step.replace(held, f"{held}_{number}")
        return step

    proto = steps(f"a = MatMul (x, V) {text} e = Tanh (d) next = Add (e, h)", change=change)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return proto


@pytest.mark.parametrize("name", [n for n in OWN if n != "every row"])
def test_constants_of_each_step(name: str) -> None:
    """Positions, biases and statistics of normalizations: would catch those of another step."""
    proto = with_constants(name)
    model = before(proto)
    assert apply(RollCustomSteps(), model, [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}
    assert len(nodes_of(model, "Expand")) == (name in ONE_NODE)


@pytest.mark.parametrize("name", ONE_NODE)
def test_constants_of_each_step_in_one_node(name: str) -> None:
    proto = with_constants(name)
    lowered = rnnqc.lower(proto, strict=True)
    assert sum(is_custom_node(n.op_type) for n in lowered.proto.graph.node) == 1
    run_both(lowered.proto, feeds_of(proto), name)


def test_constants_of_a_batch() -> None:
    """With them the steps take no other batch, of which the states know nothing."""
    proto = with_constants("every row")
    result = apply(RollCustomSteps(), before(proto), [feeds_of(proto)])
    assert not result.modified and "may change its shape" in result.remarks[0].reason


def test_matrices_of_each_step_are_other_layers() -> None:
    """Would catch: steps joined that multiply by different matrices."""
    proto = steps(change=lambda step, k: step.replace(", R )", f", R{k} )").replace("(h, R)", f"(h, R{k})"))
    rng = np.random.default_rng(1)
    for k in range(T):
        array = rng.standard_normal((H, H)).astype(np.float32) / 4
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, f"R{k}"))
    assert not RollCustomSteps()(before(proto)).modified


def test_one_matrix_twice_in_a_step() -> None:
    """Every second matmul with it belongs to the next step."""
    text = "b = MatMul (h, R) c = Mul (b, h) d = MatMul (c, R) e = Add (a, d) f = Tanh (e) next = Add (f, h)"
    proto = steps(f"a = MatMul (x, V) {text}")
    assert apply(RollCustomSteps(), before(proto), [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}


@pytest.mark.parametrize("batch", [1, 3])
def test_one_row_of_an_initial_state_is_for_all(batch: int) -> None:
    proto = steps(start="")
    model = before(proto)
    assert apply(RollCustomSteps(), model, [feeds_of(proto, batch)]).statistics["scans"] == 1
    assert nodes_of(model, "Expand")


def test_an_initial_state_expanded_to_a_size_that_operators_compute() -> None:
    """TorchScript writes `expand(3, -1)` in four operators, behind which no size of the state was known."""
    proto = steps(start="")
    for given in proto.graph.input:
        given.type.tensor_type.shape.dim[0].dim_value = 3
    (held,) = [a for a in proto.graph.initializer if a.name == "h0"]
    held.name = "learned"
    size = parse(
        f"""<ir_version: 8, opset_import: ["": 17]> g () => (float[K,{H}] h0)
        <int64[1] two = {{2}}, int64[2] open = {{3, -1}}, int64[2] known = {{3, {H}}}, int64 minus = {{-1}}> {{
        ones = ConstantOfShape <value = int64[1] {{1}}> (two) marks = Mul (ones, minus) same = Equal (open, marks)
        sizes = Where (same, known, open) h0 = Expand (learned, sizes) }}"""
    )
    nodes = [*size.graph.node, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(size.graph.initializer)
    lowered = rnnqc.lower(proto, strict=True).proto
    assert sum(is_custom_node(n.op_type) for n in lowered.graph.node) == 1
    run_both(lowered, feeds_of(proto))


def test_the_first_product_of_zeros_that_an_exporter_folded() -> None:
    """The initial value of the loop is then the matmul's result, not the state."""
    proto = steps(change=lambda s, k: s if k else "c = MatMul (x, V) next = Tanh (c)", start="")
    model = before(proto)
    apply(RollCustomSteps(), model, [feeds_of(proto)])


STAY: dict[str, Callable[[str], str]] = {
    "another activation": lambda s: s.replace("Tanh", "Sigmoid"),
    "another matrix": lambda s: s.replace("(h, R)", "(h, S)"),
    "parts in another order": lambda s: s.replace("Concat <axis = 1> (f, e)", "Concat <axis = 1> (e, f)"),
    "operands in another order": lambda s: s.replace("Sub (a, b)", "Sub (b, a)"),
    "a state of two steps before": lambda s: s.replace("Add (g, h)", "Add (g, h1)"),
    "an element made of a state": lambda s: s.replace("a = MatMul (x, V)", "k = MatMul (h, W) a = MatMul (k, V)"),
}


@pytest.mark.parametrize("kind", list(STAY))
def test_a_step_that_differs(kind: str) -> None:
    """Its nodes stay as they are."""
    parts = "d = Tanh (c) e, f = Split <axis = 1> (d) g = Concat <axis = 1> (f, e)"
    body = f"a = MatMul (x, V) b = MatMul (h, R) c = Sub (a, b) {parts} next = Add (g, h)"
    proto = steps(body, change=lambda s, k: STAY[kind](s) if k == 3 else s)
    result = apply(RollCustomSteps(), before(proto), [feeds_of(proto)])
    assert result.statistics["steps"] < T
    assert [r for r in result.remarks if "unrolled steps" in r.reason]


def test_both_directions_and_a_layer_above() -> None:
    """Steps that run against each other are no steps of one layer; a Concat behind the last one is no part of it."""
    text = ""
    for k in range(T):
        for name, element in (("f", k), ("b", T - 1 - k)):
            text += (
                f"{name}j{k} = Concat <axis = 1> (x{element}, {name}h{k}) {name}p{k} = MatMul ({name}j{k}, {name}W) "
            )
            text += f"{name}t{k} = Tanh ({name}p{k}) {name}h{k + 1} = Add ({name}t{k}, {name}h{k})\n"
    for k in range(T):
        text += f"e{k} = Concat <axis = 1> (fh{k + 1}, bh{T - k}) j{k} = Concat <axis = 1> (e{k}, h{k}) "
        text += f"p{k} = MatMul (j{k}, W) t{k} = Tanh (p{k}) h{k + 1} = Add (t{k}, h{k})\n"
    rng = np.random.default_rng(3)
    zeros = np.zeros((3, H), np.float32)
    widths = {"fW": I + H, "bW": I + H, "W": 3 * H}
    arrays = {n: (rng.standard_normal((w, H)) / 4).astype(np.float32) for n, w in widths.items()}
    given = ", ".join(f"float[3,{I}] x{k}" for k in range(T))
    header = '<ir_version: 8, opset_import: ["": 17]>'
    proto = parse(f"{header} g ({given}) => (float[3,{H}] h{T}) {{ {text} }}", fh0=zeros, bh0=zeros, h0=zeros, **arrays)
    result = apply(RollCustomSteps(), before(proto), [feeds_of(proto)])
    assert result.statistics == {"scans": 3, "steps": 3 * T}


def test_what_no_state_goes_into_may_differ() -> None:
    """Nodes that read no state are computed before the Scan."""
    proto = steps(change=lambda s, k: s.replace("(x, V)", "(x, Q)") if k == 3 else s)
    assert apply(RollCustomSteps(), before(proto), [feeds_of(proto)]).statistics == {"scans": 1, "steps": T}


def test_kept_steps() -> None:
    """A recurrence whose rolled form computes something else stays, with a remark."""
    model = before(steps())
    (name,) = [n.name for n in model.graph.nodes if n.outputs[0].name == "b_0"]
    result = RollCustomSteps().keeping({name: "a difference"})(model)
    assert not result.modified
    assert "a difference" in result.remarks[0].found
