"""Identifies the hidden state of an unrolled LSTM step where widths and the order of operands give no hint.

What these would catch: x and h exchanged, in a step of a stream, in a loop or in a row of steps; a projection's input
taken for the state; a guess where only names could tell, and the names do not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_operatorsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model, constant_array
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form
from tests.generate.recurrences import FORMS, RecurrenceCase
from tests.laws.parametrize import every_pair

FLOAT = onnx.TensorProto.FLOAT
H = 8
DOUBT = "it is not known which of its operands is the hidden state."


@dataclass(frozen=True)
class Step:
    """A model of one call: steps of LSTM layers that are written out as additions of products.

    Attributes:
        swapped: Whether h R + x W is written rather than x W + h R.
        I: Width of the input.
        P: Width of the projected state; 0 for none.
        states: "apart" (inputs h and c), "stacked" ([2,B,H] by Gather), "split" ([2,B,H] by Split), "inside" ([B,2,H]).
        names: Of x, h, c and of the states after the step.
        computed: Whether x is made of another input by a product.
        layers: One on top of the other.
        changed: "residual" or "norm": what is handed on is h' + h, or h' without its mean.
        head: Whether an output is a product of h', as wide as x.
    """

    swapped: bool = False
    I: int = H  # noqa: E741 - as ONNX calls it
    P: int = 0
    states: str = "apart"
    names: tuple[str, ...] = ("x", "h", "c", "h_next", "c_next")
    computed: bool = False
    layers: int = 1
    changed: str = ""
    head: bool = False

    def weights(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(3)
        made: dict[str, Any] = {"zero": np.int64(0), "one": np.int64(1), "at0": [np.int64(0)], "at1": [np.int64(1)]}
        for k in range(self.layers):
            made[f"W{k}"] = rng.normal(0, 0.4, (H if k or self.computed else self.I, 4 * H))
            made[f"R{k}"] = rng.normal(0, 0.4, (self.P or H, 4 * H))
            made[f"b{k}"] = rng.normal(0, 0.4, 4 * H)
        made |= {"E": rng.normal(0, 2.0, (self.I, H)), "V": rng.normal(0, 0.4, (H, self.I))}
        made["M"] = rng.normal(0, 0.4, (H, self.P or 1))
        return {n: np.asarray(a, np.int64 if n[0] in "zoa" else np.float32) for n, a in made.items()}

    def model(self) -> onnx.ModelProto:
        x, h, c, h_next, c_next = self.names
        nodes: list[onnx.NodeProto] = []

        def op(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
            nodes.append(make_node(kind, inputs, [output], name=f"{output}.{kind}", **attributes))
            return output

        current = op("MatMul", [x, "E"], "encoded") if self.computed else x
        inputs, outputs = [(x, ["B", self.I])], []
        for k in range(self.layers):
            own = [f"{n}{k}" if self.layers > 1 else n for n in (h, c, h_next, c_next)]
            packed, packed_next = f"state{k}", f"stateN{k}"
            if self.states == "apart":
                inputs += [(own[0], ["B", self.P or H]), (own[1], ["B", H])]
                before = own[:2]
            elif self.states == "split":
                nodes.append(make_node("Split", [packed], [f"p{k}", f"q{k}"], axis=0))
                before = [op("Squeeze", [f"{n}{k}", "at0"], f"{n}{k}.row") for n in "pq"]
            else:
                axis = int(self.states == "inside")
                before = [op("Gather", [packed, n], f"{n}{k}.row", axis=axis) for n in ("zero", "one")]
            if self.states != "apart":
                inputs.append((packed, ["B", 2, H] if self.states == "inside" else [2, "B", H]))
            products = [op("MatMul", [current, f"W{k}"], f"xW{k}"), op("MatMul", [before[0], f"R{k}"], f"hR{k}")]
            op("Add", products[::-1] if self.swapped else products, f"products{k}")
            op("Add", [f"products{k}", f"b{k}"], f"sum{k}")
            nodes.append(make_node("Split", [f"sum{k}"], [f"{g}{k}" for g in "ifgo"], axis=1))
            for gate, kind in zip("ifgo", ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid"), strict=True):
                op(kind, [f"{gate}{k}"], f"{gate}{k}.gate")
            op("Mul", [f"f{k}.gate", before[1]], f"kept{k}")
            op("Mul", [f"i{k}.gate", f"g{k}.gate"], f"added{k}")
            apart = self.states == "apart"
            new_c = op("Add", [f"kept{k}", f"added{k}"], own[3] if apart else f"c{k}.new")
            op("Tanh", [new_c], f"squashed{k}")
            plain = apart and not self.P and not self.changed
            current = new_h = op("Mul", [f"o{k}.gate", f"squashed{k}"], own[2] if plain else f"h{k}.new")
            if self.P:
                current = new_h = op("MatMul", [current, "M"], own[2])
            elif self.changed == "residual":
                new_h = op("Add", [current, before[0]], own[2] if apart else f"h{k}.handed")
            elif self.changed == "norm":
                mean = op("ReduceMean", [current], f"mean{k}", axes=[1])
                new_h = op("Sub", [current, mean], own[2] if apart else f"h{k}.handed")
            if apart:
                outputs += [(own[2], ["B", self.P or H]), (own[3], ["B", H])]
                continue
            axis = int(self.states == "inside")
            rows = [op("Unsqueeze", [v, "at1" if axis else "at0"], f"{v}.row") for v in (new_h, new_c)]
            outputs.append((op("Concat", rows, packed_next, axis=axis), inputs[-1][1]))
        if self.head or self.states != "apart":
            outputs.append((op("MatMul", [current, "V"], "y"), ["B", self.I]))
        held = {n for node in nodes for n in node.input}
        graph = make_graph(
            nodes,
            "step",
            [make_tensor_value_info(n, FLOAT, s) for n, s in inputs],
            [make_tensor_value_info(n, FLOAT, s) for n, s in outputs],
            [from_array(a, n) for n, a in self.weights().items() if n in held],
        )
        return make_model(graph, opset_imports=[make_operatorsetid("", 13)], ir_version=8)


def recovered(proto: onnx.ModelProto) -> tuple[Model, list[str]]:
    model = Model.load(proto)
    results = PassManager(normal_form()).run(model)
    return model, [r.reason for result in results for r in result.remarks if r.action]


def packed(array: np.ndarray) -> np.ndarray:
    """Weights [K, 4H] in the order ifgo as ONNX stores them."""
    i, f, g, o = np.split(array, 4, axis=1)
    return np.concatenate([i, o, f, g], axis=1).T[np.newaxis]


def assert_roles(model: Model, step: Step) -> None:
    weights = step.weights()
    nodes = [n for g in model.graphs() for n in g.nodes if n.op == "LSTM"]
    assert len(nodes) == step.layers
    for k, node in enumerate(nodes):
        np.testing.assert_array_equal(constant_array(node.inputs[1]), packed(weights[f"W{k}"]))
        np.testing.assert_array_equal(constant_array(node.inputs[2]), packed(weights[f"R{k}"]))


@every_pair(
    states=["apart", "stacked", "split", "inside"],
    swapped=[False, True],
    width=[H, 5],
    computed=[False, True],
    layers=[1, 2],
    head=[False, True],
)
def test_a_step_of_a_stream(states: str, swapped: bool, width: int, computed: bool, layers: int, head: bool) -> None:
    step = Step(swapped, width, states=states, computed=computed, layers=layers, head=head)
    model, doubts = recovered(step.model())
    assert not doubts
    assert_roles(model, step)


@pytest.mark.parametrize("states", ["apart", "stacked"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("changed", ["residual", "norm"])
def test_a_state_that_is_changed_between_steps(states: str, swapped: bool, changed: str) -> None:
    step = Step(swapped, states=states, changed=changed)
    model, doubts = recovered(step.model())
    assert not doubts
    assert_roles(model, step)
    if states == "apart":
        loop = rnnqc.layer(step.model(), state=["h:h_next", "c:c_next"])
        assert_roles(recovered(loop)[0], step)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("width", [H, 5])
def test_a_step_in_a_loop(swapped: bool, width: int) -> None:
    """A loop shows which state becomes which, whatever the names are."""
    for names in (("x", "h", "c", "h_next", "c_next"), ("h", "x", "c", "x_next", "c_next")):
        step = Step(swapped, width, names=names)
        state = [f"{names[1]}:{names[3]}", f"{names[2]}:{names[4]}"]
        model, doubts = recovered(rnnqc.layer(step.model(), state=state))
        assert not doubts
        assert_roles(model, step)
        assert [n.op for n in model.graph.nodes if n.op in ("LSTM", "Scan")] == ["LSTM"]


@pytest.mark.parametrize("swapped", [False, True])
def test_two_states_that_both_become_the_new_hidden_state(swapped: bool) -> None:
    """Either may be the hidden state, so neither is chosen: the loop stays as it is."""
    proto = Step(swapped).model()
    proto.graph.node.extend([make_node("Identity", ["h_next"], ["x_next"]), make_node("Add", ["h_next", "u"], ["y"])])
    proto.graph.input.append(make_tensor_value_info("u", FLOAT, ["B", H]))
    proto.graph.output.extend(make_tensor_value_info(n, FLOAT, ["B", H]) for n in ("x_next", "y"))
    model, doubts = recovered(rnnqc.layer(proto, state=["x:x_next", "h:h_next", "c:c_next"]))
    assert len(doubts) == 1 and DOUBT in doubts[0]
    assert not any(n.op == "LSTM" for g in model.graphs() for n in g.nodes)


@pytest.mark.parametrize("swapped", [False, True])
def test_names_tell_where_nothing_else_does(swapped: bool) -> None:
    told = (("h0", "hx", "cx", "hn", "cn"), ("in", "state_h", "state_c", "h.new", "c.new"), ("c", "a", "b", "aN", "bN"))
    for names in told:
        step = Step(swapped, names=names)
        assert_roles(recovered(step.model())[0], step)
    for names in (("x", "h", "c", "o1", "o2"), ("a", "b", "c", "h_next", "c_next")):
        step = Step(swapped, names=names)
        model, doubts = recovered(step.model())
        assert doubts == [f"a step is not taken over: {DOUBT}"]
        assert not any(n.op == "LSTM" for n in model.graph.nodes)
        step = Step(swapped, 5, names=names)  # x is as wide as no output
        assert_roles(recovered(step.model())[0], step)


def test_an_output_that_may_be_a_state_of_another_cell() -> None:
    """x -> y as wide as x beside h -> h', or a cell that hands on y and puts out h': the same graph."""
    names = ("x", "h", "c", "o1", "o2")
    assert recovered(Step(False, 5, names=names, head=True).model())[1] == [f"a step is not taken over: {DOUBT}"]
    step = Step(False, 5, head=True)
    assert_roles(recovered(step.model())[0], step)


@pytest.mark.few(4)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("width", "projected"), [(H, 5), (H, H), (5, H), (5, 5), (6, 5)])
def test_a_projection_is_no_hidden_state(swapped: bool, width: int, projected: int) -> None:
    step = Step(swapped, width, projected)
    loop = rnnqc.layer(step.model(), state=["h:h_next", "c:c_next"])
    for proto in (step.model(), loop):
        model, _ = recovered(proto)
        assert not any(n.op == "LSTM" for g in model.graphs() for n in g.nodes)
    lowered = rnnqc.lower(loop)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    x = np.random.default_rng(0).normal(0, 3, (9, 2, width)).astype(np.float32)
    expected, found = run_model(loop, {"x": x}), run_model(lowered.proto, {"x": x})
    for name, value in expected.items():
        assert 10 * np.log10(np.sum(value**2) / np.sum((value - found[name]) ** 2)) > 30


@pytest.mark.few(8)
@every_pair(op=["LSTM", "GRU", "RNN"], form=FORMS, products=["fused", "separate", "joined"])
def test_layers_whose_input_is_as_wide_as_their_state(op: str, form: str, products: str) -> None:
    if op == "GRU" and products == "joined":
        pytest.skip("h goes into gate n by another product than into the others")
    for gemm in (False, True) if products != "separate" else (False,):
        case = RecurrenceCase(op=op, form=form, products=products, gemm=gemm, I=6, H=6)
        model, _ = recovered(case.model())
        assert [n.op for g in model.graphs() for n in g.nodes if n.op in (op, "Scan", "Loop")] == [op]
        expected, found = run_model(case.model(), case.feeds()), run_model(model.proto, case.feeds())
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_rnn_layers_that_share_their_weights(shared: bool) -> None:
    """h[t,l] = tanh(h[t,l-1] W + h[t-1,l] R): with equal weights in all layers each operand may be the state."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(0, 0.4, (H, H)).astype(np.float32) for n in ("W0", "R0", "W1", "R1")}
    last = 0 if shared else 1
    nodes, shape = [], ["B", H]
    for t, k in itertools.product(range(3), range(2)):
        below = f"h{t}.{k - 1}" if k else f"x{t}"
        before = f"h{t - 1}.{k}" if t else f"start{k}"
        nodes += [
            make_node("MatMul", [below, f"W{min(k, last)}"], [f"xW{t}.{k}"]),
            make_node("MatMul", [before, f"R{min(k, last)}"], [f"hR{t}.{k}"]),
            make_node("Add", [f"hR{t}.{k}", f"xW{t}.{k}"], [f"sum{t}.{k}"]),
            make_node("Tanh", [f"sum{t}.{k}"], [f"h{t}.{k}"]),
        ]
    inputs = [make_tensor_value_info(n, FLOAT, shape) for n in ("x0", "x1", "x2", "start0", "start1")]
    outputs = [make_tensor_value_info(n, FLOAT, shape) for n in ("h2.0", "h0.1", "h1.1", "h2.1")]
    used = [from_array(arrays[f"{n}{k}"], f"{n}{k}") for n in "WR" for k in range(last + 1)]
    graph = make_graph(nodes, "grid", inputs, outputs, used)
    proto = make_model(graph, opset_imports=[make_operatorsetid("", 13)], ir_version=8)
    model, doubts = recovered(proto)
    made = [n for n in model.graph.nodes if n.op == "RNN"]
    assert (len(made), bool(doubts)) == ((0, True) if shared else (2, False))
    for k, node in enumerate(made):
        np.testing.assert_array_equal(constant_array(node.inputs[2])[0], arrays[f"R{k}"].T)
    feeds = {i.name: rng.normal(0, 1, (2, H)).astype(np.float32) for i in proto.graph.input}
    expected, found = run_model(proto, feeds), run_model(model.proto, feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)
