"""Random formats for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from rnnqc.formats.format import Format
from rnnqc.formats.rounding import Rounding

SCALES = st.floats(2.0**-20, 2.0**20, width=32)


@st.composite
def formats(draw: st.DrawFn, rounding: Rounding | None = None) -> Format:
    """Formats of one scale, 2 to 16 bits, with zero points at the ends and in the middle."""
    bits, signed = draw(st.integers(2, 16)), draw(st.booleans())
    narrow = draw(st.booleans())
    plain = Format(bits, signed, (1.0,), narrow=narrow)
    zero_point = draw(st.sampled_from([0, plain.minimum, plain.maximum, (plain.minimum + plain.maximum) // 2]))
    zero_point = max(zero_point, plain.minimum)
    return Format(
        bits,
        signed,
        (draw(SCALES),),
        zero_point=zero_point,
        narrow=narrow,
        rounding=rounding or draw(st.sampled_from(Rounding)),
    )
