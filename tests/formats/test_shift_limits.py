"""Limits of shifts between fix positions.

What these would catch: the wrong one of four positions changed, a change that breaks another limit, one without need.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.shift_limits import ProductPositions, within_shift_limits


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((7, 12, 12, 12), (7, 12, 12, 12)),
        ((7, 9, 0, 0), (7, 9, 0, 0)),
        ((2, 3, 8, None), (2, 3, 5, None)),
        ((15, 12, 9, None), (13, 12, 9, None)),
        ((7, 7, 7, 24), (7, 7, 7, 23)),
        ((9, 9, 18, 35), (9, 9, 18, 34)),
        ((12, 12, 12, 4), (8, 12, 12, 4)),
    ],
)
def test_adjusted(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert within_shift_limits(ProductPositions(*before)) == ProductPositions(*after)


_POSITIONS = st.integers(-20, 40)


@given(_POSITIONS, _POSITIONS, _POSITIONS, st.none() | _POSITIONS)
def test_limits_hold(weight: int, x: int, output: int, bias: int | None) -> None:
    before = ProductPositions(weight, x, output, bias)
    after = within_shift_limits(before)
    assert 0 <= after.shift_cut <= 16
    if after.shift_bias is not None:
        assert min(0, -(24 - (8 + after.shift_cut))) <= after.shift_bias <= 16
    assert after.input == before.input
    assert within_shift_limits(after) == after
