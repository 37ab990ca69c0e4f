"""Keeps results of slow functions of arrays."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class KnownResults:
    """The latest results of a function, by everything that they depend on.

    Args:
        most: The largest number of bytes of all results.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._results: OrderedDict[bytes, Array] = OrderedDict()
        self._size = 0

    def of(self, parts: list[Any], compute: Callable[[], Array]) -> Array:
        """Returns a copy of the result for `parts`: arrays, and values with a `repr` of their own."""
        key = _digest(parts)
        if key not in self._results:
            self._keep(key, compute())
        self._results.move_to_end(key)
        return self._results[key].copy()

    def _keep(self, key: bytes, result: Array) -> None:
        self._results[key] = result
        self._size += result.nbytes
        while self._size > self._most and len(self._results) > 1:
            self._size -= self._results.popitem(last=False)[1].nbytes


def _digest(parts: list[Any]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}{part.strides};".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(f"{part!r};".encode())
    return digest.digest()
