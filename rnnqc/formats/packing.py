"""Packs weights of 4, 5 and 6 bits, and factors out integer multipliers shared by groups.

A weight matrix `[K,n]` of 4 bits becomes uint8 `[K,h]` with `h = ceil(n / 2)`: byte `(k,j)` holds column `j` in its low
nibble and column `j + h` in its high one; a nibble `v` stands for `v - 8`. Columns beyond the matrix are 0.

With 5 and 6 bits, 16 or 32 is added to a quantized value. Its low nibble is stored as above, its upper bits in a second
plane to the right of the first: with 6 bits four to a byte, with 5 bits eight, so that byte `(k,j)` of its `p` columns
holds columns `j`, `j + p`, `j + 2 p`, .. from its low bits up.

With groups of `size` rows a quantized value is the packed number times the multiplier of its group and column.

Some columns of grouped weights may be wide: their multipliers are 0. Of a quantized value plus 128, the lower bits are
stored where other columns have all of theirs, the upper ones as a nibble. These nibbles form another plane to the
right, that of a matrix of the wide columns alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CodeArray = npt.NDArray[np.int8]
ByteArray = npt.NDArray[np.uint8]

NIBBLE_BITS, BYTE_BITS = 4, 8
PACKED_BITS = 6
"""Weights of more bits are stored as bytes."""
LARGEST_MULTIPLIER = 18
"""18 * 7 = 126 is the largest multiple of the 4-bit value 7 that is an int8 value."""
GROUP_UNIT = 32
"""Group sizes are multiples of this."""


def stored_bits(bits: int | None) -> int:
    """Returns how many bits a weight of `bits` takes in a file; 8 if it is float or not packed."""
    return BYTE_BITS if bits is None or bits > PACKED_BITS else max(bits, NIBBLE_BITS)


def largest_multiplier(bits: int) -> int:
    """Returns the largest multiplier of groups of symmetric values of `bits`: every product is an int8 value."""
    return min(LARGEST_MULTIPLIER, 127 // max(1, int(2 ** (bits - 1)) - 1))


def plane_columns(columns: int, bits: int) -> tuple[int, int]:
    """Returns the bytes that a row takes in the plane of nibbles, and in that of the upper bits."""
    upper = bits - NIBBLE_BITS
    return -(-columns // 2), -(-columns * upper // 8)


def pack(numbers: npt.NDArray[Any], bits: int = NIBBLE_BITS) -> ByteArray:
    """Packs quantized values `[K,n]`, from `-2 ** (bits - 1)` to `2 ** (bits - 1) - 1`, to bytes `[K,m]`."""
    raised = numbers.astype(np.int16) + 2 ** (bits - 1)
    zero = 2 ** (bits - 1) & 15
    nibbles = _plane((raised & 15).astype(np.uint8), NIBBLE_BITS, zero)
    if bits == NIBBLE_BITS:
        return nibbles
    upper = _plane((raised >> NIBBLE_BITS).astype(np.uint8), bits - NIBBLE_BITS, 0)
    return np.concatenate([nibbles, upper], axis=1)


def pack_groups(codes: CodeArray, numbers: CodeArray, multipliers: ByteArray, bits: int) -> tuple[ByteArray, int]:
    """Packs quantized values of groups; returns the bytes and the number of wide columns.

    Args:
        codes: `[K,n]`.
        numbers: The values before multiplication. Wide columns are overwritten.
        multipliers: Multipliers of groups and columns; 0 where none fits. Columns with a 0 are wide and set to 0.
        bits: Width of the numbers.
    """
    wide = (multipliers == 0).any(axis=0)
    if not wide.any():
        return pack(numbers, bits), 0
    multipliers[:, wide] = 0
    raised = codes[:, wide].astype(np.int16) + 128
    numbers[:, wide] = (raised & 2**bits - 1) - 2 ** (bits - 1)
    upper = _plane((raised >> bits).astype(np.uint8), NIBBLE_BITS, 0)
    return np.concatenate([pack(numbers, bits), upper], axis=1), int(wide.sum())


def _plane(values: ByteArray, bits: int, beyond: int) -> ByteArray:
    """Packs values of `bits` into bytes; missing columns get `beyond`."""
    parts = 8 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % parts)), constant_values=beyond)
    packed = np.zeros((len(values), padded.shape[1] // parts), np.uint8)
    for k, part in enumerate(np.split(padded, parts, axis=1)):
        packed |= part << np.uint8(k * bits)
    return packed


def factorize(codes: CodeArray, group_size: int, bits: int = NIBBLE_BITS) -> tuple[CodeArray, ByteArray]:
    """Splits quantized values into values of fewer bits and multipliers.

    Args:
        codes: `[K,n]`.
        group_size: Rows that share a multiplier.
        bits: Width of a value before multiplication, 4 to 6.

    Returns:
        Values int8 `[K,n]` and the smallest possible multipliers `[ceil(K / group_size),n]`; 0 if none up to
        `largest_multiplier` fits.
    """
    rows, columns = codes.shape
    half = 2 ** (bits - 1)
    numbers = np.empty_like(codes)
    multipliers = np.zeros((-(-rows // group_size), columns), np.uint8)
    for group, start in enumerate(range(0, rows, group_size)):
        block = codes[start : start + group_size].astype(np.int16)
        divisor, low, high = np.gcd.reduce(block, axis=0), block.min(axis=0), block.max(axis=0)
        for multiplier in range(largest_multiplier(bits), 0, -1):
            fits = (divisor % multiplier == 0) & (low >= -half * multiplier) & (high <= (half - 1) * multiplier)
            multipliers[group, fits] = multiplier
        numbers[start : start + group_size] = block // np.maximum(multipliers[group], 1)
    return numbers, multipliers


def fits_bits(codes: npt.NDArray[Any], bits: int) -> bool:
    """Whether all quantized values are signed numbers of `bits`."""
    half = 2 ** (bits - 1)
    return bool(codes.min(initial=0) >= -half and codes.max(initial=0) < half)
