"""Quantized values of the input, and initial states of a loop, in fixed-point arithmetic."""

from __future__ import annotations

from rnnqc.cells.fixed_point_numbers import FixedPointNumbers
from rnnqc.cells.lut_numbers import STATE_LIMIT
from rnnqc.ir import Value
from rnnqc.passes.cells.loop_driver import Loop
from rnnqc.passes.render.fixed_point.fixed_point_product import GridProduct, codes_for
from rnnqc.passes.render.fixed_point.fixed_point_quantizers import GridEmitter
from rnnqc.passes.render.operands.emit_codes import without_nan


def input_codes(e: GridEmitter, loop: Loop, numbers: FixedPointNumbers, w: GridProduct) -> Value:
    """Returns the sequence as `w` takes it, `[T,B,I]` in loop order."""
    b, x = e.b, loop.sequence(e.b)
    if numbers.x_mode != "codes":
        return _cleaned_codes(e, w, x, "x")
    if w.integer:
        return x
    return b.op("Sub", [e.cast(x, "x.codes.real"), e.constant(w.codes.zero_point)], "x.multiples")


def initial_states(e: GridEmitter, loop: Loop, numbers: FixedPointNumbers, r: GridProduct) -> list[Value]:
    """Returns the initial values of the loop's states, `[B,H]`."""
    b, at, type_ = e.b, loop.at, loop.cell.type
    h0: Value | None = None
    c0: Value | None = None
    if at.initial_h is not None and type_.reads_hidden:
        clean = without_nan(b, at.initial_h, "initial_h")
        h0 = b.op("Clip", [clean, b.f32(-STATE_LIMIT), b.f32(STATE_LIMIT)], "initial_h.limited")
    elif at.initial_h is not None:
        h0 = _cleaned_codes(e, r, at.initial_h, "initial_h")
    if at.initial_c is not None:
        real = e.cast(without_nan(b, at.initial_c, "initial_c"), "initial_c.real")
        c0 = e.quantized(real, numbers.quantizer(type_, "cell_state"), "initial_c")
    if h0 is None or (c0 is None and type_.cell_state):
        shape = loop.state_shape(b)
        zero = b.f32(0.0) if type_.reads_hidden else b.u8(r.codes.zero_point) if r.integer else e.constant(0.0)
        h0 = h0 or b.op("Expand", [zero, shape], "hidden.zeros")
        if type_.cell_state:
            c0 = c0 or b.op("Expand", [e.constant(0.0), shape], "cell_state.zeros")
    return [v for v in (h0, c0) if v is not None]


def _cleaned_codes(e: GridEmitter, product: GridProduct, value: Value, name: str) -> Value:
    """Returns float values, with 0 for NaN, as `product` takes them."""
    return codes_for(e, product, e.cast(without_nan(e.b, value, name), f"{name}.real"), name)
