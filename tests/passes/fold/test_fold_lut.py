"""The numbers of the integer cell.

What these would catch: a scale folded into the wrong multiplier, a bias that does not hold the zero point and rounding,
tables placed over each other, a format that is folded although it has no integer form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.cells.attributes import LUT_REQUIRED, lut_defaults, without_defaults
from rnnqc.cells.base import Cell
from rnnqc.errors import NotHandled
from rnnqc.ir import constant_array, graph_info
from rnnqc.passes.fold.fold_lut import FoldedLut, fold_lut, with_zero_point_rows, zero_point_rows_needed
from rnnqc.passes.fold.lut_formats import state_bound
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import INT8, before, make_pass

TANH = Activation("Tanh")
WHOLE = "*.cell_state.bits=24"
"""A cell state in whole steps."""


def _folded(case: RecurrentCase | None = None, *overrides: str) -> tuple[Cell, FoldedLut]:
    recipe = INT8.with_overrides(overrides)
    model = before("fold-scales", (case or RecurrentCase()).model(), recipe)
    cell = next(iter(model.cells.values()))
    held = graph_info(model.graph).initializers
    names = {"W": cell.W, "B": cell.B, "P": cell.P, "hidden_bias": cell.hidden_bias}
    arrays = {k: constant_array(held[n]) for k, n in names.items() if n is not None}
    return cell, fold_lut(cell, arrays.pop("W"), arrays)  # type: ignore[arg-type]


def test_multipliers_and_bias_by_hand() -> None:
    cell, folded = _folded(RecurrentCase(peepholes=True), "*.input.mode=static", "*.input.scale=0.125", WHOLE)
    h = cell.hidden_size
    s_g = np.repeat([16 / 4096, 16 / 4096, 16 / 4096, 8 / 4096], h)
    s_w, s_r = (np.asarray(cell.points[f"{k}.weight"].complete.scale) for k in ("W", "R"))
    s_h = cell.points["hidden"].scale[0]
    np.testing.assert_allclose(folded.x_multiplier, s_w * 0.125 / s_g, rtol=1e-6)
    np.testing.assert_allclose(folded.h_multiplier, s_r * s_h / s_g, rtol=1e-6)
    parameters = RecurrentCase(peepholes=True).parameters()
    bias = parameters["B"][0, : 4 * h] + parameters["B"][0, 4 * h :]
    np.testing.assert_allclose(folded.B, bias / s_g + 4096.5, rtol=1e-6)
    assert folded.P is not None
    np.testing.assert_allclose(folded.P, parameters["P"][0] * 2.0**-11 / (16 / 4096), rtol=1e-6)
    numbers = folded.numbers
    assert (numbers.x_mode, numbers.x_scale, numbers.x_zero_point) == ("static", 0.125, 128)
    assert (numbers.h_mode, numbers.h_scale, numbers.h_zero_point) == ("static", s_h, 128)


def test_peepholes_are_in_units_of_their_own_gates() -> None:
    case = RecurrentCase(peepholes=True)
    cell, folded = _folded(case, "*.output_gate.acc.bits=12", "*.forget_gate.acc.bits=11", WHOLE)
    assert folded.P is not None
    steps = np.repeat([16 / 4096, 16 / 2048, 16 / 1024], cell.hidden_size)  # of i, o, f
    np.testing.assert_allclose(folded.P, case.parameters()["P"][0] * 2.0**-11 / steps, rtol=1e-6)


def test_the_candidate_of_a_gru_multiplies_what_the_reset_gate_made() -> None:
    """Its columns of R have the scale of `r * h`, those of the gates the scale of h."""
    cell, folded = _folded(RecurrentCase(op="GRU"), "*.reset.hidden.mode=static", "*.reset.hidden.scale=0.02")
    h, candidate = cell.hidden_size, cell.candidate_columns
    scales = np.full(3 * h, cell.points["hidden"].scale[0])
    scales[candidate] = cell.points["reset.hidden"].scale[0]
    assert scales[candidate][0] > 1.9 * scales[0]
    steps = np.repeat([16 / 4096, 16 / 4096, 8 / 4096], h)
    expected = np.asarray(cell.points["R.weight"].complete.scale) * scales / steps
    np.testing.assert_allclose(folded.h_multiplier, expected, rtol=1e-6)


@pytest.mark.parametrize(("activation", "has_room"), [(TANH, False), (Activation("ScaledTanh", 1.7, 1.0), True)])
def test_a_gru_has_room_beyond_its_activations(activation: Activation, has_room: bool) -> None:
    """Roundings of `(1 - z) * n + z * h` add up; where the bound is a power of two they cannot pass it."""
    case = RecurrentCase(op="GRU", initial_h=True, activations=(Activation("Sigmoid"), activation))
    cell = next(iter(before("fold-scales", case.model(), INT8).cells.values()))
    bound = cell.points["hidden"].bound
    assert bound is not None and bound == pytest.approx(1.7 if has_room else 1.0, rel=1e-2)
    # The state that is one rounding above the largest n.
    assert bool(state_bound(cell) >= np.nextafter(np.float32(bound), np.float32(2.0))) is has_room


def test_default_numbers() -> None:
    _, folded = _folded()
    numbers = folded.numbers
    assert (numbers.x_mode, numbers.x_scale) == ("dynamic_row", 0.0)
    assert numbers.gate_kinds == ["table"] * 4
    assert (numbers.gate_min, numbers.gate_max) == ([0.0] * 4, [8191.5] * 4)
    assert numbers.gate_table_offset == [0, 0, 0, 8192]
    assert numbers.gate_table_size == 8192
    assert [(t.activation.name, t.size, t.unit) for t in folded.gate_tables] == [
        ("Sigmoid", 8192, 1.0),
        ("Tanh", 8192, 1.0),
    ]
    assert (numbers.cell_scale, numbers.cell_index_scale) == (0.0, 4096.0)
    assert folded.cell_table is not None
    assert (folded.cell_table.size, folded.cell_table.step, numbers.cell_table_size) == (65536, 2.0**-12, 65536)
    assert all(t.piecewise_linear for t in (*folded.gate_tables, folded.cell_table))


def test_clip_limits_the_codes() -> None:
    numbers = _folded(RecurrentCase(clip=1.0))[1].numbers
    assert numbers.gate_min == [4096.5 - 256] * 3 + [4096.5 - 512]
    assert numbers.gate_max == [4096.5 + 256] * 3 + [4096.5 + 512]


def test_a_cell_state_in_whole_steps_has_no_limit_of_its_own() -> None:
    _, folded = _folded(None, WHOLE)
    numbers = folded.numbers
    assert (numbers.cell_scale, numbers.cell_max, numbers.cell_is_wide) == (2.0**-11, 2.0**60, True)
    assert folded.cell_table is not None
    assert (folded.cell_table.size, folded.cell_table.step, numbers.cell_table_size) == (65536, 2.0**-11, 65536)
    assert folded.gate_tables[1].unit == 2.0**-11


def test_narrow_cell_state_saturates() -> None:
    numbers = _folded(None, "*.cell_state.bits=16")[1].numbers
    assert (numbers.cell_max, numbers.cell_is_wide) == (32767.0, False)


@pytest.mark.parametrize(
    ("activations", "kinds", "sizes"),
    [
        ((Activation("HardSigmoid", 0.2, 0.5), TANH, TANH), ["HardSigmoid"] * 3 + ["table"], [8192]),
        ((Activation("Sigmoid"), Activation("Relu"), TANH), ["table"] * 3 + ["Relu"], [8192]),
        ((Activation("Sigmoid"), Activation("Elu", 1.0), TANH), ["table"] * 3 + ["relu_table"], [8192, 8192]),
        ((TANH, TANH, TANH), ["table"] * 4, [8192]),
    ],
)
def test_kinds(activations: tuple[Activation, ...], kinds: list[str], sizes: list[int]) -> None:
    numbers = _folded(RecurrentCase(activations=activations))
    assert numbers[1].numbers.gate_kinds == kinds
    assert [t.size for t in numbers[1].gate_tables] == sizes


def test_attributes_are_those_of_the_operator() -> None:
    cell, folded = _folded(RecurrentCase(direction="reverse", input_forget=True))
    attributes = folded.numbers.attributes(cell)
    assert set(attributes) <= {*lut_defaults(cell.type), *LUT_REQUIRED}
    assert set(without_defaults(cell.type, attributes)) == {
        *("hidden_size", "direction", "h_scale", "cell_max", "gate_min", "gate_max", "gate_table_offset"),
        *("cell_index_scale", "input_forget"),
    }
    assert (attributes["direction"], attributes["input_forget"], attributes["gate_kinds"]) == (
        "reverse",
        1,
        "table,table,table,table",
    )
    assert all(not isinstance(v, np.generic) for v in attributes.values())


def test_widths_of_activations() -> None:
    cell, folded = _folded(None, "*.input.bits=16", "*.hidden.bits=16")
    numbers = folded.numbers
    assert (numbers.x_bits, numbers.h_bits) == (16, 16)
    assert (numbers.x_mode, numbers.h_mode, numbers.h_zero_point) == ("dynamic_row", "static", 32768)
    assert numbers.h_scale == float(np.float32(1 / 32767))
    r_scale = np.asarray(cell.points["R.weight"].complete.scale)
    np.testing.assert_allclose(folded.h_multiplier[-1], r_scale[-1] / 32767 / (8 / 4096), rtol=1e-6)
    attributes = numbers.attributes(cell)
    assert (attributes["x_bits"], attributes["h_bits"]) == (16, 16)
    mixed, folded = _folded(None, "*.hidden.bits=16")
    attributes = without_defaults(mixed.type, folded.numbers.attributes(mixed))
    assert attributes["h_bits"] == 16
    assert "x_bits" not in attributes, "an attribute at its default is left out"


REFUSED = [
    (["*.W.weight.bits=none"], "W stays float", "W.weight.bits = none"),
    (["*.R.weight.bits=9"], "R has 9 bits", "R.weight.bits = 9"),
    (["*.input.bits=none"], "the input has a format without integer form", "input: float"),
    (["*.input.bits=7"], "the input has a format", "input: 7 bits, signed = False, half_even"),
    (["*.input.bits=12"], "the input has a format", "input: 12 bits, signed = False, half_even"),
    (["*.hidden.bits=17"], "the hidden has a format", "hidden: 17 bits"),
    (["*.hidden.bits=16", "*.hidden.rounding=floor"], "the hidden has a format", "hidden: 16 bits"),
    (["*.hidden.signed=true", "*.hidden.zero_point=0"], "the hidden has a format", "signed = True"),
    (["*.hidden.rounding=floor"], "the hidden has a format", "floor"),
    (["*.forget_gate.acc.bits=none"], "the forget gate is not tabulated", "acc.bits = None"),
    (["*.cell_gate.activation.bits=none"], "the cell gate is not tabulated", "activation.bits = None"),
    (["*.acc.bits=17"], "the input gate has too large a table", "input_gate.acc.bits = 17"),
    (["*.acc.bits=32"], "the input gate has too large a table", "input_gate.acc.bits = 32"),
    (["*.acc.rounding=half_even"], "the input gate is not tabulated", "half_even"),
    (["*.hidden.activation.bits=none"], "the output activation is not tabulated", "hidden.activation.bits = none"),
    ([WHOLE, "*.cell_state.rounding=floor"], "the cell state has a format", "floor"),
]


@pytest.mark.parametrize(("overrides", "reason", "found"), REFUSED)
def test_refused(overrides: list[str], reason: str, found: str) -> None:
    with pytest.raises(NotHandled, match=reason) as caught:
        _folded(None, *overrides)
    assert found in caught.value.found
    assert "--form qcdq" in caught.value.action


@pytest.mark.parametrize(("overrides", "reason", "found"), REFUSED)
def test_refused_cells_stay_qcdq_with_a_remark(overrides: list[str], reason: str, found: str) -> None:
    recipe = INT8.with_overrides(overrides)
    model = before("fold-scales", RecurrentCase().model(), recipe)
    ops = [n.op for g in model.graphs() for n in g.nodes]
    result = make_pass("fold-scales")(model)
    (remark,) = result.remarks
    assert remark.reason.startswith(f"quantized, not integer: {reason}")
    assert found in remark.found
    assert not result.modified
    assert [n.op for g in model.graphs() for n in g.nodes] == ops
    assert [c.form for c in model.cells.values()] == ["qcdq"]


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_zero_point_rows_hold_the_column_sums(rows: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-127, 128, (rows, 6), dtype=np.int8)
    codes[:, 0], codes[:, 1] = 127, -127
    count = zero_point_rows_needed(codes)
    assert count & (count - 1) == 0
    assert count >= 4
    extended = with_zero_point_rows(codes, count)
    assert (str(extended.dtype), extended.shape) == ("int8", (rows + count, 6))
    np.testing.assert_array_equal(extended[:rows], codes)
    np.testing.assert_array_equal(extended.sum(axis=0, dtype=np.int64), np.zeros(6))
    assert np.abs(extended.astype(int)).max() <= 127


def test_multipliers_stay_normal_numbers() -> None:
    _, folded = _folded(None, "*.weight.scale=1e-30", "*.hidden.scale=1e-25")
    assert folded.h_multiplier.min() >= np.finfo(np.float32).tiny
    assert folded.h_multiplier.dtype == folded.x_multiplier.dtype == folded.B.dtype == np.float32


def test_json_ready() -> None:
    import json

    numbers: dict[str, Any] = vars(_folded()[1].numbers)
    assert json.loads(json.dumps(numbers)) == numbers
