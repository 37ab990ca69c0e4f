"""Arithmetic of scales.

What this would catch: a multiplication by a power of two where only `ldexp` is exact.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.formats.scales import times_power_of_two

NUMBERS = np.array([0.0, -0.0, 1.0, -1.5, 2.0**-1074, -(2.0**-1030), np.nextafter(2.0**1000, 0), 1.7e308, 1 / 3, np.pi])


@pytest.mark.parametrize("exponent", [0, 1, -1, 30, -300, 999, 1000, 1001, -1000, -1001, 1074, -1074, 2100, -2100])
def test_powers_of_two_are_those_of_ldexp(exponent: int) -> None:
    with np.errstate(over="ignore", under="ignore"):
        expected = np.ldexp(NUMBERS, exponent).tobytes()
        assert times_power_of_two(NUMBERS, exponent).tobytes() == expected
        assert times_power_of_two(NUMBERS, np.full(len(NUMBERS), exponent)).tobytes() == expected


def test_each_row_has_an_exponent() -> None:
    rows, exponents = np.ones((3, 2)), np.array([[-3], [0], [5]])
    assert times_power_of_two(rows, exponents).tolist() == [[0.125] * 2, [1.0] * 2, [32.0] * 2]
    assert times_power_of_two(np.ones((0, 2)), np.zeros((0, 1), np.int64)).shape == (0, 2)
