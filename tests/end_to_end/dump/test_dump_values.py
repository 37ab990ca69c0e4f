"""Compares a dump with the values of the nodes of unrolled cells and an integer matmul computed here.

What these would catch: a tensor under the name of another, codes that are off by a zero point or a table's offset, a
value of the wrong step or row, a reversed sequence in the order of the loop, a native run that dumps something else
than the stock one, real values that are not their codes times their scales.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.cells.attributes import lut_defaults
from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.statistics import Statistics
from tests.generate.layers import RecurrentCase, stacked_model
from tests.pages.dumped import (
    BREVITAS,
    Steps,
    assert_equals_brevitas,
    assert_follows_the_rule,
    assert_same,
    assert_weights_of_brevitas,
    brevitas_like,
    traced,
    traced_with_parameters,
)
from tests.pages.unrolled_values import assert_equals_nodes, unrolled_values
from tests.subjects.brevitas.models import CASES, read_lstms

Array = npt.NDArray[Any]
TABLES = {
    "lstm": RecurrentCase(),
    "lstm reverse": RecurrentCase(direction="reverse", initial_h=True, initial_c=True),
    "lstm peepholes": RecurrentCase(peepholes=True, clip=1.5),
    "lstm batch of one": RecurrentCase(B=1),
    "lstm coupled": RecurrentCase(input_forget=True),
    "gru": RecurrentCase(op="GRU"),
    "gru linear": RecurrentCase(op="GRU", linear_before_reset=True, initial_h=True),
    "gru reverse, batch of one": RecurrentCase(op="GRU", direction="reverse", B=1),
    "rnn": RecurrentCase(op="RNN", initial_h=True),
    "rnn batch of one": RecurrentCase(op="RNN", B=1),
}
MIDDLE = 2**12
"""Where 0 stands in a table of 13-bit codes, which all recipes below have."""
RECIPES = ("int8", "int8-static", "int16", "w4a8")


def lowered(case: RecurrentCase, recipe: str, form: str = "fused", **arguments: Any) -> rnnqc.Lowered:
    """The model, calibrated."""
    return rnnqc.lower(case.model(), recipe=recipe, form=form, stats=_statistics(case), **arguments)


@functools.cache
def _statistics(case: RecurrentCase) -> Statistics:
    return rnnqc.calibrate(case.model(), [case.feeds()])


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes of a node, texts decoded."""
    made = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in made.items()}


def fused_node(model: onnx.ModelProto) -> onnx.NodeProto:
    """The only cell."""
    return next(n for n in model.graph.node if n.op_type.startswith("Quant"))


def node_inputs(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], str]:
    """Inputs of the only cell by the operator's names, and the cell's name."""
    tracer = rnnqc.Tracer(model, native=False)
    (name,) = tracer.names
    for _ in tracer.trace([feeds]):
        pass
    states = {k: feeds[k][0] for k in ("initial_h", "initial_c") if k in feeds}
    return {"X": feeds["X"], **states, **tracer.constants(name)}, name


def assert_products(steps: Steps, codes: Mapping[str, Array], zero_points: Mapping[str, Any], columns: int) -> None:
    """The sums are those of the codes in front of them and the weights."""
    for left, product, key in (("input", "x.product", "W"), ("hidden.previous", "hidden.product", "R")):
        tensor = steps[left]
        assert tensor.codes is not None and steps[product].codes is not None and tensor.zero_point is not None
        centred = tensor.codes.astype(np.int64) - tensor.zero_point
        weights = codes[key].astype(np.int64) - zero_points.get(key, 0)
        count = columns if key == "R" else weights.shape[1]
        assert np.array_equal(centred @ weights[:, :count], steps[product].codes), product


def _some(names: Mapping[str, Any], recipes: Sequence[str]) -> list[Any]:
    """Every name with every recipe; the first recipe with all names always, and each recipe with one."""
    pairs = [(n, r, r != recipes[0] and k != j) for k, n in enumerate(names) for j, r in enumerate(recipes)]
    return [pytest.param(n, r, marks=[pytest.mark.slow] if slow else []) for n, r, slow in pairs]


def check_values(case: RecurrentCase, recipe: str) -> tuple[Steps, dict[str, Array], onnx.NodeProto]:
    """The tensors of the only cell, which are those of the nodes of its unrolled form; its operands and its node."""
    model, feeds = lowered(case, recipe).proto, case.feeds()
    inputs, cell = node_inputs(model, feeds)
    steps = traced(model, feeds)[cell]
    assert_follows_the_rule(steps, cell)
    nodes = lowered(case, recipe, "integer", unroll=True).proto
    compared = assert_equals_nodes(case.op, steps, unrolled_values(nodes, feeds, cell), case.direction == "reverse")
    in_parts = recipe == "int16"  # the products, which are not compared here
    assert len(compared) >= {"LSTM": 6, "GRU": 6, "RNN": 2}[case.op] - in_parts, sorted(compared)
    return steps, inputs, fused_node(model)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "recipe"), _some(TABLES, RECIPES))
def test_tables(name: str, recipe: str) -> None:
    case = TABLES[name]
    steps, inputs, node = check_values(case, recipe)
    attributes = {**lut_defaults(CELL_TYPES[case.op]), **attributes_of(node)}
    for k, gate in enumerate(CELL_TYPES[case.op].gates):
        if case.input_forget and gate == "forget_gate":
            assert np.array_equal(
                steps[f"{gate}.activation"].values, np.float32(1) - steps["input_gate.activation"].values
            )
            continue
        before, acc = steps[f"{gate}.preactivation"].values, steps[f"{gate}.acc"]
        low, high = (np.float32(attributes[f"gate_{end}"][k]) for end in ("min", "max"))
        assert acc.codes is not None
        assert np.array_equal(acc.codes + MIDDLE, np.trunc(np.clip(before, low, high))), gate
        unit = np.float32(attributes.get("cell_scale", 0) or 1) if gate == "cell_gate" else np.float32(1)
        entries = inputs["gate_table"][attributes["gate_table_offset"][k] + acc.codes + MIDDLE] * unit
        assert np.array_equal(steps[f"{gate}.activation"].values, entries), gate
        assert len(np.unique(entries)) > 3, "a trivial case"
    columns = 2 * case.H if case.op == "GRU" and not case.linear_before_reset else case.gates * case.H
    with_rows = {k: inputs[k] for k in ("W", "R")}
    if recipe != "w4a8":
        assert_products(steps, with_rows, {}, columns)


GRIDS = {n: c for n, c in TABLES.items() if c.op != "LSTM" or not c.initial_c}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "recipe"), _some(GRIDS, ["brevitas-int8", "pow2-int8", "pow2-int8-floor", "pow2-int16"])
)
def test_grids(name: str, recipe: str) -> None:
    case = TABLES[name]
    steps, inputs, node = check_values(case, recipe)
    contract = recipe == "brevitas-int8" and not case.peepholes and case.op == "LSTM"
    assert attributes_of(node)["arithmetic"] == ("grid32" if contract else "grid")
    zero_points = {k: inputs.get(f"{k}_zero_point", 0) for k in ("W", "R")}
    columns = 2 * case.H if case.op == "GRU" and not case.linear_before_reset else case.gates * case.H
    assert_products(steps, {k: inputs[k] for k in ("W", "R")}, zero_points, columns)


FORMS = (("fused", True), ("integer", False), ("unrolled", True))


def _slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("recipe", "op"),
    [("int8", "LSTM"), ("int8", "RNN"), ("int8-static", "GRU"), ("int16", "GRU"), ("pow2-int8", "LSTM"),
     ("pow2-int8", "GRU"), ("pow2-int8", "RNN"), ("brevitas-int8", "LSTM"), _slow("int8", "GRU"),
     _slow("int16", "LSTM"), _slow("w4a8", "LSTM"), _slow("pow2-int16", "LSTM")],
)  # fmt: skip
def test_every_form_and_way_is_the_same(recipe: str, op: Any) -> None:
    case = RecurrentCase(op=op, direction="bidirectional", B=4, initial_h=True, lens=(5, 3, 0, 1))
    first = case.replace(lens=None, initial_h=False)
    stack = stacked_model([first, first.replace(I=2 * case.H, seed=1)])
    # Codes pass between layers of this recipe.
    for model, cells in ((case.model(), 2), *([(stack, 4)] if recipe == "int8-static" else [])):
        feeds = {i.name: case.feeds(0.5)[i.name] for i in model.graph.input if i.name in case.feeds()}
        arguments: dict[str, Any] = {"recipe": recipe, "stats": rnnqc.calibrate(model, [feeds])}
        made = {f: rnnqc.lower(model, form=f, **arguments).proto for f in ("fused", "integer")}
        made["unrolled"] = rnnqc.lower(model, form="integer", unroll=True, **arguments).proto
        expected = traced(made["fused"], feeds)
        assert len(expected) == cells
        for cell, steps in expected.items():
            assert_follows_the_rule(steps, cell)
        for form, native in FORMS:
            assert_same(expected, traced(made[form], feeds, native), f"{form}, native = {native}")


@pytest.mark.few(1)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(("op", "recipe"), [("LSTM", "int8"), ("GRU", "int8"), ("LSTM", "pow2-int8")])
def test_lengths(op: Any, recipe: str, direction: Any) -> None:
    """A row is dumped as if it were alone, and is 0 beyond its length."""
    lens = (5, 2, 0, 3)
    case = RecurrentCase(op=op, direction=direction, lens=lens, B=4, dynamic_time=True, dynamic_batch=True)
    model = lowered(case, recipe).proto
    feeds = case.feeds(7.0)
    (steps,) = traced(model, feeds).values()
    checked = 0
    for row, length in enumerate(lens):
        for name, tensor in steps.items():
            one = tensor.row(row)
            assert not one.values[length:].any(), name
            if one.codes is not None:
                zero = np.broadcast_to(np.asarray(one.zero_point), one.codes.shape)
                assert np.array_equal(one.codes[length:], zero[length:]), name
        if not length:
            continue
        alone = {"X": feeds["X"][:length, row : row + 1], "sequence_lens": np.array([length], np.int32)}
        (expected,) = traced(model, alone).values()
        for name, tensor in expected.items():
            held = steps[name].row(row)
            assert np.array_equal(held.values[:length], tensor.values), name
            assert held.codes is None or np.array_equal(held.codes[:length], tensor.codes), name
            checked += 1
    assert checked > 30


@pytest.mark.few(1)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", [n for n in BREVITAS if n != "binary"])  # no integer form
def test_brevitas_like(name: str, native: bool) -> None:
    """As Brevitas exported it, without lowering it before, against Brevitas' arithmetic."""
    lstm, model, feeds = brevitas_like(name)
    cells, parameters = traced_with_parameters(model, feeds, native)
    (steps,), (weights,) = cells.values(), parameters.values()
    assert_equals_brevitas(lstm, steps, name)
    assert_weights_of_brevitas(lstm, weights, name)


@pytest.mark.few(1)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_exported_by_brevitas(name: str, native: bool, shared: Callable[[str], Path]) -> None:
    path = shared(f"brevitas/{name}/model.onnx")
    with np.load(path.parent / "inputs.npz") as given:
        feeds = dict(given)
    assert list(feeds) == ["x"]
    model = onnx.load(path)
    cells, weights = traced_with_parameters(model, feeds, native)
    lstms = read_lstms(model)
    assert len(lstms) == len(cells) == (2 if "bidir" in name else 1)
    for node, lstm in lstms.items():
        lstm.run(lstm.quantizers["output"](feeds["x"]))
        (cell,) = (c for c in cells if c.startswith(node))
        assert_equals_brevitas(lstm, cells[cell], f"{name}: {node}")
        assert_weights_of_brevitas(lstm, weights[cell], f"{name}: {node}")
