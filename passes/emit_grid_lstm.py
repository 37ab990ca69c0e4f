"""The cell in the arithmetic "grid", in standard operators: what the function body of `QuantLSTMCell` computes there.

docs/quant_lstm_cell.md says the same in words. Products are exact, every other operation is one operation in float64,
or in float32 for the arithmetic "grid32".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.cells.base import CELL, FORGET, GATES, INPUT, OUTPUT, Cell
from rnnqc.ir import Model, Node, Value, Variable
from rnnqc.passes.emit_cell import SYMBOLIC_BATCH, Boundary, dimensions, lens64, positive_zeros, scan
from rnnqc.passes.emit_codes import without_nan
from rnnqc.passes.emit_grid_product import GridProduct, grid_product
from rnnqc.passes.emit_grid_quantizers import GridEmitter, is_uniform
from rnnqc.passes.emit_results import finish_integer
from rnnqc.passes.grid_numbers import Grid, GridNumbers
from rnnqc.passes.operands import Operands, Wanted


def emit_grid_lstm(
    model: Model, cell: Cell, numbers: GridNumbers, at: Boundary, w: Operands, codes: Value | None
) -> list[Node]:
    """The nodes of the cell between its boundary values.

    Args:
        model: The model.
        cell: The cell.
        numbers: Its scalars.
        at: Its boundary.
        w: Its constants.
        codes: Value that receives the hidden codes `[T,B,H]`, if an integer consumer follows.
    """
    b = Builder(model, cell.name)
    wanted = Wanted.of(at, codes)
    results = _Loop(cell, numbers, at, w, wanted).emit(b)
    if numbers.rounded_output and wanted.y:
        results["hidden.steps"] = positive_zeros(b, results["hidden.steps"], "hidden.positive_zeros")
    for name in ("cell_state.steps", "cell_state.last"):
        if name in results:
            real = b.cast(results[name], np.float32, f"{name}.float")
            results[name] = positive_zeros(b, real, f"{name}.positive_zeros")
    finish_integer(b, cell, at, codes, results, 0.0, numbers.grid("hidden").zero_point)
    return b.nodes


@dataclass(frozen=True)
class _Prepared:
    """Loop constants."""

    h_multiplier: Value
    gate_table: Value
    cell_table: Value
    peepholes: Sequence[Value] | None  # of the gates i, o, f


@dataclass(frozen=True)
class _Loop:
    cell: Cell
    numbers: GridNumbers
    at: Boundary
    w: Operands
    wanted: Wanted

    @property
    def single(self) -> bool:
        """Whether the batch is known to be 1: tables are rows then, and look-ups need no Reshape."""
        return self.cell.static_batch == 1

    def emit(self, b: Builder) -> dict[str, Value]:
        """Emits into `b`; returns the wanted results by name, `hidden.steps` as float32 and cell states as real."""
        numbers, cell = self.numbers, self.cell
        hidden, real_type = cell.hidden_size, numbers.real
        e = GridEmitter(b, real_type, hidden)
        w, r = (grid_product(e, cell, numbers, self.w, key) for key in ("W", "R"))
        sums = w.emit(e, self._input(e, w), "x.product")
        units = b.op("Mul", [sums, e.cast(self.w.x_multiplier, "x_multiplier.real")], "x.product.scaled")
        bias = e.cast(self.w.B, "B.real")
        p = units if numbers.bias_last else b.op("Add", [units, bias], "x.projection.exact")
        p = e.quantized_gates(p, numbers.gate_grids("input_product"), "input_product")
        before = self._prepare(e)
        h0, c0 = self._initial_states(e, r)
        batch = cell.static_batch or SYMBOLIC_BATCH
        body = b.body()
        inner = GridEmitter(body, real_type, hidden)
        h = body.value("hidden.previous", np.uint8 if r.integer else real_type, [batch, hidden])
        c = body.value("cell_state.previous", real_type, [batch, hidden])
        p_t = body.value("x.projection.step", real_type, [batch, 4 * hidden])
        ph = body.op("Mul", [r.emit(inner, h, "hidden.product"), before.h_multiplier], "hidden.product.scaled")
        ph = inner.quantized_gates(ph, numbers.gate_grids("hidden_product"), "hidden_product")
        g = body.op("Add", [p_t, ph], "products" if numbers.bias_last else "preactivation")
        if numbers.bias_last:
            g = body.op("Add", [g, bias], "preactivation")
        c_new, y_exact = self._cell(inner, g, c, before)
        grid = numbers.grid("hidden")
        if numbers.rounded_output:
            multiples = inner.multiples(y_exact, grid, "hidden")
            real = body.op("Mul", [multiples, inner.constant(grid.scale)], "hidden.quantized")
            y = body.cast(real, np.float32, "hidden")
        else:
            y = body.cast(y_exact, np.float32, "hidden")
            multiples = inner.multiples(inner.cast(y, "hidden.real"), grid, "hidden")
        codes: Value | None = None
        if r.integer or self.wanted.codes:
            codes = body.cast(self._shifted(inner, multiples, grid, "hidden"), np.uint8, "hidden.codes")
        outputs: list[Value] = []
        names: list[str] = []

        def result(value: Value, name: str, dtype: npt.DTypeLike) -> None:
            # Scan needs the rank of its body's outputs inside a Loop.
            if any(v is value for v in outputs):
                value = body.op("Identity", [value], f"{name}.copy")
            assert isinstance(value, Variable)
            value.dtype, value.shape = np.dtype(dtype), [batch, hidden]
            outputs.append(value)
            names.append(name)

        if r.integer:
            assert codes is not None
            result(codes, "hidden.last", np.uint8)
        else:
            result(multiples, "hidden.last", real_type)
        result(c_new, "cell_state.last", real_type)
        if self.wanted.y:
            result(y, "hidden.steps", np.float32)
        if self.wanted.codes:
            assert codes is not None
            result(codes, "hidden.codes.steps", np.uint8)
        if self.wanted.c_steps:
            result(c_new, "cell_state.steps", real_type)
        made = dict(zip(names, scan(b, body, cell, self.at, [h0, c0], [p], [h, c, p_t], outputs, names), strict=True))
        for value, inside in zip(made.values(), outputs, strict=True):
            value.dtype = inside.dtype
        kept = {"hidden.steps", "hidden.codes.steps", "cell_state.steps"}
        return {k: v for k, v in made.items() if k in kept or (k == "cell_state.last" and self.wanted.last_c)}

    def _input(self, e: GridEmitter, w: GridProduct) -> Value:
        """The sequence as `w` takes it, `[T,B,I]` in loop order."""
        b, x = e.b, self.at.x
        if self.cell.reverse and self.at.sequence_lens is not None:
            x = b.op("ReverseSequence", [x, lens64(b, self.at.sequence_lens)], "x.reversed", batch_axis=1, time_axis=0)
        if self.numbers.x_mode != "codes":
            return self._codes(e, w, x, "x")
        if w.integer:
            return x
        return b.op("Sub", [e.cast(x, "x.codes.real"), e.constant(w.codes.zero_point)], "x.multiples")

    def _codes(self, e: GridEmitter, product: GridProduct, value: Value, name: str) -> Value:
        """Float values, NaN counting as 0, as `product` takes them."""
        clean = e.cast(without_nan(e.b, value, name), f"{name}.real")
        multiples = e.multiples(clean, product.codes, name)
        if product.integer:
            return e.b.cast(self._shifted(e, multiples, product.codes, name), np.uint8, f"{name}.codes")
        return multiples

    def _shifted(self, e: GridEmitter, multiples: Value, grid: Grid, name: str) -> Value:
        if not grid.zero_point:
            return multiples
        return e.b.op("Add", [multiples, e.constant(grid.zero_point)], f"{name}.shifted")

    def _initial_states(self, e: GridEmitter, r: GridProduct) -> tuple[Value, Value]:
        """Hidden codes (or multiples) and the cell state in the real type, `[B,H]`."""
        b, at = e.b, self.at
        h0: Value | None = None
        c0: Value | None = None
        if at.initial_h is not None:
            h0 = self._codes(e, r, at.initial_h, "initial_h")
        if at.initial_c is not None:
            clean = e.cast(without_nan(b, at.initial_c, "initial_c"), "initial_c.real")
            c0 = e.quantized(clean, self.numbers.grid("cell_state"), "initial_c")
        if h0 is None or c0 is None:
            batch = dimensions(b, at.x, 1, 2, "batch")
            shape = b.op("Concat", [batch, b.i64([self.cell.hidden_size])], "state.shape", axis=0)
            zero = b.u8(r.codes.zero_point) if r.integer else e.constant(0.0)
            h0 = h0 or b.op("Expand", [zero, shape], "hidden.zeros")
            c0 = c0 or b.op("Expand", [e.constant(0.0), shape], "cell_state.zeros")
        return h0, c0

    def _prepare(self, e: GridEmitter) -> _Prepared:
        b, hidden, w = e.b, self.cell.hidden_size, self.w
        assert w.gate_table is not None and w.cell_table is not None

        def table(given: Value, name: str) -> Value:
            real = e.cast(given, f"{name}.real")
            return b.op("Unsqueeze", [real, b.i64([0])], f"{name}.row") if self.single else real

        gate_table, cell_table = table(w.gate_table, "gate_table"), table(w.cell_table, "cell_table")
        peepholes: Sequence[Value] | None = None
        if w.P is not None:
            names = [f"{GATES[k]}.peephole" for k in (INPUT, OUTPUT, FORGET)]
            peepholes = b.ops("Split", [e.cast(w.P, "P.real"), b.i64([hidden] * 3)], names, axis=0)
        return _Prepared(e.cast(w.h_multiplier, "h_multiplier.real"), gate_table, cell_table, peepholes)

    def _cell(self, e: GridEmitter, g: Value, c: Value, before: _Prepared) -> tuple[Value, Value]:
        """The new cell state and the hidden state, both in the real type."""
        b, cell, numbers = e.b, self.cell, self.numbers
        grids = numbers.gate_grids("acc")
        gates: list[Value | None] = [None] * len(GATES)
        axes = b.i64([cell.hidden_size] * len(GATES))
        apart: Sequence[Value] = []
        if before.peepholes is None and is_uniform(grids):
            multiples = e.multiples_of_gates(self._clipped(e, g, "preactivation"), grids, "preactivation")
            first = [o - a.low for o, a in zip(numbers.gate_table_offset, grids, strict=True)]
            offsets = np.repeat(first, cell.hidden_size) if len(set(first)) > 1 else first[0]
            values = self._lookup(e, before.gate_table, multiples, offsets, 4 * cell.hidden_size, "gates")
            gates = list(b.ops("Split", [values, axes], list(GATES), axis=1))
        else:
            apart = b.ops("Split", [g, axes], [f"{n}.product" for n in GATES], axis=1)

        def gate(k: int, state: Value | None) -> Value:
            made = gates[k]
            if made is not None:
                return made
            value, name = apart[k], GATES[k]
            if before.peepholes is not None and state is not None:
                term = b.op("Mul", [before.peepholes[k], state], f"{name}.peephole.product")
                value = b.op("Add", [value, term], f"{name}.sum")
            multiples = e.multiples(self._clipped(e, value, name), grids[k], f"{name}.acc")
            first = numbers.gate_table_offset[k] - grids[k].low
            return self._lookup(e, before.gate_table, multiples, first, cell.hidden_size, name)

        i = gate(INPUT, c)
        f = b.op("Sub", [e.constant(numbers.one), i], "forget_gate.coupled") if cell.input_forget else gate(FORGET, c)
        kept = b.op("Mul", [f, c], "cell_state.kept")
        added = b.op("Mul", [i, gate(CELL, None)], "cell_state.added")
        terms = [
            e.quantized(v, numbers.grid(n), n) for v, n in ((kept, "cell_state.kept"), (added, "cell_state.added"))
        ]
        grid = numbers.grid("cell_state")
        multiples = e.multiples(b.op("Add", terms, "cell_state.sum"), grid, "cell_state")
        c_new = b.op("Mul", [multiples, e.constant(grid.scale)], "cell_state")
        squashed = self._lookup(e, before.cell_table, multiples, -grid.low, cell.hidden_size, "hidden.squashed")
        return c_new, b.op("Mul", [gate(OUTPUT, c_new), squashed], "hidden.exact")

    def _clipped(self, e: GridEmitter, value: Value, name: str) -> Value:
        clip = self.cell.clip
        if clip is None:
            return value
        limit = float(np.float32(clip))
        return e.b.op("Clip", [value, e.constant(-limit), e.constant(limit)], f"{name}.limited")

    def _lookup(
        self, e: GridEmitter, table: Value, multiples: Value, offset: npt.ArrayLike, width: int, name: str
    ) -> Value:
        """The entries at `multiples + offset`."""
        b = e.b
        index: Value = b.cast(multiples, np.int32, f"{name}.multiples.int32")
        if np.any(offset):
            index = b.op("Add", [index, b.i32(offset)], f"{name}.index")
        if self.single:
            return b.op("GatherElements", [table, index], f"{name}.values", axis=1)
        # GatherElements takes 0.6 ns per element in onnxruntime, Gather 8.
        flat = b.op("Reshape", [index, b.i64([-1])], f"{name}.indices")
        taken = b.op("GatherElements", [table, flat], f"{name}.taken", axis=0)
        return b.op("Reshape", [taken, b.i64([-1, width])], f"{name}.values")
