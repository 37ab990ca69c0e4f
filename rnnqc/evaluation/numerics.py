"""The numeric changes that passes declare, and how to check them."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        ok: Whether the results are as close as declared.
        text: The difference in words.
    """

    ok: bool
    text: str


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    left, right = np.asarray(a), np.asarray(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def decibels(signal: float, noise: float) -> float:
    """Returns the ratio of two powers in dB; infinity without noise, minus infinity without a signal."""
    if noise == 0.0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf


def sqnr_db(reference: npt.ArrayLike, approximation: npt.ArrayLike) -> float:
    """Returns the signal-to-quantization-noise ratio in dB, in float64; infinity if equal; finite entries only."""
    a = np.asarray(reference, dtype=np.float64).ravel()
    b = np.asarray(approximation, dtype=np.float64).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    return decibels(float(np.sum(a**2)), float(np.sum((a - b) ** 2)))


def max_abs(reference: npt.ArrayLike, approximation: npt.ArrayLike) -> float:
    """Returns the largest absolute difference; 0 for empty arrays, infinity where only one side is finite."""
    a = np.asarray(reference, dtype=np.float64)
    b = np.asarray(approximation, dtype=np.float64)
    if a.size == 0:
        return 0.0
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(a - b))
    return float(np.max(np.where(np.isnan(difference), np.inf, difference)))


class Numerics(abc.ABC):
    """The numeric change that a pass may make."""

    @abc.abstractmethod
    def compare(self, before: Array, after: Array) -> Verdict:
        """Compares one value before and after."""

    def check(self, before: Array, after: Array) -> Verdict:
        """Compares shape and type, then the values."""
        if before.shape != after.shape:
            return Verdict(False, f"shape {list(before.shape)} became {list(after.shape)}")
        if before.dtype != after.dtype:
            return Verdict(False, f"type {before.dtype} became {after.dtype}")
        if before.dtype.kind not in "fiub":
            return Verdict(bool(np.array_equal(before, after)), "not numeric")
        return self.compare(before, after)


@dataclass(frozen=True)
class Bitwise(Numerics):
    """No change: the values are bit-exact, except for the sign of a zero."""

    def compare(self, before: Array, after: Array) -> Verdict:
        """Compares for equality; NaN equals NaN."""
        equal = np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
        return Verdict(
            equal, "bit-exact" if equal else f"max abs difference {max_abs(before, after):.3g}, declared bit-exact"
        )

    def __str__(self) -> str:
        return "bit-exact"


@dataclass(frozen=True)
class Close(Numerics):
    """A rounding: floats differ by at most `share` of their largest magnitude, or of 1; integers by at most `share`.

    The bound is relative because float32 values around 18, for example, have steps of 1.9e-6.
    """

    share: float

    def bound(self, before: Array) -> float:
        """Returns the largest absolute difference that is allowed."""
        if before.dtype.kind != "f":
            return self.share
        magnitudes = np.abs(before.astype(np.float64))
        return self.share * float(magnitudes.max(initial=1.0, where=np.isfinite(magnitudes)))

    def compare(self, before: Array, after: Array) -> Verdict:
        """Compares the largest absolute difference with the bound."""
        worst, bound = max_abs(before, after), self.bound(before)
        return Verdict(worst <= bound, f"max abs difference {worst:.3g}, declared {bound:.3g}")

    def __str__(self) -> str:
        return f"max abs difference {self.share:g} of the magnitude"


@dataclass(frozen=True)
class Float16Close(Numerics):
    """Intermediate roundings to float16: a difference of at most 2^-7 of the largest magnitude, or of 1."""

    def compare(self, before: Array, after: Array) -> Verdict:
        """Compares the largest absolute difference with this bound."""
        return Close(2.0**-7).compare(before, after)

    def __str__(self) -> str:
        return "rounding to float16"


@dataclass(frozen=True)
class Lossy(Numerics):
    """A bounded loss: the SQNR is at least `min_sqnr_db`."""

    min_sqnr_db: float

    def compare(self, before: Array, after: Array) -> Verdict:
        """Compares the SQNR with the bound."""
        if before.dtype.kind == "f" and not np.array_equal(np.isfinite(before), np.isfinite(after)):
            return Verdict(False, "other values are infinite or NaN")
        ratio = sqnr_db(before, after)
        return Verdict(ratio >= self.min_sqnr_db, f"SQNR {ratio:.1f} dB, at least {self.min_sqnr_db:g} dB declared")

    def __str__(self) -> str:
        return f"at least {self.min_sqnr_db:g} dB SQNR" if self.min_sqnr_db else "lossy"
