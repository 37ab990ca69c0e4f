"""The comparators that passes declare.

What these would catch: a comparator that lets a NaN, another shape or another type pass, or counts the sign of zero.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.evaluation.numerics import Bitwise, Close, Lossy, Numerics, max_abs, sqnr_db

ONE = np.array([1.0, -2.0, 0.0], np.float32)
NAN, INF = np.float32("nan"), np.float32("inf")


def test_sqnr_by_hand() -> None:
    assert sqnr_db([3.0, 4.0], [3.0, 4.5]) == pytest.approx(20.0)
    assert sqnr_db([1.0], [1.0]) == math.inf
    assert sqnr_db([0.0, 0.0], [0.0, 0.0]) == math.inf
    assert sqnr_db([0.0], [1.0]) == -math.inf
    assert sqnr_db([], []) == math.inf
    assert sqnr_db([1.0, math.nan, 2.0], [1.0, 5.0, math.inf]) == math.inf, "only pairs of finite numbers count"


@given(st.lists(st.floats(-100, 100), min_size=1), st.floats(0.5, 100))
def test_sqnr_ignores_a_common_factor(values: list[float], factor: float) -> None:
    a = np.array(values)
    b = a + 0.25
    assert sqnr_db(a * factor, b * factor) == pytest.approx(sqnr_db(a, b), abs=1e-6)


def test_max_abs_by_hand() -> None:
    assert max_abs([1.0, -2.0], [1.5, -2.0]) == 0.5
    assert max_abs([], []) == 0.0
    assert max_abs([math.nan, math.inf], [math.nan, math.inf]) == 0.0
    for other in (0.0, math.inf, -math.inf):
        assert max_abs([math.nan], [other]) == math.inf
    assert max_abs([math.inf], [-math.inf]) == math.inf


@pytest.mark.parametrize("numerics", [Bitwise(), Close(1e-5), Lossy(20.0)])
def test_shape_and_type_always_count(numerics: Numerics) -> None:
    assert numerics.check(ONE, ONE.copy()).ok
    assert numerics.check(ONE, ONE[:2]).text == "shape [3] became [2]"
    assert not numerics.check(ONE, ONE[:2]).ok
    assert numerics.check(ONE, ONE.astype(np.float64)).text == "type float32 became float64"
    assert not numerics.check(ONE, ONE.astype(np.float64)).ok


@pytest.mark.parametrize("numerics", [Bitwise(), Close(1e-5), Lossy(20.0)])
def test_texts_are_compared(numerics: Numerics) -> None:
    words = np.array(["a", "b"], object)
    assert numerics.check(words, words.copy()).ok
    assert not numerics.check(words, np.array(["a", "c"], object)).ok


def test_bitwise() -> None:
    assert Bitwise().check(np.array([NAN, INF, 0.0]), np.array([NAN, INF, -0.0])).ok
    verdict = Bitwise().check(ONE, np.nextafter(ONE, INF))
    assert not verdict.ok
    assert "declared bit-exact" in verdict.text
    assert not Bitwise().check(np.array([NAN]), np.array([INF])).ok
    assert Bitwise().check(np.array([1, 2]), np.array([1, 2])).ok
    assert not Bitwise().check(np.array([True]), np.array([False])).ok


def test_close_is_relative_to_values_beyond_one() -> None:
    """Logits of 18 are held in steps of 1.9e-6: an absolute bound of 1e-6 refuses any rounding of them."""
    logits = np.array([0.25, -18.0, 3.0], np.float32)
    off = logits + np.array([0.0, 3.8e-6, 0.0], np.float32)
    assert (off != logits).any() and Close(1e-6).check(logits, off).ok
    assert not Close(1e-6).check(logits, logits + np.array([0, 3.8e-5, 0], np.float32)).ok
    small = logits / 100
    assert not Close(1e-6).check(small, small + np.float32(3.8e-6)).ok, "below 1 the bound is absolute"
    assert not Close(1e-6).check(np.array([NAN, 5.0]), np.array([NAN, 5.1])).ok, "NaN and infinities are no magnitude"
    whole = np.array([3_000_000, 7])
    assert not Close(1e-6).check(whole, whole + 1).ok, "indices do not round"


def test_close() -> None:
    small = ONE / 2
    assert Close(0.5).check(small, small + np.float32(0.5)).ok
    verdict = Close(0.5).check(small, small + np.float32(0.625))
    assert (verdict.ok, verdict.text) == (False, "max abs difference 0.625, declared 0.5")
    assert not Close(0.5).check(np.array([NAN]), np.array([np.float32(0)])).ok


def test_lossy() -> None:
    noisy = ONE + np.array([0.1, 0.0, 0.0], np.float32)
    assert Lossy(20.0).check(ONE, noisy).ok
    verdict = Lossy(30.0).check(ONE, noisy)
    assert (verdict.ok, verdict.text) == (False, "SQNR 27.0 dB, at least 30 dB declared")


def test_lossy_does_not_overlook_new_nan() -> None:
    assert not Lossy(20.0).check(ONE, np.array([1.0, NAN, 0.0], np.float32)).ok
    assert not Lossy(20.0).check(ONE, np.full(3, NAN)).ok


def test_how_they_describe_themselves() -> None:
    assert [str(n) for n in (Bitwise(), Close(1e-5), Lossy(20.0))] == [
        "bit-exact",
        "max abs difference 1e-05 of the magnitude",
        "at least 20 dB SQNR",
    ]
