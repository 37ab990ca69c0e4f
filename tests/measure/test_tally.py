"""Figures of two series of outputs.

What these would catch: steps of different sequences mixed up, a stream whose steps start anew with every call, an
infinity that is passed over, a grid that is none, error that grows and is not seen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.evaluation.numerics import max_abs, sqnr_db
from rnnqc.measure.differences import grid_step
from rnnqc.measure.tally import OutputTally

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)


def noisy(shape: tuple[int, ...], level: float | Array = 0.1) -> tuple[Array, Array]:
    x = RNG.normal(size=shape).astype(np.float32)
    return x, (x + level * RNG.normal(size=shape)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_step_is_what_its_values_are(axis: int) -> None:
    tally = OutputTally("y", axis, False)
    lengths = (5, 3, 7)
    pairs = [noisy(tuple(n if a == axis else 2 + a for a in range(3))) for n in lengths]
    for x, y in pairs:
        tally.add(x, y)
    result = tally.result()
    steps = result.steps
    assert steps is not None and (steps.unit, steps.axis) == ("time step", axis)
    assert len(steps.sqnr_db) == 7
    for t in range(7):
        there = [(x.take(t, axis), y.take(t, axis)) for x, y in pairs if x.shape[axis] > t]
        a, b = (np.concatenate([p[k].ravel() for p in there]).astype(np.float64) for k in (0, 1))
        assert steps.sqnr_db[t] == pytest.approx(sqnr_db(a, b))
        assert steps.max_abs[t] == max_abs(a, b)
        assert steps.cosine[t] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        assert steps.equal[t] == np.mean(a == b)
    a, b = (np.concatenate([p[k].ravel() for p in pairs]) for k in (0, 1))
    assert result.sqnr_db == pytest.approx(sqnr_db(a, b)) and result.max_abs == max_abs(a, b)
    assert result.values == a.size and not result.same_bits


def test_a_stream_goes_on_and_a_new_one_starts() -> None:
    tally = OutputTally("y", 0, True)
    pieces = [noisy((n, 2)) for n in (3, 2, 4, 1)]
    for (x, y), restart in zip(pieces, (True, False, True, False), strict=True):
        tally.add(x, y, restart)
    steps = tally.result().steps
    assert steps is not None and len(steps.sqnr_db) == 5
    first, second = (np.concatenate([pieces[k][0][:, 0], pieces[k + 1][0][:, 0]]) for k in (0, 2))
    assert len(first) == len(second) == 5
    last = [np.concatenate([pieces[1][k][1], pieces[3][k][0]]) for k in (0, 1)]
    assert steps.sqnr_db[4] == pytest.approx(sqnr_db(*last))


def test_calls_of_a_stream_are_steps_where_there_is_no_axis() -> None:
    tally = OutputTally("h", None, True)
    pairs = [noisy((2, 3)) for _ in range(9)]
    for k, (x, y) in enumerate(pairs):
        tally.add(x, y, k == 0)
    steps = tally.result().steps
    assert steps is not None and steps.unit == "call"
    assert steps.sqnr_db == pytest.approx([sqnr_db(x, y) for x, y in pairs])
    assert steps.worst == int(np.argmin([sqnr_db(x, y) for x, y in pairs]))


def test_independent_calls_without_an_axis_have_no_steps() -> None:
    tally = OutputTally("h", None, False)
    tally.add(*noisy((2, 3)))
    tally.add(*noisy((2, 3)))
    assert tally.result().steps is None


@pytest.mark.parametrize(
    ("levels", "growing"),
    [
        (np.linspace(0.01, 0.1, 100), True),
        (np.linspace(0.1, 0.01, 100), False),
        (np.full(100, 0.1), False),
        (np.minimum(0.1, np.linspace(0, 1, 100)), False),
        (np.linspace(0.01, 0.1, 6), False),
    ],
    ids=["growing", "shrinking", "steady", "rising at the start alone", "too short to tell"],
)
def test_whether_the_error_grows(levels: Array, growing: bool) -> None:
    x = RNG.normal(size=(len(levels), 200))
    tally = OutputTally("y", 0, False)
    tally.add(x, x + levels[:, None] * RNG.normal(size=x.shape))
    steps = tally.result().steps
    assert steps is not None and steps.growing is growing
    assert len(steps.spans_db) == min(8, len(levels)) and len(steps.quarters_db) == len(steps.quarters_error) == 4
    assert steps.quarters_error[-1] == pytest.approx(levels[-len(levels) // 4 :].mean(), rel=0.3)
    assert steps.trend == ("growing" if growing else "too short" if len(levels) < 8 else "steady")


def test_a_signal_that_fades_is_no_error_that_grows() -> None:
    """A probability that falls after speech has the same error on less signal: nothing accumulates."""
    x = np.linspace(1.0, 0.1, 100)[:, None] * RNG.normal(size=(100, 200))
    for noise, growing in ((np.full(100, 0.01), False), (np.linspace(0.01, 0.1, 100), True)):
        tally = OutputTally("y", 0, False)
        tally.add(x, x + noise[:, None] * RNG.normal(size=x.shape))
        steps = tally.result().steps
        assert steps is not None and steps.quarters_db[-1] < steps.quarters_db[0] - 6
        assert steps.growing is growing


@pytest.mark.parametrize(
    ("x", "y", "unlike"),
    [
        (1.0, math.nan, 1), (math.inf, 1.0, 1), (math.inf, -math.inf, 1), (math.nan, math.inf, 1),
        (math.nan, math.nan, 0), (math.inf, math.inf, 0), (1.0, 2.0, 0),
    ],
)  # fmt: skip
def test_infinite_in_one_only(x: float, y: float, unlike: int) -> None:
    tally = OutputTally("y", None, False)
    ones = np.ones((2, 2))
    tally.add(ones, ones)
    tally.add(np.array([[1.0, x]]), np.array([[1.0, y]]))
    result = tally.result()
    assert result.unlike == unlike
    assert result.first_unlike == (f"call 1, [0, 1]: {x:g} and {y:g}" if unlike else "")
    assert math.isfinite(result.sqnr_db) or result.sqnr_db == math.inf
    assert result.max_abs == (math.inf if unlike else 1.0 if y == 2.0 else 0.0)
    assert result.equal == (1.0 if unlike == 0 and y != 2.0 else 5 / 6)


@pytest.mark.parametrize(
    ("mean", "found"), [(100.0, 20.0), (-100.0, 20.0), (9.0, math.inf), (11.0, 20.0), (0.0, math.inf)]
)
def test_what_varies_around_a_mean(mean: float, found: float) -> None:
    """A constant part is no signal: of values within a tenth around their mean, what varies is compared apart."""
    tally = OutputTally("y", None, False)
    for _ in range(4):
        x = np.array([[mean + 1.0, mean - 1.0]])
        tally.add(x, x + 0.1)
    result = tally.result()
    assert result.mean == pytest.approx(mean) and result.varying_db == pytest.approx(found)
    same = OutputTally("y", None, False)
    same.add(x, x)
    assert same.result().varying_db == math.inf


def test_bits_of_zeros() -> None:
    tally = OutputTally("y", None, False)
    tally.add(np.zeros(2), -np.zeros(2))
    result = tally.result()
    assert result.equal == 1.0 and not result.same_bits


def test_texts_are_equal_or_not() -> None:
    tally = OutputTally("y", None, False)
    tally.add(np.array(["a", "b"], object), np.array(["a", "c"], object))
    assert tally.result().equal == 0.5


@given(st.floats(1e-6, 1e3), st.integers(3, 15), st.integers(0, 2**32 - 1))
def test_values_on_a_grid(scale: float, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(-(2**bits), 2**bits, max(64, 2**bits // 4)))
    values = (codes.astype(np.float32) * np.float32(scale)).astype(np.float32)
    if len(np.unique(np.abs(codes[codes != 0]))) < 4:
        return
    found = grid_step(values)
    divisor = int(np.gcd.reduce(codes))
    assert found is not None and found == pytest.approx(scale * divisor, rel=1e-6)


@given(st.integers(8, 4000), st.integers(0, 2**32 - 1))
def test_values_on_no_grid(count: int, seed: int) -> None:
    assert grid_step(np.random.default_rng(seed).normal(size=count).astype(np.float32)) is None


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [1.0, 2.0, 3.0], list(np.arange(1.0, 70000.0))])
def test_too_few_or_too_many_values_for_a_grid(values: list[float]) -> None:
    assert grid_step(np.array(values)) is None


def test_share_of_equal_codes() -> None:
    codes = np.array([[-7, 3, 5, 100], [1, 2, 3, 4]])
    y = (codes * 0.25).astype(np.float32)
    x = y + np.array([[0.1, -0.12, 0.2, 0.0], [0.0, 0.3, 0.1, -0.1]], np.float32)
    tally = OutputTally("y", 0, False)
    tally.add(x, y)
    result = tally.result()
    assert result.grid_step == pytest.approx(0.25)
    assert result.equal_codes == 6 / 8 and result.equal == 2 / 8
    assert result.steps is not None and result.steps.equal_codes == (3 / 4, 3 / 4)


def test_integers_are_codes() -> None:
    tally = OutputTally("y", None, False)
    tally.add(np.array([1, 2, 3, 900], np.int64), np.array([1, 2, 4, 900], np.int64))
    result = tally.result()
    assert (result.equal_codes, result.grid_step, result.equal) == (0.75, 1.0, 0.75)


def test_nothing_to_compare() -> None:
    tally = OutputTally("y", 0, False)
    tally.add(np.zeros((0, 3)), np.zeros((0, 3)))
    result = tally.result()
    assert (result.sqnr_db, result.max_abs, result.equal, result.values, result.steps) == (math.inf, 0.0, 1.0, 0, None)


@pytest.mark.parametrize(
    ("calls", "constant"),
    [
        ([np.full((2, 3), 0.1, np.float32)] * 2, True),
        ([np.full((2, 3), 0.1, np.float32), np.full((2, 3), 0.2, np.float32)], False),
        ([np.zeros((9, 2), np.int64)], True),
        ([np.tile(np.float32([0, 1]), (10, 1))], True),
        ([np.float32([[0, 1]])], False),
        ([np.ones((1, 1), np.float32)], False),
        ([np.zeros((0, 4), np.float32)], False),
        ([np.array(["a", "a"]), np.array(["a", "a"])], True),
        ([np.array(["a", "a"]), np.array(["b", "b"])], False),
    ],
    ids=["equal", "two calls", "classes", "channels", "too few", "one value", "none", "equal texts", "texts"],
)
def test_what_is_constant(calls: list[Array], constant: bool) -> None:
    """A single value, or one of each of two channels, is no sign of an output that does not vary."""
    tally = OutputTally("y", None, False)
    for call in calls:
        tally.add(call, call)
    assert tally.result().constant is constant
