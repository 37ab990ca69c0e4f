"""Compares how two flat models compute a value, without running them.

A digest covers the operators, attributes and constants that a value depends on, independent of names: equal digests
imply equal bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from rnnqc.passes.graph.flat.flat_model import FlatModel

Array = npt.NDArray[Any]
_SIZE = 16


class FlatDigests:
    """Digests of the values of a flat model.

    Args:
        flat: The model.
    """

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._fixed: dict[str, bytes] = {}

    def of(self, names: Iterable[str], fed: Mapping[str, str]) -> dict[str, bytes]:
        """Returns a digest for each value: equal ones depend in the same way on equal constants and fed values.

        Args:
            names: Names of values. For a value that is fed as well, its computation from the other fed values counts.
            fed: The fed values, each with a string that represents it.
        """
        known = {value: text.encode() for value, text in fed.items()}
        found: dict[str, bytes] = {}
        for name in names:
            node = self._flat.makers.get(name)
            stack = [name] if node is None else [v for v in node.input if v]
            while stack:
                value = stack[-1]
                maker = self._flat.makers.get(value)
                missing = [] if value in known or maker is None else [v for v in maker.input if v and v not in known]
                if missing:
                    stack += missing
                    continue
                stack.pop()
                if value not in known:
                    known[value] = self._digest(value, maker, known)
            found[name] = known[name] if node is None else self._digest(name, node, known)
        return found

    def _digest(self, name: str, node: onnx.NodeProto | None, known: Mapping[str, bytes]) -> bytes:
        """The digest of a value, from those of its operands."""
        if node is not None and node.op_type == "Identity":
            return known[node.input[0]]
        key = name if node is None else f"{name}:{id(node)}"
        own = self._fixed.get(key)
        if own is None:
            own = self._fixed[key] = _digest_of(self._fixed_parts(name, node))
        if node is None or node.op_type == "Constant":
            return own
        return _digest_of([own, *(known[v] if v else bytes(_SIZE) for v in node.input)])

    def _fixed_parts(self, name: str, node: onnx.NodeProto | None) -> list[bytes]:
        """The parts of a digest that do not depend on other values."""
        array = _constant(node) if node is not None else self._stored(name)
        if array is not None:
            return [repr((array.dtype, array.shape)).encode(), array.tobytes()]
        if node is None:
            return [name.encode()]
        attributes = sorted(node.attribute, key=lambda a: a.name)
        operator = repr((node.domain, node.op_type, list(node.output).index(name)))
        return [operator.encode(), *(a.SerializeToString(deterministic=True) for a in attributes)]

    def _stored(self, name: str) -> Array | None:
        held = self._flat.tensors.get(name)
        return None if held is None else numpy_helper.to_array(held)


def _digest_of(parts: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=_SIZE).digest()


def _constant(node: onnx.NodeProto) -> Array | None:
    """The value of a Constant node; None for other nodes, and for strings and sparse tensors."""
    held = node.attribute[0] if node.op_type == "Constant" and node.attribute else None
    if held is None:
        return None
    if held.name == "value":
        return numpy_helper.to_array(held.t)
    dtype = {"f": np.float32, "i": np.int64}.get(held.name[len("value_") : len("value_") + 1])
    return None if dtype is None else np.asarray(helper.get_attribute_value(held), dtype)
