"""Calls of single kernels, which the library of the tests exports, on buffers that end at a guard page."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc import runtime_ops

GATES = 4
BLOCK = 16
SENTINEL = 0xA5
_LIBC = ctypes.CDLL(None, use_errno=True)


def library_of_tests() -> Path:
    """The native library with the scalar reference and functions that call single kernels; beside the product's."""
    product = runtime_ops.library_path()
    path = product.with_name(f"{product.stem}_tests{product.suffix}")
    if not path.is_file():
        raise FileNotFoundError(
            f"the library of the tests, {path}, has not been built: install the checkout with `pip install -e .`, or "
            "build the library that RNNQC_LIBRARY names with -DRNNQC_TESTS=ON"
        )
    return path


def _native() -> ctypes.CDLL:
    native = ctypes.CDLL(str(library_of_tests()))
    native.rnnqc_test_isa_name.restype = ctypes.c_char_p
    native.rnnqc_test_max_abs.restype = ctypes.c_float
    native.rnnqc_test_padded_depth.restype = ctypes.c_int64
    native.rnnqc_test_packed_bytes.restype = ctypes.c_int64
    native.rnnqc_test_mixed_bytes.restype = ctypes.c_int64
    native.rnnqc_test_least_apart.restype = ctypes.c_int64
    native.rnnqc_test_columns.restype = ctypes.c_int64
    return native


NATIVE = _native()
AVAILABLE = [NATIVE.rnnqc_test_isa_name(k).decode() for k in range(NATIVE.rnnqc_test_isa_count())]
ISAS = [isa for isa in AVAILABLE if isa != "reference"]


def _with_own(kernels: str) -> list[str]:
    """The instruction sets, without those that share all of these kernels with an earlier one in the list."""
    same = getattr(NATIVE, f"rnnqc_test_same_{kernels}")
    before = {isa: AVAILABLE[:k] for k, isa in enumerate(AVAILABLE)}
    return [isa for isa in AVAILABLE if not any(same(isa.encode(), other.encode()) for other in before[isa])]


PRODUCT_ISAS = _with_own("products")
STEP_ISAS = [isa for isa in _with_own("steps") if isa != "reference"]
# Weights of a matrix, from which on columns of more bits than the others may stand apart.
LEAST_APART = int(NATIVE.rnnqc_test_least_apart())


def fewest_apart(gates: int) -> int:
    """The fewest units of a layer with as many inputs whose columns may stand apart."""
    return math.isqrt((LEAST_APART - 1) // gates) + 1


# Whose products of several rows take other sizes at a time than the rest; "portable" is for machines without it.
TILED_ISAS = [isa for isa in AVAILABLE if isa in ("portable", "amxint8")]


FEW_BITS = (4, 6)
SET_INDICES = -4
"""Stands for four bits that are indices into codebooks."""
ISAS_OF = {
    b: [isa for isa in AVAILABLE if NATIVE.rnnqc_test_has_bits(isa.encode(), ctypes.c_int32(b))]
    for b in (*FEW_BITS, SET_INDICES)
}
"""Instruction sets with kernels for weights of so many bits. The others multiply such weights as int8."""


class _Operands(ctypes.Structure):
    """rnnqc_test_product."""

    _fields_ = (
        ("bits", ctypes.c_int32),
        ("a", ctypes.c_void_p),
        ("a_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("k", ctypes.c_int64),
        ("units", ctypes.c_int64),
        ("multipliers", ctypes.c_void_p),
        ("group_size", ctypes.c_int64),
        ("start", ctypes.c_void_p),
        ("block_begin", ctypes.c_int64),
        ("block_end", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("descending", ctypes.c_int32),
    )


# What calls of steps begin with.
SPAN_FIELDS = tuple((name, ctypes.c_int64) for name in ("rows", "units", "block_begin", "block_end"))
STEP_FIELDS = (*SPAN_FIELDS, *((name, ctypes.c_void_p) for name in ("acc", "p", "h_multiplier")))


class _Cell(ctypes.Structure):
    """rnnqc_test_cell."""

    _fields_ = (
        *STEP_FIELDS,
        ("short_tail", ctypes.c_int32),
        ("peephole", ctypes.c_void_p),
        ("gate_min", ctypes.c_float * GATES),
        ("gate_max", ctypes.c_float * GATES),
        ("gate_table", ctypes.c_void_p * GATES),
        ("cell_max", ctypes.c_float),
        ("cell_index_scale", ctypes.c_float),
        ("cell_table", ctypes.c_void_p),
        ("cell_table_size", ctypes.c_int32),
        ("h_scale", ctypes.c_float),
        ("h_zero_point", ctypes.c_int32),
        ("c", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("h", ctypes.c_void_p),
    )


class Guarded:
    """Arrays between two pages that may not be touched: each ends at the second one, where its alignment permits."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def array(self, value: npt.NDArray[Any], alignment: int = 1) -> npt.NDArray[Any]:
        page = mmap.PAGESIZE
        size = -(-value.nbytes // alignment) * alignment
        body = max(-(-size // page), 1) * page
        memory = mmap.mmap(-1, body + 2 * page)
        self._maps.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset in (0, page + body):
            if _LIBC.mprotect(ctypes.c_void_p(address + offset), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect failed")
        guarded = np.frombuffer(memory, value.dtype, value.size, page + body - size).reshape(value.shape)
        guarded[...] = value
        return guarded

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike, alignment: int = 1) -> npt.NDArray[Any]:
        value = np.empty(shape, dtype)
        value.view(np.uint8)[...] = SENTINEL
        return self.array(value, alignment)

    def rows(self, count: int, units: int) -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.uintp]]:
        """Rows of float32, each before a page of its own, and the pointers to them."""
        rows = [self.empty((units,), np.float32) for _ in range(count)]
        return rows, self.array(np.array([row.ctypes.data for row in rows], np.uintp))


def pointer(array: npt.NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def blocks(units: int) -> int:
    return -(-units // BLOCK)


def block_order(values: npt.NDArray[Any], units: int, short_tail: bool = False) -> npt.NDArray[Any]:
    """[..., 4 * units] -> [..., blocks * 64], zeros in the padding."""
    lead = values.shape[:-1]
    padded = np.zeros((*lead, GATES, blocks(units) * BLOCK), values.dtype)
    padded[..., :units] = values.reshape(*lead, GATES, units)
    order = np.ascontiguousarray(padded.reshape(*lead, GATES, -1, BLOCK).swapaxes(-3, -2).reshape(*lead, -1))
    return with_short_tail(order) if short_tail else order


def may_have_short_tail(units: int) -> bool:
    """Whether the last block has as few units as a short tail."""
    return 0 < units % BLOCK <= BLOCK // GATES


def every_second_short(units: int, k: int) -> bool:
    """Whether a product of some k has a short tail, of those that may: where k is odd."""
    return may_have_short_tail(units) and k % 2 == 1


def with_short_tail(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Block order -> the same with a short tail, zeros in the padding: the last block's gates side by side."""
    last = values[..., -GATES * BLOCK :].reshape(*values.shape[:-1], GATES, BLOCK)
    short = np.zeros_like(values)
    short[..., : -GATES * BLOCK] = values[..., : -GATES * BLOCK]
    short[..., -GATES * BLOCK :][..., :BLOCK] = last[..., : BLOCK // GATES].reshape(*values.shape[:-1], BLOCK)
    return short


class Product:
    """Operands of an integer product in guarded memory, packed for one instruction set.

    With a short tail the sums of columns behind it are not asked for.

    With `multipliers` `[groups, 4 * units]` the weights are numbers of `bits` times those of their groups of
    `group_size` rows, or values of the sets that these choose; without, they are numbers of `bits`.
    """

    def __init__(
        self,
        guarded: Guarded,
        isa: str,
        weights: npt.NDArray[np.int8],
        codes: npt.NDArray[np.uint8],
        zero_point: int,
        bits: int = 8,
        multipliers: npt.NDArray[np.uint8] | None = None,
        group_size: int = 0,
        short_tail: bool = False,
    ) -> None:
        """`weights` `[k, 4 * units]`, `codes` `[rows, k]`."""
        (rows, k), units = codes.shape, weights.shape[1] // GATES
        self.isa, self.rows, self.k, self.units, self.weights, self.zero_point = (
            isa,
            rows,
            k,
            units,
            weights,
            zero_point,
        )
        self.columns = blocks(units) * GATES * BLOCK
        self.short_tail = short_tail
        sizes = (ctypes.c_int64(k), ctypes.c_int64(units))
        depth = NATIVE.rnnqc_test_padded_depth(isa.encode(), ctypes.c_int32(bits), sizes[0])
        assert depth >= k
        padded = np.random.default_rng(k).choice(np.uint8([0, 255]), (rows, depth))
        padded[:, :k] = codes
        self.a = guarded.array(padded)
        size = NATIVE.rnnqc_test_packed_bytes(isa.encode(), ctypes.c_int32(bits), *sizes)
        packed = guarded.empty((size,), np.uint8, alignment=64)
        start = guarded.empty((self.columns,), np.int32, alignment=64)
        packed_multipliers = None
        if bits < 8:
            if multipliers is not None:
                count = multipliers.shape[0] * self.columns
                if bits == SET_INDICES:
                    count = -(-k // 32) * self.columns * 2  # records of 16 bytes for eight columns
                packed_multipliers = guarded.empty((count,), np.uint8, alignment=64)
            NATIVE.rnnqc_test_pack_few_bits(
                isa.encode(),
                ctypes.c_int32(bits),
                pointer(guarded.array(weights)),
                pointer(None if multipliers is None else guarded.array(multipliers)),
                ctypes.c_int64(group_size),
                *sizes,
                ctypes.c_int32(short_tail),
                ctypes.c_int32(zero_point),
                pointer(packed),
                pointer(packed_multipliers),
                pointer(start),
            )
        else:
            NATIVE.rnnqc_test_pack(
                isa.encode(),
                pointer(guarded.array(weights)),
                *sizes,
                ctypes.c_int32(short_tail),
                ctypes.c_int32(zero_point),
                pointer(packed),
                pointer(start),
            )
        self.operands = _Operands(
            bits=bits,
            a=self.a.ctypes.data,
            a_stride=depth,
            rows=rows,
            packed=packed.ctypes.data,
            k=k,
            units=units,
            multipliers=None if packed_multipliers is None else packed_multipliers.ctypes.data,
            group_size=group_size,
            start=start.ctypes.data,
            block_begin=0,
            block_end=blocks(units),
            columns=self.columns - (GATES - 1) * BLOCK * short_tail,
        )
        self._kept = (guarded, packed, packed_multipliers, start)

    def expected(self, zero_points: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.int64]:
        """All sums, in block order; with a zero point of each row or with that of the product."""
        zero_point = self.zero_point if zero_points is None else zero_points[:, np.newaxis]
        # Exact: every sum is less than 2**53.
        codes = self.a[:, : self.k].astype(np.float64) - zero_point
        return block_order((codes @ self.weights.astype(np.float64)).astype(np.int64), self.units, self.short_tail)

    def recurrent(self, guarded: Guarded) -> npt.NDArray[np.int32]:
        """The accumulators; sentinels where nothing was written."""
        acc = guarded.empty((self.rows, self.columns), np.int32, alignment=64)
        NATIVE.rnnqc_test_recurrent(self.isa.encode(), ctypes.byref(self.operands), pointer(acc))
        return acc

    def project(
        self,
        guarded: Guarded,
        multiplier: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32],
        row_scale: npt.NDArray[np.float32] | None = None,
        zero_points: npt.NDArray[np.int32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """The pre-activations; sentinels where nothing was written."""
        p = guarded.empty((self.rows, self.columns), np.float32, alignment=64)
        NATIVE.rnnqc_test_project(
            self.isa.encode(),
            ctypes.byref(self.operands),
            pointer(None if row_scale is None else guarded.array(row_scale)),
            pointer(None if zero_points is None else guarded.array(zero_points)),
            pointer(guarded.array(multiplier, 64)),
            pointer(guarded.array(bias, 64)),
            pointer(p),
        )
        return p


def check_product(guarded: Guarded, product: Product, zero_points: npt.NDArray[np.int32] | None = None) -> None:
    """Both products over all blocks, against numpy; with `zero_points` the projection of rows with one each only.

    Such a product has to be packed for zero point 1: its start values are minus the column sums.
    """
    check_blocks(guarded, product, 0, blocks(product.units), zero_points)


def check_blocks(
    guarded: Guarded, product: Product, begin: int, end: int, zero_points: npt.NDArray[np.int32] | None = None
) -> None:
    """check_product for the blocks `begin` .. `end - 1`; nothing else may be written.

    Whether columns of these blocks are written that need not be counts for nothing.
    """
    product.operands.block_begin, product.operands.block_end = begin, end
    last = min(end * GATES * BLOCK, product.operands.columns)
    written, either = slice(begin * GATES * BLOCK, last), slice(last, end * GATES * BLOCK)
    expected = product.expected(zero_points)
    assert np.abs(expected).max(initial=0) < 2**31
    untouched = np.full(expected.shape, SENTINEL * 0x01010101, np.uint32)

    def assert_only_written(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
        bits = untouched.copy()
        bits[:, written] = wanted.view(np.uint32)[:, written]
        bits[:, either] = found.view(np.uint32)[:, either]
        np.testing.assert_array_equal(found.view(np.uint32), bits)

    rows, units = product.rows, product.units
    rng = np.random.default_rng(product.k)
    of_columns = rng.normal(0, 1, (2, GATES * units)).astype(np.float32)
    multiplier, bias = block_order(of_columns, units, product.short_tail)
    row_scale = rng.uniform(0.1, 3, (rows, 1)).astype(np.float32)
    real = expected.astype(np.float32)
    grids = np.ones(rows, np.int32) if zero_points is None else zero_points
    for descending in (False, True):
        product.operands.descending = descending
        if zero_points is None:
            assert_only_written(product.recurrent(guarded), expected.astype(np.int32))
            assert_only_written(product.project(guarded, multiplier, bias), real * multiplier + bias)
        found = product.project(guarded, multiplier, bias, row_scale, grids)
        assert_only_written(found, (real * row_scale) * multiplier + bias)


@dataclass
class CellCase:
    """One call of a table cell, or of a peephole cell. Rows of `p`, `acc` and `c` are padded to whole blocks."""

    units: int
    acc: npt.NDArray[np.int32]
    p: npt.NDArray[np.float32]
    h_multiplier: npt.NDArray[np.float32]
    c: npt.NDArray[np.float32]
    gate_tables: Sequence[npt.NDArray[np.float32]]
    gate_min: Sequence[float]
    gate_max: Sequence[float]
    cell_table: npt.NDArray[np.float32]
    cell_max: float
    h_scale: float
    h_zero_point: int
    cell_index_scale: float = 0.0
    peephole: npt.NDArray[np.float32] | None = None

    def of_peepholes(self) -> CellCase:
        """The case with peepholes, of pre-activations of i and f about as large and as often whole numbers."""
        rng = np.random.default_rng(self.units)
        peephole = rng.normal(0, 1, (blocks(self.units), GATES, BLOCK)).astype(np.float32)
        peephole *= np.float32(20 / max(np.median(np.abs(self.c)), 1))
        seen = self.c.reshape(len(self.c), -1, 1, BLOCK) * peephole
        seen[:, :, (1, 3)] = 0
        return replace(self, p=self.p - seen.reshape(self.p.shape), peephole=peephole.reshape(-1))

    def of_float_cell(self, scale: float) -> CellCase:
        """The case with a float cell of `scale` codes in a unit; every second state lies between two codes."""
        c = self.c.copy()
        c[:, 1::2] += np.resize(np.float32([0.5, -0.5, 0.49, -0.49, 1.5, 0.3]), c[:, 1::2].shape)
        unit = np.float32(scale)
        tables = [*self.gate_tables[:3], self.gate_tables[3] / unit]
        return replace(self, c=c / unit, gate_tables=tables, cell_index_scale=scale)

    def run(self, isa: str, guarded: Guarded, span: tuple[int, int] | None = None) -> CellResult:
        """Runs all blocks, or those of `span` only; with a short tail, too, which must not change anything."""
        found = self._run(isa, guarded, span, short_tail=False)
        has_short_tails = bool(NATIVE.rnnqc_test_has_short_tails(isa.encode())) and self.peephole is None
        if has_short_tails and may_have_short_tail(self.units):
            self._run(isa, guarded, span, short_tail=True).assert_same_bits(found)
        return found

    def _run(self, isa: str, guarded: Guarded, span: tuple[int, int] | None, short_tail: bool) -> CellResult:
        rows = len(self.p)
        of_columns = (with_short_tail(v) if short_tail else v for v in (self.acc, self.p, self.h_multiplier))
        acc, p, h_multiplier, c = (guarded.array(v, 64) for v in (*of_columns, self.c))
        peephole = None if self.peephole is None else guarded.array(self.peephole, 64)
        h = guarded.empty(c.shape, np.uint8, 16)
        y, row_pointers = guarded.rows(rows, self.units)
        # Without slack: a look-up beyond a table's last or before its first entry meets a guard page.
        gate_tables = [guarded.array(table) for table in self.gate_tables]
        cell_table = guarded.array(self.cell_table)
        begin, end = span or (0, blocks(self.units))
        cell = _Cell(
            rows=rows,
            units=self.units,
            block_begin=begin,
            block_end=end,
            acc=acc.ctypes.data,
            p=p.ctypes.data,
            h_multiplier=h_multiplier.ctypes.data,
            short_tail=short_tail,
            peephole=None if peephole is None else peephole.ctypes.data,
            gate_min=(ctypes.c_float * GATES)(*self.gate_min),
            gate_max=(ctypes.c_float * GATES)(*self.gate_max),
            gate_table=(ctypes.c_void_p * GATES)(*(table.ctypes.data for table in gate_tables)),
            cell_max=self.cell_max,
            cell_index_scale=self.cell_index_scale,
            cell_table=cell_table.ctypes.data,
            cell_table_size=self.cell_table.size,
            h_scale=self.h_scale,
            h_zero_point=self.h_zero_point,
            c=c.ctypes.data,
            y=row_pointers.ctypes.data,
            h=h.ctypes.data,
        )
        linear = bool(NATIVE.rnnqc_test_has_linear_tables(ctypes.byref(cell)))
        fused = bool(NATIVE.rnnqc_test_is_fused_cell(ctypes.byref(cell)))
        NATIVE.rnnqc_test_table_cell(isa.encode(), ctypes.byref(cell))
        return CellResult(linear, fused, np.array(y), c.copy(), h.copy())


@dataclass
class CellResult:
    """Outputs of a table cell; unwritten elements are sentinels in `y` `[rows, units]` and `h`, old values in `c`."""

    linear: bool
    fused: bool
    y: npt.NDArray[np.float32]
    c: npt.NDArray[np.float32]
    h: npt.NDArray[np.uint8]

    def assert_same_bits(self, expected: CellResult) -> None:
        """Compares all units; padding counts for nothing."""
        for name in ("y", "c", "h"):
            found, wanted = (getattr(result, name)[:, : self.y.shape[1]] for result in (self, expected))
            np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8), name)
