"""Derives the range of input values that a model expects from the constants it normalizes or clips with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]
_SAME = ("Cast", "Identity", "Dropout")
"""Operators that keep shape and meaning."""
_CLIPPED_DEVIATIONS = 2.0
"""The limits of a clipped input count as this many standard deviations from the middle."""


@dataclass(frozen=True)
class Spread:
    """Centre and standard deviation of an input's values; both broadcast to its shape.

    Attributes:
        center: The centre.
        deviation: The standard deviation.
        channels: Whether both are of shape `[C]`, for axis 1 of the input.
    """

    center: Array
    deviation: Array
    channels: bool = False

    def of(self, normal: Array) -> Array:
        """Scales standard normal values; returns them unchanged if the constants do not fit their shape."""
        center, deviation = self.center, self.deviation
        if self.channels:
            center, deviation = (a.reshape(-1, *[1] * max(0, normal.ndim - 2)) for a in (center, deviation))
        try:
            moved = center + deviation * normal
        except ValueError:
            return normal
        return moved if moved.shape == normal.shape else normal


def input_spreads(proto: onnx.ModelProto) -> dict[str, Spread]:
    """Returns the spread of inputs of the main graph that the model normalizes (by constants or BatchNorm) or clips."""
    graph = proto.graph
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    reader = _Reader(constants, readers)
    found = {i.name: reader.spread(i.name) for i in graph.input if i.name not in constants}
    return {name: spread for name, spread in found.items() if spread is not None}


@dataclass(frozen=True)
class _Reader:
    constants: Mapping[str, onnx.TensorProto]
    readers: Mapping[str, list[onnx.NodeProto]]

    def spread(self, name: str) -> Spread | None:
        """Returns the spread of the value `name` from the nodes that read it first."""
        for node in self._first_readers(name):
            if node.op_type == "BatchNormalization":
                return self._batch_normalization(node)
            if node.op_type == "Clip":
                return self._clip(node)
            center = self._shift(node)
            if center is not None:
                return Spread(center, self._divisor(node.output[0]))
        return None

    def _first_readers(self, name: str) -> Iterator[onnx.NodeProto]:
        for node in self.readers.get(name, ()):
            if node.op_type in _SAME and node.input[0] == name:
                yield from self._first_readers(node.output[0])
            elif node.input[0] == name:
                yield node

    def _constant(self, node: onnx.NodeProto, index: int) -> Array | None:
        """A constant float operand whose elements are finite."""
        if index >= len(node.input) or node.input[index] not in self.constants:
            return None
        array = onnx.numpy_helper.to_array(self.constants[node.input[index]])
        return array.astype(np.float64) if array.dtype.kind == "f" and np.isfinite(array).all() else None

    def _shift(self, node: onnx.NodeProto) -> Array | None:
        """The mean that a node subtracts from its first operand; None unless the result is scaled, too."""
        held = self._constant(node, 1)
        if held is None or node.op_type not in ("Sub", "Add"):
            return None
        scaled = any(n.op_type in ("Div", "Mul") for n in self.readers.get(node.output[0], ()))
        return (held if node.op_type == "Sub" else -held) if scaled else None

    def _divisor(self, name: str) -> Array:
        for node in self.readers.get(name, ()):
            held = self._constant(node, 1)
            if held is not None and node.op_type in ("Div", "Mul") and held.all():
                return np.abs(held if node.op_type == "Div" else 1.0 / held)
        return np.ones(())

    def _batch_normalization(self, node: onnx.NodeProto) -> Spread | None:
        mean, variance = self._constant(node, 3), self._constant(node, 4)
        if mean is None or variance is None or mean.ndim != 1:
            return None
        return Spread(mean, np.sqrt(np.maximum(variance, 0.0)), channels=True)

    def _clip(self, node: onnx.NodeProto) -> Spread | None:
        low, high = self._constant(node, 1), self._constant(node, 2)
        if low is None or high is None or not np.all(low < high):
            return None
        return Spread((low + high) / 2, (high - low) / (2 * _CLIPPED_DEVIATIONS))
