"""Values of a graph that are known before a run, and the nodes that become unused when they are stored."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.evaluation.evaluate import evaluate_values
from rnnqc.ir import Constant, Graph, Model, Node, Value, constant_array, dtype_of, export_nodes
from rnnqc.passes.graph.values.constant_expressions import makes_the_same
from rnnqc.passes.graph.values.known_values import known_array

Array = npt.NDArray[Any]
_KEPT = ("Constant", "DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear")
"""Constants already, or stored integers, which stay integers."""


@dataclass(frozen=True)
class Followed:
    """Which known values are kept, and which constants may be evaluated.

    Attributes:
        kinds: Letters of numpy's dtype kinds.
        largest: Maximum size of a value in bytes.
        read: Maximum size in bytes of a constant that others are computed from.
    """

    kinds: str
    largest: int
    read: float = math.inf

    def keeps(self, array: Array) -> bool:
        """Whether to keep a value."""
        return array.dtype.kind in self.kinds and array.nbytes <= self.largest

    def computes(self, node: Node) -> bool:
        """Whether a deterministic node may produce values to keep."""
        types = [dtype_of(v) for v in node.outputs if v.name]
        return node.op not in _KEPT and makes_the_same(node) and all(t is None or t.kind in self.kinds for t in types)

    def reads(self, value: Value) -> bool:
        """Whether a value is a constant that may be evaluated."""
        if isinstance(value, Constant):
            return bool(math.prod(value.shape) * np.dtype(value.dtype).itemsize <= self.read)
        array = constant_array(value)
        return array is not None and array.nbytes <= self.read


@dataclass
class Region:
    """Connected nodes that become unused when their results are stored.

    Attributes:
        nodes: The nodes.
        stored: Their results that other nodes use.
    """

    nodes: list[Node]
    stored: list[tuple[Value, Array]] = field(default_factory=list)

    @property
    def decides(self) -> bool:
        """Whether one of its values chooses a branch."""
        return any(n.op == "If" and not n.domain and n.inputs[0] is v for v, _ in self.stored for n in v.outputs)

    @property
    def growth(self) -> int:
        """The maximum growth of the file in bytes when its values are stored, including names."""
        stored = [onnx.numpy_helper.from_array(array, value.name) for value, array in self.stored]
        inside = {id(n) for n in self.nodes}
        read = {id(v): v for n in self.nodes for v in n.inputs if all(id(c) in inside for c in v.outputs)}
        constants = [v for v in read.values() if isinstance(v, Constant)]
        makers = [n for v in read.values() for n in v.inputs if n.op == "Constant"]
        before = [onnx.numpy_helper.from_array(np.asarray(constant_array(v)), v.name) for v in constants]
        before += export_nodes([*self.nodes, *makers])
        return _bytes(stored) - _bytes(before)


def _bytes(listed: Sequence[onnx.TensorProto | onnx.NodeProto]) -> int:
    """Encoded size of list entries in a file, with tag and length of each."""
    return sum(int(message.ByteSize()) + 2 + (message.ByteSize() > 127) for message in listed)


def known_in(model: Model, nodes: Iterable[Node], followed: Followed) -> dict[int, Array]:
    """Returns the results of a graph's nodes that are known before a run, by `id` of the value.

    Nodes must be in order, and shapes inferred.
    """
    found: dict[int, Array] = {}
    computed: list[Node] = []
    ready: set[int] = set()
    for node in nodes:
        array = known_array(node)
        if array is not None and followed.keeps(array):
            found[id(node.outputs[0])] = array
        elif (
            array is None
            and node.inputs
            and followed.computes(node)
            and all(id(v) in ready or id(v) in found or followed.reads(v) for v in node.inputs if v.name)
        ):
            computed.append(node)
            ready.update(id(v) for v in node.outputs)
    for node, arrays in _evaluated(model, computed, found):
        if all(map(followed.keeps, arrays)) and not any(
            id(v) in ready and id(v) not in found for v in node.inputs if v.name
        ):
            found.update(zip((id(v) for v in node.outputs if v.name), arrays, strict=True))
    return found


def regions(graph: Graph, known: Mapping[int, Array], kept: Collection[int]) -> list[Region]:
    """Returns the nodes of a graph all of whose used values are known, in connected parts.

    Args:
        graph: The graph.
        known: The result of `known_in`.
        kept: Outputs of all graphs of the model, by `id`: their nodes are kept.
    """
    part: dict[int, Region] = {}
    for node in graph.nodes:
        used = [v for v in node.outputs if v.outputs]
        if not used or any(id(v) in kept for v in node.outputs) or not all(id(v) in known for v in used):
            continue
        part[id(node)] = Region([node])
        for source in (n for v in node.inputs for n in v.inputs if id(n) in part):
            one, other = sorted((part[id(source)], part[id(node)]), key=lambda r: -len(r.nodes))
            if one is not other:
                one.nodes += other.nodes
                part.update((id(n), one) for n in other.nodes)
    found = list({id(r): r for r in part.values()}.values())
    for region in found:
        for value in (v for n in region.nodes for v in n.outputs):
            if any(part.get(id(n)) is not region for n in value.outputs):
                region.stored.append((value, known[id(value)]))
    return found


def _evaluated(model: Model, nodes: list[Node], found: Mapping[int, Array]) -> Iterator[tuple[Node, list[Array]]]:
    """Yields nodes with their results: from a single run, or, if that fails, node by node as far as possible."""
    held = {v.name: found[id(v)] for n in nodes for v in n.inputs if id(v) in found}
    arrays = evaluate_values(model, nodes, [v for n in nodes for v in n.outputs if v.name], held) if nodes else {}
    for node in nodes:
        made = [v for v in node.outputs if v.name]
        if not arrays and all(v.name in held or constant_array(v) is not None for v in node.inputs if v.name):
            held |= evaluate_values(model, [node], made, held)
        results = [arrays.get(v.name, held.get(v.name)) for v in made]
        if all(a is not None for a in results):
            yield node, [a for a in results if a is not None]
