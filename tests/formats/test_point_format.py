"""The format of a quantization point in files.

What these would catch: a field that is lost or changed on the way to a file and back, a scale of an integer form that
stands in a file twice, a default that is written, values that make no format and pass.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.format import Format, FormatError, IntegerFormat
from rnnqc.formats.point_format import CHAINED, FLOAT, ROWS, STATIC, PointFormat
from rnnqc.formats.rounding import Rounding
from tests.generate.format_strategies import formats

PER_CHANNEL = Format(4, True, (0.5, 0.25), axis=1, zero_points=(1, -2))


@st.composite
def point_formats(draw: st.DrawFn) -> PointFormat:
    """Points of every mode, with any options: also those that no recipe gives together."""
    held: IntegerFormat = draw(formats())
    mode = draw(st.sampled_from([STATIC, ROWS, CHAINED]))
    if mode == ROWS:
        held = IntegerFormat(
            held.bits, held.signed, zero_point=held.zero_point, narrow=held.narrow, rounding=held.rounding
        )
    elif draw(st.booleans()):
        held = PER_CHANNEL
    return PointFormat(
        held.bits,
        held,
        mode,
        table=draw(st.sampled_from([None, "exact", "vitis"])),
        bound=draw(st.sampled_from([None, 1.0])),
        chain=draw(st.sampled_from([None, False, True])),
        rounded_output=draw(st.booleans()),
        on_grid=draw(st.booleans()),
        compensation=draw(st.booleans()),
        bias_correction=draw(st.booleans()),
        shift_limits=draw(st.booleans()),
    )


@given(point_formats())
def test_through_json(point: PointFormat) -> None:
    assert PointFormat.from_dict(json.loads(json.dumps(point.as_dict()))) == point


@given(point_formats())
def test_without_channel_scales_through_json(point: PointFormat) -> None:
    """An integer form repeats no scales of channels; what else a file says stays when it is read and written."""
    folded = point.without_channel_scales()
    data = json.loads(json.dumps(folded.as_dict()))
    assert PointFormat.from_dict(data) == folded
    assert data == {k: v for k, v in point.as_dict().items() if k != "scale" or len(point.scale) < 2}


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (FLOAT, {"bits": None}),
        (PointFormat(24), {"bits": 24}),
        (PointFormat(16, table="vitis"), {"bits": 16, "table": "vitis"}),
        (PointFormat(rounded_output=True), {"rounded_output": True}),
    ],
)
def test_points_without_a_format(point: PointFormat, expected: dict[str, Any]) -> None:
    assert point.as_dict() == expected
    assert PointFormat.from_dict(expected) == point
    assert not point.is_quantized


@pytest.mark.parametrize("options", [{"group_size": 32}, {"wide_channels": 0.1}])
def test_weights_with_multipliers_or_wide_channels_are_stored_in_8_bits(options: dict[str, Any]) -> None:
    stored = Format(8, True, (0.5, 0.25), axis=1, narrow=True)
    point = PointFormat(4, stored, STATIC, **options)
    assert point.as_dict()["bits"] == 4
    assert PointFormat.from_dict(point.as_dict()) == point


def test_what_a_file_says_is_checked() -> None:
    data = PointFormat.of(Format(8, True, (0.5,))).as_dict()
    for wrong in ({"scale": [-1.0]}, {"zero_point": 128}, {"bits": 40}, {"zero_points": [1]}):
        with pytest.raises(FormatError):
            PointFormat.from_dict({**data, **wrong})


def test_one_scale_for_equal_channels() -> None:
    same = PointFormat.of(Format(8, True, (0.5, 0.5, 0.5), axis=1))
    assert same.with_one_scale() == PointFormat.of(Format(8, True, (0.5,)))
    for point in (FLOAT, PointFormat.of(PER_CHANNEL), PointFormat.of(IntegerFormat(8, False))):
        assert point.with_one_scale() == point


def test_other_rounding() -> None:
    point = PointFormat.of(Format(8, True, (0.5,)), bound=1.0)
    made = point.with_rounding(Rounding.FLOOR)
    assert made == replace(point, format=Format(8, True, (0.5,), rounding=Rounding.FLOOR))


def test_every_field_is_documented() -> None:
    for record in (PointFormat, IntegerFormat):
        assert record.__doc__ is not None
        assert [f.name for f in fields(record) if f"        {f.name}: " not in record.__doc__] == []
