"""The format of a tensor: the integers that represent its real values.

    quantized = saturate(round(real / scale) + zero_point)          (ONNX QuantizeLinear, then Clip)
    real      = scale * (quantized - zero_point)                    (ONNX DequantizeLinear)

The division is a true float32 division, and the zero point is added after rounding, as onnxruntime does it. QONNX and
Brevitas add it before rounding; their Quant nodes are in `rnnqc.formats.qonnx`. Vitis' fix position p is the scale
2**-p with zero point 0 (`rnnqc.formats.fix_position`).

| here | ONNX | Brevitas, QONNX | Vitis |
|---|---|---|---|
| `scale`, `zero_point` | y_scale, y_zero_point | scale, zeropt | 2**-fix_position, 0 |
| `bits`, `signed`, `narrow` | the type, and a Clip | bitwidth, signed, narrow | bitwidth, signed, - |
| `axis` | axis | the axis of `scale` that is not 1 | - |
| `rounding` | always half_even | rounding_mode | round_method |

One signed bit is binary: negative numbers become -1 and all others +1. The scale is half the distance of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.formats.rounding import Rounding, round_to_integer

FloatArray = npt.NDArray[np.float32]
Constant = npt.NDArray[Any]


class FormatError(CompileError):
    """The values are not a valid format."""


@dataclass(frozen=True)
class IntegerFormat:
    """The integers of a format. Their scale is stored elsewhere: computed for each row, or folded into multipliers.

    Attributes:
        bits: Width of a quantized value, 1 to 32; signed 1 is binary, the values -1 and +1 with zero point 0.
        signed: Whether they are two's complement.
        zero_point: The quantized value of the real 0.
        narrow: Leave out the lowest signed value, as symmetric weights do; no effect on unsigned formats.
        rounding: How reals become integers.
        axis: The channel axis if channels have separate scales; else None.
        zero_points: One for each channel along `axis`; if empty, `zero_point` applies to all.

    Raises:
        FormatError: `bits` or a zero point is out of range.
    """

    bits: int
    signed: bool
    zero_point: int = field(default=0, kw_only=True)
    narrow: bool = field(default=False, kw_only=True)
    rounding: Rounding = field(default=Rounding.HALF_EVEN, kw_only=True)
    axis: int | None = field(default=None, kw_only=True)
    zero_points: tuple[int, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Checks the values; raises FormatError."""
        if not 1 <= self.bits <= 32:
            raise FormatError(f"bits = {self.bits} is not a supported width.", supported="1 to 32")
        if self.binary and not self.is_symmetric:
            raise FormatError(
                f"bits = 1 with signed = true, zero_point = {self.zero_point}.",
                supported="binary values -1 and +1: zero_point = 0",
            )
        self._check_scale()
        for zero_point in (self.zero_point, *self.zero_points):
            if not self.minimum <= zero_point <= self.maximum:
                raise FormatError(
                    f"zero_point = {zero_point} is outside the range of this format.",
                    supported=f"{self.minimum} .. {self.maximum}",
                )

    def _check_scale(self) -> None:
        pass

    @property
    def binary(self) -> bool:
        """Whether the quantized values are -1 and +1."""
        return self.bits == 1 and self.signed

    @property
    def is_symmetric(self) -> bool:
        """Whether 0 is the quantized value of the real 0 in every channel, and there are negative values."""
        return self.signed and not any((self.zero_point, *self.zero_points))

    @property
    def minimum(self) -> int:
        """The lowest quantized value."""
        if self.binary:
            return -1
        lowest = -(2 ** (self.bits - 1)) if self.signed else 0
        return lowest + (1 if self.narrow and self.signed else 0)

    @property
    def maximum(self) -> int:
        """The highest quantized value."""
        if self.binary:
            return 1
        return int(2 ** (self.bits - 1) - 1 if self.signed else 2**self.bits - 1)

    @property
    def low(self) -> int:
        """The lowest quantized value minus the zero point: the lowest multiple of the scale."""
        return self.minimum - self.zero_point

    @property
    def high(self) -> int:
        """The highest quantized value minus the zero point."""
        return self.maximum - self.zero_point

    @property
    def size(self) -> int:
        """The number of quantized values."""
        return 2 if self.binary else self.maximum - self.minimum + 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integer dtype of numpy, and of ONNX, that holds a quantized value."""
        width = 8 if self.bits <= 8 else 16 if self.bits <= 16 else 32
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")

    @property
    def clip(self) -> tuple[int, int] | None:
        """The limits of ONNX Clip on quantized values; None if `dtype` has the same limits."""
        limits = np.iinfo(self.dtype)
        own = self.minimum, self.maximum
        return None if own == (limits.min, limits.max) else own


@dataclass(frozen=True)
class Format(IntegerFormat):
    """A complete format: integers with their scale.

    Attributes:
        scale: Real value of 1 LSB, positive and finite; one number, or one for each channel along `axis`. Used as
            float32.

    Raises:
        FormatError: A scale is not positive and finite, a zero point is out of range, or their numbers do not match.
    """

    scale: tuple[float, ...]

    def _check_scale(self) -> None:
        if not all(math.isfinite(s) and s > 0 for s in self.scale):
            raise FormatError("A scale is not a positive finite number.", supported="scale > 0")
        if self.axis is None and len(self.scale) != 1:
            raise FormatError(f"{len(self.scale)} scales without a channel axis.", supported="one scale, or an axis")
        if self.zero_points and (self.axis is None or len(self.zero_points) != len(self.scale)):
            raise FormatError(
                f"{len(self.zero_points)} zero points, {len(self.scale)} scales.", supported="as many, along one axis"
            )

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest real value of a format with a single scale."""
        (scale,) = self.scale
        return scale * self.low, scale * self.high

    @property
    def all_zero_points(self) -> npt.NDArray[np.int64]:
        """The zero points as int64: `[n]` with one for each channel, else 0-d."""
        return np.asarray(self.zero_points or self.zero_point, np.int64)

    def _shaped(self, values: Constant, rank: int) -> Constant:
        """Reshapes per-channel values to broadcast against a tensor of `rank` dimensions."""
        assert self.axis is not None
        shape = [1] * rank
        shape[self.axis] = -1
        return values.reshape(shape)

    def scale_array(self, rank: int) -> FloatArray:
        """Returns the scale as float32, shaped to broadcast against a tensor of `rank` dimensions."""
        scale = np.asarray(self.scale, dtype=np.float32)
        return scale.reshape(()) if self.axis is None else self._shaped(scale, rank)

    def zero_point_array(self, rank: int) -> npt.NDArray[np.int64]:
        """Returns the zero point as int64, shaped to broadcast against a tensor of `rank` dimensions."""
        if not self.zero_points or self.axis is None:
            return np.asarray(self.zero_point, np.int64)
        return self._shaped(self.all_zero_points, rank)

    def quantize(self, values: npt.ArrayLike) -> Constant:
        """Quantizes real `values` (any shape; computed in float32) to `dtype`."""
        x = np.asarray(values, dtype=np.float32)
        if self.binary:
            return np.where(x < 0, -1, 1).astype(self.dtype)
        quantized = round_to_integer(x / self.scale_array(x.ndim), self.rounding).astype(np.float64)
        quantized = quantized + self.zero_point_array(x.ndim)
        return np.asarray(np.clip(quantized, self.minimum, self.maximum).astype(self.dtype))

    def dequantize(self, quantized: npt.ArrayLike) -> FloatArray:
        """Returns the real values of `quantized` values (any shape), float32."""
        q = np.asarray(quantized).astype(np.int64)
        q = q - self.zero_point_array(q.ndim)
        return q.astype(np.float32) * self.scale_array(q.ndim)

    def fake_quantize(self, values: npt.ArrayLike) -> FloatArray:
        """Quantizes and dequantizes `values`, float32."""
        return self.dequantize(self.quantize(values))

    def linear_parameters(self) -> tuple[FloatArray, Constant]:
        """Returns scale and zero point of ONNX QuantizeLinear and DequantizeLinear: 0-d, or `[n]` with an axis.

        Returns:
            The scale as float32, and the zero point as `dtype`.
        """
        shape = () if self.axis is None else (len(self.scale),)
        scale = np.asarray(self.scale, np.float32).reshape(shape)
        return scale, np.broadcast_to(self.all_zero_points, shape).astype(self.dtype)
