"""Sums whose bits do not depend on the order or the grouping of their terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.scales import times_power_of_two

Array = npt.NDArray[Any]
LIMB_BITS = 30
BLOCK = 2**14
"""Elements at a time, to stay in the cache."""
_HUGE = 1000
"""From this exponent of a sum on, a rounded-up digit may be too large for a float64."""


class ReproducibleSum:
    """A sum of float64 arrays of one shape, held as integers.

    A term `v` is cut at fixed places: `v = q0 2**top + q1 2**(top - 30) + ...`, each `q` the nearest integer to the
    rest, and the `q` are added as int64. `top` is a multiple of 30 such that every term is below `2**(top + 29)`. If a
    later term needs a larger `top`, the digits of earlier ones move down by one: `q0` becomes 0 and the last digit is
    dropped, exactly as if they had been added with that `top`. So any order and any grouping of the same terms gives
    the same integers (Demmel and Nguyen, "Fast Reproducible Floating-Point Summation", 2013).

    Args:
        shape: Shape of every term.
        limbs: Number of digits kept: with n of them, a term loses at most `2**(-30 (n - 1))` of the largest magnitude
            in any term. Up to `2**33` terms.
    """

    def __init__(self, shape: Sequence[int] = (), limbs: int = 3) -> None:
        self.top: int | None = None
        self.limbs: list[npt.NDArray[np.int64]] = [np.zeros(shape, np.int64) for _ in range(limbs)]

    def add(self, term: npt.ArrayLike) -> None:
        """Adds a finite array."""
        given = np.asarray(term, np.float64)
        top = self._top_for(given)
        if top is None:
            return
        if not given.ndim and top + LIMB_BITS <= _HUGE:
            self._add_number(float(given), top)
            return
        for start in range(0, given.size, BLOCK):
            part = slice(start, start + BLOCK)
            rest = given.reshape(-1)[part].copy()
            for limb, digits in zip(self.limbs, _digits(rest, top, len(self.limbs)), strict=True):
                limb.reshape(-1)[part] += digits

    def add_all(self, terms: npt.NDArray[np.float64]) -> None:
        """Adds many terms: the slices of `terms` along its first axis."""
        top = self._top_for(terms)
        if top is not None:
            for limb, digits in zip(self.limbs, _digits(terms.copy(), top, len(self.limbs)), strict=True):
                limb += digits.sum(axis=0)

    def add_at(self, index: npt.NDArray[np.int64], numbers: npt.NDArray[np.float64]) -> None:
        """Adds `numbers[k]` to element `index[k]` of a vector, which may occur several times."""
        top = self._top_for(numbers)
        if top is not None:
            for limb, digits in zip(self.limbs, _digits(numbers.copy(), top, len(self.limbs)), strict=True):
                np.add.at(limb, index, digits)

    def _add_number(self, rest: float, top: int) -> None:
        """Adds a number as `add` does, but without arrays: the same steps, each exact or rounded as in IEEE 754."""
        for k, limb in enumerate(self.limbs):
            digit = round(math.ldexp(rest, LIMB_BITS * k - top))
            limb += digit
            rest -= math.ldexp(digit, top - LIMB_BITS * k)

    def merge(self, other: ReproducibleSum) -> None:
        """Adds all terms of another sum."""
        if other.top is None:
            return
        shift = (self._raise_to(other.top) - other.top) // LIMB_BITS
        for k in range(shift, len(self.limbs)):
            self.limbs[k] += other.limbs[k - shift]

    @property
    def value(self) -> npt.NDArray[np.float64]:
        """The sum as float64."""
        total = np.zeros(self.limbs[0].shape)
        if self.top is not None:
            for k, limb in reversed(list(enumerate(self.limbs))):
                total = total + np.ldexp(limb.astype(np.float64), self.top - LIMB_BITS * k)
        return total

    def regroup(self, index: npt.NDArray[np.int64], size: int) -> None:
        """Sums elements of a vector: element k is added to `index[k]` of a vector of `size`."""
        for k, limb in enumerate(self.limbs):
            self.limbs[k] = np.zeros(size, np.int64)
            np.add.at(self.limbs[k], index, limb)

    def _top_for(self, terms: Array) -> int | None:
        """Raises `self.top` to what `terms` need, and returns it; None if all are zero."""
        largest = float(max(terms.max(), -terms.min())) if terms.size else 0.0
        if largest == 0.0:
            return None
        exponent = math.frexp(largest)[1]  # largest < 2**exponent
        return self._raise_to(-(-(exponent - LIMB_BITS + 1) // LIMB_BITS) * LIMB_BITS)

    def _raise_to(self, top: int) -> int:
        """Raises `self.top` to at least `top`, and returns it."""
        if self.top is None:
            self.top = top
        elif top > self.top:
            shift = min((top - self.top) // LIMB_BITS, len(self.limbs))
            fresh = [np.zeros_like(self.limbs[0]) for _ in range(shift)]
            self.limbs = [*fresh, *self.limbs[: len(self.limbs) - shift]]
            self.top = top
        return self.top


def _digits(rest: npt.NDArray[np.float64], top: int, count: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the digits of finite terms below `2**(top + 29)`, the first ones first; overwrites `rest`."""
    for k in range(count):
        digits = np.rint(times_power_of_two(rest, LIMB_BITS * k - top))
        yield digits.astype(np.int64)
        if k + 1 < count:
            rest -= times_power_of_two(digits, top - LIMB_BITS * k)
