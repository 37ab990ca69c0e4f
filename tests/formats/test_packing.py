"""Packed int4 weights and their group multipliers.

What these would catch: nibbles of a byte in the other order, columns paired with their neighbours instead of with those
half a row away, a group that begins at the wrong row, a multiplier whose nibbles leave -8 .. 7.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.packing import factorize, pack
from rnnqc.reference.codes import weight_codes

CODES = np.array([[-8, -1, 0, 7], [1, 2, 3, 4], [7, -8, -7, 5]], np.int8)


def test_bytes_by_hand() -> None:
    """Columns 0 and 1 in the low nibbles, 2 and 3 in the high ones."""
    packed = pack(CODES)
    assert packed.dtype == np.uint8
    assert packed.tolist() == [[0x80, 0xF7], [0xB9, 0xCA], [0x1F, 0xD0]]
    np.testing.assert_array_equal(weight_codes(packed, None, 0), CODES)


@given(st.integers(1, 70), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_unpacking_gives_the_codes(rows: int, half: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-8, 8, (rows, 2 * half), dtype=np.int8)
    unpacked = weight_codes(pack(codes), None, 0)
    assert unpacked.dtype == np.int8
    np.testing.assert_array_equal(unpacked, codes)


@given(st.integers(1, 100), st.integers(1, 5), st.sampled_from([32, 64]), st.integers(0, 2**32 - 1))
def test_groups_give_the_codes(rows: int, half: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = -(-rows // size)
    multipliers = rng.integers(1, 19, (groups, 2 * half))
    nibbles = rng.integers(-7, 8, (rows, 2 * half))
    codes = (nibbles * multipliers[np.arange(rows) // size]).astype(np.int8)
    factors = factorize(codes, size)
    assert factors is not None
    found, found_multipliers = factors
    assert (found_multipliers.dtype, found_multipliers.shape) == (np.uint8, (groups, 2 * half))
    assert (found_multipliers <= multipliers).all(), "not the smallest"
    np.testing.assert_array_equal(weight_codes(pack(found), found_multipliers, size), codes)


def test_smallest_multiplier_by_hand() -> None:
    codes = np.zeros((33, 4), np.int8)
    codes[0] = [126, 14, -16, 0]
    codes[1] = [-18, 4, 2, 0]
    codes[32] = [3, -128, 8, -8]
    factors = factorize(codes, 32)
    assert factors is not None
    assert factors[1].tolist() == [[18, 2, 2, 1], [1, 16, 2, 1]]
    assert factors[0][[0, 1, 32]].tolist() == [[7, 7, -8, 0], [-1, 2, 1, 0], [3, -8, 4, -8]]


@pytest.mark.parametrize("column", [[127, 1], [126, 1], [15, 2], [19, 0], [-9, 1]])
def test_codes_that_are_no_products(column: list[int]) -> None:
    """127 and 19 are primes above 7, the others have no common divisor that makes both small enough."""
    codes = np.zeros((2, 2), np.int8)
    codes[:, 1] = column
    assert factorize(codes, 32) is None
