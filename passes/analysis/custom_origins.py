"""Analysis: which values of a recurrence are quantized, and which share the format of another one. Reads only.

Operators that only move values have no point: their results have the format of the source. A state has the format of
its next value, and so has the initial state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rnnqc.ir import CELL_TAG, Node, Value, constant_array, display_name, dtype_of, info
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, VALUE, WEIGHT, CustomCell
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.graph.loops.loop_states import states_of
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.point_names import distinct_names
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.layout_ops import MOVERS

_NAMED = {"Sigmoid": "sigmoid", "Tanh": "tanh"}
# With the inputs whose elements appear in the output; None for all.
_MOVERS: Mapping[str, Sequence[int] | None] = {
    **MOVERS, "Split": (0,), "Where": (1, 2), "Tile": (0,), "GatherElements": (0,), "GatherND": (0,), "Dropout": (0,),
    "ScatterND": (0, 2), "ScatterElements": (0, 2),
}  # fmt: skip
_SEQUENCES = ("SequenceAt", "SequenceInsert", "SequenceEmpty", "SequenceConstruct", "SplitToSequence", "SequenceErase")
_JOINERS = ("Concat", "Where", "ScatterND", "ScatterElements")


@dataclass(frozen=True)
class Owner:
    """The node or value that a point is named after; its id distinguishes owners of equal names."""

    key: int
    text: str


@dataclass(frozen=True)
class Point:
    """A point that is not named yet: its suffix after the name of its owner."""

    owner: Owner
    ending: str


def owner_of(named: Node | Value) -> Owner:
    """Returns the owner of the points of a node or of a value."""
    return Owner(id(named), display_name(named) if isinstance(named, Node) else str(named.name))


def _from_outside(value: Value) -> Point:
    return Point(owner_of(value), f".input.{VALUE}")


class Reader:
    """Finds the quantized values, and the point that determines the format of each value of the region."""

    def __init__(self, cell: CustomCell, sites: Mapping[Owner, list[CustomProduct]], constants: Constants) -> None:
        self.cell, self.sites, self.constants = cell, sites, constants
        self.edges: dict[Point, list[Value]] = {}
        self.entering: dict[Point, list[Value]] = {}
        self.origins: dict[int, Point] = {}
        self.before: dict[int, Value] = {}  # the next value of a state, by the id of the state
        self.inputs: dict[int, Point] = {}
        self.local: set[int] = set()
        self.joined: set[int] = set()  # movers whose sources have different formats
        self.found: dict[int, frozenset[Point]] = {}
        self.inner = {id(p.node) for row in sites.values() for p in row if id(p.node) in cell.sums}

    def name_points(self) -> None:
        """Names all points."""
        endings = {owner: [f".{p}" for p in (WEIGHT, HIDDEN, BIAS)] for owner in self.sites}
        for point in dict.fromkeys((*self.edges, *self.entering, *self.origins.values())):
            endings.setdefault(point.owner, []).append(point.ending)
        names = distinct_names({owner: (owner.text, ends) for owner, ends in endings.items()})

        def name(point: Point) -> str:
            return f"{names[point.owner]}{point.ending}"

        cell = self.cell
        cell.products = {names[owner]: row for owner, row in self.sites.items()}
        cell.edges = {name(p): values for p, values in self.edges.items()}
        cell.entering = {name(p): values for p, values in self.entering.items()}
        cell.origins = {v: name(p) for v, p in self.origins.items()}

    def loop(self, node: Node) -> None:
        """Reads the body of a loop; initial states get the format of the state's next value."""
        cell = self.cell
        cell.states = [s for s in states_of(node) if _float(s.before)]
        self.before = {id(s.before): s.after for s in cell.states if not s.invariant}
        region = self._region(cell.graph.nodes)
        self._solve(region, cell.graph.inputs)
        for state in cell.states:
            if id(state.before) in self.before and state.initial.name:
                origins = self._of(state.before)
                if len(origins) == 1 and not self.constants.zero(state.initial):
                    self.entering.setdefault(next(iter(origins)), []).append(state.initial)

    def _region(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes whose floats depend on a matmul, and those that these depend on."""
        products = {id(n) for n in self.cell.recurrence.products}
        reached = {id(v) for n in nodes if id(n) in products for v in n.outputs}
        forward: set[int] = set()
        grown = True
        while grown:
            grown = False
            for node in nodes:
                if id(node) in forward or not (id(node) in products or any(id(v) in reached for v in _sources(node))):
                    continue
                forward.add(id(node))
                reached |= {id(v) for v in node.outputs if v.name and _float(v)}
                grown = True
            for state, after in self.before.items():
                if id(after) in reached and state not in reached:
                    reached.add(state)
                    grown = True
        needed = {id(v) for n in nodes if id(n) in forward for v in _sources(n)}
        wanted = set(forward)
        for _ in range(len(self.before) + 1):
            for node in reversed(nodes):
                if any(id(v) in needed for v in node.outputs if _float(v)):
                    wanted.add(id(node))
                    needed |= {id(v) for v in _sources(node)}
            needed |= {id(after) for state, after in self.before.items() if state in needed}
        return [n for n in nodes if id(n) in wanted and CELL_TAG not in info(n).metadata and not is_recurrent(n)]

    def _solve(self, region: Sequence[Node], inputs: Iterable[Value]) -> None:
        """Computes origins of all values; states take those of their next value, which needs several rounds."""
        self.local = {id(v) for n in region for v in n.outputs if v.name}
        self.inputs |= {id(v): _from_outside(v) for v in inputs if id(v) not in self.before}
        consumed = [v for n in region for v in _sources(n)]
        for _ in range(2 * len(self.before) + 3):
            previous, self.found = self.found, {}
            self._previous = previous
            for node in region:
                for number, value in enumerate(node.outputs):
                    if value.name:
                        self.found[id(value)] = self._made(node, number, value)
            for state, after in self.before.items():
                self.found[state] = self._of(after)
            if previous == self.found:
                break
        self.edges, self.entering = {}, {}
        self.cell.region = {id(n) for n in region}
        for value in consumed:
            if id(value) not in self.found:
                self.found[id(value)] = self._of(value)
        for node in region:
            for number, value in enumerate(node.outputs):
                point = self._own(node, number)
                if value.name and self.found[id(value)] == {point}:
                    mover = node.op in _MOVERS and id(node) not in self.joined
                    if not mover:
                        self.edges.setdefault(point, []).append(value)
        entered = {id(v): v for v in consumed if self._enters(v)}
        for value in entered.values():
            (point,) = self.found[id(value)]
            self.edges.setdefault(point, []).append(value)
        self.origins = {v: next(iter(points)) for v, points in self.found.items() if len(points) == 1}

    def _enters(self, value: Value) -> bool:
        return id(value) not in self.local and id(value) not in self.before and bool(self.found.get(id(value)))

    def _own(self, node: Node, number: int) -> Point:
        parts = ["", *([str(number)] if number else []), *([_NAMED[node.op]] if node.op in _NAMED else []), VALUE]
        return Point(owner_of(node), ".".join(parts))

    def _made(self, node: Node, number: int, value: Value) -> frozenset[Point]:
        if not _float(value) or node.op in _SEQUENCES or node.op == "Constant":
            return frozenset()
        own = frozenset({self._own(node, number)})
        if node.op in _MOVERS and not node.domain:
            if id(node) in self.joined:
                return own
            moved = _MOVERS[node.op]
            sources = [node.inputs[k] for k in (range(len(node.inputs)) if moved is None else moved)]
            origins: frozenset[Point] = frozenset().union(*(self._of(v) for v in sources if v.name))
            foreign = any(v.name and self._foreign(v) for v in sources)
            if node.op in _JOINERS and (len(origins) > 1 or (foreign and origins)):
                self.joined.add(id(node))
                return own
            return origins
        if id(node) in self.inner or self.constants.array(value) is not None:
            return frozenset()
        return own

    def _of(self, value: Value) -> frozenset[Point]:
        if id(value) in self.found:
            return self.found[id(value)]
        if id(value) in self.local or id(value) in self.before:
            return self._previous.get(id(value), frozenset())
        if not _float(value) or self.constants.array(value) is not None or self.constants.zero(value):
            return frozenset()
        return frozenset({self.inputs.get(id(value)) or _from_outside(_root(value))})

    def _foreign(self, value: Value) -> bool:
        """Whether `value` is a constant that some quantization parameters cannot represent: any but 0."""
        array = self.constants.array(value)
        return array is not None and bool(array.any())


def _sources(node: Node) -> list[Value]:
    """The float inputs of `node`."""
    return [v for v in node.inputs if v.name and _float(v)]


def _root(value: Value) -> Value:
    """The sequence that elements are read from."""
    while len(value.inputs) == 1 and not value.inputs[0].domain:
        node = value.inputs[0]
        if node.op not in (*MOVERS, "Split") or node.op == "Concat" or node.inputs[0].name == "":
            break
        value = node.inputs[0]
    return value


_KEEPS_TYPE = ("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Sigmoid", "Tanh", "Relu", "Neg", *_MOVERS)


def _float(value: Value) -> bool:
    """Whether `value` is a float32 tensor, as far as that is known."""
    kind = dtype_of(value)
    if kind is not None:
        return kind == np.dtype(np.float32)
    array = constant_array(value)
    if array is not None:
        return array.dtype == np.float32
    node = value.inputs[0] if len(value.inputs) == 1 else None
    if node is None or node.domain or node.op not in _KEEPS_TYPE:
        return False
    position = 1 if node.op == "Where" else 0
    return _float(node.inputs[position])
