"""GRU and RNN nodes the native operators refuse: a message that names node, input or attribute; never a crash."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.quant_gru_cases import GRU, RNN, table_case
from tests.native.quant_lstm_cases import Case, Operator
from tests.native.refusals import check_refused_at_creation, check_refused_at_run
from tests.subjects.node_changes import Change, all_of, drop_attribute, drop_input, set_attribute, set_input


def _renamed(operator: Operator, text: str) -> Change:
    """Puts the array of that name at input 10, which is reserved."""

    def change(case: Case) -> None:
        case.inputs[text] = np.zeros((2, 21), np.float32)
        names = list(operator.inputs)
        names[10] = text
        case.operator = Operator(operator.name, names, operator.outputs)

    return change


REFUSED_GRU: list[tuple[str, Change]] = [
    ("attribute gate_min is missing", drop_attribute("gate_min")),
    ("attribute hidden_size is missing", drop_attribute("hidden_size")),
    ("hidden_size is 0, expected 1 .. 65536", set_attribute(hidden_size=0)),
    (r"gate_min has 4 elements, expected 3 \(gates z, r, h\)", set_attribute(gate_min=[0.0] * 4)),
    (r"gate_table_offset has 2 elements, expected 3", set_attribute(gate_table_offset=[0, 0])),
    (
        r'gate_kinds is "table", expected three kinds separated by commas \(gates z, r',
        set_attribute(gate_kinds="table"),
    ),
    (r'gate_kinds\[2\] is "Elu"; .* Use a newer', set_attribute(gate_kinds="table,table,Elu")),
    (r"gate_max\[2\] is inf, expected less than 2\^23", set_attribute(gate_max=[1.0, 1.0, float("inf")])),
    ("gate_table has shape .16384., expected at least 16385", set_attribute(gate_table_offset=[0, 0, 8193])),
    (r'arithmetic is "grid32"; .* knows tables, grid. Use a newer', set_attribute(arithmetic="grid32")),
    ("linear_before_reset is 2, expected 0 or 1", set_attribute(linear_before_reset=2)),
    ("input hidden_bias is missing, but attribute linear_before_reset is 1", drop_input("hidden_bias")),
    (
        "input hidden_bias is present, but attribute linear_before_reset is 0",
        set_attribute(linear_before_reset=0, reset_scale=0.1),
    ),
    (
        "reset_scale is 0, expected a finite number above 0",
        all_of(drop_input("hidden_bias"), set_attribute(linear_before_reset=0)),
    ),
    (
        "reset_zero_point is 256, expected a code of 8 bits",
        all_of(drop_input("hidden_bias"), set_attribute(linear_before_reset=0, reset_scale=0.1, reset_zero_point=256)),
    ),
    (
        r"input hidden_bias has shape \[63\], expected \[H\] = \[21\]",
        set_input("hidden_bias", np.zeros(63, np.float32)),
    ),
    ("input hidden_bias has element type double", set_input("hidden_bias", np.zeros(21))),
    (r"input W has shape \[9, 84\], expected \[I, 3H\] = \[9, 63\]", set_input("W", np.zeros((9, 84), np.int8))),
    (r"input R has shape \[63, 21\], expected \[H, 3H\] = \[21, 63\]", set_input("R", np.zeros((63, 21), np.int8))),
    (r"W has shape \[9, 31\], expected \[I, ceil\(3H / 2\)\] = \[9, 32\]", set_input("W", np.zeros((9, 31), np.uint8))),
    ("input W has element type int16, expected int8 or uint8", set_input("W", np.zeros((9, 63), np.int16))),
    (r"input B has shape \[84\], expected \[3H\] = \[63\]", set_input("B", np.zeros(84, np.float32))),
    ("input 10 .reserved. is reserved .* newer rnnqc library", _renamed(GRU, "initial_c")),
    ("input gate_table is missing, but a kind in gate_kinds uses it", drop_input("gate_table")),
    ("W_group_multiplier is missing, but attribute w_group_size is 32", set_attribute(w_group_size=32)),
    ("output Y_codes exists for h_mode", set_attribute(h_mode="dynamic_row")),
    ("output Y_codes exists for h_bits 8 only", set_attribute(h_bits=16)),
]
REFUSED_RNN: list[tuple[str, Change]] = [
    (r"gate_min has 3 elements, expected 1 \(gates h\)", set_attribute(gate_min=[0.0] * 3)),
    (r'gate_kinds is "table,table", expected one kind', set_attribute(gate_kinds="table,table")),
    (r"input W has shape \[9, 63\], expected \[I, H\] = \[9, 21\]", set_input("W", np.zeros((9, 63), np.int8))),
    (
        r"R has shape \[21, 10\], expected \[H, ceil\(H / 2\)\] = \[21, 11\]",
        set_input("R", np.zeros((21, 10), np.uint8)),
    ),
    (
        r"input x_multiplier has shape \[63\], expected \[H\] = \[21\]",
        set_input("x_multiplier", np.ones(63, np.float32)),
    ),
    ("input 10 .reserved. is reserved .* newer rnnqc library", _renamed(RNN, "initial_c")),
    ("h_scale is 0, expected a finite number above 0", set_attribute(h_scale=0.0)),
]


@pytest.mark.parametrize(
    ("operator", "message", "change"),
    [(GRU, *entry) for entry in REFUSED_GRU] + [(RNN, *entry) for entry in REFUSED_RNN],
    ids=[m for m, _ in (*REFUSED_GRU, *REFUSED_RNN)],
)
def test_refused_at_creation(operator: Operator, message: str, change: Change) -> None:
    check_refused_at_creation(table_case(operator), message, change)


REFUSED_AT_RUN: list[tuple[str, Change]] = [
    ("expected .T, B, I. with T >= 1 and B >= 1", set_input("X", np.zeros((0, 2, 9), np.float32))),
    (r"sequence_lens\[1\] is 6, expected 0 .. T = 5", set_input("sequence_lens", np.int32([5, 6]))),
    (r"sequence_lens\[0\] is -1, expected 0 .. T = 5", set_input("sequence_lens", np.int32([-1, 2]))),
    (r"sequence_lens has shape \[3\], expected \[B\] = \[2\]", set_input("sequence_lens", np.zeros(3, np.int32))),
    (r"initial_h has shape \[1, 21\], expected \[B, H\]", set_input("initial_h", np.zeros((1, 21), np.float32))),
    (r"input W has shape \[9, 63\], expected \[I, 3H\] = \[8, 63\]", set_input("X", np.zeros((5, 2, 8), np.float32))),
    ("gate_table has shape .16383., expected at least 16384", set_input("gate_table", np.zeros(16383, np.float32))),
    (r"input R has shape \[21, 64\], expected", set_input("R", np.zeros((21, 64), np.int8))),
    (
        r"input hidden_bias has shape \[20\], expected \[H\] = \[21\]",
        set_input("hidden_bias", np.zeros(20, np.float32)),
    ),
]


@pytest.mark.parametrize(("message", "change"), REFUSED_AT_RUN, ids=[m for m, _ in REFUSED_AT_RUN])
def test_refused_at_run(message: str, change: Change) -> None:
    check_refused_at_run(table_case(GRU), message, change)
