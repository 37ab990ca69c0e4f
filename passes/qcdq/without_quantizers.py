"""Replaces values in a model by the inputs of the quantizers that compute them."""

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
    """Returns the model with some values replaced.

    Args:
        proto: The model; changed in place.
        passed: Maps the name of a value to that of its replacement.
        constants: Maps the name of a value or initializer to its replacement.
        products: Maps the name of a value to another value's name and a matrix; their matmul replaces it.
        activations: Maps the name of a value to an operator and its operand's name; the result replaces the value.
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
