"""The fixed-point cell in standard operators: every value is quantized, as in Brevitas and Vitis.

docs/quant_lstm_cell.md and docs/quant_gru_cell.md describe it in words. Matmuls are exact; every other operation is one
operation in float64, or in float32 for the arithmetic "grid32".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.fixed_point_numbers import RESET, FixedPointNumbers
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.loop_driver import (
    CELL_STEPS,
    CODES_STEPS,
    HIDDEN_STEPS,
    LAST_CELL,
    Arithmetic,
    Loop,
    Results,
    State,
    Stepped,
)
from rnnqc.passes.cells.sequence_lengths import positive_zeros
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.render.fixed_point.fixed_point_codes import initial_states, input_codes
from rnnqc.passes.render.fixed_point.fixed_point_product import (
    GridProduct,
    RecurrentProduct,
    codes_for,
    grid_product,
    reset_products,
    shifted,
)
from rnnqc.passes.render.fixed_point.fixed_point_quantizers import GridEmitter
from rnnqc.passes.render.fixed_point.fixed_point_step import GridConstants, GridStep, grid_constants
from rnnqc.passes.render.operands.table_step import StepInputs


@dataclass(frozen=True)
class FixedPointArithmetic(Arithmetic):
    """Exact matmuls, and one rounding at every quantization point.

    Attributes:
        numbers: The scalars of the cell.
        w: Its constants.
    """

    numbers: FixedPointNumbers
    w: Operands

    @property
    def hidden_zero_point(self) -> int:
        """The quantized hidden state that represents 0."""
        return self.numbers.hidden.zero_point

    def run(self, b: Builder, loop: Loop) -> Results:
        """Emits the matmuls and the loop; no result has a negative zero."""
        results = self._loop(b, loop)
        on_grid = self.numbers.rounded_output or loop.cell.type.reads_hidden
        if on_grid and loop.wanted.y:
            results[HIDDEN_STEPS] = positive_zeros(b, results[HIDDEN_STEPS], "hidden.positive_zeros")
        for name in (CELL_STEPS, LAST_CELL):
            if name in results:
                real = b.cast(results[name], np.float32, f"{name}.float")
                results[name] = positive_zeros(b, real, f"{name}.positive_zeros")
        return results

    def _loop(self, b: Builder, loop: Loop) -> Results:
        """Emits the loop; returns the results, with cell states in the real type."""
        numbers, cell, type_ = self.numbers, loop.cell, loop.cell.type
        e = GridEmitter(b, numbers.real, cell.hidden_size)
        w = grid_product(e, cell, numbers, self.w, "W")
        r, reset = self._recurrent_products(e, cell)
        sums = w.emit(e, input_codes(e, loop, numbers, w), "x.product")
        units = b.op("Mul", [sums, e.cast(self.w.x_multiplier, "x_multiplier.real")], "x.product.scaled")
        bias = e.cast(self.w.B, "B.real")
        p = units if numbers.bias_last else b.op("Add", [units, bias], "x.projection.exact")
        p = e.quantized_gates(p, numbers.gate_quantizers(cell.type, "input_product"), "input_product")
        before = grid_constants(e, cell, self.w)
        products = self._on_grids(b, cell, before.h_multiplier, r, reset)
        # A GRU reads the hidden state, other cells only its quantized values.
        h_type = np.float32 if type_.reads_hidden else np.uint8 if r.integer else numbers.real
        shape = [cell.batch_dimension, cell.hidden_size]
        initial = initial_states(e, loop, numbers, r)
        states = [State(v, t, shape) for v, t in zip(initial, (h_type, numbers.real), strict=False)]

        def step(body: Builder, previous: Sequence[Value], projected: Sequence[Value]) -> Stepped:
            inner = GridEmitter(body, numbers.real, cell.hidden_size)
            y, c = type_.step(self._step(inner, cell, previous, projected, before, bias, products))
            return self._stepped(inner, loop, y, c, carries_codes=r.integer)

        results = loop.run(b, p, states, step, real=numbers.real)
        if loop.wanted.codes and CODES_STEPS not in results:
            grid = numbers.hidden
            real = e.cast(results[HIDDEN_STEPS], "hidden.real")
            made = shifted(e, e.multiples(real, grid, "hidden"), grid, "hidden")
            results[CODES_STEPS] = b.cast(made, np.uint8, "hidden.codes")
        return results

    def _stepped(self, e: GridEmitter, loop: Loop, y: Value, c: Value, *, carries_codes: bool) -> Stepped:
        """Returns the outputs of a step. It carries `y` itself for a GRU, else its quantized values or multiples."""
        b, grid = e.b, self.numbers.hidden
        if loop.cell.type.reads_hidden:
            return Stepped([y], y, c)
        if self.numbers.rounded_output:
            multiples = e.multiples(y, grid, "hidden")
            real = b.op("Mul", [multiples, e.constant(grid.scale)], "hidden.quantized")
            y = b.cast(real, np.float32, "hidden")
        else:
            y = b.cast(y, np.float32, "hidden")
            multiples = e.multiples(e.cast(y, "hidden.real"), grid, "hidden")
        codes: Value | None = None
        if carries_codes or loop.wanted.codes:
            codes = b.cast(shifted(e, multiples, grid, "hidden"), np.uint8, "hidden.codes")
        handed_on = codes if codes is not None and carries_codes else multiples
        return Stepped([handed_on, c] if loop.cell.type.cell_state else [handed_on], y, c, codes)

    def _recurrent_products(self, e: GridEmitter, cell: Cell) -> tuple[GridProduct, GridProduct | None]:
        """Returns the matmul of quantized hidden states and, if a gate resets the state first, the candidate's."""
        if cell.resets_state:
            return reset_products(e, cell, self.numbers, self.w)
        return grid_product(e, cell, self.numbers, self.w, "R"), None

    def _on_grids(
        self, b: Builder, cell: Cell, multiplier: Value, r: GridProduct, reset: GridProduct | None
    ) -> Sequence[RecurrentProduct]:
        """Returns the matmuls with R, whose results are real numbers in the formats of their gates."""
        grids = self.numbers.gate_quantizers(cell.type, "hidden_product")
        if reset is None:
            return [RecurrentProduct(r, multiplier, grids, "hidden")]
        joint, hidden = cell.type.joint, cell.hidden_size
        sizes = b.i64([joint * hidden, hidden])
        names = ["h_multiplier.gates", "h_multiplier.candidate"]
        multipliers = b.ops("Split", [multiplier, sizes], names, axis=0)
        gates, candidate = (dict(list(grids.items())[s]) for s in (slice(joint), slice(joint, None)))
        return [
            RecurrentProduct(r, multipliers[0], gates, "hidden"),
            RecurrentProduct(reset, multipliers[1], candidate, RESET),
        ]

    def _step(
        self,
        e: GridEmitter,
        cell: Cell,
        previous: Sequence[Value],
        projected: Sequence[Value],
        before: GridConstants,
        bias: Value,
        products: Sequence[RecurrentProduct],
    ) -> GridStep:
        """Returns the step from the states `previous` and `projected`, x W + B of the step."""
        b, numbers = e.b, self.numbers
        first, second = products[0], products[1] if len(products) > 1 else None
        state: Value = previous[-1]
        codes: Value = previous[0]
        if cell.type.reads_hidden:
            state = e.cast(state, "hidden.previous.real")
            codes = codes_for(e, first.product, state, "hidden.previous")
        ph, recurrent = first.of_codes(e, codes), None
        if cell.linear_before_reset:
            sizes = b.i64([cell.type.joint * cell.hidden_size, cell.hidden_size])
            ph, recurrent = b.ops("Split", [ph, sizes], ["hidden_product.gates", "hidden_product.candidate"], axis=1)
        g: Value = b.op("Add", [projected[0], ph], "products" if numbers.bias_last else "preactivation")
        if numbers.bias_last:
            g = b.op("Add", [g, bias], "preactivation")
        state_or_none = state if cell.type.state_points else None
        candidate = projected[1] if len(projected) > 1 else None
        product = partial(second.of_values, e) if second is not None else None
        return GridStep(e, cell, numbers, before, StepInputs(g, state_or_none, candidate, recurrent, product))
