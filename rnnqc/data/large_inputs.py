"""Finds finite inputs beyond the range in which quantized layers compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

LARGEST = 2.0**60
"""The magnitude at which rows, states and cells of quantized layers saturate (docs/quant_lstm_cell.md)."""
ACTION = "scale the data, or look for what makes such numbers: they are no data that layers are trained on"


class LargeInputs:
    """Collects, feed by feed, the inputs with finite values beyond `LARGEST`.

    Attributes:
        largest: Their largest magnitudes, by name.
    """

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}

    def look(self, feed: Mapping[str, npt.NDArray[Any]]) -> None:
        """Checks the arrays of one feed, of any types and shapes. NaN and infinities are not its concern."""
        for name, array in feed.items():
            if array.dtype.kind != "f" or array.dtype.itemsize < np.dtype(np.float32).itemsize or not array.size:
                continue
            size = np.abs(array)
            top = float(np.max(size, initial=0.0, where=np.isfinite(size)))
            if top > max(LARGEST, self.largest.get(name, 0.0)):
                self.largest[name] = top

    @property
    def texts(self) -> list[str]:
        """Returns one sentence for each such input."""
        return [
            f"input {name!r} has finite values of up to {top:.3g}; quantized layers saturate at 2^60 = {LARGEST:.3g}."
            for name, top in self.largest.items()
        ]
