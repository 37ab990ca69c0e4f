"""Analysis: which nodes of an unrolled custom cell correspond to each other in different steps. Reads only.

The matmuls with one matrix, each depending on the one before, count the steps. Within a step a node is identified by
what it computes from values of other steps, inputs and constants; indistinguishable nodes form a row, and nodes that
occur in a single step only, for example a layer behind the last one, are not part of the recurrence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from rnnqc.ir import Constant, Graph, Node, Value, attribute, constant_array, subgraphs
from rnnqc.passes.analysis.float_recurrences import FloatRecurrence
from rnnqc.passes.graph.values.layout_ops import MOVERS

_OUTSIDE = "outside"
_SMALL = 64  # elements of a constant that its contents identify
_DATA = ("Shape", "Size")


@dataclass(frozen=True)
class Rows:
    """The nodes of all steps.

    Attributes:
        nodes: All nodes, in order.
        firsts: The first node of each node's row, by its id.
        steps: The step of each node, by its id.
    """

    nodes: tuple[Node, ...]
    firsts: Mapping[int, Node]
    steps: Mapping[int, int]

    def first(self, node: Node) -> Node:
        """Returns the first of the nodes that correspond to `node` in other steps."""
        return self.firsts.get(id(node), node)


def rows_of(graph: Graph, recurrence: FloatRecurrence) -> Rows:
    """Returns the rows of the nodes of a custom cell that is unrolled in `graph`."""
    steps = _Steps(graph, recurrence)
    held: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        key = steps.key(node)
        if key is not None:
            held.setdefault(key, []).append(node)
    firsts: dict[int, Node] = {}
    for same in held.values():
        if len({steps.step[id(n)] for n in same}) > 1 or id(same[0]) in steps.products:
            firsts.update({id(n): same[0] for n in same})
    kept = tuple(n for n in graph.nodes if id(n) in firsts)
    return Rows(kept, firsts, _numbers(kept, firsts, steps.step))


def _numbers(nodes: Sequence[Node], firsts: Mapping[int, Node], depth: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """The step of each node, by its id.

    Rows with a node for each step count the steps. Shorter rows lack nodes that are constant in the first step or
    unused in the last; their steps follow from the number of matmuls that the nodes depend on, and from the values they
    use.
    """
    place = {told: k for k, told in enumerate(sorted({depth[id(n)] for n in nodes}))}
    rows: dict[int, list[Node]] = {}
    for node in nodes:
        rows.setdefault(id(firsts[id(node)]), []).append(node)
    places = {key: sorted({place[depth[id(n)]] for n in row}) for key, row in rows.items()}
    alone = [places[key] for key, row in rows.items() if len(row) == len(places[key])]  # one node for each step
    count = max((len(p) for p in alone), default=0)
    begin = min((p[0] for p in alone if len(p) == count), default=0)
    found: dict[int, int] = {}
    for key, row in rows.items():
        first, last = places[key][0] - begin, places[key][-1] - begin
        shift = begin + min(0, first) + max(0, last - count + 1)
        found.update((id(n), place[depth[id(n)]] - shift) for n in row)
    for row in (r for key, r in rows.items() if len(places[key]) < count):
        own = {id(n) for n in row}
        room = count - 1 - max(found[n] for n in own)
        used = [(n, p) for n in row for v in n.inputs for p in v.inputs if id(p) in found and id(p) not in own]
        late = max((found[id(p)] - found[id(n)] for n, p in used), default=0)
        found.update((n, found[n] + min(room, max(0, late))) for n in own)
    return found


class _Steps:
    """Assigns nodes to steps, by the number of matmuls of each counting row that they depend on."""

    def __init__(self, graph: Graph, recurrence: FloatRecurrence) -> None:
        self.products = {id(n): (n.op, id(n.inputs[1])) for n in recurrence.products}
        self.matrices = set(self.products.values())
        self.step: dict[int, tuple[int, ...]] = {}
        self.apart: set[int] = set()
        self.keys: dict[int, Hashable] = {}
        rows = sorted(rows_of_products(graph, recurrence), key=len, reverse=True)
        counting: list[set[int]] = []
        for row in rows:
            # One row counts for all matrices of a layer, but not for a reversed layer behind it.
            if len({self.step.get(n, ()) for n in row}) < len(row):
                counting.append(set(row))
                self._count(graph, counting)

    def _count(self, graph: Graph, counting: list[set[int]]) -> None:
        depth: dict[int, tuple[int, ...]] = {}
        nothing = (0,) * len(counting)
        for node in graph.nodes:
            before = [depth[id(p)] for v in node.inputs for p in v.inputs if id(p) in depth]
            most = [max(d) for d in zip(nothing, *before, strict=True)]
            depth[id(node)] = tuple(d + (id(node) in row) for d, row in zip(most, counting, strict=True))
        self.apart = {n for n, d in depth.items() if d == nothing}
        """Nodes that depend on no state."""
        self.step = {n: d for n, d in depth.items() if n not in self.apart}
        self._place_apart(graph, set())
        first = self._first_step(graph, nothing)
        if first:
            self.step = {n: d for n, d in self.step.items() if n not in self.apart} | dict.fromkeys(first, nothing)
            self._place_apart(graph, first)

    def _place_apart(self, graph: Graph, placed: set[int]) -> None:
        """Assigns nodes that do not depend on a state to the step that uses them."""
        for node in reversed(graph.nodes):
            if id(node) in self.apart and id(node) not in placed:
                users = [self.step[id(u)] for v in node.outputs for u in v.outputs if id(u) in self.step]
                if users:
                    self.step[id(node)] = min(users)

    def _first_step(self, graph: Graph, nothing: tuple[int, ...]) -> set[int]:
        """The nodes of a step before the first that depends on a state: its own state is constant."""
        held: dict[Hashable, list[int]] = {}
        for node in graph.nodes:
            if id(node) in self.apart and id(node) in self.products and id(node) in self.step:
                held.setdefault((self.products[id(node)], self.step[id(node)]), []).append(id(node))
        first = {n for same in held.values() for n in same[:-1]}
        for node in graph.nodes:
            if id(node) in self.apart and any(id(p) in first for v in node.inputs for p in v.inputs):
                first.add(id(node))
        return first

    def key(self, node: Node) -> Hashable | None:
        """Returns a key for what `node` computes within its step; None outside all steps."""
        if id(node) not in self.step or subgraphs(node) or node.op in _DATA:
            return None
        if id(node) in self.keys:
            return self.keys[id(node)]
        made: Hashable
        if len(node.inputs) > 1 and (node.op, id(node.inputs[1])) in self.matrices:
            made = node.op, id(node.inputs[1]), bool(attribute(node, "transB", 0))
        elif id(node) in self.apart and node.op in (*MOVERS, "Split") and self._told(node.inputs[0], node) == _OUTSIDE:
            made = None  # it reads elements of a sequence
        else:
            made = self._computed(node)
        self.keys[id(node)] = made
        return made

    def _computed(self, node: Node) -> Hashable:
        number = hash((node.op, node.domain, configuration(node), tuple(self._told(v, node) for v in node.inputs)))
        return node.op, number

    def _told(self, value: Value, user: Node) -> Hashable:
        if not value.name:
            return ""
        array = constant_array(value)
        if array is not None:
            if array.dtype.kind == "f" and array.size > 1 and not array.any():
                return _OUTSIDE  # a state of zeros
            small = array.size <= _SMALL
            return (array.dtype.str, array.shape, array.tobytes()) if small else id(value)
        if isinstance(value, Constant) or not value.inputs or id(value.inputs[0]) not in self.step:
            return _OUTSIDE
        maker = value.inputs[0]
        if self.step[id(maker)] != self.step[id(user)]:
            return _OUTSIDE
        key = self.key(maker)
        return _OUTSIDE if key is None else (key, [v is value for v in maker.outputs].index(True))


def configuration(node: Node) -> tuple[tuple[str, str], ...]:
    """Returns a key of the attributes of a node."""
    return tuple(sorted((k, repr(v.tolist() if hasattr(v, "tolist") else v)) for k, v in node.attrs.items()))


def rows_of_products(graph: Graph, recurrence: FloatRecurrence) -> list[list[int]]:
    """Returns for each matrix its matmuls, each depending on the one before."""
    rows = []
    for weight in dict.fromkeys(id(n.inputs[1]) for n in recurrence.products):
        tied = {id(n) for n in recurrence.products if id(n.inputs[1]) == weight}
        reached: set[int] = set()
        row: list[int] = []
        for node in graph.nodes:
            follows = any(id(v) in reached for v in node.inputs)
            if id(node) in tied and (follows or not row):
                row.append(id(node))
                follows = True
            if follows:
                reached |= {id(v) for v in node.outputs}
        if len(row) > 1:
            rows.append(row)
    return rows
