"""Analysis: recurrences that are not LSTM, GRU or RNN nodes, in loops or unrolled. Reads only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
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
    shape_of,
    subgraphs,
)
from rnnqc.passes.graph.loops.loop_reach import WHOLE_NUMBERS, reached, returning, users_of
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop, is_real, owners, states_of
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import element_of

PRODUCTS = ("MatMul", "Gemm", "Conv")
_MULTIPLYING = (*PRODUCTS, "Einsum")
"""An Einsum makes a recurrence, too, but is no product that a custom cell can have quantized."""
_MATRIX = {"MatMul": 32, "Gemm": 32, "Conv": 64, "Einsum": 32}
"""Minimum size of a constant that is a weight of a layer; smaller ones rotate points or filter images."""
_STEPS = 3


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
    """

    path: str
    op: str
    steps: int | None
    found: str
    products: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    loop: Node | None = field(default=None, compare=False, repr=False)
    branched: bool = field(default=False, compare=False, repr=False)

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
    factors = {id(v): v for node in products for v in [_weights(node)]}
    arrays = [constant_array(v) for v in factors.values()]
    return sum(int(a.nbytes) for a in arrays if a is not None)


def _weights(node: Node) -> Value:
    """The constant of a matmul; the right operand if both are constant, for example in a step from a state of zeros."""
    left, right = node.inputs[:2]
    return left if constant_array(right) is None else right


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
        return [n for n in users if n.op in _MULTIPLYING and not all(id(v) in carried for v in n.inputs if v.name)]

    branched: dict[int, tuple[Node, ...]] = {}

    def branching(values: Mapping[int, Value]) -> list[Node]:
        found = {id(n): n for v in values.values() for n in users_of(v, inside) if n.op == "If"}.values()
        branched.update((id(n), tuple(_products_of(list(values.values()), n))) for n in found)
        return [n for n in found if branched[id(n)]]

    where = f"{path}{display_name(node)}"
    if (found := returning(states, inside, multiplying, is_real)) is not None:
        state, product = found
        at = f"node {display_name(product)!r} ({product.op})"
        products = tuple(n for n in body.nodes if is_product(n))
    elif (found := returning(states, inside, branching, is_real)) is not None:
        state, branch = found
        products = branched[id(branch)]
        first = products[0]
        at = f"node {display_name(first)!r} ({first.op}) in a branch of node {display_name(branch)!r}"
    else:
        return None
    text = f"state {state.before.name!r} goes through {at} and comes back"
    return FloatRecurrence(where, node.op, None, text, products, node, branched=bool(branched))


def _products_of(values: list[Value], node: Node) -> Iterator[Node]:
    for _, branch in subgraphs(node):
        inside = owners(branch)
        behind = list(reached(values, inside, is_real).values())
        for user in {id(n): n for v in behind for n in users_of(v, inside)}.values():
            if user.op == "If":
                yield from _products_of(behind, user)
            elif is_product(user) and CELL_TAG not in info(user).metadata:
                yield user


def is_product(node: Node) -> bool:
    """Returns whether a node multiplies by a constant matrix."""
    return node.op in _MULTIPLYING and not node.domain and any(constant_array(v) is not None for v in node.inputs[:2])


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


def _written_out(
    graph: Graph, inside: dict[int, Node], path: str, held: set[int], constants: Constants
) -> Iterator[FloatRecurrence]:
    users: dict[Hashable, list[Node]] = {}
    weights: dict[Hashable, Value] = {}
    for node in graph.nodes:
        if node.op not in _MULTIPLYING or node.domain or CELL_TAG in info(node).metadata or id(node) in held:
            continue
        weight = _weights(node) if node.op == "Einsum" else node.inputs[1]
        array = constant_array(weight)
        key: Hashable = id(weight)
        if array is None and node.op == "Conv":  # Keras slices the kernels of a step out of one, again in each step
            array = constants.array(weight)
            key = None if array is None else (array.shape, array.tobytes())
        if array is None or array.size < _MATRIX[node.op]:
            continue
        users.setdefault(key, []).append(node)
        weights[key] = weight
    taken: set[int] = set()
    for key, nodes in users.items():
        if len(nodes) < _STEPS or id(nodes[0]) in taken:
            continue
        row, behind = _row(nodes, inside)
        between = {n.op for v in behind.values() for n in users_of(v, inside)}
        if len(row) < _STEPS:
            continue
        if "Softmax" in between and not _takes_elements(row, behind, graph, inside, Indices(constants, shape_of)):
            continue  # layers with attention that share weights are not a recurrence
        own = {id(row[0]), *(id(n) for v in behind.values() for n in users_of(v, inside))}
        # The other matmuls of the first step read the same state.
        own |= {id(n) for same in users.values() if any(id(n) in own for n in same) for n in same}
        taken |= own
        # So do matmuls with the elements of the sequence.
        leading = _leading_to(own, graph, inside)
        own |= {id(n) for same in users.values() if sum(id(n) in leading for n in same) >= _STEPS for n in same}
        # Matmuls with fewer uses are not part of a step.
        tied = {id(n) for same in users.values() if len(same) >= _STEPS for n in same}
        products = tuple(n for n in graph.nodes if id(n) in own & tied)
        found = f"{len(row)} products with {weights[key].name!r}, each of which depends on the one before"
        name = f"{path}{display_name(row[0])}"
        yield FloatRecurrence(name, row[0].op, len(row), found, products)


def _takes_elements(
    row: Sequence[Node], behind: Mapping[int, Value], graph: Graph, inside: dict[int, Node], indices: Indices
) -> bool:
    """Whether elements of a sequence that is not made from the row enter it at three or more places."""
    place = {id(n): k for k, n in enumerate(row)}
    places: dict[int, set[int]] = {}
    for node in graph.nodes:
        for value in node.outputs if node.op in ("Gather", "Slice", "Split") else ():
            element = element_of(value, indices)
            if element is None or element.index.number is None or id(element.sequence) in behind:
                continue
            users = [n for v in reached([value], inside, is_real).values() for n in users_of(v, inside)]
            first = min((place[id(n)] for n in users if id(n) in place), default=None)
            if first is not None:
                places.setdefault(id(element.sequence), set()).add(first)
    return any(len(found) >= _STEPS for found in places.values())


def _row(nodes: Sequence[Node], inside: dict[int, Node]) -> tuple[list[Node], dict[int, Value]]:
    """A chain: the first matmul, those that depend on it, and all values that depend on it.

    The very first may not be part of it: Keras computes an extra step of which it only uses the shape.
    """
    for start in range(max(1, len(nodes) - _STEPS + 1)):
        behind = reached(nodes[start].outputs, inside, is_real)
        row = [nodes[start], *(n for n in nodes[start + 1 :] if any(id(v) in behind for v in n.inputs[:2]))]
        if start == 0:
            first = row, behind
        if len(row) >= _STEPS:
            return row, behind
    return first
