"""Products with both parts of a reciprocal give the codes of a division.

Would catch a part with other bits, a code whose first value is another one than the division's, and reciprocals that
are given up where they are right.
"""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.kernel_calls import NATIVE

LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
LIBM.fmaf.restype = ctypes.c_float
LIBM.fmaf.argtypes = [ctypes.c_float] * 3

LARGEST_CODE = 255
Floats = npt.NDArray[np.float32]


def _reciprocal(scale: np.float32) -> tuple[bool, np.float32, np.float32]:
    upper, lower = ctypes.c_float(), ctypes.c_float()
    divides = NATIVE.rnnqc_test_reciprocal(ctypes.c_float(scale), ctypes.byref(upper), ctypes.byref(lower))
    return bool(divides), np.float32(upper.value), np.float32(lower.value)


def _around_steps(scale: np.float32) -> Floats:
    """Values where the code changes, with their neighbours; float32 `[n]`."""
    steps = np.float32((np.arange(LARGEST_CODE + 1) + 0.5) * np.float64(scale))
    found = [steps]
    for way in (-np.inf, np.inf):
        x = steps
        for _ in range(3):
            x = np.nextafter(x, np.float32(way))
            found.append(x)
    return np.concatenate([*found, np.float32([0, 3e38]), np.float32(np.arange(300)) * scale])


def _products(x: Floats, upper: np.float32, lower: np.float32) -> list[float]:
    return [round(LIBM.fmaf(value, upper, np.float32(value * lower))) for value in x]


@given(st.integers(2**23, 2**24 - 1), st.integers(-80, 34))
def test_codes_of_any_scale(mantissa: int, exponent: int) -> None:
    scale = np.float32(np.ldexp(np.float64(mantissa), exponent))
    divides, upper, lower = _reciprocal(scale)
    assert divides
    with np.errstate(over="ignore"):
        x = _around_steps(scale)
        limit = LARGEST_CODE + 1
        expected = np.clip(np.rint(x / scale), -limit, limit)
        finite = np.isfinite(x * upper)
    for sign in (1, -1):
        found = np.clip(_products(sign * x[finite], upper, lower), -limit, limit)
        np.testing.assert_array_equal(found, sign * expected[finite])


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 2.0**-61, 2.0**61, 1e-45])
def test_scales_without_a_reciprocal(scale: float) -> None:
    assert not _reciprocal(np.float32(scale))[0]


def test_a_power_of_two_has_one_part() -> None:
    assert _reciprocal(np.float32(2.0**-7)) == (True, 128.0, 0.0)
