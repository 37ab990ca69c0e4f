"""Limits of shifts between fix positions.

What these would catch: the wrong one of four positions changed, a change that breaks another limit, one without a
warning.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.shift_limits import ProductPositions, within_shift_limits


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((7, 12, 12, 12), (7, 12, 12, 12), []),
        ((7, 9, 0, 0), (7, 9, 0, 0), []),
        ((2, 3, 8, None), (2, 3, 5, None), ["output", "8 is lowered to 5"]),
        ((15, 12, 9, None), (13, 12, 9, None), ["weight", "15 is lowered to 13"]),
        ((7, 7, 7, 24), (7, 7, 7, 23), ["bias", "24 is lowered to 23"]),
        ((9, 9, 18, 35), (9, 9, 18, 34), ["bias", "35 is lowered to 34"]),
        ((12, 12, 12, 4), (8, 12, 12, 4), ["weight", "12 is lowered to 8"]),
    ],
)
def test_adjusted(before: tuple[int, ...], after: tuple[int, ...], words: list[str]) -> None:
    found, warnings = within_shift_limits(ProductPositions(*before), "cell.W")
    assert found == ProductPositions(*after)
    assert len(warnings) == bool(words)
    assert all(w in " ".join(warnings) for w in ["cell.W", *words] if words)


_POSITIONS = st.integers(-20, 40)


@given(_POSITIONS, _POSITIONS, _POSITIONS, st.none() | _POSITIONS)
def test_limits_hold(weight: int, x: int, output: int, bias: int | None) -> None:
    before = ProductPositions(weight, x, output, bias)
    after, warnings = within_shift_limits(before, "cell.W")
    assert 0 <= after.shift_cut <= 16
    if after.shift_bias is not None:
        assert min(0, -(24 - (8 + after.shift_cut))) <= after.shift_bias <= 16
    assert bool(warnings) == (after != before)
    assert after.input == before.input
    assert within_shift_limits(after, "cell.W") == (after, [])
