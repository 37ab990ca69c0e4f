"""The functions of standard operators behind `ai.rnnqc::QuantLinear` and its aliases (docs/quant_linear.md).

A function does not depend on sizes: all linear layers of a model with one storage format share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import onnx

from rnnqc.cells.linear_nodes import DYNAMIC_ROW, LinearKind
from rnnqc.ir import DOMAIN, Value, Variable, attribute_reference
from rnnqc.ir.builder import Builder, body_nodes
from rnnqc.passes.render.cell_function import scratch_model
from rnnqc.passes.render.lut.lut_product import GroupSizes, Planes, unpacked_matrix
from rnnqc.passes.render.operands.byte_weights import ByteWeights, multiplies_exactly
from rnnqc.passes.render.operands.column_groups import GROUP
from rnnqc.passes.render.operands.emit_codes import row_range, with_zero_point_rows, without_nan

_FIRST_WITH_ALLOWZERO = 14
_FIRST_WITH_ENDS_OF_SHAPES = 15


def linear_function(kind: LinearKind, opset: int, ir_version: int) -> onnx.FunctionProto:
    """Returns the function of linear layers of one kind, for models of this operator set."""
    b = Builder(scratch_model(opset, ir_version))
    types = {
        "X": np.uint8 if kind.x_mode == "codes" else np.float32,
        "W": np.uint8 if kind.packed else np.int8,
        "W_group_multiplier": np.uint8,
    }
    given: dict[str, Value] = {n: Variable(n, dtype=types.get(n, np.float32)) for n in kind.inputs}
    emit_linear(b, kind, given, {}).name = "Y"
    function = onnx.FunctionProto(domain=DOMAIN, name=kind.name)
    function.doc_string = "A linear layer in integer arithmetic."
    function.input.extend(kind.inputs)
    function.output.append("Y")
    function.attribute.extend(kind.attributes)
    function.opset_import.add(domain="", version=opset)
    function.node.extend(body_nodes(b.nodes))
    return function


def emit_linear(b: Builder, kind: LinearKind, given: dict[str, Value], attributes: Mapping[str, int]) -> Value:
    """Emits the nodes of a linear layer.

    Args:
        b: Collects the nodes.
        kind: Kind of the operator that they compute.
        given: Its inputs by name.
        attributes: Its attributes; empty in a function, which reads them from its nodes.
    """
    layer = _Layer(b, kind, given, attributes)
    return layer.of_rows() if kind.x_mode == DYNAMIC_ROW else layer.of_fixed_format()


class _Layer:
    """Emits one layer into `b`."""

    def __init__(self, b: Builder, kind: LinearKind, given: dict[str, Value], attributes: Mapping[str, int]) -> None:
        self.b, self.given, self.attributes, self.kind = b, given, attributes, kind
        self.w = self._unpacked() if kind.packed else given["W"]

    @cached_property
    def depth(self) -> Value:
        """Returns K, `[1]`."""
        return self._size(self.given["W"], 0, "W.rows")

    @cached_property
    def columns(self) -> Value:
        """Returns N, `[1]`."""
        return self._size(self.given.get("W_group_multiplier", self.given["W"]), -1, "W.columns")

    def of_rows(self) -> Value:
        """Returns Y for X with per-row dynamic scales and zero points."""
        b, x = self.b, self.given["X"]
        whole = with_zero_point_rows(b, self.w, None)
        row = b.op("Concat", [b.i64([-1]), self.depth], "x.row", axis=0)
        rows = b.op("Reshape", [without_nan(b, x, "x"), row], "x.rows")
        scale, below = row_range(b, rows, 8, may_be_none=True)
        zero = b.op("QuantizeLinear", [below, scale], "x.zero_point", axis=0)  # as uint8, with zero point 0
        codes = b.op("QuantizeLinear", [rows, scale, zero], "x.codes", axis=0)
        acc = self._product(self._with_zero_points(codes, zero, whole), whole, b.u8(0))
        y = self._scaled(b.op("DequantizeLinear", [acc, scale], "product.scaled", axis=0), "Y.rows")
        shape = b.op("Concat", [self._outer(x), self.columns], "Y.shape", axis=0)
        zero_sizes = {"allowzero": 1} if b.model.opset >= _FIRST_WITH_ALLOWZERO else {}
        return b.op("Reshape", [y, shape], "Y.shaped", **zero_sizes)

    def _with_zero_points(self, codes: Value, zero: Value, whole: Value) -> Value:
        """Appends to quantized values as many columns of zero points as `whole` has rows for them."""
        b = self.b
        count = b.op("Sub", [self._size(whole, 0, "W.rows.with_zero_point"), self.depth], "W.zero_point_rows.count")
        shape = b.op("Concat", [b.i64([1]), count], "x.zero_point.shape", axis=0)
        columns = b.op(
            "Expand", [b.op("Unsqueeze", [zero, b.i64([1])], "x.zero_point.column"), shape], "x.zero_point.columns"
        )
        return b.op("Concat", [codes, columns], "x.codes.with_zero_point", axis=1)

    def _outer(self, x: Value) -> Value:
        """The dimensions of X except the last one."""
        b = self.b
        if b.model.opset >= _FIRST_WITH_ENDS_OF_SHAPES:
            return b.op("Shape", [x], "Y.outer", end=-1)
        return b.op("Slice", [b.op("Shape", [x], "X.shape"), b.i64([0]), b.i64([-1])], "Y.outer")

    def of_fixed_format(self) -> Value:
        """Returns Y for X with one scale and zero point, or for quantized values."""
        b, x = self.b, self.given["X"]
        number = b.value("x_zero_point")
        b.add("Constant", [], [number], "x_zero_point", value_int=attribute_reference("x_zero_point", int))
        zero_point = b.cast(number, np.uint8, "x.zero_point")
        if x.dtype == np.float32:
            scale = b.value("x_scale")
            b.add("Constant", [], [scale], "x_scale", value_float=attribute_reference("x_scale", float))
            x = b.op("QuantizeLinear", [without_nan(b, x, "x"), scale, zero_point], "x.codes")
        acc = self._product(x, self.w, zero_point)
        return self._scaled(b.cast(acc, np.float32, "product.float"), "Y.sums")

    def _scaled(self, sums: Value, name: str) -> Value:
        units = self.b.op("Mul", [sums, self.given["multiplier"]], "product.units")
        return self.b.op("Add", [units, self.given["B"]], name)

    def _size(self, value: Value, axis: int, name: str) -> Value:
        """One dimension of a matrix, `[1]`."""
        return self.b.op("Gather", [self.b.op("Shape", [value], f"{name}.of"), self.b.i64([axis])], name, axis=0)

    def _unpacked(self) -> Value:
        b, given = self.b, self.given
        one = b.i64([1])
        if "group_size" in self.attributes:
            group: Value = b.i64([1, self.attributes["group_size"], 1])
        else:
            size = b.value("group_size")
            b.add("Constant", [], [size], "group_size", value_int=attribute_reference("group_size", int))
            group = b.op("Concat", [one, b.op("Reshape", [size, one], "group"), one], "group.rows", axis=0)
        row = b.op("Concat", [b.i64([-1]), self.columns], "W.row", axis=0)
        groups = GroupSizes(given["W_group_multiplier"], group, row, self.depth, bool(self.kind.codebook))
        return unpacked_matrix(b, given["W"], Planes(self.kind.bits, self.columns, None), groups, "W")

    def _product(self, codes: Value, w: Value, zero_point: Value) -> Value:
        """Returns the matmul of quantized values and W, exact on any machine."""
        b = self.b
        weights = ByteWeights.of(b, w, multiplies_exactly(b), "W").with_columns(b, self.columns, self._pads(), "W")
        return weights.product(b, codes, zero_point, "product")

    def _pads(self) -> Value:
        """Returns the pads of the columns that W misses: none if N is a multiple of `GROUP`."""
        b = self.b
        more = b.op("Mod", [b.op("Neg", [self.columns], "W.columns.negative"), b.i64([GROUP])], "W.columns.missing")
        return b.op("Concat", [b.i64([0, 0, 0]), more], "W.pads", axis=0)
