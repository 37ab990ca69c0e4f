"""The equations of a cell in fixed-point arithmetic: every value is quantized, activations come from tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.fixed_point_numbers import FixedPointNumbers, FixedPointQuantizer, point_of, quantizers_of
from rnnqc.cells.lut_numbers import STATE_LIMIT
from rnnqc.ir import Value
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.render.fixed_point.fixed_point_quantizers import GridEmitter, is_uniform
from rnnqc.passes.render.operands.table_step import StepInputs, TableStep


@dataclass(frozen=True)
class GridConstants:
    """Constants of a loop in the real type.

    Attributes:
        h_multiplier: `[GH]`.
        gate_table: `[N]`, or with a batch of 1 a row, so that look-ups need no Reshape.
        cell_table: The same for the output activation, or None.
        peepholes: P by gate, `[H]` each, or None.
        hidden_bias: `[H]`, or None.
    """

    h_multiplier: Value
    gate_table: Value
    cell_table: Value | None
    peepholes: Sequence[Value] | None
    hidden_bias: Value | None


def grid_constants(e: GridEmitter, cell: Cell, w: Operands) -> GridConstants:
    """Returns the constants of the loop of `cell`."""
    b = e.b

    def table(given: Value, name: str) -> Value:
        real = e.cast(given, f"{name}.real")
        return b.op("Unsqueeze", [real, b.i64([0])], f"{name}.row") if cell.static_batch == 1 else real

    assert w.gate_table is not None
    gate_table = table(w.gate_table, "gate_table")
    cell_table = table(w.cell_table, "cell_table") if w.cell_table is not None else None
    peepholes: Sequence[Value] | None = None
    if w.P is not None:
        gates = [cell.type.gates[k] for k in cell.type.peephole_gates]
        sizes = b.i64([cell.hidden_size] * len(gates))
        peepholes = b.ops("Split", [e.cast(w.P, "P.real"), sizes], [f"{g}.peephole" for g in gates], axis=0)
    multiplier = e.cast(w.h_multiplier, "h_multiplier.real")
    hidden_bias = e.cast(w.hidden_bias, "hidden_bias.real") if w.hidden_bias is not None else None
    return GridConstants(multiplier, gate_table, cell_table, peepholes, hidden_bias)


class GridStep(TableStep):
    """`rnnqc.cells.equations.Step` on real numbers.

    Args:
        e: Emits the nodes of the step.
        cell: The cell.
        numbers: Its scalars.
        before: Constants of the loop.
        given: The values before the step.
    """

    def __init__(
        self, e: GridEmitter, cell: Cell, numbers: FixedPointNumbers, before: GridConstants, given: StepInputs
    ) -> None:
        self.e, self.numbers, self.before = e, numbers, before
        self._grids = _quantizers(cell, numbers)
        self._multiples: Value | None = None
        super().__init__(e.b, cell, given, before.hidden_bias, numbers.one)

    def _constant(self, value: float) -> Value:
        return self.e.constant(value)

    def _peephole(self, k: int) -> Value | None:
        held = self.before.peepholes
        return None if held is None else held[self.cell.type.peephole_gates.index(k)]

    def product(self, a: Value, b: Value, point: str) -> Value:
        """Returns a * b in the format of its point; if R multiplies it next, it becomes quantized values there."""
        value = self.e.b.op("Mul", [a, b], point)
        return (
            value
            if point == RESET_HIDDEN
            else self.e.quantized(value, self._grids.get(point, FixedPointQuantizer()), point)
        )

    def total(self, kept: Value, added: Value, point: str) -> Value:
        """Returns kept + added, the state after the step; float32 for a GRU."""
        e, grid = self.e, self._grids[point]
        value: Value = e.b.op("Add", [kept, added], f"{point}.sum")
        if not self.cell.type.reads_hidden:
            self._multiples = e.multiples(value, grid, point)
            return e.b.op("Mul", [self._multiples, e.constant(grid.scale)], point)
        value = e.quantized(value, grid, point)
        if not grid.scale or grid.scale * max(-grid.low, grid.high) > STATE_LIMIT:
            value = e.b.op("Clip", [value, e.constant(-STATE_LIMIT), e.constant(STATE_LIMIT)], f"{point}.limited")
        return e.b.cast(value, np.float32, point)

    def squashed(self, state: Value) -> Value:
        """Returns the output activation of the cell state that `total` computed."""
        assert self._multiples is not None and self.before.cell_table is not None
        first, hidden = -self._grids["cell_state"].low, self.cell.hidden_size
        return self._lookup(self.before.cell_table, self._multiples, first, hidden, "hidden.squashed")

    def _all_at_once(self, joint: Value) -> Sequence[Value]:
        names = self.cell.type.gates[: self.cell.type.joint]
        accs = [self._grids[f"{n}.acc"] for n in names]
        if self.before.peepholes is not None or not is_uniform(accs):
            return []
        multiples = self.e.multiples_of_gates(self._clipped(joint, "preactivation"), accs, "preactivation")
        first = [o - a.low for o, a in zip(self.numbers.gate_table_offset, accs, strict=False)]
        offsets = np.repeat(first, self.cell.hidden_size) if len(set(first)) > 1 else first[0]
        width = len(names) * self.cell.hidden_size
        values = self._lookup(self.before.gate_table, multiples, offsets, width, "gates")
        return self._split(values, names) if len(names) > 1 else [values]

    def _gate(self, k: int, value: Value) -> Value:
        name, numbers = self.cell.type.gates[k], self.numbers
        grid = self._grids[f"{name}.acc"]
        multiples = self.e.multiples(self._clipped(value, name), grid, f"{name}.acc")
        first = numbers.gate_table_offset[k] - grid.low
        return self._lookup(self.before.gate_table, multiples, first, self.cell.hidden_size, name)

    def _clipped(self, value: Value, name: str) -> Value:
        clip = self.cell.clip
        if clip is None:
            return value
        limit = float(np.float32(clip))
        return self.e.b.op("Clip", [value, self.e.constant(-limit), self.e.constant(limit)], f"{name}.limited")

    def _lookup(self, table: Value, multiples: Value, offset: npt.ArrayLike, width: int, name: str) -> Value:
        """Returns the entries at `multiples + offset`."""
        b = self.e.b
        index: Value = b.cast(multiples, np.int32, f"{name}.multiples.int32")
        if np.any(offset):
            index = b.op("Add", [index, b.i32(offset)], f"{name}.index")
        if self.cell.static_batch == 1:
            return b.op("GatherElements", [table, index], f"{name}.values", axis=1)
        return self._looked_up(table, index, width, name)


def _quantizers(cell: Cell, numbers: FixedPointNumbers) -> Mapping[str, FixedPointQuantizer]:
    """Returns the quantizers by quantization point."""
    return {point_of(cell, n): numbers.quantizer(cell.type, n) for n in quantizers_of(cell.type)}
