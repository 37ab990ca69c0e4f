"""Makes nodes with names below a prefix, shared constants, and provenance in the nodes' metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from rnnqc.ir import CELL_TAG, Constant, Graph, Model, Node, Value, Variable, export_nodes, info, subgraphs, tensor_of


class Builder:
    """Collects the nodes that implement one cell in one graph.

    Args:
        model: The model.
        cell: Name of the cell that the nodes belong to ("" for none), stored in their metadata.
        prefix: Prefix of every node and value name.
    """

    def __init__(self, model: Model, cell: str = "", prefix: str | None = None) -> None:
        self.model = model
        self.cell = cell
        self.prefix = cell if prefix is None else prefix
        self.nodes: list[Node] = []

    def value(self, name: str, dtype: Any = None, shape: Sequence[int | str | None] | None = None) -> Variable:
        """Makes a value with a fresh name below the prefix."""
        name = self.model.fresh_name(self._path(name))
        made = Variable(name, dtype=dtype, shape=None if shape is None else list(shape))
        self.model.hold(made)
        return made

    def op(self, op: str, inputs: Sequence[Value | None], name: str, **attrs: Any) -> Variable:
        """Adds a standard operator with one output, named `name`; None means an absent input."""
        output = self.value(name)
        self._add(op, inputs, [output], self._path(name), None, attrs)
        return output

    def ops(self, op: str, inputs: Sequence[Value | None], names: Sequence[str], **attrs: Any) -> list[Variable]:
        """Adds a standard operator with several outputs; "" means an absent output."""
        outputs = [self.value(n) if n else Variable("") for n in names]
        self._add(op, inputs, outputs, self._path(names[0]), None, attrs)
        return outputs

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        name: str,
        domain: str | None = None,
        **attrs: Any,
    ) -> Node:
        """Adds a node with given output values."""
        return self._add(op, inputs, outputs, self._path(name), domain, attrs)

    def _add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        path: str,
        domain: str | None,
        attrs: dict[str, Any],
    ) -> Node:
        # Values and nodes have separate namespaces: a node has the name of its first output.
        called = path if outputs and outputs[0].name == path else self.model.fresh_name(path)
        node = Node(op, called, attrs, [v if v is not None else Variable("") for v in inputs], outputs, domain)
        if self.cell:
            info(node).metadata[CELL_TAG] = self.cell
        self.nodes.append(node)
        self.model.hold(node)
        return node

    def body(self) -> Builder:
        """Returns a builder for the nodes of a subgraph of this cell."""
        return Builder(self.model, self.cell, self.prefix)

    def graph(self, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> Graph:
        """Makes a subgraph of the nodes collected so far."""
        return Graph(
            nodes=self.nodes, inputs=list(inputs), outputs=list(outputs), name=self._path(name), opset=self.model.opset
        )

    def f32(self, value: Any) -> Value:
        """Makes a float32 constant."""
        return self.model.constant(value, np.float32)

    def i64(self, value: Any) -> Value:
        """Makes an int64 constant."""
        return self.model.constant(value, np.int64)

    def i32(self, value: Any) -> Value:
        """Makes an int32 constant."""
        return self.model.constant(value, np.int32)

    def u8(self, value: Any) -> Value:
        """Makes a uint8 constant."""
        return self.model.constant(value, np.uint8)

    def cast(self, value: Value, dtype: Any, name: str) -> Variable:
        """Adds a Cast to a numpy dtype."""
        return self.op("Cast", [value], name, to=onnx_type(dtype))

    def reduce(self, op: str, value: Value, axes: Sequence[int], name: str, keepdims: int) -> Variable:
        """Adds a reduction; the operator set decides whether axes are an input or an attribute."""
        if self.model.opset >= 18:
            return self.op(op, [value, self.i64(list(axes))], name, keepdims=keepdims)
        return self.op(op, [value], name, axes=list(axes), keepdims=keepdims)

    def reduce_sum(self, value: Value, axes: Sequence[int], name: str, keepdims: int) -> Variable:
        """Adds a ReduceSum, whose axes are an input since operator set 13."""
        return self.op("ReduceSum", [value, self.i64(list(axes))], name, keepdims=keepdims)

    def constant_size(self, value: Value, name: str) -> Variable:
        """Adds the magnitude of integers computed from constants; OpenVINO drops an Abs of such a value."""
        return self.op("Max", [value, self.op("Neg", [value], f"{name}.negated")], name)

    def _path(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


def constants_of(nodes: Sequence[Node]) -> dict[str, Constant]:
    """Returns the constants that nodes read, in subgraphs too, by name, in the order of their first use."""
    constants: dict[str, Constant] = {}
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        for value in node.inputs:
            if isinstance(value, Constant):
                constants.setdefault(value.name, value)
        if node.attrs:
            for _, graph in subgraphs(node):
                constants.update({v.name: v for v in graph.outputs if isinstance(v, Constant)})
                stack.extend(reversed(graph.nodes))
    return constants


def constant_node(constant: Constant) -> onnx.NodeProto:
    """Makes the Constant node that represents a constant in the body of a function."""
    held = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=tensor_of(np.asarray(constant.values)))
    return onnx.NodeProto(op_type="Constant", name=constant.name, output=[constant.name], attribute=[held])


def body_nodes(nodes: Sequence[Node]) -> list[onnx.NodeProto]:
    """Returns `nodes` as the body of a function, preceded by Constant nodes for the constants they read."""
    return [*map(constant_node, constants_of(nodes).values()), *export_nodes(nodes)]


def onnx_type(dtype: Any) -> int:
    """Returns ONNX's number of a numpy dtype."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
