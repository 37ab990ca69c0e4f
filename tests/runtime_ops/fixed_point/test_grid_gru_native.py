"""Errors that only fixed-point kernels of GRU and RNN can have: blocks, planes, chunks, groups, instruction sets.

What these would catch: rows, gates or planes of bytes that are mixed up where their number is not that of LSTM, reads
beyond a table, memory that a group lacks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rnnqc.cells.fixed_point_numbers import RESET, quantizers_of
from rnnqc.cells.types import GRU, RNN, CellType
from tests.native.grid_cases import GridCase, check, plain_grid_case

TYPES = [(GRU, False), (GRU, True), (RNN, False)]
types = pytest.mark.parametrize(("type_", "linear"), TYPES, ids=["GRU", "GRU linear_before_reset", "RNN"])


def plain(type_: CellType, linear: bool, *sizes: int, **more: Any) -> GridCase:
    return plain_grid_case(*sizes, type_=type_, linear_before_reset=linear, **more)


def changed(case: GridCase, column: str, quantizer: str, value: Any) -> GridCase:
    """Changes an entry of a quantizer attribute."""
    values = list(getattr(case.numbers, column))
    values[quantizers_of(case.cell.type).index(quantizer)] = value
    return replace(case, numbers=replace(case.numbers, **{column: values}))


@pytest.mark.few(3)
@types
@pytest.mark.parametrize("entry", [0, -1])
def test_tables_at_the_ends_of_their_ranges(type_: CellType, linear: bool, entry: int) -> None:
    """Pre-activations far outside: the first and the last entry, of tables that end there."""
    case = plain(type_, linear, 2, 2, 5, 18)
    for gate in type_.gates:
        case = changed(case, "grid_scale", f"{gate}.input_product", 0.0)
    case.inputs["B"] = np.full_like(case.inputs["B"], 1e6 if entry else -1e6)
    case.inputs["gate_table"] = case.inputs["gate_table"].copy()
    offsets = case.numbers.gate_table_offset
    entries = case.numbers.quantizer(type_, "hidden_gate.acc").size
    for offset in offsets:
        case.inputs["gate_table"][offset : offset + entries][entry] = 0.375 if offset else 0.25
    wanted = check(case)["Y"]
    assert len(np.unique(wanted[0])) == 1
    assert (wanted != 0).all()


@pytest.mark.few(7)
@types
@pytest.mark.parametrize("weight_bits", [8, 16])
@pytest.mark.parametrize("code_bits", [8, 16])
@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_sums(type_: CellType, linear: bool, code_bits: int, weight_bits: int, sign: int) -> None:
    """Quantized values at one end of their range and zero points at the other, for inputs and weights."""
    depth, hidden = 3000, 16
    case = plain(type_, linear, 1, 2, depth, hidden, code_bits)
    columns = len(type_.gates) * hidden
    top = 2**code_bits - 1
    case.numbers.grid_zero_point[0] = top if sign < 0 else 0
    case.inputs["X"] = np.full((1, 2, depth), 1e30 * sign, np.float32)
    limits = np.iinfo(np.int8 if weight_bits == 8 else np.int16)
    case.inputs["W"] = np.full((depth, columns), limits.max, limits.dtype)
    case.inputs["W"][:, ::3] = limits.min
    case.inputs["W_zero_point"] = np.full(columns, limits.min, np.int32)
    case.inputs["W_zero_point"][::2] = limits.max
    largest = depth * top * (2**weight_bits - 1)
    case.inputs["x_multiplier"] = np.full(columns, 4.0 / largest, np.float32)
    assert len(np.unique(check(case)["Y"])) > 2


@pytest.mark.parametrize("weight_bits", [8, 16])
@pytest.mark.parametrize(("hidden_bits", "reset_bits"), [(8, 16), (16, 8), (16, 16)])
def test_widths_of_both_products_of_a_gru(hidden_bits: int, reset_bits: int, weight_bits: int) -> None:
    """Codes of h and of r * h have widths and zero points of their own, and gate h's columns of R theirs."""
    case = plain(GRU, False, 5, 3, 12, 37, hidden_bits)
    top = 2**reset_bits
    for column, value in (("grid_max", top - 1), ("grid_zero_point", top // 3), ("grid_scale", 2.5 / top)):
        case = changed(case, column, RESET, value)
    limits = np.iinfo(np.int8 if weight_bits == 8 else np.int16)
    rng = np.random.default_rng(0)
    case.inputs["R"] = rng.integers(limits.min, limits.max + 1, (37, 3 * 37)).astype(limits.dtype)
    case.inputs["R_zero_point"] = rng.integers(limits.min, limits.max + 1, 3 * 37).astype(np.int32)
    sizes = np.repeat([2**hidden_bits, 2**hidden_bits, top], 37)
    case.inputs["h_multiplier"] = (4.0 / sizes / 2**weight_bits / 6).astype(np.float32)
    case.inputs["initial_h"] = rng.uniform(-1, 1, (3, 37)).astype(np.float32)
    assert len(np.unique(check(case)["Y"])) > 20


@pytest.mark.few(10)
@types
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -3e38, -0.0, 1e-42])
def test_unusual_initial_states(type_: CellType, linear: bool, value: float) -> None:
    case = plain(type_, linear, 3, 2, 5, 18)
    if type_ is GRU:
        for name in ("hidden_state.kept", "hidden_state.added", "hidden_state"):
            case = changed(case, "grid_scale", name, 0.0)
    case.inputs["initial_h"] = np.zeros((2, 18), np.float32)
    case.inputs["initial_h"][1, ::3] = value
    assert np.isfinite(check(case)["Y"]).all()
