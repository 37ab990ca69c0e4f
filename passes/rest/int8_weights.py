"""Float weights stored as int8, with a scale for each channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.formats.format import Format
from rnnqc.formats.scales import symmetric_scale
from rnnqc.formats.weights import blocks
from rnnqc.ir import Constant, Graph, Model, Value, constant_array, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.rest_weights import RestWeight
from rnnqc.passes.base import StoredWeight

BITS = 8


@dataclass
class Int8Weight:
    """One float weight as int8 values.

    Attributes:
        source: The float weight.
        graph: Where it stands, and its int8 values with it.
        values: int8, of the shape of the weight, from -127 to 127.
        scale: float32, `[1,...,n,...,1]`: the largest magnitude of each channel is 127 times its scale.
        axis: The axis of the channels.
    """

    source: Value
    graph: Graph
    values: Constant
    scale: Constant
    axis: int

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of both constants by name."""
        return {c.name: int(np.prod(c.shape)) * np.dtype(c.dtype).itemsize for c in (self.values, self.scale)}

    def stored(self, form: str) -> StoredWeight:
        """For the result of a pass."""
        return StoredWeight(form, self.sizes)

    def as_floats(self, model: Model) -> Value:
        """A value with the floats that the int8 values stand for, made where the weight stands.

        Cast and Mul, which onnxruntime folds when a session is created. A DequantizeLinear it would repeat in every
        run, and make of it and a MatMul one that quantizes its other operand, too: other bits at another level of its
        optimizations.
        """
        b = Builder(model, prefix=safe_name(self.source.name))
        floats = b.op("Mul", [b.cast(self.values, np.float32, "int8.cast"), self.scale], "floats")
        self.graph.nodes[:0] = b.nodes
        return floats


class Int8Weights:
    """The weights of one model that passes store as int8. Passes that share it store a tied weight once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Int8Weight] = {}

    def known(self, weight: RestWeight) -> Int8Weight | None:
        """The weight as int8, with scales along `weight.axis`, if a pass has asked for it; None otherwise."""
        known = self._known.get((id(weight.value), weight.axis))
        return known if known is not None and known.source is weight.value else None

    def of(self, model: Model, weight: RestWeight) -> Int8Weight:
        """The weight as int8, with scales along `weight.axis`; the same object where both are the same."""
        known = self.known(weight)
        if known is None:
            array = constant_array(weight.value)
            assert array is not None
            values, scale = quantized(array, weight.axis)
            name = safe_name(weight.value.name)
            known = Int8Weight(
                weight.value,
                weight.graph,
                model.add_initializer(f"{name}.int8", values, weight.graph),
                model.add_initializer(f"{name}.scale", scale, weight.graph),
                weight.axis,
            )
            self._known[id(weight.value), weight.axis] = known
        return known


def quantized(array: npt.NDArray[np.float32], axis: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """int8 values of a weight, symmetric, with a scale for each channel along `axis`.

    Returns:
        int8 values of the same shape, and float32 scales `[1,...,n,...,1]`.
    """
    channels = np.moveaxis(array, axis, 0)
    rows = channels.reshape(len(channels), -1)
    values = np.empty(rows.shape, np.int8)
    scale = np.empty(len(rows), np.float32)
    for block in blocks(len(rows)):
        part = rows[block]
        scale[block] = symmetric_scale(np.abs(part).max(axis=1, initial=0.0), BITS)
        format_ = Format(BITS, True, narrow=True, axis=0, scale=tuple(map(float, scale[block])))
        values[block] = format_.quantize(part)
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.ascontiguousarray(np.moveaxis(values.reshape(channels.shape), 0, axis)), scale.reshape(shape)
