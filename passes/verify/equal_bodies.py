"""Checks that cells that stay fused keep their function bodies, except for inner names."""

from __future__ import annotations

import onnx

from rnnqc.ir import DOMAIN
from rnnqc.proto.graph_walks import Block, blocks_of, inner_graphs


def changed_body(before: onnx.ModelProto, after: onnx.ModelProto, cell: str) -> str | None:
    """Returns the difference between the functions of the fused node `cell`; None if only inner names differ."""
    first, second = (_body_of(model, cell) for model in (before, after))
    if first is None or second is None:
        return f"no function stands behind {cell!r}"
    names: dict[str, str] = {"": ""}
    kept = ("input", "output", "attribute", "attribute_proto", "opset_import")
    if any(getattr(first, field) != getattr(second, field) for field in kept):
        return f"the function behind {cell!r} has another signature"
    names |= {name: name for name in (*first.input, *first.output)}
    place = _difference(first, second, names)
    if place is None and len(set(names.values())) == len(names):
        return None
    return f"the function behind {cell!r} computes something else: {place or 'two values have one name'}"


def _body_of(model: onnx.ModelProto, cell: str) -> onnx.FunctionProto | None:
    nodes = (n for block in blocks_of([model.graph]) for n in block.node)
    called = next((n.op_type for n in nodes if n.name == cell and n.domain == DOMAIN), None)
    return next((f for f in model.functions if f.domain == DOMAIN and f.name == called), None)


def _difference(first: Block, second: Block, names: dict[str, str]) -> str | None:
    """Returns the first node that differs; adds to `names` the second block's names for values of the first."""
    if isinstance(first, onnx.GraphProto) and isinstance(second, onnx.GraphProto):
        for known in (first.input, second.input), (first.initializer, second.initializer):
            names.update(zip((v.name for v in known[0]), (v.name for v in known[1]), strict=False))
            if [_nameless(v) for v in known[0]] != [_nameless(v) for v in known[1]]:
                return "the inputs of a subgraph"
    if len(first.node) != len(second.node):
        return f"{len(second.node)} nodes instead of {len(first.node)}"
    for one, other in zip(first.node, second.node, strict=True):
        for made, name in zip(one.output, other.output, strict=False):
            names.setdefault(made, name)
        inner = list(zip(inner_graphs(one), inner_graphs(other), strict=False))
        below = next((d for pair in inner if (d := _difference(*pair, names)) is not None), None)
        same = [names.get(v) for v in (*one.input, *one.output)] == [*other.input, *other.output]
        if below is not None or not same or _operator(one) != _operator(other):
            return below or f"{one.op_type} that makes {', '.join(one.output)}"
    if not isinstance(first, onnx.GraphProto) or not isinstance(second, onnx.GraphProto):
        return None
    same = [names.get(v.name) for v in first.output] == [v.name for v in second.output]
    return None if same else "the outputs of a subgraph"


def _operator(node: onnx.NodeProto) -> list[bytes]:
    """Returns a node's operator, attributes and numbers of inputs and outputs, without the contents of subgraphs."""
    attributes = []
    for attribute in node.attribute:
        held = onnx.AttributeProto()
        held.CopyFrom(attribute)
        held.ClearField("g")
        attributes.append(held.SerializeToString(deterministic=True))
    kind = f"{node.domain}::{node.op_type}:{node.overload} {len(node.input)} {len(node.output)}"
    return [kind.encode(), *sorted(attributes)]


def _nameless(value: onnx.ValueInfoProto | onnx.TensorProto) -> bytes:
    held = type(value)()
    held.CopyFrom(value)
    held.ClearField("name")
    return bytes(held.SerializeToString(deterministic=True))
