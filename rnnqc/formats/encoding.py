"""Number formats: how a real value becomes an integer code. The one definition of rounding and saturation.

`real = scale * (code - zero_point)`, `code = saturate(round(real / scale) + zero_point)`: the division is a true
float32 division and the zero point is added after rounding, as ONNX QuantizeLinear does it in onnxruntime.

Rounding, by example (x -> code):

| x    | half_even | half_away | half_up | floor | ceil | half_even_up | toward_zero |
|------|-----------|-----------|---------|-------|------|--------------|-------------|
|  0.5 |  0        |  1        |  1      |  0    |  1   |  0           |  0          |
|  1.5 |  2        |  2        |  2      |  1    |  2   |  2           |  1          |
|  2.5 |  2        |  3        |  3      |  2    |  3   |  2           |  2          |
| -0.5 |  0        | -1        |  0      | -1    |  0   |  0           |  0          |
| -1.5 | -2        | -2        | -1      | -2    | -1   | -1           | -1          |
| -2.5 | -2        | -3        | -2      | -3    | -2   | -2           | -2          |

A code of one bit is binary: -1 for negative numbers and +1 for all others, so that the scale is half the distance of
the two values.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError

FloatArray = npt.NDArray[np.float32]


class Rounding(enum.Enum):
    """How a real number becomes a whole one."""

    HALF_EVEN = "half_even"
    HALF_AWAY = "half_away"
    HALF_UP = "half_up"
    FLOOR = "floor"
    CEIL = "ceil"
    HALF_EVEN_UP = "half_even_up"
    """Half to even above zero, halves up below."""
    TOWARD_ZERO = "toward_zero"


def round_to_integer(values: npt.ArrayLike, rounding: Rounding) -> npt.NDArray[Any]:
    """Rounds `values` (any shape, float dtype kept)."""
    x = np.asarray(values)
    if rounding is Rounding.HALF_EVEN:
        return np.asarray(np.rint(x))
    if rounding is Rounding.HALF_EVEN_UP:
        return np.asarray(np.where(x < 0, round_to_integer(x, Rounding.HALF_UP), np.rint(x)))
    if rounding in (Rounding.HALF_AWAY, Rounding.HALF_UP):
        # x + 0.5 is itself rounded, once x is so large that it is a whole number anyway.
        whole = np.abs(x) >= 2.0 ** (np.finfo(x.dtype).nmant)
        if rounding is Rounding.HALF_UP:
            return np.asarray(np.where(whole, x, np.floor(x + x.dtype.type(0.5))))
        return np.asarray(np.where(whole, x, np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)))
    if rounding is Rounding.FLOOR:
        return np.asarray(np.floor(x))
    if rounding is Rounding.TOWARD_ZERO:
        return np.asarray(np.trunc(x))
    return np.asarray(np.ceil(x))


@dataclass(frozen=True)
class Encoding:
    """An integer number format with its scale.

    Attributes:
        bits: Width of a code, 1 to 32; 1 is binary, the codes -1 and +1 (signed, zero point 0).
        signed: Whether codes are two's complement.
        scale: Real value of one code; one number, or one per channel along `axis`.
        zero_point: Code of the real value 0.
        narrow: Leave out the lowest code (symmetric signed weights).
        axis: The channel axis of a per-channel scale.
        rounding: How reals become codes.
        zero_points: One for each channel along `axis`; empty: `zero_point` for all.
    """

    bits: int
    signed: bool
    scale: tuple[float, ...]
    zero_point: int = 0
    narrow: bool = False
    axis: int | None = None
    rounding: Rounding = Rounding.HALF_EVEN
    zero_points: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks the values; raises CompileError."""
        if not 1 <= self.bits <= 32:
            raise CompileError(f"bits = {self.bits} is not a code width.", supported="1 to 32")
        if self.bits == 1 and (not self.signed or self.zero_point or any(self.zero_points)):
            raise CompileError(
                f"bits = 1 with signed = {str(self.signed).lower()}, zero_point = {self.zero_point}.",
                supported="binary codes -1 and +1: signed, zero_point = 0",
            )
        if not all(math.isfinite(s) and s > 0 for s in self.scale):
            raise CompileError("A scale is not a positive finite number.", supported="scale > 0")
        if self.axis is None and len(self.scale) != 1:
            raise CompileError(f"{len(self.scale)} scales without a channel axis.", supported="one scale, or an axis")
        if self.zero_points and (self.axis is None or len(self.zero_points) != len(self.scale)):
            raise CompileError(
                f"{len(self.zero_points)} zero points, {len(self.scale)} scales.", supported="as many, along one axis"
            )
        for zero_point in (self.zero_point, *self.zero_points):
            if not self.minimum <= zero_point <= self.maximum:
                raise CompileError(
                    f"zero_point = {zero_point} is no code of this format.",
                    supported=f"{self.minimum} .. {self.maximum}",
                )

    @property
    def minimum(self) -> int:
        """The lowest code."""
        if self.bits == 1:
            return -1
        lowest = -(2 ** (self.bits - 1)) if self.signed else 0
        return lowest + (1 if self.narrow and self.signed else 0)

    @property
    def maximum(self) -> int:
        """The highest code."""
        if self.bits == 1:
            return 1
        return int(2 ** (self.bits - 1) - 1 if self.signed else 2**self.bits - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest numpy dtype that holds a code."""
        width = 8 if self.bits <= 8 else 16 if self.bits <= 16 else 32
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")

    def scale_array(self, rank: int) -> FloatArray:
        """The scale, shaped to broadcast against a tensor of `rank` dimensions."""
        scale = np.asarray(self.scale, dtype=np.float32)
        if self.axis is None:
            return scale.reshape(())
        shape = [1] * rank
        shape[self.axis] = -1
        return scale.reshape(shape)

    def zero_point_array(self, rank: int) -> npt.NDArray[np.int64]:
        """The zero point, shaped to broadcast against a tensor of `rank` dimensions."""
        if not self.zero_points or self.axis is None:
            return np.asarray(self.zero_point, np.int64)
        shape = [1] * rank
        shape[self.axis] = -1
        return np.asarray(self.zero_points, np.int64).reshape(shape)

    def quantize(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Codes of real `values` (any shape; computed in float32), as `dtype`."""
        x = np.asarray(values, dtype=np.float32)
        if self.bits == 1:
            return np.where(x < 0, -1, 1).astype(self.dtype)
        codes = round_to_integer(x / self.scale_array(x.ndim), self.rounding).astype(np.float64)
        codes = codes + self.zero_point_array(x.ndim)
        return np.asarray(np.clip(codes, self.minimum, self.maximum).astype(self.dtype))

    def dequantize(self, codes: npt.ArrayLike) -> FloatArray:
        """Real values of `codes`, float32."""
        q = np.asarray(codes).astype(np.int64)
        q = q - self.zero_point_array(q.ndim)
        return q.astype(np.float32) * self.scale_array(q.ndim)


SMALLEST_BOUND = 2.0**-100
"""Bounds below count as zero: a scale and everything derived from it stay normal float32 numbers."""


def symmetric_scale(bound: npt.ArrayLike, bits: int) -> npt.NDArray[np.float64]:
    """Scale of a symmetric code whose largest magnitude is `bound`; 1 where that is below `SMALLEST_BOUND`."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(np.where(b < SMALLEST_BOUND, 1.0, b / max(2 ** (bits - 1) - 1, 1)))
