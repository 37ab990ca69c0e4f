"""A named tensor of a cell over some time steps: real values and quantized values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a cell.

    Where there are codes, `values = (codes - zero_point) * row_scale * scale`, computed in this order in the type of
    the values; a factor that is None is left out.

    Attributes:
        name: Quantization point (`rnnqc.cells.types`) where there is one.
        values: Real values `[T,B,K]`.
        codes: Integers `[T,B,K]`, or None for a value that is not quantized.
        scale: A number or one for each column `[K]`; None for 1.
        row_scale: One for each row `[T,B,1]`, or None.
        zero_point: The quantized 0: a number, or one for each row `[T,B,1]`.
    """

    name: str
    values: Array
    codes: Array | None = None
    scale: Array | None = None
    row_scale: Array | None = None
    zero_point: Array | None = None

    def at(self, part: slice | Array) -> Tensor:
        """Returns some of the steps."""
        return self.each(lambda a: a[part])

    def row(self, number: int) -> Tensor:
        """Returns one row of the batch; the axis stays."""
        return self.each(lambda a: a[:, number : number + 1])

    def each(self, change: Any) -> Tensor:
        """Applies `change` to every array that has axes for time and batch."""
        zero = self.zero_point
        return replace(
            self,
            values=change(self.values),
            codes=None if self.codes is None else change(self.codes),
            row_scale=None if self.row_scale is None else change(self.row_scale),
            zero_point=change(zero) if zero is not None and zero.ndim else zero,
        )

    def masked(self, valid: Array) -> Tensor:
        """Sets everything to 0 where `valid` `[T,B]` is False."""
        keep = valid[:, :, None]
        zero = np.asarray(0) if self.zero_point is None else self.zero_point
        codes = self.codes
        if codes is not None:
            codes = np.where(keep, codes, zero.astype(codes.dtype))
        return replace(self, values=np.where(keep, self.values, self.values.dtype.type(0)), codes=codes)

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays to store, by name."""
        made = {self.name: self.values}
        for suffix in ("codes", "zero_point", "row_scale", "scale"):
            held = getattr(self, suffix)
            if held is not None:
                made[f"{self.name}.{suffix}"] = held
        return made


def dequantized(
    name: str,
    codes: Array,
    *,
    scale: Any = None,
    row_scale: Array | None = None,
    zero_point: Any = 0,
    real: npt.DTypeLike = np.float32,
) -> Tensor:
    """Makes a tensor from quantized values."""
    dtype = np.dtype(real)
    zero = np.asarray(zero_point, np.int64)
    whole = codes if codes.dtype.kind in "iu" else np.asarray(codes, np.int64)
    less = whole.astype(np.int64) - zero if zero.any() else whole
    values = np.asarray(less.astype(dtype))
    row = None if row_scale is None else np.asarray(row_scale, dtype)
    factor = None if scale is None else np.asarray(scale, dtype)
    for f in (row, factor):
        if f is not None:
            values = np.asarray(values * f)
    return Tensor(name, values, whole, factor, row, zero)
