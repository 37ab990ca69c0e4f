"""Matrix products of the arithmetic "grid" in standard operators: exact sums of codes times weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.ir import Value
from rnnqc.passes.emit_grid_quantizers import GridEmitter
from rnnqc.passes.emit_integer_cell import unpacked
from rnnqc.passes.grid_numbers import BYTE, Grid, GridNumbers, is_exact_in_int32
from rnnqc.passes.operands import Operands

MIDDLE = 128


@dataclass(frozen=True)
class GridProduct:
    """One side of a matrix product: `weights` for MatMulInteger, or real numbers for MatMul.

    Attributes:
        weights: `[K,4H]`, uint8 codes or real numbers whose zero point is 0.
        zero_point: Of uint8 weights; None for real numbers.
        codes: The quantizer of the other side.
        accumulator_bits: Width at which sums saturate, or 0.
    """

    weights: Value
    zero_point: Value | None
    codes: Grid
    accumulator_bits: int

    @property
    def integer(self) -> bool:
        """Whether the other side is uint8 codes; multiples of the scale otherwise."""
        return self.zero_point is not None

    def emit(self, e: GridEmitter, left: Value, name: str) -> Value:
        """The exact sums in the real type."""
        b = e.b
        if self.zero_point is not None:
            operands = [left, self.weights, b.u8(self.codes.zero_point), self.zero_point]
            sums: Value = b.cast(b.op("MatMulInteger", operands, name), np.float64, f"{name}.float")
        else:
            exact = left if e.real == np.float64 else b.cast(left, np.float64, f"{name}.multiples")
            sums = b.op("MatMul", [exact, self.weights], name)
        if self.accumulator_bits:
            half = 2.0 ** (self.accumulator_bits - 1)
            limits = [b.model.constant(v, np.float64) for v in (-half, half - 1)]
            sums = b.op("Clip", [sums, *limits], f"{name}.saturated")
        return sums if e.real == np.float64 else e.cast(sums, f"{name}.real")


def grid_product(e: GridEmitter, cell: Cell, numbers: GridNumbers, w: Operands, key: str) -> GridProduct:
    """The product with W or R, in the form that suits the type of its weights.

    Args:
        e: Emits the nodes that bring the weights into this form.
        cell: The cell.
        numbers: Its scalars.
        w: Its constants.
        key: "W" or "R".
    """
    b = e.b
    zero_point = w.W_zero_point if key == "W" else w.R_zero_point
    size, depth = (numbers.w_group_size, cell.input_size) if key == "W" else (numbers.r_group_size, cell.hidden_size)
    stored = unpacked(b, cell, w, key, size)
    is_narrow = (w.W if key == "W" else w.R).dtype != np.int16
    grid = numbers.grid("input" if key == "W" else "hidden")
    if is_narrow and is_exact_in_int32(grid, BYTE if zero_point is not None else MIDDLE, depth):

        def byte(value: Value, name: str) -> Value:
            # uint8 by uint8 is exact on every processor, uint8 by int8 is not.
            raised = b.op("Add", [b.cast(value, np.int32, f"{name}.int32"), b.i32(MIDDLE)], f"{name}.raised")
            return b.cast(raised, np.uint8, f"{name}.uint8")

        point = b.u8(MIDDLE) if zero_point is None else byte(zero_point, f"{key}_zero_point")
        return GridProduct(byte(stored, key), point, grid, numbers.accumulator_bits)
    real: Value = b.cast(stored, np.float64, f"{key}.float")
    if zero_point is not None:
        real = b.op("Sub", [real, b.cast(zero_point, np.float64, f"{key}_zero_point.float")], f"{key}.centred")
    return GridProduct(real, None, grid, numbers.accumulator_bits)
