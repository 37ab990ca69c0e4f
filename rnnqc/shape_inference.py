"""onnx's shape inference, with a bound on what it computes."""

from __future__ import annotations

import math

import numpy as np
import onnx

from rnnqc.validation import blocks_of

LARGEST_RANGE = 2**16


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes that follow from those of its inputs, from constants, and from values made of shapes.

    onnx 1.23 writes the values of a Range down one by one, however many a kilobyte of model asks for. Where there is
    one of many elements, or of a number that does not follow from constants at once, values are not followed.

    Raises:
        Exception: What onnx raises for models that contradict themselves.
    """
    return onnx.shape_inference.infer_shapes(proto, data_prop=_may_follow_values(proto))


def _may_follow_values(proto: onnx.ModelProto) -> bool:
    blocks = list(blocks_of([proto.graph, *proto.functions]))
    ranges = [node for block in blocks for node in block.node if node.op_type == "Range"]
    if not ranges:
        return True
    held: dict[str, onnx.TensorProto] = {}
    for block in blocks:
        if isinstance(block, onnx.GraphProto):
            held.update((t.name, t) for t in block.initializer)
        for node in block.node:
            if node.op_type == "Constant" and node.output:
                held.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return all(_size(node, held) <= LARGEST_RANGE for node in ranges)


def _size(node: onnx.NodeProto, held: dict[str, onnx.TensorProto]) -> float:
    """How many elements a Range has; infinity if it is not known at once."""
    if len(node.input) != 3 or any(name not in held for name in node.input):
        return math.inf
    try:
        start, limit, delta = (float(np.ravel(onnx.numpy_helper.to_array(held[name]))[0]) for name in node.input)
        return abs((limit - start) / delta)
    except (ValueError, TypeError, IndexError, ZeroDivisionError):
        return math.inf
