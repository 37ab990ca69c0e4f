"""Infers shapes in a loop's body, as far as they follow from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.ir import Constant, Model, Node, Value, constant_array, dtype_of, export_nodes
from rnnqc.ir.builder import onnx_type
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, Indices
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, infer_shapes

_SMALL = 64  # elements of a constant that may be a shape, an axis or a bound
_MATRIX = 2

Dims = Sequence[Index]
"""Dimensions as expressions: two that are equal are the same in every run."""
Sizes = list[int | str | None]
"""The same as numbers, and names of expressions; None for one that may change from step to step."""


class StepShapes:
    """Infers shapes in one step from its operators alone: shapes declared inside the body are not trusted.

    Args:
        model: The model.
        nodes: The nodes of the step; they have no subgraphs.
        given: The values that change between steps, with their dimensions.
        indices: Provides the dimensions of values from outside.
    """

    def __init__(self, model: Model, nodes: Sequence[Node], given: Sequence[tuple[Value, Dims]], indices: Indices):
        self._names: dict[Index, str] = {}
        known = {v.name for v, _ in given}
        made = {v.name for n in nodes for v in n.outputs}
        proto = onnx.ModelProto(ir_version=model.ir_version)
        proto.opset_import.add(domain="", version=model.opset)
        proto.graph.node.extend(export_nodes(n for n in nodes if not all(v.name in known for v in n.outputs if v.name)))
        for value, dims in given:
            self._declare(proto.graph, value, self.sizes(dims))
        for value in {v.name: v for n in nodes for v in n.inputs if v.name not in known | made | {""}}.values():
            small = not isinstance(value, Constant) or np.prod(value.shape, dtype=np.int64) <= _SMALL
            array = constant_array(value) if small else None
            if array is not None and array.size <= _SMALL:
                proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), value.name))
            else:
                found = indices.dimensions(value)
                self._declare(proto.graph, value, None if found is None else self.sizes(found))
        self._found = self._inferred(proto)
        while self._store_numbers(proto.graph, nodes, indices.constants):
            self._found = self._inferred(proto)

    def of(self, value: Value) -> Sizes | None:
        """The dimensions of a value; None if not even their number is known."""
        return self._found.get(value.name)

    def sizes(self, dims: Dims) -> Sizes:
        """Converts dimensions to the form that `of` returns."""
        return [
            d.number if d.number is not None else self._names.setdefault(d, f"size_{len(self._names)}") for d in dims
        ]

    def _declare(self, graph: onnx.GraphProto, value: Value, sizes: Sizes | None) -> None:
        kind = dtype_of(value)
        if kind is not None:
            graph.input.append(onnx.helper.make_tensor_value_info(value.name, onnx_type(kind), sizes))

    def _store_numbers(self, graph: onnx.GraphProto, nodes: Sequence[Node], constants: Constants) -> bool:
        """Stores integers that follow from the shapes so far, which onnx does not compute: it cannot divide."""
        indices = Indices(constants, lambda v: self.of(v) if v is not None else None)
        left = {name for n in graph.node for name in n.output}
        stored: dict[str, npt.NDArray[Any]] = {}
        for value in (v for n in nodes for v in n.outputs if v.name in left and n.op != "Constant"):
            sizes, kind = self.of(value), dtype_of(value)
            numbers = indices.numbers(value) if kind is not None and kind.kind == "i" else None
            if numbers is not None and sizes is not None and len(sizes) < _MATRIX:
                stored[value.name] = np.array(numbers, kind).reshape([-1] if sizes else [])
        kept = [n for n in graph.node if n.output[0] not in stored]
        del graph.node[:]
        graph.node.extend(kept)
        graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in stored.items())
        return bool(stored)

    def _inferred(self, proto: onnx.ModelProto) -> Mapping[str, Sizes]:
        try:
            graph = infer_shapes(proto).graph
        except INFERENCE_ERRORS:
            return {}
        own = set(self._names.values())
        found: dict[str, Sizes] = {}
        for described in (*graph.input, *graph.value_info):
            tensor = described.type.tensor_type
            if tensor.HasField("shape"):
                found[described.name] = [
                    d.dim_value if d.HasField("dim_value") else d.dim_param if d.dim_param in own else None
                    for d in tensor.shape.dim
                ]
        return found
