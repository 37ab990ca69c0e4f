"""Fix positions: the search for the least squared error, and the mode over its calls.

What these would catch: a search from another first candidate, the last of equal minima, a range of codes without its
half-code margins, ties in the histories that depend on the order of calls.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.calibration.call_fix_positions import fix_positions_of_calls
from rnnqc.errors import CompileError
from rnnqc.formats.fix_position import fix_position, mode_of, position_of, scale_of
from rnnqc.formats.rounding import RECIPE_ROUNDINGS, Rounding, round_to_integer
from tests.native.exact_rounding import exact_round


def _slow(values: list[float], bits: int, candidates: int, rounding: Rounding) -> int:
    """The search, one number after the other in exact fractions."""
    x = [Fraction(v) for v in values]
    half = 2 ** (bits - 1)
    step = max(min(x) / (-half - Fraction(1, 2)), max(x) / (half - Fraction(1, 2)))
    if step == 0:
        return 0
    first = math.floor(-math.log2(step)) - 2
    while Fraction(2) ** (first + 1) <= 1 / step:
        first += 1
    best, least = first, None
    for position in range(first, first + candidates):
        error = Fraction(0)
        for v in x:
            code = max(-half, min(half - 1, exact_round(v * Fraction(2) ** position, rounding)))
            error += (v - code / Fraction(2) ** position) ** 2
        if least is None or error < least:
            best, least = position, error
    return best


_VALUES = st.lists(st.integers(-(2**14), 2**14).map(lambda v: v / 2.0**9), min_size=1, max_size=12)


@given(_VALUES, st.sampled_from([2, 3, 4, 8, 12, 16]), st.integers(1, 6), st.sampled_from(RECIPE_ROUNDINGS))
def test_is_the_exhaustive_search(values: list[float], bits: int, candidates: int, rounding: Rounding) -> None:
    """Few significant bits: the sums are exact in float64, and equal errors are equal."""
    assert fix_position(values, bits, candidates, rounding=rounding) == _slow(values, bits, candidates, rounding)


@pytest.mark.few(11)
@pytest.mark.parametrize("rounding", RECIPE_ROUNDINGS)
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_random_tensors(bits: int, rounding: Rounding) -> None:
    rng = np.random.default_rng(bits)
    for spread in (1e-3, 0.3, 1.0, 50.0):
        values = (rng.standard_normal((5, 8)) * spread).astype(np.float32)
        assert fix_position(values, bits, rounding=rounding) == _slow(values.ravel().tolist(), bits, 5, rounding)


@given(st.lists(_VALUES, min_size=1, max_size=4), st.integers(1, 6))
def test_many_calls_at_once_are_as_one_by_one(calls: list[list[float]], candidates: int) -> None:
    """Calibration searches for many rows at once; shorter ones end in zeros."""
    rows = np.zeros((len(calls), max(map(len, calls))), np.float32)
    for row, values in zip(rows, calls, strict=True):
        row[: len(values)] = values
    for bits, found in fix_positions_of_calls(rows, (4, 8, 16), candidates).items():
        assert found["max"].tolist() == [fix_position(row, bits, 1) for row in rows]
        assert found["mse"].tolist() == [fix_position(row, bits, candidates) for row in rows]
        floor = [fix_position(row, bits, candidates, rounding=Rounding.FLOOR) for row in rows]
        assert found["mse-floor"].tolist() == floor


def test_first_candidate_has_half_a_code_of_margin() -> None:
    assert fix_position([127.5], 8, 1) == 0
    assert fix_position([np.nextafter(127.5, 200.0)], 8, 1) == -1
    assert fix_position([-128.5], 8, 1) == 0
    assert fix_position([np.nextafter(-128.5, -200.0)], 8, 1) == -1
    assert fix_position([2.0**-5], 8, 1) == 11


def test_the_first_of_equal_minima_counts() -> None:
    assert fix_position([1.0], 8) == fix_position([1.0], 8, 1) == 6


def test_one_outlier_saturates() -> None:
    """Clipping the outlier by half costs less than a coarser scale for a thousand other values."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.uniform(-0.05, 0.05, 2000), [1.02]])
    assert fix_position(values, 4, 1) == 2
    assert fix_position(values, 4) > 2
    assert fix_position(values, 4) == _slow(values.tolist(), 4, 5, Rounding.HALF_AWAY)


@pytest.mark.parametrize("shape", [(1,), (3, 4)])
def test_zeros(shape: tuple[int, ...]) -> None:
    assert fix_position(np.zeros(shape), 8) == 0
    assert fix_position(np.zeros(shape), 8, largest=-2) == -2


def test_cap() -> None:
    values = [2.0**-20]
    assert fix_position(values, 8) == 26
    assert fix_position(values, 8, largest=12) == 12
    assert fix_position([100.0], 8, largest=12) == 0


def test_extreme_magnitudes() -> None:
    assert fix_position([1e-300], 8, 1) == _slow([1e-300], 8, 1, Rounding.HALF_AWAY)
    assert fix_position([1e300], 8) == _slow([1e300], 8, 5, Rounding.HALF_AWAY)
    assert fix_position([1e-300, 3.3e-301], 8) == _slow([1e-300, 3.3e-301], 8, 5, Rounding.HALF_AWAY)


@pytest.mark.parametrize(
    ("values", "bits", "candidates", "message"),
    [
        ([], 8, 5, "finite numbers"),
        ([1.0, math.nan], 8, 5, "finite numbers"),
        ([math.inf], 8, 5, "finite numbers"),
        ([1.0], 1, 5, "bits = 1"),
        ([1.0], 8, 0, "candidates = 0"),
    ],
)
def test_refused(values: list[float], bits: int, candidates: int, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        fix_position(values, bits, candidates)


def test_mode() -> None:
    assert mode_of({7: 1}) == 7
    assert mode_of({7: 3, 6: 4, 9: 1}) == 6
    assert mode_of({9: 2, 5: 2, 7: 2, 4: 1}) == 5
    assert mode_of({5: 0, 6: 1}) == 6
    with pytest.raises(CompileError, match="No fix position"):
        mode_of({})
    with pytest.raises(CompileError, match="No fix position"):
        mode_of({3: 0})


def test_mode_does_not_depend_on_the_order() -> None:
    items = [(3, 2), (1, 2), (2, 1)]
    assert {mode_of(dict(order)) for order in itertools.permutations(items)} == {1}


VITIS: dict[int, dict[float, int]] = {
    2: {-2.5: -2, -1.5: -1, -0.5: 0, 0.5: 1, 1.5: 2, 2.5: 3},
    3: {-2.5: -3, -1.5: -2, -0.5: -1, 0.5: 1, 1.5: 2, 2.5: 3},
    4: {-2.5: -3, -1.5: -2, -0.5: -1, 0.5: 0, 1.5: 1, 2.5: 2},
    5: {-2.5: -2, -1.5: -1, -0.5: 0, 0.5: 0, 1.5: 2, 2.5: 2},
    7: {-2.5: -2, -1.5: -1, -0.5: 0, 0.5: 1, 1.5: 2, 2.5: 3},
    8: {-2.5: -2, -1.5: -2, -0.5: 0, 0.5: 0, 1.5: 2, 2.5: 2},
}


VITIS_ROUNDINGS = {
    2: Rounding.HALF_UP, 3: Rounding.HALF_AWAY, 4: Rounding.FLOOR,
    5: Rounding.HALF_EVEN_UP, 7: Rounding.CEIL, 8: Rounding.HALF_EVEN,
}  # fmt: skip
"""By Vitis' number of the method: 2 features of CNNs, 3 weights and biases, 4 features of RNNs."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", list(VITIS))
def test_roundings_of_vitis(method: int, dtype: Any) -> None:
    codes = round_to_integer(np.array(list(VITIS[method]), dtype), VITIS_ROUNDINGS[method])
    assert codes.tolist() == list(VITIS[method].values())


def test_scale() -> None:
    assert [scale_of(p) for p in (-3, 0, 7, 15)] == [8.0, 1.0, 2.0**-7, 2.0**-15]
    assert [position_of(s) for s in (8.0, 1.0, 2.0**-7, 2.0**-15)] == [-3, 0, 7, 15]
