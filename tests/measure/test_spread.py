"""The variation of an output that is nearly constant.

What these would catch: an error that the mean of an output, or those of its channels, hide; a false alarm about an
output that does not vary, or varies by no more than roundings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.measure.differences import OutputComparison
from rnnqc.measure.tally import OutputTally
from rnnqc.measure.verdict import Judged

Array = npt.NDArray[Any]
RNG = np.random.default_rng(3)
NOISE = RNG.standard_normal((60, 4, 2))
ERROR = 0.5 * RNG.standard_normal((60, 4, 2))


def compared(x: Array, error: Array, axis: int | None = None) -> OutputComparison:
    """Compares calls with float32 outputs."""
    tally = OutputTally("y", axis, False)
    for a, e in zip(x.astype(np.float32), error, strict=True):
        tally.add(a, (a + e).astype(np.float32))
    return tally.result()


def level(c: OutputComparison) -> str:
    return Judged(c.name, c.sqnr_db, c.equal, varying_db=c.varying_db).level


@pytest.mark.parametrize("mean", [100.0, 1e5], ids=str)
def test_a_mean_hides_nothing(mean: float) -> None:
    """Sums of squares would lose what varies, of a mean of 1e5, or find what is not there."""
    found = compared(mean + NOISE, ERROR)
    assert found.sqnr_db > 45.0
    assert found.varying_db == pytest.approx(6.0, abs=0.5)
    assert level(found) == "watch"


def test_means_of_channels_hide_nothing() -> None:
    """A predicted temperature beside a pressure: the mean of both says nothing of either."""
    found = compared(np.array([300.0, 1000.0]) + NOISE, ERROR)
    assert found.varying_db == pytest.approx(6.0, abs=0.5)
    assert level(found) == "watch"


def test_steps_in_time_are_no_channels() -> None:
    """A ramp varies, whatever the mean of each of its steps."""
    ramp = 1000.0 + np.broadcast_to(np.array([0.0, 20.0]), NOISE.shape)
    assert compared(ramp, 0.01 * ERROR, axis=1).varying_db > 60.0
    assert compared(ramp, 0.01 * ERROR).varying_db == math.inf


def test_few_values_have_one_mean() -> None:
    """Two values of a channel are never far from their own mean."""
    found = compared((np.array([300.0, 1000.0]) + NOISE)[:1, :2], ERROR[:1, :2])
    assert found.varying_db == math.inf


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.full((17, 3, 33), 0.1), np.full((17, 3, 33), 1e-4)),
        (np.full((1, 1, 1), 0.37), np.full((1, 1, 1), 1e-3)),
        (1e5 + 0.01 * NOISE, np.full(NOISE.shape, 2.0**-7)),
    ],
    ids=["constant", "one value", "a unit in the last place"],
)
def test_what_does_not_vary_raises_no_alarm(x: Array, error: Array) -> None:
    found = compared(x, error)
    assert found.varying_db == math.inf
    assert level(found) == "good"


def test_values_that_are_not_finite_count_in_no_mean() -> None:
    x = 100.0 + NOISE
    x[0, 0, 0], x[5, 1, 1] = np.nan, np.inf
    assert compared(x, ERROR).varying_db == pytest.approx(6.0, abs=0.5)


def test_calls_of_different_sizes_have_one_mean() -> None:
    tally = OutputTally("y", None, False)
    for count in (2, 3, 5):
        x = (100.0 + RNG.standard_normal((40, count))).astype(np.float32)
        tally.add(x, x + np.float32(0.5))
    assert tally.result().varying_db == pytest.approx(6.0, abs=0.5)
