"""The arithmetic "grid" of GRU and RNN: kernel, function body in stock onnxruntime and reference give the same bytes.

What these would catch: what test_grid.py would; a quantizer of a GRU at the wrong place, a product with the columns or
the scale of another gate, a state that keeps more bits from step to step than it hands out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnqc.cells.fixed_point_numbers import RESET, FixedPointQuantizer, quantizers_of
from rnnqc.cells.types import CELL_TYPES, GRU, RNN
from tests.native.grid_cases import (
    ROUNDINGS,
    GridCase,
    assert_levels_and_threads_do_not_matter,
    assert_not_trivial,
    expected,
    grid_cases,
    plain_grid_case,
    run_stock,
)
from tests.native.quant_lstm_cases import Arrays, assert_same_bits, run_native

EXAMPLES = settings().max_examples
CELLS = (("GRU", False), ("GRU", True), ("RNN", False))
each_cell = pytest.mark.parametrize(("op", "linear"), CELLS)


def _plain(op: str, linear: bool, *sizes: int, **numbers: Any) -> GridCase:
    return plain_grid_case(*sizes, type_=CELL_TYPES[op], linear_before_reset=linear, **numbers)


def run_natively(case: GridCase) -> Arrays:
    return run_native(case.node)


WAYS = [run_stock, run_natively]
each_way = pytest.mark.parametrize("way", WAYS)


@settings(max_examples=2 * EXAMPLES)
@given(grid_cases((GRU, RNN)))
def test_native_is_the_reference(case: GridCase) -> None:
    assert_same_bits(run_natively(case), expected(case))


@settings(max_examples=EXAMPLES)
@given(grid_cases((GRU, RNN)), st.sampled_from([13, 17, 18, 21, 23]))
def test_stock_is_the_reference(case: GridCase, opset: int) -> None:
    assert_same_bits(run_stock(case, opset), expected(case))


@settings(max_examples=EXAMPLES // 3)
@given(grid_cases((GRU, RNN)))
def test_optimization_levels_and_threads(case: GridCase) -> None:
    assert_levels_and_threads_do_not_matter(case, expected(case))


def test_drawn_cases_are_not_trivial() -> None:
    """Otherwise all of the above could pass on zeros."""
    assert_not_trivial(grid_cases((GRU, RNN)), expected)


@pytest.mark.few(9)
@each_way
@each_cell
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (15, 17), (64, 32), (61, 130)])
def test_sizes(inputs: int, hidden: int, bits: int, op: str, linear: bool, way: Any) -> None:
    case = _plain(op, linear, 7, 3, inputs, hidden, bits, seed=hidden)
    case.inputs["sequence_lens"] = np.int32([7, 0, 4])
    wanted = expected(case)
    assert len(np.unique(wanted["Y"])) > 5 or hidden == 1
    assert_same_bits(way(case), wanted)


@pytest.mark.few(9)
@each_way
@each_cell
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_ties(rounding: str, op: str, linear: bool, way: Any) -> None:
    """Inputs at multiples of a quarter of a step show any difference in rounding."""
    case = _plain(op, linear, 3, 2, 40, 16)
    count = len(case.numbers.grid_scale)
    case.numbers = replace(case.numbers, grid_rounding=[rounding] * count)
    step = case.numbers.grid_scale[0]
    case.inputs["X"] = (np.arange(-120, 120).reshape(3, 2, 40) * step / 4).astype(np.float32)
    wanted = expected(case)
    assert_same_bits(way(case), wanted)
    for other in set(ROUNDINGS) - {rounding}:
        changed = replace(case.numbers, grid_rounding=[other, *[rounding] * (count - 1)])
        assert not np.array_equal(expected(replace(case, numbers=changed))["Y"], wanted["Y"]), other


@each_cell
def test_every_quantizer_counts(op: str, linear: bool) -> None:
    """A coarser grid at any of them changes the outputs, in the body as in the reference."""
    case = _plain(op, linear, 6, 2, 20, 16)
    before = expected(case)
    for k, name in enumerate(quantizers_of(CELL_TYPES[op])):
        scale = list(case.numbers.grid_scale)
        scale[k] *= 7
        changed = replace(case, numbers=replace(case.numbers, grid_scale=scale))
        wanted = expected(changed)
        assert not np.array_equal(before["Y"], wanted["Y"]), name
        assert_same_bits(run_stock(changed), wanted)


@pytest.mark.few(8)
@each_way
@each_cell
@pytest.mark.parametrize("bits", [2, 7, 16, 31])
def test_accumulators_saturate(bits: int, op: str, linear: bool, way: Any) -> None:
    case = _plain(op, linear, 3, 2, 300, 16)
    exact = expected(case)
    case.numbers = replace(case.numbers, accumulator_bits=bits)
    wanted = expected(case)
    assert np.array_equal(exact["Y"], wanted["Y"]) == (bits == 31)
    assert_same_bits(way(case), wanted)


@pytest.mark.few(6)
@each_way
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("weight_bits", [8, 16])
@pytest.mark.parametrize("code_bits", [8, 16])
def test_largest_sums_of_the_reset_hidden_state(code_bits: int, weight_bits: int, sign: int, way: Any) -> None:
    """Codes of r * h at one end of their range, its zero point at the other, and weights alike."""
    hidden = 700
    case = _plain("GRU", False, 2, 1, 4, hidden, code_bits)
    numbers, top = case.numbers, 2**code_bits - 1
    k = quantizers_of(CELL_TYPES["GRU"]).index(RESET)
    numbers.grid_zero_point[k] = top if sign < 0 else 0
    numbers.grid_scale[k] = 2.0**-40
    case.inputs["initial_h"] = np.full((1, hidden), float(sign), np.float32)
    limits = np.iinfo(np.int8 if weight_bits == 8 else np.int16)
    case.inputs["R"] = np.full((hidden, 3 * hidden), limits.max, limits.dtype)
    case.inputs["R"][:, ::3] = limits.min
    case.inputs["R_zero_point"] = np.full(3 * hidden, limits.min, np.int32)
    case.inputs["R_zero_point"][::2] = limits.max
    largest = hidden * top * (2**weight_bits - 1)
    case.inputs["h_multiplier"] = np.full(3 * hidden, 4.0 / largest, np.float32)
    wanted = expected(case)
    assert len(np.unique(wanted["Y"])) > 2
    assert_same_bits(way(case), wanted)


@pytest.mark.few(5)
@each_way
@each_cell
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rounding", ["half_even", "floor"])
def test_chunks_with_carried_states(rounding: str, reverse: bool, op: str, linear: bool, way: Any) -> None:
    """With scales that are no powers of two and a grid finer than binary32, too: Y_h is all that a step hands on."""
    case = _plain(op, linear, 9, 3, 20, 33, 16)
    case.cell = replace(case.cell, reverse=reverse)
    numbers = case.numbers
    scale = [float(np.float32(s * 1.1)) for s in numbers.grid_scale]
    case.numbers = replace(numbers, grid_scale=scale, grid_rounding=[rounding] * len(scale))
    if op == "GRU":
        case.numbers.grid_scale[-1] = float(np.float32(1.1 * 2.0**-29))
        case.numbers.grid_min[-1], case.numbers.grid_max[-1] = -(2**31), 2**31 - 1
    case.inputs["initial_h"] = np.random.default_rng(1).normal(0, 1, (3, 33)).astype(np.float32)
    whole = expected(case)
    state, pieces = dict(case.inputs), {}
    for start, end in ((5, 9), (1, 5), (0, 1)) if reverse else ((0, 1), (1, 5), (5, 9)):
        got = way(replace(case, inputs=state | {"X": case.inputs["X"][start:end]}))
        state |= {"initial_h": got["Y_h"]}
        pieces[start] = got["Y"]
    joined = np.concatenate([pieces[k] for k in sorted(pieces)])
    assert_same_bits({"Y": joined, "Y_h": got["Y_h"]}, whole)


@each_way
@pytest.mark.parametrize("linear", [False, True])
def test_states_without_a_grid_are_limited(linear: bool, way: Any) -> None:
    """An update gate of 3 triples the state in every step, up to the limit of 2^60."""
    case = _plain("GRU", linear, 80, 2, 4, 5)
    names = quantizers_of(CELL_TYPES["GRU"])
    for name in ("hidden_state.kept", "hidden_state.added", "hidden_state"):
        case.numbers.grid_scale[names.index(name)] = 0.0
    case.inputs["gate_table"][: FixedPointQuantizer(1.0, 0, -128, 127).size] = 3.0
    case.inputs["initial_h"] = np.float32([[np.inf, -np.inf, np.nan, 1.0, -0.0]] * 2)
    wanted = expected(case)
    assert np.isfinite(wanted["Y"]).all()
    assert (np.abs(wanted["Y_h"]) == 2.0**60).any()
    assert_same_bits(way(case), wanted)


@each_way
@each_cell
@pytest.mark.parametrize("lens", [None, (5, 2)])
def test_negative_zeros(lens: tuple[int, ...] | None, op: str, linear: bool, way: Any) -> None:
    """Y of a GRU has none, Y of an RNN only without lengths and if its table has one."""
    case = _plain(op, linear)
    case.inputs["gate_table"] = np.where(np.arange(512) < 256, np.float32(1), np.float32(-0.0))
    if lens:
        case.inputs["sequence_lens"] = np.int32(lens)
    wanted = expected(case)
    assert not wanted["Y"].any()
    assert np.signbit(wanted["Y"]).all() == np.signbit(wanted["Y"]).any() == (op == "RNN" and lens is None)
    assert_same_bits(way(case), wanted)


@each_way
@each_cell
def test_codes_of_one_cell_are_the_input_of_the_next(op: str, linear: bool, way: Any) -> None:
    """Quantizing the float Y again gives the same quantized values."""
    first = _plain(op, linear, 6, 2, 10, 24)
    # A grid of states of which the hidden codes' steps are twice as coarse: every other state is a tie.
    if op == "GRU":
        first.numbers.grid_scale[-1] = first.numbers.grid_scale[1] / 2
    found = way(first)
    second = _plain("RNN", False, 6, 2, 24, 18, seed=1)
    for column in ("grid_scale", "grid_zero_point", "grid_min", "grid_max", "grid_rounding"):
        getattr(second.numbers, column)[0] = getattr(first.numbers, column)[1]
    from_float = way(replace(second, inputs=second.inputs | {"X": found["Y"]}))
    numbers = replace(second.numbers, x_mode="codes")
    from_codes = way(replace(second, numbers=numbers, inputs=second.inputs | {"X": found["Y_codes"]}))
    assert_same_bits(from_codes, from_float)
