"""NaN and infinities in data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def first_not_finite(array: Array) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity in a float array; None if all values are finite."""
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.True_
    return None if finite.all() else tuple(int(k) for k in np.argwhere(~finite)[0])


def not_finite_texts(feeds: Iterable[Mapping[str, Array]], unit: str = "sample") -> list[str]:
    """Returns a sentence for each input that holds NaN or infinities: how many, and where the first is.

    Args:
        feeds: Arrays by name, in order.
        unit: The name of a feed: "sample", or "call" of a stream.
    """
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for number, feed in enumerate(feeds):
        for name, array in feed.items():
            place = first_not_finite(array)
            if place is None:
                continue
            first.setdefault(name, f"the first is {array[place]} in {unit} {number} at {list(place)}")
            counts[name] = counts.get(name, 0) + int(array.size - np.isfinite(array).sum())
    return [
        f"input {name!r} of the data has {count} value(s) that are NaN or infinite ({first[name]}): quantized layers "
        "count NaN as 0 and saturate at infinities, float layers may hand them on."
        for name, count in counts.items()
    ]
