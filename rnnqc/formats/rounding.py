"""The one definition of rounding: how a real number becomes an integer.

By example (x -> integer):

| x    | half_even | half_away | half_up | floor | ceil | half_even_up | toward_zero | away | half_toward_zero |
|------|-----------|-----------|---------|-------|------|--------------|-------------|------|------------------|
|  0.5 |  0        |  1        |  1      |  0    |  1   |  0           |  0          |  1   |  0               |
|  1.5 |  2        |  2        |  2      |  1    |  2   |  2           |  1          |  2   |  1               |
|  2.5 |  2        |  3        |  3      |  2    |  3   |  2           |  2          |  3   |  2               |
| -0.5 |  0        | -1        |  0      | -1    |  0   |  0           |  0          | -1   |  0               |
| -1.5 | -2        | -2        | -1      | -2    | -1   | -1           | -1          | -2   | -1               |
| -2.5 | -2        | -3        | -2      | -3    | -2   | -2           | -2          | -3   | -2               |
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt


class Rounding(enum.Enum):
    """How a real number becomes an integer."""

    HALF_EVEN = "half_even"
    HALF_AWAY = "half_away"
    HALF_UP = "half_up"
    FLOOR = "floor"
    CEIL = "ceil"
    HALF_EVEN_UP = "half_even_up"
    """Half to even above zero, half up below it."""
    TOWARD_ZERO = "toward_zero"
    AWAY = "away"
    """Away from zero."""
    HALF_TOWARD_ZERO = "half_toward_zero"


QONNX_ONLY = (Rounding.AWAY, Rounding.HALF_TOWARD_ZERO)
"""Modes of QONNX Quant nodes that neither recipes nor cells have."""
RECIPE_ROUNDINGS = tuple(r for r in Rounding if r not in QONNX_ONLY)
"""Modes that a recipe may name and that cells compute with."""


def round_to_integer(values: npt.ArrayLike, rounding: Rounding) -> npt.NDArray[Any]:
    """Rounds every value.

    Args:
        values: Real numbers of a float dtype, any shape.
        rounding: The mode.

    Returns:
        Integers of the same dtype and shape. The sign of a zero among them is undefined.
    """
    x = np.asarray(values)
    if rounding is Rounding.HALF_EVEN:
        return np.asarray(np.rint(x))
    if rounding is Rounding.HALF_EVEN_UP:
        return np.asarray(np.where(x < 0, round_to_integer(x, Rounding.HALF_UP), np.rint(x)))
    if rounding in (Rounding.HALF_AWAY, Rounding.HALF_UP):
        # x + 0.5 is itself rounded when x is so large that it is an integer anyway.
        whole = np.abs(x) >= 2.0 ** (np.finfo(x.dtype).nmant)
        if rounding is Rounding.HALF_UP:
            return np.asarray(np.where(whole, x, np.floor(x + x.dtype.type(0.5))))
        return np.asarray(np.where(whole, x, np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)))
    if rounding is Rounding.FLOOR:
        return np.asarray(np.floor(x))
    if rounding is Rounding.TOWARD_ZERO:
        return np.asarray(np.trunc(x))
    if rounding is Rounding.CEIL:
        return np.asarray(np.ceil(x))
    size = np.abs(x) - x.dtype.type(0.5) if rounding is Rounding.HALF_TOWARD_ZERO else np.abs(x)
    return np.asarray(np.sign(x) * np.ceil(size))
