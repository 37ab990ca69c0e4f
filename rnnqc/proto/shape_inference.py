"""onnx's shape inference, with bounded work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from rnnqc.proto.graph_walks import blocks_of, inner_graphs, named_tensors

LARGEST_RANGE = 2**16
LONG_RANGE = 2**5
"""A Range with more elements is not a shape."""
_HIDDEN = "RangeWhoseValuesAreNotFollowed"
LARGEST_LOAN = 64
INFERENCE_ERRORS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError)
"""Errors of `infer_shapes` for models that contradict themselves."""
_MICROSOFT = "com.microsoft"
_SHAPED_LIKE = {
    "FusedConv": "Conv", "FusedGemm": "Gemm", "FusedMatMul": "MatMul",
    "Gelu": "Identity", "QuickGelu": "Identity", "FastGelu": "Identity", "BiasGelu": "Identity",
}  # fmt: skip
"""Operators of onnxruntime's optimizer, whose shapes onnx does not know, with operators of the same result shape."""
_TURNS = ("transA", "transB", "transBatchA", "transBatchB")
WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
SMALL = 1024
"""Elements of a constant that may be a shape, an axis or a bound."""


def sizes_of(shape: onnx.TensorShapeProto) -> list[int | str | None]:
    """Returns the dimensions of a shape: sizes, names, and None for unknown ones."""
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in shape.dim]


def skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy for `infer_shapes`, without declared inner shapes, and large constants without contents."""
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    copy.graph.name = proto.graph.name or "shapes"
    for field in ("node", "input", "output"):
        getattr(copy.graph, field).extend(getattr(proto.graph, field))
    for tensor in proto.graph.initializer:
        held = copy.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if math.prod(tensor.dims) <= SMALL and not tensor.external_data:
            held.CopyFrom(tensor)
    return copy


def infer_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infers shapes from those of the inputs, from constants, and from values computed from shapes.

    onnx 1.23 computes every value of a Range, however many a small model requests. If a Range has many elements, or a
    number that is not directly constant, data propagation is off. A Range that is longer than any shape, such as the
    indices of a table, is hidden from data propagation, because it takes most of the time.

    Operators fused by onnxruntime's optimizer get the shapes of the operators before fusion.

    onnx does not look for constants in outer graphs. In the result, the bodies of If, Loop and Scan have copies of the
    small ones that they read.

    Raises:
        Exception: One of INFERENCE_ERRORS: onnx's errors for models that contradict themselves.
    """
    loans = list(_lend_constants(proto.graph, {}))
    nodes = _nodes(proto)
    ranges = _ranges(proto) if any(node.op_type == "Range" for node in nodes) else []
    long = [node for node, size in ranges if LONG_RANGE < size <= LARGEST_RANGE]
    fused = {k: node.op_type for k, node in enumerate(nodes) if _is_fused(node)}
    try:
        for node in long:
            node.op_type = _HIDDEN
        _spell(proto, {k: ("", _SHAPED_LIKE[op]) for k, op in fused.items()})
        follow = all(size <= LARGEST_RANGE for _, size in ranges)
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=follow)
    finally:
        _spell(proto, {k: (_MICROSOFT, op) for k, op in fused.items()})
        for node in long:
            node.op_type = "Range"
        for body, count in loans:
            del body.initializer[len(body.initializer) - count :]
    if long:
        for node in (n for n in _nodes(inferred) if n.op_type == _HIDDEN):
            node.op_type = "Range"
        inferred = onnx.shape_inference.infer_shapes(inferred)
    _spell(inferred, {k: (_MICROSOFT, op) for k, op in fused.items()})
    return inferred


def _nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for block in blocks_of([proto.graph, *proto.functions]) for node in block.node]


def _is_fused(node: onnx.NodeProto) -> bool:
    """Whether the shape of a node is that of its counterpart in `_SHAPED_LIKE`."""
    if node.op_type not in _SHAPED_LIKE or node.domain != _MICROSOFT:
        return False
    return not (node.op_type == "FusedMatMul" and any(a.name in _TURNS and a.i for a in node.attribute))


def _spell(proto: onnx.ModelProto, names: Mapping[int, tuple[str, str]]) -> None:
    """Changes domain and operator of some nodes, given by position."""
    nodes = _nodes(proto) if names else []
    for k, (domain, op) in names.items():
        nodes[k].domain, nodes[k].op_type = domain, op


def declare_shapes(graph: onnx.GraphProto, known: Mapping[str, onnx.TypeProto]) -> None:
    """Declares the types of values in `known`, and removes all other shapes except those of the graph's inputs."""
    del graph.value_info[:]
    listed = {v.name: v for v in graph.output}
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for name in (o for node in graph.node for o in node.output if o in known):
        (listed.get(name) or graph.value_info.add(name=name)).type.CopyFrom(known[name])
    for body in (g for node in graph.node for g in inner_graphs(node)):
        for value in body.input:
            value.type.tensor_type.ClearField("shape")
        declare_shapes(body, known)


def _lend_constants(
    graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[onnx.GraphProto, int]]:
    """Copies small integer constants into the subgraphs that read them; yields each with the number of copies."""
    small = {t.name: t for t in graph.initializer if t.data_type in WHOLE and math.prod(t.dims) <= LARGEST_LOAN}
    seen = {**outer, **small}
    for body in (g for node in graph.node for g in inner_graphs(node)):
        own = {v.name for v in [*body.initializer, *body.input]} | {o for n in body.node for o in n.output}
        read = {name for block in blocks_of([body]) for node in block.node for name in node.input}
        lent = sorted(read & set(seen) - own)
        body.initializer.extend(seen[name] for name in lent)
        yield body, len(lent)
        yield from _lend_constants(body, {k: v for k, v in seen.items() if k not in own})


def _ranges(proto: onnx.ModelProto) -> list[tuple[onnx.NodeProto, float]]:
    """Returns every Range with its number of elements."""
    blocks = list(blocks_of([proto.graph, *proto.functions]))
    ranges = [node for block in blocks for node in block.node if node.op_type == "Range"]
    held = dict(named for block in blocks for named in named_tensors(block))
    return [(node, _size(node, held)) for node in ranges]


def _size(node: onnx.NodeProto, held: dict[str, onnx.TensorProto]) -> float:
    """Returns the number of elements of a Range; infinity if it is not directly constant."""
    if len(node.input) != 3 or any(name not in held for name in node.input):
        return math.inf
    try:
        start, limit, delta = (float(np.ravel(onnx.numpy_helper.to_array(held[name]))[0]) for name in node.input)
        return abs((limit - start) / delta)
    except (ValueError, TypeError, IndexError, ZeroDivisionError):
        return math.inf
