"""Errors planted in passes: `lower --verify` has to name the pass, and the first value that is wrong.

What these would catch: a check of numerics that the errors of real compilers pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest

from rnnqc.cells.fixed_point_numbers import quantizers_of
from rnnqc.cells.types import CELL_TYPES
from rnnqc.errors import NumericsError
from rnnqc.ir import Model, Node
from rnnqc.passes.pipeline import default_passes, exported_passes
from rnnqc.recipes.recipe import load_recipe
from tests.generate.layers import RecurrentCase
from tests.passes.planting import (
    Edit,
    becomes,
    becomes_input,
    calibrated_passes,
    constants,
    nodes,
    run,
    run_spoilt,
    verifier_of,
)
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm


def one_step(op: str, ending: str, other: str) -> Edit:
    def edit(model: Model) -> bool:
        found = [n for n in model.graph.nodes if n.op == op and n.outputs[0].name.startswith(ending)]
        for node in found[:1]:
            node.op = other
        return bool(found)

    return edit


def swapped_outputs(node: Node) -> None:
    first, second, *rest = node.outputs
    node.outputs.clear()
    node.outputs.extend([second, first, *rest])


def first_gate(array: np.ndarray) -> np.ndarray:
    array[..., : array.shape[-1] // 4] *= np.float32(1.01)
    return array


def first_16(array: np.ndarray) -> np.ndarray:
    """Selects the first gate of 16 units."""
    array[..., :16] *= np.float32(1.01)
    return array


LSTM = RecurrentCase(T=12, B=3, I=6, H=16, dynamic_time=True, dynamic_batch=True)
LENGTHS = RecurrentCase(T=12, B=3, I=6, H=16, lens=(12, 7, 3))
GRU = RecurrentCase(op="GRU", T=12, B=3, I=6, H=16, dynamic_time=True, dynamic_batch=True)


@dataclass(frozen=True)
class Planted:
    """An error, and the expected message."""

    pass_name: str
    edit: Edit
    said: str
    case: RecurrentCase = LSTM
    unroll: bool = False


def step(value: str, gate: str = r"\w+_gate") -> str:
    """The message about a value of a single step: its name, the gate and the column."""
    return rf"'\S+forward/(u?int8/)?{value}' is not '\S+' in a single step: {gate}, column \d+"


PLANTED = {
    "decompose: gates swapped": Planted(
        "decompose-lstm", nodes("Split", "input_gate.product", swapped_outputs), r"diverges is 'Y'"
    ),
    "decompose: bias lost": Planted("decompose-lstm", constants("/B.float", np.zeros_like), r"diverges is 'Y'"),
    "decompose: a scale of 1 %": Planted(
        "decompose-lstm", constants("/R.float", lambda a: a * np.float32(1.01)), r"diverges is 'Y'"
    ),
    "decompose: lengths ignored": Planted(
        "decompose-lstm", nodes("Where", "hidden.masked.signed", becomes_input(1)), "diverges is 'Y'", LENGTHS
    ),
    "decompose: lengths off by one": Planted(
        "decompose-lstm", nodes("Less", "time.valid", becomes("LessOrEqual")), "diverges is 'Y'", LENGTHS
    ),
    "decompose: length zero has a last step": Planted(
        "decompose-lstm", nodes("Where", "hidden.picked.signed", becomes_input(2)), "diverges is 'Y_h'", LENGTHS
    ),
    "insert: gates swapped": Planted(
        "insert-qcdq", nodes("Split", "input_gate.product", swapped_outputs),
        r"diverges is 'the_lstm.forward/(input|output)_gate.product' in Scan .* at step 0",
    ),
    "insert: a wrong activation": Planted(
        "insert-qcdq", nodes("Tanh", "cell_gate.value", becomes("Sigmoid")),
        r"diverges is 'the_lstm.forward/cell_gate.value' in Scan .* at step 0",
    ),
    "insert: the sign of a state": Planted(
        "insert-qcdq", nodes("Add", "cell_state.sum", becomes("Sub")),
        r"diverges is 'the_lstm.forward/cell_state.sum' in Scan .* at step 0",
    ),
    "fold: bias lost": Planted("fold-scales", constants("/B", np.zeros_like), step("x.projection.steps")),
    "fold: rounding lost": Planted(
        "fold-scales", constants("/B", lambda a: a - np.float32(0.5)), step("x.projection.steps"),
    ),
    "fold: gates swapped": Planted(
        "fold-scales", constants("/B", lambda a: np.roll(a, 16, -1)), step("x.projection.steps"),
    ),
    "fold: the scale of x, 1 %": Planted(
        "fold-scales", constants("/x_multiplier", lambda a: a * np.float32(1.01)), step("x.projection.steps"),
    ),
    "fold: the scale of h, 1 %": Planted(
        "fold-scales", constants("/h_multiplier", lambda a: a * np.float32(1.01)), step("hidden.units"),
    ),
    "fold: the scale of one gate, 1 %": Planted(
        "fold-scales", constants("/h_multiplier", first_gate), step("hidden.units", "input_gate"),
    ),
    "fold: gates of the integer step swapped": Planted(
        "fold-scales", nodes("Split", "/input_gate", swapped_outputs), step(r"\w+_gate", "(in|out)put_gate"),
    ),
    "fold: gates of a GRU's step swapped": Planted(
        "fold-scales", nodes("Split", "/update_gate", swapped_outputs), step(r"\w+_gate", "(update|reset)_gate"), GRU,
    ),
    "fold: the scale of h of a GRU, 1 %": Planted(
        "fold-scales", constants("/h_multiplier", lambda a: a * np.float32(1.01)), step("hidden.units", "update_gate"),
        GRU,
    ),
    "cleanup: a value in the loop": Planted(
        "cleanup", nodes("Round", "hidden.squashed.rounded", becomes("Floor")),
        r"diverges is 'the_lstm.forward/(u?int8/)?hidden.squashed.rounded' in Scan .* at step 0",
    ),
    "unroll: one of the steps": Planted(
        "unroll", one_step("Round", "the_lstm.forward/step_3/hidden.squashed.rounded", "Ceil"),
        r"diverges is 'the_lstm.forward/hidden.squashed.rounded\w*' in Scan .* at step 3",
        RecurrentCase(T=5, B=3, I=6, H=16), True,
    ),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("name", PLANTED)
def test_pass_and_value_are_named(name: str) -> None:
    planted = PLANTED[name]
    proto = planted.case.model()
    passes = default_passes(load_recipe("int8"), "integer", planted.unroll)
    run_spoilt(proto, passes, planted.pass_name, planted.edit, f"changed .*{planted.said}")


def one_percent(array: np.ndarray) -> np.ndarray:
    return array * np.float32(1.01)


def slow_but(fast: str, *recipes: str) -> list[Any]:
    """The recipes as parameters; all but one are for slow runs."""
    return [pytest.param(r, marks=() if r == fast else pytest.mark.slow) for r in recipes]


GRID_ERRORS = {
    "x": (constants("/x_multiplier", one_percent), step("x.(product.scaled|projection.exact)")),
    "h": (constants("/h_multiplier", one_percent), step("(hidden|reset).product.scaled")),
    "h of one gate": (
        constants("/h_multiplier", first_16), step("hidden.product.scaled", "(input|update|hidden)_gate")
    ),
    "bias": (constants("/B", np.zeros_like), step(r"(x.projection.exact|preactivation(_\d+)?)")),
}  # fmt: skip
GRID_RECIPES = (
    "pow2-int16", "pow2-int8", "pow2-w8a16", "pow2-int8-floor",
    "brevitas-int8", "distiller-sym", "distiller-asym", "distiller-avg",
)  # fmt: skip
GRID_CASES = {
    "LSTM": LSTM,
    "GRU": GRU,
    "GRU, reset after": GRU.replace(linear_before_reset=True),
    "RNN": GRU.replace(op="RNN"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("error", GRID_ERRORS)
@pytest.mark.parametrize("op", GRID_CASES)
@pytest.mark.parametrize("recipe", slow_but("pow2-int8", "pow2-int8", "pow2-int16", "brevitas-int8", "distiller-asym"))
def test_errors_of_grids_are_named(recipe: str, op: str, error: str) -> None:
    """The arithmetics of all points on grids: powers of two, zero points, and Brevitas' ("grid32", of the LSTM)."""
    case = GRID_CASES[op]
    edit, said = GRID_ERRORS[error]
    run_spoilt(case.model(), calibrated_passes(case, recipe), "fold-scales", edit, f"changed .*{said}")


@pytest.mark.few(2)
@pytest.mark.parametrize("op", GRID_CASES)
@pytest.mark.parametrize("recipe", slow_but("brevitas-int8", *GRID_RECIPES))
def test_right_grids_raise_no_alarm(recipe: str, op: str) -> None:
    """Every part of a step is compared; none is skipped."""
    case = GRID_CASES[op]
    verifier = verifier_of(case.model())
    run(calibrated_passes(case, recipe), case.model(), verifier)
    (text,) = [text for name, text in verifier.checks if name == "fold-scales" and text.startswith("single steps")]
    gates = len(CELL_TYPES[case.op].gates)
    parts = 3 * gates + {"LSTM": 11, "GRU": 10, "GRU, reset after": 8, "RNN": 5}[op]
    assert text == f"single steps: {parts} values of 1 cells compared"


@pytest.mark.few(2)
@pytest.mark.parametrize("scale", ["input", "hidden", "reset"])
def test_a_scale_of_codes(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values quantized with another scale than the multipliers assume."""
    from rnnqc.passes.fold import integer_forms as module

    fold, case = module.fold_fixed_point, GRID_CASES["GRU"]

    def wrong(*arguments: Any) -> Any:
        folded = fold(*arguments)
        scales = list(folded.numbers.grid_scale)
        scales[quantizers_of(CELL_TYPES[case.op]).index(scale)] *= 1.01
        return replace(folded, numbers=replace(folded.numbers, grid_scale=scales))

    monkeypatch.setattr(module, "fold_fixed_point", wrong)
    value = {"input": "x.projection.exact", "hidden": "hidden.product.scaled", "reset": "reset.product.scaled"}[scale]
    with pytest.raises(NumericsError, match=step(value)):
        run(calibrated_passes(case, "pow2-int16"), case.model(), verifier_of(case.model()))


EXPORTED = {
    "x": (constants("/x_multiplier", one_percent), step("x.product.scaled")),
    "h": (constants("/h_multiplier", one_percent), step("hidden.product.scaled")),
    "h of one gate": (constants("/h_multiplier", first_gate), step("hidden.product.scaled", "input_gate")),
    "bias": (constants("/B", np.zeros_like), step("preactivation")),
}  # fmt: skip


def exported_cell(seed: int, **options: Any) -> onnx.ModelProto:
    lstm = random_lstm(seed, **options)
    return one_cell(lstm, draw_feeds(lstm, seed, False, bool(options.get("pow2"))))


def test_errors_of_a_grid32_are_named() -> None:
    """The slow runs test every recipe; this is one whose LSTM has Brevitas' arithmetic."""
    edit, said = GRID_ERRORS["h"]
    run_spoilt(LSTM.model(), calibrated_passes(LSTM, "brevitas-int8"), "fold-scales", edit, f"changed .*{said}")


@pytest.mark.few(1)
@pytest.mark.parametrize("error", EXPORTED)
def test_errors_of_exported_cells_are_named(error: str) -> None:
    """The reference of a cell of Brevitas is its float32 form, "grid32"."""
    edit, said = EXPORTED[error]
    run_spoilt(exported_cell(9), exported_passes("integer", False), "read-quant-lstm-cell", edit, f"changed .*{said}")


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"pow2": True}, {"per_channel": True}, {"weight_bits": 4}, {"cifg": True}])
@pytest.mark.parametrize("seed", [9, pytest.param(10, marks=pytest.mark.slow)])
def test_right_exported_cells_raise_no_alarm(seed: int, options: dict[str, Any]) -> None:
    proto = exported_cell(seed, **options)
    verifier = verifier_of(proto)
    run(exported_passes("integer", False), proto, verifier)
    (text,) = [t for n, t in verifier.checks if n == "read-quant-lstm-cell" and t.startswith("single steps")]
    parts = 20 if options.get("cifg") else 23
    assert text == f"single steps: {parts} values of 1 cells compared"
