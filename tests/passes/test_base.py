"""The contract of every pass.

What these would catch: a pass whose requirements or promises are not checked, a declaration that does not fit the file,
a node that is made where a removed one was, which the pass then takes for that one.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import rnnqc.passes
from rnnqc.errors import InternalError, Outcome, StructureError
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Model, Node, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes import Canonicalize, DecomposeLstm, Pass, PassInfo, PassResult
from rnnqc.passes.invariants import CHECKS, Property, violated
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import CASES, ORDER, apply, before, make_pass, nodes_of

ALL = (*ORDER, "unroll")
FOLDER = Path(rnnqc.passes.__file__).resolve().parent


@pytest.mark.parametrize("name", ALL)
def test_declaration(name: str) -> None:
    info = make_pass(name).info
    assert info.name == name
    assert len(list(FOLDER.rglob(f"{name.replace('-', '_')}.py"))) == 1, "a pass stands in the file of its name"
    assert info.summary
    assert info.summary[0].islower()
    assert not info.summary.endswith(".")
    assert not info.sets & info.clears


@pytest.mark.parametrize("name", ALL)
def test_docstring_says_before_and_after(name: str) -> None:
    text = type(make_pass(name)).__doc__ or ""
    assert ("before:" in text.lower() and "after" in text.lower()) or "1." in text


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pass_on_every_layer(case: RecurrentCase, name: str) -> None:
    """Exact `modified`, declared numerics, sound file, idempotence."""
    model = before(name, case.model())
    apply(make_pass(name), model, [case.feeds(padding=0.0, condition=c) for c in (True, False)])


@pytest.mark.few(2)
@pytest.mark.parametrize("case", [c for c in CASES if not c.dynamic_time], ids=str)
def test_unroll_on_every_layer(case: RecurrentCase) -> None:
    model = before("unroll", case.model())
    apply(make_pass("unroll"), model, [case.feeds(padding=0.0)])
    apply(make_pass("cleanup"), model, [case.feeds(padding=0.0)])


@pytest.mark.parametrize("name", ["decompose-lstm", "insert-qcdq", "fold-scales", "fuse-quant-lstm-cell"])
def test_nothing_to_do(name: str) -> None:
    import onnx

    from tests.subjects.protos import parse

    model = Model.load(
        parse('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [n] y = Neg(x) }')
    )
    result = make_pass(name)(model)
    assert (result.modified, result.remarks) == (False, ())
    assert isinstance(model.proto, onnx.ModelProto)


def test_requirement_is_checked_on_the_graph() -> None:
    model = Model.load(RecurrentCase(layout=1).model())
    with pytest.raises(InternalError, match=r"'decompose-lstm' requires 'canonical', which does not hold: .*"):
        DecomposeLstm()(model)


class Idle(Pass):
    """Promises what it does not do."""

    info = PassInfo("idle", "do nothing", Bitwise(), sets=frozenset({Property.UNROLLED}))

    def run(self, model: Model) -> PassResult:
        return PassResult(False)


class Careless(Pass):
    """Leaves two values of one name behind."""

    info = PassInfo("careless", "call two values alike", Bitwise())

    def run(self, model: Model) -> PassResult:
        model.graph.nodes[-1].outputs[0].name = model.graph.nodes[0].outputs[0].name
        return PassResult(True)


class Untidy(Pass):
    """Leaves an unused node behind, and a graph that is not sorted."""

    info = PassInfo("untidy", "reverse all nodes and add one", Bitwise())

    def run(self, model: Model) -> PassResult:
        b = Builder(model, prefix="untidy")
        b.op("Neg", [model.graph.outputs[0]], "unused")
        model.graph.nodes[:] = [*b.nodes, *reversed(model.graph.nodes)]
        return PassResult(True)


class KeepsUnused(Untidy):
    """The same, of a pass that keeps some unused nodes."""

    def keeps(self, node: Node) -> bool:
        return node.op == "Neg"


class Unshaped(Pass):
    """Puts a node in front of the last one, whose value has no shape yet."""

    info = PassInfo("unshaped", "negate twice", Bitwise())

    def run(self, model: Model) -> PassResult:
        b, last = Builder(model, prefix="unshaped"), model.graph.nodes[-1]
        last.inputs[0] = b.op("Neg", [b.op("Neg", [last.inputs[0]], "once")], "twice")
        model.graph.nodes += b.nodes
        return PassResult(True)


class Shaped(Unshaped):
    """The same, of a pass whose values later passes read."""

    infers_shapes = True


@pytest.mark.parametrize(("kind", "known"), [(Unshaped, False), (Shaped, True)])
def test_shapes_are_inferred_if_the_pass_says_so(kind: type[Pass], known: bool) -> None:
    from tests.subjects.protos import parse

    text = '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    model = Model.load(parse(text))
    kind()(model)
    made = next(n for n in model.graph.nodes if n.op == "Abs").inputs[0]
    assert (shape_of(made) is not None) == known


class Forgetful(Pass):
    """Creates nodes, drops them, and keeps only their addresses."""

    info = PassInfo("forgetful", "replace every node many times", Bitwise())

    def __init__(self, *, reload: bool) -> None:
        self.reload = reload
        self.seen: list[int] = []

    def run(self, model: Model) -> PassResult:
        if self.reload:
            model.reload(model.proto)
        for _ in range(6):
            nodes = list(model.graph.nodes)
            self.seen += [id(o) for n in nodes for o in (n, *n.outputs)]
            model.remove_nodes(model.graph, nodes)
            del nodes[:]
            gc.collect()
            made = Builder(model)
            for k in range(10):
                made.op("Neg", [model.constant(k, "float32")], "y")
            model.graph.nodes.extend(made.nodes)
        return PassResult(True)


@pytest.mark.few(1)
@pytest.mark.parametrize("reload", [False, True])
def test_what_a_pass_removes_is_not_mistaken_for_what_it_makes(reload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "check", lambda _: None)
    pass_ = Forgetful(reload=reload)
    pass_(Model.load(RecurrentCase().model()))
    assert len(pass_.seen) > 100
    assert len(set(pass_.seen)) == len(pass_.seen)


class Remover(Pass):
    """Removes every node, and looks which of them are still there."""

    info = PassInfo("remover", "remove every node", Bitwise())

    def __init__(self) -> None:
        self.left: list[bool] = []

    def run(self, model: Model) -> PassResult:
        removed = [weakref.ref(n) for n in model.graph.nodes]
        model.remove_nodes(model.graph, list(model.graph.nodes))
        gc.collect()
        self.left = [r() is not None for r in removed]
        return PassResult(True)


def test_what_a_pass_removes_lasts_as_long_as_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass must not free nodes that it removes, because Python may reuse their addresses."""
    monkeypatch.setattr(Model, "check", lambda _: None)
    pass_ = Remover()
    pass_(Model.load(RecurrentCase().model()))
    assert pass_.left and all(pass_.left)


def test_promise_is_checked_on_the_graph() -> None:
    model = Model.load(RecurrentCase(placement="loop").model())
    with pytest.raises(
        InternalError, match=r"'idle' declares 'unrolled', which does not hold: node 'the_loop' is a Loop"
    ):
        Idle()(model)
    Idle()(Model.load(RecurrentCase().model()))


def test_structure_is_checked_after_every_pass() -> None:
    model = before("insert-qcdq", RecurrentCase().model())
    with pytest.raises(StructureError, match="more than one producer"):
        Careless()(model)


@pytest.mark.parametrize(("pass_", "unused"), [(Untidy(), 0), (KeepsUnused(), 1)])
def test_a_changed_model_is_tidied(pass_: Pass, unused: int) -> None:
    model = before("insert-qcdq", RecurrentCase().model())
    nodes = {id(n) for n in model.graph.nodes}
    pass_(model)  # the check at its end fails for a graph that is not sorted
    assert {id(n) for n in model.graph.nodes if n.op != "Neg"} == nodes
    assert sum(n.op == "Neg" for n in model.graph.nodes) == unused


def test_remarks_speak_in_the_name_of_the_pass() -> None:
    remark = Canonicalize().remark(Outcome.NOTE, "n", "LSTM", "because.", "this", "do that")
    assert (remark.pass_name, remark.reason, remark.found, remark.action) == (
        "canonicalize",
        "because.",
        "this",
        "do that",
    )


def test_every_property_has_a_check_and_holds_of_a_lowered_model() -> None:
    assert set(CHECKS) == set(Property)
    model = before("fuse-quant-lstm-cell", RecurrentCase().model())
    make_pass("fuse-quant-lstm-cell")(model)
    assert [p for p in Property if violated(model, p)] == []


@pytest.mark.parametrize(
    ("name", "property_", "reason"),
    [
        ("canonicalize", Property.CELLS_DECOMPOSED, "LSTM"),
        ("insert-qcdq", Property.UNROLLED, "Scan"),
    ],
)
def test_properties_that_do_not_hold(name: str, property_: Property, reason: str) -> None:
    assert reason in violated(before(name, RecurrentCase().model()), property_)


def test_a_cell_that_was_forgotten_violates_the_property() -> None:
    model = before("insert-qcdq", RecurrentCase().model())
    assert nodes_of(model, "Scan")
    assert violated(model, Property.CELLS_QUANTIZED)


def test_canonical_is_violated_by_each_variant() -> None:
    changes: dict[str, Callable[[Model], None]] = {
        "IR version 9": lambda m: setattr(m, "ir_version", 9),
        "IR version 14": lambda m: setattr(m, "ir_version", 14),
        "operator set 12": lambda m: setattr(m, "opset", 12),
        "no name": lambda m: setattr(m.graph.nodes[0], "name", ""),
        "layout 1": lambda m: None,
    }
    for reason, change in changes.items():
        model = Model.load(RecurrentCase(layout=1).model())
        model.ir_version = 10
        change(model)
        assert reason in violated(model, Property.CANONICAL)
