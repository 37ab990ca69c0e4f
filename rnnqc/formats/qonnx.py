"""Quantizers as Brevitas and QONNX export them: float32 in, float32 out, with the zero point added before rounding.

    code(x)  = clamp(round(fl(fl(x / scale) + zero_point)), minimum, maximum)
    value(x) = fl(fl(code - zero_point) * scale)

`Format` in rnnqc/formats/format.py, which follows ONNX QuantizeLinear, adds the zero point after rounding. They differ
at ties, and wherever the sum itself is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.rounding import Rounding, round_to_integer

FloatArray = npt.NDArray[np.float32]

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")


ROUNDINGS: Mapping[str, Rounding] = {
    "ROUND": Rounding.HALF_EVEN,
    "HALF_EVEN": Rounding.HALF_EVEN,
    "FLOOR": Rounding.FLOOR,
    "CEIL": Rounding.CEIL,
    "ROUND_TO_ZERO": Rounding.TOWARD_ZERO,
    "DOWN": Rounding.TOWARD_ZERO,
    "UP": Rounding.AWAY,
    "HALF_UP": Rounding.HALF_AWAY,
    "HALF_DOWN": Rounding.HALF_TOWARD_ZERO,
    "DPU": Rounding.HALF_EVEN_UP,
}
"""Rounding modes by upper-case name: those of Brevitas and of QONNX, whose HALF_UP rounds halves away from zero."""


@dataclass(frozen=True, eq=False)
class QonnxQuantizer:
    """The parameters of one Quant node, with scales of any shape and any zero point; `format` gives its point format.

    Attributes:
        scale: float32, any shape that broadcasts with the values.
        zero_point: float32, any shape that broadcasts with the values.
        bits: Width of a quantized value; 1 with `signed` is bipolar: -1 for negative values and +1 for all others.
        signed: Whether quantized values may be negative.
        narrow: Whether one quantized value is left out, the lowest of signed ones and the highest of unsigned ones.
        rounding: How reals become integers.
    """

    scale: FloatArray
    zero_point: FloatArray
    bits: int
    signed: bool
    narrow: bool
    rounding: Rounding

    @property
    def integers(self) -> IntegerFormat:
        """The integers without the zero point, which need not be an integer in range here."""
        return IntegerFormat(self.bits, self.signed, narrow=self.narrow, rounding=self.rounding)

    @property
    def bipolar(self) -> bool:
        """Whether the quantized values are -1 and +1."""
        return self.integers.binary

    @property
    def minimum(self) -> int:
        """The lowest quantized value."""
        return self.integers.minimum

    @property
    def maximum(self) -> int:
        """The highest quantized value; narrow unsigned formats leave out the last one."""
        return self.integers.maximum - int(self.narrow and not self.signed)

    def codes(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Quantizes real values (any shape; computed in float32)."""
        x = np.asarray(values, np.float32)
        if self.bipolar and not self.zero_point.any():
            return np.where(x >= 0, 1, -1).astype(np.int64)
        shifted = np.asarray(x / self.scale + self.zero_point, np.float32)
        if self.bipolar:
            return np.where(shifted >= 0, 1, -1).astype(np.int64)
        # Limits are float32 numbers, as in Brevitas: 2**31 - 1 becomes 2**31.
        limits = np.float32(self.minimum), np.float32(self.maximum)
        return np.asarray(np.clip(round_to_integer(shifted, self.rounding), *limits).astype(np.int64))

    def __call__(self, values: npt.ArrayLike) -> FloatArray:
        """Quantizes and dequantizes `values`, float32."""
        return np.asarray((self.codes(values).astype(np.float32) - self.zero_point) * self.scale, np.float32)

    def same_format(self, other: QonnxQuantizer) -> bool:
        """Whether both have the same scale, zero point and limits; they may round differently."""
        return (
            np.array_equal(self.scale.ravel(), other.scale.ravel())
            and np.array_equal(self.zero_point.ravel(), other.zero_point.ravel())
            and (self.minimum, self.maximum) == (other.minimum, other.maximum)
        )

    def format(self, **others: Any) -> PointFormat:
        """Returns the format of the results, with `others` as fields of `Format`; the zero point is the first one."""
        made: dict[str, Any] = {
            "bits": self.bits,
            "signed": self.signed,
            "scale": tuple(float(s) for s in self.scale.ravel()),
            "zero_point": int(self.zero_point.ravel()[0]),
            "narrow": self.narrow,
            "rounding": self.rounding,
        }
        return PointFormat.of(Format(**{**made, **others}))
