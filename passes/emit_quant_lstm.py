"""The integer cell in standard operators: what the function body of `QuantLSTMCell` computes.

docs/quant_lstm_cell.md says the same in words, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.cells.activations import RELU_TABLE, TABLE
from rnnqc.cells.base import CELL, FORGET, GATES, INPUT, OUTPUT, Cell
from rnnqc.ir import Graph, Model, Node, Value, Variable
from rnnqc.passes.emit_cell import SYMBOLIC_BATCH, Boundary, LengthMasks, dimensions, lens64, positive_zeros, scan
from rnnqc.passes.emit_qcdq import LARGEST_ROW, SMALLEST_ROW
from rnnqc.passes.emit_wide_codes import (
    WIDE_BITS,
    combined,
    low_correction,
    planes,
    separate_planes,
    weighted_sum,
    wide_codes,
    zero_planes,
)
from rnnqc.passes.fold_lstm import STATE_LIMIT, LstmNumbers


@dataclass(frozen=True)
class Operands:
    """The constant inputs of the cell, as values of the main graph.

    Without multipliers W and R may be packed int4 (uint8 `[K,2H]`), with multipliers they are. Only the arithmetic
    "grid" has int16 weights and zero points of weights.
    """

    W: Value
    R: Value
    x_multiplier: Value
    h_multiplier: Value
    B: Value
    gate_table: Value | None
    cell_table: Value | None
    P: Value | None
    W_group_multiplier: Value | None = None
    R_group_multiplier: Value | None = None
    W_zero_point: Value | None = None
    R_zero_point: Value | None = None


@dataclass(frozen=True)
class _Prepared:
    """Loop constants in the shapes the look-ups need."""

    gate_table: Value | None
    cell_table: Value | None
    h_multiplier: Value
    offsets: Value | None
    limits: tuple[Value, Value] | None


@dataclass(frozen=True)
class Wanted:
    """Which results of the loop are needed."""

    y: bool
    codes: bool
    c_steps: bool
    last_c: bool


def emit_quant_lstm(
    model: Model, cell: Cell, numbers: LstmNumbers, at: Boundary, w: Operands, codes: Value | None, *, dispatch: bool
) -> list[Node]:
    """The nodes of the integer cell between its boundary values.

    Args:
        model: The model.
        cell: The cell.
        numbers: Its scalars.
        at: Its boundary.
        w: Its constants. Without dispatch W and R are uint8 with zero point 128, and W has its zero-point rows already.
        codes: Value that receives the hidden codes `[T,B,H]`, if an integer consumer follows.
        dispatch: Whether to choose between int8 and uint8 weights when the session is created.
    """
    b = Builder(model, cell.name)
    wanted = Wanted(
        y=at.y is not None or at.y_h is not None,
        codes=codes is not None,
        c_steps=at.y_c is not None and at.sequence_lens is not None,
        last_c=at.y_c is not None and at.sequence_lens is None,
    )
    x_codes, row_scale = _input_codes(b, cell, numbers, at)
    h0, c0 = _initial_states(b, cell, numbers, at)
    emitter = _Loop(cell, numbers, at, w, wanted, x_codes, row_scale, h0, c0)
    results = _dispatched(b, emitter) if dispatch else emitter.emit(b, w.W, w.R, b.u8(128))
    finish_integer(b, cell, at, codes, results, numbers.cell_scale, numbers.h_zero_point)
    return b.nodes


def without_nan(b: Builder, value: Value, name: str) -> Value:
    """`value` with 0 for NaN."""
    return b.op("Where", [b.op("IsNaN", [value], f"{name}.is_nan"), b.f32(0.0), value], f"{name}.clean")


def _input_codes(b: Builder, cell: Cell, numbers: LstmNumbers, at: Boundary) -> tuple[Sequence[Value], Value | None]:
    """Codes of the sequence and the scales `[T*B]` of its rows.

    With one scale and zero point for each row the codes are `[T*B,I+n]`: n columns hold the row's zero point, and
    meet rows of W that add up to minus its column sums (see `_with_zero_point_rows`). Otherwise they are `[T,B,I]`,
    without scales. 16-bit codes are two planes, of their high and low bytes.
    """
    x = at.x
    if cell.reverse and at.sequence_lens is not None:
        x = b.op("ReverseSequence", [x, lens64(b, at.sequence_lens)], "x.reversed", batch_axis=1, time_axis=0)
    if numbers.x_mode == "codes":
        return [x], None
    x = without_nan(b, x, "x")
    wide = numbers.x_bits == WIDE_BITS
    if numbers.x_mode == "static":
        if wide:
            given = wide_codes(b, x, b.f32(numbers.x_scale), b.f32(numbers.x_zero_point), "x.codes")
            return separate_planes(b, given, "x.codes"), None
        return [b.op("QuantizeLinear", [x, b.f32(numbers.x_scale), b.u8(numbers.x_zero_point)], "x.codes")], None
    rows = b.op("Reshape", [x, b.i64([-1, cell.input_size])], "x.rows")
    limits = [
        b.op("Clip", [b.reduce(op, rows, [1], f"x.{name}", keepdims=0), b.f32(low), b.f32(high)], f"x.{name}.limited")
        for op, name, low, high in (
            ("ReduceMin", "least", -LARGEST_ROW, 0.0),
            ("ReduceMax", "largest", 0.0, LARGEST_ROW),
        )
    ]
    extent = b.op("Max", [b.op("Sub", [limits[1], limits[0]], "x.extent"), b.f32(SMALLEST_ROW)], "x.extent.limited")
    top = b.f32(2.0**numbers.x_bits - 1)
    scale = b.op("Div", [extent, top], "x.scale")
    below = b.op("Div", [b.op("Sub", [b.f32(0.0), limits[0]], "x.below_zero"), scale], "x.below_zero.units")
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


def _with_zero_point_rows(b: Builder, w: Value, count: int) -> Value:
    wide = b.cast(w, np.int32, "W.int32")
    sums = b.reduce_sum(wide, [0], "W.column_sums", keepdims=1)
    steps = b.i32(127 * np.arange(count).reshape(-1, 1))
    rest = b.op("Sub", [b.op("Abs", [sums], "W.column_sums.size"), steps], "W.column_sums.rest")
    taken = b.op("Min", [b.op("Max", [rest, b.i32(0)], "W.column_sums.positive"), b.i32(127)], "W.column_sums.taken")
    signed = b.op(
        "Mul",
        [taken, b.op("Neg", [b.op("Sign", [sums], "W.column_sums.sign")], "W.column_sums.opposite")],
        "W.zero_point_rows",
    )
    return b.op("Concat", [w, b.cast(signed, np.int8, "W.zero_point_rows.int8")], "W.with_zero_point_rows", axis=0)


def _row_codes(b: Builder, rows: Value, numbers: LstmNumbers, name: str) -> tuple[Value, Value]:
    largest = b.reduce("ReduceMax", b.op("Abs", [rows], f"{name}.size"), [1], f"{name}.largest", keepdims=0)
    limited = b.op("Clip", [largest, b.f32(SMALLEST_ROW), b.f32(LARGEST_ROW)], f"{name}.limited")
    scale = b.op("Div", [limited, b.f32(2.0 ** (numbers.h_bits - 1) - 1)], f"{name}.scale")
    if numbers.h_bits == WIDE_BITS:
        column = b.op("Unsqueeze", [scale, b.i64([1])], f"{name}.scale.column")
        codes = wide_codes(b, rows, column, b.f32(numbers.h_zero_point), f"{name}.codes")
        return planes(b, codes, f"{name}.codes"), scale
    zero_point = b.u8([numbers.h_zero_point])
    zero_points = b.op("Expand", [zero_point, b.op("Shape", [scale], f"{name}.count")], f"{name}.zero_points")
    return b.op("QuantizeLinear", [rows, scale, zero_points], f"{name}.codes", axis=0), scale


def _static_codes(b: Builder, y: Value, numbers: LstmNumbers, name: str) -> Value:
    """Hidden codes with a fixed scale; two planes of 16-bit ones."""
    if numbers.h_bits == WIDE_BITS:
        codes = wide_codes(b, y, b.f32(numbers.h_scale), b.f32(numbers.h_zero_point), name)
        return planes(b, codes, name)
    return b.op("QuantizeLinear", [y, b.f32(numbers.h_scale), b.u8(numbers.h_zero_point)], name)


def _initial_states(b: Builder, cell: Cell, numbers: LstmNumbers, at: Boundary) -> tuple[Value, Value]:
    """Hidden codes (or the float state, with one scale for each row) and cell state in cell units, `[B,H]`."""
    static = numbers.h_mode == "static"
    h0: Value | None = None
    c0: Value | None = None
    if at.initial_h is not None:
        clean = without_nan(b, at.initial_h, "initial_h")
        if static:
            h0 = _static_codes(b, clean, numbers, "initial_h.codes")
        else:
            h0 = b.op("Clip", [clean, b.f32(-LARGEST_ROW), b.f32(LARGEST_ROW)], "initial_h.limited")
    if at.initial_c is not None:
        clean = positive_zeros(b, without_nan(b, at.initial_c, "initial_c"), "initial_c.positive_zeros")
        if numbers.cell_scale:
            units = b.op(
                "Round", [b.op("Div", [clean, b.f32(numbers.cell_scale)], "initial_c.units")], "initial_c.rounded"
            )
            c0 = b.op("Clip", [units, b.f32(-numbers.cell_max), b.f32(numbers.cell_max)], "initial_c.codes")
        else:
            c0 = b.op("Clip", [clean, b.f32(-STATE_LIMIT), b.f32(STATE_LIMIT)], "initial_c.limited")
    if h0 is None or c0 is None:
        shape = b.op("Concat", [dimensions(b, at.x, 1, 2, "batch"), b.i64([cell.hidden_size])], "state.shape", axis=0)
        if h0 is None and static and numbers.h_bits == WIDE_BITS:
            h0 = zero_planes(b, numbers.h_zero_point, shape, "hidden.zeros")
        h0 = h0 or b.op("Expand", [b.u8(numbers.h_zero_point) if static else b.f32(0.0), shape], "hidden.zeros")
        c0 = c0 or b.op("Expand", [b.f32(0.0), shape], "cell_state.zeros")
    return h0, c0


def _dispatched(b: Builder, emitter: _Loop) -> dict[str, Value]:
    """An If on whether this machine multiplies uint8 by int8 exactly; onnxruntime keeps one branch of it."""
    left = b.u8(np.full((2, 16), 255))
    right = b.model.constant(np.full((16, 16), 127), np.int8)
    product = b.op("MatMulInteger", [left, right], "exact.product")
    equal = b.op("Equal", [product, b.i32(255 * 127 * 16)], "exact.entries")
    least = b.reduce("ReduceMin", b.cast(equal, np.int32, "exact.numbers"), [0, 1], "exact.least", keepdims=0)
    exact = b.cast(least, np.bool_, "uint8_by_int8_is_exact")

    def weights(inner: Builder) -> tuple[Value, Value]:
        f = emitter.numbers
        w, r = (
            unpacked(inner, emitter.cell, emitter.w, key, size)
            for key, size in (("W", f.w_group_size), ("R", f.r_group_size))
        )
        rows = f.zero_point_rows
        return (_with_zero_point_rows(inner, w, rows) if rows else w), r

    def unsigned(inner: Builder) -> dict[str, Value]:
        def shifted(value: Value, name: str) -> Value:
            wide = inner.op("Add", [inner.cast(value, np.int32, f"{name}.int32"), inner.i32(128)], f"{name}.shifted")
            return inner.cast(wide, np.uint8, f"{name}.uint8")

        w, r = weights(inner)
        return emitter.emit(inner, shifted(w, "W"), shifted(r, "R"), inner.u8(128))

    def signed(inner: Builder) -> dict[str, Value]:
        return emitter.emit(inner, *weights(inner), None)

    return _choose(b, exact, ("int8", signed), ("uint8", unsigned))


def unpacked(b: Builder, cell: Cell, w: Operands, key: str, size: int) -> Value:
    """W or R as codes, from packed int4 if they are stored so (rnnqc/packing.py), in groups of `size` rows or 0."""
    hidden = cell.hidden_size
    stored, multiplier, rows = {
        "W": (w.W, w.W_group_multiplier, cell.input_size),
        "R": (w.R, w.R_group_multiplier, hidden),
    }[key]
    if stored.dtype != np.uint8:
        return stored
    low = b.op("Mod", [stored, b.u8(16)], f"{key}.low")
    high = b.op("BitShift", [stored, b.u8(4)], f"{key}.high", direction="RIGHT")
    nibbles = b.cast(b.op("Concat", [low, high], f"{key}.nibbles", axis=1), np.int32, f"{key}.nibbles.int32")
    codes = b.op("Sub", [nibbles, b.i32(8)], f"{key}.codes.int32")
    if multiplier is not None:
        name = f"{key}.multiplier"
        column = b.op("Unsqueeze", [b.cast(multiplier, np.int32, f"{name}.int32"), b.i64([1])], f"{name}.groups")
        repeated = b.op("Expand", [column, b.i64([1, size, 1])], f"{name}.expanded")
        each: Value = b.op("Reshape", [repeated, b.i64([-1, 4 * hidden])], f"{name}.rows")
        if rows % size:
            each = b.op("Slice", [each, b.i64([0]), b.i64([rows]), b.i64([0])], f"{name}.rows.present")
        codes = b.op("Mul", [codes, each], f"{key}.codes.multiplied")
    return b.cast(codes, np.int8, f"{key}.codes")


Branch = tuple[str, Callable[[Builder], dict[str, Value]]]


def _choose(b: Builder, condition: Value, then_branch: Branch, else_branch: Branch) -> dict[str, Value]:
    """An If whose branches make the same results under the same names."""
    graphs: list[Graph] = []
    names: list[str] = []
    for suffix, make in (then_branch, else_branch):
        inner = Builder(b.model, b.cell, f"{b.prefix}/{suffix}" if b.prefix else suffix)
        results = make(inner)
        graphs.append(inner.graph([], list(results.values()), "branch"))
        names = list(results)
    outputs = b.ops("If", [condition], names, then_branch=graphs[0], else_branch=graphs[1])
    for output, made in zip(outputs, graphs[0].outputs, strict=True):
        output.dtype = made.dtype
    return dict(zip(names, outputs, strict=True))


@dataclass(frozen=True)
class _Loop:
    """The products and the Scan over time, for one form of the weights."""

    cell: Cell
    numbers: LstmNumbers
    at: Boundary
    w: Operands
    wanted: Wanted
    x_codes: Sequence[Value]
    row_scale: Value | None
    h0: Value
    c0: Value

    @property
    def single(self) -> bool:
        """Whether the batch is known to be 1."""
        return self.cell.static_batch == 1

    def emit(self, b: Builder, w: Value, r: Value, weight_zero_point: Value | None) -> dict[str, Value]:
        """Emits into `b`; returns the wanted results by name.

        Args:
            b: Collects the nodes.
            w: W, with its zero-point rows.
            r: R.
            weight_zero_point: Zero point of both; None for 0.
        """
        numbers, hidden = self.numbers, self.cell.hidden_size
        batch = self.cell.static_batch or SYMBOLIC_BATCH
        zero_points = [weight_zero_point] if weight_zero_point is not None else []
        wide_x, wide_h = numbers.x_bits == WIDE_BITS, numbers.h_bits == WIDE_BITS
        x_zero_point = 0 if self.row_scale is not None else numbers.x_zero_point
        x_zero_points = [x_zero_point >> 8, x_zero_point & 255] if wide_x else [x_zero_point]
        products = [
            b.op("MatMulInteger", [codes, w, b.u8(z), *zero_points], f"x.product{plane}")
            for codes, z, plane in zip(self.x_codes, x_zero_points, (".high", ".low") if wide_x else ("",), strict=True)
        ]
        if wide_x:
            real: Value = weighted_sum(b, products[0], products[1], "x.product")
            if self.row_scale is not None:
                column = b.op("Unsqueeze", [self.row_scale, b.i64([1])], "x.scale.for_product")
                real = b.op("Mul", [real, column], "x.product.scaled")
        elif self.row_scale is not None:
            real = b.op("DequantizeLinear", [products[0], self.row_scale], "x.product.scaled", axis=0)
        else:
            real = b.cast(products[0], np.float32, "x.product.float")
        p = b.op("Add", [b.op("Mul", [real, self.w.x_multiplier], "x.projection.units"), self.w.B], "x.projection")
        if self.row_scale is not None:
            shape = dimensions(b, self.at.x, 0, 2, "x.shape")
            p = b.op(
                "Reshape",
                [p, b.op("Concat", [shape, b.i64([4 * hidden])], "x.projection.shape", axis=0)],
                "x.projection.steps",
            )
        before = self._prepare(b)
        correction = low_correction(b, r, weight_zero_point, numbers.h_zero_point, "R") if wide_h else None
        body = b.body()
        static = numbers.h_mode == "static"
        # Two planes of a batch that is only known as a symbol have a symbol of their own.
        code_rows = batch if not wide_h else 2 * batch if isinstance(batch, int) else f"{batch}_planes"
        state_shape = [code_rows if static else batch, hidden]
        h = body.value("hidden.previous", np.uint8 if static else np.float32, state_shape)
        c = body.value("cell_state.previous", np.float32, [batch, hidden])
        p_t = body.value("x.projection.step", np.float32, [batch, 4 * hidden])
        codes, scale = (h, None) if static else _row_codes(body, h, numbers, "hidden")
        h_zero_point = body.u8(numbers.h_zero_point >> 8 if wide_h else numbers.h_zero_point)
        acc = body.op("MatMulInteger", [codes, r, h_zero_point, *zero_points], "hidden.product")
        if wide_h:
            acc_real: Value = combined(body, acc, correction, "hidden.product")
            if scale is not None:
                column = body.op("Unsqueeze", [scale, body.i64([1])], "hidden.scale.for_product")
                acc_real = body.op("Mul", [acc_real, column], "hidden.product.scaled")
        elif scale is not None:
            acc_real = body.op("DequantizeLinear", [acc, scale], "hidden.product.scaled", axis=0)
        else:
            acc_real = body.cast(acc, np.float32, "hidden.product.float")
        g = body.op("Add", [body.op("Mul", [acc_real, before.h_multiplier], "hidden.units"), p_t], "preactivation")
        c_new, y = self._gates(body, g, c, before)
        outputs: list[Value] = []
        names: list[str] = []

        def result(value: Value, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str] = (batch, hidden)) -> None:
            # Scan needs the rank of its body's outputs inside a Loop.
            copy = next((v for v in outputs if v is value), None)
            if copy is not None:
                value = body.op("Identity", [value], f"{name}.copy")
            if isinstance(value, Variable):
                value.dtype, value.shape = np.dtype(dtype), list(shape)
            outputs.append(value)
            names.append(name)

        if static:
            next_h = _static_codes(body, y, numbers, "hidden.codes")
            result(next_h, "hidden.last", np.uint8, state_shape)
        else:
            result(y, "hidden.last", np.float32)
        result(c_new, "cell_state.last", np.float32)
        if self.wanted.y:
            result(y, "hidden.steps", np.float32)
        if self.wanted.codes:
            result(next_h, "hidden.codes.steps", np.uint8)
        if self.wanted.c_steps:
            result(c_new, "cell_state.steps", np.float32)
        made = dict(
            zip(
                names,
                scan(b, body, self.cell, self.at, [self.h0, self.c0], [p], [h, c, p_t], outputs, names),
                strict=True,
            )
        )
        keep = {"hidden.steps", "hidden.codes.steps", "cell_state.steps"} | (
            {"cell_state.last"} if self.wanted.last_c else set()
        )
        for name, value in made.items():
            value.dtype = np.dtype(np.uint8 if "codes" in name or (static and name == "hidden.last") else np.float32)
        return {k: v for k, v in made.items() if k in keep}

    @property
    def _uniform(self) -> bool:
        """Whether all gates are look-ups in tables of one size."""
        return self.numbers.gate_table_size > 0 and self.w.P is None

    def _prepare(self, b: Builder) -> _Prepared:
        """Tables, offsets and limits for the loop; with a batch of 1 tables are rows, and the loop needs no Reshape."""
        f, hidden = self.numbers, self.cell.hidden_size
        gate, cell = self.w.gate_table, self.w.cell_table
        offsets: Value | None = None
        limits: tuple[Value, Value] | None = None

        def for_each_row(per_unit: Value, name: str) -> Value:
            # Operands of equal shape take onnxruntime 20 % less time than a row that is broadcast.
            batch = self.cell.static_batch
            return per_unit if batch is None else b.op("Expand", [per_unit, b.i64([batch, 4 * hidden])], name)

        def for_each_unit(per_gate: Value, name: str) -> Value:
            column = b.op("Expand", [per_gate, b.i64([len(GATES), hidden])], f"{name}.matrix")
            return for_each_row(b.op("Reshape", [column, b.i64([-1])], name), f"{name}.rows")

        if self._uniform:
            if len(set(f.gate_min)) > 1 or len(set(f.gate_max)) > 1:
                low, high = ([[v] for v in values] for values in (f.gate_min, f.gate_max))
                limits = for_each_unit(b.f32(low), "gate_min"), for_each_unit(b.f32(high), "gate_max")
            if not self.single and any(f.gate_table_offset):
                offsets = for_each_unit(b.i32([[o] for o in f.gate_table_offset]), "gate_table_offset")
        if self.single:
            if cell is not None:
                cell = b.op("Unsqueeze", [cell, b.i64([0])], "cell_table.row")
            if self._uniform and gate is not None:
                size = f.gate_table_size
                rows = [
                    b.op("Slice", [gate, b.i64([o]), b.i64([o + size]), b.i64([0])], f"{GATES[k]}.table")
                    for k, o in enumerate(f.gate_table_offset)
                ]
                gate = b.op(
                    "Reshape",
                    [b.op("Concat", rows, "gate_table.rows", axis=0), b.i64([len(GATES), size])],
                    "gate_table.matrix",
                )
        return _Prepared(gate, cell, for_each_row(self.w.h_multiplier, "h_multiplier.rows"), offsets, limits)

    def _gates(self, body: Builder, g: Value, c: Value, before: _Prepared) -> tuple[Value, Value]:
        cell, f = self.cell, self.numbers
        hidden = cell.hidden_size
        gates: list[Value | None] = [None] * len(GATES)
        if self._uniform:
            gates = list(self._uniform_gates(body, g, before))
            gate = None
        else:
            pre: list[Value] = list(
                body.ops("Split", [g, body.i64([hidden] * 4)], [f"{n}.product" for n in GATES], axis=1)
            )

            def gate(k: int, state: Value | None) -> Value:
                value = pre[k]
                if self.w.P is not None and k != CELL:
                    part = body.op(
                        "Slice",
                        [self.w.P, body.i64([k * hidden]), body.i64([(k + 1) * hidden]), body.i64([0])],
                        f"{GATES[k]}.peephole",
                    )
                    value = body.op(
                        "Add", [value, body.op("Mul", [part, state], f"{GATES[k]}.peephole.product")], f"{GATES[k]}.sum"
                    )
                return self._gate(body, k, value, before.gate_table)

        def value_of(k: int, state: Value | None) -> Value:
            made = gates[k]
            if made is None:
                assert gate is not None
                made = gate(k, state)
            return made

        i = value_of(INPUT, c)
        fg = body.op("Sub", [body.f32(1.0), i], "forget_gate.coupled") if cell.input_forget else value_of(FORGET, c)
        d = value_of(CELL, None)
        u = body.op(
            "Add",
            [body.op("Mul", [fg, c], "cell_state.kept"), body.op("Mul", [i, d], "cell_state.added")],
            "cell_state.sum",
        )
        if f.cell_scale:
            whole = body.op("Round", [u], "cell_state.rounded")
            c_new: Value = whole
            if not f.cell_is_wide:
                c_new = body.op("Clip", [whole, body.f32(-f.cell_max), body.f32(f.cell_max)], "cell_state")
        else:
            c_new = body.op("Clip", [u, body.f32(-STATE_LIMIT), body.f32(STATE_LIMIT)], "cell_state")
        o = value_of(OUTPUT, c_new)
        y = body.op("Mul", [o, self._output(body, c_new, before.cell_table)], "hidden")
        return c_new, y

    def _uniform_gates(self, body: Builder, g: Value, before: _Prepared) -> list[Value]:
        hidden, table, offsets = self.cell.hidden_size, before.gate_table, before.offsets
        assert table is not None
        codes = body.cast(self._limited(body, g, before), np.int32, "codes")
        if self.single:
            rows = body.op("Reshape", [codes, body.i64([len(GATES), hidden])], "codes.rows")
            values: Value = body.op("GatherElements", [table, rows], "gates", axis=1)
            return list(body.ops("Split", [values, body.i64([1] * 4)], list(GATES), axis=0))
        if offsets is not None:
            codes = body.op("Add", [codes, offsets], "indices")
        values = self._lookup(body, table, codes, [-1, 4 * hidden], "gates")
        return list(body.ops("Split", [values, body.i64([hidden] * 4)], list(GATES), axis=1))

    def _limited(self, body: Builder, g: Value, before: _Prepared) -> Value:
        f = self.numbers
        if before.limits is None:
            return body.op("Clip", [g, body.f32(f.gate_min[0]), body.f32(f.gate_max[0])], "preactivation.limited")
        high = body.op("Min", [g, before.limits[1]], "preactivation.below")
        return body.op("Max", [high, before.limits[0]], "preactivation.limited")

    def _lookup(self, body: Builder, table: Value, indices: Value, shape: list[int], name: str) -> Value:
        # GatherElements takes 0.6 ns per element in onnxruntime, Gather 8.
        flat = body.op("Reshape", [indices, body.i64([-1])], f"{name}.indices")
        taken = body.op("GatherElements", [table, flat], f"{name}.taken", axis=0)
        return body.op("Reshape", [taken, body.i64(shape)], f"{name}.values")

    def _gate(self, body: Builder, k: int, value: Value, table: Value | None) -> Value:
        f, hidden = self.numbers, self.cell.hidden_size
        name = GATES[k]
        v = body.op("Clip", [value, body.f32(f.gate_min[k]), body.f32(f.gate_max[k])], f"{name}.limited")
        kind = f.gate_kinds[k]
        activation = self.cell.gate_activation(k)
        if kind == TABLE:
            codes: Value = body.cast(v, np.int32, f"{name}.codes")
            if f.gate_table_offset[k]:
                codes = body.op("Add", [codes, body.i32(f.gate_table_offset[k])], f"{name}.indices")
            assert table is not None
            return self._lookup(body, table, codes, [-1, hidden], name)
        if kind == RELU_TABLE:
            n = f.gate_index_size[k] / 2
            scaled = body.op("Mul", [v, body.f32(f.gate_index_scale[k])], f"{name}.scaled")
            raised = body.op("Add", [scaled, body.f32(n + 0.5)], f"{name}.raised")
            limited = body.op("Clip", [raised, body.f32(0.0), body.f32(2 * n - 0.5)], f"{name}.code")
            indices = body.op(
                "Add",
                [body.cast(limited, np.int32, f"{name}.codes"), body.i32(f.gate_table_offset[k])],
                f"{name}.indices",
            )
            assert table is not None
            return body.op(
                "Add",
                [
                    emit_exact(body, "Relu", 0.0, 0.0, v, f"{name}.relu"),
                    self._lookup(body, table, indices, [-1, hidden], f"{name}.rest"),
                ],
                name,
            )
        return emit_exact(body, kind, activation.alpha, activation.beta, v, name)

    def _output(self, body: Builder, c: Value, table: Value | None) -> Value:
        f, hidden = self.numbers, self.cell.hidden_size
        output = self.cell.activations[2]
        name = "hidden.squashed"
        if output.kind not in (TABLE, RELU_TABLE):
            real = body.op("Mul", [c, body.f32(f.cell_scale)], f"{name}.argument") if f.cell_scale else c
            return emit_exact(body, output.kind, output.alpha, output.beta, real, name)
        assert table is not None
        half = f.cell_table_size // 2
        codes = c
        if not f.cell_scale:
            codes = body.op(
                "Round", [body.op("Mul", [c, body.f32(f.cell_index_scale)], f"{name}.scaled")], f"{name}.rounded"
            )
        if not f.cell_scale or f.cell_max > half - 1:
            codes = body.op("Clip", [codes, body.f32(-half), body.f32(half - 1)], f"{name}.code")
        index = body.cast(codes, np.int32, f"{name}.codes")
        if self.single:
            taken: Value = body.op("GatherElements", [table, index], f"{name}.value", axis=1)
        else:
            taken = self._lookup(body, table, index, [-1, hidden], name)
        if output.kind == RELU_TABLE:
            return body.op("Add", [emit_exact(body, "Relu", 0.0, 0.0, c, f"{name}.relu"), taken], name)
        return taken


def emit_exact(body: Builder, kind: str, alpha: float, beta: float, v: Value, name: str) -> Value:
    """An activation as IEEE operations, each exact or correctly rounded (docs/quant_lstm_cell.md, "Activations")."""

    def select(condition: str, left: Value, right: Value, yes: Value, no: Value, label: str) -> Value:
        return body.op("Where", [body.op(condition, [left, right], f"{label}.when"), yes, no], label)

    zero = body.f32(0.0)
    if kind == "Relu":
        return select("Greater", v, zero, v, zero, name)
    if kind == "LeakyRelu":
        scaled = body.op("Mul", [body.f32(alpha), v], f"{name}.scaled")
        return positive_zeros(body, select("Less", v, zero, scaled, v, f"{name}.signed"), name)
    if kind == "ThresholdedRelu":
        return positive_zeros(body, select("Greater", v, body.f32(alpha), v, zero, f"{name}.signed"), name)
    scaled = body.op("Mul", [body.f32(alpha), v], f"{name}.scaled") if kind in ("Affine", "HardSigmoid") else v
    if kind == "Affine":
        return body.op("Add", [scaled, body.f32(beta)], name)
    if kind == "HardSigmoid":
        line = body.op("Add", [scaled, body.f32(beta)], f"{name}.line")
        positive = select("Greater", line, zero, line, zero, f"{name}.positive")
        return select("Less", positive, body.f32(1.0), positive, body.f32(1.0), name)
    if kind == "Softsign":
        below = body.op("Add", [body.f32(1.0), body.op("Abs", [v], f"{name}.size")], f"{name}.below")
        return body.op("Div", [v, below], name)
    raise ValueError(kind)


def finish_integer(
    b: Builder,
    cell: Cell,
    at: Boundary,
    codes: Value | None,
    results: dict[str, Value],
    cell_scale: float,
    h_zero_point: int,
) -> None:
    """Writes the boundary outputs from the results of the loop.

    Args:
        b: Collects the nodes.
        cell: The cell.
        at: Its boundary.
        codes: Value that receives the hidden codes, or None.
        results: `hidden.steps`, `hidden.codes.steps`, `cell_state.steps` `[T,B,H]` and `cell_state.last` `[B,H]`, as
            far as they are needed.
        cell_scale: Real value of one unit of the cell state in `results`; 0 for real values.
        h_zero_point: The hidden code that stands for 0.
    """
    y, y_codes = results.get("hidden.steps"), results.get("hidden.codes.steps")

    def cell_state(value: Value, target: Value) -> None:
        if cell_scale:
            b.add("Mul", [value, b.f32(cell_scale)], [target], "Y_c")
        else:
            b.add("Identity", [value], [target], "Y_c")

    if at.sequence_lens is None:
        if at.y is not None:
            b.add("Identity", [y], [at.y], "Y")
        if codes is not None:
            b.add("Identity", [y_codes], [codes], "Y_codes")
        if at.y_h is not None:
            b.add("Gather", [y, b.i64(0 if cell.reverse else -1)], [at.y_h], "Y_h", axis=0)
        if at.y_c is not None:
            cell_state(results["cell_state.last"], at.y_c)
        return
    masks = LengthMasks(b, at)
    if at.y is not None and y is not None:
        masks.natural_order(masks.mask_float(y, "hidden.masked"), at.y, cell.reverse, "Y")
    if codes is not None:
        blank = b.u8(h_zero_point)
        masks.natural_order(masks.mask(y_codes, blank, "codes.masked"), codes, cell.reverse, "Y_codes")
    if at.y_h is not None and y is not None:
        b.add("Identity", [masks.pick(y, "hidden.picked")], [at.y_h], "Y_h")
    if at.y_c is not None:
        cell_state(masks.pick(results["cell_state.steps"], "cell_state.picked"), at.y_c)
