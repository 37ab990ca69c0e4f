"""Rounding in exact fractions, from the definitions: what `round_to_integer` is compared with."""

from __future__ import annotations

import math
from fractions import Fraction

from rnnqc.formats.rounding import Rounding

DIRECTED = (Rounding.FLOOR, Rounding.CEIL, Rounding.TOWARD_ZERO, Rounding.AWAY)
"""Modes that may be a whole step away from the real number; all others are half a step away at most."""


def exact_round(x: Fraction, rounding: Rounding) -> int:
    """The integer that `x` becomes."""
    low = math.floor(x)
    rest, even = x - low, low + low % 2
    if rounding is Rounding.TOWARD_ZERO:
        return math.trunc(x)
    if rounding is Rounding.AWAY:
        return math.ceil(x) if x > 0 else low
    if rounding is Rounding.FLOOR:
        return low
    if rounding is Rounding.CEIL:
        return math.ceil(x)
    if rest != Fraction(1, 2):
        return low + (rest > Fraction(1, 2))
    return {
        Rounding.HALF_EVEN: even,
        Rounding.HALF_AWAY: low + (x > 0),
        Rounding.HALF_UP: low + 1,
        Rounding.HALF_EVEN_UP: even if x > 0 else low + 1,
        Rounding.HALF_TOWARD_ZERO: low + (x < 0),
    }[rounding]
