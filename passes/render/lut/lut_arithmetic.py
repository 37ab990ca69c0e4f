"""The integer cell of the lut arithmetic in standard operators: activations are table look-ups.

docs/quant_lstm_cell.md and docs/quant_gru_cell.md describe it in words, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.loop_driver import (
    CODES_STEPS,
    HIDDEN_STEPS,
    Arithmetic,
    Loop,
    Results,
    State,
    Stepped,
)
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.graph.point_names import BEYOND, WITHIN
from rnnqc.passes.render.lut.lut_product import HiddenProduct, hidden_products, unpacked
from rnnqc.passes.render.lut.lut_step import IntegerStep, LoopConstants, loop_constants
from rnnqc.passes.render.operands.branches import choose
from rnnqc.passes.render.operands.byte_weights import ByteWeights, multiplies_exactly
from rnnqc.passes.render.operands.emit_codes import (
    BoundedHidden,
    carries_codes,
    initial_states,
    input_codes,
    limited,
    static_codes,
    with_zero_point_rows,
    without_nan,
)
from rnnqc.passes.render.operands.emit_wide_codes import WIDE_BITS, weighted_sum
from rnnqc.passes.render.operands.table_step import StepInputs


@dataclass(frozen=True)
class LutArithmetic(Arithmetic):
    """Integer matmuls, float32 sums and table look-ups.

    Attributes:
        numbers: The scalars of the cell.
        w: Its constants. Without dispatch W and R are uint8 with zero point 128, and W includes its zero-point rows.
        dispatch: Whether to choose between int8 and uint8 weights when the session is created.
    """

    numbers: LutNumbers
    w: Operands
    dispatch: bool

    @property
    def cell_unit(self) -> float:
        """Real value of one LSB of the cell state; 0 for a float cell state."""
        return self.numbers.cell_scale

    @property
    def hidden_zero_point(self) -> int:
        """The quantized hidden state that represents 0."""
        return self.numbers.h_zero_point

    def run(self, b: Builder, loop: Loop) -> Results:
        """Quantizes the input and the states, and emits the loop."""
        numbers = self.numbers
        x_codes, row_scale = input_codes(b, loop, numbers)
        given = loop.at.initial_h if numbers.h_bound and self.dispatch else None
        bounded = BoundedHidden(b, loop.cell, numbers, given, loop.at.x) if given is not None else None
        emitter = _Emitter(loop, numbers, self.w, x_codes, row_scale, bounded)
        if not self.dispatch:
            return emitter.emit(b, ByteWeights(self.w.W), ByteWeights(self.w.R))
        exact = multiplies_exactly(b)
        w, r = (unpacked(b, loop.cell, numbers, self.w, key) for key in ("W", "R"))
        if numbers.zero_point_rows:
            w = with_zero_point_rows(b, w, numbers.zero_point_rows)
        return emitter.emit(b, ByteWeights.of(b, w, exact, "W"), ByteWeights.of(b, r, exact, "R"))


@dataclass(frozen=True)
class _Emitter:
    """Emits the matmuls and the loop.

    Attributes:
        loop: The loop.
        numbers: The scalars of the cell.
        w: Its constants.
        x_codes: Quantized values of the input, in one plane or two.
        row_scale: The scales of the input's rows, or None.
        bounded: An initial hidden state that may exceed the bound, or None.
    """

    loop: Loop
    numbers: LutNumbers
    w: Operands
    x_codes: Sequence[Value]
    row_scale: Value | None
    bounded: BoundedHidden | None

    def emit(self, b: Builder, w: ByteWeights, r: ByteWeights) -> Results:
        """Emits into `b`; returns the wanted results by name.

        Args:
            b: Collects the nodes.
            w: W, with its zero-point rows.
            r: R.
        """
        cell, numbers, at = self.loop.cell, self.numbers, self.loop.at
        p = self._projection(b, w.in_groups(b, len(cell.type.gates) * cell.hidden_size, "W"))
        before = loop_constants(b, cell, numbers, self.w)
        products = hidden_products(b, cell, numbers, r, self.w.h_multiplier)
        if at.initial_h is None or not numbers.h_bound:
            return self._run(b, p, before, products, initial_states(b, self.loop, numbers))
        bounded = self.bounded
        if carries_codes(cell, numbers):
            hidden, p = self._with_whole_first_step(b, p, products[0], bounded)
            return self._run(b, p, before, products, initial_states(b, self.loop, numbers, hidden))
        whole = [replace(v, is_whole=True) for v in products]
        if bounded is None:
            return self._run(b, p, before, whole, initial_states(b, self.loop, numbers))

        def within(inner: Builder) -> Results:
            states = initial_states(inner, self.loop, numbers, bounded.within(inner))
            return self._run(inner, p, before, [v.in_branch(inner) for v in products], states)

        def beyond(inner: Builder) -> Results:
            states = initial_states(inner, self.loop, numbers)
            return self._run(inner, p, before, [v.in_branch(inner) for v in whole], states)

        # Rows within the bound have the same bits in both branches.
        return choose(b, bounded.is_within, (WITHIN, within), (BEYOND, beyond))

    def _with_whole_first_step(
        self, b: Builder, p: Value, product: HiddenProduct, bounded: BoundedHidden | None
    ) -> tuple[Value, Value]:
        """Returns the initial state to carry, and `p` with that state's quantization loss added to its first step."""
        given, numbers, step = self.loop.at.initial_h, self.numbers, self.loop.first_step(b, p)
        assert given is not None
        codes, element = "initial_h.codes", "x.projection.first.whole"

        def within(inner: Builder) -> Results:
            assert bounded is not None
            return {codes: bounded.within(inner), element: inner.op("Identity", [step], element)}

        def beyond(inner: Builder) -> Results:
            clean = without_nan(inner, given, "initial_h")
            whole = replace(product, name="initial_h")
            return {
                codes: static_codes(inner, clean, numbers, codes),
                element: whole.without_loss(inner, step, limited(inner, clean, "initial_h")),
            }

        # Rows within the bound have the same bits in both branches.
        made = beyond(b) if bounded is None else choose(b, bounded.is_within, (WITHIN, within), (BEYOND, beyond))
        return made[codes], self.loop.with_first_step(b, p, made[element])

    def _run(
        self, b: Builder, p: Value, before: LoopConstants, products: Sequence[HiddenProduct], initial: Sequence[Value]
    ) -> Results:
        """Emits the loop; returns the wanted results by name."""
        cell, numbers = self.loop.cell, self.numbers
        batch = cell.batch_dimension
        carried = carries_codes(cell, numbers)
        wide = numbers.h_bits == WIDE_BITS
        # Two planes of a symbolic batch have a symbol of their own.
        code_rows = batch if not wide or batch is None else 2 * batch if isinstance(batch, int) else f"{batch}_planes"
        h_type = np.uint8 if carried else np.float32
        states = [State(initial[0], h_type, [code_rows if carried else batch, cell.hidden_size])]
        states += [State(v, np.float32, [batch, cell.hidden_size]) for v in initial[1:]]

        def step(body: Builder, previous: Sequence[Value], projected: Sequence[Value]) -> Stepped:
            h = previous[0]
            units = products[0].of_codes(body, h, None) if carried else products[0].of_state(body, h)
            y, c = cell.type.step(self._step(body, units, projected, before, previous[-1], products))
            codes = static_codes(body, y, numbers, "hidden.codes") if carried else None
            return Stepped([y if codes is None else codes, c][: len(previous)], y, c, codes)

        results = self.loop.run(b, p, states, step)
        if self.loop.wanted.codes and not carried:
            results[CODES_STEPS] = static_codes(b, results[HIDDEN_STEPS], numbers, "hidden.codes")
        return results

    def _projection(self, b: Builder, w: ByteWeights) -> Value:
        """Returns x W + B in units of pre-activations, `[T,B,GH]`."""
        numbers, wide = self.numbers, self.numbers.x_bits == WIDE_BITS
        has_zero_points = self.row_scale is not None and not numbers.takes_row_codes  # of rows, in columns of the codes
        x_zero_point = 0 if has_zero_points else numbers.x_zero_point
        x_zero_points = [x_zero_point >> 8, x_zero_point & 255] if wide else [x_zero_point]
        products = [
            w.product(b, codes, b.u8(z), f"x.product{plane}")
            for codes, z, plane in zip(self.x_codes, x_zero_points, (".high", ".low") if wide else ("",), strict=True)
        ]
        if wide:
            real: Value = weighted_sum(b, products[0], products[1], "x.product")
            if self.row_scale is not None:
                column = b.op("Unsqueeze", [self.row_scale, b.i64([1])], "x.scale.for_product")
                real = b.op("Mul", [real, column], "x.product.scaled")
        elif self.row_scale is not None:
            real = b.op("DequantizeLinear", [products[0], self.row_scale], "x.product.scaled", axis=0)
        else:
            real = b.cast(products[0], np.float32, "x.product.float")
        p = b.op("Add", [b.op("Mul", [real, self.w.x_multiplier], "x.projection.units"), self.w.B], "x.projection")
        if self.row_scale is None:
            return p
        cell = self.loop.cell
        columns = b.i64([len(cell.type.gates) * cell.hidden_size])
        sizes = [*self.loop.shape(b, "x.shape"), columns]
        return b.op("Reshape", [p, b.op("Concat", sizes, "x.projection.shape", axis=0)], "x.projection.steps")

    def _step(
        self,
        body: Builder,
        units: Value,
        projected: Sequence[Value],
        before: LoopConstants,
        state: Value,
        products: Sequence[HiddenProduct],
    ) -> IntegerStep:
        cell, numbers, hidden = self.loop.cell, self.numbers, self.loop.cell.hidden_size
        joint = cell.type.joint
        if joint == len(cell.type.gates):
            g = body.op("Add", [units, projected[0]], "preactivation")
            given = StepInputs(g, state if cell.type.state_points else None)
            return IntegerStep(body, cell, numbers, self.w, before, given)
        sizes = body.i64([joint * hidden, hidden])
        recurrent: Value | None = None
        if cell.linear_before_reset:
            names = ["hidden.units.gates", "hidden.units.candidate"]
            units, recurrent = body.ops("Split", [units, sizes], names, axis=1)
        g = body.op("Add", [units, projected[0]], "preactivation")
        product = partial(products[1].of_state, body) if not cell.linear_before_reset else None
        given = StepInputs(g, state, projected[1], recurrent, product)
        return IntegerStep(body, cell, numbers, self.w, before, given)
