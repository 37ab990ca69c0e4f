"""The numbers of a cell in fixed-point arithmetic.

What these would catch: a scale folded into the wrong multiplier, an offset of codes that their zero point does not
share, a table whose entries belong to other codes, a point of the recipe that is left out, a format that is folded
although it has no integer form.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.cells.base import GATES, Cell
from rnnqc.cells.fixed_point_numbers import QUANTIZERS, FixedPointQuantizer, is_exact_in_int32, point_of, quantizers_of
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.tables import piecewise_linear_tanh
from rnnqc.cells.types import GRU, LSTM
from rnnqc.cells.vitis_tables import vitis_values
from rnnqc.errors import NotHandled
from rnnqc.formats.format import Format
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import constant_array
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint, fold_fixed_point, needs_fixed_point
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import INT8, apply, before, make_pass

STATIC = (
    *("*.input.mode=static", "*.input.scale=0.125", "*.hidden.mode=static", "*.hidden.scale=0.015625"),
    *("*.acc.bits=8", "*.acc.scale=0.0625", "*.acc.rounding=floor"),
    *("*.cell_state.bits=8", "*.cell_state.scale=0.03125", "*.cell_state.mode=static", "*.cell_state.narrow=false"),
)


RESET_FIRST = RecurrentCase(op="GRU")
LINEAR = RecurrentCase(op="GRU", linear_before_reset=True)
RNN = RecurrentCase(op="RNN")
EACH = pytest.mark.parametrize("case", [RESET_FIRST, LINEAR, RNN], ids=["GRU", "GRU_linear", "RNN"])


def _cell(case: RecurrentCase | None = None, *overrides: str) -> tuple[Cell, dict[str, np.ndarray]]:
    case = case or RecurrentCase()
    static = [o for o in STATIC if case.op == "LSTM" or "cell_state" not in o]
    model = before("fold-scales", case.model(), INT8.with_overrides([*overrides, *static]))
    cell = next(iter(model.cells.values()))
    names = {"W": cell.W, "R": cell.R, "B": cell.B, "P": cell.P, "hidden_bias": cell.hidden_bias}
    held = {k: constant_array(model.initializer(n, model.graph)) for k, n in names.items() if n is not None}
    return cell, {k: a for k, a in held.items() if a is not None}


def _folded(case: RecurrentCase | None = None, *overrides: str) -> tuple[Cell, FoldedFixedPoint]:
    cell, arrays = _cell(case, *overrides)
    return cell, fold_fixed_point(cell, arrays.pop("W"), arrays.pop("R"), arrays)


def test_multipliers_and_bias_are_real() -> None:
    cell, folded = _folded(RecurrentCase(peepholes=True))
    w, r = (np.asarray(cell.points[f"{k}.weight"].scale) for k in ("W", "R"))
    np.testing.assert_allclose(folded.x_multiplier, w * 0.125, rtol=1e-6)
    np.testing.assert_allclose(folded.h_multiplier, r * 0.015625, rtol=1e-6)
    parameters = RecurrentCase(peepholes=True).parameters()
    h = cell.hidden_size
    np.testing.assert_array_equal(folded.B, parameters["B"][0, : 4 * h] + parameters["B"][0, 4 * h :])
    np.testing.assert_array_equal(folded.P, parameters["P"][0])


def test_quantizers() -> None:
    _, folded = _folded(None, "*.kept.bits=16", "*.kept.scale=0.001", "*.kept.rounding=ceil")
    numbers = folded.numbers
    assert numbers.input == FixedPointQuantizer(0.125, 128, 0, 255)
    assert numbers.hidden == FixedPointQuantizer(0.015625, 128, 0, 255)
    assert numbers.quantizer(LSTM, "forget_gate.acc") == FixedPointQuantizer(0.0625, 0, -128, 127, "floor")
    assert numbers.quantizer(LSTM, "cell_state.kept") == FixedPointQuantizer(
        float(np.float32(0.001)), 0, -(2**15), 2**15 - 1, "ceil"
    )
    assert (
        numbers.quantizer(LSTM, "cell_state.added")
        == numbers.quantizer(LSTM, "input_gate.hidden_product")
        == FixedPointQuantizer()
    )
    assert numbers.x_mode == "static"
    assert len(QUANTIZERS) == len(numbers.grid_scale) == 17


def test_signed_codes_are_stored_unsigned() -> None:
    _, folded = _folded(None, "*.hidden.signed=true", "*.hidden.zero_point=0", "*.hidden.bits=5")
    assert folded.numbers.hidden == FixedPointQuantizer(0.015625, 16, 0, 31)


def test_asymmetric_weights() -> None:
    cell, folded = _folded(None, "*.W.weight.symmetric=false", "*.W.weight.signed=false", "*.W.weight.narrow=false")
    held = cell.points["W.weight"].complete
    zero_points = np.broadcast_to(held.all_zero_points, (4 * cell.hidden_size,))
    assert folded.W.dtype == np.int8
    assert folded.W_zero_point is not None
    np.testing.assert_array_equal(folded.W_zero_point, zero_points - 128)
    assert folded.R_zero_point is None
    float_w = RecurrentCase().parameters()["W"][0].T
    real = (folded.W.astype(np.float64) - folded.W_zero_point) * np.asarray(held.scale)
    assert np.abs(real - float_w).max() <= 0.51 * max(held.scale)


def test_wide_weights() -> None:
    _, folded = _folded(None, "*.R.weight.bits=12")
    assert (folded.W.dtype, folded.R.dtype) == (np.int8, np.int16)
    assert np.abs(folded.R).max() == 2047


@pytest.mark.parametrize("kind", ["exact", "piecewise-linear", "vitis"])
def test_tables(kind: str) -> None:
    overrides = (f"*.activation.table={kind}", "*.acc.scale=0.125", "*.cell_state.scale=0.0625")
    _, folded = _folded(None, *overrides)
    codes = np.arange(-128, 128)
    x = codes * 0.125
    expected = {
        "exact": [1 / (1 + np.exp(-x)), np.tanh(x), np.tanh(codes * 0.0625)],
        "piecewise-linear": [
            0.5 + 0.5 * piecewise_linear_tanh(codes, 128) / 16384,
            piecewise_linear_tanh(codes, 64) / 16384,
            piecewise_linear_tanh(codes, 128) / 16384,
        ],
        "vitis": [vitis_values("Sigmoid", 3, 8), vitis_values("Tanh", 3, 8), vitis_values("Tanh", 4, 8)],
    }[kind]
    sigmoid, tanh = (t.values for t in folded.gate_tables)
    np.testing.assert_allclose([sigmoid, tanh, folded.cell_table.values], expected, atol=1e-7)
    assert folded.numbers.gate_table_offset == [0, 0, 0, 256]


def test_values_of_activations_lie_on_their_grid() -> None:
    _, exact = _folded(None, "*.activation.table=exact")
    overrides = ("*.activation.bits=6", "*.activation.scale=0.04", "*.activation.signed=true")
    cell, folded = _folded(RecurrentCase(input_forget=True), *overrides, "*.activation.table=exact")
    encoding = Format(6, True, (float(np.float32(0.04)),), rounding=Rounding.HALF_EVEN)
    for table, unrounded in zip(folded.gate_tables, exact.gate_tables, strict=True):
        np.testing.assert_array_equal(table.values, encoding.dequantize(encoding.quantize(unrounded.values)))
    np.testing.assert_array_equal(
        folded.cell_table.values, encoding.dequantize(encoding.quantize(exact.cell_table.values))
    )
    # The 1 of a coupled gate, too.
    assert folded.numbers.one == float(np.float32(0.04) * np.float32(25))
    assert folded.numbers.attributes(cell)["one"] == folded.numbers.one
    assert folded.numbers.gate_table_offset[2] == folded.numbers.gate_table_offset[0]


def test_every_gate_may_have_its_scale() -> None:
    _, folded = _folded(None, "*.output_gate.acc.scale=0.03125", "*.cell_gate.acc.bits=5")
    assert folded.numbers.gate_table_offset == [0, 256, 0, 512]
    assert [len(t.values) for t in folded.gate_tables] == [256, 256, 32]


def test_large_vitis_tables_are_stored_as_their_steps() -> None:
    names = ("*.acc.bits", "*.cell_state.bits")
    grid = ("*.activation.bits=16", "*.activation.scale=0.000030517578125", "*.activation.signed=true")
    for bits, stored in ((8, False), (16, True)):
        for overrides in (grid, (), ("*.activation.bits=8", "*.activation.scale=0.01")):
            widths = [f"{n}={bits}" for n in names]
            _, folded = _folded(None, "*.activation.table=vitis", *overrides, *widths)
            for table in (*folded.gate_tables, folded.cell_table):
                assert (table.vitis is not None) == (stored and "0.01" not in str(overrides))


REFUSED = [
    ("*.W.weight.bits=none", "W stays float", "W.weight.bits = none"),
    ("*.W.weight.bits=20", "W has 20 bits", "W.weight.bits = 20"),
    ("*.input.mode=dynamic-row", "input has a format without integer form", "8 bits, dynamic-row"),
    ("*.hidden.bits=24", "hidden has a format without integer form", "24 bits, static"),
    ("*.output_gate.acc.bits=none", "output_gate.acc stays float", "output_gate.acc.bits = none"),
    ("*.cell_gate.acc.bits=17", "cell_gate.acc has a format", "17 bits"),
    ("*.cell_state.bits=none", "cell_state stays float", "cell_state.bits = none"),
    ("*.cell_state.bits=24", "cell_state has a format", "24 bits"),
]


@pytest.mark.parametrize(("override", "reason", "found"), REFUSED)
def test_declines(override: str, reason: str, found: str) -> None:
    with pytest.raises(NotHandled) as caught:
        _folded(None, override)
    assert reason in caught.value.reason
    assert found in caught.value.found
    assert "qcdq" in caught.value.action


@pytest.mark.parametrize("override", ["*.acc.scale=0.05", "*.cell_state.scale=0.01"])
def test_vitis_tables_need_powers_of_two(override: str) -> None:
    with pytest.raises(NotHandled, match=r"no Vitis table"):
        _folded(None, override, "*.activation.table=vitis")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("*.kept.bits=none", False),
        ("*.kept.bits=8", True),
        ("*.input_gate.input_product.bits=8", True),
        ("*.accumulator.bits=16", True),
        ("*.activation.scale=0.01", True),
        ("*.activation.table=vitis", True),
        ("*.W.weight.symmetric=false", True),
    ],
)
def test_formats_that_the_other_arithmetic_would_leave_out(override: str, expected: bool) -> None:
    cell, _ = _cell(None, override, "*.kept.scale=0.1", "*_product.scale=0.1")
    assert needs_fixed_point(cell) == expected


def test_the_first_arithmetic_comes_first() -> None:
    """A static recipe that both arithmetics support uses lut, and a refusal names what lut does not support."""
    recipe = INT8.with_overrides(["*.input.mode=static", "*.input.scale=0.125"])
    model = before("fold-scales", RecurrentCase().model(), recipe)
    apply(make_pass("fold-scales", recipe), model)
    assert isinstance(next(iter(model.cells.values())).numbers, LutNumbers)
    recipe = INT8.with_overrides(["*.W.weight.bits=12"])
    model = before("fold-scales", RecurrentCase().model(), recipe)
    (remark,) = apply(make_pass("fold-scales", recipe), model).remarks
    assert "W has 12 bits" in remark.reason


def test_other_activations() -> None:
    """Also activations that the lut arithmetic computes without tables."""
    activations = (Activation("Sigmoid"), Activation("Tanh"), Activation("Softsign"))
    _, folded = _folded(RecurrentCase(activations=activations))
    x = np.arange(-128, 128) * 0.03125
    np.testing.assert_allclose(folded.cell_table.values, x / (1 + np.abs(x)), atol=1e-7)


@pytest.mark.parametrize(
    ("codes", "weight", "depth", "expected"),
    [
        (FixedPointQuantizer(1.0, 128, 0, 255), 128, 131071, True),
        (FixedPointQuantizer(1.0, 128, 0, 255), 128, 131072, False),
        (FixedPointQuantizer(1.0, 0, 0, 255), 255, 33025, True),
        (FixedPointQuantizer(1.0, 0, 0, 255), 255, 33026, False),
        (FixedPointQuantizer(1.0, 0, 0, 256), 1, 1, False),
    ],
)
def test_bounds_of_integer_products(codes: FixedPointQuantizer, weight: int, depth: int, expected: bool) -> None:
    assert is_exact_in_int32(codes, weight, depth) == expected


def test_points_of_the_list_are_points_of_cells() -> None:
    cell, _ = _cell()
    assert set(QUANTIZERS) <= set(cell.points)
    assert {q.split(".")[0] for q in QUANTIZERS} >= set(GATES)


@EACH
def test_every_quantizer_of_gru_and_rnn(case: RecurrentCase) -> None:
    """Each point of the recipe with a scale of its own is found in its place of the lists, and nothing else is."""
    reset = {RESET_FIRST: ["reset.hidden"], LINEAR: ["hidden_gate.reset_product"], RNN: []}[case]
    gates = ["update_gate", "reset_gate", "hidden_gate"][-case.gates :]
    state = ["hidden_state.kept", "hidden_state.added", "hidden_state"] if case.op == "GRU" else []
    names = ["input", "hidden", *(f"{g}.{k}" for k in ("input_product", "hidden_product", "acc") for g in gates)]
    names += [*reset, *state]
    bits = [f"*.forward.{n}.bits=8" for n in names]
    scales = [f"*.forward.{n}.scale={2.0 ** -(k + 1)!r}" for k, n in enumerate(names)]
    cell, folded = _folded(case, *scales, *bits, "*.weight.scale=0.5")
    assert folded.numbers.grid_scale == [2.0 ** -(k + 1) for k in range(len(names))]
    assert [point_of(cell, n) for n in quantizers_of(cell.type)] == names
    attributes = folded.numbers.attributes(cell)
    assert len(attributes["grid_scale"]) == {"GRU": 15, "RNN": 5}[case.op]
    assert attributes.get("linear_before_reset") == {RESET_FIRST: 0, LINEAR: 1}.get(case)
    assert not {"one", "input_forget", "rounded_output"} & set(attributes)
    # The product with R has the scale of what R meets.
    h = case.H
    of_hidden = np.full(case.gates * h, 0.5 * 2.0**-2)
    if case == RESET_FIRST:
        of_hidden[2 * h :] = 0.5 * 2.0 ** -(names.index("reset.hidden") + 1)
        assert folded.numbers.quantizer(GRU, "reset") == FixedPointQuantizer(
            2.0 ** -(names.index("reset.hidden") + 1), 128, 0, 255
        )
    np.testing.assert_array_equal(folded.h_multiplier, of_hidden)
    np.testing.assert_array_equal(folded.x_multiplier, np.full(case.gates * h, 0.5 * 0.5))


@EACH
def test_parameters_of_gru_and_rnn(case: RecurrentCase) -> None:
    _, folded = _folded(case, "*.activation.table=exact")
    given, recurrent = case.parameters()["B"].reshape(2, case.gates, case.H)
    expected = given + recurrent
    if case == LINEAR:
        expected[2] = given[2]
        np.testing.assert_array_equal(folded.hidden_bias, recurrent[2])
    else:
        assert folded.hidden_bias is None
    np.testing.assert_array_equal(folded.B, expected.ravel())
    assert (folded.P, folded.cell_table) == (None, None)
    positions = np.arange(-128, 128) * 0.0625
    tables = {"sigmoid": 1 / (1 + np.exp(-positions)), "tanh": np.tanh(positions)}
    found = [t.values for t in folded.gate_tables]
    for table, expected_table in zip(found, list(tables.values())[-len(found) :], strict=True):
        np.testing.assert_allclose(table, expected_table, atol=1e-7)
    assert folded.numbers.gate_table_offset == ([0, 0, 256] if case.op == "GRU" else [0])


@pytest.mark.parametrize(
    ("case", "override", "reason"),
    [
        (RESET_FIRST, "*.reset.hidden.bits=none", "reset.hidden stays float"),
        (RESET_FIRST, "*.reset.hidden.bits=17", "reset.hidden has a format without integer form"),
        (LINEAR, "*.update_gate.acc.bits=none", "update_gate.acc stays float"),
        (RNN, "*.hidden.bits=24", "hidden has a format without integer form"),
    ],
)
def test_gru_and_rnn_decline(case: RecurrentCase, override: str, reason: str) -> None:
    with pytest.raises(NotHandled) as caught:
        _folded(case, override)
    assert reason in caught.value.reason
    assert "qcdq" in caught.value.action


def test_the_product_after_the_reset_gate_may_stay_exact() -> None:
    _, folded = _folded(LINEAR)
    assert folded.numbers.quantizer(GRU, "reset") == FixedPointQuantizer()


@pytest.mark.parametrize(
    ("case", "override", "expected"),
    [
        (LINEAR, "*.kept.bits=none", False),
        (LINEAR, "*.hidden_gate.reset_product.bits=8", True),
        (RESET_FIRST, "*.hidden_state.bits=8", True),
        (RESET_FIRST, "*.hidden_state.added.bits=8", True),
        (RESET_FIRST, "*.accumulator.bits=16", True),
        (RNN, "*.input_product.bits=8", True),
        (RNN, "*.activation.table=vitis", True),
        (RNN, "*.hidden.rounded_output=true", False),
        (RNN, "*.R.weight.symmetric=false", True),
    ],
)
def test_formats_of_gru_and_rnn_that_the_other_arithmetic_would_leave_out(
    case: RecurrentCase, override: str, expected: bool
) -> None:
    scales = ["*.kept.scale=0.1", "*.added.scale=0.1", "*_product.scale=0.1", "*.hidden_state.scale=0.1"]
    known = [s for s in scales if case.op == "GRU" or "product" in s]
    cell, _ = _cell(case, override, *known)
    assert needs_fixed_point(cell) == expected


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["Relu", "Elu", "Softsign", "HardSigmoid"])
def test_vitis_tables_are_those_of_sigmoid_and_tanh(name: str) -> None:
    """Other activations have exact tables, in a format of their own range."""
    case = RecurrentCase(op="RNN", activations=(Activation(name),), gain=3.0)
    lowered = rnnqc.lower(case.model(), "pow2-int16", calibration=[case.feeds()])
    (cell,) = lowered.model.cells.values()
    point = cell.points["hidden_gate.activation"]
    largest = np.abs(case.expected(case.feeds())["Y"]).max()
    assert cell.form == "fused"
    assert point.scale[0] * 2**15 > largest, "it holds the largest value that was seen"
    case = case.replace(activations=(Activation("Tanh"),))
    lowered = rnnqc.lower(case.model(), "pow2-int16", calibration=[case.feeds()])
    (cell,) = lowered.model.cells.values()
    assert cell.points["hidden_gate.activation"].scale == (2.0**-15,)
