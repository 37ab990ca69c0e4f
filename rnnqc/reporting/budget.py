"""How much is measured for a report, and how much of that is left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """How much to measure.

    Attributes:
        models: How many models at most.
        seconds: For how long; what is measured depends on the speed of the machine then.
    """

    models: int = 150
    seconds: float = math.inf


class Budget:
    """What is left of the bounds.

    Args:
        bounds: From now on.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.count = 0
        self._start = time.monotonic()

    def spend(self, kept: int = 0) -> bool:
        """Takes one model; False if there is none left beside `kept` ones, or no time."""
        share = 1.0 - kept / self.bounds.models
        late = time.monotonic() - self._start >= self.bounds.seconds * share
        if late or self.count + kept >= self.bounds.models:
            return False
        self.count += 1
        return True
