"""The editable model: onnx-graphsurgeon for editing, and a record of everything that library would lose.

graphsurgeon 0.6 drops, on a round trip: metadata and documentation of models, graphs, nodes and values, quantization
annotations, dimension denotations, `overload` of nodes and functions, attributes of unusual types, unused initializers,
and initializers listed as graph inputs; and its topological sort recurses. `Model` keeps the original protobuf object
of whatever was imported beside the graphsurgeon object and writes it back where nothing was changed.

This module is the only one that imports onnx_graphsurgeon.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections import ChainMap, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx_graphsurgeon import Constant, Graph, Node, Variable
from onnx_graphsurgeon import Tensor as Value
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter
from onnx_graphsurgeon.importers.onnx_importer import OnnxImporter
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues
from onnx_graphsurgeon.logger import G_LOGGER

from rnnqc.cells.base import Cell
from rnnqc.diagnostics import MEMORY, CompileError, StructureError, located
from rnnqc.external_data import refuse_external
from rnnqc.files import load_proto_and_size, proto_size, serialized, write_atomically
from rnnqc.graph_walks import blocks_of
from rnnqc.shape_inference import INFERENCE_ERRORS, infer_shapes
from rnnqc.spelling import respell
from rnnqc.validation import check_model

__all__ = [
    "CELLS_KEY",
    "CELL_TAG",
    "DOMAIN",
    "DOMAIN_VERSION",
    "FLOAT_TAG",
    "PROVENANCE_KEY",
    "Constant",
    "Graph",
    "GraphInfo",
    "Model",
    "Node",
    "NodeInfo",
    "Value",
    "Variable",
    "attribute",
    "constant_array",
    "display_name",
    "dtype_of",
    "export_nodes",
    "graph_info",
    "graphs_below",
    "info",
    "input_or_none",
    "output_or_none",
    "safe_name",
    "shape_of",
    "subgraphs",
    "with_released_cells",
]

G_LOGGER.severity = G_LOGGER.ERROR  # it warns about types and attributes that this module keeps

DOMAIN = "ai.rnnqc"
DOMAIN_VERSION = 1
CELLS_KEY = "rnnqc.cells"
PROVENANCE_KEY = "rnnqc.provenance"
CELL_TAG = "rnnqc.cell"
FLOAT_TAG = "rnnqc.float"
CUSTOM_TAG = "rnnqc.custom"
RELEASED_TAG = "rnnqc.released"
"""Of nodes the name of the cell that they were, and of models what is known of such cells."""


@dataclass
class NodeInfo:
    """What graphsurgeon does not hold of a node."""

    proto: onnx.NodeProto | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    doc_string: str = ""
    overload: str = ""


@dataclass
class GraphInfo:
    """What graphsurgeon does not hold of a graph."""

    proto: onnx.GraphProto | None = None
    initializers: dict[str, Constant] = field(default_factory=dict)
    input_order: list[str] = field(default_factory=list)
    value_infos: dict[str, tuple[onnx.ValueInfoProto, Any, Any]] = field(default_factory=dict)


def info(node: Node) -> NodeInfo:
    """The record beside `node`, made on first use."""
    record: NodeInfo | None = node.__dict__.get("_rnnqc")
    if record is None:
        record = NodeInfo()
        node.__dict__["_rnnqc"] = record
    return record


def graph_info(graph: Graph) -> GraphInfo:
    """The record beside `graph`, made on first use."""
    record: GraphInfo | None = graph.__dict__.get("_rnnqc")
    if record is None:
        record = GraphInfo()
        graph.__dict__["_rnnqc"] = record
    return record


def subgraphs(node: Node) -> list[tuple[str, Graph]]:
    """Attribute name and graph of every subgraph of `node`."""
    return [(name, value) for name, value in node.attrs.items() if isinstance(value, Graph)]


def graphs_below(graph: Graph) -> Iterator[Graph]:
    """A graph and every subgraph in it, outer graphs first."""
    queue = deque([graph])
    while queue:
        current = queue.popleft()
        yield current
        queue.extend(g for node in current.nodes for _, g in subgraphs(node))


def display_name(node: Node) -> str:
    """How messages call `node`: its name, or its first output."""
    if node.name:
        return str(node.name)
    return next((t.name for t in node.outputs if t.name), f"unnamed {node.op}")


def attribute_reference(name: str, kind: type) -> Any:
    """An attribute value that stands for attribute `name` of the function the node is in."""
    return Node.AttributeRef(name, kind)


def attribute(node: Node, name: str, default: Any) -> Any:
    """Value of an attribute of `node`, or `default`."""
    return node.attrs.get(name, default)


def input_or_none(node: Node, index: int) -> Value | None:
    """Input `index` of `node`; None if it is absent or empty."""
    if index >= len(node.inputs) or node.inputs[index].name == "":
        return None
    return node.inputs[index]


def output_or_none(node: Node, index: int) -> Value | None:
    """Output `index` of `node`; None if it is absent or empty."""
    if index >= len(node.outputs) or node.outputs[index].name == "":
        return None
    return node.outputs[index]


_CONSTANT_TYPES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def constant_array(value: Value | None) -> npt.NDArray[Any] | None:
    """The array of an initializer or of a Constant node's output; None for anything else."""
    if value is None:
        return None
    if isinstance(value, Constant):
        held = value._values
        if isinstance(held, SparseValues):
            return dense_array(held.tensor)  # graphsurgeon would make float64 of it for good
        if isinstance(held, LazyValues):
            return onnx.numpy_helper.to_array(held.tensor)  # not cached: two copies of every weight would stay
        return np.asarray(value.values)
    if len(value.inputs) == 1 and value.inputs[0].op == "Constant":
        node = value.inputs[0]
        held = node.attrs.get("value")
        if isinstance(held, Constant):
            return np.asarray(held.values)
        for key, value_held in node.attrs.items():
            if key in _CONSTANT_TYPES:
                return np.asarray(value_held, dtype=_CONSTANT_TYPES[key])
    return None


def dense_array(sparse: onnx.SparseTensorProto) -> npt.NDArray[Any]:
    """The whole array that a sparse tensor, which was checked when it was loaded, stands for."""
    values, indices = (onnx.numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    dense = np.zeros(list(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values  # also of no dimension
    else:
        dense[tuple(indices.T)] = values
    return dense


def shape_of(value: Value | None) -> list[int | str | None] | None:
    """Shape of `value` as far as it is declared or was inferred; None if not even the rank is known."""
    if value is None:
        return None
    if isinstance(value, Constant):
        return [int(d) for d in value.shape]
    noted = value.__dict__.get("_rnnqc_shape")
    shape = noted[1] if noted is not None else value.shape
    return None if shape is None else [d if d != "" else None for d in shape]


def dtype_of(value: Value | None) -> np.dtype[Any] | None:
    """Element type of `value` as far as it is declared or was inferred."""
    if value is None:
        return None
    noted = value.__dict__.get("_rnnqc_shape")
    dtype = noted[0] if noted is not None and noted[0] is not None else value.dtype
    return (
        np.dtype(dtype) if isinstance(dtype, type | np.dtype) else None
    )  # graphsurgeon has others, without numpy type


def _note_shape(value: Value, described: onnx.TypeProto | None) -> None:
    if described is None or not described.HasField("tensor_type") or isinstance(value, Constant):
        return
    tensor = described.tensor_type
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        shape = [d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim]
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    except (KeyError, TypeError):
        dtype = None
    value.__dict__["_rnnqc_shape"] = (dtype, shape)


class Model:
    """An ONNX model that can be edited.

    Attributes:
        graph: The main graph (graphsurgeon).
        functions: Model-local functions.
        cells: Recurrent cells that were decomposed, by name; what the later passes work on.
        metadata: `metadata_props` of the model.
        opset: Version of the standard operators.
        size: Bytes of the model as it was loaded, external data included; 0 if it was not loaded.
    """

    def __init__(self, proto: onnx.ModelProto, source: str = MEMORY) -> None:
        """Imports `proto`; the model takes ownership of it.

        Args:
            proto: A model with its external data loaded.
            source: How messages call the model.

        Raises:
            CompileError: The model is not valid ONNX.
        """
        self.source = source
        self.size = 0
        opset = check_model(proto, source)
        respell(proto)
        self._header = onnx.ModelProto()
        self._header.CopyFrom(_without_graph(proto))
        self.functions: list[onnx.FunctionProto] = list(proto.functions)
        self.metadata: dict[str, str] = {p.key: p.value for p in proto.metadata_props}
        self.opset = opset
        self.ir_version = proto.ir_version
        self.graph = _import_graph(proto.graph, {}, opset, proto.opset_import)
        try:
            self.cells: dict[str, Cell] = {
                c["name"]: Cell.from_dict(c) for c in json.loads(self.metadata.get(CELLS_KEY, "[]"))
            }
            self.provenance: list[str] = [str(p) for p in json.loads(self.metadata.get(PROVENANCE_KEY, "[]"))]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CompileError(
                f"{source}: metadata {CELLS_KEY!r} or {PROVENANCE_KEY!r} is damaged ({error!r}).",
                supported="what rnnqc writes there",
                action="lower the float model again, or remove these metadata_props",
            ) from error
        self._constants: dict[str, Constant] = {}
        self.constant_prefix = "rnnqc/"
        self._names: set[str] = set()
        tagged: set[str] = set()
        for graph in self.graphs():
            self._names.update(_names_in(graph))
            tagged.update(info(n).metadata.get(CELL_TAG, "") for n in graph.nodes)
        # Other tools keep the metadata of the model and drop that of nodes: such cells are operators like any others.
        self.cells = {name: cell for name, cell in self.cells.items() if name in tagged}

    # ---- loading and saving -------------------------------------------------------------------------------------

    @classmethod
    def load(cls, model: str | os.PathLike[str] | onnx.ModelProto) -> Model:
        """Reads a model from a file (with its external data) or takes a copy of a ModelProto.

        Raises:
            CompileError: The file cannot be read or is not an ONNX model.
        """
        if isinstance(model, onnx.ModelProto):
            refuse_external(model)
            proto, source, size = onnx.ModelProto(), MEMORY, proto_size(model, "The ModelProto")
            proto.CopyFrom(model)
        else:
            source = os.fspath(model)
            proto, size = load_proto_and_size(Path(model))
        with located(source):
            loaded = cls(proto, source)
        loaded.size = size
        return loaded

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a new ModelProto."""
        result = onnx.ModelProto()
        result.CopyFrom(self._header)
        result.ir_version = self.ir_version
        result.functions.extend(self.functions)
        metadata = dict(self.metadata)
        metadata.pop(CELLS_KEY, None)
        metadata.pop(PROVENANCE_KEY, None)
        if self.cells:
            cells = [c.as_dict() for c in self.cells.values()]
            metadata[CELLS_KEY] = json.dumps(cells, sort_keys=True, separators=(",", ":"))
        if self.provenance:
            metadata[PROVENANCE_KEY] = json.dumps(self.provenance, separators=(",", ":"))
        for key, text in metadata.items():
            result.metadata_props.add(key=key, value=text)
        _export_graph(self.graph, result.graph)
        used = {n.domain or "" for g in self.graphs() for n in g.nodes} | {f.domain for f in self.functions}
        used |= {n.domain for f in self.functions for n in f.node}
        versions = {o.domain: o.version for o in self._header.opset_import}
        versions[""] = self.opset
        for domain in sorted(used - set(versions)):
            versions[domain] = DOMAIN_VERSION
        del result.opset_import[:]
        for domain, version in versions.items():
            result.opset_import.add(domain=domain, version=version)
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to `path`, through a temporary file that is renamed."""
        write_atomically(Path(path), serialized(self.proto, os.fspath(path)))

    # ---- looking around -----------------------------------------------------------------------------------------

    def graphs(self) -> Iterator[Graph]:
        """The main graph and every subgraph, outer graphs first."""
        return graphs_below(self.graph)

    def paths(self) -> Iterator[tuple[str, Graph]]:
        """Every graph with the path of nodes that leads to it, e.g. `loop/body/`."""
        queue: list[tuple[str, Graph]] = [("", self.graph)]
        while queue:
            path, graph = queue.pop(0)
            yield path, graph
            for node in graph.nodes:
                queue.extend((f"{path}{display_name(node)}/{name}/", g) for name, g in subgraphs(node))

    def find(self, name: str) -> Value | None:
        """The value called `name`, in any graph."""
        for graph in self.graphs():
            for node in graph.nodes:
                for value in [*node.outputs, *node.inputs]:
                    if value.name == name:
                        return value
            for value in [*graph.inputs, *graph.outputs, *graph_info(graph).initializers.values()]:
                if value.name == name:
                    return value
        return None

    def given_name(self, size: int | str | None) -> str | None:
        """The name of a dimension, if an input of the model has one of that name; others stand in this graph only."""
        known = any(size in (shape_of(v) or ()) for v in self.graph.inputs)
        return size if isinstance(size, str) and known else None

    # ---- editing ------------------------------------------------------------------------------------------------

    def fresh_name(self, hint: str) -> str:
        """A name that no value or node of any graph has: `hint`, or `hint_2`, ..."""
        name, k = hint, 1
        while name in self._names:
            k += 1
            name = f"{hint}_{k}"
        self._names.add(name)
        return name

    def reserve_name(self, name: str) -> None:
        """Keeps `fresh_name` from giving this name to anything."""
        self._names.add(name)

    def add_initializer(self, name: str, array: npt.NDArray[Any], graph: Graph | None = None) -> Constant:
        """Adds a constant to `graph` (the main graph, visible everywhere, unless said otherwise)."""
        constant = Constant(self.fresh_name(name), np.asarray(array))
        graph_info(graph or self.graph).initializers[constant.name] = constant
        return constant

    def constant(self, value: Any, dtype: npt.DTypeLike) -> Constant:
        """A small constant of the main graph, one for each distinct value, named after it."""
        array = np.asarray(value, dtype=dtype)
        key = f"{array.dtype.str}{array.shape}{array.tobytes().hex()}"
        if key not in self._constants:
            text = "_".join(f"{v:.9g}" for v in array.ravel()[:4].tolist()) + ("_etc" if array.size > 4 else "")
            rank = f"x{'x'.join(map(str, array.shape))}" if array.shape else ""
            name = f"{self.constant_prefix}{array.dtype.name}{rank}_{safe_name(text)}"
            self._constants[key] = self.add_initializer(name, array)
        constant = self._constants[key]
        graph_info(self.graph).initializers.setdefault(constant.name, constant)
        return constant

    def import_domain(self, domain: str, version: int) -> None:
        """Says which version of the operators of `domain` the model means, unless it says so already."""
        if all(o.domain != domain for o in self._header.opset_import):
            self._header.opset_import.add(domain=domain, version=version)

    def infer_shapes(self) -> None:
        """Runs onnx's shape inference and notes what it finds beside the values (see `shape_of`); no graph changes."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self._skeleton())
        try:
            inferred = infer_shapes(proto)
        except INFERENCE_ERRORS:
            return
        work = [(self.graph, inferred.graph)]
        while work:
            graph, described = work.pop()
            found = {v.name: v.type for v in [*described.value_info, *described.input, *described.output]}
            for node, described_node in zip(graph.nodes, described.node, strict=True):
                for value in node.outputs:
                    _note_shape(value, found.get(value.name))
                inner = {a.name: a.g for a in described_node.attribute if a.type == onnx.AttributeProto.GRAPH}
                work.extend((g, inner[name]) for name, g in subgraphs(node))
            for value in graph.inputs:
                _note_shape(value, found.get(value.name))

    def _skeleton(self) -> onnx.ModelProto:
        """The model without the contents of its large initializers; their dimensions stay."""
        stripped: list[tuple[Constant, Any]] = []
        for graph in self.graphs():
            for constant in graph_info(graph).initializers.values():
                held = constant._values
                if isinstance(held, SparseValues) or np.prod(constant.shape, dtype=np.int64) <= 1024:
                    continue
                tensor = onnx.TensorProto(name=constant.name, dims=list(constant.shape))
                kind = constant.dtype
                tensor.data_type = (
                    kind if isinstance(kind, int) else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
                )
                stripped.append((constant, held))
                constant._values = LazyValues(tensor)
        try:
            return self.proto
        finally:
            for constant, held in stripped:
                constant._values = held

    def reload(self, proto: onnx.ModelProto) -> None:
        """Replaces the whole content by `proto`."""
        size = self.size
        Model.__init__(self, proto, self.source)
        self.size = size

    def initializer(self, name: str, graph: Graph) -> Constant | None:
        """The initializer called `name` of `graph` or of the main graph."""
        return graph_info(graph).initializers.get(name) or graph_info(self.graph).initializers.get(name)

    def replace_all_uses(self, old: Value, new: Value, graphs: Sequence[Graph] | None = None) -> None:
        """Makes every consumer of `old`, graph outputs included, use `new`; a graph output keeps its name.

        Args:
            old: The value to replace.
            new: Its replacement.
            graphs: The graphs whose outputs may be concerned; all by default.
        """
        for consumer in list(old.outputs):
            for index, value in enumerate(consumer.inputs):
                if value is old:
                    consumer.inputs[index] = new
        for graph in graphs if graphs is not None else self.graphs():
            for index, value in enumerate(graph.outputs):
                if value is old:
                    graph.outputs[index] = new

    def insert_nodes(self, graph: Graph, before: Node, nodes: Sequence[Node]) -> None:
        """Inserts `nodes` into `graph` in front of `before`."""
        position = _position(graph, before)
        graph.nodes[position:position] = list(nodes)

    def remove_nodes(self, graph: Graph, nodes: Iterable[Node]) -> None:
        """Removes `nodes` from `graph` and cuts their edges."""
        doomed = {id(n) for n in nodes}
        for node in [n for n in graph.nodes if id(n) in doomed]:
            for _, inner in subgraphs(node):
                self.remove_nodes(inner, list(inner.nodes))
            node.inputs.clear()
            node.outputs.clear()
        graph.nodes[:] = [n for n in graph.nodes if id(n) not in doomed]

    def remove_dead(self) -> int:
        """Removes nodes and initializers nothing uses, in every graph; returns how many.

        Model inputs stay. A subgraph's use of an outer value counts.
        """
        removed = dead = self._remove_dead_nodes()
        while dead:  # what the subgraphs of a dead node used is dead only now
            dead = self._remove_dead_nodes()
            removed += dead
        for graph in self.graphs():
            record = graph_info(graph)
            outputs = {id(v) for v in graph.outputs}
            orphans = {i.name for i in record.proto.initializer} if record.proto is not None else set()
            for name, constant in list(record.initializers.items()):
                unused_before = name in orphans and constant.__dict__.get("_unused")
                if not constant.outputs and id(constant) not in outputs and not unused_before:
                    del record.initializers[name]
                    removed += 1
        if removed and self.cells:
            self._forget_dead_cells()
        return removed

    def _remove_dead_nodes(self) -> int:
        removed = 0
        for graph in reversed(list(self.graphs())):
            kept = {id(v) for v in graph.outputs}
            live: set[int] = set()
            stack = [n for n in graph.nodes if any(id(v) in kept for v in n.outputs)]
            # Consumers in subgraphs of dead nodes have been cut already: inner graphs are visited with their node.
            local = {id(n) for n in graph.nodes}
            stack += [n for n in graph.nodes if any(id(c) not in local for v in n.outputs for c in v.outputs)]
            while stack:
                node = stack.pop()
                if id(node) in live:
                    continue
                live.add(id(node))
                for value in [*node.inputs, *_captured(node)]:
                    stack.extend(p for p in value.inputs if id(p) in local and id(p) not in live)
            dead = [n for n in graph.nodes if id(n) not in live]
            if dead:
                removed += len(dead)
                self.remove_nodes(graph, dead)
        return removed

    def _forget_dead_cells(self) -> None:
        alive: set[str] = set()
        tagged: set[str] = set()
        for graph in self.graphs():
            for node in graph.nodes:
                alive.update(v.name for v in node.outputs)
                tagged.add(info(node).metadata.get(CELL_TAG, ""))
        for name, cell in list(self.cells.items()):
            if name not in tagged:
                del self.cells[name]
                continue
            for key in ("y", "y_h", "y_c", "y_codes"):
                if getattr(cell, key) not in alive:
                    setattr(cell, key, None)

    def release_cells(self, names: Iterable[str], remembered: Iterable[str] = ()) -> None:
        """Makes operators like any others of the nodes of some cells, which the model then knows no more.

        Args:
            names: Of the cells.
            remembered: Those of them that `with_released_cells` can find again.
        """
        released, known = set(names), set(remembered)
        for graph in self.graphs():
            for node in graph.nodes:
                metadata = info(node).metadata
                if metadata.get(CELL_TAG) in released:
                    name = metadata.pop(CELL_TAG)
                    metadata |= {RELEASED_TAG: name} if name in known else {}
        held = [c.as_dict() for n, c in self.cells.items() if n in released & known]
        if held:
            before = json.loads(self.metadata.get(RELEASED_TAG, "[]"))
            self.metadata[RELEASED_TAG] = json.dumps([*before, *held], sort_keys=True, separators=(",", ":"))
        self.cells = {name: cell for name, cell in self.cells.items() if name not in released}

    def sort(self) -> None:
        """Orders the nodes of every graph topologically, stably and without recursion.

        Raises:
            CompileError: A graph has a cycle.
        """
        for graph in self.graphs():
            graph.nodes[:] = _sorted_nodes(graph, self.source)

    def check(self) -> None:
        """Checks the invariants that hold after every pass.

        Unique names, one producer per value, no dangling use, topological order, imported domains.

        Raises:
            StructureError: One does not hold.
        """
        work: list[tuple[Graph, ChainMap[str, int]]] = [(self.graph, ChainMap())]
        while work:
            graph, around = work.pop()
            outside = set(around.values())
            seen = around.new_child()  # names to identities
            for value in [*graph.inputs, *graph_info(graph).initializers.values()]:
                if seen.setdefault(value.name, id(value)) != id(value):
                    where = "of one graph" if value.name in seen.maps[0] else "of a graph and of one around it"
                    raise StructureError(f"Two values {where} are called {value.name!r}.")
            available = outside | set(seen.maps[0].values())
            for node in graph.nodes:
                for value in [*node.inputs, *_captured(node)]:
                    if value.name and id(value) not in available:
                        where = f"Node {display_name(node)!r} ({node.op})"
                        raise StructureError(f"{where} uses {value.name!r} before it exists.")
                for value in node.outputs:
                    if not value.name:
                        continue
                    if len(value.inputs) != 1 or value.name in seen:
                        raise StructureError(f"Value {value.name!r} has more than one producer.")
                    seen[value.name] = id(value)
                    available.add(id(value))
                work.extend((inner, seen) for _, inner in subgraphs(node))
            for value in graph.outputs:
                if id(value) not in available:
                    raise StructureError(f"Graph output {value.name!r} is made by no node.")


# ---- import and export --------------------------------------------------------------------------------------------


def _without_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    header = onnx.ModelProto()
    for descriptor, value in proto.ListFields():
        if descriptor.name in ("graph", "functions", "metadata_props"):
            continue
        if isinstance(value, (int, str, bytes)):
            setattr(header, descriptor.name, value)
        else:
            getattr(header, descriptor.name).extend(value)
    return header


def _import_graph(
    proto: onnx.GraphProto, outer: Mapping[str, Value], opset: int, domains: Sequence[onnx.OperatorSetIdProto]
) -> Graph:
    bytes_held = [a for block in blocks_of([proto]) for n in block.node for a in n.attribute if not _is_text(a)]
    kinds = [a.type for a in bytes_held]
    for attr in bytes_held:
        attr.type = onnx.AttributeProto.TYPE_PROTO  # a type that graphsurgeon leaves alone: it would decode the bytes
    graph = OnnxImporter.import_graph(proto, dict(outer), opset=opset, import_domains=list(domains))
    for attr, kind in zip(bytes_held, kinds, strict=True):
        attr.type = kind
    _attach(graph, proto)
    return graph


def _is_text(attr: onnx.AttributeProto) -> bool:
    """Whether `attr` is anything but a string of bytes that are not UTF-8."""
    strings = [attr.s] if attr.type == onnx.AttributeProto.STRING else []
    strings += attr.strings if attr.type == onnx.AttributeProto.STRINGS else []
    try:
        for text in strings:
            text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _attach(graph: Graph, proto: onnx.GraphProto) -> None:
    """Puts the originals beside the imported objects; node order is the same on both sides."""
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
        for value in [*current.inputs, *current.outputs]:
            local.setdefault(value.name, value)
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
            node.__dict__["_rnnqc"] = NodeInfo(
                proto=original,
                attrs=dict(node.attrs),
                metadata={p.key: p.value for p in original.metadata_props},
                doc_string=original.doc_string,
                overload=original.overload,
            )
            graphs = {a.name: a.g for a in original.attribute if a.type == onnx.AttributeProto.GRAPH}
            pending.extend((inner, graphs[name]) for name, inner in subgraphs(node))


def with_released_cells(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as it was before it released the cells that it remembers; itself if there are none."""
    known = next((p.value for p in proto.metadata_props if p.key == RELEASED_TAG), None)
    if known is None:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    properties = [p for b in blocks_of([made.graph]) for n in b.node for p in n.metadata_props]
    for entry in properties:
        entry.key = CELL_TAG if entry.key == RELEASED_TAG else entry.key
    cells = json.loads(next((p.value for p in proto.metadata_props if p.key == CELLS_KEY), "[]"))
    for key in (CELLS_KEY, RELEASED_TAG):
        for k in reversed([k for k, p in enumerate(made.metadata_props) if p.key == key]):
            del made.metadata_props[k]
    made.metadata_props.add(key=CELLS_KEY, value=json.dumps([*cells, *json.loads(known)]))
    return made


def _constants_below(graph: Graph) -> dict[str, Constant]:
    """Constants that nodes of nested subgraphs use, by name; an outer initializer may be used only there."""
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


def _export_graph(graph: Graph, target: onnx.GraphProto) -> None:
    record = graph_info(graph)
    target.name = graph.name or "main"
    if record.proto is not None:
        target.doc_string = record.proto.doc_string
        target.metadata_props.extend(record.proto.metadata_props)
        known = _names_in(graph)
        target.quantization_annotation.extend(a for a in record.proto.quantization_annotation if a.tensor_name in known)
    inputs = {v.name: v for v in graph.inputs}
    order = [n for n in record.input_order if n in inputs or n in record.initializers]
    order += [v.name for v in graph.inputs if v.name not in set(order)]
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
    return onnx.numpy_helper.from_array(np.asarray(constant.values), constant.name)


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
    target.input.extend(v.name for v in node.inputs)
    target.output.extend(v.name for v in node.outputs)
    for key, text in record.metadata.items():
        target.metadata_props.add(key=key, value=text)
    if record.proto is not None and hasattr(target, "device_configurations"):  # from onnx 1.18 on
        target.device_configurations.extend(record.proto.device_configurations)
    originals = {a.name: a for a in record.proto.attribute} if record.proto is not None else {}
    for name, original in originals.items():
        if name not in record.attrs and name not in node.attrs:
            target.attribute.append(original)  # of a type graphsurgeon does not import
    for name, value in node.attrs.items():
        if isinstance(value, Graph):
            attr = target.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            if name in originals:
                attr.doc_string = originals[name].doc_string
            _export_graph(value, attr.g)
        elif name in originals and record.attrs.get(name) is value:
            target.attribute.append(originals[name])
        elif isinstance(value, Constant):
            target.attribute.append(onnx.helper.make_attribute(name, _tensor(value)))
        else:
            target.attribute.extend(OnnxExporter.export_attributes({name: value}))


def export_nodes(nodes: Iterable[Node]) -> list[onnx.NodeProto]:
    """`nodes` as NodeProtos, e.g. for the body of a function."""
    result = []
    for node in nodes:
        proto = onnx.NodeProto()
        _export_node(node, proto)
        result.append(proto)
    return result


def _names_in(graph: Graph) -> set[str]:
    names = {v.name for v in [*graph.inputs, *graph.outputs]} | set(graph_info(graph).initializers)
    for node in graph.nodes:
        names.add(node.name)
        names.update(v.name for v in [*node.inputs, *node.outputs])
    names.discard("")
    return names


def _captured(node: Node) -> list[Value]:
    """Values that the subgraphs of `node` use and do not make themselves."""
    captured: list[Value] = []
    work = [g for _, g in subgraphs(node)]
    made: set[int] = set()
    used: list[Value] = []
    while work:
        graph = work.pop()
        made.update(id(v) for v in [*graph.inputs, *graph_info(graph).initializers.values()])
        for inner in graph.nodes:
            made.update(id(v) for v in inner.outputs)
            used.extend(inner.inputs)
            work.extend(g for _, g in subgraphs(inner))
        used.extend(graph.outputs)
    seen: set[int] = set()
    for value in used:
        if value.name and id(value) not in made and id(value) not in seen:
            seen.add(id(value))
            captured.append(value)
    return captured


def _position(graph: Graph, node: Node) -> int:
    for index, candidate in enumerate(graph.nodes):
        if candidate is node:
            return index
    raise StructureError(f"Node {display_name(node)!r} is not in graph {graph.name!r}.")


def _sorted_nodes(graph: Graph, source: str) -> list[Node]:
    index = {id(n): k for k, n in enumerate(graph.nodes)}
    consumers: list[list[int]] = [[] for _ in graph.nodes]
    missing = [0] * len(graph.nodes)
    for k, node in enumerate(graph.nodes):
        producers = [p for v in [*node.inputs, *_captured(node)] for p in v.inputs]
        if any(p is node for p in producers):
            raise _cyclic(source, node)
        sources = {index[id(p)] for p in producers if id(p) in index}
        missing[k] = len(sources)
        for p in sources:
            consumers[p].append(k)
    ready = [k for k, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(graph.nodes[k])
        for c in consumers[k]:
            missing[c] -= 1
            if missing[c] == 0:
                heapq.heappush(ready, c)
    if len(order) != len(graph.nodes):
        k = next(k for k, count in enumerate(missing) if count > 0)
        raise _cyclic(source, graph.nodes[k])
    return order


def _cyclic(source: str, node: Node) -> CompileError:
    return CompileError(
        f"{source}: the graph has a cycle through node {display_name(node)!r} ({node.op}).",
        supported="graphs without cycles; loops are Loop or Scan nodes",
        action="export the model again",
    )


def safe_name(text: str) -> str:
    """`text` with everything but letters, digits, `_`, `-`, `.` and `/` replaced by `_`."""
    return re.sub(r"[^0-9A-Za-z_./-]", "_", text)
