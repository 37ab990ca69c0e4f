"""cleanup: fires, declines, edges.

What these would catch: something of the user's that disappears, an output that loses its name, a shared constant whose
cell still names the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from rnnqc.cells.stages import IntegerCell
from rnnqc.ir import Model, Value, graph_info
from rnnqc.ir.builder import Builder
from rnnqc.passes import Cleanup
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import INT8, apply, before, make_pass, nodes_of, op_types, text_of
from tests.subjects.protos import differences, in_order, parse, rich_model

HEADER = '<ir_version: 10, opset_import: ["": 17]>'


def _model(body: str = "g (float[2] x) => (float[2] y) { [n] y = Neg(x) }") -> Model:
    return Model.load(parse(f"{HEADER} {body}"))


def _insert(model: Model, ops: list[str], source: Value, axes: list[int] | None = None) -> Value:
    """A chain of nodes of rnnqc's own making behind `source`, at the end of the main graph."""
    b = Builder(model, prefix="made")
    for op in ops:
        source = b.op(op, [source] if axes is None or op == "Identity" else [source, b.i64(axes)], op.lower())
    model.graph.nodes.extend(b.nodes)
    return source


def test_golden(golden: Callable[[str, str], None]) -> None:
    model = before(
        "cleanup", RecurrentCase(outputs=("Y_h",)).model(), INT8.with_overrides(["*.bits=none", "*.weight.bits=8"])
    )
    Cleanup()(model)
    golden("cleanup.txt", text_of(model))


def test_what_the_user_wrote_stays() -> None:
    """Also Identity nodes, equal and unused initializers."""
    text = (
        "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}, float[2] unused "
        "= {1, 2}> { [i] c = Identity(x) [p] d = Add(c, a) [q] y = Add(d, b) }"
    )
    model = _model(text)
    before_proto = model.proto
    result = apply(Cleanup(), model)
    assert not result.modified
    assert differences(in_order(before_proto), in_order(model.proto)) == []


def test_a_rich_model_stays() -> None:
    model = Model.load(rich_model())
    expected = rich_model()
    result = Cleanup()(model)
    # The rich model uses everything but nothing twice.
    assert result.statistics == {"dead": 0, "states": 0, "identities": 0, "squeezes": 0, "shared": 0}
    assert differences(in_order(expected), in_order(model.proto)) == []


# 1. Dead nodes


def test_dead_nodes_and_initializers() -> None:
    model = _model("g (float[2] x) => (float[2] y) <float[2] k = {1, 2}> { [n] y = Neg(x) [d] dead = Add(x, k) }")
    result = apply(Cleanup(), model)
    assert result.statistics["dead"] == 2
    assert op_types(model.graph) == ["Neg"]


# 2. Identities


def test_identity_in_the_middle() -> None:
    model = _model()
    neg = nodes_of(model, "Neg")[0]
    neg.inputs[0] = _insert(model, ["Identity", "Identity"], model.graph.inputs[0])
    model.sort()
    result = apply(Cleanup(), model)
    assert result.statistics["identities"] == 2
    assert op_types(model.graph) == ["Neg"]
    assert neg.inputs[0].name == "x"


def _output_through_identity(body: str, source: str) -> Model:
    model = _model(body)
    value = model.find(source)
    assert value is not None
    b = Builder(model)
    out = b.op("Identity", [value], "out")
    out.dtype, out.shape = np.float32, [2]
    model.graph.nodes.extend(b.nodes)
    model.graph.outputs.append(out)
    return model


def test_identity_in_front_of_an_output_gives_its_name_away() -> None:
    model = _output_through_identity("g (float[2] x) => (float[2] y) { [n] a = Neg(x) [e] y = Exp(a) }", "a")
    apply(Cleanup(), model)
    assert op_types(model.graph) == ["Neg", "Exp"]
    assert [v.name for v in nodes_of(model, "Neg")[0].outputs] == ["out"]
    assert nodes_of(model, "Exp")[0].inputs[0].name == "out"


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("g (float[2] x) => (float[2] y) { [n] y = Neg(x) }", "x"),
        ("g (float[2] x) => (float[2] y) { [n] y = Neg(x) }", "y"),
        ("g (float[2] x) => (float[2] y) <float[2] k = {1, 2}> { [n] y = Add(x, k) }", "k"),
    ],
)
def test_identity_of_an_input_an_output_or_a_constant_stays(body: str, source: str) -> None:
    model = _output_through_identity(body, source)
    result = apply(Cleanup(), model)
    assert not result.modified
    assert nodes_of(model, "Identity")
    assert [v.name for v in model.graph.outputs] == ["y", "out"]


def test_identity_of_a_value_from_outside_stays() -> None:
    model = _model(
        "g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] p) { "
        "p = Neg(x) }, else_branch = e () => (float[2] q) { q = Abs(x) }> }"
    )
    graph = next(g for g in model.graphs() if any(n.op == "Neg" for n in g.nodes))
    b = Builder(model, prefix="made")
    graph.outputs[0] = b.op("Identity", [model.graph.inputs[0]], "copy")
    graph.nodes.extend(b.nodes)
    feeds = [{"x": np.ones(2, np.float32), "c": np.array(c)} for c in (True, False)]
    apply(Cleanup(), model, feeds)
    assert op_types(graph) == ["Identity"]


# 3. Squeeze of Unsqueeze


@pytest.mark.parametrize(("axes", "back", "gone"), [([0], [0], True), ([1], [1], True), ([0], [1], False)])
def test_squeeze_of_unsqueeze(axes: list[int], back: list[int], gone: bool) -> None:
    model = _model("g (float[1] x) => (float[1] y) { [a] b = Abs(x) [n] y = Neg(b) }")
    lifted = _insert(model, ["Unsqueeze"], nodes_of(model, "Abs")[0].outputs[0], axes)
    nodes_of(model, "Neg")[0].inputs[0] = _insert(model, ["Squeeze"], lifted, back)
    model.sort()
    result = apply(Cleanup(), model)
    assert result.statistics["squeezes"] == gone
    assert bool(nodes_of(model, "Squeeze")) != gone


def test_unsqueeze_with_other_users_stays() -> None:
    model = _model(
        (
            "g (float[2] x) => (float[2] y, float[1, 2] z) { [a] b = Abs(x) [n] y = Neg(b) [e] z = "
            "Exp(c) [u] c = Unsqueeze(b, axes) }"
        )
        .replace("axes", "b2")
        .replace("g (float[2] x)", "g (float[2] x, int64[1] b2)")
    )
    assert not Cleanup()(model).statistics["squeezes"]


# 4. Shared initializers


def test_equal_initializers_are_joined_if_they_are_not_small() -> None:
    model = _model("g (float[N] x) => (float[N] y) { [n] y = Neg(x) }")
    b = Builder(model, prefix="made")
    value: Value = model.graph.inputs[0]
    for k, size in enumerate((40, 40, 3, 3)):
        value = b.op("Concat", [value, model.add_initializer(f"c{k}", np.ones(size, np.float32))], f"v{k}", axis=0)
    model.graph.nodes[:0] = b.nodes
    nodes_of(model, "Neg")[0].inputs[0] = value
    result = apply(Cleanup(), model)
    assert result.statistics["shared"] == 1
    assert sorted(graph_info(model.graph).initializers) == ["c0", "c2", "c3"]


@pytest.mark.parametrize("other", [np.ones(40, np.float64), np.ones((4, 10), np.float32), np.zeros(40, np.float32)])
def test_different_initializers_are_not(other: npt.NDArray[Any]) -> None:
    model = _model()
    for name, array in (("c0", np.ones(40, np.float32)), ("c1", other)):
        b = Builder(model, prefix=name)
        b.op("Identity", [model.add_initializer(name, array)], "copy")
        out = b.op("Cast", [b.nodes[0].outputs[0]], "out", to=onnx.TensorProto.FLOAT)
        out.dtype, out.shape = np.float32, list(array.shape)
        model.graph.nodes.extend(b.nodes)
        model.graph.outputs.append(out)
    assert apply(Cleanup(), model).statistics["shared"] == 0


def test_layers_with_equal_weights_share_them_and_say_so() -> None:
    model = before("cleanup", stacked_model([RecurrentCase(I=4), RecurrentCase(I=4)], shared_weights=True))
    first, second = model.cells.values()
    assert first.operands.W != second.operands.W
    result = apply(Cleanup(), model)
    assert result.statistics["shared"] >= 2
    first, second = model.cells.values()
    held = graph_info(model.graph).initializers
    for key in ("W", "R"):
        assert getattr(first.operands, key) == getattr(second.operands, key)
        assert getattr(first.operands, key) in held
    assert (second.W, second.R) == (first.W, first.R)


# 5. Order


def test_order() -> None:
    model = _model("g (float[2] x) => (float[2] y) { [n] a = Neg(x) [e] y = Exp(a) }")
    model.graph.nodes.reverse()
    result = Cleanup()(model)
    assert result.modified
    assert op_types(model.graph) == ["Neg", "Exp"]


@pytest.mark.parametrize("name", ["insert-qcdq", "fold-scales", "fuse-quant-lstm-cell", "unroll"])
def test_after_every_pass_cells_name_values_that_exist(name: str) -> None:
    for case in (
        RecurrentCase(),
        RecurrentCase(direction="bidirectional", initial_h=True, lens=(2, 5)),
        RecurrentCase(placement="if"),
    ):
        model = before(name, case.model())
        make_pass(name)(model)
        Cleanup()(model)
        for cell in model.cells.values():
            named = [
                cell.x,
                cell.sequence_lens,
                cell.initial_h,
                cell.initial_c,
                *cell.outputs,
            ]
            if isinstance(cell, IntegerCell):
                named += cell.operands.as_dict().values()
            if name != "unroll":
                named += [cell.W, cell.R, cell.B]
            assert [n for n in named if n is not None and model.find(n) is None] == []
