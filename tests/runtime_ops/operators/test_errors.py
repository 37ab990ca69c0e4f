"""Models and values the native operator refuses: a message that names node, input or attribute; never a crash."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnnqc import runtime_ops
from tests.native.isa_process import run_with_isa
from tests.native.quant_lstm_cases import Case, native_session, run_native, table_case
from tests.native.refusals import NAME, check_refused_at_creation, check_refused_at_run, refused
from tests.subjects.node_changes import Change, all_of, drop_attribute, drop_input, set_attribute, set_input


def _rows(case: Case) -> None:
    """int8 rows of an embedding, with their scales."""
    case.attributes["x_mode"] = "row_codes"
    case.inputs |= {"X": np.zeros((5, 2, 9), np.int8), "X_scale": np.ones((5, 2, 1), np.float32)}


# A regular expression that the message has to contain, and what makes the case wrong.
REFUSED_AT_CREATION: list[tuple[str, Change]] = [
    ("attribute hidden_size is missing", drop_attribute("hidden_size")),
    ("attribute gate_min is missing", drop_attribute("gate_min")),
    ("attribute gate_max is missing", drop_attribute("gate_max")),
    ("hidden_size is 0, expected 1 .. 65536", set_attribute(hidden_size=0)),
    ("hidden_size is -3", set_attribute(hidden_size=-3)),
    ("hidden_size has another type than the expected int", set_attribute(hidden_size=2.5)),
    ("h_scale has another type than the expected float", set_attribute(h_scale=1)),
    ("direction has another type than the expected string", set_attribute(direction=1)),
    (
        r"has version 7 .* up to version 6\. Use a newer library, or run the file without",
        set_attribute(operator_version=7),
    ),
    ("has version 0 .* from version 1 on. Lower the float model again", set_attribute(operator_version=0)),
    ("gate_min has 0 elements, expected 4", set_attribute(gate_min=0.5)),
    ("gate_kinds has another type than the expected string", set_attribute(gate_kinds=["table"] * 4)),
    (
        r'direction is "bidirectional"; .* knows forward, reverse\. Use a newer',
        set_attribute(direction="bidirectional"),
    ),
    (r'x_mode is "int16"; .* Use a newer rnnqc library', set_attribute(x_mode="int16")),
    (r'h_mode is "codes"; .* Use a newer rnnqc library', set_attribute(h_mode="codes")),
    (r'gate_kinds\[2\] is "Elu"; .* Use a newer', set_attribute(gate_kinds="table,table,Elu,table")),
    ("expected four kinds", set_attribute(gate_kinds="table,table,table")),
    (r'output_kind is "Sin"; .* Use a newer', set_attribute(output_kind="Sin")),
    ("gate_max has 3 elements, expected 4", set_attribute(gate_max=[1.0] * 3)),
    (r"gate_max\[1\] is -1, expected at least gate_min\[1\]", set_attribute(gate_max=[1.0, -1.0, 1.0, 1.0])),
    (r"gate_min\[0\] is -1, expected 0 or more for kind table", set_attribute(gate_min=[-1.0, 0.0, 0.0, 0.0])),
    (r"gate_min\[3\] is nan", set_attribute(gate_min=[0.0, 0.0, 0.0, float("nan")])),
    (r"gate_max\[0\] is inf, expected less than 2\^23", set_attribute(gate_max=[float("inf"), 1.0, 1.0, 1.0])),
    (r"gate_table_offset\[3\] is -1", set_attribute(gate_table_offset=[0, 0, 0, -1])),
    ("gate_table has shape .16384., expected at least 16385", set_attribute(gate_table_offset=[0, 0, 0, 8193])),
    (
        r"gate_index_size\[0\] is 3, expected an even number",
        set_attribute(gate_kinds="relu_table,table,table,table", gate_index_size=[3, 0, 0, 0]),
    ),
    ("gate_alpha.* expected a finite number", set_attribute(gate_alpha=[float("inf"), 0.0, 0.0, 0.0])),
    ("x_scale is 0, expected a finite number above 0", set_attribute(x_mode="static")),
    ("h_scale is 0, expected a finite number above 0", set_attribute(h_scale=0.0)),
    ("h_bound is -1, expected a finite number, 0 or more", set_attribute(h_bound=-1.0)),
    ("h_bound is inf, expected a finite number", set_attribute(h_bound=float("inf"))),
    ("h_bound is nan, expected a finite number", set_attribute(h_bound=float("nan"))),
    ("h_bound has another type than the expected float", set_attribute(h_bound=1)),
    ("h_scale is nan", set_attribute(h_scale=float("nan"))),
    ("x_zero_point is 256, expected a code of 8 bits", set_attribute(x_mode="static", x_scale=0.1, x_zero_point=256)),
    ("h_zero_point is -1, expected a code of 8 bits", set_attribute(h_zero_point=-1)),
    ("cell_scale is -1, expected", set_attribute(cell_scale=-1.0)),
    ("cell_max is 1.5, expected a whole number", set_attribute(cell_max=1.5)),
    ("cell_max is 0, expected a whole number", set_attribute(cell_max=0.0)),
    ("cell_max is .*, expected a whole number from 1 to 2.60", set_attribute(cell_max=2.0**61)),
    ("cell_table has shape .65537., expected an even number", set_input("cell_table", np.zeros(65537, np.float32))),
    ("cell_scale is .*, expected 0 .a float cell. for output_kind relu_table", set_attribute(output_kind="relu_table")),
    ("input_forget is 2, expected 0 or 1", set_attribute(input_forget=2)),
    ("input X has element type uint8, expected float", set_input("X", np.zeros((5, 2, 9), np.uint8))),
    ("input X has element type float, expected uint8 for this x_mode", set_attribute(x_mode="codes")),
    ("input X has element type float, expected int8 for this x_mode", set_attribute(x_mode="row_codes")),
    (
        'input X_scale is missing, but attribute x_mode is "row_codes"',
        all_of(set_attribute(x_mode="row_codes"), set_input("X", np.zeros((5, 2, 9), np.int8))),
    ),
    (
        'input X_scale is present, but attribute x_mode is not "row_codes"',
        set_input("X_scale", np.ones((5, 2, 1), np.float32)),
    ),
    (
        r"input X_scale has shape \[.*, 9\], expected \[T, B, 1\]",
        all_of(_rows, set_input("X_scale", np.ones((5, 2, 9), np.float32))),
    ),
    ("input X2 is missing, but a part of X behind it is present", set_input("X3", np.zeros((5, 2, 1), np.float32))),
    (
        'input X2 is present, but attribute x_mode is not "dynamic_row" or "static"',
        all_of(_rows, set_input("X2", np.zeros((5, 2, 1), np.float32))),
    ),
    (
        'input X_factor is present, but attribute x_mode is not "dynamic_row" or "static"',
        all_of(_rows, set_input("X_factor", np.ones(9, np.float32))),
    ),
    (r"input X_factor has shape \[8\], expected \[I\] = \[9\]", set_input("X_factor", np.ones(8, np.float32))),
    ("input X2 has element type uint8, expected float", set_input("X2", np.zeros((5, 2, 1), np.uint8))),
    (r"input X2 has shape \[.*\], expected \[T, B, I2\]", set_input("X2", np.zeros((5, 2), np.float32))),
    ("x_bits is 16, expected 8 for x_mode row_codes", all_of(_rows, set_attribute(x_bits=16))),
    ("input X has element type double, expected float", set_input("X", np.zeros((5, 2, 9)))),
    (
        r"input W has element type int16, expected int8 or uint8 \(packed weights\)",
        set_input("W", np.zeros((9, 84), np.int16)),
    ),
    (r"input W has shape \[9, 84\], expected \[I, 2H\] = \[9, 42\]", set_input("W", np.zeros((9, 84), np.uint8))),
    (r"input R has shape \[21, 84\], expected \[H, 2H\] = \[21, 42\]", set_input("R", np.zeros((21, 84), np.uint8))),
    ("input B has element type double", set_input("B", np.zeros(84))),
    ("input sequence_lens has element type int64, expected int32", set_input("sequence_lens", np.zeros(2, np.int64))),
    (r"input X has shape \[.*\], expected \[T, B, I\]", set_input("X", np.zeros((5, 9), np.float32))),
    (r"input W has shape \[9, 80\], expected \[I, 4H\] = \[9, 84\]", set_input("W", np.zeros((9, 80), np.int8))),
    (r"input W has shape \[8, 84\], expected \[I, 4H\] = \[9, 84\]", set_input("W", np.zeros((8, 84), np.int8))),
    (r"input R has shape \[84, 21\], expected \[H, 4H\] = \[21, 84\]", set_input("R", np.zeros((84, 21), np.int8))),
    (r"input R has shape \[1764\], expected", set_input("R", np.zeros(1764, np.int8))),
    (r"input x_multiplier has shape \[83\], expected", set_input("x_multiplier", np.zeros(83, np.float32))),
    (r"input h_multiplier has shape \[1\], expected", set_input("h_multiplier", np.zeros(1, np.float32))),
    (r"input B has shape \[168\], expected \[4H\] = \[84\]", set_input("B", np.zeros(168, np.float32))),
    (r"input P has shape \[84\], expected \[3H\] = \[63\]", set_input("P", np.zeros(84, np.float32))),
    (r"input gate_table has shape \[16384, 1\]", set_input("gate_table", np.zeros((16384, 1), np.float32))),
    (r"input initial_h has shape \[\?, 20\], expected", set_input("initial_h", np.zeros((2, 20), np.float32))),
    ("input gate_table is missing", drop_input("gate_table")),
    ("input cell_table is missing", drop_input("cell_table")),
    ("input 12 W_zero_point is reserved .* newer rnnqc library", set_input("W_zero_point", np.zeros(84, np.int8))),
    ("input 13 R_zero_point is reserved", set_input("R_zero_point", np.zeros(84, np.int8))),
    (
        "input R_group_multiplier has element type float, expected uint8",
        set_input("R_group_multiplier", np.ones((1, 84), np.float32)),
    ),
    ("W_group_multiplier is missing, but attribute w_group_size is 32", set_attribute(w_group_size=32)),
    (
        "W_group_multiplier is present, but attribute w_group_size is 0; expected both",
        set_input("W_group_multiplier", np.ones((1, 84), np.uint8)),
    ),
    (
        r"R_group_multiplier is present, but R is int8; expected packed weights \(uint8\)",
        all_of(set_input("R_group_multiplier", np.ones((1, 84), np.uint8)), set_attribute(r_group_size=32)),
    ),
    ("w_group_size is 31, expected a multiple of 32 up to 65536", set_attribute(w_group_size=31)),
    ("r_group_size is -32, expected a multiple of 32 up to 65536", set_attribute(r_group_size=-32)),
    ("r_group_size is 65568, expected a multiple of 32 up to 65536", set_attribute(r_group_size=65568)),
    ("output Y_codes exists for h_mode", set_attribute(h_mode="dynamic_row")),
    (
        r"input W has shape \[65025, 84\], expected an input size of 1 .. 65024 for this x_mode",
        all_of(set_input("W", np.zeros((65025, 84), np.int8)), set_input("X", np.zeros((1, 1, 65025), np.float32))),
    ),
    (
        r"input W has shape \[65537, 84\], expected an input size of 1 .. 65536 for this x_mode",
        all_of(
            set_attribute(x_mode="static", x_scale=0.1),
            set_input("W", np.zeros((65537, 84), np.int8)),
            set_input("X", np.zeros((1, 1, 65537), np.float32)),
        ),
    ),
    (
        r"input W has shape \[0, 84\], expected an input size of 1",
        all_of(set_input("W", np.zeros((0, 84), np.int8)), set_input("X", np.zeros((5, 2, 0), np.float32))),
    ),
]


def packed(key: str, group_size: int, numbers: int, multiplier: int) -> Change:
    """W or R of packed int4 numbers that are all the same, in groups that all have the same multiplier."""

    def change(case: Case) -> None:
        rows, columns = case.inputs[key].shape
        case.inputs[key] = np.full((rows, columns // 2), (numbers + 8) * 17, np.uint8)
        case.inputs[f"{key}_group_multiplier"] = np.full((1, columns), multiplier, np.uint8)
        case.attributes[f"{key.lower()}_group_size"] = group_size

    return change


def one_value(name: str, index: tuple[int, ...], value: Any) -> Change:
    return lambda case: case.inputs[name].__setitem__(index, value)


def wider(key: str, more: int) -> Change:
    """W or R with `more` additional bytes per row."""
    return lambda case: case.inputs.update({key: np.pad(case.inputs[key], ((0, 0), (0, more)))})


def few_bits(key: str, bits: int, row: int) -> Change:
    """W or R packed into so many bytes a row, and the attribute that says the bits."""

    def change(case: Case) -> None:
        case.inputs[key] = np.zeros((len(case.inputs[key]), row), np.uint8)
        case.attributes[f"{key.lower()}_bits"] = bits

    return change


REFUSED_INT4: list[tuple[str, Change]] = [
    (
        r"attribute w_wide_columns is -1, expected 0, or more with numbers in groups\. Other values may need a newer",
        all_of(packed("W", 32, 1, 1), set_attribute(w_wide_columns=-1)),
    ),
    (
        r"attribute r_wide_columns is 1, expected 0, or more with numbers in groups",
        set_attribute(r_wide_columns=1),
    ),
    (
        r"input R has shape \[21, 42\], expected \[H, 2H \+ 2\] = \[21, 44\]",
        all_of(packed("R", 32, 1, 1), set_attribute(r_wide_columns=3)),
    ),
    (
        r"input R: 0 columns have group multipliers of 0 alone, expected 3 wide columns",
        all_of(packed("R", 32, 1, 1), wider("R", 2), set_attribute(r_wide_columns=3)),
    ),
    (
        r"input R has shape \[21, 63\], expected \[H, ceil\(4H / 2\) \+ ceil\(4H / 4\) \+ 1\] = \[21, 64\]",
        all_of(packed("R", 32, 1, 0), few_bits("R", 6, 63), set_attribute(r_wide_columns=2)),
    ),
    (
        r"input W: the weight at \[3, 1\], 832 times 1, is outside -128 \.\. 127",
        all_of(
            *(packed("W", 32, 1, 1), one_value("W_group_multiplier", (0, 1), 0), few_bits("W", 6, 64)),
            *(one_value("W", (3, 63), 15), one_value("W", (3, 1), 0), set_attribute(w_wide_columns=1)),
        ),
    ),
    (
        r"input R: the group multiplier at \[0, 2\] is 0, expected 1 \.\. 18",
        all_of(packed("R", 32, 1, 1), one_value("R_group_multiplier", (0, 2), 0)),
    ),
    (
        r"attribute w_codebook is 2, expected 0, or 1 with numbers of 4 bits in groups\. Other values may need a newer",
        all_of(packed("W", 32, 1, 1), set_attribute(w_codebook=2)),
    ),
    (r"attribute r_codebook is 1, expected 0, or 1 with numbers of 4 bits in groups", set_attribute(r_codebook=1)),
    (
        r"attribute w_codebook is 1, expected 0, or 1 with numbers of 4 bits in groups",
        all_of(packed("W", 32, 1, 1), few_bits("W", 5, 53), set_attribute(w_codebook=1)),
    ),
    (
        r"input R: the group multiplier at \[0, 83\] is 3 of set 5, expected 1 \.\. 18 of sets 0 \.\. 4",
        all_of(packed("R", 32, 1, 1), one_value("R_group_multiplier", (0, 83), 163), set_attribute(r_codebook=1)),
    ),
    (
        r"input R: the group multiplier at \[0, 2\] is 0 of set 1, expected 1 \.\. 18 of sets 0 \.\. 4",
        all_of(packed("R", 32, 1, 1), one_value("R_group_multiplier", (0, 2), 32), set_attribute(r_codebook=1)),
    ),
    (
        r"input W: the weight at \[0, 0\], 15 times 9, is outside -128 \.\. 127",
        all_of(packed("W", 32, 7, 32 + 9), set_attribute(w_codebook=1)),
    ),
    (
        r"attribute w_bits is 7, expected 4, 5 or 6\. Other values may need a newer rnnqc library",
        few_bits("W", 7, 74),
    ),
    (r"attribute r_bits is 3, expected 4, 5 or 6", few_bits("R", 3, 42)),
    (r"attribute r_bits is 6, but R is not packed; expected packed weights \(uint8\)", set_attribute(r_bits=6)),
    (
        r"input W has shape \[9, 42\], expected \[I, ceil\(4H / 2\) \+ ceil\(4H / 4\)\] = \[9, 63\]",
        few_bits("W", 6, 42),
    ),
    (
        r"expected \[H, ceil\(4H / 2\) \+ ceil\(4H / 8\)\] = \[21, 53\]",
        few_bits("R", 5, 63),
    ),
    (
        r"input W_group_multiplier has shape \[2, 84\], expected \[G, 4H\] = \[1, 84\]",
        all_of(packed("W", 32, 1, 1), set_input("W_group_multiplier", np.ones((2, 84), np.uint8))),
    ),
    (
        r"input R_group_multiplier has shape \[1, 42\], expected \[G, 4H\] = \[1, 84\]",
        all_of(packed("R", 32, 1, 1), set_input("R_group_multiplier", np.ones((1, 42), np.uint8))),
    ),
    (
        r"input R: the group multiplier at \[0, 83\] is 0, expected 1 .. 18",
        all_of(packed("R", 32, 1, 1), one_value("R_group_multiplier", (0, 83), 0)),
    ),
    (
        r"input W: the group multiplier at \[0, 5\] is 19, expected 1 .. 18",
        all_of(packed("W", 64, 1, 18), one_value("W_group_multiplier", (0, 5), 19)),
    ),
    (
        r"input W: the weight at \[0, 0\], -8 times 17, is outside -128 .. 127",
        packed("W", 32, -8, 17),
    ),
    (
        r"input R: the weight at \[20, 43\], -8 times 18, is outside -128 .. 127",
        all_of(packed("R", 32, 1, 18), one_value("R", (20, 1), 0x09)),
    ),
]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("message", "change"), REFUSED_INT4, ids=[m for m, _ in REFUSED_INT4])
def test_packed_weights_that_are_refused(message: str, change: Change, constant: bool) -> None:
    case = table_case()
    change(case)
    case.constants = [name for name in case.inputs if name != "X"] if constant else ()
    with refused(case, message):
        run_native(case)


@pytest.mark.parametrize(("message", "change"), REFUSED_AT_CREATION, ids=[m for m, _ in REFUSED_AT_CREATION])
def test_refused_at_creation(message: str, change: Change) -> None:
    check_refused_at_creation(table_case(), message, change)


REFUSED_AT_RUN: list[tuple[str, Change]] = [
    ("expected .T, B, I. with T >= 1 and B >= 1", set_input("X", np.zeros((0, 2, 9), np.float32))),
    ("expected .T, B, I. with T >= 1 and B >= 1", set_input("X", np.zeros((5, 0, 9), np.float32))),
    (
        r"sequence_lens\[1\] is 6, expected 0 .. T = 5",
        set_input("sequence_lens", np.int32([5, 6])),
    ),
    (
        r"sequence_lens\[0\] is -1, expected 0 .. T = 5",
        set_input("sequence_lens", np.int32([-1, 2])),
    ),
    (r"sequence_lens has shape \[3\], expected \[B\] = \[2\]", set_input("sequence_lens", np.zeros(3, np.int32))),
    (r"initial_h has shape \[1, 21\], expected \[B, H\]", set_input("initial_h", np.zeros((1, 21), np.float32))),
    (r"initial_c has shape \[2, 22\], expected \[B, H\]", set_input("initial_c", np.zeros((2, 22), np.float32))),
    (r"input W has shape \[9, 84\], expected \[I, 4H\] = \[8, 84\]", set_input("X", np.zeros((5, 2, 8), np.float32))),
    (r"input X has shape \[5, 18\], expected \[T, B, I\]", set_input("X", np.zeros((5, 18), np.float32))),
    ("gate_table has shape .16383., expected at least 16384", set_input("gate_table", np.zeros(16383, np.float32))),
    ("cell_table has shape .65533., expected an even number", set_input("cell_table", np.zeros(65533, np.float32))),
    (r"input R has shape \[21, 80\], expected", set_input("R", np.zeros((21, 80), np.int8))),
    (r"input B has shape \[0\], expected", set_input("B", np.zeros(0, np.float32))),
    (r"input P has shape \[3, 21\], expected", set_input("P", np.zeros((3, 21), np.float32))),
]


@pytest.mark.parametrize(
    ("message", "change"), REFUSED_AT_RUN, ids=[f"{k} {m}" for k, (m, _) in enumerate(REFUSED_AT_RUN)]
)
def test_refused_at_run(message: str, change: Change) -> None:
    case = table_case()
    case.inputs["initial_c"] = np.zeros((2, 21), np.float32)
    case.inputs["P"] = np.zeros(63, np.float32)
    check_refused_at_run(case, message, change)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (r"input W has shape \[9, 84\], expected .* = \[10, 84\]", set_input("X2", np.zeros((5, 2, 4), np.float32))),
        (r"input X2 has shape \[5, 1, 3\], expected \[T, B, I2\]", set_input("X2", np.zeros((5, 1, 3), np.float32))),
        (r"input X3 has shape \[4, 2, 1\], expected \[T, B, I3\]", set_input("X3", np.zeros((4, 2, 1), np.float32))),
        (r"input X has shape \[5, 2\], expected \[T, B, I1\]", set_input("X", np.zeros((5, 2), np.float32))),
    ],
)
def test_parts_of_the_input_that_do_not_fit_together(message: str, change: Change) -> None:
    check_refused_at_run(_of_parts(), message, change)


def test_the_sizes_of_parts_add_up_to_that_of_constant_weights() -> None:
    case = _of_parts()
    model = case.model()
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    session = native_session(model)
    case.inputs["X2"] = np.zeros((5, 2, 4), np.float32)
    with refused(case, "input X and its further parts have 10 columns, expected I = 9"):
        session.run(None, case.feeds())


def _of_parts() -> Case:
    case = table_case()
    case.name = NAME
    case.inputs |= dict(zip(("X", "X2", "X3"), np.split(case.inputs["X"], [5, 8], axis=-1), strict=True))
    return case


def test_too_many_inputs_are_refused() -> None:
    model = table_case().model()
    model.graph.node[0].input.extend([""] * 12 + ["B"])
    with pytest.raises(Exception, match="QuantLSTMCell"):
        native_session(model)


@pytest.mark.parametrize("isa", ["portable", "reference"])
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    assert run_with_isa(isa, "from rnnqc import runtime_ops; print(runtime_ops.isa())").stdout == f"{isa}\n"


def test_unavailable_instruction_set_is_an_error() -> None:
    code = "import onnxruntime as ort; from rnnqc import runtime_ops; runtime_ops.register(ort.SessionOptions())"
    done = run_with_isa("sse9", code)
    assert done.returncode != 0
    assert 'RNNQC_ISA is "sse9", which is not available; available here: portable' in done.stderr


def test_unavailable_instruction_set_is_an_error_without_python(tmp_path: Path) -> None:
    # Applications register the library themselves.
    path = tmp_path / "model.onnx"
    path.write_bytes(table_case().model().SerializeToString())
    code = (
        "import sys, onnxruntime as ort; options = ort.SessionOptions();"
        "options.register_custom_ops_library(sys.argv[1]); ort.InferenceSession(sys.argv[2], options)"
    )
    done = run_with_isa("sse9", code, str(runtime_ops.library_path()), str(path))
    assert done.returncode == 1
    assert 'QuantLSTMCell node "cell": the environment variable RNNQC_ISA is "sse9"' in done.stderr


def test_library_path_override(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"")
    monkeypatch.setenv("RNNQC_LIBRARY", str(library))
    assert runtime_ops.library_path() == library.resolve()
    monkeypatch.setenv("RNNQC_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(FileNotFoundError, match="RNNQC_LIBRARY"):
        runtime_ops.library_path()


def test_absent_library_says_how_to_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RNNQC_LIBRARY", raising=False)
    monkeypatch.setattr(runtime_ops, "__path__", [str(tmp_path)])
    with pytest.raises(FileNotFoundError, match="Build it with"):
        runtime_ops.library_path()
    # Every folder is searched: in editable installations the library is in another than the sources.
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setattr(runtime_ops, "__path__", [str(tmp_path), str(second)])
    names = {"win32": "librnnqc_ops.dll", "darwin": "librnnqc_ops.dylib"}
    library = second / names.get(sys.platform, "librnnqc_ops.so")
    library.write_bytes(b"")
    assert runtime_ops.library_path() == library.resolve()


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (
            r"input X_scale has shape \[5, 1, 1\], expected \[T, B, 1\] = \[5, 2, 1\]",
            set_input("X_scale", np.ones((5, 1, 1), np.float32)),
        ),
        *(
            (r"X_scale has .* for row 7 of \[T \* B\], expected 0 \.\. 2\^60", one_value("X_scale", (3, 1, 0), scale))
            for scale in (-1.0, np.nan, np.inf, 2.0**61)
        ),
    ],
)
def test_scales_of_rows_refused_at_run(message: str, change: Change) -> None:
    """A scale that is negative, not finite or too large would make a kernel leave out limits that are needed."""
    case = table_case()
    _rows(case)
    check_refused_at_run(case, message, change)
