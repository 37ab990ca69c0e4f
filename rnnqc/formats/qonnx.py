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

from rnnqc.formats.format import Format
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
"""Rounding modes by name, in upper case: those of Brevitas and of QONNX, whose HALF_UP takes halves away from zero."""


@dataclass(frozen=True, eq=False)
class QonnxQuantizer:
    """One quantizer.

    Attributes:
        scale: float32, any shape that broadcasts with the values.
        zero_point: float32, any shape that broadcasts with the values.
        bits: Width of a code; 1 with `signed` is bipolar: -1 for negative values and +1 for all others.
        signed: Whether codes may be negative.
        narrow: Whether one code at the end is left out, the lowest of signed ones and the highest of unsigned ones.
        rounding: How reals become codes.
    """

    scale: FloatArray
    zero_point: FloatArray
    bits: int
    signed: bool
    narrow: bool
    rounding: Rounding

    @property
    def bipolar(self) -> bool:
        """Whether the codes are -1 and +1."""
        return self.bits == 1 and self.signed

    @property
    def minimum(self) -> int:
        """The lowest code."""
        if self.bipolar:
            return -1
        return int(-(2 ** (self.bits - 1)) + self.narrow) if self.signed else 0

    @property
    def maximum(self) -> int:
        """The highest code."""
        if self.bipolar:
            return 1
        return int(2 ** (self.bits - 1) - 1 if self.signed else 2**self.bits - 1 - self.narrow)

    def codes(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Codes of real values (any shape; computed in float32)."""
        x = np.asarray(values, np.float32)
        if self.bipolar and not self.zero_point.any():
            return np.where(x >= 0, 1, -1).astype(np.int64)
        shifted = np.asarray(x / self.scale + self.zero_point, np.float32)
        if self.bipolar:
            return np.where(shifted >= 0, 1, -1).astype(np.int64)
        # Limits are float32 numbers here, as they are there: 2**31 - 1 is 2**31.
        limits = np.float32(self.minimum), np.float32(self.maximum)
        return np.asarray(np.clip(round_to_integer(shifted, self.rounding), *limits).astype(np.int64))

    def __call__(self, values: npt.ArrayLike) -> FloatArray:
        """Values on the grid, float32."""
        return np.asarray((self.codes(values).astype(np.float32) - self.zero_point) * self.scale, np.float32)

    def same_format(self, other: QonnxQuantizer) -> bool:
        """Whether both have the same codes for the same real values on the grid."""
        return (
            np.array_equal(self.scale.ravel(), other.scale.ravel())
            and np.array_equal(self.zero_point.ravel(), other.zero_point.ravel())
            and (self.minimum, self.maximum) == (other.minimum, other.maximum)
        )

    def format(self, **others: Any) -> PointFormat:
        """The format of values on this grid, with `others` for fields of `Format`; one scale without them."""
        made: dict[str, Any] = {
            "bits": self.bits,
            "signed": self.signed,
            "scale": tuple(float(s) for s in self.scale.ravel()),
            "zero_point": int(self.zero_point.ravel()[0]),
            "narrow": self.narrow,
            "rounding": self.rounding,
        }
        return PointFormat.of(Format(**{**made, **others}))
