"""Integer matmuls with W and R of the lut arithmetic, in standard operators, and unpacking of their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.packed_weights import PackedNumbers
from rnnqc.formats.codebooks import MULTIPLIER_MASK, SETS
from rnnqc.formats.packing import NIBBLE_BITS, plane_columns
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.render.lut.lut_step import for_each_row
from rnnqc.passes.render.operands.byte_weights import ByteWeights
from rnnqc.passes.render.operands.emit_codes import beyond_codes, row_codes, static_codes
from rnnqc.passes.render.operands.emit_wide_codes import WIDE_BITS, combined, low_correction

_END = 2**31 - 1
"""The end of a slice to the last column."""


def unpacked(b: Builder, cell: Cell, numbers: PackedNumbers, w: Operands, key: str) -> Value:
    """Returns W or R as integers, unpacked if they are stored packed (rnnqc/formats/packing.py)."""
    columns = len(cell.type.gates) * cell.hidden_size
    size, bits, codebook, wide = {
        "W": (numbers.w_group_size, numbers.w_bits, numbers.w_codebook, numbers.w_wide_columns),
        "R": (numbers.r_group_size, numbers.r_bits, numbers.r_codebook, numbers.r_wide_columns),
    }[key]
    stored, multiplier, rows = {
        "W": (w.W, w.W_group_multiplier, cell.input_size),
        "R": (w.R, w.R_group_multiplier, cell.hidden_size),
    }[key]
    if stored.dtype != np.uint8:
        return stored
    groups = None
    if multiplier is not None:
        last = b.i64([rows]) if rows % size else None
        groups = GroupSizes(multiplier, b.i64([1, size, 1]), b.i64([-1, columns]), last, bool(codebook))
    planes = Planes(bits, b.i64([columns]), columns, bool(wide))
    return unpacked_matrix(b, stored, planes, groups, key)


@dataclass(frozen=True)
class GroupSizes:
    """Groups of rows of a packed matrix `[K,n]` that share a multiplier.

    Attributes:
        multiplier: `[groups,n]`.
        group: `[1, size, 1]`.
        row: `[-1, n]`.
        rows: `[K]` if the last group has fewer rows.
        codebooks: Whether multipliers also select codebooks.
    """

    multiplier: Value
    group: Value
    row: Value
    rows: Value | None
    codebooks: bool = False

    def each(self, b: Builder, name: str) -> Value:
        """Returns the multiplier of every entry of the matrix, int32 `[K,n]`."""
        held = b.cast(self.multiplier, np.int32, f"{name}.int32")
        column = b.op("Unsqueeze", [held, b.i64([1])], f"{name}.groups")
        repeated = b.op("Expand", [column, self.group], f"{name}.expanded")
        each: Value = b.op("Reshape", [repeated, self.row], f"{name}.rows")
        if self.rows is not None:
            each = b.op("Slice", [each, b.i64([0]), self.rows, b.i64([0])], f"{name}.rows.present")
        return each


@dataclass(frozen=True)
class Planes:
    """The storage of the numbers of a packed matrix `[K,n]`.

    Attributes:
        bits: Their width, 4 to 6.
        columns: `[n]`.
        known: n, or None if the nodes work for any n.
        wide: Whether columns with multiplier 0 have 8 bits; n is known then.
    """

    bits: int
    columns: Value
    known: int | None
    wide: bool = False

    def split(self, b: Builder, stored: Value, key: str) -> tuple[Value, Value | None, Value | None]:
        """Splits the planes: nibbles, upper bits (with more than 4 bits), and upper bits of wide columns."""
        if self.bits == NIBBLE_BITS and not self.wide:
            return stored, None, None
        if self.known is not None:
            end: Value = b.i64([plane_columns(self.known, self.bits)[0]])
        else:
            end = b.op(
                "Div", [b.op("Add", [self.columns, b.i64([1])], f"{key}.even"), b.i64([2])], f"{key}.nibbles.end"
            )
        first, last, axis = b.i64([0]), b.i64([_END]), b.i64([1])
        nibbles = b.op("Slice", [stored, first, end, axis], f"{key}.nibbles.plane")
        if self.bits == NIBBLE_BITS:
            return nibbles, None, b.op("Slice", [stored, end, last, axis], f"{key}.upper.plane")
        if not self.wide:
            return nibbles, b.op("Slice", [stored, end, last, axis], f"{key}.upper.plane"), None
        assert self.known is not None
        row = b.i64([sum(plane_columns(self.known, self.bits))])
        upper = b.op("Slice", [stored, end, row, axis], f"{key}.upper.plane")
        return nibbles, upper, b.op("Slice", [stored, row, last, axis], f"{key}.wide.plane")

    def present(self, b: Builder, found: Value, parts: int, name: str) -> Value:
        """Returns the columns of the matrix from the unpacked parts of a plane, without padding, as int32."""
        if self.known is None or self.known % parts:
            found = b.op("Slice", [found, b.i64([0]), self.columns, b.i64([1])], f"{name}.present")
        return b.cast(found, np.int32, f"{name}.int32")

    def upper(self, b: Builder, plane: Value, name: str) -> Value:
        """Returns the contribution of the bits above the nibbles, `[K,n]`."""
        bits = self.bits - NIBBLE_BITS
        shifts = b.u8([[shift] for shift in range(0, 8, bits)])
        row = b.op("Unsqueeze", [plane, b.i64([1])], f"{name}.row")
        parts = b.op("BitShift", [row, shifts], f"{name}.parts", direction="RIGHT")
        found = b.op("Reshape", [b.op("Mod", [parts, b.u8(2**bits)], f"{name}.each"), b.i64([0, -1])], name)
        return b.op("Mul", [self.present(b, found, 8 // bits, name), b.i32(16)], f"{name}.raised")


def unpacked_matrix(b: Builder, stored: Value, planes: Planes, groups: GroupSizes | None, key: str) -> Value:
    """Unpacks numbers to int8 `[K,n]`."""
    plane, upper, wide = planes.split(b, stored, key)
    numbers = planes.present(b, _both_nibbles(b, plane, key), 2, f"{key}.nibbles")
    if upper is not None:
        numbers = b.op("Add", [numbers, planes.upper(b, upper, f"{key}.upper")], f"{key}.numbers")
    each = None if groups is None else groups.each(b, f"{key}.multiplier")
    if groups is not None and groups.codebooks:
        assert each is not None
        codes = _from_codebooks(b, numbers, each, key)
    else:
        codes = b.op("Sub", [numbers, b.i32(2 ** (planes.bits - 1))], f"{key}.codes.int32")
        if each is not None:
            codes = b.op("Mul", [codes, each], f"{key}.codes.multiplied")
    if wide is not None and each is not None:
        is_wide = b.op("Equal", [each, b.i32(0)], f"{key}.is_wide")
        whole = _wide_codes(b, numbers, planes.bits, wide, is_wide, f"{key}.wide")
        codes = b.op("Where", [is_wide, whole, codes], f"{key}.codes.all")
    return b.cast(codes, np.int8, f"{key}.codes")


def _both_nibbles(b: Builder, plane: Value, key: str) -> Value:
    """Returns the low nibbles of a plane's bytes, and the high ones to the right of them."""
    low = b.op("Mod", [plane, b.u8(16)], f"{key}.low")
    high = b.op("BitShift", [plane, b.u8(4)], f"{key}.high", direction="RIGHT")
    return b.op("Concat", [low, high], f"{key}.nibbles", axis=1)


def _wide_codes(b: Builder, lower: Value, bits: int, plane: Value, is_wide: Value, name: str) -> Value:
    """Returns quantized values int32 `[K,n]` of wide columns; other columns are undefined.

    The k-th wide column takes its upper bits from the k-th nibble column of the plane, and its low `bits` from `lower`.
    """
    count = b.op("CumSum", [b.cast(is_wide, np.int32, f"{name}.flags"), b.i32(1)], f"{name}.count")
    place = b.op("Sub", [count, b.i32(1)], f"{name}.place")  # before the first wide column it is -1, the last column
    upper = b.op("GatherElements", [_both_nibbles(b, plane, name), place], f"{name}.upper", axis=1)
    raised = b.op("Mul", [b.cast(upper, np.int32, f"{name}.upper.int32"), b.i32(2**bits)], f"{name}.raised")
    return b.op("Sub", [b.op("Add", [raised, lower], f"{name}.numbers"), b.i32(128)], f"{name}.codes")


def _from_codebooks(b: Builder, nibbles: Value, each: Value, key: str) -> Value:
    """Returns quantized values int32 `[K,n]` of nibbles and the bytes of their groups (rnnqc/formats/codebooks.py)."""
    steps = b.i32(MULTIPLIER_MASK + 1)
    number = b.op("Mul", [b.op("Div", [each, steps], f"{key}.codebook"), b.i32(16)], f"{key}.codebook.first")
    entries = b.op("Add", [number, nibbles], f"{key}.codebook.entries")
    table = b.model.constant([v for values in SETS for v in values], np.int8)
    values = b.cast(b.op("Gather", [table, entries], f"{key}.values"), np.int32, f"{key}.values.int32")
    return b.op("Mul", [values, b.op("Mod", [each, steps], f"{key}.factors")], f"{key}.codes.multiplied")


@dataclass(frozen=True)
class HiddenProduct:
    """The matmul of quantized hidden states with (some columns of) R in a loop, in units of pre-activations.

    Attributes:
        numbers: The scalars of the cell.
        r: The columns `[H,n]`.
        correction: The correction of the low bytes of 16-bit values, or None.
        multiplier: `[n]`, or `[B,n]` for a known batch size.
        grid: Scale and zero point of the quantized values.
        name: Prefix of the values.
        is_whole: Whether the matmul with a state includes the part of the state beyond the bound.
    """

    numbers: LutNumbers
    r: ByteWeights
    correction: Value | None
    multiplier: Value
    grid: tuple[float, int]
    name: str
    is_whole: bool = False

    def of_state(self, body: Builder, state: Value) -> Value:
        """Returns the matmul with the quantized values of real values `[B,H]`."""
        if self.numbers.h_mode != "static":
            return self.of_codes(body, *row_codes(body, state, self.numbers.h_bits, self.name, self.grid[1]))
        units = self.of_codes(body, static_codes(body, state, self.numbers, f"{self.name}.codes", self.grid), None)
        return self.without_loss(body, units, state) if self.is_whole else units

    def in_branch(self, b: Builder) -> HiddenProduct:
        """Returns a copy with R as a constant of a branch: otherwise onnxruntime does not pack it for a loop inside."""
        return replace(self, r=self.r.each(lambda r: b.op("Tile", [r, b.i64([1, 1])], f"{self.name}.R")))

    def without_loss(self, b: Builder, units: Value, state: Value) -> Value:
        """Returns `units` plus the matmul with the part of a state `[B,H]` beyond the bound of its quantized values.

        Rows that lose nothing have a difference of +0, not -0: subtracting it changes none of their bits.
        """
        name = f"{self.name}.beyond"
        for k, (codes, scale) in enumerate(beyond_codes(b, state, self.numbers, name, self.grid)):
            part = replace(self, name=f"{name}.{k}").of_codes(b, codes, scale)
            units = b.op("Sub", [units, part], f"{name}.{k}.taken_away")
        return units

    def of_codes(self, body: Builder, codes: Value, scale: Value | None) -> Value:
        """Returns the matmul with quantized values; `scale` has their per-row scales, if any."""
        name, zero_point = f"{self.name}.product", self.grid[1]
        wide = self.numbers.h_bits == WIDE_BITS
        first = body.u8(zero_point >> 8 if wide else zero_point)
        acc = self.r.product(body, codes, first, name)
        if wide:
            real: Value = combined(body, acc, self.correction, name)
            if scale is not None:
                column = body.op("Unsqueeze", [scale, body.i64([1])], f"{self.name}.scale.for_product")
                real = body.op("Mul", [real, column], f"{name}.scaled")
        elif scale is not None:
            real = body.op("DequantizeLinear", [acc, scale], f"{name}.scaled", axis=0)
        else:
            real = body.cast(acc, np.float32, f"{name}.float")
        return body.op("Mul", [real, self.multiplier], f"{self.name}.units")


def hidden_products(
    b: Builder, cell: Cell, numbers: LutNumbers, r: ByteWeights, h_multiplier: Value
) -> list[HiddenProduct]:
    """Returns one matmul for all gates or, if a gate resets the state first, one for the others and the candidate's."""
    hidden, gates = cell.hidden_size, len(cell.type.gates)

    def product(begin: int, end: int, grid: tuple[float, int], name: str) -> HiddenProduct:
        part, multiplier = r, h_multiplier
        if end - begin < gates:
            bounds = [b.i64([v * hidden]) for v in (begin, end)]
            part = r.each(lambda v: b.op("Slice", [v, *bounds, b.i64([1])], f"R.{name}"))
            multiplier = b.op("Slice", [multiplier, *bounds, b.i64([0])], f"h_multiplier.{name}")
        correction = None
        if numbers.h_bits == WIDE_BITS:
            correction = low_correction(b, part, grid[1], "R" if part is r else f"R.{name}")
        rows = for_each_row(b, cell, multiplier, end - begin, "h_multiplier.rows")
        part = part.in_groups(b, (end - begin) * hidden, "R" if part is r else f"R.{name}")
        return HiddenProduct(numbers, part, correction, rows, grid, name)

    of_hidden = numbers.h_scale, numbers.h_zero_point
    if not cell.resets_state:
        return [product(0, gates, of_hidden, "hidden")]
    of_reset, joint = (numbers.reset_scale, numbers.reset_zero_point), cell.type.joint
    return [product(0, joint, of_hidden, "hidden"), product(joint, gates, of_reset, RESET_HIDDEN)]
