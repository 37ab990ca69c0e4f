"""Wrong constants planted in passes, each too small to show in an output: `lower --verify` has to name them.

What these would catch: a check of constants that repeats the mistakes of the pass, that passes entries over, or that
raises an alarm about right ones.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.attributes import lut_defaults
from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.statistics import Statistics
from rnnqc.errors import NumericsError
from rnnqc.ir import Constant, Model, Node, Variable
from rnnqc.lowering.executable import executable
from rnnqc.passes import VerifyNumerics
from rnnqc.passes.graph.flat.flat_model import FlatModel
from rnnqc.passes.graph.point_names import alias
from rnnqc.passes.pipeline import default_passes, exported_passes
from rnnqc.recipes.recipe import load_recipe
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase
from tests.passes.planting import (
    Edit,
    becomes,
    becomes_input,
    calibrated_passes,
    constants,
    nodes,
    run,
    run_spoilt,
    statistics_of,
    verifier_of,
)
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm

LSTM = RecurrentCase(T=12, B=3, I=6, H=16, dynamic_time=True, dynamic_batch=True)
PEEPHOLES = LSTM.replace(peepholes=True)
GRU = RecurrentCase(op="GRU", T=12, B=3, I=6, H=16, dynamic_time=True, dynamic_batch=True)
RESET_AFTER = GRU.replace(linear_before_reset=True)
RNN = GRU.replace(op="RNN")
HARD = LSTM.replace(activations=(Activation("HardSigmoid", 0.25, 0.5), Activation("Tanh"), Activation("Tanh")))
ELU = RNN.replace(activations=(Activation("Elu", 1.0),), gain=0.25)


def table_entry(key: str, index: int, delta: float) -> Edit:
    """Adds to one entry of a table of a cell, whatever makes it."""

    def edit(model: Model) -> bool:
        (cell,) = model.cells.values()
        value = model.find(getattr(cell.operands, key))
        assert value is not None
        if isinstance(value, Constant):
            held = np.array(value.values)
            held[index] += np.float32(delta)
            value.values = held
            return True
        maker, right = value.inputs[0], Variable("right_table", dtype=np.float32)
        spoilt = _size(model, getattr(cell.operands, key))
        spoilt[index] = np.float32(delta)
        maker.outputs[maker.outputs.index(value)] = right
        position = next(k for k, n in enumerate(model.graph.nodes) if n is maker)
        inputs = [right, model.add_initializer("spoilt_by", spoilt)]
        node = Node("Add", name="spoilt", inputs=inputs, outputs=[value])
        model.graph.nodes.insert(position + 1, node)
        return True

    return edit


def _size(model: Model, name: str) -> np.ndarray:
    held = FlatModel(model.proto, []).constant(name)
    assert held is not None
    return np.zeros_like(held)


def entry(index: Any, change: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Changes one entry of a constant, from the right in rows."""

    def edit(array: np.ndarray) -> np.ndarray:
        array[index] = change(array[index])
        return array

    return edit


def percent(share: float) -> Callable[[Any], Any]:
    return lambda v: v * np.float32(1 + share / 100)


def plus(delta: float) -> Callable[[Any], Any]:
    return lambda v: v + delta


def swapped(array: np.ndarray) -> np.ndarray:
    """Exchanges two that are nearly equal."""
    order = np.argsort(array)
    at = order[int(np.argmin(np.diff(array[order]) + 1e9 * (np.diff(array[order]) == 0))) :][:2]
    array[at] = array[at[::-1]]
    return array


def node_constant(op: str, ending: str, position: int, change: Callable[[np.ndarray], Any]) -> Edit:
    """Gives the first node that makes such a value another constant; others that share it keep theirs."""

    def edit(model: Model) -> bool:
        for node in (n for g in model.graphs() for n in g.nodes):
            if node.op == op and alias(node.name)[0].endswith(ending):
                held = np.asarray(node.inputs[position].values)
                node.inputs[position] = model.add_initializer("spoilt", np.asarray(change(held), held.dtype))
                return True
        return False

    return edit


FOUND = r"(wrote a wrong constant|changed a step of a cell)"


def run_case(case: RecurrentCase, recipe: str, pass_name: str, edit: Edit, said: str) -> None:
    run_spoilt(case.model(), calibrated_passes(case, recipe), pass_name, edit, f"{FOUND}: .*{said}")


KNOT = 2.0**-14
ENTRY = r"{}, column \d+ at code {} is"
OF_OUTPUT = ENTRY.format("the output activation", "{}")
TABLES: dict[str, tuple[RecurrentCase, str, Edit, str]] = {
    "sigmoid": (LSTM, "int8", table_entry("gate_table", 4100, KNOT / 2), ENTRY.format("input_gate", 4100) + r" 0\.50"),
    "sigmoid at its end": (LSTM, "int8", table_entry("gate_table", 0, KNOT / 2), ENTRY.format("input_gate", 0)),
    "tanh in units of the cell": (
        LSTM, "int8", table_entry("gate_table", 8192 + 77, 2.0**-2), ENTRY.format("cell_gate", 77),
    ),
    # A state in floats: entry 9 is of those from 8.5 to 9.5 times 2^-12.
    "output of the cell": (
        LSTM, "int8", table_entry("cell_table", 9, KNOT), r"the output activation, column \d+ at 0\.002[0-3]\d* is",
    ),
    "hidden gate of a GRU": (
        GRU, "int8", table_entry("gate_table", 8192 + 4000, KNOT), ENTRY.format("hidden_gate", 4000),
    ),
    "RNN": (RNN, "int16", table_entry("gate_table", 4000, KNOT), ENTRY.format("hidden_gate", 4000)),
    "Elu": (ELU, "int8", table_entry("gate_table", 4000, 1e-4), r"hidden_gate, column \d+ at -?\d"),
    "exact": (LSTM, "distiller-asym", table_entry("gate_table", 3, 2.0**-7), ENTRY.format("input_gate", 3)),
    "HardSigmoid": (HARD, "distiller-asym", table_entry("gate_table", 3, 2.0**-7), ENTRY.format("input_gate", 3)),
    "Vitis, 16 bits": (
        LSTM, "pow2-int16", table_entry("gate_table", 33000, 2.0**-15), ENTRY.format("input_gate", 33000),
    ),
    "Vitis, 8 bits": (GRU, "pow2-int8", table_entry("gate_table", 99, 2.0**-7), ENTRY.format("update_gate", 99)),
    "Vitis, cell output": (LSTM, "pow2-int16", table_entry("cell_table", 7, 2.0**-15), ENTRY.format("cell_gate", 7)),
    "Brevitas": (LSTM, "brevitas-int8", table_entry("gate_table", 200, 2.0**-8), ENTRY.format("input_gate", 200)),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TABLES)
def test_an_entry_of_a_table(name: str) -> None:
    case, recipe, edit, message = TABLES[name]
    run_case(case, recipe, "fold-scales", edit, message)


def test_knots_that_are_wrong_where_they_are_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass and check share the definition: the function itself then shows the error."""
    from rnnqc.cells import tables
    from rnnqc.passes.render.lut import emit_tables

    knots = list(tables.TANH_KNOTS)
    knots[5] += 30
    for module in (tables, emit_tables):
        monkeypatch.setattr(module, "TANH_KNOTS", tuple(knots))
    passes, proto = default_passes(load_recipe("int8"), "integer", False), LSTM.model()
    with pytest.raises(NumericsError, match=r"input_gate, column \d+ at code \d+, as it is defined, is"):
        run(passes, proto, verifier_of(proto))


WEIGHTS = r"quantized values of the_lstm.forward.{}.weight: .* at \[\d+, {}\] is"
POINT = r"quantized values of {}the_lstm.forward.{}: .* at \[\d+, \d+\] is"
INSERTED: dict[str, tuple[RecurrentCase, str, Edit, str]] = {
    "a scale, 1 %": (LSTM, "int8", constants("/W.scale", entry(5, percent(1.0))), WEIGHTS.format("W", 5)),
    "a scale, 0.1 %": (LSTM, "int8", constants("/R.scale", entry(40, percent(0.1))), WEIGHTS.format("R", 40)),
    "a scale of groups, 0.1 %": (LSTM, "w4a8", constants("/R.scale", entry(7, percent(0.1))), WEIGHTS.format("R", 7)),
    "a scale of a GRU, 0.1 %": (GRU, "int8", constants("/R.scale", entry(40, percent(0.1))), WEIGHTS.format("R", 40)),
    "scales swapped": (LSTM, "int8", constants("/W.scale", swapped), WEIGHTS.format("W", r"\d+")),
    "a zero point of weights": (
        LSTM, "distiller-asym", constants("/W.zero_point", entry((), plus(1))),
        r"(distance in steps|quantized values) of the_lstm.forward.W.weight.*: .* at \[\d+, \d+\] is",
    ),
    "a code": (
        LSTM, "int8", constants("/R.codes", entry((3, 11), plus(-1))),
        r"(distance in steps|quantized values) of .*R.weight.* at \[3, 11\]",
    ),
    "a bias": (LSTM, "int8", constants("/B.float", entry(17, plus(1e-4))), r"bias of the_lstm.forward.* at \[17\]"),
    "a bias on a grid": (
        LSTM, "distiller-sym", constants("/B.quantized", entry(17, percent(3.0))),
        r"bias of the_lstm.forward.* at \[17\]",
    ),
    "the scale of the input, 0.1 %": (
        LSTM, "int8-static", node_constant("QuantizeLinear", "/input.codes", 1, percent(0.1)),
        POINT.format("", "input"),
    ),
    "the zero point of the input": (
        LSTM, "int8-static", node_constant("DequantizeLinear", "/input.quantized", 2, plus(1)),
        POINT.format("", "input"),
    ),
    "the scale of a gate, 0.1 %": (
        LSTM, "int8", node_constant("Div", "/output_gate.acc.units", 1, percent(0.1)),
        POINT.format("", "output_gate.acc"),
    ),
    "a limit": (
        LSTM, "int8", node_constant("Clip", "/output_gate.acc.clipped", 2, plus(-1)),
        POINT.format("", "output_gate.acc"),
    ),
    "rows": (
        LSTM, "int8", node_constant("Div", "/input.scale", 1, plus(1)), POINT.format("a row of ", "input"),
    ),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("name", INSERTED)
def test_a_constant_of_a_quantizer(name: str) -> None:
    case, recipe, edit, said = INSERTED[name]
    run_case(case, recipe, "insert-qcdq", edit, said)


@pytest.mark.few(3)
@pytest.mark.parametrize("share", [1.0, 0.1])
@pytest.mark.parametrize("point", ["W.weight", "hidden", "cell_state"])
def test_a_scale_that_is_wrong_wherever_it_is_used(point: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized values and formats agree with it: only weights, bounds and recipe contradict it."""
    from rnnqc.passes.qcdq import insert_qcdq as module

    right = module.resolve_formats

    def wrong(*arguments: Any) -> Any:
        made = right(*arguments)
        for points in (p for p in made.values() if p is not None and not p[point].is_float):
            held = points[point].complete
            scale = (*held.scale[:-1], held.scale[-1] * (1 + share / 100))
            points[point] = replace(points[point], format=replace(held, scale=scale))
        return made

    monkeypatch.setattr(module, "resolve_formats", wrong)
    recipe = load_recipe("int8").with_overrides(["*.cell_state.bits=24"])
    passes, proto = default_passes(recipe, "integer", False), LSTM.model()
    with pytest.raises(NumericsError, match=rf"Pass 'insert-qcdq' wrote a wrong constant: scale of .*{point}"):
        run(passes, proto, verifier_of(proto))


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_scale_that_is_wrong_where_it_is_defined(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself, that the largest weight has the largest code, is compared without the functions of scales."""
    from rnnqc.formats import weight_scales as module

    right = module.WEIGHT_RULES["min-max"]

    def wrong(*arguments: Any) -> Any:
        scale, zero_point = right(*arguments)
        scale[3] *= 1 + share / 100
        return scale, zero_point

    monkeypatch.setitem(module.WEIGHT_RULES, "min-max", wrong)  # type: ignore[arg-type]
    passes, proto = default_passes(load_recipe("int8"), "integer", False), GRU.model()
    with pytest.raises(NumericsError, match=r"Pass 'insert-qcdq' wrote a wrong constant: scale of .* at \[3\]"):
        run(passes, proto, verifier_of(proto))


VALUE = r"'the_lstm.forward/\S*{}(_\d+)?' is not 'the_lstm.forward/\S+' in a single step: {}, column {}(, the code)? is"


def said(value: str, gate: str, column: int | str = r"\d+") -> str:
    return VALUE.format(value, gate, column)


FOLDED: dict[str, tuple[RecurrentCase, str, Edit, str]] = {
    "a multiplier of x, 0.1 %": (
        LSTM, "int8", constants("/x_multiplier", entry(5, percent(0.1))), said("x.projection.steps", "input_gate", 5),
    ),
    "a multiplier of h, 0.1 %": (
        GRU, "int8", constants("/h_multiplier", entry(5, percent(0.1))), said("hidden.units", "update_gate", 5),
    ),
    "multipliers swapped": (RNN, "int16", constants("/h_multiplier", swapped), said("hidden.units", "hidden_gate")),
    "a multiplier of a grid, 0.1 %": (
        LSTM, "pow2-int16", constants("/h_multiplier", entry(5, percent(0.1))),
        said("hidden.product.scaled", "input_gate", 5),
    ),
    "a bias": (LSTM, "int8", constants("/B", entry(17, plus(0.05))), said("x.projection.steps", "output_gate", 1)),
    "a bias of a grid": (
        GRU, "distiller-asym", constants("/B", entry(17, plus(0.001))), said("x.projection.exact", "reset_gate", 1),
    ),
    "a bias behind the reset gate": (
        RESET_AFTER, "int8", constants("/hidden_bias", entry(3, plus(0.05))),
        said("hidden_gate.product", "hidden_gate", 3),
    ),
    "a peephole, 0.1 %": (
        PEEPHOLES, "int8", constants("/P", entry(20, percent(0.1))), said("output_gate.sum", "output_gate", 4),
    ),
    "a code": (LSTM, "int8", constants("/R", entry((3, 11), plus(-1))), said("hidden.units", "input_gate", 11)),
    "a code of a grid": (
        RNN, "pow2-int8", constants("/W", entry((3, 11), plus(-1))), said("x.projection.exact", "hidden_gate", 11),
    ),
    "a zero point of weights": (
        LSTM, "distiller-asym", constants("/W_zero_point", entry(9, plus(1))),
        said("x.projection.exact", "input_gate", 9),
    ),
    "the zero point of h": (
        LSTM, "int8", node_constant("QuantizeLinear", "/hidden.codes", 2, plus(1)),
        said(r"hidden.previous(_\d+)?:next", "hidden.next"),
    ),
    "the zero point of h in a product": (
        LSTM, "int8", node_constant("MatMulInteger", "/hidden.product", 2, plus(1)), said("hidden.units", r"\w+_gate"),
    ),
    "a limit of pre-activations": (
        LSTM, "int8", node_constant("Clip", "/preactivation.limited", 2, plus(-1)),
        said("preactivation.limited", "input_gate") + " 8190, not 8191",
    ),
    "a scale on a grid, 0.1 %": (
        GRU, "pow2-int16", node_constant("Div", "/hidden_state.units", 1, percent(0.1)),
        said("hidden_state", "hidden_state"),
    ),
    "a limit on a grid": (
        LSTM, "pow2-int16", node_constant("Clip", "/cell_state.multiples", 1, plus(1)),
        said("cell_state", "cell_state"),
    ),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("name", FOLDED)
def test_a_constant_of_the_integer_form(name: str) -> None:
    case, recipe, edit, message = FOLDED[name]
    run_case(case, recipe, "fold-scales", edit, message)


LIMITED: dict[str, tuple[RecurrentCase, list[str]]] = {
    "preactivation.limited": (LSTM, []),
    "hidden_gate.limited": (GRU, []),
    "cell_state": (LSTM.replace(activations=(Activation("Sigmoid"), Activation("Tanh"), Activation("Relu"))), []),
}


@pytest.mark.parametrize("value", LIMITED)
def test_limits_that_are_not_there(value: str) -> None:
    """Codes beyond a table: usual data does not show it."""
    case, overrides = LIMITED[value]
    passes = default_passes(load_recipe("int8").with_overrides(overrides), "integer", False)
    edit, said = (
        nodes("Clip", f"/{value}", becomes_input(0)),
        rf".*the_lstm.forward/{value}' is not .*, column \d+",
    )
    run_spoilt(case.model(), passes, "fold-scales", edit, said)


OF_EXPORT = r"'cell_node.forward/{}' is not 'cell_node.forward/\S+' in a single step: {}, column {} is"
EXPORTED: dict[str, tuple[Edit, str]] = {
    "a table": (table_entry("gate_table", 5, 2.0**-8), ENTRY.format("input_gate", 5)),
    "a table of the output": (table_entry("cell_table", 5, 2.0**-7), OF_OUTPUT.format(r"-?\d+")),
    "a multiplier, 0.1 %": (
        constants("/h_multiplier", entry(3, percent(0.1))), OF_EXPORT.format("hidden.product.scaled", "input_gate", 3),
    ),
    "a bias": (constants("/B", entry(3, plus(1e-4))), OF_EXPORT.format("preactivation", "input_gate", 3)),
    "a code": (
        constants("/W", entry((1, 2), plus(1))), OF_EXPORT.format("x.product.scaled", "input_gate", 2),
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", EXPORTED)
def test_a_constant_of_an_exported_cell(name: str) -> None:
    edit, said = EXPORTED[name]
    lstm = random_lstm(9)
    proto = one_cell(lstm, draw_feeds(lstm, 9, False, False))
    run_spoilt(proto, exported_passes("integer", False), "read-quant-lstm-cell", edit, f"{FOUND}: .*{said}")


@pytest.mark.few(2)
@pytest.mark.parametrize("pass_name", ["cleanup", "fuse-quant-lstm-cell"])
@pytest.mark.parametrize("recipe", ["int8", "w4a8", "pow2-int16"])
def test_a_constant_of_a_cell_that_is_moved(recipe: str, pass_name: str) -> None:
    """Comparing bits finds nothing if no data reaches the entry."""
    passes = default_passes(load_recipe(recipe), "fused", False, statistics_of(LSTM))
    if pass_name == "cleanup":  # the one before cells become nodes
        passes = passes[: [p.info.name for p in passes].index("fuse-quant-lstm-cell")]
    said = f"{FOUND}: .*{ENTRY.format('input_gate', 1)}"
    run_spoilt(LSTM.model(), passes, pass_name, table_entry("gate_table", 1, KNOT), said)


def test_weights_of_16_bits_raise_no_alarm() -> None:
    """Half a step of 2^16 is hardly more than a rounding of float32."""
    checks = rnnqc.lower(LSTM.model(), "int8", overrides=["*.weight.bits=16"], verify=True).report.checks
    assert any(name == "insert-qcdq" and text.startswith("constants: ") for name, text in checks)


FUSED = LSTM.replace(lens=(12, 7, 3), initial_h=True, initial_c=True, dynamic_time=False, dynamic_batch=False)


def attribute(name: str, change: Callable[[Any], Any], position: int = -1) -> Edit:
    """Changes an attribute of the fused node; of a list one element."""

    def edit(model: Model) -> bool:
        (node,) = [n for n in model.graph.nodes if n.op.startswith("Quant")]
        held = node.attrs[name] if name in node.attrs else lut_defaults(CELL_TYPES["LSTM"])[name]
        if isinstance(held, list):
            held[position] = change(held[position])
        else:
            node.attrs[name] = change(held)
        return True

    return edit


OTHER = r"changed a step of a cell: '{}' of 'the_lstm.forward' is another with the native library: max abs difference"
REFUSED = "changed a step of a cell: the fused node of 'the_lstm.forward' does not run: .*{}"
ATTRIBUTES: dict[str, tuple[RecurrentCase, str, Edit, str]] = {
    "h_scale, 1 %": (FUSED, "int8", attribute("h_scale", percent(1.0)), OTHER.format("Y")),
    "h_zero_point": (FUSED, "int8", attribute("h_zero_point", plus(1)), OTHER.format("Y")),
    "cell_index_scale, 1 %": (FUSED, "int8", attribute("cell_index_scale", percent(1.0)), OTHER.format("Y")),
    "input_forget": (FUSED, "int8", attribute("input_forget", plus(1)), OTHER.format("Y")),
    "the table of a gate": (
        FUSED, "int8", attribute("gate_table_offset", plus(-8192)), OTHER.format("Y"),
    ),
    "a limit of indices": (FUSED, "int8", attribute("gate_max", plus(1)), REFUSED.format("at least 16385 entries")),
    "a scale on a grid": (GRU, "pow2-int8", attribute("grid_scale", percent(100.0), 1), OTHER.format("Y")),
    "a zero point on a grid": (GRU, "pow2-int8", attribute("grid_zero_point", plus(1), 5), OTHER.format("Y")),
    "a limit on a grid": (GRU, "pow2-int8", attribute("grid_min", plus(100), 2), OTHER.format("Y")),
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_a_fused_node(name: str) -> None:
    """Function bodies hold their own constants: only the native library reads attributes."""
    case, recipe, edit, said = ATTRIBUTES[name]
    statistics = None if recipe == "int8" else statistics_of(case)
    passes = default_passes(load_recipe(recipe), "fused", False, statistics)
    run_spoilt(case.model(), passes, "fuse-quant-lstm-cell", edit, said)


def in_branch(branch: str, op: str, ending: str, change: Callable[[Node], None]) -> Edit:
    """Changes the nodes of one branch of a cell."""

    def edit(model: Model) -> bool:
        made = [(n, n.outputs[0].name) for g in model.graphs() for n in g.nodes if n.op == op]
        found = [n for n, name in made if f"/{branch}/" in name and alias(name)[0].endswith(ending)]
        for node in found:
            change(node)
        return bool(found)

    return edit


FROM_STATES = LSTM.replace(initial_h=True)
GRU_FROM_STATES = GRU.replace(initial_h=True)
OTHER_BRANCHES: dict[str, tuple[RecurrentCase, Edit, str]] = {
    "W of uint8": (FROM_STATES, node_constant("Add", "/W.shifted", 1, plus(1)), "x.projection.steps"),
    "R of uint8": (FROM_STATES, node_constant("Add", "/R.shifted", 1, plus(1)), "hidden.units"),
    "the product of uint8": (
        FROM_STATES, in_branch("uint8", "MatMulInteger", "/hidden.product", lambda n: n.inputs.pop()), "hidden.units",
    ),
    "the product of int8": (
        FROM_STATES, in_branch("int8", "MatMulInteger", "/hidden.product", lambda n: n.inputs.pop()), "hidden.units",
    ),
    "states beyond the bound": (
        GRU_FROM_STATES, in_branch("beyond_bound", "Mul", "/hidden.units", becomes("Add")), "hidden.units",
    ),
    "states within the bound": (
        GRU_FROM_STATES, in_branch("within_bound", "Mul", "/hidden.units", becomes("Add")), "hidden.units",
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("pass_name", ["fold-scales", "cleanup"])
@pytest.mark.parametrize("name", OTHER_BRANCHES)
def test_every_branch_is_compared(name: str, pass_name: str) -> None:
    """That of another processor, and that of states that no data has."""
    case, edit, value = OTHER_BRANCHES[name]
    if pass_name == "fold-scales":
        run_case(case, "int8", pass_name, edit, rf"'the_lstm.forward/\S*{value}\S*' is not '\S+' in a single step")
        return
    passes = default_passes(load_recipe("int8"), "integer", False)
    run_spoilt(case.model(), passes, pass_name, edit, "changed")


FLOAT_STATE = {
    "Affine": LSTM.replace(activations=(Activation("Sigmoid"), Activation("Tanh"), Activation("Affine", 1.5, 0.25))),
    "Relu": LSTM.replace(activations=(Activation("Sigmoid"), Activation("Tanh"), Activation("Relu"))),
    "peepholes": PEEPHOLES,
    "tanh": LSTM,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FLOAT_STATE)
def test_states_beyond_their_limit_raise_no_alarm(name: str) -> None:
    """Integer forms limit a float state to 2^60, which output activations without bounds and peepholes show; and tables
    of it round it to their index.
    """
    overrides = ["*.cell_state.bits=none"]
    checks = rnnqc.lower(FLOAT_STATE[name].model(), "int8", overrides=overrides, verify=True).report.checks
    assert any(n == "fold-scales" and t.startswith("single steps: 23 values") for n, t in checks)


def test_a_step_whose_state_nothing_reads_raises_no_alarm() -> None:
    """After unrolling one step, only the codes of its state are left: they do not stand for it."""
    case = RecurrentCase(T=1, B=2, outputs=("Y_h",), initial_h=True, initial_c=True)
    checks = rnnqc.lower(
        case.model(), "distiller-sym", "integer", calibration=[case.feeds()], unroll=True, verify=True
    ).report.checks
    assert any(name == "unroll" and text.startswith("single steps: ") for name, text in checks)


def test_the_reproducer_holds_the_constant(tmp_path: Path) -> None:
    """All that is wrong is in the report; before.onnx and after.onnx differ in it."""
    proto = LSTM.model()
    passes = default_passes(load_recipe("int8"), "integer", False)
    verifier = VerifyNumerics([LSTM.feeds()], tmp_path / "r", executable)
    run_spoilt(proto, passes, "insert-qcdq", constants("/W.scale", swapped), "wrote a wrong constant", verifier)
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    (wrong,) = report["wrong_constants"]
    assert wrong["what"] == "quantized values of the_lstm.forward.W.weight" and wrong["count"] > 2
    assert wrong["found"] != wrong["expected"] and report["pass"] == "insert-qcdq"
    assert len(list((tmp_path / "r").iterdir())) == 4


RECIPES = {
    "int8": False, "int8-static": True, "int16": False, "w4a8": True, "pow2-int8": True, "pow2-int16": True,
    "pow2-w8a16": True, "pow2-int8-floor": True, "brevitas-int8": True, "distiller-sym": True, "distiller-asym": True,
    "distiller-avg": True,
}  # fmt: skip
"""And whether they need calibration."""
CASES = {
    "LSTM": LSTM,
    "peepholes and clip": PEEPHOLES.replace(clip=0.5, direction="bidirectional"),
    "CIFG": LSTM.replace(input_forget=True, B=1, dynamic_batch=False),
    "GRU": GRU.replace(direction="bidirectional"),
    "GRU, reset after": RESET_AFTER.replace(clip=0.7),
    "RNN": RNN.replace(direction="reverse", initial_h=True),
    "HardSigmoid": HARD.replace(lens=(12, 5, 1)),
    "Elu": ELU,
}
OWN_SCALES = ["*.weight.granularity=per-channel", "*.weight.symmetric=true", "*.weight.share=none"]
OVERRIDES = {
    "as it is": [],
    "mixed": [*OWN_SCALES, "*.weight.bits=4", "*.weight.wide_channels=0.25", "*.weight.group_size=none"],
    "compensated": ["*.weight.compensation=true", "*.weight.bias_correction=true"],
    "mse": ["*.weight.range=mse", "*.weight.granularity=per-tensor", "*.weight.group_size=none"],
}
FAST = [("brevitas-int8", "CIFG"), ("pow2-int16", "GRU")]
PAIRS = [(r, c) for r in RECIPES for c in CASES]


def _quick(k: int, overrides: str) -> bool:
    """One of the four overrides of every twelfth case, and of those that are told apart."""
    turn = list(OVERRIDES).index(overrides)
    return (k % 11 == 0 and k // 11 % len(OVERRIDES) == turn) or (PAIRS[k] in FAST and FAST.index(PAIRS[k]) == turn)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("recipe", "case", "overrides"),
    [
        pytest.param(r, c, o, marks=() if _quick(k, o) else pytest.mark.slow)
        for k, (r, c) in enumerate(PAIRS)
        for o in OVERRIDES
    ],
)
def test_right_constants_raise_no_alarm(recipe: str, case: str, overrides: str) -> None:
    """They are compared for every pass that has a check."""
    drawn = CASES[case]
    statistics = statistics_of(drawn)
    for stats in (statistics, None) if not RECIPES[recipe] else (statistics,):
        lowered = rnnqc.lower(drawn.model(), recipe, overrides=OVERRIDES[overrides], stats=stats, verify=True)
        compared = [c for c in lowered.report.checks if c[1].startswith(("constants: ", "single steps: "))]
        assert {"insert-qcdq", "fold-scales", "fuse-quant-lstm-cell"} <= {name for name, _ in compared}
        assert not any("passed over" in text or ": 0 " in text for _, text in compared)


HIGHWAY = RecurrenceCase(op="highway", form="scan", bias="both", time=6, batch=2, I=5, H=6)


@functools.cache
def _seen_highway() -> Statistics:
    return calibrate(HIGHWAY.model(), [HIGHWAY.feeds(seed=s) for s in (1, 2, 3)])


def made_in(ending: str, array: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """Changes the first initializer whose name ends so."""

    def edit(model: Model) -> bool:
        for graph in model.graphs():
            for node in graph.nodes:
                for value in node.inputs:
                    if isinstance(value, Constant) and value.name.endswith(ending):
                        value.values = array(np.array(value.values))
                        return True
        return False

    return edit


PRODUCT = r"weights, scales and quantized values of product .*: .* at \[\d+, {}\]"
CUSTOM: dict[str, tuple[str, Edit, str]] = {
    "a scale of weights, 0.1 %": ("qcdq", made_in(".weight.scale", percent(0.1)), PRODUCT.format(r"\d+")),
    "a code": ("integer", made_in(".weight.codes", entry((1, 3), plus(1))), PRODUCT.format(3)),
    "a multiplier, 0.1 %": (
        "integer", node_constant("Mul", "/product.real", 1, percent(0.1)), PRODUCT.format(r"\d+"),
    ),
    "a scale of codes, 0.1 %": (
        "integer", node_constant("QuantizeLinear", "/hidden.codes", 1, percent(0.1)), PRODUCT.format(r"\d+"),
    ),
    "a bias": ("integer", made_in(".bias", entry(1, percent(5.0))), r"bias: .* at \[1\]"),
    "a limit of a value": (
        "integer", node_constant("Clip", "/value.clipped", 2, plus(-1)), r"quantized values of .*value",
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("index", [0, 7, 1024, 2049])
def test_an_entry_of_a_table_of_a_custom_cell(index: int) -> None:
    """One that differs by the last bit, at either end or between."""
    proto, statistics = HIGHWAY.model(), _seen_highway()
    passes = default_passes(load_recipe("pow2-int16"), "integer", False, statistics)
    edit = node_constant("GatherElements", "/value.taken", 0, entry(index, plus(2.0**-15)))
    run_spoilt(proto, passes, "quantize-custom-cells", edit, rf"{FOUND}: .*table of .*\.value")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CUSTOM)
def test_a_constant_of_a_recurrence_of_other_equations(name: str) -> None:
    form, edit, said = CUSTOM[name]
    proto, statistics = HIGHWAY.model(), _seen_highway()
    passes = default_passes(load_recipe("distiller-sym"), form, False, statistics)
    run_spoilt(proto, passes, "quantize-custom-cells", edit, f"{FOUND}: .*{said}")


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize("form", ["integer", pytest.param("qcdq", marks=pytest.mark.slow)])
def test_right_recurrences_raise_no_alarm(recipe: str, form: str) -> None:
    """Without quantizers they equal the float model."""
    proto, statistics = HIGHWAY.model(), _seen_highway()
    checks = rnnqc.lower(proto, recipe, form, stats=statistics, verify=True).report.checks
    texts = [text for name, text in checks if name == "quantize-custom-cells"]
    assert not any(t.startswith("constants: 0") or "passed over" in t for t in texts)
    assert "without quantizers: max abs difference 0" in texts


def test_right_recurrences_of_other_places_raise_no_alarm() -> None:
    """The first step multiplies a constant state, the others what the step before has made, in another format."""
    case = replace(HIGHWAY, form="unrolled", initial="constant", time=3)
    proto = case.model()
    statistics = calibrate(proto, [case.feeds(seed=s) for s in (1, 2, 3)])
    checks = rnnqc.lower(proto, "brevitas-int8", stats=statistics, verify=True).report.checks
    assert any(n == "quantize-custom-cells" and t.startswith("constants: ") for n, t in checks)


STORED = {"weight-only-int8": "codes", "weight-only-int4": "packed", "fp16": "half"}


@pytest.mark.parametrize("recipe", STORED)
def test_stored_weights(recipe: str) -> None:
    edit = made_in(f".W.weight.{STORED[recipe]}", entry((0, 2, 3), plus(1)))
    passes = default_passes(load_recipe(recipe), "fused", False)
    said = rf"{FOUND}: .*weights of the_lstm.forward.W.weight of the_lstm: "
    run_spoilt(LSTM.model(), passes, "quantize-weights", edit, said)


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "weight-only-int4", "pow2-int16"])
@pytest.mark.parametrize("drawn", [LSTM, HIGHWAY, RESET_AFTER], ids=["LSTM", "highway", "GRU"])
def test_a_verified_lowering_writes_the_same_bytes(recipe: str, drawn: Any) -> None:
    """Checks look at the model before a pass, and leave no trace in it."""
    proto, feeds = drawn.model(), [drawn.feeds()]
    if recipe == "weight-only-int4" and drawn is HIGHWAY:
        return
    plain, verified = (rnnqc.lower(proto, recipe, calibration=feeds, verify=v).proto for v in (False, True))
    assert plain.SerializeToString(deterministic=True) == verified.SerializeToString(deterministic=True)
