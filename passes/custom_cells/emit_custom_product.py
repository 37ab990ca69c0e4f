"""Emits the matmuls of a custom cell with quantized weights, in standard operators.

Integer sums are exact. MatMulInteger computes them, once for each byte of wide values; matmuls of unsigned bytes are
exact on every processor. If int32 cannot hold the sums, float64 does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Node, Value, shape_of
from rnnqc.ir.builder import Builder, onnx_type
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.analysis.point_marks import CODES, HIGH, LOW, REAL, ROWS, SUMS, UNIT, mark_made, mark_taken
from rnnqc.passes.custom_cells.custom_formats import has_quantize_linear
from rnnqc.passes.custom_cells.custom_weight import BYTE, LARGEST_SUM, MIDDLE, WIDE_MIDDLE, CustomWeight
from rnnqc.passes.formats.point_format import stored_multiplier
from rnnqc.passes.qcdq.emit_qcdq import (
    WIDEST,
    QuantizedWeight,
    emit_fake_quant,
    emit_qcdq,
    emit_row_fake_quant,
    emit_weight,
)
from rnnqc.passes.render.operands.emit_codes import row_codes, row_scales
from rnnqc.passes.render.operands.emit_wide_codes import WIDE_BITS, separate_planes, weighted_sum, wide_codes

_FLOAT32_BITS = 24


def emit_grid(b: Builder, name: str, value: Value, format_: Format, *, readable: bool) -> Value:
    """Rounds `value` to a format with one scale.

    Args:
        b: Collects the nodes.
        name: The name of the values.
        value: Float32.
        format_: Its format.
        readable: Whether to use QuantizeLinear and DequantizeLinear if they support the format. onnxruntime replaces
            the operators between them by its own, and from operator set 21 on moves them past views and refuses the
            model.
    """
    emit = emit_qcdq if readable and has_quantize_linear(b.model.opset, format_) else emit_fake_quant
    return emit(b, name, value, format_)


@dataclass(frozen=True)
class Site:
    """An occurrence of a matmul; annotates the nodes that compute its values.

    Attributes:
        cell: The name of the recurrence.
        product: The name of the matmul in it.
        step: The step, if the recurrence is unrolled.
    """

    cell: str
    product: str
    step: int | None = None

    def mark(self, value: Value, tensor: str, part: str, kind: npt.DTypeLike = np.float32, **facts: Any) -> None:
        """Annotates the node that computes `value`."""
        mark_made(value, self.cell, f"{self.product}.{tensor}", part, kind=onnx_type(kind), step=self.step, **facts)

    def mark_weight(self, nodes: Iterable[Node], weight: CustomWeight) -> None:
        """Annotates the first of `nodes` that reads the quantized weights, and their zero points."""
        facts: dict[str, Any] = {"kind": onnx_type(weight.array.dtype), "raised": 0}
        if weight.format.signed:
            facts["raised"] = (0, MIDDLE, WIDE_MIDDLE)[weight.byte_count]
        part = HIGH if weight.byte_count > 1 else CODES
        self.mark_taken(nodes, weight.codes, "weight", part, **facts)
        if weight.format.all_zero_points.any():
            self.mark_taken(nodes, weight.zero_point, "weight.zero_point", part, rank=None, **facts)

    def mark_real(self, nodes: Iterable[Node], x: Value, point: PointFormat | None, y: Value) -> None:
        """Annotates `y`, a matmul of real numbers, and the first of `nodes` that reads x if x has one scale."""
        if point is not None and point.static is not None:
            self.mark_taken(nodes, x, "hidden", REAL)
        self.mark(y, "product", REAL)

    def mark_taken(self, nodes: Iterable[Node], value: Value, tensor: str, part: str, **facts: Any) -> None:
        """Annotates the first of `nodes` that reads `value`."""
        node = next((n for n in nodes if any(v is value for v in n.inputs)), None)
        if node is not None:
            mark_taken(node, value, self.cell, f"{self.product}.{tensor}", part, step=self.step, **facts)


def emit_product(
    b: Builder,
    site: Site,
    product: CustomProduct,
    weight: CustomWeight,
    point: PointFormat,
    *,
    given: bool,
    readable: bool,
    integer: bool,
) -> Value:
    """Emits `x W`, without the bias.

    Args:
        b: Collects the nodes.
        site: Annotates them.
        product: The matmul.
        weight: Its weights.
        point: The format of x: one scale, or per-row dynamic scales.
        given: Whether x has that format already.
        readable: Whether DequantizeLinear computes the weights of a matmul of real numbers (`dequantizes_weights`).
        integer: Whether to multiply quantized values, or real numbers.
    """
    if integer:
        y = _integer_product(b, site, product, weight, point, given)
    else:
        x = _on_grid(b, site, product.x, point, given)
        y = _real_product(b, x, weight, point, readable)
        site.mark_real(b.nodes, x, point, y)
    site.mark_weight(b.nodes, weight)
    return y


def _integer_product(
    b: Builder, site: Site, product: CustomProduct, weight: CustomWeight, point: PointFormat, given: bool
) -> Value:
    """Emits the matmul of `x [...,K]` in integers."""
    x, held = product.x, point.static
    if held is not None and not given and not _takes_bytes(held):
        x = emit_grid(b, "hidden", x, held, readable=False)
    shape = shape_of(x)
    flat = shape is not None and len(shape) == 2
    rows = x if flat else b.op("Reshape", [x, b.i64([-1, product.weights.shape[0]])], "rows")
    y = _static(b, site, rows, weight, held) if held is not None else _by_rows(b, site, rows, weight, point.integers)
    if flat:
        return y
    outer = b.op("Slice", [b.op("Shape", [x], "shape"), b.i64([0]), b.i64([-1]), b.i64([0])], "shape.outer")
    whole = b.op("Concat", [outer, b.i64([product.weights.shape[1]])], "shape.result", axis=0)
    return b.op("Reshape", [y, whole], "product.shaped")


def emit_half_quantized(
    b: Builder,
    site: Site,
    product: CustomProduct,
    weight: CustomWeight | None,
    point: PointFormat | None,
    *,
    given: bool,
) -> Value:
    """Emits `x W` with one float operand, without the bias: a matmul of real numbers, for form qcdq.

    Args:
        b: Collects the nodes.
        site: Annotates them.
        product: The matmul.
        weight: Its weights; None if they stay float.
        point: The format of x; None if it stays float.
        given: Whether x has that format already.
    """
    x = product.x if point is None else _on_grid(b, site, product.x, point, given)
    w: Value = b.f32(product.weights)
    if weight is not None:
        held = QuantizedWeight(weight.codes, weight.scale, weight.zero_point)
        w = emit_weight(b, "weight", held, weight.format, written_out=True)
        site.mark_weight(b.nodes, weight)
    y = b.op("MatMul", [x, w], "product")
    site.mark_real(b.nodes, x, point, y)
    return y


def _on_grid(b: Builder, site: Site, x: Value, point: PointFormat, given: bool) -> Value:
    """Returns the left operand as real numbers, rounded to its format."""
    if point.static is not None:
        return x if given else emit_grid(b, "hidden", x, point.static, readable=True)
    held = point.integers
    middle = 2 ** (held.bits - 1)
    made = emit_row_fake_quant(b, "hidden", x, IntegerFormat(held.bits, False, zero_point=middle))
    scaled, zero = made.inputs[0], 0 if held.signed else middle
    site.mark_taken([scaled], scaled.inputs[0], "hidden", CODES, raised=-zero, zero=zero)
    site.mark_taken([scaled], scaled.inputs[1], "hidden", ROWS)
    return made


def _takes_bytes(held: Format) -> bool:
    """Whether a single QuantizeLinear can quantize unquantized values to this format."""
    return held.bits == WIDEST and held.rounding is Rounding.HALF_EVEN and not held.narrow


def _real_product(b: Builder, x: Value, weight: CustomWeight, point: PointFormat, readable: bool) -> Value:
    """Emits the matmul of real numbers; in float64 if float32 cannot hold the sums of wide values."""
    depth = weight.array.shape[0]
    held = QuantizedWeight(weight.codes, weight.scale, weight.zero_point)
    w = emit_weight(b, "weight", held, weight.format, written_out=not readable)
    bits = point.integers.bits
    wide = max(bits, weight.format.bits) > WIDEST and point.static is not None
    if not wide or bits + weight.format.bits - 2 + depth.bit_length() <= _FLOAT32_BITS:
        return b.op("MatMul", [x, w], "product")
    exact = [b.cast(v, np.float64, f"{n}.float64") for n, v in (("hidden", x), ("weight", w))]
    return b.cast(b.op("MatMul", exact, "product.float64"), np.float32, "product")


def _static(b: Builder, site: Site, x: Value, weight: CustomWeight, code: Format) -> Value:
    """Emits the matmul of `x [N,K]`, which is quantized to `code` already or rounded to it, half to even."""
    depth = weight.array.shape[0]
    w = weight.format
    narrow = max(code.maximum - code.zero_point, code.zero_point - code.minimum)
    zeros = np.atleast_1d(w.all_zero_points)
    largest = int(max(np.abs(w.minimum - zeros).max(), np.abs(w.maximum - zeros).max()))
    unit = np.float64(code.scale[0]) * np.asarray(w.scale, np.float64)
    unit = unit if w.axis is not None else unit.reshape(())
    if w.bits <= WIDEST and code.bits <= WIDEST and depth * narrow * largest < LARGEST_SUM:
        zero = code.zero_point + (MIDDLE if code.signed else 0)
        units = b.op("QuantizeLinear", [x, b.f32(code.scale[0]), b.u8(zero)], "hidden.codes")
        acc = b.op("MatMulInteger", [units, weight.codes, b.u8(zero), weight.zero_point], "product")
        site.mark(units, "hidden", CODES, np.uint8, raised=zero - code.zero_point)
        site.mark(acc, "product", SUMS, np.int32)
        multiplier = b.f32(stored_multiplier(unit))
        real = b.op("Mul", [b.cast(acc, np.float32, "product.float"), multiplier], "product.real")
        site.mark_taken(real.inputs, multiplier, "product", UNIT, rank=None)
        return real
    if (
        weight.byte_count
        and code.bits <= WIDE_BITS
        and depth * BYTE * (BYTE if weight.byte_count > 1 else largest) < LARGEST_SUM
    ):
        acc = _sum_of_bytes(b, site, x, weight, code)
    else:
        exact = b.cast(weight.codes, np.float64, "weight.float")
        if weight.byte_count or np.any(zeros):
            exact = b.op("Sub", [exact, b.cast(weight.zero_point, np.float64, "weight.zero")], "weight.centred")
        units = b.op("Round", [b.op("Div", [x, b.f32(code.scale[0])], "hidden.units")], "hidden.rounded")
        codes = b.cast(units, np.float64, "hidden.codes")
        site.mark(codes, "hidden", CODES, np.float64, raised=-code.zero_point)
        acc = b.op("MatMul", [codes, exact], "product.float")
    site.mark(acc, "product", SUMS, np.float64)
    multiplier = _f64(b, unit)
    scaled = b.op("Mul", [acc, multiplier], "product.scaled")
    site.mark_taken(scaled.inputs, multiplier, "product", UNIT, kind=onnx_type(np.float64), rank=None)
    return b.cast(scaled, np.float32, "product.real")


def _sum_of_bytes(b: Builder, site: Site, x: Value, weight: CustomWeight, code: Format) -> Value:
    """Returns integer sums in float64, from one MatMulInteger for each byte of x; wide weights are split into bytes."""
    if code.bits <= WIDEST:
        zero = code.zero_point + (MIDDLE if code.signed else 0)
        units = b.op("QuantizeLinear", [x, b.f32(code.scale[0]), b.u8(zero)], "hidden.codes")
        site.mark(units, "hidden", CODES, np.uint8, raised=zero - code.zero_point)
        parts = [("whole", b.op("MatMulInteger", [units, weight.codes, b.u8(zero), weight.zero_point], "product"))]
    else:
        zero = code.zero_point + (WIDE_MIDDLE if code.signed else 0)
        units = wide_codes(b, x, b.f32(code.scale[0]), b.f32(zero), "hidden.codes")
        site.mark(units, "hidden", CODES, raised=zero - code.zero_point)
        parts = _planes(b, units, zero, weight)

    def joined(high: Value, low: Value, name: str) -> Value:
        return b.op("Add", [b.op("Mul", [high, _f64(b, 256.0)], f"{name}.scaled"), low], name)

    made = []
    for name, part in parts:
        whole: Value = b.cast(part, np.float64, f"product.{name}.float")
        if weight.byte_count > 1:
            even = {"num_outputs": 2} if b.model.opset >= 18 else {}
            halves = b.ops("Split", [whole], [f"product.{name}.{n}" for n in ("upper", "lower")], axis=1, **even)
            whole = joined(halves[0], halves[1], f"product.{name}.joined")
        made.append(whole)
    return made[0] if len(made) == 1 else joined(made[0], made[1], "product.float")


def _by_rows(b: Builder, site: Site, rows: Value, weight: CustomWeight, held: IntegerFormat) -> Value:
    """Emits the matmul of `rows [N,K]` with per-row dynamic scales."""
    bits = held.bits
    if bits == WIDEST:
        units, row_scale = row_codes(b, rows, bits, "hidden", MIDDLE)
        acc = b.op("MatMulInteger", [units, weight.codes, b.u8(MIDDLE), weight.zero_point], "product")
        real = b.op("DequantizeLinear", [acc, row_scale], "product.scaled", axis=0)
        site.mark(acc, "product", SUMS, np.int32)
    else:
        row_scale = row_scales(b, rows, bits, "hidden")
        scale = b.op("Unsqueeze", [row_scale, b.i64([1])], "hidden.scale.column")
        units = wide_codes(b, rows, scale, b.f32(WIDE_MIDDLE), "hidden.codes")
        (_, high), (_, low) = _planes(b, units, WIDE_MIDDLE, weight)
        real = b.op("Mul", [weighted_sum(b, high, low, "product"), scale], "product.scaled")
        for part, half in ((HIGH, high), (LOW, low)):
            site.mark(half, "product", part, np.int32)
    middle, kind = (MIDDLE, np.uint8) if bits == WIDEST else (WIDE_MIDDLE, np.float32)
    zero = 0 if held.signed else middle
    site.mark(units, "hidden", CODES, kind, raised=middle - zero, zero=zero)
    site.mark(row_scale, "hidden", ROWS, rank=1)
    made = b.op("Mul", [real, weight.scale], "product.real")
    site.mark_taken(made.inputs, weight.scale, "product", UNIT, rank=None)
    return made


def _planes(b: Builder, units: Value, zero: int, weight: CustomWeight) -> list[tuple[str, Value]]:
    """Returns the matmuls of the high and of the low bytes of quantized values 0 .. 65535."""
    parts = zip(("high", "low"), separate_planes(b, units, "hidden"), (zero >> 8, zero & 255), strict=True)
    return [
        (n, b.op("MatMulInteger", [part, weight.codes, b.u8(point), weight.zero_point], f"product.{n}"))
        for n, part, point in parts
    ]


def _f64(b: Builder, value: Any) -> Value:
    return b.model.constant(value, np.float64)
