"""Analysis: recurrences that are not LSTM, GRU or RNN nodes, in loops or unrolled. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rnnqc.ir import (
    CELL_TAG,
    CUSTOM_TAG,
    Graph,
    Model,
    Node,
    Value,
    constant_array,
    display_name,
    info,
    maker_of,
    shape_of,
    subgraphs,
)
from rnnqc.passes.analysis.step_factors import Factors, matrix_size, size_of
from rnnqc.passes.graph.loops.loop_reach import WHOLE_NUMBERS, reached, returning, users_of
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop, is_real, owners, states_of
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.nodes.products import constant_factor, factors, is_product
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.layout_ops import MOVERS
from rnnqc.passes.graph.values.sequence_elements import PICKS, element_of

_SMALLEST = 32
_MATRIX = {"Conv": 64, "ConvTranspose": 64}
"""Minimum size of a constant that is a weight of a layer; smaller ones rotate points or filter images."""
_STEPS = 3
_LINEAR = (*MOVERS, "Add", "Sub", "Sum", "Neg", "Split")
"""Operators that are linear in all of their inputs of real numbers."""


@dataclass(frozen=True)
class FloatRecurrence:
    """A recurrence that stays float.

    Attributes:
        path: Name of the loop, or of the first matmul, with the path through subgraphs.
        op: Its operator.
        steps: Number of unrolled steps; None for a loop.
        found: Description of the evidence.
        products: Its matmuls with constants, in order.
        loop: The loop that contains it, or None.
        branched: Whether it is a recurrence only by matmuls in branches of the loop's body.
        computed: Whether none of its states goes through a constant and comes back: what multiplies them is computed.
    """

    path: str
    op: str
    steps: int | None
    found: str
    products: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    loop: Node | None = field(default=None, compare=False, repr=False)
    branched: bool = field(default=False, compare=False, repr=False)
    computed: bool = field(default=False, compare=False, repr=False)

    @property
    def weight_bytes(self) -> int:
        """Size of the constants in its matmuls, each counted once."""
        return constant_bytes(self.products)

    @property
    def reason(self) -> str:
        """Why it stays float."""
        where = "this loop" if self.steps is None else f"these {self.steps} unrolled steps"
        return f"{where} cannot be written as an LSTM, GRU or RNN node."


def constant_bytes(products: Iterable[Node]) -> int:
    """Returns the size of the constants in matmuls, each counted once, without added constants."""
    weights = {id(v): v for node in products if (v := constant_factor(node)) is not None}
    arrays = [constant_array(v) for v in weights.values()]
    return sum(int(a.nbytes) for a in arrays if a is not None)


def float_recurrences(model: Model) -> Iterator[FloatRecurrence]:
    """Yields every loop with a state that returns through a matrix, and every chain of such matmuls.

    A chain inside the step of such a loop belongs to the loop.
    """
    held: set[int] = set()
    constants = Constants(model)
    for graph, _, path in bodies(model):
        inside = owners(graph)
        for node in graph.nodes:
            if is_loop(node) and CUSTOM_TAG not in info(node).metadata:
                found = _loop(node, path)
                if found is not None:
                    held |= {id(n) for n in found.products}
                    yield found
        yield from _written_out(graph, inside, path, held, constants)


def _loop(node: Node, path: str) -> FloatRecurrence | None:
    body: Graph = node.attrs["body"]
    states = [s for s in states_of(node) if not s.invariant and is_real(s.before)]
    inside = owners(body)
    carried = reached([s.before for s in states], inside, is_real)

    def multiplying(values: Mapping[int, Value]) -> list[Node]:
        users = {id(n): n for v in values.values() for n in users_of(v, inside)}.values()
        return [n for n in users if any(id(v) not in carried for v in factors(n))]

    def weighting(values: Mapping[int, Value]) -> list[Node]:
        return [n for n in multiplying(values) if is_product(n)]

    branched: dict[int, tuple[Node, ...]] = {}

    def branching(values: Mapping[int, Value]) -> list[Node]:
        found = {id(n): n for v in values.values() for n in users_of(v, inside) if n.op == "If"}.values()
        branched.update((id(n), tuple(_products_of(list(values.values()), n))) for n in found)
        return [n for n in found if branched[id(n)]]

    where = f"{path}{display_name(node)}"
    computed = (found := returning(states, inside, weighting, is_real)) is None
    if found is not None or (found := returning(states, inside, multiplying, is_real)) is not None:
        state, product = found
        at = f"node {display_name(product)!r} ({product.op})"
        products = tuple(n for n in body.nodes if is_product(n))
    elif (found := returning(states, inside, branching, is_real)) is not None:
        computed = False
        state, branch = found
        products = branched[id(branch)]
        first = products[0]
        at = f"node {display_name(first)!r} ({first.op}) in a branch of node {display_name(branch)!r}"
    else:
        return None
    text = f"state {state.before.name!r} goes through {at} and comes back"
    return FloatRecurrence(where, node.op, None, text, products, node, branched=bool(branched), computed=computed)


def _products_of(values: list[Value], node: Node) -> Iterator[Node]:
    for _, branch in subgraphs(node):
        inside = owners(branch)
        behind = list(reached(values, inside, is_real).values())
        for user in {id(n): n for v in behind for n in users_of(v, inside)}.values():
            if user.op == "If":
                yield from _products_of(behind, user)
            elif is_product(user) and CELL_TAG not in info(user).metadata:
                yield user


def _leading_to(own: set[int], graph: Graph, inside: dict[int, Node]) -> set[int]:
    """Ids of the nodes that nodes of `own` depend on."""
    found: set[int] = set()
    stack = [n for n in graph.nodes if id(n) in own]
    while stack:
        for value in stack.pop().inputs:
            for maker in value.inputs if value.name and is_real(value) else ():
                node = inside.get(id(maker))
                if node is None or id(node) in found or is_recurrent(node) or node.op in WHOLE_NUMBERS:
                    continue
                found.add(id(node))
                stack.append(node)
    return found


@dataclass(frozen=True)
class _Use:
    """A product of a value with a factor.

    Attributes:
        node: The product.
        factor: The factor.
        others: What it multiplies.
    """

    node: Node
    factor: Value
    others: tuple[Value, ...]

    @property
    def large(self) -> bool:
        """Whether the factor is large enough to be the weight of a layer by itself."""
        return size_of(self.factor) >= _MATRIX.get(self.node.op, _SMALLEST)

    @property
    def mixes(self) -> bool:
        """Whether it may multiply a state by a matrix: neither of few numbers."""
        return max(matrix_size(v, _SMALLEST) for v in (self.factor, *self.others)) >= _SMALLEST


class _Products:
    """The products of a graph by what their factors mean in a step.

    Attributes:
        by_weight: Products with large constants.
        others: Products with other factors.
        meanings: The meanings of values.
    """

    def __init__(self, graph: Graph, held: Collection[int], indices: Indices) -> None:
        self.by_weight: dict[int, list[_Use]] = {}
        self.others: dict[int, list[_Use]] = {}
        nodes = [n for n in graph.nodes if CELL_TAG not in info(n).metadata and id(n) not in held and factors(n)]
        self.meanings = Factors(graph.nodes if len(nodes) >= _STEPS else (), indices)
        if len(nodes) < _STEPS:
            return
        for node in nodes:
            values = factors(node)
            for factor in values:
                if (maker := maker_of(factor)) is not None and maker.op == "DequantizeLinear":
                    continue  # quantized already
                meaning = self.meanings.of(factor)
                use = _Use(node, factor, tuple(v for v in values if v is not factor))
                group = self.by_weight if meaning.fixed and use.large else self.others
                group.setdefault(meaning.key, []).append(use)

    @property
    def tied(self) -> set[int]:
        """Ids of the products with constants that three or more of them share."""
        return {id(u.node) for same in self.by_weight.values() if len(same) >= _STEPS for u in same}

    def of_layers(self, inside: dict[int, Node]) -> set[int]:
        """Ids of the results of products with constants of their own: no product with the same one leads to another.

        They belong to layers, whatever these share besides (the adjacency matrix of a graph, say).
        """
        repeated: set[int] = set()
        for uses in self.by_weight.values():
            if len(uses) > 1 and len(_row(uses, inside)[0]) > 1:
                repeated |= {id(u.node) for u in uses}
        own = {id(u.node): u.node for uses in self.by_weight.values() for u in uses if id(u.node) not in repeated}
        return {id(v) for n in own.values() for v in n.outputs}


def _written_out(
    graph: Graph, inside: dict[int, Node], path: str, held: set[int], constants: Constants
) -> Iterator[FloatRecurrence]:
    indices = Indices(constants, shape_of)
    found = _Products(graph, held, indices)
    uses = {**found.by_weight, **found.others}
    if not any(len(same) >= _STEPS for same in uses.values()):
        return
    tied, passed = found.tied, found.of_layers(inside)
    taken: set[int] = set()
    listed: set[int] = set()
    for key, same in [*found.by_weight.items(), *found.others.items()]:
        if len(same) < _STEPS or id(same[0].node) in taken:
            continue
        row, behind = _row(same, inside, passed)
        if len(row) < _STEPS:
            continue
        weights, nodes = key in found.by_weight, [u.node for u in row]
        if _is_of_layers(nodes, passed, inside) or not (weights or all(u.mixes for u in row)):
            continue
        # Layers with attention that share weights are not a recurrence.
        doubtful = not weights or any(n.op == "Softmax" for v in behind.values() for n in users_of(v, inside))
        if doubtful and not _takes_elements(nodes, behind, graph, inside, indices):
            continue
        if weights and _is_power(nodes, behind, inside, found.meanings):
            continue
        own = {id(nodes[0]), *(id(n) for v in behind.values() for n in users_of(v, inside))}
        # The other matmuls of the first step read the same state.
        own |= {id(u.node) for more in uses.values() if any(id(u.node) in own for u in more) for u in more}
        taken |= own
        # So do matmuls with the elements of the sequence.
        leading = _leading_to(own, graph, inside)
        led = [more for more in found.by_weight.values() if sum(id(u.node) in leading for u in more) >= _STEPS]
        own |= {id(u.node) for more in led for u in more}
        # Matmuls with fewer uses are not part of a step.
        members = (own & tied) | ({id(n) for n in nodes} if not weights else set())
        products = tuple(n for n in graph.nodes if id(n) in members - listed)
        if not products:
            continue
        listed |= members
        names = list(dict.fromkeys(repr(u.factor.name) for u in row))
        text = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        text = f"{len(row)} products with {text}, each of which depends on the one before"
        yield FloatRecurrence(
            f"{path}{display_name(nodes[0])}", nodes[0].op, len(row), text, products, computed=not weights
        )


def _between(row: Sequence[Node], behind: Container[int], inside: dict[int, Node]) -> list[Node]:
    """The nodes behind the first product of a row that lead to the last one, and this one."""
    found: dict[int, Node] = {}
    stack = [row[-1]]
    while stack:
        node = stack.pop()
        is_behind = node is row[-1] or any(id(v) in behind for v in node.outputs)
        if is_behind and node is not row[0] and id(node) not in found:
            found[id(node)] = node
            stack += [inside[id(n)] for v in node.inputs if v.name for n in v.inputs if id(n) in inside]
    return list(found.values())


def _is_of_layers(row: Sequence[Node], passed: Container[int], inside: dict[int, Node]) -> bool:
    """Whether products with matrices of their own stand between those of a row, about one for each.

    The results of such products are in `passed`. A step that differs from the others may have one; layers beside the
    first and the last product of the row are not counted.
    """
    behind = reached(row[0].outputs, inside, is_real)
    own = sum(any(id(v) in passed for v in n.outputs) for n in _between(row, behind, inside))
    return own >= max(len(row) - 2, 2)


def _is_power(row: Sequence[Node], behind: Mapping[int, Value], inside: dict[int, Node], meanings: Factors) -> bool:
    """Whether a row computes powers of a constant matrix: linear, and hardly anything else enters it on its way."""
    entering: set[int] = set()
    for node in _between(row, behind, inside):
        others = {id(v) for v in node.inputs if id(v) not in behind and is_real(v) and not meanings.of(v).fixed}
        scales = (node.op in ("Mul", "Div") or factors(node)) and not others
        if node.op not in _LINEAR and not (scales and sum(id(v) in behind for v in node.inputs) == 1):
            return False
        entering |= others
    return len(entering) < _STEPS


def _takes_elements(
    row: Sequence[Node], behind: Mapping[int, Value], graph: Graph, inside: dict[int, Node], indices: Indices
) -> bool:
    """Whether elements of a sequence that is not made from the row enter it at three or more places."""
    place = {id(n): k for k, n in enumerate(row)}
    places: dict[int, set[int]] = {}
    for node in graph.nodes:
        for value in node.outputs if node.op in PICKS else ():
            element = element_of(value, indices)
            if element is None or element.index.number is None or id(element.sequence) in behind:
                continue
            users = [n for v in reached([value], inside, is_real).values() for n in users_of(v, inside)]
            first = min((place[id(n)] for n in users if id(n) in place), default=None)
            if first is not None:
                places.setdefault(id(element.sequence), set()).add(first)
    return any(len(found) >= _STEPS for found in places.values())


def _row(
    uses: Sequence[_Use], inside: dict[int, Node], passed: Container[int] = ()
) -> tuple[list[_Use], dict[int, Value]]:
    """A chain: the first product, those that multiply what depends on it, and all values that depend on it.

    The very first may not be part of it: Keras computes an extra step of which it only uses the shape. Values in
    `passed` propagate no dependence.
    """

    def follows(value: Value) -> bool:
        return is_real(value) and id(value) not in passed

    last = max(0, len(uses) - _STEPS)
    for start in sorted({0, min(1, last), min(2, last), last // 2}):  # each costs a walk through the graph
        behind = reached([v for v in uses[start].node.outputs if follows(v)], inside, follows)
        later = [u for u in uses[start + 1 :] if id(u.factor) not in behind]
        row = [uses[start], *(u for u in later if any(id(v) in behind for v in u.others))]
        if start == 0:
            first = row, behind
        if len(row) >= _STEPS:
            return row, behind
    return first
