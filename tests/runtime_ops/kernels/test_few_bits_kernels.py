"""Products of weights of 4 and 6 bits: their packing and every kernel that multiplies them, against numpy.

What these would catch: parts of a byte in the wrong order or with the wrong sign; a group's multiplier that is applied
to other columns or other k; sums of a group that a register does not hold; codes read beyond their end; blocks written
that belong to another thread; an instruction set that silently falls back to int8.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.native.bundles import bundled, spread
from tests.native.kernel_calls import (
    AVAILABLE,
    FEW_BITS,
    GATES,
    ISAS_OF,
    NATIVE,
    PRODUCT_ISAS,
    TILED_ISAS,
    Guarded,
    Product,
    check_blocks,
    check_product,
    every_second_short,
    pointer,
)

Kernel = tuple[str, int]
"""An instruction set and the bits of its weights."""
KERNELS: list[Kernel] = [(isa, bits) for bits in FEW_BITS for isa in ISAS_OF[bits] if isa in PRODUCT_ISAS]
EXTREME = {4: (16, 18, 18), 6: (4, 4, 9)}
"""Multipliers that make the least and the largest number extreme int8 weights, and more than that."""
EXPECTED = {
    4: {"reference", "avx2", "avxvnni", "avx512vnni", "avx512vbmi", "amxint8"},
    6: {"reference", "avx512vnni", "avx512vbmi"},
}


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


@pytest.mark.parametrize("bits", FEW_BITS)
def test_instruction_sets_with_kernels(bits: int) -> None:
    assert set(ISAS_OF[bits]) == EXPECTED[bits] & set(AVAILABLE)


def example(
    guarded: Guarded, kernel: Kernel, rows: int, k: int, units: int, zero_point: int, group_size: int, kind: str
) -> Product:
    """Random codes and weights; "corners" of both; or, "low" and "high", the largest products, all of one sign.

    With a group size, weights are numbers times multipliers, up to those of `EXTREME` and beyond.
    """
    isa, bits = kernel
    half = 2 ** (bits - 1)
    low, high, most = EXTREME[bits]
    rng = np.random.default_rng([rows, k, units, zero_point, group_size])
    shape = (k, GATES * units)
    numbers = rng.integers(-half, half, shape)
    codes = rng.integers(0, 256, (rows, k), dtype=np.uint8)
    groups = -(-k // group_size) if group_size else 1
    multipliers = rng.integers(1, most + 1, (groups, GATES * units)) if group_size else np.ones((1, GATES * units), int)
    if kind == "corners":
        numbers = rng.choice([-half, 1 - half, -1, 0, 1, half - 1], shape)
        codes = rng.choice(np.uint8([0, 1, 127, 128, 254, 255]), codes.shape)
        if group_size:
            multipliers = rng.choice([1, 2, low - 1, low, high - 1, high], multipliers.shape)
    elif kind != "random":
        numbers[:] = {"low": -half, "high": half - 1}[kind]
        codes[:] = 255 - zero_point
        if group_size:
            multipliers[:] = {"low": low, "high": high}[kind]
    scale = np.repeat(multipliers, group_size or max(k, 1), axis=0)[:k]
    numbers = np.clip(numbers, -(128 // scale), 127 // scale)
    weights = (numbers * scale).astype(np.int8)
    assert (weights == numbers * scale).all()
    return Product(
        guarded,
        isa,
        weights,
        codes,
        zero_point,
        bits=bits,
        multipliers=multipliers.astype(np.uint8) if group_size else None,
        group_size=group_size,
        short_tail=every_second_short(units, k),
    )


# Below, at and above multiples of 8 and 16 of k, of 32, 64 and 128 (groups), of 16 units.
SIZES = [
    *((1, 1), (5, 16), (7, 17), (8, 16), (9, 33), (16, 3), (17, 2), (24, 15), (31, 15), (32, 16), (33, 2), (40, 5)),
    *((61, 31), (64, 64), (65, 5), (95, 5), (104, 18), (127, 1), (129, 3), (131, 17), (257, 48), (521, 3)),
]
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 20)
GROUP_SIZES = (0, 32, 64, 128)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=map(str, KERNELS))
TILED = [(isa, bits) for isa, bits in KERNELS if isa in TILED_ISAS]
each_tiled_kernel = pytest.mark.parametrize("kernel", TILED, ids=map(str, TILED))
each_group_size = pytest.mark.parametrize("group_size", GROUP_SIZES)


@pytest.mark.few(3)
@each_kernel
@each_group_size
@bundled(
    "size, rows, numbers",
    spread(7, SIZES, ROWS, [(128, "random"), (0, "low"), (255, "high"), (3, "corners")]),
    few=2 * len(SIZES),
)
def test_products(
    kernel: Kernel, size: tuple[int, int], rows: int, numbers: tuple[int, str], group_size: int, guarded: Guarded
) -> None:
    check_product(guarded, example(guarded, kernel, rows, *size, numbers[0], group_size, numbers[1]))


@pytest.mark.few(4)
@each_kernel
@each_group_size
@bundled("rows", ROWS, few=5)
@bundled("k, units", [(9, 33), (64, 5), (131, 17), (257, 3)])
def test_rows_with_a_zero_point_each(
    kernel: Kernel, k: int, units: int, rows: int, group_size: int, guarded: Guarded
) -> None:
    zero_points = np.random.default_rng(rows).integers(0, 256, rows, dtype=np.int32)
    zero_points[0], zero_points[-1] = 0, 255
    check_product(guarded, example(guarded, kernel, rows, k, units, 1, group_size, "random"), zero_points)


# More rows and more of k than a kernel prepares at once.
LARGE = [(1, 8200, 17), (1, 16500, 3), (2, 4103, 17), (5, 3333, 2), (17, 1100, 16), (35, 513, 33)]


@pytest.mark.few(4)
@each_kernel
@each_group_size
@bundled("size, numbers", spread(3, LARGE, [(0, "corners"), (0, "low"), (255, "low"), (0, "high")]))
def test_large_products(
    kernel: Kernel, size: tuple[int, int, int], numbers: tuple[int, str], group_size: int, guarded: Guarded
) -> None:
    check_product(guarded, example(guarded, kernel, *size, numbers[0], group_size, numbers[1]))


# The last pair of tiles twice the same one; and overlapping the pair before; k of more than is unpacked at once.
@each_tiled_kernel
@pytest.mark.parametrize("group_size", [0, 96])
@pytest.mark.parametrize("rows", [225, 513])
def test_rows_of_many_tiles(kernel: Kernel, rows: int, group_size: int, guarded: Guarded) -> None:
    check_product(guarded, example(guarded, kernel, rows, 264, 17, 3, group_size, "corners"))


# Products that are worth the set-up of tiles: rows below, at and above 16 and 32, k of less than a tile (64), of whole
# tiles, of more, and of more than is unpacked at once.
TILED_ROWS = (5, 8, 15, 16, 17, 32, 33, 65)
TILED_SIZES = ((60, 300), (64, 260), (127, 128), (200, 100), (520, 65), (1095, 33))


@each_tiled_kernel
@pytest.mark.parametrize("group_size", [*GROUP_SIZES, 96, 512])
@bundled("rows, size, numbers", spread(3, TILED_ROWS, TILED_SIZES, [(128, "random"), (3, "corners")]))
def test_tiled_products(
    kernel: Kernel, size: tuple[int, int], rows: int, numbers: tuple[int, str], group_size: int, guarded: Guarded
) -> None:
    product = example(guarded, kernel, rows, *size, numbers[0], group_size, numbers[1])
    check_product(guarded, product)
    check_blocks(guarded, product, 1, 2)


@pytest.mark.few(1)
@each_kernel
@bundled("group_size, rows, kind", spread(2, [0, 32, 65536, 65568], [1, 3], ["low", "high"]), few=4)
def test_largest_depth_does_not_overflow(
    kernel: Kernel, kind: str, rows: int, group_size: int, guarded: Guarded
) -> None:
    half = 2 ** (kernel[1] - 1)
    low, high, _ = EXTREME[kernel[1]] if group_size else (1, 1, 1)
    product = example(guarded, kernel, rows, 65536, 1, 0, group_size, kind)
    largest = 255 * 65536 * {"low": half * low, "high": (half - 1) * high}[kind]
    assert np.abs(product.expected()).max() == largest
    check_product(guarded, product)
    product = example(guarded, kernel, rows, 65536, 1, 1, group_size, kind)
    product.a[:, :65536] = 255
    product.a[0, :65536] = 0
    check_product(guarded, product, np.int32([255, *[0] * (rows - 1)]))


@pytest.mark.few(3)
@each_kernel
@pytest.mark.parametrize("group_size", [0, 32, 64])
@bundled("rows, span", spread(2, [1, 2, 7, 20], [(0, 0), *((b, e) for e in range(1, 6) for b in range(e))]), few=16)
def test_products_write_their_blocks_only(
    kernel: Kernel, span: tuple[int, int], rows: int, group_size: int, guarded: Guarded
) -> None:
    check_blocks(guarded, example(guarded, kernel, rows, 101, 70, 77, group_size, "random"), *span)


@pytest.mark.few(2)
@each_kernel
@bundled("half", [0, 4])
@bundled("tenth", range(10))
def test_each_number_in_each_half(kernel: Kernel, tenth: int, half: int, guarded: Guarded) -> None:
    """One weight of a column is not 0: column j has it at k = j % 4 + `half`."""
    isa, bits = kernel
    codes = np.random.default_rng(0).integers(1, 256, (3, 16), dtype=np.uint8)
    for number in range(tenth - 2 ** (bits - 1), 2 ** (bits - 1), 10):
        weights = np.zeros((16, 2 * GATES), np.int8)
        for column in range(weights.shape[1]):
            weights[column % 4 + half, column] = number
        for rows in (1, 3):
            check_product(guarded, Product(guarded, isa, weights, codes[:rows], 0, bits=bits))


@each_kernel
def test_each_multiplier(kernel: Kernel, guarded: Guarded) -> None:
    isa, bits = kernel
    most = EXTREME[bits][2]
    rng = np.random.default_rng(0)
    multipliers = rng.permuted(np.tile(np.arange(1, most + 1, dtype=np.uint8), (5, 72 // most)), axis=1)
    scale = np.repeat(multipliers, 32, axis=0)[:140].astype(int)
    for number in range(-(2 ** (bits - 1)), 2 ** (bits - 1)):
        for rows in (1, 4):
            scaled = np.clip(number, -(128 // scale), 127 // scale) * scale
            codes = np.random.default_rng(rows).integers(0, 256, (rows, 140), dtype=np.uint8)
            product = Product(
                guarded, isa, scaled.astype(np.int8), codes, 0, bits=bits, multipliers=multipliers, group_size=32
            )
            check_product(guarded, product)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("group_size", [0, 32])
@pytest.mark.parametrize(
    ("narrow", "columns", "wide", "apart"),
    [
        *(
            (4, 256, 0, 0),
            (4, 256, 1, 1),
            (4, 256, 64, 64),
            (4, 256, 65, 0),
            (4, 250, 3, 3),
            (4, 64, 1, 0),
            (4, 5, 5, 0),
        ),
        *((6, 512, 0, 0), (6, 512, 64, 64), (6, 512, 65, 0), (6, 600, 3, 3), (6, 256, 1, 0)),
    ],
)
def test_columns_of_eight_bits_stand_apart(
    isa: str, group_size: int, narrow: int, columns: int, wide: int, apart: int
) -> None:
    """They are stored apart if whole blocks of 64 save bytes: the other columns then have 4 or 6 bits in memory."""
    depth, half = 96, 2 ** (narrow - 1)
    rng = np.random.default_rng(wide)
    multipliers = rng.integers(1, EXTREME[narrow][2] + 1, (3, columns), dtype=np.uint8)
    scale = np.repeat(multipliers, 32, axis=0).astype(int) if group_size else np.ones((depth, columns), int)
    weights = (np.clip(rng.integers(-half, half, scale.shape), -(128 // scale), 127 // scale) * scale).astype(np.int8)
    places = rng.permutation(columns)[:wide]
    weights[:, places] = rng.integers(-128, 128, (depth, wide))
    weights[0, places] = 127
    multipliers[:, places] = 0

    def packed(least: int) -> tuple[int, int]:
        found = ctypes.c_int64(-1)
        size = NATIVE.rnnqc_test_mixed_bytes(
            isa.encode(),
            pointer(weights),
            pointer(multipliers if group_size else None),
            *(ctypes.c_int64(n) for n in (group_size, depth, columns, least)),
            ctypes.byref(found),
        )
        return int(size), found.value

    size, found = packed(depth * columns)
    assert packed(depth * columns + 1)[1] == 0  # of smaller matrices none does
    if isa not in ISAS_OF[narrow]:
        assert found == 0
        return
    assert found == apart
    blocks = -(-columns // 64)
    bits = 8 if apart < wide else narrow
    sums = 4 * 64 * (blocks if bits == 8 else -(-apart // 64))  # which some formats of int8 have
    assert 0 <= size - depth * 8 * (blocks * bits + -(-apart // 64) * 8) <= sums
