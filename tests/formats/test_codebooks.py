"""Sets of sixteen values for 4-bit weights in groups.

What these would catch: a set that is not rising or whose products leave int8, bytes of groups with the parts in the
other order, values that are no longer the nearest ones, a group that is worse than with even values, compensation that
leaves the sets.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.codebooks import GROUP_BYTES, SETS, VALUES, factorize_codebooks
from rnnqc.formats.compensation import Codebooks, compensate, compensate_codebooks, squared_error
from rnnqc.formats.packing import pack
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.weights import group_scales, quantize_codebooks, quantize_groups
from rnnqc.reference.codes import weight_codes


def test_sets_rise_hold_zero_and_have_int8_products() -> None:
    sets = np.array(SETS)
    assert sets.shape[1] == 16
    assert (np.diff(sets, axis=1) > 0).all()
    assert (sets == 0).any(axis=1).all()
    assert len(set(GROUP_BYTES.tolist())) == len(GROUP_BYTES) == len(VALUES)
    np.testing.assert_array_equal(VALUES, sets[GROUP_BYTES >> 5] * (GROUP_BYTES & 31)[:, None].astype(int))


def test_bytes_by_hand() -> None:
    """The set in the upper three bits, the multiplier in the others; the even set where it does."""
    codes = np.zeros((33, 3), np.int8)
    codes[:3] = [[15, 30, 7], [-10, -20, -1], [11, 22, 0]]
    codes[32] = [-8, 18, 127]
    assert factorize_codebooks(codes, 32)[1].tolist()[1] == [1, 3, 0], "127 is a prime"
    codes[32, 2] = 11
    found = factorize_codebooks(codes, 32)
    numbers, groups = found
    assert groups.tolist() == [[1 << 5 | 1, 1 << 5 | 2, 1], [1, 3, 11]]
    assert numbers[[0, 1, 2, 32]].tolist() == [[7, 7, 7], [-7, -7, -1], [6, 6, 0], [-8, 6, 1]]


@given(st.integers(1, 100), st.integers(1, 9), st.sampled_from([32, 64]), st.integers(0, 2**32 - 1))
def test_a_file_gives_the_values(rows: int, columns: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(VALUES), (-(-rows // size), columns))
    codes = np.take_along_axis(VALUES[chosen[np.arange(rows) // size]], rng.integers(0, 16, (rows, columns, 1)), 2)[
        ..., 0
    ]
    found = factorize_codebooks(codes, size)
    unpacked = weight_codes(pack(found[0]), found[1], size, columns, codebook=1)
    np.testing.assert_array_equal(unpacked, codes)


@pytest.mark.parametrize(
    ("groups", "codebook", "message"), [(5 << 5 | 1, 1, "set 5"), (1, 2, "codebook 2"), (32, 1, "multiplier")]
)
def test_reference_refuses_what_there_is_not(groups: int, codebook: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weight_codes(np.full((32, 1), 0x88, np.uint8), np.full((1, 2), groups, np.uint8), 32, codebook=codebook)


def test_each_group_takes_what_suits_it() -> None:
    """Every value of every set is found again, and values between them become the nearest ones."""
    scale = np.float32(0.5)
    for k, values in enumerate(VALUES):
        array = np.repeat(values, 2)[:, None].astype(np.float32) * scale
        codes, chosen = quantize_codebooks(array, scale, 32)
        np.testing.assert_array_equal(codes[:, 0], np.repeat(values, 2))
        assert (np.sort(VALUES[chosen[0, 0]]) == values).all() or k > chosen[0, 0]
    rng = np.random.default_rng(3)
    array = rng.normal(0, 1, (70, 5)).astype(np.float32)
    scale = group_scales(array, 4, "uneven")
    codes, chosen = quantize_codebooks(array, scale, 32)
    units, own = array / scale, VALUES[chosen[np.arange(70) // 32]]
    nearest = np.abs(units[..., None] - own).min(axis=2)
    np.testing.assert_allclose(np.abs(units - codes), nearest, atol=1e-5)
    assert np.abs(codes).max() == 120


def test_less_noise_than_even_values() -> None:
    rng = np.random.default_rng(1)
    array = rng.normal(0, 1, (256, 40)).astype(np.float32)
    even = group_scales(array, 4)
    noise = {
        "even": quantize_groups(array, even, 4, 32, Rounding.HALF_EVEN) * even - array,
        "uneven": quantize_codebooks(array, uneven := group_scales(array, 4, "uneven"), 32)[0] * uneven - array,
    }
    level = {k: 10 * np.log10(np.mean(np.square(v))) for k, v in noise.items()}
    assert level["even"] - level["uneven"] > 1.5, level


def test_compensation_keeps_to_the_sets_and_is_better() -> None:
    rng = np.random.default_rng(2)
    array = rng.normal(0, 1, (96, 30)).astype(np.float32)
    x = rng.normal(0, 1, (400, 8)) @ rng.normal(0, 1, (8, 96)) + 0.1 * rng.normal(0, 1, (400, 96))
    moment, scale = x.T @ x / len(x), group_scales(array, 4, "uneven")
    plain = quantize_codebooks(array, scale, 32)[0]
    codes = compensate_codebooks(array, scale, 32, moment)
    assert factorize_codebooks(codes, 32)[1].all()
    before, after = (squared_error(c * scale - array, moment) for c in (plain, codes))
    assert (after <= before).all()
    assert after.sum() < before.sum() / 4


def test_channels_of_zeros_and_of_tiny_weights() -> None:
    array = np.zeros((40, 3), np.float32)
    array[:, 1] = 1e-42
    scale = group_scales(array, 4, "uneven")
    assert (scale > 1e-35).all()
    np.testing.assert_array_equal(quantize_codebooks(array, scale, 32)[0], 0)


def test_groups_choose_again_what_the_others_leave_them() -> None:
    """Less error than with the sets that suit the weights; in no channel more."""
    rng = np.random.default_rng(4)
    array = rng.normal(0, 1, (96, 200)).astype(np.float32)
    x = rng.normal(0, 1, (400, 8)) @ rng.normal(0, 1, (8, 96)) + 0.3 * rng.normal(0, 1, (400, 96))
    moment, scale = x.T @ x / len(x), group_scales(array, 4, "uneven")
    plain, chosen = quantize_codebooks(array, scale, 32)
    sets = Codebooks(scale.astype(np.float64), VALUES[chosen].astype(np.float64), np.arange(96) // 32)
    once = compensate(array, plain, sets, moment)
    codes = compensate_codebooks(array, scale, 32, moment)
    before, after = (squared_error(c * scale.astype(np.float64) - array, moment) for c in (once, codes))
    assert (after <= before * (1 + 1e-12)).all()
    assert 10 * np.log10(before.sum() / after.sum()) > 0.1
    assert factorize_codebooks(codes, 32)[1].all()
