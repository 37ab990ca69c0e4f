"""The values of an output that a page draws.

What these would catch: another call, row or column than the one with the largest error, steps of two streams in one
line, a window that misses the worst step, values that are no numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.reporting.values import MOST, values_of


def test_the_largest_error_is_drawn() -> None:
    x = [np.zeros((2, 9, 3)) for _ in range(3)]
    y = [a.copy() for a in x]
    y[1][1, 5, 2] = 4.0
    found = values_of(x, y, 1, [], "time step")
    assert found is not None
    assert (found.where, found.first) == ("call 1, [1, :, 2]", 0)
    assert found.quantized_values == [0.0] * 5 + [4.0] + [0.0] * 3
    assert found.float_values == [0.0] * 9


def test_a_long_sequence_is_cut_around_the_worst_step() -> None:
    x, y = np.zeros((1000, 1)), np.zeros((1000, 1))
    y[990] = 1.0
    found = values_of([x], [y], 0, [], "time step")
    assert found is not None
    assert (found.first, len(found.float_values)) == (1000 - MOST, MOST)
    assert found.quantized_values[990 - found.first] == 1.0


@pytest.mark.parametrize("axis", [None, 1])
def test_a_stream_is_one_line(axis: int | None) -> None:
    """From its own start, not from that of the stream before."""
    x = [np.full((1, 2), float(k)) for k in range(5)]
    y = [a.copy() for a in x]
    y[3][0, 1] = 9.0
    found = values_of(x, y, axis, [True, False, True, False, False], "call")
    assert found is not None
    steps = 1 if axis is None else 2
    assert found.float_values == [float(k) for k in (2, 3, 4) for _ in range(steps)]
    assert found.where.startswith("from call 2 on")


def test_an_output_without_time_and_what_is_not_finite() -> None:
    x = np.array([[1.0, 2.0], [3.0, np.nan]])
    found = values_of([x], [x + np.array([[0.0], [1.0]])], None, [], None)
    assert found is not None
    assert (found.unit, found.float_values) == ("entry", [3.0, None])
    assert values_of([np.zeros(())], [np.zeros(())], None, [], None) is None
    assert values_of([np.zeros((1, 0))], [np.zeros((1, 0))], None, [], None) is None
