"""A model in which some values are what went into the quantizers that make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto

Array = npt.NDArray[Any]


def bypassed(
    proto: onnx.ModelProto,
    passed: Mapping[str, str],
    constants: Mapping[str, Array],
    products: Mapping[str, tuple[str, Array]] | None = None,
    activations: Mapping[str, tuple[str, str]] | None = None,
) -> onnx.ModelProto:
    """The model with other values of some names.

    Args:
        proto: The model; it is changed.
        passed: For the name of a value that of the value it is instead.
        constants: For the name of a value, or of an initializer, what it is instead.
        products: For the name of a value the name of another one and the matrix whose product it is instead.
        activations: For the name of a value an operator and the name of the value that it is computed of instead.
    """
    _replace(proto.graph, passed, constants, products or {}, activations or {})
    return proto


def _replace(
    graph: onnx.GraphProto,
    passed: Mapping[str, str],
    constants: Mapping[str, Array],
    products: Mapping[str, tuple[str, Array]],
    activations: Mapping[str, tuple[str, str]],
) -> None:
    for tensor in graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(constants[tensor.name]), tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _replace(attribute.g, passed, constants, products, activations)
        made = node.output[0] if node.output else ""
        if made in passed:
            _become(node, "Identity", passed[made])
        elif made in constants:
            _become(node, "Constant")
            held = onnx.numpy_helper.from_array(np.ascontiguousarray(constants[made]))
            node.attribute.append(onnx.helper.make_attribute("value", held))
        elif made in activations:
            op, source = activations[made]
            _become(node, op, source)
        elif made in products:
            source, matrix = products[made]
            held = onnx.numpy_helper.from_array(np.ascontiguousarray(matrix), f"{made}.matrix")
            graph.initializer.append(held)
            _become(node, "MatMul", source, held.name)


def _become(node: onnx.NodeProto, op: str, *inputs: str) -> None:
    node.op_type, node.domain = op, ""
    del node.input[:]
    del node.attribute[:]
    node.input.extend(inputs)
