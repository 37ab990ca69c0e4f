"""Quantizers as standard operators: QuantizeLinear -> Clip -> DequantizeLinear, or the same arithmetic in others.

The three operators are used for up to 8 bits. Wider values, roundings other than half-to-even and per-row dynamic
scales have no QuantizeLinear before operator set 21, and are written as Div, Round, Clip, Mul.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.cells.base import GATES, INPUT
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.stages import QuantizedCell
from rnnqc.errors import CompileError
from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.point_format import EMBEDDED, FLOAT, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.float_step import ACCUMULATORS, INITIAL_STATES, ONE, Quantizer, Splitter
from rnnqc.passes.formats.brevitas_contract import misfits
from rnnqc.passes.qcdq.emit_rounding import emit_rounding

SMALLEST_ROW = 2.0**-100
LARGEST_ROW = 2.0**60
COUPLED_GATE = f"{GATES[INPUT]}.activation"  # its format holds the 1 of `f = 1 - i`
# Values with the format of another point.
ALIASES = {ONE: COUPLED_GATE, **dict(zip(INITIAL_STATES, ("hidden", "cell_state"), strict=True))}
_FACTORS = dict(
    zip(ACCUMULATORS, (("input", "W.weight"), ("hidden", "R.weight"), (RESET_HIDDEN, "R.weight")), strict=True)
)
WIDEST = 8
_OPSET_OF_PROPAGATION = 21


Points = Mapping[str, PointFormat]


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight matrix as constants: quantized values, scale and zero point."""

    codes: Value
    scale: Value
    zero_point: Value


def qcdq_quantizer(cell: QuantizedCell, weights: Mapping[str, QuantizedWeight]) -> Quantizer:
    """Returns a quantizer with the formats of a cell; it takes quantized weights from `weights`."""
    points = cell.points

    def quantize(b: Builder, point: str, value: Value) -> Value:
        if point in ACCUMULATORS:
            return emit_accumulator(b, point, value, cell)
        held = points.get(ALIASES.get(point, point), FLOAT).format
        if held is None or points[ALIASES.get(point, point)].mode == EMBEDDED:
            return value
        if not isinstance(held, Format):
            emit = emit_unsigned_row_fake_quant if point == "input" else emit_row_fake_quant
            return emit(b, point, value, held)
        if point in weights:
            return emit_weight(b, point, weights[point], held, written_out=_is_alone(b, point))
        return (emit_qcdq if has_operators(b, held) else emit_fake_quant)(b, point, value, held)

    def _is_alone(b: Builder, point: str) -> bool:
        """Whether the weights multiply quantized values that only the operator set forces into other operators."""
        other = points.get("input", FLOAT).static if point == "W.weight" else None
        return other is not None and is_usual(other) and not has_operators(b, other)

    return quantize


def hidden_splitter(points: Points, bound: float) -> Splitter:
    """Returns a splitter of hidden states at the limits of their point's format: from the lowest value to `bound`."""

    def split(b: Builder, name: str, value: Value) -> tuple[Value, Value]:
        held_in = points[ALIASES.get(name, name)].complete
        low = float(np.float32(held_in.low) * np.float32(held_in.scale[0]))
        finite = b.op("Clip", [value, b.f32(-LARGEST_ROW), b.f32(LARGEST_ROW)], f"{name}.finite")
        held = b.op("Clip", [finite, b.f32(low), b.f32(bound)], f"{name}.held")
        return held, b.op("Sub", [finite, held], f"{name}.lost")

    return split


def whole_quantizer(quantizer: Quantizer, points: Points, split: Splitter) -> Quantizer:
    """Returns `quantizer` with hidden states that keep the part beyond the calibrated range in float."""

    def quantize(b: Builder, point: str, value: Value) -> Value:
        if points.get(point, FLOAT).bound is None:
            return quantizer(b, point, value)
        held, lost = split(b, point, value)
        return b.op("Add", [quantizer(b, point, held), lost], f"{point}.whole")

    return quantize


def is_usual(format_: IntegerFormat) -> bool:
    """Whether every operator set supports the format in QuantizeLinear and DequantizeLinear."""
    return format_.bits <= WIDEST and format_.rounding is Rounding.HALF_EVEN


def has_operators(b: Builder, format_: IntegerFormat) -> bool:
    """Whether QuantizeLinear and DequantizeLinear can be used.

    Not for signed formats from operator set 21 on: onnxruntime 1.31 moves their QuantizeLinear across view operators
    (those after states, and those it adds around matmuls), makes them unsigned there, and rejects the model.
    """
    return is_usual(format_) and not (format_.signed and b.model.opset >= _OPSET_OF_PROPAGATION)


def emit_accumulator(b: Builder, point: str, value: Value, cell: QuantizedCell) -> Value:
    """Emits the limits of a narrow accumulator, in units of the product of both scales, for each output channel."""
    points, bits = cell.points, cell.point("accumulator").bits
    if bits is None:
        return value
    code, weight = (points[p].static for p in _FACTORS[point])
    if code is None or weight is None:
        raise CompileError(
            f"An accumulator of {bits} bits needs static scales.",
            supported="weights and activations with one scale each",
            action="quantize input, hidden state and weights with mode = static",
        )
    scales = np.asarray(weight.scale, np.float64)
    if scales.size > 1 and point != ACCUMULATORS[0] and cell.point(RESET_HIDDEN).scale:
        # The columns of the candidate multiply other quantized values.
        candidate = cell.candidate_columns
        scales = scales[candidate] if point == ACCUMULATORS[2] else scales[: candidate.start]
    unit = np.float64(code.scale[0]) * scales
    low, high = (np.asarray(unit * limit, np.float32) for limit in (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1))
    below = b.op("Min", [value, b.f32(high)], f"{point}.below")
    return b.op("Max", [below, b.f32(low)], f"{point}.limited")


def emit_qcdq(b: Builder, point: str, value: Value, format_: Format) -> Value:
    """Emits QuantizeLinear -> Clip (if the format is smaller than its type) -> DequantizeLinear."""
    codes = emit_codes(b, point, value, format_)
    scale, zero_point = (b.model.constant(v, v.dtype) for v in format_.linear_parameters())
    attrs = {} if format_.axis is None else {"axis": format_.axis}
    return b.op("DequantizeLinear", [codes, scale, zero_point], f"{point}.quantized", **attrs)


def emit_codes(b: Builder, point: str, value: Value, format_: Format) -> Value:
    """Emits QuantizeLinear -> Clip (if the format is smaller than its type)."""
    scale, zero_point = (b.model.constant(v, v.dtype) for v in format_.linear_parameters())
    attrs = {} if format_.axis is None else {"axis": format_.axis}
    codes: Value = b.op("QuantizeLinear", [value, scale, zero_point], f"{point}.codes", **attrs)
    return _clip(b, point, codes, format_)


def emit_weight(b: Builder, point: str, weight: QuantizedWeight, format_: Format, *, written_out: bool) -> Value:
    """Emits quantized values -> Clip -> DequantizeLinear; Cast -> Sub -> Mul for more than 8 bits.

    The latter also on request: onnxruntime 1.31 replaces a MatMul with a DequantizeLinear of only its weights by
    MatMulNBits, which rounds the other operand to 8 bits.
    """
    if format_.bits > WIDEST or written_out:
        real: Value = b.cast(weight.codes, np.float32, f"{point}.float")
        if format_.all_zero_points.any():
            zero_point = b.cast(weight.zero_point, np.float32, f"{point}.zero_point.float")
            real = b.op("Sub", [real, zero_point], f"{point}.centred")
        return b.op("Mul", [real, weight.scale], f"{point}.quantized")
    attrs = {} if format_.axis is None else {"axis": format_.axis}
    codes = _clip(b, point, weight.codes, format_)
    return b.op("DequantizeLinear", [codes, weight.scale, weight.zero_point], f"{point}.quantized", **attrs)


def _clip(b: Builder, point: str, codes: Value, format_: Format) -> Value:
    if format_.clip is None:
        return codes
    low, high = (b.model.constant(v, format_.dtype) for v in format_.clip)
    return b.op("Clip", [codes, low, high], f"{point}.clipped")


def emit_fake_quant(b: Builder, point: str, value: Value, format_: Format) -> Value:
    """Emits Div, round, Clip, Mul."""
    scale = b.f32(format_.scale_array(2))
    units = b.op("Div", [value, scale], f"{point}.units")
    whole = emit_rounding(b, units, format_.rounding, point)
    codes = b.op("Clip", [whole, b.f32(format_.low), b.f32(format_.high)], f"{point}.clipped")
    return b.op("Mul", [codes, scale], f"{point}.quantized")


def emit_unsigned_row_fake_quant(b: Builder, point: str, value: Value, rows: IntegerFormat) -> Value:
    """Emits per-row dynamic scales and zero points, by the formula of ONNX's DynamicQuantizeLinear."""
    top = b.f32(2.0**rows.bits - 1)
    low = b.op(
        "Clip",
        [b.reduce("ReduceMin", value, [-1], f"{point}.least", keepdims=1), b.f32(-LARGEST_ROW), b.f32(0.0)],
        f"{point}.low",
    )
    high = b.op(
        "Clip",
        [b.reduce("ReduceMax", value, [-1], f"{point}.largest", keepdims=1), b.f32(0.0), b.f32(LARGEST_ROW)],
        f"{point}.high",
    )
    extent = b.op("Max", [b.op("Sub", [high, low], f"{point}.extent"), b.f32(SMALLEST_ROW)], f"{point}.limited")
    scale = b.op("Div", [extent, top], f"{point}.scale")
    below = b.op("Div", [b.op("Sub", [b.f32(0.0), low], f"{point}.below"), scale], f"{point}.below.units")
    zero = b.op("Min", [b.op("Round", [below], f"{point}.below.rounded"), top], f"{point}.zero_point")
    units = b.op("Round", [b.op("Div", [value, scale], f"{point}.units")], f"{point}.rounded")
    codes = b.op("Clip", [b.op("Add", [units, zero], f"{point}.shifted"), b.f32(0.0), top], f"{point}.codes")
    return b.op("Mul", [b.op("Sub", [codes, zero], f"{point}.centred"), scale], f"{point}.quantized")


def emit_row_fake_quant(b: Builder, point: str, value: Value, rows: IntegerFormat) -> Value:
    """Emits per-row dynamic scales over the last axis: largest magnitude over largest positive quantized value.

    Quantized values only saturate with an asymmetric zero point.
    """
    positive = 2 ** (rows.bits - 1) - 1
    lowest = (-positive - 1 if rows.signed else 0) - rows.zero_point
    highest = lowest + 2 * positive + 1
    largest = b.reduce("ReduceMax", b.op("Abs", [value], f"{point}.size"), [-1], f"{point}.largest", keepdims=1)
    limited = b.op("Clip", [largest, b.f32(SMALLEST_ROW), b.f32(LARGEST_ROW)], f"{point}.limited")
    scale = b.op("Div", [limited, b.f32(positive)], f"{point}.scale")
    codes = b.op("Round", [b.op("Div", [value, scale], f"{point}.units")], f"{point}.rounded")
    if lowest > -positive or highest < positive:
        codes = b.op("Clip", [codes, b.f32(lowest), b.f32(highest)], f"{point}.clipped")
    return b.op("Mul", [codes, scale], f"{point}.quantized")


def emit_flags(cell: QuantizedCell) -> dict[str, Any]:
    """Returns the options of `FloatArithmetic` for a cell with resolved points."""
    products = any(not cell.points[p].is_float for p in cell.type.product_points)
    return {"products": products, "bias_last": not misfits(cell)}
