"""GRU and RNN nodes in fixed-point arithmetic that the native operators refuse: a message names what is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rnnqc.cells.types import GRU, RNN, CellType
from tests.native.grid_cases import plain_grid_case
from tests.native.quant_lstm_cases import check, run_native
from tests.subjects.node_changes import Change, all_of, drop_attribute, drop_input, set_attribute, set_entry, set_input

types = pytest.mark.parametrize(("type_", "linear"), [(GRU, False), (GRU, True), (RNN, False)])

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


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    ("type_", "message", "change"),
    [(GRU, *entry) for entry in REFUSED_GRU] + [(RNN, *entry) for entry in REFUSED_RNN],
    ids=[m for m, _ in (*REFUSED_GRU, *REFUSED_RNN)],
)
def test_refused(type_: CellType, message: str, change: Change, constant: bool) -> None:
    node = plain_grid_case(type_=type_).node
    node.name = "layer/7"
    change(node)
    if not constant:
        node.constants = ()
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        run_native(node)
    assert f'{type_.fused} node "layer/7"' in str(caught.value)


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
