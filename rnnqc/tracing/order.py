"""Converts between the order of a loop's steps and the order of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]


class Order:
    """Converts between the order of a loop's steps and the order of time."""

    def __init__(self, reverse: bool, lens: Array | None, time: int) -> None:
        self.lens = lens
        self._index: Array | None = None
        if lens is not None and reverse:
            # ReverseSequence reverses the first `len` steps of each row.
            t = np.arange(time)[:, None]
            count = np.maximum(lens.astype(np.int64), 1)[None, :]
            self._index = np.where(t < count, count - 1 - t, t)

    def loop(self, x: Array) -> Array:
        """Reorders `[T,B,...]` from time order to the order of the loop's sequences."""
        if self._index is None:
            return x
        return np.take_along_axis(x, self._index.reshape(*self._index.shape, *[1] * (x.ndim - 2)), 0)

    def natural(self, first: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the steps in time order, with 0 beyond the length of each row."""
        if self.lens is None:
            return dict(tensors)
        made = {}
        for name, tensor in tensors.items():
            turned = tensor.each(self.loop) if self._index is not None else tensor
            time = first + np.arange(turned.values.shape[0])[:, None]
            made[name] = turned.masked(time < self.lens[None, :])
        return made
