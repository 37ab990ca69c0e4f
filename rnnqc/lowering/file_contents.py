"""Describes the largest parts of a lowered file, for files that have grown."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx

from rnnqc.errors import byte_count
from rnnqc.proto.graph_walks import blocks_of, stored_tensors

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
_SMALL = 1024
_OWN_KEYS = "rnnqc."
_NAMED = 2
"""The number of constants that are named."""


def contents(proto: onnx.ModelProto) -> str:
    """Describes the bytes of function bodies, of float constants with the nodes that read the largest, and of the rest.

    The rest are operators with their names and shapes, and rnnqc's metadata. The text is never empty.
    """
    parts = []
    functions = sum(f.ByteSize() for f in proto.functions)
    if functions:
        parts.append(f"function bodies {byte_count(functions)}")
    floats = sorted(_large_floats(proto), key=lambda p: -p[0])
    total = sum(size for size, _ in floats)
    if total:
        named = ", ".join(text for _, text in floats[:_NAMED]) + (", ..." if len(floats) > _NAMED else "")
        parts.append(f"float constants that are still read {byte_count(total)} ({named})")
    operators = sum(m.ByteSize() for held in (proto.graph.node, proto.graph.value_info) for m in held)
    metadata = sum(p.ByteSize() for p in proto.metadata_props if p.key.startswith(_OWN_KEYS))
    parts.append(f"operators and names {byte_count(operators)}")
    parts += [f"metadata of rnnqc {byte_count(metadata)}"] if metadata else []
    return "; ".join(parts)


def _large_floats(proto: onnx.ModelProto) -> Iterator[tuple[int, str]]:
    blocks = list(blocks_of([proto.graph, *proto.functions]))
    floats = [t for b in blocks for t in stored_tensors(b) if t.data_type in _FLOATS]
    sizes = [math.prod(t.dims) * (4 if t.data_type == onnx.TensorProto.FLOAT else 8) for t in floats]
    large = [(t, size) for t, size in zip(floats, sizes, strict=True) if size >= _SMALL]
    readers: dict[str, onnx.NodeProto] = {}
    for node in (n for b in blocks for n in b.node) if large else ():
        for name in node.input:
            readers.setdefault(name, node)
    for tensor, size in large:
        reader = readers.get(tensor.name)
        where = f" by {reader.op_type} {reader.name!r}" if reader is not None else ""
        yield size, f"{tensor.name!r}{where}" if tensor.name else byte_count(size)
