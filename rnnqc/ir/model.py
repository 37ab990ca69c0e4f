"""The editable model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.stored_cells import NO_CELLS, cells_from_text, cells_to_text
from rnnqc.errors import MEMORY, CompileError, StructureError, located
from rnnqc.formats.format import FormatError
from rnnqc.ir.dead_code import remove_dead_constants, remove_dead_nodes, remove_nodes
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
    captures,
    display_name,
    graph_info,
    graphs_below,
    info,
    make_constant,
    names_in,
    note_shape,
    safe_name,
    shape_of,
    subgraphs,
)
from rnnqc.ir.order import sorted_nodes
from rnnqc.ir.protos import export_graph, import_graph, without_graph, without_large_contents
from rnnqc.ir.structure import check_structure
from rnnqc.proto.external_data import refuse_external
from rnnqc.proto.files import load_proto_and_size, serialized, write_atomically
from rnnqc.proto.given import Given, as_given
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.large_models import loaded_size
from rnnqc.proto.respell_names import respell
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, declare_shapes, infer_shapes
from rnnqc.proto.validation import check_model


class Model:
    """An ONNX model that can be edited.

    Attributes:
        graph: The main graph (graphsurgeon).
        functions: Model-local functions.
        cells: Decomposed recurrent cells, by name, on which later passes work. Passes replace them.
        kept: For cells that a pass left in their form, by name, the reason; not stored in files.
        metadata: `metadata_props` of the model.
        opset: Version of the standard operators.
        size: Bytes of the model as it was loaded, external data included; 0 if it was not loaded.
    """

    def __init__(self, proto: onnx.ModelProto, source: str = MEMORY) -> None:
        """Imports `proto`; the model takes ownership of it.

        Args:
            proto: A model with its external data loaded.
            source: Name of the model in messages.

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
        self._constants: dict[tuple[np.dtype[Any], tuple[int, ...], bytes], Constant] = {}
        self.constant_prefix = "rnnqc/"
        self._held: list[Graph | Node | Value] | None = None
        self._last_inferred: dict[bool, tuple[bytes, onnx.ModelProto]] = {}
        self._names: set[str] = set()
        tagged: set[str] = set()
        for graph in self.graphs():
            self._names.update(names_in(graph))
            tagged.update(info(n).metadata.get(CELL_TAG, "") for n in graph.nodes)
        # Other tools may keep the metadata of the model and drop that of nodes: such cells become ordinary operators.
        self.cells = {name: cell for name, cell in self.cells.items() if name in tagged}

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[onnx.ModelProto, str, int]]:
        """For pickle and copies: the model is made again of its ModelProto."""
        return _made_again, (self.proto, self.source, self.size)

    # ---- loading and saving -------------------------------------------------------------------------------------

    @classmethod
    def load(cls, model: Given) -> Model:
        """Reads a model from a file (with its external data), or copies the ModelProto given directly or in an object.

        Raises:
            CompileError: The file cannot be read or is not an ONNX model.
        """
        model = as_given(model)
        if isinstance(model, onnx.ModelProto):
            refuse_external(model)
            proto, source, size = onnx.ModelProto(), MEMORY, loaded_size(model, "The ModelProto")
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
        result = self._exported(self.functions)
        metadata = dict(self.metadata)
        metadata.pop(CELLS_KEY, None)
        metadata.pop(PROVENANCE_KEY, None)
        if self.cells:
            metadata[CELLS_KEY] = cells_to_text(self.cells.values())
        if self.provenance:
            metadata[PROVENANCE_KEY] = json.dumps(self.provenance, separators=(",", ":"))
        for key, text in metadata.items():
            result.metadata_props.add(key=key, value=text)
        return result

    def _exported(self, functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
        """Exports the graph and some of the functions, without the model's metadata."""
        result = onnx.ModelProto()
        result.CopyFrom(self._header)
        result.ir_version = self.ir_version
        result.functions.extend(functions)
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
        """Yields the main graph and every subgraph, outer graphs first."""
        return graphs_below(self.graph)

    def paths(self) -> Iterator[tuple[str, Graph]]:
        """Yields every graph with the path of nodes that leads to it, e.g. `loop/body/`."""
        queue: list[tuple[str, Graph]] = [("", self.graph)]
        while queue:
            path, graph = queue.pop(0)
            yield path, graph
            for node in graph.nodes:
                queue.extend((f"{path}{display_name(node)}/{name}/", g) for name, g in subgraphs(node))

    def find(self, name: str) -> Value | None:
        """Returns the value with this name, in any graph."""
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
        """Returns the name of a dimension if an input of the model has one with that name; else None: it is local."""
        known = any(size in (shape_of(v) or ()) for v in self.graph.inputs)
        return size if isinstance(size, str) and known else None

    # ---- editing ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def identities(self) -> Iterator[None]:
        """While active, every `id` of a graph, node or value stays unique, even after its removal from the model.

        Passes record seen objects by `id`, and Python reuses the address of a deleted object.
        """
        before, self._held = self._held, self._contents()
        try:
            yield
        finally:
            self._held = before

    def hold(self, *made: Graph | Node | Value) -> None:
        """Keeps new objects alive as long as `identities` is active."""
        if self._held is not None:
            self._held += made

    def _contents(self) -> list[Graph | Node | Value]:
        contents: list[Graph | Node | Value] = []
        for graph in self.graphs():
            contents += [graph, *graph.nodes, *graph.inputs, *graph.outputs, *graph_info(graph).initializers.values()]
            for node in graph.nodes:
                contents += node.inputs
                contents += node.outputs
        return contents

    def fresh_name(self, hint: str) -> str:
        """Returns a name that no value or node of any graph has: `hint`, or `hint_2`, ..."""
        name, k = hint, 1
        while name in self._names:
            k += 1
            name = f"{hint}_{k}"
        self._names.add(name)
        return name

    def reserve_name(self, name: str) -> None:
        """Prevents `fresh_name` from returning this name."""
        self._names.add(name)

    def add_initializer(self, name: str, array: npt.NDArray[Any], graph: Graph | None = None) -> Constant:
        """Adds a constant to `graph`, by default the main graph, where it is visible everywhere."""
        constant = make_constant(self.fresh_name(name), np.asarray(array))
        self.hold(constant)
        graph_info(graph or self.graph).initializers[constant.name] = constant
        return constant

    def constant(self, value: Any, dtype: npt.DTypeLike) -> Constant:
        """Returns a small constant of the main graph, one for each distinct value, named after it."""
        array = np.asarray(value, dtype=dtype)
        key = (array.dtype, array.shape, array.tobytes())
        constant = self._constants.get(key)
        if constant is None:
            text = "_".join([f"{v:.9g}" for v in array.ravel()[:4].tolist()]) + ("_etc" if array.size > 4 else "")
            rank = f"x{'x'.join(map(str, array.shape))}" if array.shape else ""
            name = f"{self.constant_prefix}{array.dtype.name}{rank}_{safe_name(text)}"
            constant = self._constants[key] = self.add_initializer(name, array)
        graph_info(self.graph).initializers.setdefault(constant.name, constant)
        return constant

    def import_domain(self, domain: str, version: int) -> None:
        """Imports version `version` of the operators of `domain`, unless the model imports a version already."""
        if all(o.domain != domain for o in self._header.opset_import):
            self._header.opset_import.add(domain=domain, version=version)

    def infer_shapes(self, known: Mapping[str, onnx.TypeProto] | None = None) -> None:
        """Runs onnx's shape inference and stores the results beside the values (see `shape_of`); no graph changes.

        Args:
            known: Element types and shapes by the names of values. If given, declared shapes are ignored except for
                the model's inputs, and a value without an inferred shape has none. Functions behind nodes whose outputs
                are all known are skipped.
        """
        with without_large_contents(self.graphs()):
            proto = self._exported(self._functions_of_unknown(known or {}))
        if known is not None:
            declare_shapes(proto.graph, known)
        try:
            inferred = self._inferred(proto, declared=known is None)
        except INFERENCE_ERRORS:
            if known is None:
                return
            inferred = proto
        nothing = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor()) if known is not None else None
        work = [(self.graph, inferred.graph)]
        while work:
            graph, described = work.pop()
            found = {v.name: v.type for v in [*described.value_info, *described.input, *described.output]}
            for node, described_node in zip(graph.nodes, described.node, strict=True):
                for value in node.outputs:
                    note_shape(value, found.get(value.name, nothing))
                if bodies := subgraphs(node) if node.attrs else []:
                    inner = {a.name: a.g for a in described_node.attribute if a.type == onnx.AttributeProto.GRAPH}
                    work.extend((g, inner[name]) for name, g in bodies)
            for value in graph.inputs:
                note_shape(value, found.get(value.name, nothing))

    def _inferred(self, proto: onnx.ModelProto, *, declared: bool) -> onnx.ModelProto:
        """Calls `infer_shapes`; caches the last result with and without declared shapes: most passes change nothing."""
        given, last = proto.SerializeToString(), self._last_inferred.get(declared)
        if last is None or last[0] != given:
            last = self._last_inferred[declared] = given, infer_shapes(proto)
        return last[1]

    def _functions_of_unknown(self, known: Collection[str]) -> list[onnx.FunctionProto]:
        """Returns the functions of nodes with outputs that are not in `known`, and the functions that those call."""
        pending = [
            (n.domain, n.op)
            for g in self.graphs()
            for n in g.nodes
            if any(v.name not in known for v in n.outputs if v.name)
        ]
        functions = {(f.domain, f.name): f for f in self.functions}
        needed: set[tuple[str, str]] = set()
        while pending:
            key = pending.pop()
            if key in functions and key not in needed:
                needed.add(key)
                pending.extend((n.domain, n.op_type) for b in blocks_of([functions[key]]) for n in b.node)
        return [f for key, f in functions.items() if key in needed]

    def reload(self, proto: onnx.ModelProto) -> None:
        """Replaces the whole contents by `proto`."""
        size, held = self.size, self._held
        Model.__init__(self, proto, self.source)
        self.size, self._held = size, held
        if held is not None:
            self.hold(*self._contents())

    def initializer(self, name: str, graph: Graph) -> Constant | None:
        """Returns the initializer `name` of `graph` or of the main graph."""
        return graph_info(graph).initializers.get(name) or graph_info(self.graph).initializers.get(name)

    def replace_all_uses(self, old: Value, new: Value, graphs: Sequence[Graph] | None = None) -> None:
        """Makes every consumer of `old`, graph outputs included, read `new`; a graph output keeps its name.

        Args:
            old: The value to replace.
            new: Its replacement.
            graphs: The graphs whose outputs may be `old`; all by default.
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
        """Inserts `nodes` into `graph`, directly before the node `before`."""
        position = _position(graph, before)
        graph.nodes[position:position] = list(nodes)

    def insert_nodes_after(self, graph: Graph, after: Node, nodes: Sequence[Node]) -> None:
        """Inserts `nodes` into `graph`, directly after the node `after`."""
        position = _position(graph, after) + 1
        graph.nodes[position:position] = list(nodes)

    def remove_nodes(self, graph: Graph, nodes: Iterable[Node]) -> None:
        """Removes `nodes` from `graph` and cuts their edges."""
        remove_nodes(graph, nodes)

    def remove_dead(self, keeps: Callable[[Node], bool] | None = None) -> int:
        """Removes unused nodes and initializers in every graph; returns how many.

        Model inputs stay, as do nodes that `keeps` names. A subgraph's use of an outer value counts.
        """
        removed = remove_dead_nodes(self.graph, keeps) + remove_dead_constants(self.graph)
        if removed and self.cells:
            self._forget_dead_cells()
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
        """Turns the nodes of some cells into ordinary operators; the model forgets these cells.

        Args:
            names: Names of the cells.
            remembered: Those of them that `with_released_cells` can restore.
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

    def sort(self) -> bool:
        """Orders the nodes of every graph topologically, stably and without recursion; returns whether any moved.

        Raises:
            CompileError: A graph has a cycle.
        """
        captured = captures(self.graph)
        moved = False
        for graph in self.graphs():
            order = sorted_nodes(graph, captured, self.source)
            moved |= any(a is not b for a, b in zip(graph.nodes, order, strict=True))
            graph.nodes[:] = order
        return moved

    def check(self) -> None:
        """Checks the invariants that hold after every pass; raises StructureError (see `check_structure`)."""
        check_structure(self.graph)


def _made_again(proto: onnx.ModelProto, source: str, size: int) -> Model:
    """A model that was written by `Model.__reduce__`."""
    made = Model(proto, source)
    made.size = size
    return made


def _position(graph: Graph, node: Node) -> int:
    for index, candidate in enumerate(graph.nodes):
        if candidate is node:
            return index
    raise StructureError(f"Node {display_name(node)!r} is not in graph {graph.name!r}.")
