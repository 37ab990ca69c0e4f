"""The cell in the arithmetic "grid", in standard operators: what the function body of a fused operator computes there.

docs/quant_lstm_cell.md and docs/quant_gru_cell.md say the same in words. Products are exact, every other operation is
one operation in float64, or in float32 for the arithmetic "grid32".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import CANDIDATE
from rnnqc.ir import Model, Node, Value, Variable
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.emit_cell import Boundary, positive_zeros, scan
from rnnqc.passes.fold.grid_numbers import RESET, GridNumbers
from rnnqc.passes.fold.integer_operands import Operands, Wanted
from rnnqc.passes.render.emit_grid_codes import initial_states, input_codes
from rnnqc.passes.render.emit_grid_product import (
    GridProduct,
    RecurrentProduct,
    codes_for,
    grid_product,
    reset_products,
    shifted,
)
from rnnqc.passes.render.emit_grid_quantizers import GridEmitter
from rnnqc.passes.render.emit_grid_step import GridConstants, GridStep, grid_constants
from rnnqc.passes.render.emit_integer_step import joint_gates
from rnnqc.passes.render.emit_results import finish_integer


def emit_grid_cell(
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
    on_grid = numbers.rounded_output or cell.type.reads_hidden
    if on_grid and wanted.y:
        results["hidden.steps"] = positive_zeros(b, results["hidden.steps"], "hidden.positive_zeros")
    for name in ("cell_state.steps", "cell_state.last"):
        if name in results:
            real = b.cast(results[name], np.float32, f"{name}.float")
            results[name] = positive_zeros(b, real, f"{name}.positive_zeros")
    finish_integer(b, cell, at, codes, results, 0.0, numbers.grid("hidden").zero_point)
    return b.nodes


@dataclass(frozen=True)
class _Loop:
    cell: Cell
    numbers: GridNumbers
    at: Boundary
    w: Operands
    wanted: Wanted

    def emit(self, b: Builder) -> dict[str, Value]:
        """Emits into `b`; returns the wanted results by name, `hidden.steps` as float32 and cell states as real."""
        numbers, cell, type_ = self.numbers, self.cell, self.cell.type
        hidden, real_type = cell.hidden_size, numbers.real
        e = GridEmitter(b, real_type, hidden)
        w = grid_product(e, cell, numbers, self.w, "W")
        r, reset = self._recurrent_products(e)
        sums = w.emit(e, input_codes(e, cell, numbers, self.at, w), "x.product")
        units = b.op("Mul", [sums, e.cast(self.w.x_multiplier, "x_multiplier.real")], "x.product.scaled")
        bias = e.cast(self.w.B, "B.real")
        p = units if numbers.bias_last else b.op("Add", [units, bias], "x.projection.exact")
        p = e.quantized_gates(p, numbers.gate_grids("input_product"), "input_product")
        before = grid_constants(e, cell, self.w)
        products = self._on_grids(b, before.h_multiplier, r, reset)
        states = initial_states(e, cell, numbers, self.at, r)
        batch = cell.batch_dimension
        body = b.body()
        inner = GridEmitter(body, real_type, hidden)
        # A GRU reads the hidden state, the others only its codes.
        of_state = np.float32 if type_.reads_hidden else np.uint8 if r.integer else real_type
        previous = [body.value("hidden.previous", of_state, [batch, hidden])]
        if type_.cell_state:
            previous.append(body.value("cell_state.previous", real_type, [batch, hidden]))
        sequences, of_step = self._sequences(b, body, p)
        step = self._step(inner, previous, of_step, before, bias, products)
        y_exact, c_new = type_.step(step)
        grid = numbers.grid("hidden")
        multiples: Value | None = None
        y: Value
        if type_.reads_hidden:
            y = y_exact
        elif numbers.rounded_output:
            multiples = inner.multiples(y_exact, grid, "hidden")
            real = body.op("Mul", [multiples, inner.constant(grid.scale)], "hidden.quantized")
            y = body.cast(real, np.float32, "hidden")
        else:
            y = body.cast(y_exact, np.float32, "hidden")
            multiples = inner.multiples(inner.cast(y, "hidden.real"), grid, "hidden")
        codes: Value | None = None
        if multiples is not None and (r.integer or self.wanted.codes):
            codes = body.cast(shifted(inner, multiples, grid, "hidden"), np.uint8, "hidden.codes")
        outputs: list[Value] = []
        names: list[str] = []

        def result(value: Value | None, name: str, dtype: npt.DTypeLike) -> None:
            # Scan needs the rank of its body's outputs inside a Loop.
            assert value is not None
            if any(v is value for v in outputs):
                value = body.op("Identity", [value], f"{name}.copy")
            assert isinstance(value, Variable)
            value.dtype, value.shape = np.dtype(dtype), [batch, hidden]
            outputs.append(value)
            names.append(name)

        result(y if type_.reads_hidden else codes if r.integer else multiples, "hidden.last", of_state)
        if type_.cell_state:
            result(c_new, "cell_state.last", real_type)
        if self.wanted.y or (self.wanted.codes and codes is None):
            result(y, "hidden.steps", np.float32)
        if self.wanted.codes and codes is not None:
            result(codes, "hidden.codes.steps", np.uint8)
        if self.wanted.c_steps:
            result(c_new, "cell_state.steps", real_type)
        inputs = [*previous, *of_step]
        made = dict(zip(names, scan(b, body, cell, self.at, states, sequences, inputs, outputs, names), strict=True))
        for value, inside in zip(made.values(), outputs, strict=True):
            value.dtype = inside.dtype
        kept = {"hidden.steps", "hidden.codes.steps", "cell_state.steps"}
        results = {k: v for k, v in made.items() if k in kept or (k == "cell_state.last" and self.wanted.last_c)}
        if self.wanted.codes and codes is None:
            real = e.cast(results["hidden.steps"], "hidden.real")
            made_later = shifted(e, e.multiples(real, grid, "hidden"), grid, "hidden")
            results["hidden.codes.steps"] = b.cast(made_later, np.uint8, "hidden.codes")
        return results

    def _recurrent_products(self, e: GridEmitter) -> tuple[GridProduct, GridProduct | None]:
        """The product of hidden codes and, in a GRU with linear_before_reset = 0, of the candidate."""
        if self.cell.type.reads_hidden and not self.cell.linear_before_reset:
            return reset_products(e, self.cell, self.numbers, self.w)
        return grid_product(e, self.cell, self.numbers, self.w, "R"), None

    def _on_grids(
        self, b: Builder, multiplier: Value, r: GridProduct, reset: GridProduct | None
    ) -> Sequence[RecurrentProduct]:
        """The products with R as real numbers on the grids of their gates."""
        grids, hidden = self.numbers.gate_grids("hidden_product"), self.cell.hidden_size
        if reset is None:
            return [RecurrentProduct(r, multiplier, grids, "hidden")]
        sizes = b.i64([CANDIDATE * hidden, (len(grids) - CANDIDATE) * hidden])
        names = ["h_multiplier.gates", "h_multiplier.candidate"]
        multipliers = b.ops("Split", [multiplier, sizes], names, axis=0)
        gates, candidate = (dict(list(grids.items())[s]) for s in (slice(CANDIDATE), slice(CANDIDATE, None)))
        return [
            RecurrentProduct(r, multipliers[0], gates, "hidden"),
            RecurrentProduct(reset, multipliers[1], candidate, RESET),
        ]

    def _sequences(self, b: Builder, body: Builder, p: Value) -> tuple[list[Value], list[Value]]:
        """What the loop scans, and its steps: x W + B of the joint gates and, apart, of a GRU's candidate."""
        joint, gates = joint_gates(self.cell), len(self.cell.type.gates)
        widths, sequences = [joint * self.cell.hidden_size], [p]
        names = ["x.projection.step", "x.projection.candidate.step"]
        if joint < gates:
            widths.append(self.cell.hidden_size)
            parts = ["x.projection.gates", "x.projection.candidate"]
            sequences = list(b.ops("Split", [p, b.i64(widths)], parts, axis=2))
        batch = self.cell.batch_dimension
        return sequences, [body.value(n, self.numbers.real, [batch, w]) for n, w in zip(names, widths, strict=False)]

    def _step(
        self,
        e: GridEmitter,
        previous: Sequence[Value],
        of_step: Sequence[Value],
        before: GridConstants,
        bias: Value,
        products: Sequence[RecurrentProduct],
    ) -> GridStep:
        """The step on the state `previous` and `of_step`, x W + B of the step."""
        b, cell, numbers = e.b, self.cell, self.numbers
        first, second = products[0], products[1] if len(products) > 1 else None
        state: Value = previous[-1]
        codes: Value = previous[0]
        if cell.type.reads_hidden:
            state = e.cast(state, "hidden.previous.real")
            codes = codes_for(e, first.product, state, "hidden.previous")
        ph, recurrent = first.of_codes(e, codes), None
        if cell.linear_before_reset:
            sizes = b.i64([CANDIDATE * cell.hidden_size, cell.hidden_size])
            ph, recurrent = b.ops("Split", [ph, sizes], ["hidden_product.gates", "hidden_product.candidate"], axis=1)
        g: Value = b.op("Add", [of_step[0], ph], "products" if numbers.bias_last else "preactivation")
        if numbers.bias_last:
            g = b.op("Add", [g, bias], "preactivation")
        state_or_none = state if cell.type.cell_state or cell.type.reads_hidden else None
        projected = of_step[1] if len(of_step) > 1 else None
        product = second.of_values if second is not None else None
        return GridStep(e, cell, numbers, before, g, state_or_none, projected, recurrent, product)
