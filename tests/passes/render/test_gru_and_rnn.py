"""Passes on GRU and RNN, in the cases that differ from LSTM.

What these would catch: a bias of the reset product that is folded into the other one, a scale of `r * h` used for the
hidden codes, an unbounded state on a fixed scale, packed matrices with a column too few.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.attributes import lut_defaults, without_defaults
from rnnqc.cells.base import Cell
from rnnqc.cells.fused_nodes import PLACES, fused_outputs, input_names
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.statistics import Statistics
from rnnqc.errors import UsageError
from rnnqc.ir import Model, constant_array, graph_info, info
from rnnqc.passes import DecomposeLstm, FuseQuantLstmCell
from rnnqc.passes.fold.fold_lut import FoldedLut, fold_lut
from rnnqc.passes.formats.formats import resolve_formats
from rnnqc.passes.formats.quantized_parameters import QuantizedParameters, quantize_parameters
from rnnqc.passes.formats.quantized_parameters import weight_codes as weight_codes_of
from rnnqc.reference.codes import weight_codes
from tests.generate.float_layer import Activation
from tests.generate.layer_specs import Op
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import INT8, apply, before, make_pass, nodes_of
from tests.runs.sessions import Array, assert_close, plain_session, run

RESET_FIRST = RecurrentCase(op="GRU")
LINEAR = RecurrentCase(op="GRU", linear_before_reset=True)
RNN = RecurrentCase(op="RNN")
EACH = pytest.mark.parametrize("case", [RESET_FIRST, LINEAR, RNN], ids=["GRU", "GRU_linear", "RNN"])


def _cell(model: Model) -> Cell:
    (cell,) = model.cells.values()
    return cell


def _arrays(model: Model, cell: Cell) -> dict[str, Array]:
    held = graph_info(model.graph).initializers
    names = {"W": cell.W, "R": cell.R, "B": cell.B, "hidden_bias": cell.hidden_bias}
    found = {k: constant_array(held[n]) for k, n in names.items() if n is not None}
    return {k: a for k, a in found.items() if a is not None}


def _biases(case: RecurrentCase) -> Array:
    """Wb and Rb, `[2,G,H]`."""
    return case.parameters()["B"].reshape(2, case.gates, case.H)


@EACH
def test_decomposed(case: RecurrentCase) -> None:
    model = before("decompose-lstm", case.model())
    apply(DecomposeLstm(), model, [case.feeds()])
    cell = _cell(model)
    assert (cell.op, cell.type, cell.linear_before_reset) == (case.op, CELL_TYPES[case.op], case.linear_before_reset)
    assert (cell.initial_c, cell.y_c, cell.P) == (None, None, None)
    held, (given, recurrent) = _arrays(model, cell), _biases(case)
    np.testing.assert_array_equal(held["W"], case.parameters()["W"][0].T)
    np.testing.assert_array_equal(held["R"], case.parameters()["R"][0].T)
    expected = given + recurrent
    if case.linear_before_reset:
        expected[2] = given[2]
        np.testing.assert_array_equal(held["hidden_bias"], recurrent[2])
    assert ("hidden_bias" in held) == case.linear_before_reset
    np.testing.assert_array_equal(held["B"], expected.ravel())
    assert_close(case.expected(case.feeds()), run(plain_session(model.proto), case.feeds()), 1e-5, case.op)


@EACH
def test_points_of_int8(case: RecurrentCase) -> None:
    cell = _cell(before("fold-scales", case.model()))
    assert list(cell.points) == [p.name for p in cell.type.points]
    quantized = {k for k, p in cell.points.items() if not p.is_float}
    gates = {f"{g}.{what}" for g in cell.type.gates for what in ("acc", "activation")}
    reset = {"reset.hidden"} if case is RESET_FIRST else set()
    assert quantized == {"input", "hidden", "W.weight", "R.weight"} | gates | reset
    assert cell.points["hidden"].scale == (float(np.float32(1 / 127)),), "bounded by tanh"


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_states_without_a_bound_have_a_scale_for_each_row(op: Op, linear: bool) -> None:
    activations = (Activation("Sigmoid"), Activation("Relu"))[-CELL_TYPES[op].gate_activations[-1] - 1 :]
    case = RecurrentCase(op=op, linear_before_reset=linear and op == "GRU", activations=activations)
    points = _cell(before("fold-scales", case.model())).points
    assert points["hidden"].mode == "dynamic-row"
    if case.op == "GRU" and not linear:
        assert points["reset.hidden"].mode == "dynamic-row"


def test_a_gate_beyond_one_unbounds_the_state() -> None:
    """z outside 0 .. 1 does not keep the state between the candidate and what it was."""
    case = LINEAR.replace(activations=(Activation("ScaledTanh", 2.0, 1.0), Activation("Tanh")))
    assert _cell(before("fold-scales", case.model())).points["hidden"].mode == "dynamic-row"


def test_saturating_accumulators() -> None:
    recipe = INT8.with_overrides(["*.accumulator.bits=16", "*.input.mode=static", "*.input.scale=0.1"])
    for case in (LINEAR, RESET_FIRST, RNN):
        assert _cell(before("fold-scales", case.model(), recipe)).points["accumulator"].bits == 16


def _folded(case: RecurrentCase, *overrides: str) -> tuple[Cell, FoldedLut]:
    model = before("fold-scales", case.model(), INT8.with_overrides(overrides))
    cell = _cell(model)
    held = _arrays(model, cell)
    return cell, fold_lut(cell, held.pop("W"), held)


@EACH
def test_multipliers_and_biases_by_hand(case: RecurrentCase) -> None:
    overrides = ["*.input.mode=static", "*.input.scale=0.125"]
    if case is RESET_FIRST:
        overrides += ["*.reset.hidden.mode=static", "*.reset.hidden.scale=0.25"]
    cell, folded = _folded(case, *overrides)
    steps = np.array([16 / 4096, 16 / 4096, 8 / 4096])[-case.gates :]
    s_g = np.repeat(steps, case.H)
    s_w, s_r = (np.asarray(cell.points[f"{k}.weight"].complete.scale) for k in ("W", "R"))
    s_h = np.full(case.gates * case.H, cell.points["hidden"].scale[0])
    if case is RESET_FIRST:
        s_h[2 * case.H :] = 0.25
    np.testing.assert_allclose(folded.x_multiplier, s_w * 0.125 / s_g, rtol=1e-6)
    np.testing.assert_allclose(folded.h_multiplier, s_r * s_h / s_g, rtol=1e-6)
    given, recurrent = _biases(case).astype(np.float64)
    bias = given + recurrent
    if case is LINEAR:
        bias[2] = given[2]
        assert folded.hidden_bias is not None
        np.testing.assert_allclose(folded.hidden_bias, recurrent[2] / (8 / 4096), rtol=1e-6)
    else:
        assert folded.hidden_bias is None
    np.testing.assert_allclose(folded.B, bias.ravel() / s_g + 4096.5, rtol=1e-6)
    assert (folded.P, folded.cell_table) == (None, None)


def test_attributes_of_the_operators() -> None:
    """Nodes have the attributes with other than default values."""
    found = {}
    for name, case in (("reset first", RESET_FIRST), ("linear", LINEAR), ("rnn", RNN)):
        cell, folded = _folded(case)
        whole = folded.numbers.attributes(cell)
        found[name] = without_defaults(cell.type, whole)
        assert {**lut_defaults(cell.type), **whole}.keys() == {**lut_defaults(cell.type), **found[name]}.keys()
    assert set(found["rnn"]) == {"hidden_size", "h_scale", "gate_min", "gate_max"}
    assert set(found["linear"]) == {*found["rnn"], "gate_table_offset", "linear_before_reset"}
    assert set(found["reset first"]) == {*found["rnn"], "gate_table_offset", "reset_scale"}
    assert found["linear"]["linear_before_reset"] == 1
    assert found["reset first"]["reset_scale"] == float(np.float32(1 / 127))


def test_a_zero_with_another_sign_is_no_default() -> None:
    whole = {"gate_alpha": [0.0, 0.0, 0.0], "gate_beta": [0.0, -0.0, 0.0]}
    assert without_defaults(CELL_TYPES["GRU"], whole) == {"gate_beta": [0.0, -0.0, 0.0]}


def test_different_formats_of_both_hidden_codes_are_refused() -> None:
    model = before("fold-scales", RESET_FIRST.model(), INT8.with_overrides(["*.reset.hidden.bits=16"]))
    (remark,) = make_pass("fold-scales")(model).remarks
    assert remark.reason == "quantized, not integer: the hidden state and r * h have different formats."
    assert "reset.hidden: 16 bits" in remark.found
    assert _cell(model).form == "qcdq"


@pytest.mark.few(1)
@pytest.mark.parametrize("lens", [None, (3, 5)])
@EACH
def test_fused_nodes(case: RecurrentCase, lens: tuple[int, int] | None) -> None:
    """Inputs stand where the operator has them; the place of the cell's table is that of hidden_bias."""
    model = before("fuse-quant-lstm-cell", case.replace(lens=lens, initial_h=True).model())
    apply(FuseQuantLstmCell(), model)
    cell = _cell(model)
    (node,) = nodes_of(model, f"Quant{case.op}Cell")
    names = input_names(cell.type)
    places = node.attrs.get(PLACES) or range(len(node.inputs))
    given = {names[p]: v.name for p, v in zip(places, node.inputs, strict=True)}
    expected = {
        **cell.operands.as_dict(),
        "X": cell.x,
        "sequence_lens": cell.sequence_lens,
        "initial_h": cell.initial_h,
    }
    assert given == {k: v for k, v in expected.items() if v is not None}
    assert input_names(cell.type)[7] == "hidden_bias"
    assert ("hidden_bias" in given) == case.linear_before_reset
    assert fused_outputs(cell.type) == ("Y", "Y_h", "Y_codes")
    assert [bool(v.name) for v in node.outputs] == [True, True]


def test_each_configuration_has_a_name() -> None:
    case = RecurrentCase(op="GRU", direction="bidirectional")
    model = before("fuse-quant-lstm-cell", case.model())
    apply(FuseQuantLstmCell(), model)
    nodes = nodes_of(model, "QuantGRUCell")
    assert len({n.op for n in nodes}) == len({n.attrs["configuration"] for n in nodes}) == 2
    assert {info(n).overload for n in nodes} == {""}


@pytest.mark.few(2)
@pytest.mark.parametrize("groups", [0, 32])
@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_packed_weights_with_an_odd_number_of_columns(op: Op, groups: int) -> None:
    case = RecurrentCase(op=op, I=70, H=35)
    overrides = ["*.weight.bits=4"] + ([f"*.weight.group_size={groups}"] if groups else [])
    model = before("fuse-quant-lstm-cell", case.model(), INT8.with_overrides(overrides))
    columns = case.gates * 35
    assert columns % 2
    expected = {k: _arrays(model, _cell(model))[k] for k in ("W", "R")}
    apply(FuseQuantLstmCell(), model)
    cell = _cell(model)
    held = graph_info(model.graph).initializers
    for key, rows in (("W", 70), ("R", 35)):
        stored = constant_array(held[getattr(cell.operands, key)])
        assert stored is not None
        assert (stored.dtype, stored.shape) == (np.uint8, (rows, (columns + 1) // 2))
        multiplier = cell.operands.as_dict().get(f"{key}_group_multiplier")
        factors = constant_array(held[multiplier]) if multiplier else None
        assert (factors is not None) == bool(groups)
        np.testing.assert_array_equal(weight_codes(stored, factors, groups, columns), expected[key])
        assert (stored[:, -1] >> 4 == 8).all(), "the nibble that does not count is code 0"


@EACH
def test_statistics_of_the_points(case: RecurrentCase) -> None:
    statistics = calibrate(case.model(), [case.feeds()])
    found = {k.removeprefix("the_lstm.forward.") for k in statistics.points}
    reset = {RESET_FIRST: {"reset.hidden"}, LINEAR: {"hidden_gate.reset_product"}, RNN: set()}[case]
    assert {"input", "hidden"} | reset <= found
    assert not ({"reset.hidden", "hidden_gate.reset_product"} - reset) & found
    assert ("hidden_state" in found) == (case.op == "GRU")


def _calibrated(
    case: RecurrentCase, *overrides: str
) -> tuple[QuantizedCell, dict[str, Array], QuantizedParameters, Statistics]:
    """The quantized parameters of a case, on inputs with a mean that differs from 0."""
    feeds = [{"X": f["X"] + 0.7} | {k: v for k, v in f.items() if k != "X"} for f in (case.feeds(), case.feeds())]
    statistics = calibrate(case.model(), feeds)
    model = before("insert-qcdq", case.model())
    cell, arrays = _cell(model), _arrays(model, _cell(model))
    recipe = INT8.with_overrides(overrides)
    points = resolve_formats([cell], recipe, {cell.name: arrays}, statistics)[cell.name]
    assert points is not None
    quantized = QuantizedCell.of(cell, points)
    return quantized, arrays, quantize_parameters(quantized, arrays, statistics), statistics


@pytest.mark.parametrize("linear", [False, True])
def test_mean_errors_are_undone_in_the_bias_that_meets_them(linear: bool) -> None:
    """With linear_before_reset that of the hidden gate's R is the inner bias; without, R meets `r * h`."""
    case = RecurrentCase(op="GRU", linear_before_reset=linear, T=9, H=6, I=5)
    options = ("*.weight.bias_correction=true", "*.weight.compensation=false", "*.weight.bits=3")
    cell, arrays, made, statistics = _calibrated(case, *options)
    h = cell.hidden_size

    def mean_error(key: str, point: str, columns: slice) -> Array:
        error = cell.points[f"{key}.weight"].complete.dequantize(made.codes[key]) - arrays[key]
        mean = statistics.points[f"{cell.name}.{point}"].channel_mean
        assert mean is not None
        return np.asarray(mean @ error[:, columns])

    whole, gates, candidate = slice(None), slice(0, 2 * h), slice(2 * h, None)
    moved = made.biases["B"] - arrays["B"]
    expected = -mean_error("W", "input", whole)
    expected[gates] -= mean_error("R", "hidden", gates)
    if linear:
        inner = made.biases["hidden_bias"] - arrays["hidden_bias"]
        np.testing.assert_allclose(inner, -mean_error("R", "hidden", candidate), atol=1e-6)
    else:
        expected[candidate] -= mean_error("R", "reset.hidden", candidate)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(moved, expected, atol=1e-6)


def test_the_candidate_is_compensated_for_what_it_meets() -> None:
    """Its columns of R are chosen on the moments of `r * h`, those of the gates on those of h."""
    case = RecurrentCase(op="GRU", T=30, B=3, H=12, I=5, seed=4)
    cell, arrays, made, statistics = _calibrated(case, "*.weight.bits=3")
    point, edge = cell.points["R.weight"], 2 * cell.hidden_size
    moments = {p: statistics.points[f"{cell.name}.{p}"].shrunk_moment for p in ("hidden", "reset.hidden")}
    of_hidden, of_reset = (weight_codes_of(point, arrays["R"], moments[p]) for p in ("hidden", "reset.hidden"))
    assert (of_hidden[:, edge:] != of_reset[:, edge:]).any(), "the case cannot tell them apart"
    np.testing.assert_array_equal(made.codes["R"], np.concatenate([of_hidden[:, :edge], of_reset[:, edge:]], axis=1))


def test_codes_of_biases() -> None:
    """Both biases of the hidden gate lie on the grid of the point `bias`."""
    _, arrays, made, _ = _calibrated(LINEAR, "*.bias.bits=6", "*.bias.scale=0.125")
    for key, bias in made.biases.items():
        np.testing.assert_array_equal(bias * 8, np.rint(bias * 8), err_msg=key)
        assert np.abs(bias - np.clip(arrays[key], -4, 3.875)).max() <= 0.0625, key
    assert set(made.biases) == {"B", "hidden_bias"}


@pytest.mark.parametrize(
    ("op", "override"),
    [
        ("GRU", "*.input_gate.acc.bits=8"),
        ("GRU", "*.cell_state.bits=8"),
        ("LSTM", "*.reset_gate.acc.bits=8"),
        ("RNN", "*.update_gate.acc.bits=8"),
    ],
)
def test_overrides_of_points_that_another_type_has(op: Op, override: str) -> None:
    with pytest.raises(UsageError, match="No quantization point matches"):
        rnnqc.lower(RecurrentCase(op=op).model(), overrides=[override])
    both = stacked_model([RecurrentCase(op="LSTM", I=4), RecurrentCase(op="GRU", I=4)])
    if op != "RNN":
        rnnqc.lower(both, overrides=[override])


def test_what_one_form_leaves_float_can_be_lowered_later() -> None:
    """The QONNX form has no cell of a GRU; the file that it makes may be lowered to other forms."""
    cases = [RecurrentCase(op="LSTM", I=4), RecurrentCase(op="GRU", I=4)]
    written = rnnqc.lower(stacked_model(cases), "brevitas-int8", form="qonnx", calibration=[cases[0].feeds()])
    assert {e.op: e.status for e in written.report.entries} == {"LSTM": "lowered", "GRU": "float"}
    again = rnnqc.lower(written.proto, "int8").report.entries
    assert {e.op: e.status for e in again}["GRU"] == "lowered"
