"""Rewrites a protobuf model so that graphsurgeon imports what onnxruntime runs; only names of inner values change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from rnnqc.proto.graph_walks import blocks_of, defined, inner_graphs
from rnnqc.proto.validation import STANDARD_DOMAINS


def respell(proto: onnx.ModelProto) -> None:
    """Changes `proto` in place.

    1. The standard domain is called "" everywhere.
    2. Values of subgraphs get unique names: graphsurgeon confuses a value of a subgraph with an outer value of the same
       name, and cells know their values by name.
    3. Of initializers with the same name only the last stays, which is the effective one.
    4. Dimensions below 0 become unknown.
    5. Values that a subgraph may read before their node is listed are declared: graphsurgeon would make a second value.
    """
    for function in proto.functions:
        function.domain = _domain(function.domain)
        for entry in function.opset_import:
            entry.domain = _domain(entry.domain)
    for entry in proto.opset_import:
        entry.domain = _domain(entry.domain)
    for block in blocks_of([proto.graph, *proto.functions]):
        for node in block.node:
            if node.domain:
                node.domain = _domain(node.domain)
    forget_negative_sizes(proto)
    _make_unique(proto.graph)
    for block in blocks_of([proto.graph]):
        if not isinstance(block, onnx.GraphProto):
            continue
        last = {t.name: k for k, t in enumerate(block.initializer)}
        for k in reversed(range(len(block.initializer))):
            if last[block.initializer[k].name] != k:
                del block.initializer[k]
        if any(inner_graphs(n) for n in block.node):
            known = {v.name for v in [*block.value_info, *block.input, *block.output]}
            names = dict.fromkeys(o for n in block.node for o in n.output if o and o not in known)
            block.value_info.extend(onnx.ValueInfoProto(name=name) for name in names)


def forget_negative_sizes(proto: onnx.ModelProto) -> None:
    """Makes declared dimensions below 0 unknown, in place: exporters write -1, and onnxruntime reads it as unknown.

    A dimension of 0 stays: onnxruntime accepts only empty arrays there.
    """
    for block in blocks_of([proto.graph, *proto.functions]):
        values = [*block.value_info]
        if isinstance(block, onnx.GraphProto):
            values += [*block.input, *block.output]
        for dim in (d for value in values for d in _dims_of(value.type)):
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")


def _dims_of(described: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yields the dimensions of a tensor, or of the elements of a sequence or an optional value."""
    while described.WhichOneof("value") in ("sequence_type", "optional_type"):
        described = getattr(described, described.WhichOneof("value")).elem_type
    kind = described.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(described, kind).shape.dim


def _domain(name: str) -> str:
    return "" if name in STANDARD_DOMAINS else name


def _make_unique(graph: onnx.GraphProto) -> None:
    taken = {name for block in blocks_of([graph]) if isinstance(block, onnx.GraphProto) for name in defined(block)}
    seen: set[str] = set()
    work: list[tuple[onnx.GraphProto, Mapping[str, str]]] = [(graph, {})]
    while work:
        current, renamed = work.pop()
        made = defined(current)
        names = {k: v for k, v in renamed.items() if k not in made}
        for name in sorted(made & seen):
            fresh, k = f"{name}_inner", 1
            while fresh in taken:
                k += 1
                fresh = f"{name}_inner_{k}"
            taken.add(fresh)
            names[name] = fresh
        if names:
            _rename(current, names)
        seen |= made
        work.extend((inner, names) for node in current.node for inner in reversed(inner_graphs(node)))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for field in (node.input, node.output):
            for k, name in enumerate(field):
                if name in names:
                    field[k] = names[name]
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    for value in [*graph.input, *graph.output, *graph.value_info, *tensors]:
        value.name = names.get(value.name, value.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
