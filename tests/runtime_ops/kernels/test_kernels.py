"""Every kernel of every available instruction set against the scalar reference, on buffers that end at a guard page.

All instruction sets that the processor has must be covered, or those that `RNNQC_EXPECT_ISAS` (names separated by
commas) lists.
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.cells.tables import KNOT_UNIT, TANH_KNOTS, by_code, piecewise_linear_tanh
from tests.native.bundles import bundled, spread
from tests.native.kernel_calls import (
    AVAILABLE,
    BLOCK,
    GATES,
    ISAS,
    NATIVE,
    PRODUCT_ISAS,
    SENTINEL,
    STEP_ISAS,
    TILED_ISAS,
    CellCase,
    Guarded,
    Product,
    block_order,
    blocks,
    check_blocks,
    check_product,
    every_second_short,
    may_have_short_tail,
    pointer,
)


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


# What the flags of the processor, as Linux names them, promise.
FLAGS = {
    "avx2": {"avx2"},
    "avxvnni": {"avx2", "avx_vnni"},
    "avx512vnni": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"},
    "avx512vbmi": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi"},
    "amxint8": {"avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi", "gfni", "amx_tile", "amx_int8"},
    "neon": {"asimd"},
    "neondot": {"asimddp"},
    "neoni8mm": {"asimddp", "i8mm"},
}


def _promised() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = {
        f for line in lines if line.lower().startswith(("flags", "features")) for f in line.split(":", 1)[1].split()
    }
    return {"portable"} | {isa for isa, needed in FLAGS.items() if needed <= flags}


def test_expected_instruction_sets_are_covered() -> None:
    named = os.environ.get("RNNQC_EXPECT_ISAS")
    expected = _promised() if named is None else {name for name in named.split(",") if name}
    assert expected <= set(ISAS), (
        f"not covered: {sorted(expected - set(ISAS))}; covered: {ISAS}. A compiler that cannot build some of them "
        "leaves them out: set RNNQC_EXPECT_ISAS to what this machine has to cover."
    )


@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("n", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 300])
def test_max_abs(isa: str, n: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(0, 1e3, n).astype(np.float32)
    held = guarded.array(x)
    for special in (None, np.nan, -np.nan, np.inf, -np.inf, -1e-45, -3.4e38):
        for place in range(min(n, 70)) if special is not None else [0]:
            values = x.copy()
            if special is not None:
                values[place] = special
            held[...] = values
            found = NATIVE.rnnqc_test_max_abs(isa.encode(), pointer(held), ctypes.c_int64(n))
            expected = np.abs(np.where(np.isnan(values), 0, values)).max(initial=0)
            assert np.float32(found) == expected, (special, place)


@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("n", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 300])
def test_min_max(isa: str, n: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(0, 1e3, n).astype(np.float32)
    found, held = np.zeros(2, np.float32), guarded.array(x)
    specials = np.float32([0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38])
    rows = (x, np.abs(x), -np.abs(x), np.zeros_like(x), -np.zeros_like(x), np.full_like(x, np.nan))
    for k, (special, row) in enumerate(itertools.product(specials, rows)):
        for place in range(k % 7, min(n, 70), 7) or [0]:
            values = row.copy()
            values[place : place + 1] = special
            held[...] = values
            NATIVE.rnnqc_test_min_max(isa.encode(), pointer(held), ctypes.c_int64(n), pointer(found))
            finite = np.where(np.isnan(values), 0, values)
            assert (found[0], found[1]) == (finite.min(initial=0), finite.max(initial=0)), (special, place)
            assert not np.signbit(found[found == 0]).any(), (special, place)


def guarded_last(guarded: Guarded, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A guarded copy in the place of the last one, to keep the number of mappings small."""
    guarded._maps.clear()
    return guarded.array(values)


@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("zero_point", [0, 1, 127, 128, 254, 255])
@bundled("n", [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200])
def test_quantize_row(isa: str, zero_point: int, n: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(n)
    specials = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45, 2.0**23, -(2.0**31), 2.0**32])
    for scale in np.float32([1 / 127, 0.25, 3e36, 1e-38, 2.0**-100 / 127]):
        # Quarters of the scale: many of them ties.
        with np.errstate(over="ignore"):
            values = (rng.integers(-1100, 1100, n) * (scale / 4)).astype(np.float32)
        values[rng.random(n) < 0.2] = rng.choice(specials)
        x, codes = guarded.array(values), guarded.empty((n,), np.uint8)
        NATIVE.rnnqc_test_quantize_row(
            isa.encode(),
            pointer(x),
            ctypes.c_int64(n),
            ctypes.c_float(scale),
            ctypes.c_int32(zero_point),
            pointer(codes),
        )
        with np.errstate(all="ignore"):
            real = np.where(np.isnan(values), np.float32(0), values) / scale
            expected = np.clip(np.rint(real) + np.float32(zero_point), 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_quantized_values_round_as_quotients_do(isa: str, guarded: Guarded) -> None:
    # Kernels may multiply by a reciprocal and correct: values next to the ties of scales of all sizes and mantissas.
    rng = np.random.default_rng(0)
    exponents = [*range(-100, -90), *range(-64, -56), *range(-20, 20), *range(56, 64), *range(90, 100)]
    for exponent in exponents:
        last = exponent % 3 == 0  # mantissas of all ones have the least exact reciprocals
        mantissa = np.float32(2 - 2.0**-22) if last else np.float32(rng.uniform(1, 2))
        scale = np.float32(np.ldexp(mantissa, exponent))
        ties = np.float32(rng.integers(-300, 300, 2000) / 2) * scale
        values = (ties.view(np.int32) + rng.integers(-3, 4, ties.size).astype(np.int32)).view(np.float32)
        values[ties == 0] = 0
        x, codes = guarded_last(guarded, values), np.zeros(values.size, np.uint8)
        NATIVE.rnnqc_test_quantize_row(
            isa.encode(),
            pointer(x),
            ctypes.c_int64(values.size),
            ctypes.c_float(scale),
            ctypes.c_int32(128),
            pointer(codes),
        )
        expected = np.clip(np.rint(values / scale) + np.float32(128), 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(codes, expected, err_msg=str(exponent))


@pytest.mark.parametrize("isa", PRODUCT_ISAS)
def test_start_values_of_deep_products(isa: str, guarded: Guarded) -> None:
    # Beyond what two int16 numbers hold: 128 * 40000 > 2^22.
    product = example(guarded, isa, 9, 40000, 3, 1, "low")
    check_product(guarded, product, np.int32([0, 1, 2, 127, 128, 129, 200, 254, 255]))


def example(guarded: Guarded, isa: str, rows: int, k: int, units: int, zero_point: int, kind: str) -> Product:
    """All weights -128 ("low") or 127 ("high") and codes as far from the zero point; or "random", or "corners"."""
    rng = np.random.default_rng([rows, k, units, zero_point])
    weights = rng.integers(-128, 128, (k, GATES * units), dtype=np.int8)
    codes = rng.integers(0, 256, (rows, k), dtype=np.uint8)
    if kind == "corners":
        weights[:] = rng.choice(np.int8([-128, -127, -1, 0, 126, 127]), weights.shape)
        codes[:] = rng.choice(np.uint8([0, 1, 127, 128, 129, 254, 255]), codes.shape)
    elif kind != "random":
        weights[:] = {"low": -128, "high": 127}[kind]
        codes[:] = 255 - zero_point
    return Product(guarded, isa, weights, codes, zero_point, short_tail=every_second_short(units, k))


# Below, at and above multiples of 4, 16 and 64 of k, of 16 units, and of row tiles up to 8; more rows than 64.
SHAPES = [(0, 3), (1, 1), (3, 17), (4, 16), (5, 33), (16, 15), (61, 31), (64, 64), (131, 5), (256, 48)]
PRODUCTS = [(rows, *shape) for rows, shape in spread(2, [1, 2, 3, 4, 5, 6, 7, 8, 13], SHAPES)]
# More rows and more of k than a kernel prepares codes of at once.
LARGE_PRODUCTS = [
    (65, 7, 17),
    (130, 37, 3),
    (1, 8190, 16),
    (1, 8193, 3),
    (1, 16500, 17),
    (2, 4100, 17),
    (3, 2731, 16),
    (5, 3333, 2),
    (13, 1300, 5),
    (15, 544, 17),
    (16, 513, 16),
    (17, 512, 33),
    (31, 1100, 16),
    (35, 70, 17),
    (50, 1030, 1),
]


@pytest.mark.few(4)
@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@pytest.mark.parametrize(
    ("zero_point", "kind"), [(128, "random"), (0, "low"), (255, "high"), (0, "high"), (77, "low"), (3, "corners")]
)
@bundled("rows, k, units", PRODUCTS)
def test_integer_products(
    isa: str, zero_point: int, kind: str, rows: int, k: int, units: int, guarded: Guarded
) -> None:
    check_product(guarded, example(guarded, isa, rows, k, units, zero_point, kind))


@pytest.mark.few(3)
@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@pytest.mark.parametrize(("zero_point", "kind"), [(128, "random"), (0, "corners")])
@bundled("rows, k, units", LARGE_PRODUCTS)
def test_large_integer_products(
    isa: str, zero_point: int, kind: str, rows: int, k: int, units: int, guarded: Guarded
) -> None:
    check_product(guarded, example(guarded, isa, rows, k, units, zero_point, kind))


# Products that are worth the set-up of tiles: rows below, at and above 16, 32 and 64, k of less than a tile (64), of
# whole tiles and of more.
TILED_PRODUCTS = [
    *((rows, k, 128) for rows in (4, 8, 15, 16, 17, 31, 32, 33, 47, 64, 65) for k in (127, 128, 131, 192)),
    *((rows, k, 250) for rows in (16, 17, 39, 64) for k in (17, 20, 60, 61, 64, 65, 68)),
    # The last pair of tiles twice the same one; and overlapping the pair before.
    *((225, 131, 17), (513, 67, 17)),
    (16, 4, 1030),
    (17, 4100, 17),
    (3, 350, 128),
    (5, 650, 128),
]
TILED_NUMBERS = ((128, "random"), (0, "low"), (3, "corners"))


@pytest.mark.parametrize("isa", TILED_ISAS)
@bundled(
    "size, numbers",
    spread(3, TILED_PRODUCTS if "amxint8" in TILED_ISAS else TILED_PRODUCTS[::5], TILED_NUMBERS),
)
def test_tiled_integer_products(
    isa: str, size: tuple[int, int, int], numbers: tuple[int, str], guarded: Guarded
) -> None:
    rows, k, units = size
    product = example(guarded, isa, rows, k, units, *numbers)
    check_product(guarded, product)
    check_blocks(guarded, product, 1, blocks(units))


@pytest.mark.parametrize("isa", TILED_ISAS)
@bundled("rows, k, units", TILED_PRODUCTS[::3])
def test_tiled_products_of_rows_with_a_zero_point_each(
    isa: str, rows: int, k: int, units: int, guarded: Guarded
) -> None:
    zero_points = np.random.default_rng(rows).integers(0, 256, rows, dtype=np.int32)
    check_product(guarded, example(guarded, isa, rows, k, units, 1, "random"), zero_points)


@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@bundled("codes, rows", spread(3, itertools.product([0, 1, 127, 128, 255], repeat=2), [1, 2, 3]))
def test_pairs_of_extreme_products(isa: str, rows: int, codes: tuple[int, int], guarded: Guarded) -> None:
    # Sums of two products that int16 does not hold, and weights whose negative int8 does not hold.
    weights = list(itertools.product([-128, -127, 126, 127], repeat=2))
    product = Product(guarded, isa, np.int8(weights * GATES).T.copy(), np.uint8([codes] * rows), 0)
    check_product(guarded, product)


@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@bundled("rows, k, units", PRODUCTS)
def test_rows_with_a_zero_point_each(isa: str, rows: int, k: int, units: int, guarded: Guarded) -> None:
    product = example(guarded, isa, rows, k, units, 1, "random")
    zero_points = np.random.default_rng(rows).integers(0, 256, rows, dtype=np.int32)
    zero_points[0], zero_points[-1] = 0, 255
    check_product(guarded, product, zero_points)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("kind", ["low", "high"])
def test_largest_depth_with_a_zero_point_each_does_not_overflow(isa: str, kind: str, guarded: Guarded) -> None:
    product = example(guarded, isa, 3, 65536, 1, 1, kind)
    product.a[:, :65536] = np.uint8([[0], [255], [255]])
    check_product(guarded, product, np.int32([255, 0, 255]))


@pytest.mark.parametrize("isa", AVAILABLE)
def test_largest_depth_does_not_overflow(isa: str, guarded: Guarded) -> None:
    product = example(guarded, isa, 1, 65536, 1, 0, "low")
    assert product.expected().min() == -255 * 128 * 65536
    for descending in (False, True):
        product.operands.descending = descending
        np.testing.assert_array_equal(product.recurrent(guarded), product.expected())


RANGES = [(begin, end) for end in range(1, 6) for begin in range(end)]


@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@bundled("span, rows", spread(2, [*RANGES, (0, 0), (2, 2)], [1, 2, 7, 20]))
def test_products_write_their_blocks_only(isa: str, span: tuple[int, int], rows: int, guarded: Guarded) -> None:
    # As threads do that take some of the columns each.
    check_blocks(guarded, example(guarded, isa, rows, 37, 70, 77, "random"), *span)


@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("gates", [1, 2, 3, 4])
@bundled("units", [1, 4, 5, 15, 16, 17, 20, 21, 40, 48, 50, 64])
def test_columns_whose_sums_are_needed(isa: str, units: int, gates: int) -> None:
    """Whole groups of 16 that hold a gate's unit, and the groups before them. One too few loses units."""
    for short_tail in {False, gates == GATES and may_have_short_tail(units)}:
        last = BLOCK if short_tail else gates * BLOCK
        found = NATIVE.rnnqc_test_columns(
            isa.encode(), ctypes.c_int64(units), ctypes.c_int64(gates), ctypes.c_int32(short_tail)
        )
        assert found == (blocks(units) - 1) * gates * BLOCK + last


@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@bundled("units, k, rows", spread(2, [1, 16, 17, 33, 60, 70, 100], [3, 64, 131, 1000], [1, 2, 7, 40]))
def test_columns_that_need_no_sums(isa: str, units: int, k: int, rows: int, guarded: Guarded) -> None:
    """Up to three groups of the last block: those before them have their sums, and nothing behind the block is written.

    Blocks of several at once, too, and a last one alone; weights near and far.
    """
    product = example(guarded, isa, rows, k, units, 77, "random")
    for padding in (16, 32, 48):
        product.operands.columns = product.columns - padding
        for begin in {0, 1, blocks(units) - 2, blocks(units) - 1} & set(range(blocks(units))):
            check_blocks(guarded, product, begin, blocks(units))


def _table_case(rows: int, units: int, zero_point: int, wild: bool, cell_max: float) -> CellCase:
    rng = np.random.default_rng([rows, units, zero_point])
    columns = blocks(units) * GATES * BLOCK
    n, size = 40, 604
    gate_max = np.float32([2 * n - 0.5, n, 3.25, 2 * n - 1])
    acc = rng.integers(-(2**31), 2**31, (rows, columns), dtype=np.int32)
    h_multiplier = rng.normal(0, 2.0**-26, columns).astype(np.float32)
    p = rng.normal(n, n, (rows, columns)).astype(np.float32)
    # Sums that are whole numbers only if the product is rounded before the addition.
    whole = rng.random(p.shape) < 0.3
    p[whole] = (rng.integers(0, n, p.shape).astype(np.float32) - acc.astype(np.float32) * h_multiplier)[whole]
    c = rng.integers(-300, 301, (rows, blocks(units) * BLOCK)).astype(np.float32)
    c[rng.random(c.shape) < 0.1] = -0.0
    if cell_max > 300:
        wide = rng.random(c.shape) < 0.3
        c[wide] *= np.float32(2.0) ** rng.integers(8, 50, int(wide.sum())).astype(np.float32)
    if wild:
        special = rng.random(p.shape) < 0.3
        p[special] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0]), int(special.sum()))
        c[rng.random(c.shape) < 0.1] = np.nan
    return CellCase(
        units=units,
        acc=acc,
        p=p,
        h_multiplier=h_multiplier,
        c=c,
        gate_tables=[rng.normal(0, 30 if g == 3 else 1, int(gate_max[g]) + 1).astype("f") for g in range(4)],
        gate_min=(0, 0.5, 0, 1),
        gate_max=gate_max.tolist(),
        cell_table=rng.normal(0, 1, size).astype(np.float32),
        cell_max=cell_max,
        h_scale=0.021,
        h_zero_point=zero_point,
    )


# Tails of up to 4 units behind any number of blocks that kernels take together among them.
UNITS = [1, 2, 3, 4, 8, 15, 16, 17, 20, 31, 32, 33, 48, 50, 61, 64, 67, 84, 97, 116, 128]


@pytest.mark.few(5)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("cell_max", [300.0, 2.0**60])
@pytest.mark.parametrize("wild", [False, True])
@bundled("units, rows, zero_point", spread(3, UNITS, [1, 2, 5], [0, 128, 255]), few=len(UNITS))
def test_table_cell(
    isa: str, units: int, rows: int, zero_point: int, wild: bool, cell_max: float, guarded: Guarded
) -> None:
    case = _table_case(rows, units, zero_point, wild, cell_max)
    for kind in (case, case.of_float_cell(4.0), case.of_float_cell(0.37)):
        for each in (kind, kind.of_peepholes()):
            each.run(isa, guarded).assert_same_bits(each.run("reference", guarded))


def _check_span(case: CellCase, isa: str, guarded: Guarded, begin: int, end: int) -> None:
    """Blocks `begin` .. `end - 1` as in a run of all blocks; the others untouched, padding included."""
    whole, part = case.run("reference", guarded), case.run(isa, guarded, (begin, end))
    part.c[:, case.units :], whole.c[:, case.units :] = case.c[:, case.units :], case.c[:, case.units :]
    inside = slice(begin * BLOCK, end * BLOCK)
    untouched = np.full(whole.h.shape, SENTINEL, np.uint8)
    expected = replace(whole, y=np.full_like(whole.y, np.nan), c=case.c.copy(), h=untouched)
    expected.y.view(np.uint8)[:] = SENTINEL
    for name in ("y", "c", "h"):
        getattr(expected, name)[:, inside] = getattr(whole, name)[:, inside]
    part.assert_same_bits(expected)
    outside = np.ones(part.h.shape[1], bool)
    outside[inside] = False
    assert (part.h[:, outside] == SENTINEL).all()


# Blocks of a cell, and which of them run: below, at and above the numbers that kernels take together, 2, 4 and 16.
SPANS = [
    *((5, begin, end) for begin, end in RANGES),
    *((12, begin, end) for begin, end in ((0, 7), (1, 8), (3, 12), (5, 11), (11, 12))),
    *((40, begin, end) for begin, end in ((0, 17), (1, 34), (17, 40), (39, 40), (20, 20))),
]


@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("span, rows", spread(2, SPANS, [1, 3]))
def test_table_cell_of_some_blocks(isa: str, span: tuple[int, int, int], rows: int, guarded: Guarded) -> None:
    # As threads run that take some of the columns each.
    count, begin, end = span
    case = _table_case(rows, count * BLOCK - 3, 128, True, 300.0)
    for kind in (case, case.of_float_cell(4.0), case.of_peepholes()):
        _check_span(kind, isa, guarded, begin, end)


class LinearTables:
    """The default tables: `gate_n`, `cell_n` codes on [0, 8], `half` codes of the cell on either side."""

    def __init__(self, gate_n: int = 4096, cell_n: int = 16384, half: int = 32768, unit: float = 2.0**-11) -> None:
        gate = piecewise_linear_tanh(np.arange(-gate_n, gate_n), gate_n).astype(np.float32)
        sigmoid = gate * np.float32(KNOT_UNIT / 2) + np.float32(0.5)
        cell = piecewise_linear_tanh(np.arange(-half, half), cell_n).astype(np.float32) * np.float32(KNOT_UNIT)
        scaled = gate * (np.float32(KNOT_UNIT) / np.float32(unit)) + np.float32(0)
        self.gates = [sigmoid, sigmoid.copy(), sigmoid.copy(), scaled]
        self.cell = by_code(cell)

    def case(self) -> CellCase:
        """Pre-activations that visit every entry of the gates' tables and go beyond them; any cell states."""
        size = self.gates[0].size
        units = 52 if size < 8192 else 500  # the last block may be a short tail
        rows = -(-size // units)
        rng = np.random.default_rng(size)
        code = np.arange(rows * units, dtype=np.float32).reshape(rows, units) + np.float32(
            rng.choice([-0.5, 0.25, 0.5])
        )
        c = rng.integers(-self.cell.size, self.cell.size + 1, (rows, blocks(units) * BLOCK)).astype(np.float32)
        c[rng.random(c.shape) < 0.3] *= np.float32(1 / 64)
        columns = blocks(units) * GATES * BLOCK
        return CellCase(
            units=units,
            acc=rng.integers(-(2**31), 2**31, (rows, columns), dtype=np.int32),
            p=block_order(np.concatenate([code, code[:, ::-1], code, np.roll(code, 7, axis=0)], 1), units),
            h_multiplier=np.full(columns, 2.0**-34, np.float32),
            c=np.rint(c) + (np.rint(c) == 0),
            gate_tables=self.gates,
            gate_min=(0, 0, 0, 0),
            gate_max=[table.size - 0.5 for table in self.gates],
            cell_table=self.cell,
            cell_max=2.0**60,
            h_scale=1 / 128,
            h_zero_point=128,
        )

    def run(self, isa: str, guarded: Guarded, index_scale: float = 0.0) -> tuple[bool, bytes, npt.NDArray[np.float32]]:
        """Whether the kernels get the linear form; all results; y `[rows, units]`. `index_scale`: of a float cell."""
        case = self.case().of_float_cell(index_scale) if index_scale else self.case()
        result = case.run(isa, guarded)
        results = (result.y, result.c[:, : case.units], result.h[:, : case.units])
        return result.linear, b"".join(array.tobytes() for array in results), result.y

    def is_fused(self, guarded: Guarded) -> bool:
        """Whether the kernels may leave limits and divisions out."""
        return self.case().run("reference", guarded).fused


@pytest.mark.few(8)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize(
    ("sizes", "fused"),
    [
        ({}, True),
        ({"unit": 16 / 32767}, False),
        ({"unit": 1.75}, False),
        ({"gate_n": 64, "cell_n": 64, "half": 64}, True),
        ({"gate_n": 128, "cell_n": 32768}, True),
        ({"gate_n": 16384, "cell_n": 1024, "half": 1024}, True),
        ({"gate_n": 32768, "cell_n": 1024, "half": 1024}, False),
        ({"gate_n": 1024, "cell_n": 8192, "half": 8193}, True),
    ],
)
def test_linear_tables(isa: str, sizes: dict[str, float], fused: bool, guarded: Guarded) -> None:
    tables = LinearTables(**sizes)  # type: ignore[arg-type]
    assert tables.is_fused(guarded) == fused
    for index_scale in (0.0, 4096.0, 0.25):
        linear, found, _ = tables.run(isa, guarded, index_scale)
        assert linear
        assert found == tables.run("reference", guarded, index_scale)[1]


# What decides which limits of a linear cell need instructions, on both sides of each condition.
LIMITS: dict[str, dict[str, Any]] = {
    "no limits": {},
    "lower limit of an index within its first code": {"gate_min": (0, 0.5, 0.999, 0)},
    "lower limit of gate i": {"gate_min": (2.5, 0, 0, 0)},
    "lower limit of gate o": {"gate_min": (0, 700.25, 0, 0)},
    "lower limit of gate f": {"gate_min": (0, 0, 1, 0)},
    "lower limit of gate c": {"gate_min": (0, 0, 0, 4096)},
    "limit of the cell": {"cell_max": 2.0**59},
    "smallest limit of the cell": {"cell_max": 1.0},
    "limit of the cell within its table": {"cell_max": 20000.0},
    "limit of the cell at the end of its table": {"cell_max": 32767.0},
    "codes beyond int16": {"h_scale": 1e-6},
    "largest codes within int32": {"h_scale": 1.0000001 * 2.0**-30},
    "codes at the limit within int32": {"h_scale": 2.0**-30},
    "codes beyond int32": {"h_scale": 2.0**-31},
    "codes far beyond int32": {"h_scale": 1e-30},
    "zero point 0": {"h_zero_point": 0},
    "zero point 255": {"h_zero_point": 255},
    "zero point 0, codes beyond int16": {"h_zero_point": 0, "h_scale": 1e-6},
    "zero point 255, codes beyond int32": {"h_zero_point": 255, "h_scale": 1e-12},
    "f of 2": {"f_scale": 2.0},
    "f a little above 1": {"f_scale": 1 + 2.0**-7},
    "small f": {"f_scale": 2.0**-40},
    "largest sum below the limit": {"unit": 2.0**-34},
    "sum at the limit": {"unit": 2.0**-35},
    "sum above half a unit of the last place of 2^60": {"unit": 2.0**-38},
    "sum beyond the limit": {"unit": 2.0**-62},
    "all": {"gate_min": (1, 1, 1, 1), "cell_max": 1000.0, "h_scale": 1e-20, "f_scale": 4.0, "unit": 2.0**-50},
}


# Those that leave limits out.
FUSED = {
    "no limits",
    "lower limit of an index within its first code",
    "codes beyond int16",
    "largest codes within int32",
    "zero point 0",
    "zero point 255",
    "zero point 0, codes beyond int16",
    "small f",
    "largest sum below the limit",
}

# Pre-activations around the limits of codes and of int16, up to those that an int32 number no longer holds.
WITHIN = [
    -0.5,
    -1,
    -1.5,
    -0.0,
    8191.5,
    8192,
    2.0**15 - 1,
    2.0**15,
    -(2.0**15),
    -(2.0**15) - 1,
    40000,
    2.0**16,
    2.0**30 - 64,
    -(2.0**30) + 64,
    -1e9,
]
BEYOND = [-np.inf, np.inf, -3e38, 3e38, -0.5, -1, -1.5, -(2.0**31), 2.0**31, -0.0]
JUST_BEYOND = [*WITHIN, 2.0**30 + 128]


def _limited_case(
    unit: float = 2.0**-11,
    f_scale: float = 1.0,
    first_code: int = 0,
    specials: Sequence[float] = BEYOND,
    **changes: Any,
) -> CellCase:
    tables = LinearTables(unit=unit)
    tables.gates[2] *= np.float32(f_scale)
    tables.gates = [table[first_code:] for table in tables.gates]
    case = tables.case()
    rng = np.random.default_rng(0)
    places = rng.random(case.p.shape)
    for k, value in enumerate(np.float32(specials)):
        case.p[(places > k / 40) & (places < (k + 1) / 40)] = value
    places = rng.random(case.c.shape)
    largest = np.float32(changes.get("cell_max", 2.0**60))
    for k, value in enumerate([largest, -largest, np.nextafter(largest, np.float32(0)), -largest / 2, -0.0]):
        case.c[(places > k / 20) & (places < (k + 1) / 20)] = value
    np.clip(case.c, -largest, largest, out=case.c)
    for name, value in changes.items():
        assert hasattr(case, name), name
        setattr(case, name, value)
    return case


@pytest.mark.few(27)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("specials", [WITHIN, JUST_BEYOND, BEYOND], ids=["within", "just beyond", "beyond"])
def test_limits_of_linear_cells(isa: str, specials: Sequence[float], name: str, guarded: Guarded) -> None:
    case = _limited_case(specials=specials, **LIMITS[name])
    for kind in (case, replace(case, cell_index_scale=2.0), replace(case, cell_index_scale=0.3)):
        expected = kind.run("reference", guarded)
        found = kind.run(isa, guarded)
        assert found.linear
        assert found.fused == (specials is WITHIN and name in FUSED)
        found.assert_same_bits(expected)
        seeing = kind.of_peepholes()
        seeing.run(isa, guarded).assert_same_bits(seeing.run("reference", guarded))


@pytest.mark.parametrize("isa", STEP_ISAS)
def test_hidden_codes_next_to_ties(isa: str, guarded: Guarded) -> None:
    # Fused cells multiply by both parts of a reciprocal: scales for which the first part alone gives another code.
    case = _limited_case(specials=WITHIN)
    y = np.abs(case.run("reference", guarded).y)
    values = np.random.default_rng(0).choice(y[y > 0.1], 4000)
    scales = (values / np.resize(np.arange(96.5, 127), values.size)).astype(np.float32)
    other = np.rint(values / scales) != np.rint(values * (np.float32(1) / scales))
    found = [replace(case, h_scale=float(scale)) for scale in scales[other][:12]]
    assert len(found) == 12
    for scaled in found:
        scaled.run(isa, guarded).assert_same_bits(scaled.run("reference", guarded))


@pytest.mark.few(6)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("lowest", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("specials", [WITHIN, BEYOND], ids=["within", "beyond"])
def test_lower_limit_at_the_second_code(
    isa: str, specials: Sequence[float], lowest: float, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Knots that rise to the end, without the code whose entry is that of the next one: indices 0 and 1 differ.
    monkeypatch.setattr("rnnqc.cells.tables.TANH_KNOTS", (*(min(260 * j, 16352) for j in range(64)), 16384))
    case = _limited_case(first_code=1, specials=specials, gate_min=(lowest,) * 4)
    assert all(table[0] != table[1] for table in case.gate_tables)
    found = case.run(isa, guarded)
    assert found.linear
    assert found.fused == (specials is WITHIN and lowest < 1)
    found.assert_same_bits(case.run("reference", guarded))


@pytest.mark.few(4)
@pytest.mark.parametrize("isa", STEP_ISAS)
@bundled("begin, end", [(0, 1), (0, 3), (1, 5), (2, 9), (3, 32), (5, 22), (31, 32)])
@pytest.mark.parametrize(("limits", "specials"), [({}, WITHIN), ({}, BEYOND), ({"cell_max": 1000.0}, WITHIN)])
def test_linear_cell_of_some_blocks(
    isa: str, begin: int, end: int, limits: dict[str, float], specials: Sequence[float], guarded: Guarded
) -> None:
    case = _limited_case(specials=specials, **limits)
    for kind in (case, case.of_peepholes()):
        _check_span(kind, isa, guarded, begin, end)


@pytest.mark.few(4)
@pytest.mark.parametrize("isa", STEP_ISAS)
@bundled("entry", [0, 1, 63, 4095, 4096, 4160, 5000, 8191])
@pytest.mark.parametrize("gate", range(GATES))
def test_a_gate_table_that_differs_in_one_entry_is_looked_up(isa: str, gate: int, entry: int, guarded: Guarded) -> None:
    tables = LinearTables()
    tables.gates[0] += 1  # so that no entry of gate c is multiplied by zero
    linear, untouched, _ = tables.run(isa, guarded)
    assert linear
    tables.gates[gate][entry] = 1e6
    linear, found, _ = tables.run(isa, guarded)
    assert not linear
    assert found == tables.run("reference", guarded)[1]
    assert found != untouched


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("gate", range(GATES))
def test_the_last_bit_of_an_entry_counts(isa: str, gate: int, guarded: Guarded) -> None:
    tables = LinearTables()
    tables.gates[gate][5000] = np.nextafter(tables.gates[gate][5000], np.float32(np.inf))
    linear, found, _ = tables.run(isa, guarded)
    assert not linear
    assert found == tables.run("reference", guarded)[1]


@pytest.mark.parametrize("isa", STEP_ISAS)
@bundled("entry", [0, 1, 255, 256, 5000, 16383, 16384, 32767, 32768, 40000, 65535])
def test_a_cell_table_that_differs_in_one_entry_is_looked_up(isa: str, entry: int, guarded: Guarded) -> None:
    tables = LinearTables()
    tables.cell[entry] = 1000
    linear, found, y = tables.run(isa, guarded)
    assert not linear
    assert found == tables.run("reference", guarded)[1]
    if entry in (32767, 32768):  # where every larger cell state saturates
        assert y.max() > 100


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("change", ["knots of a gate", "negative zero", "not a number", "size of a gate"])
def test_tables_without_a_linear_form_in_common(isa: str, change: str, guarded: Guarded) -> None:
    tables = LinearTables()
    if change == "knots of a gate":
        assert TANH_KNOTS[1] != 2048
        segment = np.minimum(np.abs(np.arange(-4096, 4096)) * 32, 16384) * np.sign(np.arange(-4096, 4096))
        tables.gates[1] = segment.astype(np.float32) * np.float32(KNOT_UNIT / 2) + np.float32(0.5)
    elif change == "negative zero":
        tables.cell[0] = -0.0
    elif change == "not a number":
        tables.gates[2][8191] = np.nan
    else:
        tables.gates[3] = tables.gates[3][:-1].copy()
    linear, found, _ = tables.run(isa, guarded)
    assert not linear
    if change != "not a number":
        assert found == tables.run("reference", guarded)[1]


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("knot", [-16383, -16384])
def test_a_rise_beyond_int16_takes_shorter_segments(
    isa: str, knot: int, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnnqc.cells.tables.TANH_KNOTS", (0, knot, *[16384] * (len(TANH_KNOTS) - 2)))
    tables = LinearTables()
    linear, found, _ = tables.run(isa, guarded)
    assert linear
    assert found == tables.run("reference", guarded)[1]


def test_guard_pages_work() -> None:
    # In a child process, which has to die of the read beyond the end.
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        array = Guarded().array(np.zeros(5, np.float32))
        NATIVE.rnnqc_test_max_abs(b"portable", pointer(array), ctypes.c_int64(6))
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
