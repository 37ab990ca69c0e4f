"""Int4 weights: quantized values packed two to a byte, and groups that share a whole multiplier.

A weight matrix `[K,2n]` becomes uint8 `[K,n]`: byte `(k,j)` holds column `j` in its low nibble and column `j + n` in
its high one; a nibble `v` stands for `v - 8`. With an odd number of columns a column of zeros makes it even. With
groups of `size` rows a quantized value is its nibble times the multiplier of its group and column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CodeArray = npt.NDArray[np.int8]
ByteArray = npt.NDArray[np.uint8]

LARGEST_MULTIPLIER = 18
"""18 * 7 = 126 is the largest multiple of the 4-bit value 7 that is an int8 value."""
GROUP_UNIT = 32
"""Group sizes are multiples of this."""


def pack(nibbles: npt.NDArray[Any]) -> ByteArray:
    """Bytes `[K,n]` of quantized values -8 .. 7 `[K,2n]` or `[K,2n-1]`."""
    even = np.pad(nibbles, ((0, 0), (0, nibbles.shape[1] % 2)))
    raised = (even.astype(np.int16) + 8).astype(np.uint8)
    low, high = np.split(raised, 2, axis=1)
    return np.ascontiguousarray(low | high << 4)


def factorize(codes: CodeArray, group_size: int) -> tuple[CodeArray, ByteArray] | None:
    """Quantized values as 4-bit ones times multipliers.

    Args:
        codes: `[K,n]`.
        group_size: Rows that share a multiplier.

    Returns:
        Nibbles -8 .. 7 int8 `[K,n]` and multipliers `[ceil(K / group_size),n]`, the smallest that do; None if there
        are none up to 18.
    """
    rows, columns = codes.shape
    nibbles = np.empty_like(codes)
    multipliers = np.zeros((-(-rows // group_size), columns), np.uint8)
    for group, start in enumerate(range(0, rows, group_size)):
        block = codes[start : start + group_size].astype(np.int16)
        divisor, low, high = np.gcd.reduce(block, axis=0), block.min(axis=0), block.max(axis=0)
        for multiplier in range(LARGEST_MULTIPLIER, 0, -1):
            fits = (divisor % multiplier == 0) & (low >= -8 * multiplier) & (high <= 7 * multiplier)
            multipliers[group, fits] = multiplier
        if not multipliers[group].all():
            return None
        nibbles[start : start + group_size] = block // multipliers[group]
    return nibbles, multipliers
