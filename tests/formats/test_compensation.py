"""Error-compensated rounding.

What these would catch: a worse channel than plain rounding makes, codes outside their format, errors pushed into rows
in the wrong order or with the wrong sign, moments of few samples or of dead inputs that blow up, a narrow channel
that grows wide, results that depend on how channels are cut into blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rnnqc.formats.compensation as module
from rnnqc.formats.compensation import (
    Lattice,
    bias_correction,
    compensate,
    compensate_groups,
    compensate_matrix,
    shrunk,
    squared_error,
)
from rnnqc.formats.format import Format
from rnnqc.formats.packing import factorize
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import symmetric_scale
from rnnqc.formats.weights import (
    group_multipliers,
    group_scales,
    largest_magnitudes,
    mixed_scales,
    quantize_groups,
    quantize_matrix,
)

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]


def _weights(rows: int, columns: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng([seed, 1]).normal(0, 0.3, (rows, columns)).astype(np.float32)


def _inputs(count: int, rows: int, seed: int = 0) -> DoubleArray:
    """Correlated inputs with different strengths and a mean."""
    rng = np.random.default_rng([seed, 2])
    mixed = rng.normal(0, 1, (count, max(1, rows // 3))) @ rng.normal(0, 1, (max(1, rows // 3), rows))
    return np.asarray((mixed + 0.3 * rng.normal(0, 1, (count, rows)) + 0.5) * rng.uniform(0.1, 2, rows))


def _moment(x: DoubleArray) -> DoubleArray:
    return np.asarray(x.T @ x / len(x))


def _encoding(array: FloatArray, bits: int, *, per_channel: bool = True) -> Format:
    largest = largest_magnitudes(array) if per_channel else np.array([np.abs(array).max()])
    scale = symmetric_scale(largest, bits).astype(np.float32)
    return Format(bits, True, tuple(map(float, scale)), narrow=True, axis=1 if per_channel else None)


def _gain(array: FloatArray, encoding: Format, codes: npt.NDArray[np.int64], moment: DoubleArray) -> DoubleArray:
    """The reduction of the squared error compared with plain rounding, for each channel."""
    plain = encoding.dequantize(quantize_matrix(encoding, array)).astype(np.float64) - array
    error = encoding.dequantize(codes).astype(np.float64) - array
    return np.asarray(squared_error(plain, moment) / squared_error(error, moment))


def test_squared_error_is_that_of_the_products() -> None:
    x, error = _inputs(50, 7), _weights(7, 5)
    np.testing.assert_allclose(squared_error(error, _moment(x)), np.square(x @ error).mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_products_are_nearer_and_no_channel_is_worse(bits: int, per_channel: bool) -> None:
    array, moment = _weights(96, 40), _moment(_inputs(500, 96))
    encoding = _encoding(array, bits, per_channel=per_channel)
    codes = compensate_matrix(encoding, array, moment)
    assert codes.dtype == encoding.dtype
    assert codes.min() >= encoding.minimum and codes.max() <= encoding.maximum
    gain = _gain(array, encoding, codes, moment)
    assert gain.min() >= 1.0
    assert np.median(gain) > 2.0


def test_both_steps_do_their_part() -> None:
    """Rounding in order gains most; choosing codes again gains alone and on top."""
    array, moment = _weights(96, 40), _moment(_inputs(500, 96))
    encoding = _encoding(array, 4)
    plain, grid = quantize_matrix(encoding, array), Lattice.of_format(encoding, array.shape)
    in_order = _gain(array, encoding, compensate(array, plain, grid, moment, sweeps=0), moment)
    both = _gain(array, encoding, compensate(array, plain, grid, moment), moment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_orders", lambda _: [])
        again = _gain(array, encoding, compensate(array, plain, grid, moment), moment)
    assert np.median(in_order) > 8.0
    assert 2.0 < np.median(again) < np.median(in_order) < np.median(both)


def test_no_channel_is_worse_than_codes_that_are_not_the_nearest() -> None:
    """A smaller damped error can be a larger error on the data; a final comparison prevents that."""
    array, moment = _weights(6, 400), _moment(_inputs(100, 6))
    encoding = replace(_encoding(array, 3), rounding=Rounding.FLOOR)
    plain, grid = quantize_matrix(encoding, array), Lattice.of_format(encoding, array.shape)
    gain = _gain(array, encoding, compensate(array, plain, grid, moment, damping=1.0), moment)
    assert gain.min() >= 1.0
    assert (gain == 1.0).any() and (gain > 2.0).any()


def test_fresh_inputs_of_the_same_kind_gain_as_well() -> None:
    x = _inputs(4000, 64)
    array = _weights(64, 32)
    encoding = _encoding(array, 4)
    codes = compensate_matrix(encoding, array, _moment(x[:2000]))
    assert np.median(_gain(array, encoding, codes, _moment(x[2000:]))) > 2.0


def test_nearly_the_best_of_all_codes() -> None:
    """Five rows of two-bit codes can be tried out."""
    array, moment = _weights(5, 60), _moment(_inputs(100, 5))
    encoding = _encoding(array, 2)
    codes = compensate_matrix(encoding, array, moment)
    every = np.array(list(itertools.product((-1, 0, 1), repeat=5)), np.float64).T
    scale = np.asarray(encoding.scale)
    least = np.array([squared_error(every * scale[k] - array[:, k : k + 1], moment).min() for k in range(60)])
    reached = squared_error(encoding.dequantize(codes).astype(np.float64) - array, moment)
    plain = squared_error(encoding.dequantize(encoding.quantize(array)).astype(np.float64) - array, moment)
    assert np.isclose(reached, least, rtol=1e-5).mean() > 0.7
    assert np.isclose(plain, least, rtol=1e-5).mean() < 0.5


@pytest.mark.parametrize("zero_point", [3, 128, 200])
def test_zero_points(zero_point: int) -> None:
    array, moment = _weights(40, 10), _moment(_inputs(200, 40))
    encoding = Format(8, False, (0.01,), zero_point=zero_point)
    codes = compensate_matrix(encoding, array, moment)
    assert codes.dtype == np.uint8
    plain = squared_error(encoding.dequantize(encoding.quantize(array)).astype(np.float64) - array, moment)
    reached = squared_error(encoding.dequantize(codes).astype(np.float64) - array, moment)
    assert (reached <= plain).all() and reached.sum() < plain.sum()


def test_codes_of_one_bit() -> None:
    array, moment = _weights(30, 12), _moment(_inputs(200, 30))
    step = np.abs(array).mean(axis=0, keepdims=True).astype(np.float64)
    ones = np.ones_like(step)
    grid = Lattice(step, -ones, ones, 0 * ones, np.zeros(30, np.int64), np.array([2]))
    plain = np.where(array < 0, -1, 1)
    codes = compensate(array, plain, grid, moment)
    assert set(np.unique(codes)) == {-1, 1}
    assert (squared_error(codes * step - array, moment) <= squared_error(plain * step - array, moment)).all()
    assert (codes != plain).any()


def test_groups_keep_their_multipliers() -> None:
    array, moment = _weights(100, 24), _moment(_inputs(400, 100))
    scale = group_scales(array, 4)
    plain = quantize_groups(array, scale, 4, 32, Rounding.HALF_EVEN)
    codes = compensate_groups(array, scale, 4, 32, Rounding.HALF_EVEN, moment)
    multipliers = group_multipliers(array, scale, 4, 32, Rounding.HALF_EVEN)
    quotients, rest = np.divmod(codes.astype(int), multipliers[np.arange(100) // 32].astype(int))
    assert not rest.any() and np.abs(quotients).max() == 7
    assert factorize(codes, 32) is not None
    before, after = (squared_error(c * scale.astype(np.float64) - array, moment) for c in (plain, codes))
    assert (after <= before).all() and np.median(before / after) > 2.0


def test_channels_between_wide_ones_stay_narrow() -> None:
    array, moment = _weights(80, 20), _moment(_inputs(300, 80))
    narrow = _encoding(array, 4)
    scales = mixed_scales(array, narrow, 8, 0.25, np.ones(20))
    wide = scales != np.float32(narrow.scale)
    codes = compensate_matrix(Format(8, True, tuple(map(float, scales)), narrow=True, axis=1), array, moment, 4)
    largest = np.abs(codes.astype(int)).max(axis=0)
    assert wide.sum() == 5
    assert largest[~wide].max() <= 7 and largest[wide].min() > 100


@pytest.mark.parametrize("count", [1, 3])
def test_few_samples(count: int) -> None:
    """The moments are singular; errors that they do not determine must stay within a few times plain rounding."""
    x = _inputs(1000, 50)
    array = _weights(50, 20)
    encoding = _encoding(array, 4)
    codes = compensate_matrix(encoding, array, _moment(x[:count]))
    assert _gain(array, encoding, codes, _moment(x[:count]) + 1e-12 * np.eye(50)).min() >= 1.0
    error = encoding.dequantize(codes) - array
    assert np.abs(error / np.asarray(encoding.scale)).max() < 8


@pytest.mark.parametrize("rank", ["dead inputs", "equal inputs", "one input alone"])
def test_singular_moments(rank: str) -> None:
    x = _inputs(200, 30)
    if rank == "dead inputs":
        x[:, 5:25] = 0
    elif rank == "equal inputs":
        x[:, 10:] = x[:, 10:11]
    else:
        x[:, 1:] = 0
    array = _weights(30, 12)
    encoding = _encoding(array, 4)
    plain = quantize_matrix(encoding, array)
    codes = compensate_matrix(encoding, array, _moment(x))
    moment = _moment(x)
    before, after = (squared_error(encoding.dequantize(c).astype(np.float64) - array, moment) for c in (plain, codes))
    assert (after <= before).all()
    dead = ~x.any(axis=0)
    np.testing.assert_array_equal(codes[dead], plain[dead])


@pytest.mark.parametrize("factor", [0.0, np.nan, np.inf])
def test_moments_that_say_nothing_leave_plain_codes(factor: float) -> None:
    array = _weights(20, 6)
    encoding = _encoding(array, 4)
    moment = np.full((20, 20), factor)
    np.testing.assert_array_equal(compensate_matrix(encoding, array, moment), quantize_matrix(encoding, array))


def test_independent_inputs_leave_nothing_to_make_good() -> None:
    array = _weights(40, 10)
    encoding = _encoding(array, 8)
    codes = compensate_matrix(encoding, array, np.diag(np.linspace(1, 9, 40)))
    np.testing.assert_array_equal(codes, quantize_matrix(encoding, array))


@given(st.floats(2.0**-40, 2.0**40), st.integers(0, 3))
def test_a_factor_of_the_moments_changes_nothing(factor: float, seed: int) -> None:
    array, moment = _weights(12, 5, seed), _moment(_inputs(60, 12, seed))
    encoding = _encoding(array, 4)
    power = 2.0 ** round(np.log2(factor))
    np.testing.assert_array_equal(
        compensate_matrix(encoding, array, moment), compensate_matrix(encoding, array, power * moment)
    )


def test_blocks_of_channels_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    array, moment = _weights(70, 33), _moment(_inputs(300, 70))
    encoding = _encoding(array, 4)
    whole = compensate_matrix(encoding, array, moment)
    monkeypatch.setattr(module, "COLUMNS", 10)
    parts = compensate_matrix(encoding, array, moment)
    assert (whole == parts).mean() > 0.99  # a product of another shape may round a tie the other way
    np.testing.assert_array_equal(parts, compensate_matrix(encoding, array, moment))


def test_the_bias_takes_over_the_mean_of_the_error() -> None:
    x, array = _inputs(300, 20), _weights(20, 8)
    bias = np.linspace(-1, 1, 8)
    encoding = _encoding(array, 2)
    used = encoding.dequantize(encoding.quantize(array))
    corrected = bias + bias_correction(used - array, x.mean(axis=0))
    np.testing.assert_allclose((x @ used + corrected).mean(axis=0), (x @ array + bias).mean(axis=0), atol=1e-6)


def rows_with_a_mean(rng: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
    """60 channels that share a mean and nothing else."""
    return np.asarray(np.abs(rng.normal(size=(rows, 60))) * np.linspace(0.1, 3.0, 60))


def test_moments_of_few_rows_are_shrunk() -> None:
    """The products of other rows get better than by plain rounding, and much better than with moments as they are."""
    rng = np.random.default_rng(5)
    seen, others = rows_with_a_mean(rng, 40), rows_with_a_mean(rng, 5000)
    moment = seen.T @ seen / len(seen)
    made = shrunk(moment, seen.mean(axis=0), len(seen))
    array = rng.normal(size=(60, 30)).astype(np.float32)
    format_ = Format(4, True, narrow=True, axis=1, scale=tuple(symmetric_scale(np.abs(array).max(axis=0), 4)))
    codes = [quantize_matrix(format_, array), *(compensate_matrix(format_, array, g) for g in (moment, made))]
    true = others.T @ others / len(others)
    plain, as_given, better = (squared_error(format_.dequantize(c) - array, true).sum() for c in codes)
    assert better < 0.8 * plain
    assert better < 0.8 * as_given


def test_moments_of_many_rows_stay() -> None:
    """Real correlations stay; the diagonal never changes."""
    rng = np.random.default_rng(6)
    seen = rows_with_a_mean(rng, 20000) @ rng.normal(size=(60, 60))
    moment = seen.T @ seen / len(seen)
    made = shrunk(moment, seen.mean(axis=0), len(seen))
    np.testing.assert_array_equal(np.diagonal(made), np.diagonal(moment))
    np.testing.assert_allclose(made, moment, rtol=0.0, atol=0.01 * np.abs(moment).max())


def test_shrinking_a_dead_channel_and_one_row() -> None:
    """No division by zero: all correlations of a single row are removed."""
    x = np.array([[0.0, 2.0, -1.0]])
    np.testing.assert_array_equal(shrunk(x.T @ x, x[0], 1), x.T @ x)
    assert np.isfinite(shrunk(np.zeros((3, 3)), np.zeros(3), 7)).all()
