"""Where random choices come from: a seed here, Hypothesis in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

T = TypeVar("T")


class Draws(Protocol):
    """Makes choices; a drawn case depends on them alone."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; simple ones stand first."""

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""

    def boolean(self) -> bool:
        """True or false."""

    def eighths(self, low: float, high: float) -> float:
        """A multiple of 1/8 from `low` to `high`: every float type holds it."""


class SeededDraws:
    """Choices that follow from a seed.

    Args:
        seed: Any whole number from 0 on, or several.
    """

    def __init__(self, seed: int | Sequence[int]) -> None:
        self._rng = np.random.default_rng(seed)

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self._rng.integers(low, high, endpoint=True))

    def boolean(self) -> bool:
        """True or false."""
        return bool(self._rng.integers(2))

    def eighths(self, low: float, high: float) -> float:
        """A multiple of 1/8 from `low` to `high`."""
        return self.integer(int(np.ceil(low * 8)), int(np.floor(high * 8))) / 8
