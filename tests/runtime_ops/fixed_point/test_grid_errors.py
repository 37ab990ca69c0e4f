"""Nodes in fixed-point arithmetic that the native operators refuse: a message names what is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rnnqc.cells.fixed_point_numbers import QUANTIZERS
from rnnqc.cells.types import GRU, LSTM, RNN, CellType
from tests.native.grid_cases import plain_grid_case
from tests.native.quant_lstm_cases import check, run_native
from tests.native.refusals import refused
from tests.subjects.node_changes import Change, all_of, drop_attribute, drop_input, set_attribute, set_entry, set_input

types = pytest.mark.parametrize(("type_", "linear"), [(LSTM, False), (GRU, False), (GRU, True), (RNN, False)])

ACC, CELL = QUANTIZERS.index("output_gate.acc"), QUANTIZERS.index("cell_state")
REFUSED_LSTM: list[tuple[str, Change]] = [
    (
        'arithmetic is "grid64"; this version of the library knows tables, grid, grid32. Use a newer',
        set_attribute(arithmetic="grid64"),
    ),
    ("attribute grid_scale is missing", drop_attribute("grid_scale")),
    ("grid_max has 3 elements, expected 17 (quantizers)", set_attribute(grid_max=[1, 2, 3])),
    ("grid_rounding has 2 elements, expected 17", set_attribute(grid_rounding="floor,ceil")),
    ('grid_rounding[0] is "up"; this version of the library knows half_even', set_attribute(grid_rounding="up")),
    ('x_mode is "dynamic_row", expected "static" or "codes"', set_attribute(x_mode="dynamic_row")),
    ("grid_scale[0] is 0, expected a number above 0: this quantizer is needed", set_entry("grid_scale", 0, 0.0)),
    (f"grid_scale[{ACC}] is 0, expected a number above 0", set_entry("grid_scale", ACC, 0.0)),
    ("grid_scale[3] is nan, expected a finite number", set_entry("grid_scale", 3, float("nan"))),
    ("grid_scale[3] is -1, expected a finite number, 0 or more", set_entry("grid_scale", 3, -1.0)),
    ("grid_min[0] is -1, expected 0 or more for codes of a matrix product", set_entry("grid_min", 0, -1)),
    ("grid_max[1] is 65536, expected up to 65535", set_entry("grid_max", 1, 65536)),
    ("grid_max[4] is -200, expected grid_min[4] = -128 ..", set_entry("grid_max", 4, -200)),
    ("grid_max[4] is 9223372036854775807, expected", set_entry("grid_max", 4, 2**63 - 1)),
    ("grid_min[4] is -9223372036854775808, expected", set_entry("grid_min", 4, -(2**63))),
    ("grid_zero_point[4] is 128, expected -128 .. 127, a code of this quantizer", set_entry("grid_zero_point", 4, 128)),
    (f"grid_max[{CELL}] is 65408, expected at most grid_min[{CELL}] + 65535", set_entry("grid_max", CELL, 65408)),
    ("accumulator_bits is 1, expected 0, or 2 .. 48", set_attribute(accumulator_bits=1)),
    ("rounded_output is 2, expected 0 or 1", set_attribute(rounded_output=2)),
    ("gate_table_offset[1] is -1", set_attribute(gate_table_offset=[0, -1, 0, 0])),
    ("gate_table has shape [512], expected at least 513 entries", set_attribute(gate_table_offset=[0, 257, 0, 0])),
    ("cell_table has shape [255], expected at least 256 entries", set_input("cell_table", np.zeros(255, np.float32))),
    ('input gate_table is missing, but arithmetic "grid" needs it', drop_input("gate_table")),
    ("input W has element type float, expected int8, int16 or uint8", set_input("W", np.zeros((9, 84), np.float32))),
    ("input W_zero_point has element type int8, expected int32", set_input("W_zero_point", np.zeros(84, np.int8))),
    ("input R_zero_point has shape [83], expected [4H] = [84]", set_input("R_zero_point", np.zeros(83, np.int32))),
    (
        "input W_zero_point[0] is 128, expected a code of the weights, -128",
        set_input("W_zero_point", np.full(84, 128, np.int32)),
    ),
    ("input X has element type double, expected float", set_input("X", np.zeros((5, 2, 9)))),
]
REFUSED_GRU: list[tuple[str, Change]] = [
    (
        'arithmetic is "grid32"; this version of the library knows tables, grid. Use a newer',
        set_attribute(arithmetic="grid32"),
    ),
    ("attribute grid_scale is missing", drop_attribute("grid_scale")),
    ("grid_max has 17 elements, expected 15 (quantizers)", set_attribute(grid_max=[1] * 17)),
    ("grid_rounding has 2 elements, expected 15", set_attribute(grid_rounding="floor,ceil")),
    ("gate_min has 4 elements, expected 3 (gates z, r, h)", set_attribute(gate_min=[0.0] * 4)),
    ('x_mode is "dynamic_row", expected "static" or "codes"', set_attribute(x_mode="dynamic_row")),
    ("grid_scale[1] is 0, expected a number above 0: this quantizer is needed", set_entry("grid_scale", 1, 0.0)),
    ("grid_scale[8] is 0, expected a number above 0", set_entry("grid_scale", 8, 0.0)),
    ("grid_scale[11] is 0, expected a number above 0", set_entry("grid_scale", 11, 0.0)),
    ("grid_min[11] is -1, expected 0 or more for codes of a matrix product", set_entry("grid_min", 11, -1)),
    ("grid_max[11] is 65536, expected up to 65535", set_entry("grid_max", 11, 65536)),
    ("grid_max[10] is 65408, expected at most grid_min[10] + 65535", set_entry("grid_max", 10, 65408)),
    ("grid_scale[14] is -1, expected a finite number, 0 or more", set_entry("grid_scale", 14, -1.0)),
    ("grid_zero_point[14] is 128, expected -128 .. 127, a code", set_entry("grid_zero_point", 14, 128)),
    ("grid_offset[13] is 1048577, expected -2^20 .. 2^20", set_attribute(grid_offset=[0] * 13 + [2**20 + 1, 0])),
    ("accumulator_bits is 49, expected 0, or 2 .. 48", set_attribute(accumulator_bits=49)),
    ("gate_table has shape [512], expected at least 513 entries", set_attribute(gate_table_offset=[0, 257, 0])),
    ("gate_table_offset[2] is -1", set_attribute(gate_table_offset=[0, 0, -1])),
    ("gate_max[1] is -1, expected at least gate_min[1]", set_attribute(gate_min=[0.0] * 3, gate_max=[1.0, -1.0, 1.0])),
    ('input gate_table is missing, but arithmetic "grid" needs it', drop_input("gate_table")),
    (
        "input hidden_bias is missing, but attribute linear_before_reset is 1",
        set_attribute(linear_before_reset=1),
    ),
    ("input W has element type float, expected int8, int16 or uint8", set_input("W", np.zeros((9, 63), np.float32))),
    ("input R has shape [21, 84], expected [H, 3H] = [21, 63]", set_input("R", np.zeros((21, 84), np.int16))),
    ("input W_zero_point has element type int8, expected int32", set_input("W_zero_point", np.zeros(63, np.int8))),
    ("input R_zero_point has shape [62], expected [3H] = [63]", set_input("R_zero_point", np.zeros(62, np.int32))),
    (
        "input R_zero_point[42] is 128, expected a code of the weights, -128",
        set_input("R_zero_point", np.int32([127] * 42 + [128] * 21)),
    ),
    (
        "input 12 W_zero_point is reserved for later versions",
        all_of(
            set_input("W_zero_point", np.zeros(63, np.int32)),
            drop_attribute("arithmetic"),
            set_attribute(gate_min=[0.0] * 3, gate_max=[1.0] * 3, h_scale=0.1, reset_scale=0.1, x_scale=0.1),
        ),
    ),
]
REFUSED_RNN: list[tuple[str, Change]] = [
    ("grid_scale has 15 elements, expected 5 (quantizers)", set_attribute(grid_scale=[1.0] * 15)),
    ('grid_rounding[3] is "up"; this', set_attribute(grid_rounding="floor,floor,floor,up,floor")),
    ("grid_scale[4] is 0, expected a number above 0", set_entry("grid_scale", 4, 0.0)),
    ("input R_zero_point has shape [20], expected [H] = [21]", set_input("R_zero_point", np.zeros(20, np.int32))),
    ("gate_table has shape [512], expected at least 513 entries", set_attribute(gate_table_offset=[257])),
]
REFUSED = {LSTM: REFUSED_LSTM, GRU: REFUSED_GRU, RNN: REFUSED_RNN}


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("type_", "message", "change"),
    [(type_, *entry) for type_, refusals in REFUSED.items() for entry in refusals],
    ids=[f"{type_.op} {m}" for type_, refusals in REFUSED.items() for m, _ in refusals],
)
def test_refused(type_: CellType, message: str, change: Change, constant: bool) -> None:
    node = plain_grid_case(type_=type_).node
    change(node)
    if not constant:
        node.constants = ()
    with refused(node, re.escape(message)):
        run_native(node)


@types
def test_a_refused_neighbour_is_accepted(type_: CellType, linear: bool) -> None:
    """The unchanged cases run: otherwise the test above would show nothing."""
    case = plain_grid_case(type_=type_, linear_before_reset=linear)
    case.constants = ()
    check(case.node)


@types
def test_wide_codes_have_no_output(type_: CellType, linear: bool) -> None:
    case = plain_grid_case(bits=16, type_=type_, linear_before_reset=linear)
    case.outputs = ("Y", "Y_h", "Y_codes")
    with pytest.raises(Exception, match="output Y_codes exists for h_bits 8 only"):
        run_native(case.node)
