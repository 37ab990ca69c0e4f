"""The extremes of samples over the same point of all gates of a cell, as of one tensor."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.point_observer import ENOUGH, PointObserver, stacked

Array = npt.NDArray[Any]


class _Run(NamedTuple):
    """One run of a cell: the arrays `[T, B, K]` of its gates, and the mask `[T, B]` of what is no padding."""

    arrays: Sequence[Array]
    valid: npt.NDArray[np.bool_] | None

    @property
    def kind(self) -> tuple[tuple[int, ...], bool]:
        """Runs of the same kind are reduced together."""
        return self.arrays[0].shape, self.valid is None


class GateExtremes:
    """Passes the extremes over all gates to the observers of their points; runs wait until there are many.

    Args:
        observers: The observer of each gate's point.
    """

    def __init__(self, observers: Sequence[PointObserver]) -> None:
        self._observers = observers
        self._waiting: list[_Run] = []
        self._waiting_size = 0

    def update(self, arrays: Sequence[Array], valid: npt.NDArray[np.bool_] | None) -> None:
        """Adds a run of the cell: for each gate an array `[T, B, K]`; `valid` `[T, B]` is False in the padding."""
        self._waiting.append(_Run(arrays, valid))
        self._waiting_size += arrays[0].size
        if self._waiting_size >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Passes on what waits."""
        waiting, self._waiting, self._waiting_size = self._waiting, [], 0
        for _, like in itertools.groupby(waiting, lambda run: run.kind):
            runs = list(like)
            gates = [stacked(arrays) for arrays in zip(*(run.arrays for run in runs), strict=True)]
            lows = functools.reduce(np.minimum, (gate.min(axis=3) for gate in gates))
            highs = functools.reduce(np.maximum, (gate.max(axis=3) for gate in gates))
            if runs[0].valid is None:
                self._add(lows.reshape(len(runs), -1), highs.reshape(len(runs), -1))
                continue
            for run, low, high in zip(runs, lows, highs, strict=True):
                self._add(low[run.valid][None], high[run.valid][None])

    def _add(self, lows: Array, highs: Array) -> None:
        for observer in self._observers:
            observer.update_gates(lows, highs, len(self._observers))
