"""Activation tables: knots and the integer formula.

What these would catch: knots that are not the least-squares fit, a table that is not odd, not monotone or leaves
[-1, 1], an error above what the docstring promises.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.cells.tables import (
    KNOT_UNIT,
    SEGMENTS,
    SIGMOID_LIMIT,
    TANH_KNOTS,
    TANH_LIMIT,
    by_code,
    piecewise_linear_tanh,
    signed_codes,
    table_of,
)

LENGTHS = (64, 128, 4096, 16384)


def _formula(code: int, n: int) -> int:
    """docs/quant_lstm_cell.md, "The default tables", in Python integers."""
    length, u = n // 64, min(abs(code), n)
    j = min(u // length, 63)
    v = u - j * length
    value = TANH_KNOTS[j] + ((TANH_KNOTS[j + 1] - TANH_KNOTS[j]) * v + length // 2) // length
    return value if code > 0 else -value if code < 0 else 0


def fit_tanh_knots() -> npt.NDArray[np.int64]:
    """Least-squares knots of the continuous piecewise-linear tanh (how `TANH_KNOTS` was made).

    Returns:
        int64 [65], units of 2**-14, first 0 and last 16384.
    """
    n = 4096
    u = np.arange(n + 1)
    segment = np.minimum(u * SEGMENTS // n, SEGMENTS - 1)
    weight = u * SEGMENTS / n - segment
    design = np.zeros((n + 1, SEGMENTS + 1))
    design[u, segment] = 1.0 - weight
    design[u, segment + 1] += weight
    target = np.tanh(u * TANH_LIMIT / n)
    knots = np.linalg.lstsq(design[:, 1:], target, rcond=None)[0]
    codes = np.rint(np.concatenate([[0.0], knots]) / KNOT_UNIT).astype(np.int64)
    codes[-1] = round(1.0 / KNOT_UNIT)
    return codes


def test_knots_are_the_least_squares_fit() -> None:
    knots = np.array(TANH_KNOTS)
    assert np.abs(knots - fit_tanh_knots()).max() <= 1
    assert (knots[0], knots[-1], knots.size) == (0, round(1 / KNOT_UNIT), SEGMENTS + 1)
    assert (np.diff(knots) >= 0).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_is_the_documented_formula(n: int) -> None:
    codes = np.unique(np.concatenate([np.linspace(-2 * n, 2 * n, 401).astype(int), np.arange(-130, 131)]))
    expected = [_formula(int(c), n) for c in codes]
    assert piecewise_linear_tanh(codes.astype(np.int64), n).tolist() == expected


@pytest.mark.parametrize("n", LENGTHS)
def test_shape_of_the_curve(n: int) -> None:
    codes = np.arange(-2 * n, 2 * n + 1)
    values = piecewise_linear_tanh(codes, n)
    np.testing.assert_array_equal(values, -values[::-1])
    assert (np.diff(values) >= 0).all()
    assert np.abs(values).max() == round(1 / KNOT_UNIT)
    assert (np.abs(values[np.abs(codes) >= n]) == round(1 / KNOT_UNIT)).all()


def test_error_is_what_the_docstring_promises() -> None:
    n = 4096
    codes = np.arange(-n, n + 1)
    tanh = piecewise_linear_tanh(codes, n) * KNOT_UNIT
    assert np.abs(tanh - np.tanh(codes * TANH_LIMIT / n)).max() <= 1.01e-3
    sigmoid = 0.5 + 0.5 * tanh
    x = codes * SIGMOID_LIMIT / n
    assert np.abs(sigmoid - 1 / (1 + np.exp(-x))).max() <= 5.1e-4
    assert (sigmoid.min(), sigmoid.max()) == (0.0, 1.0)


def test_entries_are_exact_in_float32() -> None:
    values = piecewise_linear_tanh(np.arange(-4096, 4097), 4096)
    for real in (values * KNOT_UNIT, 0.5 + 0.5 * (values * KNOT_UNIT)):
        np.testing.assert_array_equal(real.astype(np.float32).astype(np.float64), real)


def test_order_of_codes() -> None:
    assert signed_codes(3).tolist() == [-4, -3, -2, -1, 0, 1, 2, 3]
    table = table_of(lambda x: 10 * x, 0.5, 3)
    assert table.dtype == np.float32
    assert table.tolist() == [-20, -15, -10, -5, 0, 5, 10, 15]
    rolled = by_code(table)
    assert [rolled[k] for k in (0, 1, 3, -1, -4)] == [0, 5, 15, -5, -20]
