"""Quantizers of QONNX and Brevitas: the zero point is added before rounding.

What these would catch: limits of narrow unsigned or bipolar quantizers, a zero point added on the other side of the
rounding, values that a `Format` of the same parameters quantizes in another way where the two have to agree.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.format import Format
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.qonnx import ROUNDINGS, QonnxQuantizer
from rnnqc.formats.rounding import Rounding
from tests.generate.format_strategies import formats
from tests.native.exact_rounding import exact_round

VALUES = st.lists(st.floats(-(2.0**24), 2.0**24, width=32), min_size=1, max_size=20)


def _quantizer(held: Format) -> QonnxQuantizer:
    scale, zero_point = np.asarray(held.scale[0], np.float32), np.asarray(held.zero_point, np.float32)
    return QonnxQuantizer(scale, zero_point, held.bits, held.signed, held.narrow, held.rounding)


@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "minimum", "maximum"),
    [
        (8, True, False, -128, 127),
        (8, True, True, -127, 127),
        (8, False, False, 0, 255),
        (8, False, True, 0, 254),
        (1, True, False, -1, 1),
        (1, False, False, 0, 1),
        (32, True, False, -(2**31), 2**31 - 1),
    ],
)
def test_limits(bits: int, signed: bool, narrow: bool, minimum: int, maximum: int) -> None:
    q = QonnxQuantizer(np.float32(1.0), np.float32(0.0), bits, signed, narrow, Rounding.HALF_EVEN)  # type: ignore[arg-type]
    assert (q.minimum, q.maximum) == (minimum, maximum)


@given(formats(), VALUES)
def test_without_a_zero_point_it_is_a_format(held: Format, values: list[float]) -> None:
    """Both divide, round and saturate alike; QONNX leaves out the highest value of narrow unsigned ones."""
    held = Format(held.bits, held.signed, held.scale, narrow=held.narrow, rounding=held.rounding)
    q = _quantizer(held)
    expected = np.minimum(held.quantize(values).astype(np.int64), q.maximum)
    np.testing.assert_array_equal(q.codes(values), expected)
    np.testing.assert_array_equal(q(values), held.dequantize(expected))


@given(formats(), VALUES)
def test_the_zero_point_is_added_before_rounding(held: Format, values: list[float]) -> None:
    """In exact fractions, but for the float32 quotient and sum."""
    q = _quantizer(held)
    shifted = [np.float32(np.float32(v) / q.scale) + q.zero_point for v in np.asarray(values, np.float32)]
    wanted = [min(max(exact_round(Fraction(float(s)), held.rounding), q.minimum), q.maximum) for s in shifted]
    assert q.codes(values).tolist() == wanted


@given(formats(), VALUES)
def test_monotone_and_saturating(held: Format, values: list[float]) -> None:
    q = _quantizer(held)
    made = q.codes(np.sort(np.asarray([*values, -np.inf, np.inf], np.float32)))
    assert (np.diff(made) >= 0).all()
    assert (made[0], made[-1]) == (q.minimum, q.maximum)


@given(formats())
def test_the_format_of_its_values(held: Format) -> None:
    assert _quantizer(held).format() == PointFormat.of(
        Format(**{**vars(held), "scale": (float(np.float32(held.scale[0])),)})
    )


def test_modes_of_files_are_all_roundings() -> None:
    """HALF_UP of QONNX takes halves away from zero, as Brevitas does not have it."""
    assert ROUNDINGS["HALF_UP"] is Rounding.HALF_AWAY
    assert set(ROUNDINGS.values()) == set(Rounding) - {Rounding.HALF_UP}
