"""Scales of weight matrices.

What these would catch: a group of columns that gets another's scale, a search that is worse than no search or that
misses the least, one that depends on how the matrix is cut into blocks.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.errors import UsageError
from rnnqc.formats.fix_position import fix_position
from rnnqc.formats.format import Format
from rnnqc.formats.format_request import FormatRequest
from rnnqc.formats.weight_scales import GRANULARITIES, WEIGHT_RULES, WeightRule, fit_weights

FloatArray = npt.NDArray[np.float32]
COLUMNS = 24
GATES = 4
NARROW8, NARROW4 = FormatRequest(8, narrow=True), FormatRequest(4, narrow=True)


def _weights(rows: int = 300) -> FloatArray:
    rng = np.random.default_rng(2)
    array = rng.laplace(size=(rows, COLUMNS)) * np.geomspace(0.01, 1.0, COLUMNS)
    array[:, 5] = 0.0
    array[3, 7] = 40.0
    return array.astype(np.float32)


WEIGHTS = _weights()


def _groups(granularity: str) -> list[list[int]]:
    size = {"per-channel": 1, "per-gate": COLUMNS // 4, "per-tensor": COLUMNS}[granularity]
    return [list(range(k, k + size)) for k in range(0, COLUMNS, size)]


def _errors(
    array: FloatArray, format_: FormatRequest, scale: FloatArray, zero_point: npt.NDArray[np.int64]
) -> list[float]:
    """The sum of squared errors of each column."""
    scale, zero_point = np.broadcast_to(scale, array.shape[1]), np.broadcast_to(zero_point, array.shape[1])
    errors = []
    for k in range(array.shape[1]):
        encoding = Format(
            format_.bits, format_.signed, (float(scale[k]),), zero_point=int(zero_point[k]), narrow=format_.narrow
        )
        error = encoding.dequantize(encoding.quantize(array[:, k])) - array[:, k]
        errors.append(float(np.square(error, dtype=np.float64).sum()))
    return errors


def _rule(name: str, granularity: str) -> WeightRule:
    return WeightRule(name, granularity, 99.0 if name == "percentile" else None, gates=GATES)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("rule", list(WEIGHT_RULES))
def test_a_group_is_a_matrix_of_its_own(rule: str, granularity: str) -> None:
    format_ = FormatRequest(2, narrow=True) if rule == "mean" else NARROW4
    scale, zero_point = fit_weights(WEIGHTS, _rule(rule, granularity), format_)
    assert (scale.dtype, zero_point.dtype) == (np.float32, np.int64)
    assert scale.shape == zero_point.shape == ((1,) if granularity == "per-tensor" else (COLUMNS,))
    assert not zero_point.any()
    assert (scale > 0).all()
    for columns in _groups(granularity):
        alone, _ = fit_weights(WEIGHTS[:, columns], _rule(rule, "per-tensor"), format_)
        assert set(np.broadcast_to(scale, COLUMNS)[columns].tolist()) == {alone[0]}
    distinct = {"per-channel": COLUMNS, "per-gate": 4, "per-tensor": 1}[granularity]
    assert len(set(scale.tolist())) <= distinct
    if not rule.startswith("pow2"):
        assert len(set(scale.tolist())) == distinct


def test_min_max_is_the_largest_magnitude() -> None:
    scale, _ = fit_weights(WEIGHTS, WeightRule(), NARROW8)
    expected = np.abs(WEIGHTS).max(axis=0).astype(np.float64) / 127
    expected[5] = 1.0
    np.testing.assert_array_equal(scale, expected.astype(np.float32))


def test_as_brevitas() -> None:
    """Brevitas 0.11.0, Int8WeightPerTensorFloat of these weights has the scale max|w| / 127."""
    array = np.random.default_rng(4).standard_normal((20, 12)).astype(np.float32)
    scale, _ = fit_weights(array, WeightRule(granularity="per-tensor"), NARROW8)
    assert scale[0] == np.float32(np.abs(array).max() / np.float32(127))


@pytest.mark.few(12)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(
    "format_",
    [
        FormatRequest(1),
        FormatRequest(2, narrow=True),
        FormatRequest(3),
        NARROW4,
        NARROW8,
        FormatRequest(4, symmetric=False),
        FormatRequest(4, symmetric=False, signed=False),
        FormatRequest(4, pow2=True),
    ],
)
def test_least_squares_is_no_worse(format_: FormatRequest, granularity: str) -> None:
    plain = _errors(WEIGHTS, format_, *fit_weights(WEIGHTS, WeightRule("min-max", granularity, gates=GATES), format_))
    best = _errors(WEIGHTS, format_, *fit_weights(WEIGHTS, WeightRule("mse", granularity, gates=GATES), format_))
    for columns in _groups(granularity):
        before, after = (sum(errors[k] for k in columns) for errors in (plain, best))
        assert after <= before * (1 + 1e-5)
    # Ternary codes of all columns serve one outlier or the rest: there, no search is the best.
    assert sum(best) < sum(plain) or (format_.bits, granularity) == (2, "per-tensor")


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", [4, 1, 2, 3, 8])
def test_least_squares_is_the_least(bits: int) -> None:
    """Against 1000 scales for each column."""
    format_ = FormatRequest(bits, narrow=bits > 1)
    array = WEIGHTS[:, [0, 7, 9, 23]]
    found = _errors(array, format_, *fit_weights(array, WeightRule("mse"), format_))
    for k, error in enumerate(found):
        bound = float(np.abs(array[:, k]).max())
        column = array[:, [k]]
        scales = [format_.fit_one(-b, b)[0] for b in np.linspace(bound / 200, bound * 1.1, 1000)]
        least = min(_errors(column, format_, np.float32([s]), np.zeros(1, np.int64))[0] for s in scales)
        assert error <= least * (1.03 if k == 1 else 1.01)


def test_four_bits_gain_a_decibel() -> None:
    """The search for scales gains a decibel with four bits."""
    array = np.random.default_rng(0).standard_normal((512, COLUMNS)).astype(np.float32)
    noise = [
        sum(_errors(array, NARROW4, *fit_weights(array, WeightRule(rule), NARROW4))) for rule in ("min-max", "mse")
    ]
    assert 10 * math.log10(noise[0] / noise[1]) > 1.0


def test_binary_scale_is_the_mean() -> None:
    """The optimum of two values, as in XNOR-Net."""
    expected = np.abs(WEIGHTS).mean(axis=0, dtype=np.float64)
    expected[5] = 1.0
    for rule in ("mean", "mse"):
        scale, _ = fit_weights(WEIGHTS, WeightRule(rule), FormatRequest(1))
        kept = [k for k in range(COLUMNS) if k != 5]
        assert scale[kept] == pytest.approx(expected[kept], rel=1e-6)


def test_blocks_do_not_matter() -> None:
    """More rows than a block has: the rows in another order give the same scales."""
    array = _weights(1000)
    scale, _ = fit_weights(array, WeightRule("mse"), NARROW8)
    turned, _ = fit_weights(array[::-1].copy(), WeightRule("mse"), NARROW8)
    same = [bool(a == b) for a, b in zip(scale, turned, strict=True)]
    assert sum(same) >= COLUMNS - 1


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fix_positions(granularity: str) -> None:
    for rule, candidates in (("pow2-mse", 5), ("pow2-max", 1)):
        for cap in (None, 6):
            format_ = FormatRequest(8, max_fix_position=cap)
            scale, _ = fit_weights(WEIGHTS, WeightRule(rule, granularity, gates=GATES), format_)
            expected = [fix_position(WEIGHTS[:, c], 8, candidates, largest=cap) for c in _groups(granularity)]
            found = np.broadcast_to(scale, COLUMNS)[[c[0] for c in _groups(granularity)]]
            assert found.tolist() == [2.0**-p for p in expected]


def test_percentile() -> None:
    scale, _ = fit_weights(WEIGHTS, WeightRule("percentile", percentile=99.0), FormatRequest(8))
    expected = np.sort(np.abs(WEIGHTS), axis=0)[296].astype(np.float64) / 127
    expected[5] = 1.0
    np.testing.assert_array_equal(scale, expected.astype(np.float32))
    whole, _ = fit_weights(WEIGHTS, WeightRule("percentile", percentile=100.0), NARROW8)
    np.testing.assert_array_equal(whole, fit_weights(WEIGHTS, WeightRule(), NARROW8)[0])


def test_limit() -> None:
    scale, _ = fit_weights(WEIGHTS, WeightRule(limit=0.5), NARROW8)
    bound = np.minimum(np.abs(WEIGHTS).max(axis=0).astype(np.float64), 0.5)
    bound[5] = 127.0
    np.testing.assert_array_equal(scale, (bound / 127).astype(np.float32))


def test_asymmetric() -> None:
    array = (np.random.default_rng(1).random((50, 4)) * [1.0, 2.0, 3.0, 4.0] - [0.2, 0.0, 3.0, 1.0]).astype(np.float32)
    for granularity, name in itertools.product(GRANULARITIES, ("min-max", "mse", "percentile")):
        format_ = FormatRequest(8, symmetric=False)
        scale, zero_point = fit_weights(array, _rule(name, granularity), format_)
        if name == "min-max" and granularity == "per-channel":
            expected = [format_.fit_one(float(array[:, k].min()), float(array[:, k].max())) for k in range(4)]
            assert list(zip(scale.tolist(), zero_point.tolist(), strict=True)) == expected
        assert (np.abs(zero_point) <= 128).all()


def test_shared_by_two_matrices() -> None:
    other = WEIGHTS[:40] * np.float32(3.0)
    scale, _ = fit_weights(np.concatenate([WEIGHTS, other]), WeightRule("min-max", "per-gate", gates=GATES), NARROW8)
    both = [fit_weights(m, WeightRule("min-max", "per-gate", gates=GATES), NARROW8)[0] for m in (WEIGHTS, other)]
    np.testing.assert_array_equal(scale, np.maximum(*both))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "average"}, "range = 'average' of weights.*min-max, mse, percentile, mean, pow2-mse, pow2-max"),
        ({"granularity": "per-row"}, "granularity = 'per-row'.*per-channel, per-gate, per-tensor"),
        ({"name": "percentile"}, "with percentile = None"),
        ({"name": "percentile", "percentile": 0.0}, "percentile = 0.0"),
        ({"limit": -1.0}, "limit = -1.0 of weights"),
    ],
)
def test_refused_rules(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WeightRule(**arguments)


@pytest.mark.parametrize(
    ("array", "rule", "format_", "message"),
    [
        (np.full((2, 4), np.nan), WeightRule(), NARROW8, "no matrix of finite numbers"),
        (np.zeros((0, 4)), WeightRule(), NARROW8, r"shape \[0, 4\]"),
        (np.zeros(4), WeightRule(), NARROW8, r"shape \[4\]"),
        (np.zeros((2, 6)), WeightRule(granularity="per-gate", gates=GATES), NARROW8, "per-gate of 6 output channels"),
        (np.ones((2, 4)), WeightRule("mean"), NARROW4, "'mean' of weights with bits = 4"),
        (np.ones((2, 4)), WeightRule("pow2-mse"), FormatRequest(8, symmetric=False), "symmetric = false"),
    ],
)
def test_refused(array: FloatArray, rule: WeightRule, format_: FormatRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_weights(array.astype(np.float32), rule, format_)
