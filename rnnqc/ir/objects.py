"""graphsurgeon's objects, rnnqc's records beside them, and queries on both."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx_graphsurgeon import Constant, Graph
from onnx_graphsurgeon import Tensor as Value
from onnx_graphsurgeon.ir.tensor import LazyValues, SparseValues

from rnnqc.cells.keys import CELLS_KEY
from rnnqc.proto.shape_inference import sizes_of

__all__ = [
    "CELLS_KEY", "CELL_TAG", "CUSTOM_TAG", "DOMAIN", "DOMAIN_VERSION", "FLOAT_TAG", "PROVENANCE_KEY", "RELEASED_TAG",
    "Constant", "Graph", "GraphInfo", "Node", "NodeInfo", "Value", "Variable", "attribute", "attribute_reference",
    "captured_by", "captured_values", "captures", "constant_array", "dense_array", "display_name", "dtype_of",
    "graph_info", "graphs_below", "info", "input_or_none", "make_constant", "names_in", "note_shape", "output_number",
    "output_or_none", "safe_name", "shape_of", "subgraphs",
]  # fmt: skip

if TYPE_CHECKING:
    from onnx_graphsurgeon import Node, Variable

    def _give_edges(owner: Any) -> None: ...

else:
    from onnx_graphsurgeon import Node as ComparedNode
    from onnx_graphsurgeon import Variable as SlowVariable
    from onnx_graphsurgeon.util.misc import SynchronizedList

    class _EdgeList(SynchronizedList):
        """A faster `SynchronizedList`."""

        def clear(self) -> None:
            for other in self:
                list.remove(getattr(other, self.field_name), self.parent_obj)
            list.clear(self)

    class _Inputs(_EdgeList):
        """The list `inputs` of a node or value; the `outputs` of its elements contain the owner."""

        field_name = "outputs"

    class _Outputs(_EdgeList):
        """The list `outputs` of a node or value."""

        field_name = "inputs"

    def _give_edges(owner: Any) -> None:
        """Gives a node or value empty lists `inputs` and `outputs`."""
        held = owner.__dict__
        held["inputs"] = inputs = _Inputs.__new__(_Inputs)
        held["outputs"] = outputs = _Outputs.__new__(_Outputs)
        inputs.parent_obj = outputs.parent_obj = owner

    class _Edges:
        """Assigns to `inputs` and `outputs` like graphsurgeon: once the lists exist, it replaces their contents.

        graphsurgeon detects a missing list by an exception, which takes most of the time of its constructors. The
        constructors below write their attributes directly.
        """

        def __setattr__(self, name: str, value: Any) -> None:
            if name in ("inputs", "outputs") and name in self.__dict__:
                super().__setattr__(name, value)
            else:
                object.__setattr__(self, name, value)

    class Node(_Edges, ComparedNode):
        """A node that is equal only to itself.

        graphsurgeon's nodes are equal if names, operators and values are, as in two bodies that do the same with an
        outer value. Removing one of them from the value's consumers could then remove the other.
        """

        __eq__ = object.__eq__
        __hash__ = object.__hash__

        def __init__(
            self, op: str, name: str = "", attrs: Any = None, inputs: Any = (), outputs: Any = (), domain: Any = None
        ) -> None:
            held = self.__dict__
            held["op"], held["name"], held["domain"] = op, name, domain
            held["attrs"] = {} if attrs is None else attrs
            _give_edges(self)
            if inputs:
                list.extend(held["inputs"], inputs)
                for value in inputs:
                    list.append(value.outputs, self)
            if outputs:
                list.extend(held["outputs"], outputs)
                for value in outputs:
                    list.append(value.inputs, self)

    class Variable(_Edges, SlowVariable):
        """A value that is computed or given."""

        def __init__(self, name: str, dtype: Any = None, shape: Any = None, type: str = "tensor_type") -> None:
            held = self.__dict__
            held["name"], held["dtype"], held["shape"], held["type"] = name, dtype, shape, type
            _give_edges(self)


DOMAIN = "ai.rnnqc"
DOMAIN_VERSION = 1
PROVENANCE_KEY = "rnnqc.provenance"
CELL_TAG = "rnnqc.cell"
FLOAT_TAG = "rnnqc.float"
CUSTOM_TAG = "rnnqc.custom"
RELEASED_TAG = "rnnqc.released"
"""Metadata key: on a node, the name of the cell it belonged to; on a model, the descriptions of such cells."""


@dataclass
class NodeInfo:
    """The data of a node that graphsurgeon lacks; `notes` are passed between passes and not written to files."""

    proto: onnx.NodeProto | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    doc_string: str = ""
    overload: str = ""
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class GraphInfo:
    """The data of a graph that graphsurgeon lacks."""

    proto: onnx.GraphProto | None = None
    initializers: dict[str, Constant] = field(default_factory=dict)
    input_order: list[str] = field(default_factory=list)
    value_infos: dict[str, tuple[onnx.ValueInfoProto, Any, Any]] = field(default_factory=dict)


def info(node: Node) -> NodeInfo:
    """Returns the record of `node`, created on first use."""
    record: NodeInfo | None = node.__dict__.get("_rnnqc")
    if record is None:
        record = NodeInfo()
        node.__dict__["_rnnqc"] = record
    return record


def graph_info(graph: Graph) -> GraphInfo:
    """Returns the record of `graph`, created on first use."""
    record: GraphInfo | None = graph.__dict__.get("_rnnqc")
    if record is None:
        record = GraphInfo()
        graph.__dict__["_rnnqc"] = record
    return record


def subgraphs(node: Node) -> list[tuple[str, Graph]]:
    """Returns attribute name and graph of every subgraph of `node`."""
    attrs = node.attrs
    return [(name, value) for name, value in attrs.items() if isinstance(value, Graph)] if attrs else []


def graphs_below(graph: Graph) -> Iterator[Graph]:
    """Yields a graph and every subgraph in it, outer graphs first."""
    queue = deque([graph])
    while queue:
        current = queue.popleft()
        yield current
        for node in current.nodes:
            if attrs := node.attrs:
                for value in attrs.values():
                    if isinstance(value, Graph):
                        queue.append(value)


def display_name(node: Node) -> str:
    """Returns the name of `node` in messages: its name, or its first output."""
    if node.name:
        return str(node.name)
    return next((t.name for t in node.outputs if t.name), f"unnamed {node.op}")


def attribute_reference(name: str, kind: type) -> Any:
    """Returns an attribute value that refers to attribute `name` of the enclosing function."""
    return Node.AttributeRef(name, kind)


def attribute(node: Node, name: str, default: Any) -> Any:
    """Returns the value of an attribute of `node`, or `default`."""
    return node.attrs.get(name, default)


def input_or_none(node: Node, index: int) -> Value | None:
    """Returns input `index` of `node`; None if it is absent or empty."""
    if index >= len(node.inputs) or node.inputs[index].name == "":
        return None
    return node.inputs[index]


def maker_of(value: Value) -> Node | None:
    """Returns the node of ONNX's own domain that produces `value`; None if there is none."""
    return value.inputs[0] if len(value.inputs) == 1 and not value.inputs[0].domain else None


def output_number(node: Node, value: Value) -> int:
    """Returns the index of `value` among the outputs of `node`."""
    return next(k for k, v in enumerate(node.outputs) if v is value)


def output_or_none(node: Node, index: int) -> Value | None:
    """Returns output `index` of `node`; None if it is absent or empty."""
    if index >= len(node.outputs) or node.outputs[index].name == "":
        return None
    return node.outputs[index]


_UNSAFE = re.compile(r"[^0-9A-Za-z_./-]")
_CONSTANT_TYPES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def constant_array(value: Value | None) -> npt.NDArray[Any] | None:
    """Returns the array of an initializer or of a Constant node's output; None for anything else."""
    if value is None:
        return None
    if isinstance(value, Constant):
        held = value._values
        if isinstance(held, SparseValues):
            return dense_array(held.tensor)  # graphsurgeon would convert it to float64 permanently
        if isinstance(held, LazyValues):
            return onnx.numpy_helper.to_array(held.tensor)  # not cached, to avoid a second copy of every weight
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
    """Returns a sparse tensor, which was checked at load time, as a dense array."""
    values, indices = (onnx.numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    dense = np.zeros(list(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values  # works for rank 0, too
    else:
        dense[tuple(indices.T)] = values
    return dense


def shape_of(value: Value | None) -> list[int | str | None] | None:
    """Returns the declared or inferred shape of `value`; None if not even the rank is known."""
    if value is None:
        return None
    if isinstance(value, Constant):
        return [int(d) for d in value.shape]
    noted = value.__dict__.get("_rnnqc_shape")
    shape = noted[1] if noted is not None else value.shape
    return None if shape is None else [d if d != "" else None for d in shape]


def dtype_of(value: Value | None) -> np.dtype[Any] | None:
    """Returns the declared or inferred element type of `value`; None if it is unknown."""
    if value is None:
        return None
    noted = value.__dict__.get("_rnnqc_shape")
    dtype = noted[0] if noted is not None and noted[0] is not None else value.dtype
    return (
        np.dtype(dtype) if isinstance(dtype, type | np.dtype) else None
    )  # some types of graphsurgeon have no numpy type


def note_shape(value: Value, described: onnx.TypeProto | None) -> None:
    """Stores type and shape beside `value`, for `shape_of` and `dtype_of`."""
    if described is None or not described.HasField("tensor_type") or isinstance(value, Constant):
        return
    tensor = described.tensor_type
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        shape = sizes_of(tensor.shape)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    except (KeyError, TypeError):
        dtype = None
    value.__dict__["_rnnqc_shape"] = (dtype, shape)


def names_in(graph: Graph) -> set[str]:
    """Returns the names of all nodes and values of one graph."""
    names = {v.name for v in [*graph.inputs, *graph.outputs]} | set(graph_info(graph).initializers)
    for node in graph.nodes:
        names.add(node.name)
        names.update(v.name for v in [*node.inputs, *node.outputs])
    names.discard("")
    return names


def captures(graph: Graph) -> dict[int, list[Value]]:
    """Returns for every graph inside a graph, by `id`, the outer values that it reads."""
    found: dict[int, list[Value]] = {}
    for inner in reversed(list(graphs_below(graph))[1:]):
        found[id(inner)] = captured_by(inner, found)
    return found


def captured_by(graph: Graph, below: Mapping[int, list[Value]]) -> list[Value]:
    """Returns the outer values that a graph reads; `below` has those of its nodes' graphs, by `id` of the graph."""
    made = {id(v) for v in [*graph.inputs, *graph_info(graph).initializers.values()]}
    used: dict[int, Value] = {}
    for node in graph.nodes:
        made.update(map(id, node.outputs))
        for value in node.inputs:
            used[id(value)] = value
        if node.attrs:
            for _, inner in subgraphs(node):
                used |= {id(v): v for v in below[id(inner)]}
    used |= {id(v): v for v in graph.outputs}
    return [v for key, v in used.items() if key not in made and v.name]


def captured_values(node: Node, below: Mapping[int, list[Value]] | None = None) -> list[Value]:
    """Returns the outer values that the subgraphs of `node` read.

    Args:
        node: The node.
        below: The result of `captures`, for queries about many nodes.
    """
    inner = subgraphs(node)
    if not inner:
        return []
    if below is None:
        below = {k: v for _, g in inner for k, v in captures(g).items()}
        below |= {id(g): captured_by(g, below) for _, g in inner}
    return list({id(v): v for _, g in inner for v in below[id(g)]}.values())


def make_constant(name: str, array: npt.NDArray[Any]) -> Constant:
    """Makes `Constant(name, array)` without graphsurgeon's slow constructor."""
    made: Constant = Constant.__new__(Constant)
    held = made.__dict__
    held["name"], held["_values"], held["data_location"], held["_export_dtype"] = name, array, None, None
    _give_edges(made)
    return made


def safe_name(text: str) -> str:
    """Returns `text` with everything but letters, digits, `_`, `-`, `.` and `/` replaced by `_`."""
    return _UNSAFE.sub("_", text)
