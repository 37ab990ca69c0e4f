"""Regions of operators that only move elements, and the source of each element of their outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import (
    CELL_TAG,
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    dtype_of,
    export_nodes,
    info,
    shape_of,
)
from rnnqc.passes.graph.values.known_regions import Followed, known_in
from rnnqc.passes.views.moves import Table

LARGEST = 2**18
"""Elements of a value that is followed."""
_MOVED: dict[str, Sequence[int] | None] = {
    "Identity": (0,), "Reshape": (0,), "Flatten": (0,), "Squeeze": (0,), "Unsqueeze": (0,), "Transpose": (0,),
    "Slice": (0,), "Gather": (0,), "Split": (0,), "Expand": (0,), "Pad": (0,), "ScatterND": (0, 2), "Concat": None,
}  # fmt: skip
"""Operators with the inputs that they move; None for all. The other inputs must be constant."""
_FREE = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that copy nothing."""
_TYPES = frozenset(np.dtype(t) for t in (np.float32, np.int32, np.int64, np.uint8, np.int8, np.float64, np.bool_))
_IR_VERSION = 10
_LARGEST_INDICES = 2**23
"""Bytes of indices that are computed."""
Operands = Mapping[int, npt.NDArray[Any]]
"""Constants that are computed in the graph, by `id` of the value."""


@dataclass(frozen=True)
class Region:
    """Connected operators of one graph that only move elements.

    Attributes:
        nodes: The operators, in order.
        sources: The values whose elements they move.
        starts: For each source a table that numbers its elements; numbers are unique across sources.
        outputs: The values with readers outside the region.
        tables: The elements of each output.
        reach: For each output the sources that it depends on, by number.
        given: For each output whether it is an output of a graph, which needs an operator of its own.
        copied: Number of elements that the operators copy.
    """

    nodes: Sequence[Node]
    sources: Sequence[Value]
    starts: Sequence[Table]
    outputs: Sequence[Value]
    tables: Sequence[Table]
    reach: Sequence[frozenset[int]]
    given: Sequence[bool]
    copied: int


def has_views(model: Model) -> bool:
    """Whether any operator may belong to a region, regardless of shapes."""
    return any(_may_be_view(n) for g in model.graphs() for n in g.nodes)


def find_regions(model: Model, graph: Graph, indices: Operands = MappingProxyType({})) -> list[Region]:
    """Returns the regions of one graph; shapes must be inferred before.

    Args:
        model: The model of the graph.
        graph: The graph.
        indices: Operands that are computed from constants; see `computed_indices`.
    """
    views = [n for n in graph.nodes if _is_view(n, indices)]
    if not views:
        return []
    held = {id(v) for g in model.graphs() for v in g.outputs}
    found = (_region(model, nodes, held, indices) for nodes in _connected(views))
    return [r for r in found if r is not None]


def computed_indices(model: Model, graph: Graph) -> Operands:
    """Returns indices of ScatterND nodes that nodes of the graph compute from constants, by `id` of the value.

    torch's exporter writes this for `x[:, :, a:b] = y`. onnxruntime computes them when it creates a session.
    """
    written = [n.inputs[1] for n in graph.nodes if n.op == "ScatterND" and not n.domain and len(n.inputs) > 2]
    pending = [v for v in written if constant_array(v) is None]
    wanted = {id(v) for v in pending}
    makers: dict[int, Node] = {}
    while pending:
        value = pending.pop()
        for maker in value.inputs:
            if id(maker) not in makers and all(_is_followed(v) for v in maker.outputs if v.name):
                makers[id(maker)] = maker
                pending += maker.inputs
    if not makers:
        return {}
    known = known_in(model, [n for n in graph.nodes if id(n) in makers], Followed("iub", _LARGEST_INDICES))
    return {key: array for key, array in known.items() if key in wanted}


def moved(node: Node) -> list[Value]:
    """Returns the inputs that an operator of a region moves."""
    places = _MOVED[node.op]
    return list(node.inputs) if places is None else [node.inputs[k] for k in places]


def _may_be_view(node: Node) -> bool:
    return not node.domain and node.op in _MOVED and CELL_TAG not in info(node).metadata


def _is_view(node: Node, indices: Operands) -> bool:
    if not _may_be_view(node):
        return False
    places = _MOVED[node.op]
    if places is not None and len(node.inputs) <= max(places):
        return False
    values = moved(node)
    others = [v for v in node.inputs if v.name and not any(v is m for m in values)]
    if any(_operand(v, indices) is None for v in others) or all(constant_array(v) is not None for v in values):
        return False
    types = {dtype_of(v) for v in values}
    if len(types) != 1 or not types <= _TYPES or not all(_is_followed(v) for v in [*values, *node.outputs] if v.name):
        return False
    return _moves_only(node, indices)


def _is_followed(value: Value) -> bool:
    shape = shape_of(value)
    sizes = [d for d in shape or () if isinstance(d, int)]
    return shape is not None and len(sizes) == len(shape) and 0 < math.prod(sizes) <= LARGEST


def _moves_only(node: Node, indices: Operands) -> bool:
    """Whether an operator that could also compute only moves elements here."""
    if node.op == "Pad":
        pads = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
        return pads is not None and not pads.any()
    if node.op == "ScatterND":
        rows = _operand(node.inputs[1], indices)
        assert rows is not None
        rows = rows.reshape(-1, rows.shape[-1])
        plain = attribute(node, "reduction", "none") == "none"
        return plain and bool((rows >= 0).all()) and len(np.unique(rows, axis=0)) == len(rows)
    return True


def _operand(value: Value, indices: Operands) -> npt.NDArray[Any] | None:
    return indices.get(id(value), constant_array(value))


def _connected(views: Sequence[Node]) -> list[list[Node]]:
    """The operators, grouped by common inputs and by edges between them."""
    parent = {id(n): id(n) for n in views}
    first: dict[int, Node] = {}

    def root(key: int) -> int:
        while parent[key] != key:
            parent[key] = key = parent[parent[key]]
        return key

    for node in views:
        for value in [*(v for v in moved(node) if constant_array(v) is None), *(v for v in node.outputs if v.name)]:
            parent[root(id(node))] = root(id(first.setdefault(id(value), node)))
    groups: dict[int, list[Node]] = {}
    for node in views:
        groups.setdefault(root(id(node)), []).append(node)
    return list(groups.values())


def _region(model: Model, nodes: Sequence[Node], held: set[int], indices: Operands) -> Region | None:
    """The region of some operators; None if none can be removed, they cannot run, or their outputs are unused."""
    inside, made = {id(n) for n in nodes}, {id(v): n for n in nodes for v in n.outputs}
    sources = list({id(v): v for n in nodes for v in moved(n) if id(v) not in made}.values())
    used = [v for n in nodes for v in n.outputs if v.name]
    if len(nodes) == 1 and not any(shape_of(v) == shape_of(s) for v in used for s in sources):
        return None
    outputs = [v for v in used if id(v) in held or any(id(c) not in inside for c in v.outputs)]
    starts, offset = [], 0
    for value in sources:
        sizes = [d for d in shape_of(value) or () if isinstance(d, int)]
        starts.append(np.arange(offset, offset + math.prod(sizes)).reshape(sizes))
        offset += math.prod(sizes)
    given = dict(zip((v.name for v in sources), starts, strict=True))
    tables = elements(model, nodes, given, [v.name for v in used], indices)
    if not outputs or tables is None:
        return None
    copied = sum(tables[v.name].size for n in nodes if n.op not in _FREE for v in n.outputs if v.name)
    reach, leaves = _reach(nodes, sources), [id(v) in held for v in outputs]
    values = [tables[v.name] for v in outputs]
    return Region(nodes, sources, starts, outputs, values, [reach[id(v)] for v in outputs], leaves, copied)


def _reach(nodes: Sequence[Node], sources: Sequence[Value]) -> dict[int, frozenset[int]]:
    """The sources that each value depends on, by its `id`."""
    found = {id(v): frozenset({k}) for k, v in enumerate(sources)}
    for node in nodes:
        together = frozenset[int]().union(*(found[id(v)] for v in moved(node)))
        found |= {id(v): together for v in node.outputs}
    return found


def elements(
    model: Model,
    nodes: Iterable[Node],
    sources: Mapping[str, Table],
    names: Sequence[str],
    indices: Operands = MappingProxyType({}),
) -> dict[str, Table] | None:
    """Returns the results of operators on numbered elements, computed in onnxruntime; None if it cannot run them."""
    held = list(nodes)
    graph = onnx.GraphProto(name="views", node=export_nodes(held))
    operands: dict[str, npt.NDArray[Any]] = {}
    for node, described in zip(held, graph.node, strict=True):
        places = _MOVED[node.op]
        for place, value in enumerate(node.inputs):
            array = _operand(value, indices) if value.name else None
            if array is None or ((places is None or place in places) and value.name in sources):
                continue
            # The same constant may be moved elsewhere, where it has numbers instead of its elements.
            described.input[place] = f"{value.name}{'/operand' if value.name in sources else ''}"
            operands[described.input[place]] = array
    for name, array in operands.items():
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for name, table in sources.items():
        graph.initializer.append(onnx.numpy_helper.from_array(table, name))
    graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, None) for n in names)
    proto = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph)
    proto.opset_import.add(domain="", version=model.opset)
    try:
        return run_model(proto, {})
    except CompileError:
        return None
