"""Quantizers as standard operators: QuantizeLinear -> Clip -> DequantizeLinear, or the same arithmetic spelled out.

Up to 8 bits the three operators are used. Wider codes, other roundings than half-to-even and one scale per row have no
QuantizeLinear before operator set 21, and are written as Div, Round, Clip, Mul.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.cells.base import GATES, INPUT
from rnnqc.cells.equations import CANDIDATE, RESET_HIDDEN
from rnnqc.cells.types import GRU
from rnnqc.errors import CompileError
from rnnqc.formats.encoding import Encoding, Rounding
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.emit_step import ACCUMULATORS, INITIAL_STATES, ONE, Quantizer, Splitter
from rnnqc.passes.formats.point_format import encoding_of
from rnnqc.passes.qcdq.emit_rounding import emit_rounding

SMALLEST_ROW = 2.0**-100
LARGEST_ROW = 2.0**60
COUPLED_GATE = f"{GATES[INPUT]}.activation"  # its format holds the 1 of `f = 1 - i`
# Values that have the format of another point.
ALIASES = {ONE: COUPLED_GATE, **dict(zip(INITIAL_STATES, ("hidden", "cell_state"), strict=True))}
_FACTORS = dict(
    zip(ACCUMULATORS, (("input", "W.weight"), ("hidden", "R.weight"), (RESET_HIDDEN, "R.weight")), strict=True)
)
WIDEST = 8
_OPSET_OF_PROPAGATION = 21


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight matrix as constants: codes, scale and zero point."""

    codes: Value
    scale: Value
    zero_point: Value


def qcdq_quantizer(points: Mapping[str, Mapping[str, Any]], weights: Mapping[str, QuantizedWeight]) -> Quantizer:
    """A quantizer that looks the points of one cell up in `points`, and its weights in `weights`."""

    def quantize(b: Builder, point: str, value: Value) -> Value:
        if point in ACCUMULATORS:
            return emit_accumulator(b, point, value, points)
        settings = points.get(ALIASES.get(point, point), {"bits": None})
        if settings["bits"] is None or "mode" not in settings:
            return value
        if settings["mode"] == "dynamic-row":
            emit = emit_unsigned_row_fake_quant if point == "input" else emit_row_fake_quant
            return emit(b, point, value, settings)
        encoding = encoding_of(settings)
        if point in weights:
            return emit_weight(b, point, weights[point], encoding, written_out=_is_alone(b, point))
        if has_operators(b, encoding.bits, encoding.rounding, encoding.signed):
            return emit_qcdq(b, point, value, encoding)
        return emit_fake_quant(b, point, value, encoding)

    def _is_alone(b: Builder, point: str) -> bool:
        """Whether the weights meet codes that are written out because of the operator set alone."""
        settings = points.get("input", {"bits": None}) if point == "W.weight" else {"bits": None}
        if settings["bits"] is None or settings.get("mode") == "dynamic-row" or "mode" not in settings:
            return False
        other = encoding_of(settings)
        usual = other.bits <= WIDEST and other.rounding is Rounding.HALF_EVEN
        return usual and not has_operators(b, other.bits, other.rounding, other.signed)

    return quantize


def hidden_splitter(points: Mapping[str, Mapping[str, Any]], bound: float) -> Splitter:
    """Splits hidden states at what the codes of their point hold: from the lowest code to `bound`."""

    def split(b: Builder, name: str, value: Value) -> tuple[Value, Value]:
        encoding = encoding_of(points[ALIASES.get(name, name)])
        low = float(np.float32(encoding.minimum - encoding.zero_point) * np.float32(encoding.scale[0]))
        finite = b.op("Clip", [value, b.f32(-LARGEST_ROW), b.f32(LARGEST_ROW)], f"{name}.finite")
        held = b.op("Clip", [finite, b.f32(low), b.f32(bound)], f"{name}.held")
        return held, b.op("Sub", [finite, held], f"{name}.lost")

    return split


def whole_quantizer(quantizer: Quantizer, points: Mapping[str, Mapping[str, Any]], split: Splitter) -> Quantizer:
    """`quantizer`, but hidden states keep in float what codes of a range without data cannot hold."""

    def quantize(b: Builder, point: str, value: Value) -> Value:
        if "bound" not in points.get(point, {}):
            return quantizer(b, point, value)
        held, lost = split(b, point, value)
        return b.op("Add", [quantizer(b, point, held), lost], f"{point}.whole")

    return quantize


def has_operators(b: Builder, bits: int, rounding: Rounding, signed: bool) -> bool:
    """Whether QuantizeLinear and DequantizeLinear can be used.

    Not for signed codes from operator set 21 on: onnxruntime 1.31 moves their QuantizeLinear past view operators (those
    that follow states, and those it makes itself around products), gives it unsigned ones there, and refuses the model.
    """
    exposed = signed and b.model.opset >= _OPSET_OF_PROPAGATION
    return bits <= WIDEST and rounding is Rounding.HALF_EVEN and not exposed


def emit_accumulator(b: Builder, point: str, value: Value, points: Mapping[str, Mapping[str, Any]]) -> Value:
    """The limits of an accumulator of few bits, in units of the product of both scales, for each output channel."""
    bits = points.get("accumulator", {"bits": None})["bits"]
    if bits is None:
        return value
    code, weight = (points[p] for p in _FACTORS[point])
    if "scale" not in code or "scale" not in weight:
        raise CompileError(
            f"An accumulator of {bits} bits needs static scales.",
            supported="weights and codes with one scale each",
            action="quantize input, hidden state and weights with mode = static",
        )
    scales = np.asarray(weight["scale"], np.float64)
    if scales.size > 1 and point != ACCUMULATORS[0] and "scale" in points.get(RESET_HIDDEN, {}):
        # A GRU multiplies the columns of its candidate with codes of their own.
        gates, candidate = np.split(scales, [CANDIDATE * scales.size // len(GRU.gates)])
        scales = candidate if point == ACCUMULATORS[2] else gates
    unit = np.float64(code["scale"][0]) * scales
    low, high = (np.asarray(unit * limit, np.float32) for limit in (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1))
    below = b.op("Min", [value, b.f32(high)], f"{point}.below")
    return b.op("Max", [below, b.f32(low)], f"{point}.limited")


def scale_and_zero_point(b: Builder, encoding: Encoding) -> tuple[Value, Value]:
    """The scale and the zero point as QuantizeLinear takes them."""
    scale = np.asarray(encoding.scale, np.float32)
    if encoding.axis is None:
        return b.f32(scale.reshape(())), b.model.constant(encoding.zero_point, encoding.dtype)
    zero_points = np.full(scale.shape, encoding.zero_point, encoding.dtype)
    return b.f32(scale), b.model.constant(zero_points, encoding.dtype)


def emit_qcdq(b: Builder, point: str, value: Value, encoding: Encoding) -> Value:
    """QuantizeLinear -> Clip (where the format is smaller than its type) -> DequantizeLinear."""
    scale, zero_point = scale_and_zero_point(b, encoding)
    attrs = {} if encoding.axis is None else {"axis": encoding.axis}
    codes: Value = b.op("QuantizeLinear", [value, scale, zero_point], f"{point}.codes", **attrs)
    return b.op(
        "DequantizeLinear", [_clip(b, point, codes, encoding), scale, zero_point], f"{point}.quantized", **attrs
    )


def emit_weight(
    b: Builder, point: str, weight: QuantizedWeight, encoding: Encoding, *, written_out: bool = False
) -> Value:
    """Integer codes -> Clip -> DequantizeLinear; Cast -> Sub -> Mul for codes wider than 8 bits.

    The latter, too, if asked for: onnxruntime 1.31 makes MatMulNBits, which rounds the other operand to 8 bits in its
    own way, of a MatMul with a DequantizeLinear of weights alone.
    """
    if encoding.bits > WIDEST or written_out:
        real: Value = b.cast(weight.codes, np.float32, f"{point}.float")
        if encoding.zero_point or any(encoding.zero_points):
            zero_point = b.cast(weight.zero_point, np.float32, f"{point}.zero_point.float")
            real = b.op("Sub", [real, zero_point], f"{point}.centred")
        return b.op("Mul", [real, weight.scale], f"{point}.quantized")
    attrs = {} if encoding.axis is None else {"axis": encoding.axis}
    codes = _clip(b, point, weight.codes, encoding)
    return b.op("DequantizeLinear", [codes, weight.scale, weight.zero_point], f"{point}.quantized", **attrs)


def _clip(b: Builder, point: str, codes: Value, encoding: Encoding) -> Value:
    limits = np.iinfo(encoding.dtype)
    if (encoding.minimum, encoding.maximum) == (limits.min, limits.max):
        return codes
    low = b.model.constant(encoding.minimum, encoding.dtype)
    high = b.model.constant(encoding.maximum, encoding.dtype)
    return b.op("Clip", [codes, low, high], f"{point}.clipped")


def emit_fake_quant(b: Builder, point: str, value: Value, encoding: Encoding) -> Value:
    """Div, round, Clip, Mul."""
    scale = b.f32(encoding.scale_array(2))
    units = b.op("Div", [value, scale], f"{point}.units")
    whole = emit_rounding(b, units, encoding.rounding, point)
    low, high = encoding.minimum - encoding.zero_point, encoding.maximum - encoding.zero_point
    codes = b.op("Clip", [whole, b.f32(low), b.f32(high)], f"{point}.clipped")
    return b.op("Mul", [codes, scale], f"{point}.quantized")


def emit_unsigned_row_fake_quant(b: Builder, point: str, value: Value, settings: Mapping[str, Any]) -> Value:
    """One scale and zero point for each row of the last axis, by the formula of ONNX's DynamicQuantizeLinear."""
    top = b.f32(2.0 ** settings["bits"] - 1)
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


def emit_row_fake_quant(b: Builder, point: str, value: Value, settings: Mapping[str, Any]) -> Value:
    """One scale for each row of the last axis: its largest magnitude over the largest positive code.

    Only a zero point away from the middle makes codes saturate.
    """
    positive = 2 ** (settings["bits"] - 1) - 1
    lowest = (-positive - 1 if settings["signed"] else 0) - settings["zero_point"]
    highest = lowest + 2 * positive + 1
    largest = b.reduce("ReduceMax", b.op("Abs", [value], f"{point}.size"), [-1], f"{point}.largest", keepdims=1)
    limited = b.op("Clip", [largest, b.f32(SMALLEST_ROW), b.f32(LARGEST_ROW)], f"{point}.limited")
    scale = b.op("Div", [limited, b.f32(positive)], f"{point}.scale")
    codes = b.op("Round", [b.op("Div", [value, scale], f"{point}.units")], f"{point}.rounded")
    if lowest > -positive or highest < positive:
        codes = b.op("Clip", [codes, b.f32(lowest), b.f32(highest)], f"{point}.clipped")
    return b.op("Mul", [codes, scale], f"{point}.quantized")
