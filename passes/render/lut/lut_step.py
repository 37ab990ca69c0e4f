"""The equations of a cell in the lut arithmetic: tables for activations, integers for the cell state of an LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rnnqc.cells.activations import RELU_TABLE, TABLE
from rnnqc.cells.base import Cell
from rnnqc.cells.lut_numbers import STATE_LIMIT, LutNumbers
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.sequence_lengths import positive_zeros
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.formats.point_format import stays_between_bounds
from rnnqc.passes.render.operands.table_step import StepInputs, TableStep


@dataclass(frozen=True)
class LoopConstants:
    """Constants of a loop in the shapes that the look-ups need.

    Attributes:
        gate_table: The tables of the joint gates; with a batch of 1 and tables of one size, a row for each gate.
        candidate_table: With a batch of 1, the table of a GRU's candidate as a row.
        cell_table: The table of the output activation; with a batch of 1 a row.
        offsets: The first entry of the table of each column's gate, or None.
        limits: Limits of the pre-activation of each column, or None if they are the same for all gates.
    """

    gate_table: Value | None
    candidate_table: Value | None
    cell_table: Value | None
    offsets: Value | None
    limits: tuple[Value, Value] | None


def is_uniform(cell: Cell, numbers: LutNumbers, w: Operands) -> bool:
    """Whether the joint gates are look-ups in tables of one size."""
    return numbers.gate_table_size > 0 and w.P is None


def loop_constants(b: Builder, cell: Cell, numbers: LutNumbers, w: Operands) -> LoopConstants:
    """Returns tables, offsets and limits; with a batch of 1 tables are rows, and the loop needs no Reshape."""
    f, hidden, gates = numbers, cell.hidden_size, cell.type.joint
    gate_table, candidate_table, cell_table = w.gate_table, None, w.cell_table
    offsets: Value | None = None
    limits: tuple[Value, Value] | None = None
    single = cell.static_batch == 1
    uniform = is_uniform(cell, numbers, w)

    def for_each_unit(per_gate: Value, name: str) -> Value:
        column = b.op("Expand", [per_gate, b.i64([gates, hidden])], f"{name}.matrix")
        return for_each_row(b, cell, b.op("Reshape", [column, b.i64([-1])], name), gates, f"{name}.rows")

    if uniform:
        low, high = ([[v] for v in values[:gates]] for values in (f.gate_min, f.gate_max))
        if any(len({v for (v,) in values}) > 1 for values in (low, high)):
            limits = for_each_unit(b.f32(low), "gate_min"), for_each_unit(b.f32(high), "gate_max")
        if not single and any(f.gate_table_offset[:gates]):
            offsets = for_each_unit(b.i32([[o] for o in f.gate_table_offset[:gates]]), "gate_table_offset")
    if single:
        if cell_table is not None:
            cell_table = b.op("Unsqueeze", [cell_table, b.i64([0])], "cell_table.row")
        if uniform and w.gate_table is not None:
            size = f.gate_table_size

            def part(k: int) -> Value:
                o = f.gate_table_offset[k]
                bounds = [b.i64([o]), b.i64([o + size]), b.i64([0])]
                return b.op("Slice", [w.gate_table, *bounds], f"{cell.type.gates[k]}.table")

            rows = b.op("Concat", [part(k) for k in range(gates)], "gate_table.rows", axis=0)
            gate_table = b.op("Reshape", [rows, b.i64([gates, size])], "gate_table.matrix")
            if gates < len(cell.type.gates):
                candidate_table = b.op("Unsqueeze", [part(gates), b.i64([0])], "candidate_table.row")
    return LoopConstants(gate_table, candidate_table, cell_table, offsets, limits)


def for_each_row(b: Builder, cell: Cell, per_unit: Value, gates: int, name: str) -> Value:
    """Repeats a row `[gates * H]` for each row of the batch if its size is known.

    onnxruntime takes 20 % less time for operands of equal shape than for a row that it broadcasts.
    """
    batch = cell.static_batch
    return per_unit if batch is None else b.op("Expand", [per_unit, b.i64([batch, gates * cell.hidden_size])], name)


class IntegerStep(TableStep):
    """`rnnqc.cells.equations.Step` on real pre-activations in quantization steps, and tables.

    The state of an LSTM is in units of its LSB, h R of a candidate in units of its pre-activation.

    Args:
        body: Collects the nodes of the step.
        cell: The cell.
        numbers: Its scalars.
        w: Its constants.
        before: Constants of the loop.
        given: The values before the step.
    """

    def __init__(
        self, body: Builder, cell: Cell, numbers: LutNumbers, w: Operands, before: LoopConstants, given: StepInputs
    ) -> None:
        self.numbers, self.w, self.before = numbers, w, before
        super().__init__(body, cell, given, w.hidden_bias)

    @property
    def _single(self) -> bool:
        return self.cell.static_batch == 1

    def _constant(self, value: float) -> Value:
        return self.body.f32(value)

    def _peephole(self, k: int) -> Value | None:
        if self.w.P is None:
            return None
        place, hidden = self.cell.type.peephole_gates.index(k), self.cell.hidden_size
        bounds = [self.body.i64([v]) for v in (place * hidden, (place + 1) * hidden, 0)]
        return self.body.op("Slice", [self.w.P, *bounds], f"{self.cell.type.gates[k]}.peephole")

    def product(self, a: Value, b: Value, point: str) -> Value:
        """Returns a * b."""
        return self.body.op("Mul", [a, b], point)

    def total(self, kept: Value, added: Value, point: str) -> Value:
        """Returns kept + added, the state after the step; integers for a quantized cell state."""
        body, f = self.body, self.numbers
        u = body.op("Add", [kept, added], f"{point}.sum")
        if f.cell_scale:
            whole = body.op("Round", [u], f"{point}.rounded")
            if f.cell_is_wide:
                return whole
            return body.op("Clip", [whole, body.f32(-f.cell_max), body.f32(f.cell_max)], point)
        if stays_between_bounds(self.cell):
            return u
        return body.op("Clip", [u, body.f32(-STATE_LIMIT), body.f32(STATE_LIMIT)], point)

    def squashed(self, state: Value) -> Value:
        """Returns the output activation of the cell state."""
        body, f, hidden = self.body, self.numbers, self.cell.hidden_size
        output = self.cell.output_activation
        assert output is not None
        name = "hidden.squashed"
        if output.kind not in (TABLE, RELU_TABLE):
            real = body.op("Mul", [state, body.f32(f.cell_scale)], f"{name}.argument") if f.cell_scale else state
            return emit_exact(body, output.kind, output.alpha, output.beta, real, name)
        table = self.before.cell_table
        assert table is not None
        half = f.cell_table_size // 2
        codes = state
        if not f.cell_scale:
            scaled = body.op("Mul", [state, body.f32(f.cell_index_scale)], f"{name}.scaled")
            codes = body.op("Round", [scaled], f"{name}.rounded")
        if not f.cell_scale or f.cell_max > half - 1:
            codes = body.op("Clip", [codes, body.f32(-half), body.f32(half - 1)], f"{name}.code")
        index = body.cast(codes, np.int32, f"{name}.codes")
        if self._single:
            taken: Value = body.op("GatherElements", [table, index], f"{name}.value", axis=1)
        else:
            taken = self._looked_up(table, index, hidden, name)
        if output.kind == RELU_TABLE:
            return body.op("Add", [emit_exact(body, "Relu", 0.0, 0.0, state, f"{name}.relu"), taken], name)
        return taken

    def _all_at_once(self, joint: Value) -> Sequence[Value]:
        if not is_uniform(self.cell, self.numbers, self.w):
            return []
        body, hidden, names = self.body, self.cell.hidden_size, self.cell.type.gates[: self.cell.type.joint]
        table, offsets, count = self.before.gate_table, self.before.offsets, len(names)
        assert table is not None
        codes = body.cast(self._limited(joint), np.int32, "codes")
        if self._single:
            if count == 1:
                return [body.op("GatherElements", [table, codes], names[0], axis=1)]
            rows = body.op("Reshape", [codes, body.i64([count, hidden])], "codes.rows")
            values: Value = body.op("GatherElements", [table, rows], "gates", axis=1)
            return body.ops("Split", [values, body.i64([1] * count)], list(names), axis=0)
        if offsets is not None:
            codes = body.op("Add", [codes, offsets], "indices")
        values = self._looked_up(table, codes, count * hidden, "gates")
        return [values] if count == 1 else self._split(values, names)

    def _limited(self, g: Value) -> Value:
        f, body, limits = self.numbers, self.body, self.before.limits
        if limits is None:
            return body.op("Clip", [g, body.f32(f.gate_min[0]), body.f32(f.gate_max[0])], "preactivation.limited")
        return body.op(
            "Max", [body.op("Min", [g, limits[1]], "preactivation.below"), limits[0]], "preactivation.limited"
        )

    def _gate(self, k: int, value: Value) -> Value:
        body, f, hidden = self.body, self.numbers, self.cell.hidden_size
        name, table = self.cell.type.gates[k], self.w.gate_table
        v = body.op("Clip", [value, body.f32(f.gate_min[k]), body.f32(f.gate_max[k])], f"{name}.limited")
        kind = f.gate_kinds[k]
        activation = self.cell.gate_activation(k)
        if kind == TABLE:
            codes: Value = body.cast(v, np.int32, f"{name}.codes")
            row = self.before.candidate_table
            if row is not None:
                return body.op("GatherElements", [row, codes], name, axis=1)
            if f.gate_table_offset[k]:
                codes = body.op("Add", [codes, body.i32(f.gate_table_offset[k])], f"{name}.indices")
            assert table is not None
            return self._looked_up(table, codes, hidden, name)
        if kind == RELU_TABLE:
            n = f.gate_index_size[k] / 2
            scaled = body.op("Mul", [v, body.f32(f.gate_index_scale[k])], f"{name}.scaled")
            raised = body.op("Add", [scaled, body.f32(n + 0.5)], f"{name}.raised")
            limited = body.op("Clip", [raised, body.f32(0.0), body.f32(2 * n - 0.5)], f"{name}.code")
            whole = body.cast(limited, np.int32, f"{name}.codes")
            indices = body.op("Add", [whole, body.i32(f.gate_table_offset[k])], f"{name}.indices")
            assert table is not None
            rest = self._looked_up(table, indices, hidden, f"{name}.rest")
            return body.op("Add", [emit_exact(body, "Relu", 0.0, 0.0, v, f"{name}.relu"), rest], name)
        return emit_exact(body, kind, activation.alpha, activation.beta, v, name)


def emit_exact(body: Builder, kind: str, alpha: float, beta: float, v: Value, name: str) -> Value:
    """Emits an activation as exact or correctly rounded IEEE operations (docs/quant_lstm_cell.md, "Activations")."""

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
