"""Analysis: the nodes of each step of an unrolled recurrence whose steps are all alike. Reads only.

Starting at the last two matmuls with one matrix, both are traced back in lockstep: if two nodes correspond, so do the
producers of their inputs. That maps each node to the corresponding one in the next step. Where that fails, it is tried
again with nodes that correspond although each step has constants of its own, such as the statistics of a normalization.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.evaluation.numerics import same_bits
from rnnqc.ir import Graph, Node, Value, constant_array, display_name, dtype_of, output_number, shape_of, subgraphs
from rnnqc.passes.analysis.float_recurrences import FloatRecurrence
from rnnqc.passes.analysis.step_factors import configuration
from rnnqc.passes.graph.loops.loop_reach import everything_behind
from rnnqc.passes.graph.loops.loop_states import owners
from rnnqc.passes.graph.nodes.products import PRODUCTS, factors
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import element_of

_STEPS = 3
_BEHIND, _IN_FRONT = "behind", "in front"
_WITHIN = 4
"""How often one matrix may multiply within a step."""
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
_OWN = {**dict.fromkeys(ELEMENTWISE, 0), "Gemm": 2, "BatchNormalization": 1}
"""From which input on an operator may have other constants in each step."""
_STAYS = "its unrolled steps are not joined: they do not do the same."


class SharedNode(NotHandled):
    """A node of the first step corresponds to several of the next; where states begin equal, exporters write it once.

    Attributes:
        node: The node.
        reader: A node of the first step that reads it in another meaning than the others.
    """

    def __init__(self, why: NotHandled, node: Node, reader: Node) -> None:
        super().__init__(why.reason, why.found, why.action)
        self.node, self.reader = node, reader


@dataclass(eq=False)
class Source:
    """An input of corresponding nodes, step by step.

    Attributes:
        values: One value for each step.
        maker: The node of a step that produces it; None for a value from outside.
        output: Index of the output of that node.
        late: Whether the previous step produces it; `values[0]` is the initial value.
        same: Whether all steps read the same value.
    """

    values: list[Value]
    maker: SameNode | None = None
    output: int = 0
    late: bool = False
    same: bool = False

    @property
    def element(self) -> bool:
        """Whether every step reads another value from outside."""
        return self.maker is None and not self.same


@dataclass(eq=False)
class SameNode:
    """Corresponding nodes of consecutive steps, starting with the first.

    Attributes:
        nodes: One for each step; the last step may lack a node whose result is unused.
        inputs: Sources of their inputs.
    """

    nodes: list[Node]
    inputs: list[Source] = field(default_factory=list)


@dataclass(frozen=True)
class UnrolledSteps:
    """An unrolled recurrence.

    Attributes:
        count: Number of steps.
        nodes: The nodes of a step, in order.
    """

    count: int
    nodes: Sequence[SameNode]

    @property
    def members(self) -> list[Node]:
        """Returns the nodes of all steps."""
        return [n for same in self.nodes for n in same.nodes[: self.count]]


def unrolled_steps(graph: Graph, recurrence: FloatRecurrence, indices: Indices) -> UnrolledSteps:
    """Returns the steps of a recurrence that is unrolled in `graph`.

    Raises:
        SharedNode: They are not, but may be where a node gets a copy.
        NotHandled: The steps are not known to be alike.
    """
    inside = owners(graph)
    row = [inside[n] for n in max(_rows_of_products(graph, recurrence), key=len, default=[])]
    refusals: list[NotHandled] = []
    most = min(_WITHIN, len(row) // _STEPS)
    for own, within in itertools.product((False, True), range(1, most + 1)):
        try:
            pairs = _Pairs(graph, inside, indices, own_constants=own)
            pairs.follow(row[-1 - within], row[-1])
            pairs.extend()
        except NotHandled as why:
            refusals.append(why)
            continue
        for cut in (_BEHIND, _IN_FRONT):
            held = _of_whole_steps(pairs, row[-1], cut)
            try:
                return _checked(inside, held, row[-1])
            except NotHandled as why:
                refusals.append(why)
    refusals.sort(key=lambda r: not isinstance(r, SharedNode))
    raise refusals[0] if refusals else _stays("fewer than three products with one matrix, each made of the one before")


def _rows_of_products(graph: Graph, recurrence: FloatRecurrence) -> list[list[int]]:
    """For each factor its products, each depending on the one before."""
    rows = []
    uses: dict[int, set[int]] = {}
    for product in recurrence.products:
        for factor in factors(product):
            uses.setdefault(id(factor), set()).add(id(product))
    for tied in uses.values():
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


def _of_whole_steps(pairs: _Pairs, product: Node, cut: str) -> list[SameNode]:
    """Nodes that correspond in all steps, each of which has one node like `product`.

    A similar node may follow the last step, or precede the first, where an initial state is computed like the later
    states. `cut` selects which of these is dropped if a row is that long.
    """
    rows = list(pairs.rows())
    spine = next(len(r) for r in rows if any(n is product for n in r))
    rows = [r for r in rows if len(r) >= spine - 1]
    count = max(len(r) for r in rows if r[0].op in PRODUCTS)
    for row in rows:
        while cut == _BEHIND and len(row) > count and id(row[-1]) in pairs.behind:
            row.pop()
    return [SameNode(r[max(0, len(r) - count) :]) for r in rows]


class _Pairs:
    """Maps each node to the corresponding one in the next step.

    Args:
        graph: The graph of the steps.
        inside: Its nodes, by id.
        indices: Indices of elements.
        own_constants: Whether each step may have constants of its own.
    """

    def __init__(self, graph: Graph, inside: dict[int, Node], indices: Indices, *, own_constants: bool) -> None:
        self.graph, self.inside, self.indices, self.own_constants = graph, inside, indices, own_constants
        self.after: dict[int, Node] = {}
        self.before: dict[int, Node] = {}
        self.behind: set[int] = set()
        """Nodes that `extend` has found."""

    def follow(self, one: Node, other: Node) -> list[Node]:
        """Pairs two nodes, and the producers of their inputs; returns the first of each new pair.

        Raises:
            SharedNode: One has already another partner.
            NotHandled: They are not alike, or the other has already another partner.
        """
        if not self._alike(one, other):
            raise _different(one, other)
        stack, new = [(one, other, one)], []
        while stack:
            one, other, reader = stack.pop()
            if id(one) in self.after or id(other) in self.before:
                if self.after.get(id(one)) is not other:
                    why = _different(one, other)
                    raise why if id(other) in self.before or one is reader else SharedNode(why, one, reader)
                continue
            self.after[id(one)], self.before[id(other)] = other, one
            new.append(one)
            for a, b in zip(one.inputs, other.inputs, strict=True):
                if a is not b and constant_array(b) is None and not self._elements(a, b):
                    before, after = self._maker(a), self._maker(b)
                    alike = before is not None and after is not None and self._alike(before, after)
                    if alike and output_number(before, a) == output_number(after, b):
                        stack.append((before, after, one))
        return new

    def _maker(self, value: Value) -> Node | None:
        return self.inside.get(id(value.inputs[0])) if len(value.inputs) == 1 else None

    def extend(self) -> None:
        """Also pairs the readers of pairs in the last two steps."""
        stack = list(self.graph.nodes)
        while stack:
            node = stack.pop()
            other = self.after.get(id(node))
            if other is None:
                continue
            for value, next_ in zip(node.outputs, other.outputs, strict=True):
                for user in value.outputs:
                    if id(user) in self.before and id(user) not in self.after:
                        found = self._same_user(user, value, next_)
                        if found is not None:
                            new = self.follow(user, found)
                            self.behind |= {id(self.after[id(n)]) for n in new}
                            stack += new

    def _same_user(self, user: Node, value: Value, other: Value) -> Node | None:
        places = [k for k, v in enumerate(user.inputs) if v is value]
        free = [n for n in other.outputs if id(n) in self.inside and id(n) not in self.before]
        free = [n for n in free if places == [k for k, v in enumerate(n.inputs) if v is other]]
        return next((n for n in free if _alike(user, n)), next((n for n in free if self._alike(user, n)), None))

    def _alike(self, one: Node, other: Node) -> bool:
        return _alike(one, other, own_constants=self.own_constants)

    def _elements(self, a: Value, b: Value) -> bool:
        one, other = element_of(a, self.indices), element_of(b, self.indices)
        return one is not None and other is not None and one.sequence is other.sequence

    def rows(self) -> Iterator[list[Node]]:
        """Yields rows of corresponding nodes, from the first step on, in the order of the graph."""
        for node in self.graph.nodes:
            if id(node) in self.after and id(node) not in self.before:
                row = [node]
                while id(row[-1]) in self.after:
                    row.append(self.after[id(row[-1])])
                yield row


def _checked(inside: dict[int, Node], held: list[SameNode], product: Node) -> UnrolledSteps:
    """The steps with the nodes whose inputs are consistent across steps; values of other nodes come from outside.

    Raises:
        NotHandled: `product`, which every step has, is not among them.
    """
    while True:
        refusals = _with_sources(held)
        count = min((len(s.nodes) for s in held if any(x.element for x in s.inputs)), default=0)
        steps = UnrolledSteps(count, held)
        made = everything_behind([v for n in steps.members for v in n.outputs], inside)
        for same in held:
            for source in same.inputs:
                outside = source.values[:1] if source.late else source.values[:count] if source.element else []
                for value in outside:
                    if id(value) in made:
                        text = f"{value.name!r}, which a step reads, is made from an earlier step"
                        refusals.setdefault(id(same), _stays(text))
        if not refusals:
            break
        for same in held:
            if id(same) in refusals and any(n is product for n in same.nodes):
                raise refusals[id(same)]
        held = [s for s in held if id(s) not in refusals]
    if not count:
        raise _stays("they take no elements of a sequence")
    for same in held:
        if same.nodes[count:] and same.nodes[0].op in PRODUCTS:
            raise _stays(f"one more node like {display_name(same.nodes[0])!r} ({same.nodes[0].op})")
    return steps


def _with_sources(held: list[SameNode]) -> dict[int, NotHandled]:
    """Sets the sources of the inputs of each; returns, by id, why the inputs of some are inconsistent."""
    place = {id(n): (same, k) for same in held for k, n in enumerate(same.nodes)}
    refusals: dict[int, NotHandled] = {}
    for same in held:
        sources = [_source(same, k, place) for k in range(len(same.nodes[0].inputs))]
        same.inputs = [s for s in sources if isinstance(s, Source)]
        refusals |= {id(same): s for s in sources if not isinstance(s, Source)}
    return refusals


def _source(same: SameNode, position: int, place: dict[int, tuple[SameNode, int]]) -> Source | NotHandled:
    """The source of an input in all steps, or why it differs between steps."""
    values = [n.inputs[position] for n in same.nodes]
    if all(equal_values(values[0], v) for v in values):
        return Source(values, same=True)
    made = [place.get(id(v.inputs[0])) if len(v.inputs) == 1 else None for v in values]
    second = made[1]
    if second is None:
        if any(m is not None for m in made) or any(_kind(v) != _kind(values[0]) for v in values):
            return _different(same.nodes[0], same.nodes[1])
        return Source(values)
    maker, step = second
    output, late = output_number(maker.nodes[step], values[1]), step == 0
    first = 1 if late else 0
    for k, (value, found) in enumerate(zip(values[first:], made[first:], strict=True), first):
        at = None if found is None else (found[0], found[1], output_number(found[0].nodes[found[1]], value))
        if at != (maker, k - first, output):
            return _different(same.nodes[0], same.nodes[k])
    if late and (made[0] is not None or _kind(values[0]) != _kind(values[1])):
        return _different(same.nodes[0], same.nodes[1])
    return Source(values, maker, output, late)


def _stays(found: str) -> NotHandled:
    return NotHandled(_STAYS, found, "none; every step has its own nodes")


def _different(one: Node, other: Node) -> NotHandled:
    return _stays(f"nodes {display_name(one)!r} and {display_name(other)!r} ({one.op}) read other things")


def _kind(value: Value) -> tuple[np.dtype | None, int | None, int | str | None]:
    """Data type, rank and columns."""
    shape = shape_of(value)
    return dtype_of(value), None if shape is None else len(shape), shape[-1] if shape else None


def equal_values(a: Value, b: Value) -> bool:
    """Returns whether two values are identical or equal constants."""
    if a is b:
        return True
    one, other = constant_array(a), constant_array(b)
    if one is None or other is None:
        return not a.name and not b.name
    return same_bits(one, other)


def _alike(one: Node, other: Node, *, own_constants: bool = False) -> bool:
    """Whether two nodes have the same operator, attributes and constants; with `own_constants` other numbers."""
    return (
        one is not other
        and (one.op, one.domain) == (other.op, other.domain)
        and len(one.inputs) == len(other.inputs)
        and len(one.outputs) == len(other.outputs)
        and not subgraphs(one)
        and configuration(one) == configuration(other)
        and all(
            equal_values(a, b) or (own_constants and k >= _OWN.get(one.op, len(one.inputs)) and _same_form(a, b))
            if _fixed(a) and _fixed(b)
            else bool(a.name) == bool(b.name)
            for k, (a, b) in enumerate(zip(one.inputs, other.inputs, strict=True))
        )
    )


def _same_form(a: Value, b: Value) -> bool:
    """Whether two constants are floats of one type and shape."""
    one, other = constant_array(a), constant_array(b)
    if one is None or other is None:
        return False
    return one.dtype.kind == "f" and (one.dtype, one.shape) == (other.dtype, other.shape)


def _fixed(value: Value) -> bool:
    return constant_array(value) is not None
