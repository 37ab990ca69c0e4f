"""Packed weights of 4, 5 and 6 bits and their group multipliers.

What these would catch: nibbles of a byte in the other order, columns paired with their neighbours instead of with those
half a row away, a group that begins at the wrong row, a multiplier whose nibbles leave -8 .. 7.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.packing import factorize, largest_multiplier, pack, pack_groups, plane_columns, stored_bits
from rnnqc.reference.codes import weight_codes

CODES = np.array([[-8, -1, 0, 7], [1, 2, 3, 4], [7, -8, -7, 5]], np.int8)


def test_bytes_by_hand() -> None:
    """Columns 0 and 1 in the low nibbles, 2 and 3 in the high ones."""
    packed = pack(CODES)
    assert packed.dtype == np.uint8
    assert packed.tolist() == [[0x80, 0xF7], [0xB9, 0xCA], [0x1F, 0xD0]]
    np.testing.assert_array_equal(weight_codes(packed, None, 0), CODES)


def test_six_bits_by_hand() -> None:
    """-32 .. 31 plus 32: nibbles of columns 0, 1 and 2, 3, then the upper bits of columns 0 to 3 in one byte."""
    packed = pack(np.array([[-32, -1, 0, 31], [17, -18, 5, -6]], np.int8), 6)
    assert packed.tolist() == [[0x00, 0xFF, 0b11_10_01_00], [0x51, 0xAE, 0b01_10_00_11]]


def test_five_bits_by_hand() -> None:
    """-16 .. 15 plus 16; of nine columns every second upper bit stands in the second byte."""
    packed = pack(np.array([[-16, -1, 0, 15, 1, -2, 3, -4, 8]], np.int8), 5)
    # 0, 15, 16, 31, 17 in the low nibbles, 14, 19, 12, 24 in the high ones; upper bits 0 0 1 1 1 0 1 0 1.
    assert packed.tolist() == [[0xE0, 0x3F, 0xC0, 0x8F, 0x01, 0b00011110, 0b00000010]]


@pytest.mark.parametrize("bits", [4, 5, 6])
@given(st.integers(1, 70), st.integers(1, 19), st.integers(0, 2**32 - 1))
def test_unpacking_gives_the_codes(bits: int, rows: int, columns: int, seed: int) -> None:
    half = 2 ** (bits - 1)
    codes = np.random.default_rng(seed).integers(-half, half, (rows, columns), dtype=np.int8)
    unpacked = weight_codes(pack(codes, bits), None, 0, columns, bits)
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, codes)


@pytest.mark.parametrize("bits", [4, 5, 6])
@given(st.integers(1, 100), st.integers(1, 9), st.sampled_from([32, 64]), st.integers(0, 2**32 - 1))
def test_groups_give_the_codes(bits: int, rows: int, columns: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, top = -(-rows // size), 2 ** (bits - 1) - 1
    multipliers = rng.integers(1, largest_multiplier(bits) + 1, (groups, columns))
    numbers = rng.integers(-top, top + 1, (rows, columns))
    codes = (numbers * multipliers[np.arange(rows) // size]).astype(np.int8)
    factors = factorize(codes, size, bits)
    found, found_multipliers = factors
    assert (found_multipliers.dtype, found_multipliers.shape) == (np.uint8, (groups, columns))
    assert (found_multipliers <= multipliers).all(), "not the smallest"
    packed = pack(found, bits)
    np.testing.assert_array_equal(weight_codes(packed, found_multipliers, size, columns, bits), codes)


def test_multipliers_keep_products_in_int8() -> None:
    assert [largest_multiplier(bits) for bits in (1, 2, 3, 4, 5, 6)] == [18, 18, 18, 18, 8, 4]


def test_bits_in_a_file() -> None:
    assert [stored_bits(bits) for bits in (None, 1, 3, 4, 5, 6, 7, 8, 16)] == [8, 4, 4, 4, 5, 6, 8, 8, 8]


def test_smallest_multiplier_by_hand() -> None:
    codes = np.zeros((33, 4), np.int8)
    codes[0] = [126, 14, -16, 0]
    codes[1] = [-18, 4, 2, 0]
    codes[32] = [3, -128, 8, -8]
    factors = factorize(codes, 32)
    assert factors[1].tolist() == [[18, 2, 2, 1], [1, 16, 2, 1]]
    assert factors[0][[0, 1, 32]].tolist() == [[7, 7, -8, 0], [-1, 2, 1, 0], [3, -8, 4, -8]]


@pytest.mark.parametrize("bits", [4, 5, 6])
@given(st.integers(1, 70), st.integers(1, 9), st.sets(st.integers(0, 8)), st.integers(0, 2**32 - 1))
def test_wide_columns_beside_others(bits: int, rows: int, columns: int, wide: set[int], seed: int) -> None:
    """Their multipliers are 0, their values any; all come back, and the row has a byte for every two of them."""
    rng = np.random.default_rng(seed)
    top = 2 ** (bits - 1) - 1
    multipliers = rng.integers(1, largest_multiplier(bits) + 1, columns)
    codes = (rng.integers(-top, top + 1, (rows, columns)) * multipliers).astype(np.int8)
    chosen = sorted(k for k in wide if k < columns)
    codes[:, chosen] = rng.integers(-128, 128, (rows, len(chosen)))
    codes[0, chosen] = 127  # a prime
    packed, count = pack_groups(codes, *(factors := factorize(codes, 32, bits)), bits)
    assert count == len(chosen)
    assert packed.shape == (rows, sum(plane_columns(columns, bits)) + (count + 1) // 2)
    assert np.flatnonzero((factors[1] == 0).all(axis=0)).tolist() == chosen
    np.testing.assert_array_equal(weight_codes(packed, factors[1], 32, columns, bits, wide_columns=count), codes)


def test_wide_columns_by_hand() -> None:
    codes = np.array([[3, -128, -1, 127]], np.int8)
    numbers, multipliers = factorize(codes, 32)
    assert multipliers.tolist() == [[1, 16, 1, 0]]
    packed, count = pack_groups(codes, numbers, multipliers, 4)
    assert (count, packed.tolist()) == (1, [[11 | 7 << 4, 0 | 15 << 4, 15]])  # 127 + 128 is 15 and 16 times 15


def test_wide_columns_among_six_bits_by_hand() -> None:
    """Plus 32: 35, 0, 31, and 63 of 127 + 128; the plane of upper bits, and 3 times 64 in the nibble behind it."""
    codes = np.array([[3, -128, -1, 127]], np.int8)
    numbers, multipliers = factorize(codes, 32, 6)
    assert multipliers.tolist() == [[1, 4, 1, 0]]
    packed, count = pack_groups(codes, numbers, multipliers, 6)
    assert (count, packed.tolist()) == (1, [[3 | 15 << 4, 0 | 15 << 4, 0b11_01_00_10, 3]])


def test_reference_refuses_wide_columns_beyond_int8() -> None:
    """A nibble holds four bits, of which a wide column among six bits has two."""
    with pytest.raises(ValueError, match="is no int8"):
        weight_codes(np.array([[0, 0, 4]], np.uint8), np.array([[0, 1]], np.uint8), 32, 2, 6, wide_columns=1)


@pytest.mark.parametrize(
    ("multipliers", "options", "message"),
    [
        ([[0, 1]], {}, "1 columns of multipliers 0, 0 wide ones"),
        ([[0, 1]], {"wide_columns": 2}, "1 columns of multipliers 0, 2 wide ones"),
        ([[1, 1]], {"wide_columns": 1}, "0 columns of multipliers 0, 1 wide ones"),
        (None, {"wide_columns": 1, "group_size": 0}, "without groups"),
    ],
)
def test_reference_refuses_other_wide_columns(
    multipliers: list[list[int]] | None, options: dict[str, int], message: str
) -> None:
    stored = np.zeros((32, 1 + (options.get("wide_columns", 0) + 1) // 2), np.uint8)
    groups = None if multipliers is None else np.array(multipliers, np.uint8)
    with pytest.raises(ValueError, match=message):
        weight_codes(stored, groups, **{"group_size": 32, "columns": 2, **options})


@pytest.mark.parametrize("column", [[127, 1], [126, 1], [15, 2], [19, 0], [-9, 1]])
def test_codes_that_are_no_products(column: list[int]) -> None:
    """127 and 19 are primes above 7, the others have no common divisor that makes both small enough."""
    codes = np.zeros((2, 2), np.int8)
    codes[:, 1] = column
    assert factorize(codes, 32)[1].tolist() == [[1, 0]]
