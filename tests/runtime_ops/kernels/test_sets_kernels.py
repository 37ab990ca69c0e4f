"""Products of 4-bit indices of sets of values: their packing and every kernel that multiplies them, against numpy.

What these would catch: a set of a neighbour's column; columns or halves of a group that change places; a multiplier of
another group; sums of a group that a register does not hold; codes read beyond their end; blocks written that belong to
another thread; large matrices that stay int8, and small ones that do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.formats.codebooks import GROUP_BYTES, SETS
from tests.native.bundles import bundled, spread
from tests.native.kernel_calls import (
    AVAILABLE,
    GATES,
    ISAS_OF,
    PRODUCT_ISAS,
    SET_INDICES,
    Guarded,
    Product,
    check_blocks,
    check_product,
    every_second_short,
)

KERNELS = [isa for isa in ISAS_OF[SET_INDICES] if isa in PRODUCT_ISAS]
VALUES = np.array(SETS)
each_kernel = pytest.mark.parametrize("isa", KERNELS)


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


def test_instruction_sets_with_kernels() -> None:
    assert set(ISAS_OF[SET_INDICES]) == {"reference", "avx2", "amxint8"} & set(AVAILABLE)


def example(
    guarded: Guarded, isa: str, rows: int, k: int, units: int, zero_point: int, group_size: int, kind: str
) -> Product:
    """Random codes, indices and bytes of groups; "corners" of them; or, "low" and "high", the largest products."""
    rng = np.random.default_rng([rows, k, units, zero_point, group_size])
    shape = (k, GATES * units)
    indices = rng.integers(0, 16, shape)
    codes = rng.integers(0, 256, (rows, k), dtype=np.uint8)
    groups = rng.choice(np.array(GROUP_BYTES, np.uint8), (-(-k // group_size), GATES * units))
    if kind == "corners":
        indices = rng.choice([0, 7, 8, 15], shape)
        codes = rng.choice(np.uint8([0, 1, 127, 128, 254, 255]), codes.shape)
    elif kind != "random":
        indices[:] = {"low": 0, "high": 15}[kind]
        codes[:] = 255 - zero_point
        groups[:] = max(b for b in GROUP_BYTES if b >> 5 == 1)
    return product(guarded, isa, indices, codes, groups, zero_point, group_size)


def product(
    guarded: Guarded,
    isa: str,
    indices: npt.NDArray[np.int64],
    codes: npt.NDArray[np.uint8],
    groups: npt.NDArray[np.uint8],
    zero_point: int,
    group_size: int,
) -> Product:
    each = np.repeat(groups, group_size, axis=0)[: len(indices)].astype(int)
    weights = VALUES[each >> 5, indices] * (each & 31)
    assert np.abs(weights).max() <= 128
    return Product(
        guarded,
        isa,
        weights.astype(np.int8),
        codes,
        zero_point,
        SET_INDICES,
        multipliers=groups,
        group_size=group_size,
        short_tail=every_second_short(indices.shape[1] // GATES, len(indices)),
    )


# Below, at and above multiples of 16 and 32 of k, of 128 (groups), of 2 and 16 units.
SIZES = [
    *((1, 1), (5, 16), (15, 17), (16, 16), (17, 2), (31, 15), (32, 16), (33, 3), (47, 5), (48, 1), (49, 33), (64, 64)),
    *((65, 5), (95, 5), (104, 18), (127, 1), (129, 3), (131, 17), (257, 48), (521, 3)),
]


@each_kernel
@pytest.mark.parametrize("group_size", [32, 64, 128])
@bundled(
    "size, rows, numbers",
    spread(7, SIZES, range(1, 10), [(128, "random"), (0, "low"), (255, "high"), (3, "corners")]),
    few=2 * len(SIZES),
)
def test_products(
    isa: str, size: tuple[int, int], rows: int, numbers: tuple[int, str], group_size: int, guarded: Guarded
) -> None:
    check_product(guarded, example(guarded, isa, rows, *size, numbers[0], group_size, numbers[1]))


@each_kernel
@bundled("rows", range(1, 10), few=5)
@bundled("k, units", [(9, 33), (64, 5), (131, 17)])
def test_rows_with_a_zero_point_each(isa: str, k: int, units: int, rows: int, guarded: Guarded) -> None:
    zero_points = np.random.default_rng(rows).integers(0, 256, rows, dtype=np.int32)
    zero_points[0], zero_points[-1] = 0, 255
    check_product(guarded, example(guarded, isa, rows, k, units, 1, 32, "random"), zero_points)


@each_kernel
@bundled("rows, span", spread(2, [1, 2, 7], [(0, 0), *((b, e) for e in range(1, 6) for b in range(e))]), few=16)
def test_products_write_their_blocks_only(isa: str, span: tuple[int, int], rows: int, guarded: Guarded) -> None:
    check_blocks(guarded, example(guarded, isa, rows, 101, 70, 77, 64, "random"), *span)


@each_kernel
def test_each_value_of_each_group(isa: str, guarded: Guarded) -> None:
    """Every set with every multiplier that it may have, in neighbours of every other one."""
    groups = np.random.default_rng(0).permuted(np.tile(np.array(GROUP_BYTES, np.uint8), 4))
    groups = np.resize(groups, (2, -(-len(groups) // GATES) * GATES))
    codes = np.random.default_rng(1).integers(0, 256, (3, 64), dtype=np.uint8)
    for first in range(16):
        indices = (np.arange(64)[:, None] + first) % 16 * np.ones((1, groups.shape[1]), int)
        check_product(guarded, product(guarded, isa, indices, codes[: 1 + first % 3], groups, 0, 32))


@each_kernel
@pytest.mark.parametrize("kind", ["low", "high"])
def test_largest_depth_does_not_overflow(isa: str, kind: str, guarded: Guarded) -> None:
    check_product(guarded, example(guarded, isa, 1, 65536, 1, 0, 65536, kind))
