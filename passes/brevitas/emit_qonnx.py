"""Emits QONNX quantizers as standard operators, each operation in float32 and in QONNX's order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Node, Value, attribute, constant_array, input_or_none
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.nodes.quant_operators import rounding_of
from rnnqc.passes.qcdq.emit_rounding import emit_rounding

Limits = tuple[Value, Value]


@dataclass(frozen=True)
class LiveQuantizer:
    """A Quant node whose parameters are computed at run time.

    Attributes:
        scale: float32, any shape that broadcasts with the values.
        zero_point: float32, any shape that broadcasts with the values.
        bits: float32.
        signed: Whether quantized values may be negative.
        narrow: Whether the range omits one quantized value at the end.
        rounding: The rounding to integers.
    """

    scale: Value
    zero_point: Value
    bits: Value
    signed: bool
    narrow: bool
    rounding: Rounding


@dataclass(frozen=True)
class Truncation:
    """A Trunc node.

    Attributes:
        scale: The scale of the input.
        zero_point: The zero point of the input.
        in_bits: Bits of the input.
        out_scale: The scale of the output; None for version 1, which keeps the scale and does not clip.
        out_bits: Bits of the output.
        signed: Whether outputs may be negative.
        narrow: Whether the output range omits one quantized value at the end.
        rounding: The rounding that removes the low bits.
    """

    scale: Value
    zero_point: Value
    in_bits: Value
    out_scale: Value | None
    out_bits: Value
    signed: bool
    narrow: bool
    rounding: Rounding


def read_live_quant(node: Node) -> LiveQuantizer:
    """Reads a Quant or IntQuant node; its parameters need not be constant.

    Raises:
        NotHandled: A parameter is missing, or the rounding mode is unknown.
    """
    scale, zero_point, bits = _inputs(node, ("scale", "zeropt", "bitwidth"))
    signed, narrow = (bool(attribute(node, name, default)) for name, default in (("signed", 1), ("narrow", 0)))
    return LiveQuantizer(scale, zero_point, bits, signed, narrow, rounding_of(node, "ROUND"))


def read_trunc(node: Node) -> Truncation:
    """Reads a Trunc node of version 1, with 5 inputs, or version 2, with 6.

    Raises:
        NotHandled: It has another number of inputs, or the rounding mode is unknown.
    """
    count = sum(v.name != "" for v in node.inputs)
    if count not in (5, 6) or count != len(node.inputs):
        raise NotHandled("it is no Trunc that is known.", f"{count} inputs", "use version 1 or 2 of the operator")
    signed, narrow = (bool(attribute(node, name, default)) for name, default in (("signed", 1), ("narrow", 0)))
    _, scale, zero_point, in_bits, *rest = node.inputs
    out_scale = rest[0] if len(rest) == 2 else None
    return Truncation(scale, zero_point, in_bits, out_scale, rest[-1], signed, narrow, rounding_of(node, "FLOOR"))


def emit_bipolar(b: Builder, x: Value, scale: Value, target: Value) -> None:
    """Emits `target = sign(x) * scale`, where the sign of 0 is 1."""
    b.add("Mul", [_sign(b, x), scale], [target], "values")


def emit_quant(b: Builder, q: QonnxQuantizer, x: Value, target: Value) -> None:
    """Emits `target`: `x` through a quantizer with constant parameters."""
    scale, zero_point = b.f32(q.scale), b.f32(q.zero_point)
    shifts = bool(q.zero_point.any())
    if q.bipolar and not shifts:
        emit_bipolar(b, x, scale, target)
        return
    units: Value = b.op("Div", [x, scale], "units")
    if shifts:
        units = b.op("Add", [units, zero_point], "shifted")
    if q.bipolar:
        codes = _sign(b, units)
    else:
        whole = emit_rounding(b, units, q.rounding, "codes")
        codes = b.op("Clip", [whole, b.f32(q.minimum), b.f32(q.maximum)], "codes")
    if shifts:
        codes = b.op("Sub", [codes, zero_point], "multiples")
    b.add("Mul", [codes, scale], [target], "values")


def emit_live_quant(b: Builder, q: LiveQuantizer, x: Value, target: Value) -> None:
    """Emits `target`: `x` through a quantizer whose parameters are values of the graph."""
    units = b.op("Add", [b.op("Div", [x, q.scale], "units"), q.zero_point], "shifted")
    whole = emit_rounding(b, units, q.rounding, "codes")
    codes = _limited(b, whole, _limits(b, q.bits, q.signed, q.narrow))
    if q.signed:
        bits = constant_array(q.bits)
        if bits is None or (bits == 1).any():
            binary = b.op("Equal", [q.bits, b.f32(1.0)], "binary")
            codes = b.op("Where", [binary, _sign(b, units), codes], "codes.of_any_width")
    b.add("Mul", [b.op("Sub", [codes, q.zero_point], "multiples"), q.scale], [target], "values")


def emit_trunc(b: Builder, t: Truncation, x: Value, target: Value) -> None:
    """Emits `target`: `x` without its low bits."""
    units = b.op("Add", [b.op("Div", [x, t.scale], "units"), t.zero_point], "shifted")
    whole = b.op("Round", [units], "codes")
    if t.out_scale is None:
        steps = _power(b, b.op("Sub", [t.in_bits, t.out_bits], "low_bits"), "steps")
        codes = emit_rounding(b, b.op("Div", [whole, steps], "high"), t.rounding, "high.codes")
        b.add("Mul", [b.op("Sub", [codes, t.zero_point], "multiples"), t.scale], [target], "values")
        return
    steps = _steps(b, t.scale, t.out_scale)
    limited = _limited(b, b.op("Div", [whole, steps], "high"), _limits(b, t.out_bits, t.signed, t.narrow))
    codes = emit_rounding(b, limited, t.rounding, "high.codes")
    zero = b.op("Div", [t.zero_point, steps], "high.zero_point")
    b.add("Mul", [b.op("Sub", [codes, zero], "multiples"), t.out_scale], [target], "values")


def _inputs(node: Node, names: tuple[str, ...]) -> list[Value]:
    found = [input_or_none(node, k + 1) for k in range(len(names))]
    for name, value in zip(names, found, strict=True):
        if value is None:
            raise NotHandled(f"{name} is missing.", f"{len(node.inputs)} inputs", "export the model again")
    return [v for v in found if v is not None]


def _sign(b: Builder, x: Value) -> Value:
    positive = b.op("GreaterOrEqual", [x, b.f32(0.0)], "positive")
    return b.op("Where", [positive, b.f32(1.0), b.f32(-1.0)], "sign")


def _power(b: Builder, exponent: Value, name: str) -> Value:
    """Returns powers of two; a constant if the exponent is one."""
    return b.op("Pow", [b.f32(2.0), exponent], name)


def _steps(b: Builder, scale: Value, out_scale: Value) -> Value:
    """Returns the power of two nearest to `out_scale / scale`."""
    held = [constant_array(v) for v in (scale, out_scale)]
    if held[0] is not None and held[1] is not None:
        ratio = np.asarray(held[1], np.float32) / np.asarray(held[0], np.float32)
        return b.f32(np.exp2(np.round(np.log2(ratio))))
    ratio_of = b.op("Log", [b.op("Div", [out_scale, scale], "ratio")], "ratio.log")
    bits = b.op("Round", [b.op("Div", [ratio_of, b.f32(np.log(2.0))], "ratio.log2")], "low_bits")
    return _power(b, bits, "steps")


def _limits(b: Builder, bits: Value, signed: bool, narrow: bool) -> Limits:
    """Returns the smallest and the largest quantized value."""
    array = constant_array(bits)
    if array is not None:
        width = np.asarray(array, np.float32)
        top = np.exp2(width - np.float32(signed)) - np.float32(1 + (narrow and not signed))
        low = np.float32(narrow) - np.exp2(width - 1) if signed else np.zeros_like(width)
        return b.f32(low), b.f32(top)
    codes = _power(b, b.op("Sub", [bits, b.f32(1.0)], "bits.of_size") if signed else bits, "count")
    high = b.op("Sub", [codes, b.f32(1.0 + (narrow and not signed))], "highest")
    low_value: Value = b.f32(0.0)
    if signed:
        low_value = b.op("Sub", [b.f32(float(narrow)), codes], "lowest")
    return low_value, high


def _limited(b: Builder, values: Value, limits: Limits) -> Value:
    return b.op("Max", [b.op("Min", [values, limits[1]], "not_above"), limits[0]], "limited")
