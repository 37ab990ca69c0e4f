"""What the passes of this family have to store: int8 values and scales, worked out from the float weights anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.ir import Model, Node, Value, constant_array, display_name
from rnnqc.passes.analysis.rest_weights import rest_weights
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.graph.constant_expressions import Constants

Array = npt.NDArray[Any]


def expected_scale(array: Array, axis: int) -> Array:
    """float32 scales `[1,...,n,...,1]`: the largest magnitude of each channel becomes 127."""
    others = tuple(k for k in range(array.ndim) if k != axis)
    largest = np.abs(array.astype(np.float64)).max(axis=others, keepdims=True)
    return np.where(largest < 2.0**-100, 1.0, largest / 127.0).astype(np.float32)


def expected_values(array: Array, scale: Array) -> Array:
    """Multiples of the scale, rounded half to even."""
    return np.clip(np.rint(array / scale), -127, 127)


class _WeightsBefore(ConstantCheck):
    """The weights before a pass, with the axis of their scales, by the operator that computes with them."""

    def __init__(self, model: Model) -> None:
        self._weights: list[tuple[str, int, Array, int]] = []
        self._rows: list[tuple[str, Array]] = []
        for weight in rest_weights(model):
            array = constant_array(weight.value)
            assert array is not None
            for use in weight.uses if not weight.refusal[0] else ():
                if use.reads_rows and constant_array(use.node.inputs[1]) is None:
                    self._rows.append((use.path, array))
                if not use.views:
                    self._weights.append((use.path, use.operand, array, weight.axis))


def _nodes(model: Model) -> dict[str, Node]:
    return {f"{path}{display_name(n)}": n for path, graph in model.paths() for n in graph.nodes}


class EmbeddingsCheck(_WeightsBefore):
    """The int8 rows that every Gather reads, and the scales that they are multiplied by."""

    def findings(self, after: Model) -> Findings:
        """Compares tables and scales, each entry."""
        found, nodes = Findings(), _nodes(after)
        for path, array in self._rows:
            gather = nodes[path]
            scale = expected_scale(array, 0)
            found.input(f"int8 rows of {path}", gather, 0, expected_values(array, scale))
            (cast,) = gather.outputs[0].outputs
            (product,) = cast.outputs[0].outputs
            found.input(f"scales of {path}", product.inputs[1].inputs[0], 0, scale)
        return found


class StoredWeightsCheck(_WeightsBefore):
    """The floats that every operator computes with, where no operator turns the weight before."""

    def findings(self, after: Model) -> Findings:
        """Compares what is computed from the stored constants, each entry."""
        found, nodes, constants = Findings(), _nodes(after), Constants(after)
        for path, operand, array, axis in self._weights:
            value: Value = nodes[path].inputs[operand]
            scale = expected_scale(array, axis)
            wanted = expected_values(array, scale).astype(np.float32) * scale
            held = constants.array(value)
            found.array(f"weight of {path}", held, wanted, node=path, constant=value.name)
        return found
