"""From a recipe's settings to the format of a point.

What these would catch: settings that no format has and that a recipe may not ask for, taken without a message; a zero
point that is not in the middle of unsigned values by default.
"""

from __future__ import annotations

import pytest

from rnnqc.formats.format import FormatError
from rnnqc.passes.formats.point_format import integer_format


def test_one_bit_is_signed() -> None:
    """QONNX files have unsigned 1 bit; recipes may not ask for it."""
    with pytest.raises(FormatError, match=r"bits = 1 with signed = false.*binary values -1 and \+1"):
        integer_format({"bits": 1, "signed": False})
    signed = integer_format({"bits": 1})
    assert (signed.minimum, signed.maximum, signed.zero_point) == (-1, 1, 0)


@pytest.mark.parametrize(("bits", "zero_point"), [(8, 128), (4, 8), (16, 2**15)])
def test_unsigned_values_have_their_zero_in_the_middle(bits: int, zero_point: int) -> None:
    made = integer_format({"bits": bits, "signed": False})
    assert (made.minimum, made.maximum, made.zero_point) == (0, 2**bits - 1, zero_point)
    assert integer_format({"bits": bits, "signed": False, "zero_point": 3}).zero_point == 3
