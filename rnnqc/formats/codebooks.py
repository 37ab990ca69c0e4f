"""Codebooks of sixteen unevenly spaced integers for 4-bit weights: each group of rows has a codebook and a multiplier.

The nibble `v` stands for entry `v` of the codebook. Large weights are rare, so entries are closer together near 0; two
of the codebooks reach further to one side. Codebook 0, the even integers, gives the same quantized values as no
codebook. All products with multipliers are int8 values, so results of matmuls stay exact.

The byte of a group (`W_group_multiplier`) holds the codebook in its upper three bits and the multiplier in its lower
five.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rnnqc.formats.packing import factorize

UNEVEN = "uneven"
"""Name of the codebook in recipes."""
SETS: tuple[tuple[int, ...], ...] = (
    (-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7),
    (-15, -10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 4, 6, 8, 11, 15),
    (-10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10),
    (-9, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8),
    (-8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9),
)
"""The codebooks by number; entries ascend."""
SET_SHIFT = 5
MULTIPLIER_MASK = 2**SET_SHIFT - 1
LARGEST_UNIT = 120
"""The largest weight of a channel in units of its scale: most codebooks reach it with an integer multiplier."""


def _rows() -> Iterator[tuple[int, tuple[int, ...]]]:
    for number, values in enumerate(SETS):
        for multiplier in range(1, 127 // max(map(abs, values)) + 1):
            yield number << SET_SHIFT | multiplier, tuple(multiplier * v for v in values)


GROUP_BYTES: npt.NDArray[np.uint8] = np.array([byte for byte, _ in _rows()], np.uint8)
"""The group bytes of every codebook with every multiplier, `[S]`."""
VALUES: npt.NDArray[np.int8] = np.array([values for _, values in _rows()], np.int8)
"""The values of the sixteen nibbles for each of these bytes, `[S,16]`."""


def factors_of(
    codes: npt.NDArray[np.int8], group_size: int, bits: int, codebook: str | None
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint8]]:
    """Calls `factorize_codebooks`, or `factorize` without a codebook."""
    return factorize(codes, group_size, bits) if codebook is None else factorize_codebooks(codes, group_size)


def factorize_codebooks(
    codes: npt.NDArray[np.int8], group_size: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint8]]:
    """Splits quantized values into nibbles minus 8, `[K,n]`, and bytes of groups `[ceil(K / group_size),n]`.

    Returns:
        Both; of several possible bytes, the first in `GROUP_BYTES`; 0 if none fits.
    """
    places = np.full((len(VALUES), 256), -1, np.int8)
    places[np.arange(len(VALUES))[:, None], VALUES.astype(np.int64) + 128] = np.arange(16)
    numbers = np.zeros_like(codes)
    bytes_ = np.zeros((-(-len(codes) // group_size), codes.shape[1]), np.uint8)
    for group, start in enumerate(range(0, len(codes), group_size)):
        block = codes[start : start + group_size].astype(np.int64) + 128
        open_ = np.ones(codes.shape[1], np.bool_)
        for byte, place in zip(GROUP_BYTES, places, strict=True):
            found = place[block[:, open_]]
            fits = (found >= 0).all(axis=0)
            columns = np.flatnonzero(open_)[fits]
            numbers[start : start + group_size, columns] = found[:, fits] - 8
            bytes_[group, columns] = byte
            open_[columns] = False
    return numbers, bytes_
