"""Number formats: rounding, saturation and the way back.

What these would catch: a rounding that treats ties or negative numbers differently from the table of the docstring,
codes outside their format, a zero point added before rounding, scales broadcast along the wrong axis.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from exact_rounding import DIRECTED, exact_round
from format_strategies import SCALES, formats
from hypothesis import given
from hypothesis import strategies as st
from running import plain_session, run

from rnnqc.errors import CompileError
from rnnqc.formats.format import Format
from rnnqc.formats.rounding import RECIPE_ROUNDINGS, Rounding, round_to_integer
from rnnqc.formats.scales import symmetric_scale

TABLE = {
    #     in the order of `Rounding`
    0.5: (0, 1, 1, 0, 1, 0, 0, 1, 0),
    1.5: (2, 2, 2, 1, 2, 2, 1, 2, 1),
    2.5: (2, 3, 3, 2, 3, 2, 2, 3, 2),
    -0.5: (0, -1, 0, -1, 0, 0, 0, -1, 0),
    -1.5: (-2, -2, -1, -2, -1, -1, -1, -2, -1),
    -2.5: (-2, -3, -2, -3, -2, -2, -2, -3, -2),
    0.25: (0, 0, 0, 0, 1, 0, 0, 1, 0),
    -0.75: (-1, -1, -1, -1, 0, -1, 0, -1, -1),
    3.0: (3, 3, 3, 3, 3, 3, 3, 3, 3),
    -3.0: (-3, -3, -3, -3, -3, -3, -3, -3, -3),
    0.0: (0, 0, 0, 0, 0, 0, 0, 0, 0),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("column", "rounding"), list(enumerate(Rounding)))
def test_rounding_table(column: int, rounding: Rounding, dtype: Any) -> None:
    got = round_to_integer(np.array(list(TABLE), dtype), rounding)
    assert got.dtype == dtype
    assert got.tolist() == [row[column] for row in TABLE.values()]


@pytest.mark.parametrize("rounding", list(Rounding))
def test_rounding_of_scalars_keeps_the_shape(rounding: Rounding) -> None:
    assert round_to_integer(np.float32(2.0), rounding).shape == ()
    assert round_to_integer(np.zeros((0, 3), np.float32), rounding).shape == (0, 3)


@given(formats(), st.data())
def test_every_code_comes_back(format_: Format, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(format_.minimum, format_.maximum), min_size=1, max_size=20))
    array = np.array(codes, format_.dtype)
    back = format_.quantize(format_.dequantize(array))
    assert back.dtype == format_.dtype
    # Product and quotient may leave the whole number by a rounding, which floor and ceil do not forgive.
    allowed = 1 if format_.rounding in DIRECTED else 0
    assert np.abs(back.astype(int) - array.astype(int)).max() <= allowed


@given(formats(), st.data())
def test_within_half_a_step_inside_the_range(format_: Format, data: st.DataObject) -> None:
    low, high = (format_.dequantize(np.array(v)).item() for v in (format_.minimum, format_.maximum))
    values = np.array(data.draw(st.lists(st.floats(low, high, width=32), min_size=1, max_size=20)), np.float32)
    error = np.abs(format_.dequantize(format_.quantize(values)).astype(np.float64) - values)
    step = format_.scale[0]
    allowed = step if format_.rounding in DIRECTED else step / 2
    assert error.max() <= allowed + 2.0**-21 * np.abs([low, high]).max()


@given(formats(), st.lists(st.floats(-(2.0**40), 2.0**40, width=32), min_size=2, max_size=20))
def test_monotone_and_saturating(format_: Format, values: list[float]) -> None:
    codes = format_.quantize(np.sort(np.array(values, np.float32))).astype(np.int64)
    assert (np.diff(codes) >= 0).all()
    assert codes.min() >= format_.minimum
    assert codes.max() <= format_.maximum
    ends = format_.quantize(np.array([-np.inf, np.inf], np.float32))
    assert ends.tolist() == [format_.minimum, format_.maximum]


@given(formats())
def test_zero_is_the_zero_point(format_: Format) -> None:
    assert format_.quantize(np.zeros(3, np.float32)).tolist() == [format_.zero_point] * 3
    assert format_.dequantize(np.array(format_.zero_point)).item() == 0.0


@given(st.integers(0, 255), SCALES, st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=20))
def test_as_onnxruntime(zero_point: int, scale: float, values: list[float]) -> None:
    """The zero point is added after rounding: 0.5 + an odd zero point rounds down, not to even."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x, float s, uint8 z) => (uint8[N] q, float[N] back) '
        "{ q = QuantizeLinear(x, s, z) back = DequantizeLinear(q, s, z) }"
    )
    format_ = Format(8, False, (scale,), zero_point=zero_point)
    x = np.array([*values, 0.5 * scale, 1.5 * scale, -0.5 * scale], np.float32)
    feeds = {"x": x, "s": np.float32(scale), "z": np.uint8(zero_point)}
    got = run(plain_session(model), {k: np.asarray(v) for k, v in feeds.items()})
    np.testing.assert_array_equal(format_.quantize(x), got["q"])
    np.testing.assert_array_equal(format_.dequantize(got["q"]), got["back"])


@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "minimum", "maximum", "dtype"),
    [
        (2, True, False, -2, 1, "int8"),
        (4, True, True, -7, 7, "int8"),
        (8, True, False, -128, 127, "int8"),
        (8, True, True, -127, 127, "int8"),
        (8, False, True, 0, 255, "uint8"),
        (9, False, False, 0, 511, "uint16"),
        (16, True, False, -32768, 32767, "int16"),
        (17, True, False, -65536, 65535, "int32"),
        (32, False, False, 0, 2**32 - 1, "uint32"),
    ],
)
def test_formats(bits: int, signed: bool, narrow: bool, minimum: int, maximum: int, dtype: str) -> None:
    format_ = Format(bits, signed, (1.0,), narrow=narrow)
    assert (format_.minimum, format_.maximum, format_.dtype) == (minimum, maximum, np.dtype(dtype))


@pytest.mark.parametrize(("bits", "signed"), [(32, True), (31, True), (25, False)])
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_widest_formats_saturate_inside(bits: int, signed: bool) -> None:
    format_ = Format(bits, signed, (1.0,))
    codes = format_.quantize(np.array([-1e20, 1e20], np.float32)).astype(np.int64)
    assert codes[0] == format_.minimum
    assert format_.maximum - 128 <= codes[1] <= format_.maximum


_WHOLE = [2.0**k + d for k in range(20, 25) for d in (-1, 0, 1) if 2.0**k + d <= 2**24]


@pytest.mark.parametrize("rounding", RECIPE_ROUNDINGS)
def test_whole_numbers_stay(rounding: Rounding) -> None:
    """A recipe may ask for 24 bits, which float32 holds exactly."""
    values = np.array([*_WHOLE, *(-v for v in _WHOLE)], np.float32)
    np.testing.assert_array_equal(round_to_integer(values, rounding), values)


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_per_channel(axis: int) -> None:
    scale = (0.5, 2.0, 4.0)
    format_ = Format(8, True, scale, axis=axis)
    values = np.full((3, 3), 8.0, np.float32)
    codes = format_.quantize(values)
    expected = np.broadcast_to(np.array([16, 4, 2]).reshape((3, 1) if axis == 0 else (1, 3)), (3, 3))
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(format_.dequantize(codes), values)
    assert format_.scale_array(2).dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 0}, r"bits = 0 .*Supported: 1 to 32"),
        ({"bits": 33}, r"bits = 33 .*Supported: 1 to 32"),
        ({"bits": 1, "zero_point": 1}, r"bits = 1 with .*zero_point = 1.*Supported: binary"),
        ({"scale": (0.0,)}, r"scale .*Supported: scale > 0"),
        ({"scale": (-1.0,)}, r"scale .*Supported: scale > 0"),
        ({"scale": (float("nan"),)}, r"scale .*Supported: scale > 0"),
        ({"scale": (float("inf"),)}, r"scale .*Supported: scale > 0"),
        ({"scale": (1.0, 2.0)}, r"2 scales without a channel axis"),
        ({"zero_point": 128}, r"zero_point = 128 .*Supported: -128 \.\. 127"),
        ({"zero_point": -128, "narrow": True}, r"zero_point = -128 .*Supported: -127 \.\. 127"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    plain: dict[str, Any] = {"bits": 8, "signed": True, "scale": (1.0,)}
    with pytest.raises(CompileError, match=message):
        Format(**{**plain, **arguments})


def test_binary() -> None:
    """Two codes and no zero; the scale is half the distance of the two values."""
    format_ = Format(1, True, (0.25,))
    assert (format_.minimum, format_.maximum, format_.dtype) == (-1, 1, np.dtype("int8"))
    values = np.array([-np.inf, -3.0, -1e-45, -0.0, 0.0, 1e-45, 0.1, 7.0, np.inf], np.float32)
    codes = format_.quantize(values)
    assert codes.dtype == np.int8
    assert codes.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1, 1]
    assert format_.dequantize(codes).tolist() == [-0.25] * 3 + [0.25] * 6
    columns = Format(1, True, (0.5, 2.0), axis=1)
    assert columns.dequantize(columns.quantize([[-1.0, 3.0]])).tolist() == [[-0.5, 2.0]]
    assert symmetric_scale(3.0, 1).item() == 3.0


def test_ternary() -> None:
    format_ = Format(2, True, (0.5,), narrow=True)
    assert format_.quantize([-9.0, -0.3, -0.2, 0.0, 0.2, 0.3, 9.0]).tolist() == [-1, -1, 0, 0, 0, 1, 1]


def _exact(format_: Format, value: np.float32) -> int:
    """The quantized value of one number in integers and fractions, but for the one float32 division."""
    units = Fraction(float(np.float32(np.float64(value) / np.float64(np.float32(format_.scale[0])))))
    width = 2**format_.bits
    least = -(width // 2) if format_.signed else 0
    most = least + width - 1
    quantized = exact_round(units, format_.rounding) + format_.zero_point
    return int(min(max(quantized, least + (format_.narrow and format_.signed)), most))


@given(formats(), st.lists(st.integers(-(2**12), 2**12), min_size=1, max_size=20), st.sampled_from([1, 2, 3, 8]))
def test_exact(format_: Format, halves: list[int], divisor: int) -> None:
    """All widths, signs, narrow or not, zero points and roundings; many of the values are ties."""
    values = (np.array(halves, np.float32) * np.float32(format_.scale[0])) / np.float32(2 * divisor)
    assert format_.quantize(values).tolist() == [_exact(format_, v) for v in values]


@pytest.mark.parametrize("rounding", [Rounding.HALF_UP, Rounding.HALF_AWAY])
def test_half_is_added_in_the_dtype(rounding: Rounding) -> None:
    """As the nodes of a model do it: below 0.5 there is one float32 that becomes 1."""
    below = np.nextafter(np.float32(0.5), np.float32(0.0))
    assert round_to_integer(below, rounding) == 1.0
    assert round_to_integer(np.nextafter(below, np.float32(0.0)), rounding) == 0.0


def test_symmetric_scale() -> None:
    assert symmetric_scale(1.27, 8).item() == pytest.approx(0.01, rel=1e-15)
    bounds = np.array([0.0, 2.0**-101, 2.0**-100, 7.0])
    np.testing.assert_array_equal(symmetric_scale(bounds, 4), [1.0, 1.0, 2.0**-100 / 7, 1.0])
    assert np.float32(symmetric_scale(2.0**-100, 16)) >= np.finfo(np.float32).tiny
