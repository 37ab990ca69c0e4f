"""One quantizer of fixed-point arithmetic in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "half_even": np.rint,
    "half_away": lambda u: np.sign(u) * np.floor(np.abs(u) + u.dtype.type(0.5)),
    "half_up": lambda u: np.floor(u + u.dtype.type(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
    "half_even_up": lambda u: np.where(u < 0, np.floor(u + u.dtype.type(0.5)), np.rint(u)),
    "toward_zero": np.trunc,
}


@dataclass(frozen=True)
class Quantizer:
    """One entry of the attributes `grid_*`.

    Attributes:
        scale: Real value of 1 LSB; 0 for a quantizer that passes values on unchanged.
        zero_point: Quantized 0.
        low: Lowest quantized value.
        high: Highest quantized value.
        rounding: Name of the rounding.
        real: The type of real values.
        offset: Integer added before rounding.
    """

    scale: np.floating[Any]
    zero_point: int
    low: int
    high: int
    rounding: str
    real: np.dtype[Any]
    offset: int

    def multiples(self, values: Array) -> Array:
        """Quantizes real values; returns quantized values minus the zero point, as real numbers."""
        units = np.asarray(values / self.scale)
        offset = self.real.type(self.offset)
        whole = _ROUNDINGS[self.rounding](units + offset) - offset if offset else _ROUNDINGS[self.rounding](units)
        return np.asarray(np.clip(whole, self.low - self.zero_point, self.high - self.zero_point))

    def code(self, values: Array) -> IntArray:
        """Quantizes real values."""
        return np.asarray(self.multiples(values).astype(np.int64) + self.zero_point)

    def value(self, codes: IntArray) -> Array:
        """Dequantizes."""
        return np.asarray((codes - self.zero_point).astype(self.real) * self.scale)
