"""Quantized values of the input and of hidden states, and initial states of a loop, in standard operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.lut_numbers import STATE_LIMIT, LutNumbers
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.loop_driver import Loop
from rnnqc.passes.cells.sequence_lengths import positive_zeros
from rnnqc.passes.qcdq.emit_qcdq import LARGEST_ROW, SMALLEST_ROW
from rnnqc.passes.render.operands.emit_wide_codes import WIDE_BITS, planes, separate_planes, wide_codes, zero_planes

LARGEST_WEIGHT = 127
"""Largest magnitude of an entry in the rows that represent zero points."""


def without_nan(b: Builder, value: Value, name: str) -> Value:
    """Replaces NaN by 0."""
    return b.op("Where", [b.op("IsNaN", [value], f"{name}.is_nan"), b.f32(0.0), value], f"{name}.clean")


def input_codes(b: Builder, loop: Loop, numbers: LutNumbers) -> tuple[Sequence[Value], Value | None]:
    """Returns quantized values of the sequence and, for scales of rows, the scales `[T*B]`.

    With a scale and a zero point for each row, the quantized values are `[T*B,I+n]`: n columns hold the row's zero
    point and multiply rows of W that add up to minus its column sums (see `with_zero_point_rows`). Otherwise they are
    `[T,B,I]`, without scales; those of an embedding `[T*B,I]`, with its scales and the zero point of the cell. 16-bit
    values are two planes, of high and low bytes.
    """
    x = loop.sequence(b)
    if numbers.x_mode == "codes":
        return [x], None
    if numbers.takes_row_codes:
        # onnxruntime multiplies int8 by int8 slowly, or in a way that saturates.
        floats = b.cast(x, np.float32, "x.codes.float")
        codes = b.op("QuantizeLinear", [floats, b.f32(1.0), b.u8(numbers.x_zero_point)], "x.codes")
        rows = b.op("Reshape", [codes, b.i64([-1, loop.cell.input_size])], "x.rows")
        return [rows], b.op("Reshape", [loop.scales(b), b.i64([-1])], "x.scale")
    x = without_nan(b, x, "x")
    wide = numbers.x_bits == WIDE_BITS
    if numbers.x_mode == "static":
        if wide:
            given = wide_codes(b, x, b.f32(numbers.x_scale), b.f32(numbers.x_zero_point), "x.codes")
            return separate_planes(b, given, "x.codes"), None
        return [b.op("QuantizeLinear", [x, b.f32(numbers.x_scale), b.u8(numbers.x_zero_point)], "x.codes")], None
    rows = b.op("Reshape", [x, b.i64([-1, loop.cell.input_size])], "x.rows")
    scale, below = row_range(b, rows, numbers.x_bits)
    top = b.f32(2.0**numbers.x_bits - 1)
    below = b.op("Div", [below, scale], "x.below_zero.units")
    zero: Value = b.op("Min", [b.op("Round", [below], "x.below_zero.rounded"), top], "x.zero_point.float")
    if wide:
        column = b.op("Unsqueeze", [zero, b.i64([1])], "x.zero_point.column")
        scales = b.op("Unsqueeze", [scale, b.i64([1])], "x.scale.column")
        codes = wide_codes(b, rows, scales, column, "x.codes")
    else:
        zero = b.cast(zero, np.uint8, "x.zero_point")
        codes = b.op("QuantizeLinear", [rows, scale, zero], "x.codes", axis=0)
    shape = b.op(
        "Concat",
        [b.op("Shape", [zero], "x.count"), b.i64([numbers.zero_point_rows])],
        "x.zero_point.shape",
        axis=0,
    )
    if not wide:
        column = b.op("Unsqueeze", [zero, b.i64([1])], "x.zero_point.column")
    columns = b.op("Expand", [column, shape], "x.zero_point.columns")
    whole = b.op("Concat", [codes, columns], "x.codes.with_zero_point", axis=1)
    return (separate_planes(b, whole, "x.codes") if wide else [whole]), scale


def row_range(b: Builder, rows: Value, bits: int, *, may_be_none: bool = False) -> tuple[Value, Value]:
    """Returns scales `[N]` of rows `[N,K]` for formats that cover 0 and their range, and the negated lower ends `[N]`.

    Args:
        b: Collects the nodes.
        rows: Without NaN.
        bits: Bits of the quantized values.
        may_be_none: Whether N may be 0. onnxruntime gives ReduceMin and ReduceMax of no rows the shape `[0,K]`.
    """
    limits: list[Value] = [
        b.op("Clip", [b.reduce(op, rows, [1], f"x.{name}", keepdims=0), b.f32(low), b.f32(high)], f"x.{name}.limited")
        for op, name, low, high in (
            ("ReduceMin", "least", -LARGEST_ROW, 0.0),
            ("ReduceMax", "largest", 0.0, LARGEST_ROW),
        )
    ]
    if may_be_none:
        limits = [b.op("Reshape", [v, b.i64([-1])], f"{v.name}.flat") for v in limits]
    extent = b.op("Max", [b.op("Sub", [limits[1], limits[0]], "x.extent"), b.f32(SMALLEST_ROW)], "x.extent.limited")
    scale = b.op("Div", [extent, b.f32(2.0**bits - 1)], "x.scale")
    return scale, b.op("Sub", [b.f32(0.0), limits[0]], "x.below_zero")


def with_zero_point_rows(b: Builder, w: Value, count: int | None) -> Value:
    """Appends int8 rows to W `[I,n]` that add up to minus its column sums: `count` rows, or as many as needed."""
    wide = b.cast(w, np.int32, "W.int32")
    sums = b.reduce_sum(wide, [0], "W.column_sums", keepdims=1)
    size = b.constant_size(sums, "W.column_sums.size")
    steps = _steps(b, size) if count is None else b.i32(LARGEST_WEIGHT * np.arange(count).reshape(-1, 1))
    rest = b.op("Sub", [size, steps], "W.column_sums.rest")
    taken = b.op(
        "Min", [b.op("Max", [rest, b.i32(0)], "W.column_sums.positive"), b.i32(LARGEST_WEIGHT)], "W.column_sums.taken"
    )
    signed = b.op(
        "Mul",
        [taken, b.op("Neg", [b.op("Sign", [sums], "W.column_sums.sign")], "W.column_sums.opposite")],
        "W.zero_point_rows",
    )
    return b.op("Concat", [w, b.cast(signed, np.int8, "W.zero_point_rows.int8")], "W.with_zero_point_rows", axis=0)


def _steps(b: Builder, sizes: Value) -> Value:
    """Returns 0, 127, 254, ... below the largest of `sizes`, `[n,1]`; always contains 0."""
    largest = b.reduce("ReduceMax", sizes, [0, 1], "W.column_sums.largest", keepdims=0)
    end = b.op("Max", [largest, b.i32(1)], "W.column_sums.end")
    steps = b.op("Range", [b.i32(0), end, b.i32(LARGEST_WEIGHT)], "W.column_sums.steps")
    return b.op("Unsqueeze", [steps, b.i64([1])], "W.column_sums.steps.column")


def row_codes(b: Builder, rows: Value, bits: int, name: str, zero_point: int) -> tuple[Value, Value]:
    """Returns quantized values of `[N,K]` with per-row dynamic scales, and the scales; 16-bit values are two planes."""
    scale = row_scales(b, rows, bits, name)
    if bits == WIDE_BITS:
        column = b.op("Unsqueeze", [scale, b.i64([1])], f"{name}.scale.column")
        codes = wide_codes(b, rows, column, b.f32(zero_point), f"{name}.codes")
        return planes(b, codes, f"{name}.codes"), scale
    zero_points = b.op("Expand", [b.u8([zero_point]), b.op("Shape", [scale], f"{name}.count")], f"{name}.zero_points")
    return b.op("QuantizeLinear", [rows, scale, zero_points], f"{name}.codes", axis=0), scale


def row_scales(b: Builder, rows: Value, bits: int, name: str) -> Value:
    """Returns scales `[N]` that map the largest magnitude of each row of `[N,K]` to the largest quantized value."""
    largest = b.reduce("ReduceMax", b.op("Abs", [rows], f"{name}.size"), [1], f"{name}.largest", keepdims=0)
    limited = b.op("Clip", [largest, b.f32(SMALLEST_ROW), b.f32(LARGEST_ROW)], f"{name}.limited")
    return b.op("Div", [limited, b.f32(2.0 ** (bits - 1) - 1)], f"{name}.scale")


def static_codes(b: Builder, y: Value, numbers: LutNumbers, name: str, grid: tuple[float, int] | None = None) -> Value:
    """Returns hidden states quantized with a fixed scale; 16-bit values are two planes.

    Args:
        b: Collects the nodes.
        y: Real values.
        numbers: The scalars of the cell.
        name: Prefix of the values.
        grid: Scale and zero point; by default those of the hidden state.
    """
    scale, zero_point = grid or (numbers.h_scale, numbers.h_zero_point)
    if numbers.h_bits == WIDE_BITS:
        codes = wide_codes(b, y, b.f32(scale), b.f32(zero_point), name)
        return planes(b, codes, name)
    return b.op("QuantizeLinear", [y, b.f32(scale), b.u8(zero_point)], name)


def beyond_codes(
    b: Builder, state: Value, numbers: LutNumbers, name: str, grid: tuple[float, int]
) -> list[tuple[Value, Value]]:
    """Returns the negated loss of quantizing a state `[B,H]` beyond the bound, in units of the scale, and quantized.

    Args:
        b: Collects the nodes.
        state: Real values.
        numbers: The scalars of the cell.
        name: Prefix of the values.
        grid: Scale and zero point of the quantized values.

    Returns:
        Quantized values and their per-row scales, whose matmuls must be added: one pair of 16 bits, or two of 8 bits.
    """
    unit, zero_point = np.float32(grid[0]), grid[1]
    low = min(float(np.float32(-zero_point) * unit), -numbers.h_bound)
    held = b.op("Clip", [state, b.f32(low), b.f32(numbers.h_bound)], f"{name}.held")
    rest: Value = b.op("Div", [b.op("Sub", [held, state], f"{name}.lost"), b.f32(unit)], f"{name}.units")
    codes, scale = row_codes(b, rest, numbers.h_bits, f"{name}.0", zero_point)
    if numbers.h_bits == WIDE_BITS:
        return [(codes, scale)]
    zero_points = b.op("Expand", [b.u8([zero_point]), b.op("Shape", [scale], f"{name}.count")], f"{name}.zero_points")
    real = b.op("DequantizeLinear", [codes, scale, zero_points], f"{name}.coarse", axis=0)
    return [
        (codes, scale),
        row_codes(b, b.op("Sub", [rest, real], f"{name}.fine"), numbers.h_bits, f"{name}.1", zero_point),
    ]


class BoundedHidden:
    """An initial hidden state, and whether it is within the bound.

    Args:
        b: Collects the nodes.
        cell: The cell.
        numbers: Its scalars.
        given: The state `[B,H]`.
        x: The sequence.

    Attributes:
        is_within: Whether all elements are, and none is NaN. It is never a constant, even for a constant state:
            onnxruntime 1.32 crashes when it inlines a branch with folded constants.
    """

    def __init__(self, b: Builder, cell: Cell, numbers: LutNumbers, given: Value, x: Value) -> None:
        self._cell, self._numbers = cell, numbers
        self._held = b.op("Clip", [given, b.f32(-numbers.h_bound), b.f32(numbers.h_bound)], "initial_h.held")
        self._lost = b.op("Sub", [given, self._held], "initial_h.lost")
        # The sum of NaN is NaN, which is not zero.
        total = b.reduce("ReduceL1", self._lost, [0, 1], "initial_h.lost.size", keepdims=0)
        zero = b.f32(0.0)
        if not numbers.h_is_data:
            element = b.op("Gather", [b.op("Reshape", [x, b.i64([-1])], "x.flat"), b.i64(0)], "x.element", axis=0)
            zero = b.op("Clip", [b.cast(element, np.float32, "x.element.float"), zero, zero], "x.element.zero")
        self.is_within = b.op("Equal", [total, zero], "initial_h.is_within")

    def within(self, b: Builder) -> Value:
        """Returns a state within the bound as the loop carries it."""
        if carries_codes(self._cell, self._numbers):
            return static_codes(b, self._held, self._numbers, "initial_h.codes")
        return b.op("Add", [self._held, self._lost], "initial_h.positive_zeros")  # adds 0, which turns -0 into +0


def initial_hidden(b: Builder, cell: Cell, numbers: LutNumbers, at: Boundary) -> Value | None:
    """Returns the initial hidden state as the loop carries it: quantized, or itself; None without one."""
    if at.initial_h is None:
        return None
    clean: Value = without_nan(b, at.initial_h, "initial_h")
    if carries_codes(cell, numbers):
        return static_codes(b, clean, numbers, "initial_h.codes")
    if cell.type.reads_hidden:
        clean = positive_zeros(b, clean, "initial_h.positive_zeros")
    return limited(b, clean, "initial_h")


def limited(b: Builder, state: Value, name: str) -> Value:
    """Limits a state to the range of per-row dynamic scales."""
    return b.op("Clip", [state, b.f32(-LARGEST_ROW), b.f32(LARGEST_ROW)], f"{name}.limited")


def initial_states(b: Builder, loop: Loop, numbers: LutNumbers, hidden: Value | None = None) -> list[Value]:
    """Returns the loop's initial states `[B,H]`: hidden state, quantized or float, and an LSTM's cell state in LSB.

    Args:
        b: Collects the nodes.
        loop: The loop.
        numbers: The scalars of the cell.
        hidden: The initial hidden state as the loop carries it, if it exists already.
    """
    cell, at = loop.cell, loop.at
    made = [hidden or initial_hidden(b, cell, numbers, at)]
    if cell.type.cell_state:
        made.append(_initial_cell_state(b, numbers, at))
    if all(v is not None for v in made):
        return [v for v in made if v is not None]
    shape = loop.state_shape(b)
    if made[0] is None and carries_codes(cell, numbers):
        made[0] = (
            zero_planes(b, numbers.h_zero_point, shape, "hidden.zeros")
            if numbers.h_bits == WIDE_BITS
            else b.op("Expand", [b.u8(numbers.h_zero_point), shape], "hidden.zeros")
        )
    names = ("hidden.zeros", "cell_state.zeros")
    return [v or b.op("Expand", [b.f32(0.0), shape], n) for v, n in zip(made, names, strict=False)]


def carries_codes(cell: Cell, numbers: LutNumbers) -> bool:
    """Whether the loop carries quantized hidden states, and not the hidden state itself."""
    return numbers.h_mode == "static" and not cell.type.reads_hidden


def _initial_cell_state(b: Builder, numbers: LutNumbers, at: Boundary) -> Value | None:
    if at.initial_c is None:
        return None
    clean = positive_zeros(b, without_nan(b, at.initial_c, "initial_c"), "initial_c.positive_zeros")
    if not numbers.cell_scale:
        return b.op("Clip", [clean, b.f32(-STATE_LIMIT), b.f32(STATE_LIMIT)], "initial_c.limited")
    units = b.op("Round", [b.op("Div", [clean, b.f32(numbers.cell_scale)], "initial_c.units")], "initial_c.rounded")
    return b.op("Clip", [units, b.f32(-numbers.cell_max), b.f32(numbers.cell_max)], "initial_c.codes")
