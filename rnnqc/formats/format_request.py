"""The format that a recipe requests before statistics are known, and the scale and zero point for a range.

Symmetric formats map the real zero to the quantized value 0 (unsigned ones for values of both signs to the middle
value) and differ in the level that the largest magnitude maps to. Asymmetric formats spread all their quantized values
over the range, which is first extended to include zero. Formulas and their sources: docs/ranges.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import UsageError
from rnnqc.formats.format import IntegerFormat
from rnnqc.formats.scales import MULTIPLIER_BITS, SMALLEST_BOUND, multiplier_and_shift, power_of_two_from

Array = npt.NDArray[Any]
MAX_CODE, HALF_RANGE, MIN_CODE = "max-code", "half-range", "min-code"
LEVELS = (MAX_CODE, HALF_RANGE, MIN_CODE)
"""The level that the largest magnitude of a signed symmetric format maps to; with 8 bits 127, 127.5 and 128."""


@dataclass(frozen=True)
class FormatRequest:
    """A recipe's request for a format: everything that does not depend on a range.

    Attributes:
        bits: Width of a quantized value, 1 to 32; 1 is binary.
        signed: Whether quantized values are two's complement.
        narrow: Leave out the lowest quantized value.
        symmetric: Whether the zero point is fixed by the format rather than by the range.
        levels: Signed symmetric formats: the level of the largest magnitude, one of `LEVELS`.
        zero_point: An explicit zero point; None derives it.
        pow2: Round the scale up to a power of two.
        max_fix_position: The scale is at least 2 to the power of minus this.
        scale_bits: Round the scale down to A / 2**n with an integer A of this many bits.

    Raises:
        UsageError: A value is out of range, or two contradict each other.
    """

    bits: int
    signed: bool = True
    narrow: bool = False
    symmetric: bool = True
    levels: str = MAX_CODE
    zero_point: int | None = None
    pow2: bool = False
    max_fix_position: int | None = None
    scale_bits: int | None = None

    def __post_init__(self) -> None:
        """Checks the values; raises UsageError."""
        if not 1 <= self.bits <= 32:
            raise UsageError(f"bits = {self.bits} is not a supported width.", supported="1 to 32")
        if self.levels not in LEVELS:
            raise UsageError(f"levels = {self.levels!r}.", supported=", ".join(LEVELS))
        if self.narrow and not self.signed:
            raise UsageError("narrow = true with signed = false.", supported="signed = true with narrow = true")
        if self.levels != MAX_CODE and (self.narrow or not self.symmetric):
            raise UsageError(
                f"levels = {self.levels!r} with narrow = {str(self.narrow).lower()}, "
                f"symmetric = {str(self.symmetric).lower()}.",
                supported="symmetric = true with narrow = false",
            )
        if self.bits == 1 and not (self.signed and self.symmetric and not self.zero_point):
            raise UsageError(
                "bits = 1 with an unsigned or asymmetric format.", supported="signed symmetric binary formats"
            )
        if self.zero_point is not None and not self.minimum <= self.zero_point <= self.maximum:
            raise UsageError(
                f"zero_point = {self.zero_point} is outside the range of this format.",
                supported=f"{self.minimum} .. {self.maximum}",
            )
        if self.scale_bits is not None and not 2 <= self.scale_bits <= MULTIPLIER_BITS:
            raise UsageError(f"scale_bits = {self.scale_bits}.", supported=f"2 to {MULTIPLIER_BITS}")

    @cached_property
    def integers(self) -> IntegerFormat:
        """The integers, with zero point 0."""
        return IntegerFormat(self.bits, self.signed, narrow=self.narrow)

    @cached_property
    def minimum(self) -> int:
        """The lowest quantized value."""
        return self.integers.minimum

    @cached_property
    def maximum(self) -> int:
        """The highest quantized value."""
        return self.integers.maximum

    def fit(self, low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Computes scales and zero points for many ranges.

        Args:
            low: Lower ends, any shape.
            high: Upper ends, of the same shape.

        Returns:
            float64 scales, whose float32 values are positive and normal, and int64 zero points, of that shape. An empty
            range has scale 1.

        Raises:
            UsageError: An end is not finite, or the lower one is above the upper one.
        """
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        check_range(low, high)
        below, above = np.minimum(low, 0.0), np.maximum(high, 0.0)
        if self.zero_point is not None:
            zero_point = np.full(low.shape, self.zero_point, np.int64)
            scale = self._covering(below, above)
        elif self.symmetric:
            bound = np.maximum(-below, above)
            middle = 0 if self.signed else 2 ** (self.bits - 1)
            zero_point = np.where(low >= 0.0, 0, middle).astype(np.int64)
            scale = self._divided(bound, np.where(low >= 0.0, self._level(True), self._level(False)))
        else:
            steps, extent = self.maximum - self.minimum, above - below
            scale = self._divided(extent, np.float64(steps))
            # Multiply before the division, so that ties stay ties.
            zeros = np.divide(below * steps, extent, out=np.zeros_like(below), where=extent >= SMALLEST_BOUND)
            zero_point = self._from_below(zeros)
        finished = self.finished(scale)
        if self.pow2 and self.zero_point is None and not self.symmetric:
            zero_point = self._from_below(below / finished)
        return finished, zero_point

    def fit_one(self, low: float, high: float) -> tuple[float, int]:
        """Returns scale (rounded to float32) and zero point for one range; as `fit`."""
        scale, zero_point = self.fit(low, high)
        return float(np.float32(scale)), int(zero_point)

    def _level(self, positive: bool) -> float:
        if not self.signed:
            return float(self.maximum if positive else 2 ** (self.bits - 1) - 1)
        half = {MAX_CODE: 0.0, HALF_RANGE: 0.5, MIN_CODE: 1.0}[self.levels]
        return self.maximum + (half if self.bits > 1 else 0.0)

    def _covering(self, below: Array, above: Array) -> Array:
        assert self.zero_point is not None
        up, down = self.maximum - self.zero_point, self.zero_point - self.minimum
        parts = [extent / room for extent, room in ((above, up), (-below, down)) if room > 0]
        return np.asarray(self._divided(np.maximum.reduce(parts), np.float64(1.0)))

    @staticmethod
    def _divided(extent: Array, steps: Array | np.float64) -> Array:
        return np.asarray(np.where(extent < SMALLEST_BOUND, 1.0, extent / steps))

    def _from_below(self, zeros: Array) -> npt.NDArray[np.int64]:
        codes = np.clip(self.minimum - np.rint(zeros), self.minimum, self.maximum)
        return np.asarray(codes, np.int64)

    def finished(self, scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Applies `pow2`, `max_fix_position` and `scale_bits` to positive scales."""
        if self.pow2:
            scale = power_of_two_from(scale)
        if self.max_fix_position is not None:
            scale = np.maximum(scale, np.ldexp(1.0, -self.max_fix_position))
        if self.scale_bits is not None:
            multiplier, shift = multiplier_and_shift(scale, self.scale_bits)
            scale = np.ldexp(multiplier.astype(np.float64), -shift)
        return np.asarray(scale, np.float64)


def check_range(low: npt.ArrayLike, high: npt.ArrayLike) -> None:
    """Refuses an invalid range.

    Raises:
        UsageError: An end is not finite, or the lower one is above the upper one.
    """
    a, b = np.asarray(low), np.asarray(high)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise UsageError(
            f"A range from {_some(a)} to {_some(b)} is not finite.", supported="finite numbers", action="check the data"
        )
    if (a > b).any():
        k = np.unravel_index(int(np.argmax(a > b)), a.shape)
        raise UsageError(
            f"A range from {float(a[k]):g} to {float(b[k]):g}: its minimum is above its maximum.",
            supported="min <= max",
            action="check the statistics file",
        )


def _some(values: Array) -> str:
    bad = values[~np.isfinite(values)] if not np.isfinite(values).all() else values
    return f"{float(bad.flat[0]):g}" if bad.size else "nothing"
