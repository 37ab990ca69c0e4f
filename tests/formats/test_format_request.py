"""From ranges to scales and zero points.

What these would catch: Distiller's published scales missed in a printed digit, a zero that is no code, a range that
codes do not cover, a tie of the zero point that falls the other way, a power of two rounded down.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.errors import UsageError
from rnnqc.formats.format import Format
from rnnqc.formats.format_request import LEVELS, FormatRequest
from rnnqc.formats.scales import is_power_of_two, multiplier_and_shift, power_of_two_from

_DECODER = (-16.018861770629883, 34.73637390136719)
_DECODER_AVG = (-7.234289410796578, 18.421518564990844)
_FC_GATE_X = (-7.170577049255371, 6.01923131942749)
"""Of the word-level language model in Distiller's examples, `manual_lstm_pretrained_stats.yaml`."""
ASYMMETRIC: dict[str, Any] = {"symmetric": False}


@pytest.mark.parametrize(
    ("low", "high", "options", "inverse", "zero_point"),
    [
        (*_DECODER, {}, "3.656110", 0),
        (*_DECODER, ASYMMETRIC, "5.024112", 48),
        (*_DECODER_AVG, ASYMMETRIC, "9.939270", 56),
        (*_FC_GATE_X, {}, "17.711266", 0),
        (-6.0, 6.0, {}, "21.166667", 0),
        (-1.0, 0.3, {}, "127.000000", 0),
        (-4.0, 4.0, {"levels": "half-range"}, "31.875000", 0),
        (-4.0, 4.0, {"narrow": True}, "31.750000", 0),
        (-2.0, 10.0, {**ASYMMETRIC, "signed": False}, "21.250000", -42),
        (-2.0, 10.0, ASYMMETRIC, "21.250000", 86),
        (0.0, 0.0, {}, "1.000000", 0),
        (0.0, 0.0, {**ASYMMETRIC, "signed": False}, "1.000000", 0),
    ],
)
def test_distiller(low: float, high: float, options: dict[str, Any], inverse: str, zero_point: int) -> None:
    """Its scales are the inverse of ours and its zero points have the other sign."""
    scale, ours = FormatRequest(8, **options).fit(low, high)
    assert (f"{1.0 / float(scale):.6f}", -int(ours)) == (inverse, zero_point)
    assert FormatRequest(8, **options).fit_one(low, high) == (float(np.float32(scale)), -zero_point)


@pytest.mark.parametrize(
    ("low", "high", "options", "scale", "zero_point"),
    [
        (-2.54, 1.0, {}, 0.02, 0),
        (-2.54, 1.0, {"levels": "half-range"}, 2.54 / 127.5, 0),
        (-2.54, 1.0, {"levels": "min-code"}, 2.54 / 128, 0),
        (-2.54, 1.0, {"signed": False}, 0.02, 128),
        (0.5, 2.55, {"signed": False}, 0.01, 0),
        (0.0, 1.27, {}, 0.01, 0),
        (1.0, 2.55, {"symmetric": False, "signed": False}, 0.01, 0),
        (-2.55, -1.0, {"symmetric": False, "signed": False}, 0.01, 255),
        (-1.0, 1.54, {"symmetric": False, "narrow": True}, 0.01, -27),
        (-1.0, 1.27, {"zero_point": 0}, 0.01, 0),
        (-1.28, 1.0, {"zero_point": 0}, 0.01, 0),
        (-0.64, 1.91, {"zero_point": -64}, 0.01, -64),
        (0.0, 2.55, {"zero_point": -128}, 0.01, -128),
        (-0.3, 0.7, {"bits": 1}, 0.7, 0),
        (-0.3, 0.7, {"bits": 2, "narrow": True}, 0.7, 0),
        (-0.01, 0.01, {"max_fix_position": 5}, 2.0**-5, 0),
        (-1.0, 0.5, {"bits": 32}, 1.0 / (2**31 - 1), 0),
        (-1.0, 1.0, {"bits": 32, "symmetric": False}, 2.0 / (2**32 - 1), 0),
    ],
)
def test_formulas(low: float, high: float, options: dict[str, Any], scale: float, zero_point: int) -> None:
    found = FormatRequest(**{"bits": 8, **options}).fit_one(low, high)
    assert found == (pytest.approx(scale, rel=2.0**-23), zero_point)


_FORMATS = st.builds(
    lambda bits, signed, narrow, symmetric, pow2: FormatRequest(bits, signed, narrow and signed, symmetric, pow2=pow2),
    st.integers(2, 16),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
_ENDS = st.floats(-1e6, 1e6, width=32).map(lambda v: v if abs(v) > 1e-6 else 0.0)


@given(_FORMATS, _ENDS, _ENDS)
def test_covers_the_range(format_: FormatRequest, a: float, b: float) -> None:
    """Every value of the range is within half a code, but for the half code by which an asymmetric zero moves it."""
    low, high = min(a, b), max(a, b)
    scale, zero_point = format_.fit_one(low, high)
    assert format_.minimum <= zero_point <= format_.maximum
    encoding = Format(format_.bits, format_.signed, (scale,), zero_point=zero_point, narrow=format_.narrow)
    values = np.array([low, high, 0.0], np.float32)
    error = np.abs(encoding.dequantize(encoding.quantize(values)).astype(np.float64) - values) / scale
    allowed = 0.5 if format_.symmetric else 1.0
    assert error.max() <= allowed + 2.0 ** (format_.bits - 21)
    assert error[2] == 0.0
    if format_.pow2:
        assert math.frexp(scale)[0] == 0.5


@given(st.integers(2, 16), _ENDS, _ENDS)
def test_no_finer_scale_covers(bits: int, a: float, b: float) -> None:
    """A scale that is wider than needed would pass every other test."""
    low, high = min(a, b), max(a, b)
    for format_ in (FormatRequest(bits), FormatRequest(bits, symmetric=False), FormatRequest(bits, signed=False)):
        scale, _ = format_.fit_one(low, high)
        extent = max(high, 0.0) - min(low, 0.0)
        if extent == 0.0:
            continue
        bound = max(-low, high)
        codes = bound / (2 ** (bits - 1) - 1) if format_.symmetric else extent / (2**bits - 1)
        if format_.symmetric and not format_.signed and low >= 0.0:
            codes = bound / (2**bits - 1)
        assert scale == pytest.approx(codes, rel=1e-6)


def test_arrays() -> None:
    """Arrays give the same results as single values."""
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.standard_normal((2, 3, 5)), axis=0)
    low[0, 0] = high[0, 0] = 0.0
    for options in ({}, {"symmetric": False}, {"symmetric": False, "pow2": True}, {"scale_bits": 5}, {"signed": False}):
        format_ = FormatRequest(6, **options)
        scale, zero_point = format_.fit(low, high)
        assert (scale.shape, zero_point.shape, zero_point.dtype) == ((3, 5), (3, 5), np.int64)
        for k in np.ndindex(3, 5):
            assert (float(np.float32(scale[k])), int(zero_point[k])) == format_.fit_one(low[k], high[k])


@pytest.mark.parametrize(
    ("scale", "expected"), [(1.0, 1.0), (1.0000001, 2.0), (0.3, 0.5), (2.0**-40, 2.0**-40), (5.0, 8.0)]
)
def test_power_of_two(scale: float, expected: float) -> None:
    assert power_of_two_from(scale).item() == expected
    assert is_power_of_two(scale) == (scale == expected)


@pytest.mark.parametrize("value", [0.0, -0.5, math.inf, math.nan, 3.0, 1.0 + 2.0**-52])
def test_no_power_of_two(value: float) -> None:
    assert not is_power_of_two(value)


@given(st.floats(1e-12, 1e12), st.integers(2, 24))
def test_multiplier_and_shift(scale: float, bits: int) -> None:
    a, n = (int(v) for v in multiplier_and_shift(scale, bits))
    assert 2 ** (bits - 1) - 1 <= a <= 2**bits - 1
    approximated = math.ldexp(a, -n)
    assert 0.0 <= (scale - approximated) / scale <= 2.0 ** (1 - bits)
    assert n == math.floor(math.log2((2**bits - 1) / scale) + 1e-12) or abs(math.log2((2**bits - 1) / scale) % 1) < 1e-9
    assert float(np.float32(approximated)) == approximated


def test_scales_as_multiplier_and_shift() -> None:
    assert FormatRequest(8, scale_bits=15).fit_one(-1.0, 1.0)[0] == math.floor(2**21 / 127) / 2**21
    assert FormatRequest(8, scale_bits=2).fit_one(-1.0, 1.0)[0] == 2.0**-7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0}, "bits = 0 .*Supported: 1 to 32"),
        ({"bits": 33}, "bits = 33"),
        ({"levels": "full"}, "levels = 'full'.*" + ", ".join(LEVELS)),
        ({"narrow": True, "signed": False}, "narrow = true with signed = false"),
        ({"narrow": True, "levels": "min-code"}, "levels = 'min-code' with narrow = true"),
        ({"symmetric": False, "levels": "half-range"}, "levels = 'half-range' with .*symmetric = false"),
        ({"bits": 1, "signed": False}, "bits = 1"),
        ({"bits": 1, "symmetric": False}, "bits = 1"),
        ({"zero_point": 128}, r"zero_point = 128 .*-128 \.\. 127"),
        ({"zero_point": -1, "signed": False}, r"zero_point = -1 .*0 \.\. 255"),
        ({"scale_bits": 25}, "scale_bits = 25"),
        ({"scale_bits": 1}, "scale_bits = 1.*2 to 24"),
    ],
)
def test_refused_formats(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FormatRequest(**{"bits": 8, **options})


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (1.0, 0.5, "from 1 to 0.5: its minimum is above its maximum"),
        (math.nan, 1.0, "not finite"),
        (0.0, math.inf, "to inf is not finite"),
    ],
)
def test_refused_ranges(low: float, high: float, message: str) -> None:
    for symmetric in (True, False):
        with pytest.raises(UsageError, match=message):
            FormatRequest(8, symmetric=symmetric).fit_one(low, high)
