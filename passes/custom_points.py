"""Analysis: the quantization points of a recurrence that is no LSTM, GRU or RNN. Reads only.

Below the name of the recurrence, `<node>` being the one that makes the value:

* `<product>.weight`, `<product>.hidden`, `<product>.bias`: constant weights of a matrix product, what is multiplied by
  them, and what is added to the product if that is constant, too;
* `<node>.value`: every other float that is computed; `<node>.sigmoid.value` and `<node>.tanh.value` where it is one of
  these two, whose range is known;
* `<value>.input.value`: a float that comes from outside, such as an element of the sequence.

Where two of these names are the same, a number follows that of the node or value.

What moves values about without computing with them has no point: its result has the format of its source. A state has
the format of what it becomes, and so has the state before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rnnqc.ir import CELL_TAG, Graph, Model, Node, Value, constant_array, display_name, dtype_of, info
from rnnqc.passes.constant_expressions import Constants
from rnnqc.passes.custom_products import CustomProduct, custom_cells, read_product
from rnnqc.passes.custom_rows import rows_of
from rnnqc.passes.float_recurrences import FloatRecurrence, float_recurrences
from rnnqc.passes.loop_states import State, states_of
from rnnqc.passes.lstm_node import RECURRENT_OPS, NotHandled
from rnnqc.passes.movers import MOVERS
from rnnqc.passes.point_names import distinct_names

WEIGHT, HIDDEN, BIAS, VALUE = "weight", "hidden", "bias", "value"
MEANINGS = (
    ("<product>.weight", "constant weights of a matrix product"),
    ("<product>.hidden", "what is multiplied by them, where it is on no grid of so few bits yet"),
    ("<product>.bias", "a constant that is added to the product"),
    ("<node>.value", "any other value that is computed"),
    ("<node>.sigmoid.value, <node>.tanh.value", "the same of these two activations"),
    ("<value>.input.value", "a value from outside, such as an element of the sequence"),
)
"""Names of points, and one line for `rnnqc recipes`."""
_NAMED = {"Sigmoid": "sigmoid", "Tanh": "tanh"}
# With the inputs whose values come out again; None for all.
_MOVERS: Mapping[str, Sequence[int] | None] = {
    **MOVERS, "Split": (0,), "Where": (1, 2), "Tile": (0,), "GatherElements": (0,), "GatherND": (0,), "Dropout": (0,),
    "ScatterND": (0, 2), "ScatterElements": (0, 2),
}  # fmt: skip
_SEQUENCES = ("SequenceAt", "SequenceInsert", "SequenceEmpty", "SequenceConstruct", "SplitToSequence", "SequenceErase")
_JOINERS = ("Concat", "Where", "ScatterND", "ScatterElements")


@dataclass
class CustomCell:
    """A recurrence with its quantization points.

    Attributes:
        name: As in the names of its points.
        recurrence: Where it stands.
        graph: The graph that holds its nodes: the body of a loop, or the one the steps are written out in.
        outer: The graph that holds the loop; `graph` where there is none.
        products: Products with constant weights by name; one for each step that is written out.
        refused: Why other products are none that can be quantized.
        sums: The Add of a constant that follows a product, by the id of the product.
        edges: For each point of a value what it quantizes; one for each step that is written out.
        entering: For each point what gets its format before the first step, values of `outer`.
        origins: The point whose format a value has, by the id of the value.
        states: Of a loop.
        region: The nodes that belong to it, by id.
    """

    name: str
    recurrence: FloatRecurrence
    graph: Graph
    outer: Graph
    products: dict[str, list[CustomProduct]] = field(default_factory=dict)
    refused: list[NotHandled] = field(default_factory=list)
    sums: dict[int, Node] = field(default_factory=dict)
    edges: dict[str, list[Value]] = field(default_factory=dict)
    entering: dict[str, list[Value]] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    region: set[int] = field(default_factory=set)

    @property
    def points(self) -> list[str]:
        """Names of all points, below the name of the cell."""
        names = []
        for product, sites in self.products.items():
            biased = self.bias_of(sites[0]) is not None
            names += [f"{product}.{p}" for p in (WEIGHT, HIDDEN, *((BIAS,) if biased else ()))]
        return names + list(self.edges)

    @property
    def state_point(self) -> str | None:
        """The point of the state that is multiplied first; of the first state where none is; None without states."""
        carried = [self.origins[id(s.before)] for s in self.states if id(s.before) in self.origins]
        for sites in self.products.values():
            point = self.origins.get(id(sites[-1].x), "")  # the first step's may be a constant
            if point in carried or (not carried and point and not point.endswith(f".input.{VALUE}")):
                return point
        return carried[0] if carried else None

    @property
    def states_made(self) -> list[Value]:
        """What the steps make of `state_point`: one value of a loop, one for each step that is written out."""
        point = self.state_point
        if self.recurrence.loop is None:
            return self.edges.get(point or "", [])
        return [s.after for s in self.states if not s.invariant and self.origins.get(id(s.before)) == point][:1]

    def bias_of(self, product: CustomProduct) -> Value | None:
        """The constant that is added to a product, by itself or by the Add that follows; None without one."""
        if product.bias is not None:
            return product.bias if constant_array(product.bias) is not None else None
        node = self.sums.get(id(product.node))
        return None if node is None else next(v for v in node.inputs if constant_array(v) is not None)

    def sum_of(self, product: CustomProduct) -> Value:
        """The value of a product with what is added to it."""
        node = self.sums.get(id(product.node), product.node)
        return node.outputs[0]


def custom_cells_of(model: Model) -> list[CustomCell]:
    """Every recurrence that is no LSTM, GRU or RNN, with its points; the model should be in normal form.

    Their names are reserved in the model: cells that are made later have others.
    """
    found = list(float_recurrences(model))
    if not found:
        return []
    model.infer_shapes()
    homes = {id(n): g for g in model.graphs() for n in g.nodes}
    constants = Constants(model)
    cells = [_read(r, homes, constants) for r in found]
    done = [(r["name"], r["points"]) for r in custom_cells(model).values()]
    taken = {text for name, points in done for text in (name, *(f"{name}.{p}" for p in points))}
    wanted = {k: (c.recurrence.path, ("", *(f".{p}" for p in c.points))) for k, c in enumerate(cells)}
    for number, name in distinct_names(wanted, taken).items():
        cells[number].name = name
        model.reserve_name(name)
    return cells


def points_of_recurrences(model: Model) -> dict[str, list[str]]:
    """For each recurrence of unknown equations, quantized or not, the names of its quantization points."""
    done = {str(r["name"]): list(r["points"]) for r in custom_cells(model).values()}
    return done | {c.name: c.points for c in custom_cells_of(model)}


def custom_identity(cell: CustomCell) -> dict[str, Any]:
    """What tells a recurrence from another one of the same name: its products."""
    return {"op": cell.recurrence.op, "products": {n: list(s[0].weights.shape) for n, s in cell.products.items()}}


def _read(recurrence: FloatRecurrence, homes: Mapping[int, Graph], constants: Constants) -> CustomCell:
    anchor = recurrence.loop if recurrence.loop is not None else recurrence.products[0]
    outer = homes[id(anchor)]
    graph: Graph = outer if recurrence.loop is None else recurrence.loop.attrs["body"]
    cell = CustomCell(recurrence.path, recurrence, graph, outer)
    rows = rows_of(graph, recurrence) if recurrence.loop is None else None
    first_of: Callable[[Node], Node] = _itself if rows is None else rows.first
    sites: dict[_Owner, list[CustomProduct]] = {}
    for node in recurrence.products:
        try:
            product = read_product(node)
        except NotHandled as refusal:
            cell.refused.append(refusal)
            continue
        sites.setdefault(_owner(first_of(node)), []).append(product)
        _note_sum(cell, product)
    reader = _Reader(cell, sites, constants, first_of)
    if recurrence.loop is not None:
        reader.loop(recurrence.loop)
    elif rows is not None:
        reader.written_out(rows.nodes)
    reader.name_points()
    return cell


@dataclass(frozen=True)
class _Owner:
    """What a point is named after: a node, or a value; told from others of the same name by its id."""

    key: int
    text: str


@dataclass(frozen=True)
class _Point:
    """A point that has no name yet: how that will end, behind the name of its owner."""

    owner: _Owner
    ending: str


def _owner(named: Node | Value) -> _Owner:
    return _Owner(id(named), display_name(named) if isinstance(named, Node) else str(named.name))


def _from_outside(value: Value) -> _Point:
    return _Point(_owner(value), f".input.{VALUE}")


def _itself(node: Node) -> Node:
    return node


def _note_sum(cell: CustomCell, product: CustomProduct) -> None:
    """A constant that an Add of its own adds to a product belongs to the product."""
    made = product.node.outputs[0]
    if product.node.op != "MatMul" or len(made.outputs) != 1 or any(made is v for v in cell.graph.outputs):
        return
    (node,) = made.outputs
    others = [v for v in node.inputs if v is not made]
    if node.op == "Add" and not node.domain and len(others) == 1:
        held = constant_array(others[0])
        if held is not None and held.size == product.weights.shape[1] and held.shape[-1] == held.size:
            cell.sums[id(product.node)] = node


class _Reader:
    """Finds the values that are quantized, and the point that each value of the region has its format of."""

    def __init__(
        self,
        cell: CustomCell,
        sites: Mapping[_Owner, list[CustomProduct]],
        constants: Constants,
        first_of: Callable[[Node], Node],
    ) -> None:
        self.cell, self.sites, self.constants, self.first_of = cell, sites, constants, first_of
        self.edges: dict[_Point, list[Value]] = {}
        self.entering: dict[_Point, list[Value]] = {}
        self.origins: dict[int, _Point] = {}
        self.before: dict[int, Value] = {}  # what a state becomes, by the id of the state
        self.inputs: dict[int, _Point] = {}
        self.local: set[int] = set()
        self.joined: set[int] = set()  # movers whose sources have different formats
        self.found: dict[int, frozenset[_Point]] = {}
        self.states: dict[int, _Point] = {}  # points of initial states, by their id
        self.inner = {id(p.node) for row in sites.values() for p in row if id(p.node) in cell.sums}

    def name_points(self) -> None:
        """Gives all points their names."""
        endings = {owner: [f".{p}" for p in (WEIGHT, HIDDEN, BIAS)] for owner in self.sites}
        for point in dict.fromkeys((*self.edges, *self.entering, *self.origins.values())):
            endings.setdefault(point.owner, []).append(point.ending)
        names = distinct_names({owner: (owner.text, ends) for owner, ends in endings.items()})

        def name(point: _Point) -> str:
            return f"{names[point.owner]}{point.ending}"

        cell = self.cell
        cell.products = {names[owner]: row for owner, row in self.sites.items()}
        cell.edges = {name(p): values for p, values in self.edges.items()}
        cell.entering = {name(p): values for p, values in self.entering.items()}
        cell.origins = {v: name(p) for v, p in self.origins.items()}

    def loop(self, node: Node) -> None:
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

    def written_out(self, nodes: Sequence[Node]) -> None:
        """Values from outside that stand where other steps have those of a point get its format, as initial states."""
        region = list(nodes)
        self._solve(region, ())
        rows: dict[int, list[Node]] = {}
        for node in region:
            rows.setdefault(id(self.first_of(node)), []).append(node)
        for same in rows.values():
            for values in zip(*(n.inputs for n in same), strict=False):
                inside = {p for v in values if v.name and not self._enters(v) for p in self.found.get(id(v), ())}
                outside = [v for v in values if v.name and self._enters(v)]
                if len(inside) == 1:
                    self.states |= {id(v): next(iter(inside)) for v in outside}
                elif outside and not inside:
                    first = next(iter(self.found[id(outside[0])]))
                    self.inputs |= {id(v): self.inputs.get(id(v), first) for v in outside}
        self._solve(region, ())

    def _region(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes whose floats depend on a product, and those that these depend on."""
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
        return [n for n in nodes if id(n) in wanted and CELL_TAG not in info(n).metadata and n.op not in RECURRENT_OPS]

    def _solve(self, region: Sequence[Node], inputs: Iterable[Value]) -> None:
        """Origins of all values; states take those of what they become, so that it takes some rounds."""
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
            held = self.entering if id(value) in self.states else self.edges
            held.setdefault(point, []).append(value)
        self.origins = {v: next(iter(points)) for v, points in self.found.items() if len(points) == 1}

    def _enters(self, value: Value) -> bool:
        return id(value) not in self.local and id(value) not in self.before and bool(self.found.get(id(value)))

    def _own(self, node: Node, number: int) -> _Point:
        parts = ["", *([str(number)] if number else []), *([_NAMED[node.op]] if node.op in _NAMED else []), VALUE]
        return _Point(_owner(self.first_of(node)), ".".join(parts))

    def _made(self, node: Node, number: int, value: Value) -> frozenset[_Point]:
        if not _float(value) or node.op in _SEQUENCES or node.op == "Constant":
            return frozenset()
        own = frozenset({self._own(node, number)})
        if node.op in _MOVERS and not node.domain:
            if id(node) in self.joined:
                return own
            moved = _MOVERS[node.op]
            sources = [node.inputs[k] for k in (range(len(node.inputs)) if moved is None else moved)]
            origins: frozenset[_Point] = frozenset().union(*(self._of(v) for v in sources if v.name))
            foreign = any(v.name and self._foreign(v) for v in sources)
            if node.op in _JOINERS and (len(origins) > 1 or (foreign and origins)):
                self.joined.add(id(node))
                return own
            return origins
        if id(node) in self.inner or self.constants.array(value) is not None:
            return frozenset()
        return own

    def _of(self, value: Value) -> frozenset[_Point]:
        if id(value) in self.found:
            return self.found[id(value)]
        if id(value) in self.local or id(value) in self.before:
            return self._previous.get(id(value), frozenset())
        if not _float(value) or self.constants.array(value) is not None or self.constants.zero(value):
            return frozenset()
        point = self.states.get(id(value)) or self.inputs.get(id(value))
        return frozenset({point or _from_outside(_root(value))})

    def _foreign(self, value: Value) -> bool:
        """Whether `value` is a constant that not every grid has: anything but 0."""
        array = self.constants.array(value)
        return array is not None and bool(array.any())


def _sources(node: Node) -> list[Value]:
    """The floats among the inputs of `node`."""
    return [v for v in node.inputs if v.name and _float(v)]


def _root(value: Value) -> Value:
    """What elements of a sequence are taken out of."""
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
