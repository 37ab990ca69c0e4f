"""The arithmetic "grid" of the operator: kernel, function body in stock onnxruntime and reference give the same bytes.

What these would catch: a rounding, limit or order of operations that one of the three has for itself; sums of products
that leave int32 or lose bits; a quantizer that is left out or applied twice; an onnxruntime optimization that changes
bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnqc.cells.fixed_point_numbers import QUANTIZERS
from tests.native.grid_cases import (
    ROUNDINGS,
    GridCase,
    assert_levels_and_threads_do_not_matter,
    assert_not_trivial,
    check,
    expected,
    grid_cases,
    plain_grid_case,
    run_stock,
)
from tests.native.quant_lstm_cases import assert_same_bits, run_native
from tests.runs.sessions import LEVELS

EXAMPLES = settings().max_examples


@settings(max_examples=2 * EXAMPLES)
@given(grid_cases())
def test_native_is_the_reference(case: GridCase) -> None:
    assert_same_bits(run_native(case.node), expected(case))


@settings(max_examples=EXAMPLES)
@given(grid_cases(), st.sampled_from([13, 17, 18, 21, 23]))
def test_stock_is_the_reference(case: GridCase, opset: int) -> None:
    assert_same_bits(run_stock(case, opset), expected(case))


@settings(max_examples=EXAMPLES // 3)
@given(grid_cases())
def test_optimization_levels_and_threads(case: GridCase) -> None:
    assert_levels_and_threads_do_not_matter(case, expected(case))


def test_drawn_cases_are_not_trivial() -> None:
    """Otherwise all of the above could pass on zeros."""
    assert_not_trivial(grid_cases(), expected)


@pytest.mark.few(6)
@pytest.mark.parametrize("bits", [4, 8, 12, 16])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (4, 16), (15, 17), (64, 32), (61, 130)])
def test_sizes(inputs: int, hidden: int, bits: int) -> None:
    case = plain_grid_case(7, 3, inputs, hidden, bits, seed=hidden)
    case.inputs["sequence_lens"] = np.int32([7, 0, 4])
    wanted = check(case)
    assert len(np.unique(wanted["Y"])) > 5 or hidden == 1


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_ties(rounding: str) -> None:
    """Inputs at multiples of a quarter of a step show any difference in rounding."""
    case = plain_grid_case(3, 2, 40, 16)
    case.numbers = replace(case.numbers, grid_rounding=[rounding] * len(QUANTIZERS))
    step = case.numbers.grid_scale[0]
    case.inputs["X"] = (np.arange(-120, 120).reshape(3, 2, 40) * step / 4).astype(np.float32)
    wanted = check(case)
    others = set(ROUNDINGS) - {rounding}
    for other in others:
        changed = replace(case.numbers, grid_rounding=[other, *[rounding] * (len(QUANTIZERS) - 1)])
        found = expected(replace(case, numbers=changed))
        assert not np.array_equal(found["Y"], wanted["Y"]), other


@pytest.mark.parametrize("weight_bits", [8, 16])
@pytest.mark.parametrize("code_bits", [8, 16])
@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_sums(code_bits: int, weight_bits: int, sign: int) -> None:
    """Quantized values at one end of their range and zero points at the other, for inputs and weights."""
    depth, hidden = 3000, 16
    case = plain_grid_case(1, 2, depth, hidden, code_bits)
    top = 2**code_bits - 1
    numbers = case.numbers
    numbers.grid_zero_point[0] = top if sign < 0 else 0
    case.inputs["X"] = np.full((1, 2, depth), -1e30 * (1 if sign < 0 else -1), np.float32)
    limits = np.iinfo(np.int8 if weight_bits == 8 else np.int16)
    case.inputs["W"] = np.full((depth, 4 * hidden), limits.max, limits.dtype)
    case.inputs["W"][:, ::3] = limits.min
    case.inputs["W_zero_point"] = np.full(4 * hidden, limits.min, np.int32)
    case.inputs["W_zero_point"][::2] = limits.max
    largest = depth * top * (2**weight_bits - 1)
    case.inputs["x_multiplier"] = np.full(4 * hidden, 4.0 / largest, np.float32)
    wanted = check(case)
    assert len(np.unique(wanted["Y"])) > 2


@pytest.mark.parametrize("depth", [33025, 33026])
@pytest.mark.parametrize("sign", [-1, 1])
def test_depth_at_which_sums_of_bytes_leave_int32(sign: int, depth: int) -> None:
    """255 * 255 * 33025 is 2**31 - 1998; one row more is another product in the function body."""
    case = plain_grid_case(1, 1, depth, 2)
    case.numbers.grid_zero_point[0] = 0
    case.inputs["X"] = np.full((1, 1, depth), 1e9, np.float32)
    case.inputs["W"] = np.full((depth, 8), 127 if sign > 0 else -128, np.int8)
    case.inputs["W_zero_point"] = np.full(8, -128 if sign > 0 else 127, np.int32)
    case.inputs["x_multiplier"] = (1.0 / np.arange(1, 9) / (255 * 255 * depth)).astype(np.float32)
    wanted = expected(case)
    assert len(np.unique(wanted["Y"])) == 2
    for level in LEVELS:
        assert_same_bits(run_stock(case, level=level), wanted)
    assert_same_bits(run_native(case.node), wanted)


@pytest.mark.parametrize("bits", [2, 7, 16, 31])
def test_accumulators_saturate(bits: int) -> None:
    case = plain_grid_case(3, 2, 300, 16)
    exact = expected(case)
    case.numbers = replace(case.numbers, accumulator_bits=bits)
    wanted = check(case)
    assert np.array_equal(exact["Y"], wanted["Y"]) == (bits == 31)


def test_rounded_output_lies_on_the_hidden_grid() -> None:
    case = plain_grid_case()
    case.numbers = replace(case.numbers, rounded_output=True)
    found = run_native(case.node)
    grid = case.numbers.hidden
    codes = found["Y_codes"].astype(np.float64) - grid.zero_point
    assert np.array_equal(found["Y"], (codes * grid.scale).astype(np.float32))
    assert np.array_equal(found["Y_h"], found["Y"][-1])


def test_codes_of_one_cell_are_the_input_of_the_next() -> None:
    """Quantizing the float Y again gives the same quantized values."""
    first = plain_grid_case(6, 2, 10, 24)
    found = run_native(first.node)
    second = plain_grid_case(6, 2, 24, 18, seed=1)
    hidden = QUANTIZERS.index("hidden")
    for column in ("grid_scale", "grid_zero_point", "grid_min", "grid_max", "grid_rounding"):
        getattr(second.numbers, column)[0] = getattr(first.numbers, column)[hidden]
    from_float = run_native(replace(second, inputs=second.inputs | {"X": found["Y"]}).node)
    numbers = replace(second.numbers, x_mode="codes")
    from_codes = run_native(replace(second, numbers=numbers, inputs=second.inputs | {"X": found["Y_codes"]}).node)
    assert_same_bits(from_codes, from_float)
