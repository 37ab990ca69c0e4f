"""Hidden states that the layer did not make itself lose nothing: computed, learned, constant, changed between steps.

What these would catch: a state that saturates at the bound of the activation, in some form or recipe; a loop that
onnxruntime cannot take because the state turns out to be a constant; slower codes for everyone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.cells.types import fused_type
from tests.generate.float_layer import DEFAULTS, Activation
from tests.generate.layers import RecurrentCase
from tests.laws.law import law
from tests.laws.parametrize import every_pair, in_turn
from tests.runs.lowered import STOCK, all_nodes, run_both, session
from tests.runs.sessions import assert_same_bits, plain_session, run, sqnr
from tests.subjects.torch import exports

Array = npt.NDArray[Any]
CELLS: dict[str, dict[str, Any]] = {
    "LSTM": {"op": "LSTM", "initial_c": True},
    "GRU0": {"op": "GRU"},
    "GRU1": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}
DYNAMIC = "*.hidden.mode=dynamic-row"


def case_of(cell: str, **changes: Any) -> RecurrentCase:
    """A layer of usual weights with initial states."""
    fields: dict[str, Any] = {"T": 5, "B": 3, "I": 16, "H": 32, "gain": 0.58, "initial_h": True}
    return RecurrentCase(**{**fields, **CELLS[cell], **changes})


def feeds_of(case: RecurrentCase, size: float) -> dict[str, Array]:
    """Rows of initial states beyond the bound, and the last one within."""
    feeds = case.feeds(padding=0.0)
    h = np.random.default_rng(1).normal(0, size, feeds["initial_h"].shape)
    h[:, -1] = np.tanh(h[:, -1])
    return feeds | {"initial_h": h.astype(np.float32)}


def float_outputs(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """The outputs of the float model."""
    return run(plain_session(model), feeds)


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("cell", CELLS)
def test_no_less_than_with_a_scale_for_each_row(cell: str, size: float) -> None:
    case = case_of(cell, T=3, B=8)
    model, feeds = case.model(), feeds_of(case, size)
    wanted = float_outputs(model, feeds)["Y"]
    found = [
        sqnr(wanted, run(session(rnnqc.lower(model, overrides=o).proto, STOCK), feeds)["Y"]) for o in ((), (DYNAMIC,))
    ]
    # A scale for each row suits small states a little better.
    assert found[0] > found[1] - (1.5 if size < 1 else 0.0), found
    assert found[0] > 33, found


DIRECTIONS: list[dict[str, Any]] = [
    {},
    {"direction": "reverse"},
    {"direction": "bidirectional", "lens": (3, 5, 0)},
]


def _stack(cell: str) -> onnx.ModelProto:
    """Two layers on top of each other, the first with an initial state."""
    below = case_of(cell, T=4, H=16, outputs=("Y",), initial_c=False)
    first, second = (case.model() for case in (below, below.replace(initial_h=False, seed=1)))
    graph = first.graph
    for tensor in second.graph.initializer:
        tensor.name = f"{tensor.name}.1"
    graph.initializer.extend(second.graph.initializer)
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "directions"))
    (node,) = second.graph.node
    names = [n and f"{n}.1" for n in node.input[1:]]
    del node.input[:], node.output[:]
    node.name = "second"
    node.input.extend(["between", *names])
    node.output.append("Z")
    graph.node.extend([helper.make_node("Squeeze", ["Y", "directions"], ["between"]), node])
    graph.output[0].name = "Z"
    return first


@pytest.mark.few(1)
@pytest.mark.parametrize("cell", CELLS)
def test_the_layer_behind_gets_all_of_it(cell: str) -> None:
    """A GRU keeps a share of its state in every step: codes that end at the bound cannot pass it on; others' can."""
    model = _stack(cell)
    feeds = feeds_of(case_of(cell, T=4, H=16, initial_c=False), 10.0)
    forms = law(model, feeds=[feeds], settings=())
    assert sqnr(float_outputs(model, feeds)["Z"], run(forms.session(STOCK), feeds)["Z"]) > 30
    passed = [o for n in forms.stock.proto.graph.node for o in n.output if o.endswith("Y_codes")]
    assert len(passed) == (0 if cell.startswith("GRU") else 1)


@pytest.mark.few(1)
@in_turn(cell=[*CELLS, "GRU1"], activation=[None, "HardSigmoid", None])
def test_form_qcdq_loses_no_more_than_the_others(cell: str, activation: str | None) -> None:
    """For every first step: forwards, backwards, of rows of other lengths, in a row of steps."""
    case = case_of(cell, direction="bidirectional", lens=(3, 5, 1))
    if activation is not None:
        gates = ("Sigmoid",) * (len(DEFAULTS[case.op]) > 1) + ("Tanh",) * (case.op == "LSTM")
        case = case.replace(activations=tuple(map(Activation, (*gates, activation))) * 2)
    model = case.model()
    rnnqc.lower(model, form="qcdq", verify=True)
    forms = (("integer", False), ("qcdq", False), ("qcdq", True))
    made = [session(rnnqc.lower(model, form=form, unroll=unroll).proto, STOCK) for form, unroll in forms]
    for size in (0.1, 3.0, 30.0):
        feeds = feeds_of(case, size)
        wanted = float_outputs(model, feeds)["Y"]
        found = [sqnr(wanted, run(s, feeds)["Y"]) for s in made]
        assert min(found) > max(31.0, found[0] - 4.0), (size, found)


@pytest.mark.few(1)
@in_turn(cell=CELLS, clip=[0.5, 3.0])
def test_cells_with_clip_and_static_inputs(cell: str, clip: float) -> None:
    case = case_of(cell, clip=clip)
    feeds = feeds_of(case, 3.0)
    lowered = rnnqc.lower(case.model(), "int8-static", calibration=[feeds])
    found = run(session(lowered.proto, STOCK), feeds)
    assert sqnr(float_outputs(case.model(), feeds)["Y"], found["Y"]) > 35


FLOAT_OPERATORS: list[tuple[str, list[str]]] = [
    ("qcdq", []),
    ("qcdq", ["*.hidden.bits=16"]),
    ("qcdq", ["*.hidden.rounding=floor"]),
    # No integer form: the cells stay float operators with quantizers.
    ("fused", ["*.weight.bits=16"]),
    ("fused", ["*.acc.bits=none"]),
]


@pytest.mark.few(5)
@every_pair(cell=CELLS, changes=DIRECTIONS, made=FLOAT_OPERATORS)
def test_float_operators_with_quantizers(cell: str, changes: dict[str, Any], made: tuple[str, list[str]]) -> None:
    case, (form, overrides) = case_of(cell, **changes), made
    result = rnnqc.lower(case.model(), form=form, overrides=overrides)
    assert [c.form for c in result.model.cells.values()] == ["qcdq"] * case.directions
    assert not [w for w in result.report.warnings if "saturate" in w]
    chosen = session(result.proto, STOCK)
    for size in (0.3, 3.0, 30.0):
        feeds = feeds_of(case, size)
        assert sqnr(float_outputs(case.model(), feeds)["Y"], run(chosen, feeds)["Y"]) > 31, size


def test_one_of_two_hidden_codes_of_a_gru() -> None:
    """The hidden state has a scale for each row, r * h one that follows from the bound."""
    case = case_of("GRU0")
    made = session(rnnqc.lower(case.model(), overrides=["*.reset.hidden.mode=bounded", DYNAMIC]).proto, STOCK)
    feeds = feeds_of(case, 3.0)
    assert sqnr(float_outputs(case.model(), feeds)["Y"], run(made, feeds)["Y"]) > 33


@pytest.mark.few(4)
@pytest.mark.parametrize("overrides", [[], ["*.hidden.rounding=floor"]], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_states_that_are_known_to_lie_within_get_the_usual_quantizers(cell: str, overrides: list[str]) -> None:
    """They have the same bits as a state within the bound that is not known to be."""
    case = case_of(cell)
    model, feeds = case.model(), feeds_of(case, 0.2)
    constant = onnx.ModelProto.FromString(model.SerializeToString())
    del constant.graph.input[[v.name for v in model.graph.input].index("initial_h")]
    constant.graph.initializer.append(numpy_helper.from_array(feeds["initial_h"], "initial_h"))
    lowered = [rnnqc.lower(m, form="qcdq", overrides=overrides).proto for m in (model, constant)]
    added = [[o for n in all_nodes(m) for o in n.output if o.endswith((".lost", ".held", ".whole"))] for m in lowered]
    assert added[0] and not added[1]
    given = {k: v for k, v in feeds.items() if k != "initial_h"}
    assert_same_bits(run(plain_session(lowered[1]), given), run(plain_session(lowered[0]), feeds), "within")


FLOOR = ["*.input.mode=static", "*.input.scale=0.03", "*.acc.rounding=floor"]


@pytest.mark.few(3)
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
@pytest.mark.parametrize("cell", ["GRU0", "GRU1", "RNN"])
def test_an_arithmetic_that_saturates_warns(cell: str, form: str) -> None:
    """The warning names an arithmetic that does not saturate, which then loses nothing."""
    case = case_of(cell)
    feeds = feeds_of(case, 3.0)
    wanted = float_outputs(case.model(), feeds)["Y"]

    def lowered(*overrides: str) -> tuple[list[str], float]:
        result = rnnqc.lower(case.model(), form=form, overrides=[*overrides, *FLOOR])
        warned = [w for w in result.report.warnings if "saturate" in w]
        return warned, sqnr(wanted, run(session(result.proto, STOCK), feeds)["Y"])

    (warning,), loss = lowered()
    assert "the_lstm" in warning and "+-1," in warning and loss < 10
    advice = "the_lstm.forward.*hidden.mode=dynamic-row"
    assert f"--set '{advice}'" in warning
    none, level = lowered(advice)
    assert not none and level > 33
    without = rnnqc.lower(case.replace(initial_h=False).model(), form=form, overrides=FLOOR).report.warnings
    assert not [w for w in without if "saturate" in w]


@pytest.mark.few(1)
@every_pair(cell=CELLS, value=[0.5, 3.0, 10.0], given=["initializer", "expanded", "of the batch"])
def test_constant_states(cell: str, value: float, given: str) -> None:
    """Also where onnxruntime finds out that they are constants."""
    case = case_of(cell, initial_c=False)
    model = case.model()
    del model.graph.input[[v.name for v in model.graph.input].index("initial_h")]
    rng = np.random.default_rng(3)
    state = (value * rng.choice([-1, 1], (1, case.B if given == "initializer" else 1, case.H))).astype(np.float32)
    name = "initial_h" if given == "initializer" else "learned"
    model.graph.initializer.append(numpy_helper.from_array(state, name))
    shape = np.array([1, case.B, case.H])
    if given == "expanded":
        model.graph.initializer.append(numpy_helper.from_array(shape, "shape"))
    elif given == "of the batch":
        shape[1] = 1
        model.graph.initializer.append(numpy_helper.from_array(shape, "one"))
        model.graph.node.insert(0, helper.make_node("Shape", ["X"], ["batch"], start=1, end=2))
        for k, (begin, end) in enumerate(((0, 1), (2, 3))):
            model.graph.initializer.append(numpy_helper.from_array(shape[begin:end], f"part{k}"))
        model.graph.node.insert(1, helper.make_node("Concat", ["part0", "batch", "part1"], ["shape"], axis=0))
    if given != "initializer":
        place = 0 if given == "expanded" else 2
        model.graph.node.insert(place, helper.make_node("Expand", ["learned", "shape"], ["initial_h"]))
    feeds = {"X": case.feeds()["X"]}
    forms = law(model, feeds=[feeds], dims=case.dims, settings=())
    assert sqnr(float_outputs(model, feeds)["Y"], run(forms.session(STOCK), feeds)["Y"]) > 36


@pytest.mark.few(2)
@pytest.mark.parametrize("between", ["residual", "normalized"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU0", "GRU1"])
def test_states_that_change_between_steps(cell: str, between: str) -> None:
    """A layer of one step in a Scan, whose state takes a skip connection or a normalisation on its way."""
    case = case_of(cell, T=1, I=32, initial_c=False)
    inner = case.model()
    layer = next(n for n in inner.graph.node if n.op_type == case.op)
    nodes = [
        helper.make_node("Unsqueeze", ["x_t", "zero"], ["X"]),
        helper.make_node("Unsqueeze", ["h", "zero"], ["initial_h"]),
        helper.make_node(case.op, [*layer.input[:4], "", "initial_h"], ["", "made"], **case.attributes()),
        helper.make_node("Squeeze", ["made", "zero"], ["flat"]),
    ]
    if between == "residual":
        nodes.append(helper.make_node("Add", ["flat", "x_t"], ["next"]))
    else:
        nodes.append(helper.make_node("LayerNormalization", ["flat", "gain"], ["next"]))
    nodes.append(helper.make_node("Identity", ["next"], ["y"]))

    def state(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 32])

    body = helper.make_graph(nodes, "body", [state("h"), state("x_t")], [state("next"), state("y")])
    scan = helper.make_node("Scan", ["h0", "xs"], ["last", "ys"], body=body, num_scan_inputs=1)
    held = [i for i in inner.graph.initializer if i.name in layer.input]
    held += [
        numpy_helper.from_array(np.array([0]), "zero"),
        numpy_helper.from_array(np.full(32, 1.5, np.float32), "gain"),
    ]
    whole = helper.make_tensor_value_info("xs", TensorProto.FLOAT, [7, 3, 32])
    out = helper.make_tensor_value_info("ys", TensorProto.FLOAT, [7, 3, 32])
    graph = helper.make_graph([scan], "g", [state("h0"), whole], [out], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in (("h0", (3, 32)), ("xs", (7, 3, 32)))}
    lowered = rnnqc.lower(model)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    found = run_both(lowered.proto, feeds)
    assert sqnr(float_outputs(model, feeds)["ys"], found["ys"]) > 36


def _learned(torch: Any) -> tuple[Any, list[Array]]:
    class Learned(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch.nn.GRU(16, 32, batch_first=True)
            self.h0 = torch.nn.Parameter(torch.randn(1, 1, 32) * 3)

        def forward(self, x: Any) -> Any:
            return self.gru(x, self.h0.expand(-1, x.shape[0], -1).contiguous())[0]

    return Learned(), [np.random.default_rng(0).normal(0, 1, (3, 6, 16))]


def _captioning(torch: Any) -> tuple[Any, list[Array]]:
    class Captioning(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.to_h, self.to_c = (torch.nn.Linear(8, 32) for _ in range(2))
            self.lstm = torch.nn.LSTM(16, 32, batch_first=True)

        def forward(self, x: Any, features: Any) -> Any:
            states = self.to_h(features)[None], self.to_c(features)[None]
            return self.lstm(x, states)[0]

    rng = np.random.default_rng(0)
    return Captioning(), [rng.normal(0, 1, (3, 6, 16)), rng.normal(0, 6, (3, 8))]


def _slots(torch: Any) -> tuple[Any, list[Array]]:
    class Slots(torch.nn.Module):  # type: ignore[misc]
        """Slot attention: a GRU cell updates what attention gathers, between normalisations and a residual."""

        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(32, 32)
            self.norm = torch.nn.LayerNorm(32)
            self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32) for _ in range(4))

        def forward(self, inputs: Any, slots: Any) -> Any:
            k, v = self.k(inputs), self.v(inputs)
            for _ in range(3):
                weights = torch.softmax(self.q(self.norm(slots)) @ k.T / 32**0.5, 0)
                updates = (weights / weights.sum(-1, keepdim=True)) @ v
                slots = self.cell(updates, slots)
                slots = slots + torch.relu(self.out(self.norm(slots)))
            return slots

    rng = np.random.default_rng(0)
    return Slots(), [rng.normal(0, 1, (20, 32)), rng.normal(0, 2, (5, 32))]


def _messages(torch: Any) -> tuple[Any, list[Array]]:
    class Messages(torch.nn.Module):  # type: ignore[misc]
        """A gated graph network: node features are the first states, sums of messages the inputs."""

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.message = torch.nn.GRUCell(32, 32), torch.nn.Linear(32, 32)

        def forward(self, h: Any, adjacency: Any) -> Any:
            for _ in range(3):
                h = self.cell(adjacency @ self.message(h), h)
            return h

    rng = np.random.default_rng(0)
    return Messages(), [rng.normal(0, 3, (12, 32)), (rng.random((12, 12)) < 0.3).astype(np.float32)]


@pytest.mark.few(1)
@pytest.mark.parametrize("module", [_learned, _captioning, _slots, _messages])
def test_torch_models(module: Callable[[Any], tuple[Any, list[Array]]]) -> None:
    torch = exports.needed("states from outside in models of torch")
    torch.manual_seed(0)
    made, arrays = module(torch)
    arguments = [torch.tensor(np.asarray(a, np.float32)) for a in arrays]
    model = exports.exported(made.eval(), arguments, False)
    feeds = {v.name: np.asarray(a, np.float32) for v, a in zip(model.graph.input, arrays, strict=True)}
    (wanted,) = float_outputs(model, feeds).values()
    lowered = rnnqc.lower(model)
    assert [n for n in all_nodes(lowered.proto) if fused_type(n.op_type)]
    (found,) = run_both(lowered.proto, feeds).values()
    assert sqnr(wanted, found) > 38
