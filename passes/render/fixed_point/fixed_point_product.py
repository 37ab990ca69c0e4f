"""Matmuls of fixed-point arithmetic in standard operators: exact sums of quantized values times weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.fixed_point_numbers import BYTE, RESET, FixedPointNumbers, FixedPointQuantizer, is_exact_in_int32
from rnnqc.ir import Value
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.render.fixed_point.fixed_point_quantizers import GridEmitter
from rnnqc.passes.render.lut.lut_product import unpacked
from rnnqc.passes.render.operands.column_groups import in_groups, missing_columns, sums_that_count

MIDDLE = 128


@dataclass(frozen=True)
class GridProduct:
    """The right operand of a matmul: `weights` for MatMulInteger, or real numbers for MatMul.

    Attributes:
        weights: `[K,n]`, uint8 values, or real numbers with zero point 0.
        zero_point: The zero point of uint8 weights; None for real numbers.
        codes: The quantizer of the left operand.
        accumulator_bits: Bits at which sums saturate, or 0.
        columns: n `[1]`, if columns that do not count are behind them.
    """

    weights: Value
    zero_point: Value | None
    codes: FixedPointQuantizer
    accumulator_bits: int
    columns: Value | None = None

    @property
    def integer(self) -> bool:
        """Whether the left operand is uint8; otherwise it is multiples of the scale."""
        return self.zero_point is not None

    def emit(self, e: GridEmitter, left: Value, name: str) -> Value:
        """Emits the exact sums in the real type."""
        b = e.b
        if self.zero_point is not None:
            operands = [left, self.weights, b.u8(self.codes.zero_point), self.zero_point]
            whole = sums_that_count(b, self.columns, name, lambda made: b.op("MatMulInteger", operands, made))
            sums: Value = b.cast(whole, np.float64, f"{name}.float")
        else:
            exact = left if e.real == np.float64 else b.cast(left, np.float64, f"{name}.multiples")
            sums = b.op("MatMul", [exact, self.weights], name)
        if self.accumulator_bits:
            half = 2.0 ** (self.accumulator_bits - 1)
            limits = [b.model.constant(v, np.float64) for v in (-half, half - 1)]
            sums = b.op("Clip", [sums, *limits], f"{name}.saturated")
        return sums if e.real == np.float64 else e.cast(sums, f"{name}.real")


@dataclass(frozen=True)
class RecurrentProduct:
    """The matmul with (some columns of) R in a loop, whose results are real numbers in the formats of the gates.

    Attributes:
        product: The exact matmul.
        multiplier: `[n]`.
        grids: The quantizers of the columns' gates.
        name: Prefix of the values.
    """

    product: GridProduct
    multiplier: Value
    grids: Mapping[str, FixedPointQuantizer]
    name: str

    def of_codes(self, e: GridEmitter, codes: Value) -> Value:
        """Returns the matmul with quantized values in the form that `product` takes."""
        sums = self.product.emit(e, codes, f"{self.name}.product")
        units = e.b.op("Mul", [sums, self.multiplier], f"{self.name}.product.scaled")
        return e.quantized_gates(units, self.grids, f"{self.name}_product")

    def of_values(self, e: GridEmitter, values: Value) -> Value:
        """Returns the matmul with the quantized values of real values."""
        return self.of_codes(e, codes_for(e, self.product, values, self.name))


def codes_for(e: GridEmitter, product: GridProduct, value: Value, name: str) -> Value:
    """Converts real values to the form that `product` takes."""
    multiples = e.multiples(value, product.codes, name)
    if product.integer:
        return e.b.cast(shifted(e, multiples, product.codes, name), np.uint8, f"{name}.codes")
    return multiples


def shifted(e: GridEmitter, multiples: Value, grid: FixedPointQuantizer, name: str) -> Value:
    """Returns the quantized values of multiples of a scale, as real numbers."""
    if not grid.zero_point:
        return multiples
    return e.b.op("Add", [multiples, e.constant(grid.zero_point)], f"{name}.shifted")


def grid_product(e: GridEmitter, cell: Cell, numbers: FixedPointNumbers, w: Operands, key: str) -> GridProduct:
    """Returns the matmul with W or R, in the form for the type of its weights.

    Args:
        e: Emits the nodes that convert the weights to this form.
        cell: The cell.
        numbers: Its scalars.
        w: Its constants.
        key: "W" or "R".
    """
    weights = _Weights.of(e, cell, numbers, w, key)
    return weights.product(e, numbers, numbers.input if key == "W" else numbers.hidden)


def reset_products(
    e: GridEmitter, cell: Cell, numbers: FixedPointNumbers, w: Operands
) -> tuple[GridProduct, GridProduct]:
    """Returns the matmuls with R if a gate resets the state: of the other gates with h, of the candidate with r * h."""
    weights = _Weights.of(e, cell, numbers, w, "R")
    own = cell.candidate_columns
    parts = weights.columns(e, 0, own.start, "gates"), weights.columns(e, own.start, own.stop, "candidate")
    return parts[0].product(e, numbers, numbers.hidden), parts[1].product(
        e, numbers, numbers.quantizer(cell.type, RESET)
    )


@dataclass(frozen=True)
class _Weights:
    """Weights as stored, but unpacked.

    Attributes:
        codes: `[K,n]`.
        zero_point: int32 `[n]`, or None.
        narrow: Whether quantized values have 8 bits.
        depth: K.
        width: n.
        name: Prefix of the values.
    """

    codes: Value
    zero_point: Value | None
    narrow: bool
    depth: int
    width: int
    name: str

    @classmethod
    def of(cls, e: GridEmitter, cell: Cell, numbers: FixedPointNumbers, w: Operands, key: str) -> _Weights:
        """Returns W or R."""
        if key == "W":
            stored, zero_point, depth = w.W, w.W_zero_point, cell.input_size
        else:
            stored, zero_point, depth = w.R, w.R_zero_point, cell.hidden_size
        width = len(cell.type.gates) * cell.hidden_size
        return cls(unpacked(e.b, cell, numbers, w, key), zero_point, stored.dtype != np.int16, depth, width, key)

    def columns(self, e: GridEmitter, begin: int, end: int, name: str) -> _Weights:
        """Returns some of the columns."""

        def part(whole: Value, axis: int, label: str) -> Value:
            bounds = [e.b.i64([v]) for v in (begin, end, axis)]
            return e.b.op("Slice", [whole, *bounds], f"{label}.{name}")

        zero_point = self.zero_point
        if zero_point is not None:
            zero_point = part(zero_point, 0, f"{self.name}_zero_point")
        codes = part(self.codes, 1, self.name)
        return _Weights(codes, zero_point, self.narrow, self.depth, end - begin, f"{self.name}.{name}")

    def product(self, e: GridEmitter, numbers: FixedPointNumbers, grid: FixedPointQuantizer) -> GridProduct:
        """Returns their matmul with the quantized values of a quantizer."""
        b, name, zero_point = e.b, self.name, self.zero_point
        if self.narrow and is_exact_in_int32(grid, BYTE if zero_point is not None else MIDDLE, self.depth):

            def byte(value: Value, name: str) -> Value:
                # uint8 by uint8 is exact on every processor, uint8 by int8 is not.
                raised = b.op("Add", [b.cast(value, np.int32, f"{name}.int32"), b.i32(MIDDLE)], f"{name}.raised")
                return b.cast(raised, np.uint8, f"{name}.uint8")

            point = b.u8(MIDDLE) if zero_point is None else byte(zero_point, f"{name}_zero_point")
            weights, columns = byte(self.codes, name), None
            if more := missing_columns(self.width):
                columns = b.i64([self.width])
                weights = in_groups(b, weights, b.i64([0, 0, 0, more]), name)
                if zero_point is not None:
                    point = in_groups(b, point, b.i64([0, more]), f"{name}_zero_point")
            return GridProduct(weights, point, grid, numbers.accumulator_bits, columns)
        real: Value = b.cast(self.codes, np.float64, f"{name}.float")
        if zero_point is not None:
            real = b.op("Sub", [real, b.cast(zero_point, np.float64, f"{name}_zero_point.float")], f"{name}.centred")
        return GridProduct(real, None, grid, numbers.accumulator_bits)
