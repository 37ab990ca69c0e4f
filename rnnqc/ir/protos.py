"""Converts protobuf messages to graphs and back; unchanged parts are written as they were read."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter
from onnx_graphsurgeon.importers.onnx_importer import OnnxImporter
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues
from onnx_graphsurgeon.logger import G_LOGGER

from rnnqc.cells.stored_cells import NO_CELLS, joined_texts
from rnnqc.ir.objects import (
    CELL_TAG,
    CELLS_KEY,
    RELEASED_TAG,
    Constant,
    Graph,
    GraphInfo,
    Node,
    NodeInfo,
    Value,
    Variable,
    graph_info,
    info,
    names_in,
    subgraphs,
)
from rnnqc.proto.graph_walks import blocks_of

G_LOGGER.severity = G_LOGGER.ERROR  # it warns about types and attributes that are kept here
_SMALL = 1024
_RAW_TYPES = {
    np.dtype(t): onnx.helper.np_dtype_to_tensor_dtype(np.dtype(t))
    for t in (np.float32, np.int64, np.int32, np.int8, np.uint8, np.float16, np.float64, np.bool_)
}
"""Types that TensorProto stores in the same byte layout as numpy."""


def without_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model without its graph, functions and metadata."""
    header = onnx.ModelProto()
    for descriptor, value in proto.ListFields():
        if descriptor.name in ("graph", "functions", "metadata_props"):
            continue
        if isinstance(value, (int, str, bytes)):
            setattr(header, descriptor.name, value)
        else:
            getattr(header, descriptor.name).extend(value)
    return header


def import_graph(
    proto: onnx.GraphProto, outer: Mapping[str, Value], opset: int, domains: Sequence[onnx.OperatorSetIdProto]
) -> Graph:
    """Imports a graph from a message, and keeps the message beside it.

    Args:
        proto: The message; the graph takes ownership.
        outer: Values of the enclosing graphs, by name.
        opset: Version of the standard operators.
        domains: Versions of all domains.
    """
    bytes_held = [a for block in blocks_of([proto]) for n in block.node for a in n.attribute if not _is_text(a)]
    kinds = [a.type for a in bytes_held]
    for attr in bytes_held:
        attr.type = onnx.AttributeProto.TYPE_PROTO  # graphsurgeon does not decode this type
    graph = OnnxImporter.import_graph(proto, dict(outer), opset=opset, import_domains=list(domains))
    for attr, kind in zip(bytes_held, kinds, strict=True):
        attr.type = kind
    _attach(graph, proto)
    return graph


def _is_text(attr: onnx.AttributeProto) -> bool:
    """Whether `attr` contains no bytes that are invalid UTF-8."""
    strings = [attr.s] if attr.type == onnx.AttributeProto.STRING else []
    strings += attr.strings if attr.type == onnx.AttributeProto.STRINGS else []
    try:
        for text in strings:
            text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _attach(graph: Graph, proto: onnx.GraphProto) -> None:
    """Stores the original messages beside the imported objects; node order is the same on both sides."""
    pending = [(graph, proto)]
    while pending:
        current, source = pending.pop()
        record = graph_info(current)
        record.proto = source
        record.input_order = [v.name for v in source.input]
        stored = [t.name for t in source.initializer] + [s.values.name for s in source.sparse_initializer]
        local: dict[str, Value] = {}
        for node in current.nodes:
            for value in [*node.inputs, *node.outputs]:
                if isinstance(value, Constant):
                    local.setdefault(value.name, value)
                else:
                    value.__class__ = Variable
        for value in [*current.inputs, *current.outputs]:
            local.setdefault(value.name, value)
            if not isinstance(value, Constant):
                value.__class__ = Variable
        inner_constants = _constants_below(current)
        for name, tensor in zip(stored, [*source.initializer, *source.sparse_initializer], strict=True):
            constant = local.get(name) or inner_constants.get(name)
            if not isinstance(constant, Constant):
                constant = OnnxImporter.import_tensor(tensor)
                constant.__dict__["_unused"] = True
            record.initializers[name] = constant
        shapes = {v.name: v for v in [*source.value_info, *source.input, *source.output]}
        values = {v.name: v for n in current.nodes for v in n.outputs}
        values.update({v.name: v for v in [*current.inputs, *current.outputs]})
        for name, described in shapes.items():
            value = values.get(name)
            if isinstance(value, Variable):
                record.value_infos[name] = (described, value.dtype, _shape_key(value.shape))
        for node, original in zip(current.nodes, source.node, strict=True):
            node.__class__ = Node
            node.__dict__["_rnnqc"] = NodeInfo(
                proto=original,
                attrs=dict(node.attrs),
                metadata={p.key: p.value for p in original.metadata_props},
                doc_string=original.doc_string,
                overload=original.overload,
            )
            graphs = {a.name: a.g for a in original.attribute if a.type == onnx.AttributeProto.GRAPH}
            pending.extend((inner, graphs[name]) for name, inner in subgraphs(node))


def _constants_below(graph: Graph) -> dict[str, Constant]:
    """Returns constants that nested subgraphs read, by name; an outer initializer may be used only there."""
    found: dict[str, Constant] = {}
    stack = [g for n in graph.nodes for _, g in subgraphs(n)]
    while stack:
        inner = stack.pop()
        for node in inner.nodes:
            for value in node.inputs:
                if isinstance(value, Constant):
                    found.setdefault(value.name, value)
            stack.extend(g for _, g in subgraphs(node))
    return found


def _shape_key(shape: Any) -> Any:
    return None if shape is None else tuple(shape)


def export_graph(graph: Graph, target: onnx.GraphProto) -> None:
    """Writes a graph with its subgraphs to an empty message."""
    record = graph_info(graph)
    target.name = graph.name or "main"
    if record.proto is not None:
        target.doc_string = record.proto.doc_string
        target.metadata_props.extend(record.proto.metadata_props)
        if annotations := record.proto.quantization_annotation:
            known = names_in(graph)
            target.quantization_annotation.extend(a for a in annotations if a.tensor_name in known)
    inputs = {v.name: v for v in graph.inputs}
    order = [n for n in record.input_order if n in inputs or n in record.initializers]
    ordered = set(order)
    order += [name for name in inputs if name not in ordered]
    for name in order:
        target.input.append(_value_info(inputs.get(name) or record.initializers[name], record))
    for value in graph.outputs:
        target.output.append(_value_info(value, record))
    for constant in record.initializers.values():
        if isinstance(constant._values, SparseValues):
            target.sparse_initializer.append(OnnxExporter.export_sparse_tensor_proto(constant))
        else:
            target.initializer.append(_tensor(constant))
    listed = set(order) | {v.name for v in graph.outputs}
    for node in graph.nodes:
        _export_node(node, target.node.add())
        for value in node.outputs:
            if value.name and value.name not in listed and (value.dtype is not None or value.shape is not None):
                target.value_info.append(_value_info(value, record))
    if record.proto is not None:
        stored = set(record.initializers) - listed
        target.value_info.extend(v for v in record.proto.value_info if v.name in stored)


def _tensor(constant: Constant) -> onnx.TensorProto:
    if isinstance(constant._values, LazyValues):
        tensor: onnx.TensorProto = constant._values.tensor
        if tensor.name != constant.name:
            renamed = onnx.TensorProto()
            renamed.CopyFrom(tensor)
            renamed.name = constant.name
            return renamed
        return tensor
    return tensor_of(np.asarray(constant.values), constant.name)


def tensor_of(array: npt.NDArray[Any], name: str = "") -> onnx.TensorProto:
    """Like `onnx.numpy_helper.from_array`, in half the time for common types."""
    kind = _RAW_TYPES.get(array.dtype)
    if kind is None or sys.byteorder != "little":
        return onnx.numpy_helper.from_array(array, name or None)
    tensor = onnx.TensorProto(dims=array.shape, data_type=kind, raw_data=array.tobytes())
    if name:
        tensor.name = name
    return tensor


def _value_info(value: Value, record: GraphInfo) -> onnx.ValueInfoProto:
    original = record.value_infos.get(value.name)
    if isinstance(value, Constant):
        if record.proto is not None:
            listed: onnx.ValueInfoProto
            for listed in record.proto.input:
                if listed.name == value.name:
                    return listed
    elif original is not None and (original[1], original[2]) == (value.dtype, _shape_key(value.shape)):
        return original[0]
    exported: onnx.ValueInfoProto = OnnxExporter.export_value_info_proto(value, do_type_check=False)
    if original is not None:
        exported.doc_string = original[0].doc_string
        exported.metadata_props.extend(original[0].metadata_props)
    return exported


def _export_node(node: Node, target: onnx.NodeProto) -> None:
    record = info(node)
    target.op_type = node.op
    target.name = node.name or ""
    if node.domain:
        target.domain = node.domain
    target.overload = record.overload
    target.doc_string = record.doc_string
    target.input.extend([v.name for v in node.inputs])
    target.output.extend([v.name for v in node.outputs])
    for key, text in record.metadata.items():
        target.metadata_props.add(key=key, value=text)
    if record.proto is not None and hasattr(target, "device_configurations"):  # from onnx 1.18 on
        target.device_configurations.extend(record.proto.device_configurations)
    if record.proto is None and not node.attrs:
        return
    originals = {a.name: a for a in record.proto.attribute} if record.proto is not None else {}
    for name, original in originals.items():
        if name not in record.attrs and name not in node.attrs:
            target.attribute.append(original)  # of a type that graphsurgeon does not import
    for name, value in node.attrs.items():
        if isinstance(value, Graph):
            attr = target.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            if name in originals:
                attr.doc_string = originals[name].doc_string
            export_graph(value, attr.g)
        elif name in originals and record.attrs.get(name) is value:
            target.attribute.append(originals[name])
        elif isinstance(value, Constant):
            target.attribute.append(onnx.helper.make_attribute(name, _tensor(value)))
        elif (kind := type(value)) is int:
            target.attribute.add(name=name, type=onnx.AttributeProto.INT, i=value)
        elif kind is float:
            target.attribute.add(name=name, type=onnx.AttributeProto.FLOAT, f=value)
        elif kind is str:
            target.attribute.add(name=name, type=onnx.AttributeProto.STRING, s=value.encode())
        elif kind is list and value and all(type(v) is int for v in value):
            target.attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=value)
        else:
            target.attribute.extend(OnnxExporter.export_attributes({name: value}))


def export_nodes(nodes: Iterable[Node]) -> list[onnx.NodeProto]:
    """Converts `nodes` to NodeProtos, e.g. for the body of a function."""
    result = []
    for node in nodes:
        proto = onnx.NodeProto()
        _export_node(node, proto)
        result.append(proto)
    return result


@contextlib.contextmanager
def without_large_contents(graphs: Iterable[Graph]) -> Iterator[None]:
    """While active, large initializers have no contents, only dimensions."""
    stripped: list[tuple[Constant, Any]] = []
    for graph in graphs:
        for constant in graph_info(graph).initializers.values():
            held = constant._values
            if isinstance(held, SparseValues) or math.prod(constant.shape) <= _SMALL:
                continue
            tensor = onnx.TensorProto(name=constant.name, dims=list(constant.shape))
            kind = constant.dtype
            tensor.data_type = kind if isinstance(kind, int) else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            stripped.append((constant, held))
            constant._values = LazyValues(tensor)
    try:
        yield
    finally:
        for constant, held in stripped:
            constant._values = held


def with_released_cells(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Restores the released cells that a model remembers; returns the model itself if there are none."""
    known = next((p.value for p in proto.metadata_props if p.key == RELEASED_TAG), None)
    if known is None:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    properties = [p for b in blocks_of([made.graph]) for n in b.node for p in n.metadata_props]
    for entry in properties:
        entry.key = CELL_TAG if entry.key == RELEASED_TAG else entry.key
    cells = next((p.value for p in proto.metadata_props if p.key == CELLS_KEY), NO_CELLS)
    for key in (CELLS_KEY, RELEASED_TAG):
        for k in reversed([k for k, p in enumerate(made.metadata_props) if p.key == key]):
            del made.metadata_props[k]
    made.metadata_props.add(key=CELLS_KEY, value=joined_texts(cells, known))
    return made
