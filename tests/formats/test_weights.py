"""Codes of weight matrices with wide channels and with groups.

What these would catch: channels that keep 8 bits although others lose more, a multiplier that is not the best one, a
group that takes the multiplier of its neighbour, codes beyond 18 * 7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.format import Format
from rnnqc.formats.packing import factorize, largest_multiplier
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import symmetric_scale
from rnnqc.formats.weights import group_scales, largest_magnitudes, mixed_scales, quantize_groups, quantize_matrix

FloatArray = npt.NDArray[np.float32]


def _matrix(rows: int, columns: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    return (rng.normal(0, 1, (rows, columns)) * 2.0 ** rng.integers(-3, 4, (rows, columns))).astype(np.float32)


def _narrow(array: FloatArray, bits: int) -> Format:
    scales = symmetric_scale(largest_magnitudes(array), bits).astype(np.float32)
    return Format(bits, True, tuple(float(s) for s in scales), narrow=True, axis=1)


def test_matrices_are_quantized_block_by_block() -> None:
    array = _matrix(600, 3, 0)
    encoding = _narrow(array, 8)
    np.testing.assert_array_equal(quantize_matrix(encoding, array), encoding.quantize(array))


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.01, 1), (0.25, 5), (0.26, 6), (1.0, 20)])
def test_the_noisiest_channels_are_wide(fraction: float, count: int) -> None:
    array = _matrix(300, 20, 1)
    encoding = _narrow(array, 4)
    sensitivity = np.tile([1.0, 0.25], 10)
    scales = mixed_scales(array, encoding, 8, fraction, sensitivity)
    noise = sensitivity**2 * np.square(encoding.dequantize(encoding.quantize(array)).astype(np.float64) - array).sum(
        axis=0
    )
    wide = scales != np.float32(encoding.scale)
    assert wide.sum() == count
    assert count in (0, 20) or noise[wide].min() > noise[~wide].max()
    np.testing.assert_array_equal(scales[wide], np.float32(_narrow(array, 8).scale)[wide])
    mixed = Format(8, True, tuple(float(s) for s in scales), narrow=True, axis=1)
    largest = np.abs(quantize_matrix(mixed, array).astype(int)).max(axis=0)
    np.testing.assert_array_equal(largest, np.where(wide, 127, 7))


def test_equally_noisy_channels_are_taken_in_order() -> None:
    array = np.repeat(_matrix(10, 1, 2), 4, axis=1)
    encoding = _narrow(array, 4)
    scales = mixed_scales(array, encoding, 8, 0.5, np.ones(4))
    assert (scales != np.float32(encoding.scale)).tolist() == [True, True, False, False]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
@given(st.integers(1, 80), st.integers(0, 2**32 - 1))
def test_groups_take_the_best_multiplier(bits: int, rows: int, seed: int) -> None:
    array, size, top = _matrix(rows, 3, seed), 32, 2 ** (bits - 1) - 1
    scale = group_scales(array, bits)
    codes = quantize_groups(array, scale, bits, size, Rounding.HALF_EVEN)
    factors, most = factorize(codes, size, max(bits, 4)), largest_multiplier(bits)
    assert factors is not None
    assert np.abs(codes.astype(int)).max() <= most * top
    for start in range(0, rows, size):
        for column in range(3):
            units = array[start : start + size, column] / scale[column]
            errors = [
                np.square(np.clip(np.rint(units / np.float32(m)), -top, top) * m - units, dtype=np.float64).sum()
                for m in range(1, most + 1)
            ]
            found = np.square(codes[start : start + size, column] - units, dtype=np.float64).sum()
            assert found == pytest.approx(min(errors), rel=1e-6, abs=1e-9)


def test_group_scale_reaches_the_largest_weight() -> None:
    array = np.float32([[0.5, -2.0, 0.0], [0.5, 2.0, 0.0]])
    np.testing.assert_allclose(group_scales(array, 4)[:2], [0.5 / 126, 2.0 / 126], rtol=1e-6)
    assert group_scales(array, 4)[2] > 0
    codes = quantize_groups(array, group_scales(array, 4), 4, 32, Rounding.HALF_EVEN)
    assert codes[:, 2].tolist() == [0, 0]
    assert np.abs(codes[:, :2].astype(int)).max(axis=0).tolist() == [126, 126]


def test_groups_saturate_where_the_scale_is_given_too_small() -> None:
    array = np.float32([[0.5, -1e3], [-0.5, 1e-20]])
    codes = quantize_groups(array, np.float32([1e-30, 1e-30]), 4, 32, Rounding.HALF_EVEN)
    assert codes.tolist() == [[126, -126], [-126, 126]]
