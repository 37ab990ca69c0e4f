"""The editable model."""

from __future__ import annotations

import json
import os
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.stored_cells import NO_CELLS, cells_from_text, cells_to_text
from rnnqc.errors import MEMORY, CompileError, StructureError, located
from rnnqc.formats.format import FormatError
from rnnqc.ir.objects import (
    CELL_TAG,
    CELLS_KEY,
    DOMAIN_VERSION,
    PROVENANCE_KEY,
    RELEASED_TAG,
    Constant,
    Graph,
    Node,
    Value,
    captured_by,
    captured_values,
    captures,
    display_name,
    graph_info,
    graphs_below,
    info,
    names_in,
    note_shape,
    safe_name,
    shape_of,
    subgraphs,
)
from rnnqc.ir.order import sorted_nodes
from rnnqc.ir.protos import export_graph, import_graph, without_graph, without_large_contents
from rnnqc.proto.external_data import refuse_external
from rnnqc.proto.files import load_proto_and_size, proto_size, serialized, write_atomically
from rnnqc.proto.respell_names import respell
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, infer_shapes
from rnnqc.proto.validation import check_model


class Model:
    """An ONNX model that can be edited.

    Attributes:
        graph: The main graph (graphsurgeon).
        functions: Model-local functions.
        cells: Recurrent cells that were decomposed, by name; what the later passes work on. Passes replace them.
        kept: For cells that a pass left in their form, by name, why; not stored in files.
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
        self._header.CopyFrom(without_graph(proto))
        self.functions: list[onnx.FunctionProto] = list(proto.functions)
        self.metadata: dict[str, str] = {p.key: p.value for p in proto.metadata_props}
        self.opset = opset
        self.ir_version = proto.ir_version
        self.graph = import_graph(proto.graph, {}, opset, proto.opset_import)
        try:
            self.cells: dict[str, Cell] = cells_from_text(self.metadata.get(CELLS_KEY, NO_CELLS))
            self.kept: dict[str, str] = {}
            self.provenance: list[str] = [str(p) for p in json.loads(self.metadata.get(PROVENANCE_KEY, "[]"))]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, FormatError) as error:
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
            self._names.update(names_in(graph))
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
            metadata[CELLS_KEY] = cells_to_text(self.cells.values())
        if self.provenance:
            metadata[PROVENANCE_KEY] = json.dumps(self.provenance, separators=(",", ":"))
        for key, text in metadata.items():
            result.metadata_props.add(key=key, value=text)
        export_graph(self.graph, result.graph)
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
        with without_large_contents(self.graphs()):
            proto = self.proto
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
                    note_shape(value, found.get(value.name))
                inner = {a.name: a.g for a in described_node.attribute if a.type == onnx.AttributeProto.GRAPH}
                work.extend((g, inner[name]) for name, g in subgraphs(node))
            for value in graph.inputs:
                note_shape(value, found.get(value.name))

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
        """Inserts `nodes` into `graph`, right before the node `before`."""
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
        captured: dict[int, list[Value]] = {}
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
                for value in [*node.inputs, *captured_values(node, captured)]:
                    stack.extend(p for p in value.inputs if id(p) in local and id(p) not in live)
            dead = [n for n in graph.nodes if id(n) not in live]
            if dead:
                removed += len(dead)
                self.remove_nodes(graph, dead)
            captured[id(graph)] = captured_by(graph, captured)
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
            self.cells[name] = cell.without_dead_outputs(alive)

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
        held = [c for n, c in self.cells.items() if n in released & known]
        if held:
            self.metadata[RELEASED_TAG] = cells_to_text(held, behind=self.metadata.get(RELEASED_TAG, NO_CELLS))
        self.cells = {name: cell for name, cell in self.cells.items() if name not in released}

    def sort(self) -> None:
        """Orders the nodes of every graph topologically, stably and without recursion.

        Raises:
            CompileError: A graph has a cycle.
        """
        captured = captures(self.graph)
        for graph in self.graphs():
            graph.nodes[:] = sorted_nodes(graph, captured, self.source)

    def check(self) -> None:
        """Checks the invariants that hold after every pass.

        Unique names, one producer per value, no dangling use, topological order, imported domains.

        Raises:
            StructureError: One does not hold.
        """
        captured = captures(self.graph)
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
                for value in [*node.inputs, *captured_values(node, captured)]:
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


def _position(graph: Graph, node: Node) -> int:
    for index, candidate in enumerate(graph.nodes):
        if candidate is node:
            return index
    raise StructureError(f"Node {display_name(node)!r} is not in graph {graph.name!r}.")
