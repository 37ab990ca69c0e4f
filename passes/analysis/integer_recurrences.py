"""Analysis: recurrences whose matmuls are already quantized, in loops or unrolled. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rnnqc.ir import CELL_TAG, CUSTOM_TAG, RELEASED_TAG, Graph, Model, Node, Value, constant_array, display_name, info
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.graph.loops.loop_reach import reached, returning, users_of
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop, owners, states_of
from rnnqc.passes.graph.nodes.products import PRODUCTS
from rnnqc.passes.graph.nodes.quantized_products import QUANTIZED_PRODUCTS

_STEPS = 3


@dataclass(frozen=True)
class IntegerRecurrence:
    """A recurrence that another tool has quantized.

    Attributes:
        path: Name of the loop, or of the first matmul, with the path through subgraphs.
        op: Its operator.
        found: Description of the evidence.
        products: Its matmuls with constants.
    """

    path: str
    op: str
    found: str
    products: tuple[Node, ...] = field(compare=False, repr=False)

    @property
    def weight_bytes(self) -> int:
        """Size of the constants in its matmuls, each counted once."""
        return _bytes(self.products)


def integer_recurrences(model: Model) -> Iterator[IntegerRecurrence]:
    """Yields every loop with a state that returns through a quantized matmul, and every chain of such matmuls.

    rnnqc's own cells are excluded.
    """
    own = tuple(f"{name}." for name in custom_cells(model))
    for graph, _, path in bodies(model):
        for node in graph.nodes:
            if is_loop(node) and not is_own(node):
                found = _loop(node, path)
                if found is not None:
                    yield found
        yield from _written_out(graph, path, own)


def is_own(node: Node) -> bool:
    """Returns whether a node belongs to a cell of rnnqc."""
    return any(tag in info(node).metadata for tag in (CELL_TAG, CUSTOM_TAG, RELEASED_TAG))


def _weights(node: Node) -> list[Value]:
    """The constants of a quantized matmul; none for other nodes."""
    if is_own(node):
        return []
    if (node.domain or "", node.op) in QUANTIZED_PRODUCTS:
        return [v for v in node.inputs if _size(v) > 1]
    if node.op not in PRODUCTS or node.domain:
        return []
    codes = [v.inputs[0].inputs[0] for v in node.inputs[:2] if v.inputs and v.inputs[0].op == "DequantizeLinear"]
    return [v for v in codes if _size(v) > 1]


def _size(value: Value) -> int:
    array = constant_array(value) if value.name else None
    return 0 if array is None else int(array.size)


def _bytes(products: Iterable[Node]) -> int:
    arrays = {id(v): constant_array(v) for node in products for v in _weights(node)}
    return sum(int(a.nbytes) for a in arrays.values() if a is not None)


def _loop(node: Node, path: str) -> IntegerRecurrence | None:
    body: Graph = node.attrs["body"]
    inside = owners(body)
    products = [n for n in body.nodes if _weights(n)]
    states = [s for s in states_of(node) if not s.invariant] if products else []

    def reading(values: Mapping[int, Value]) -> list[Node]:
        return [p for p in products if any(id(v) in values for v in p.inputs if v.name)]

    found = returning(states, inside, reading)
    if found is None:
        return None
    state, product = found
    at = f"node {display_name(product)!r} ({product.op})"
    text = f"state {state.before.name!r} goes through {at}, whose weights are quantized, and comes back"
    return IntegerRecurrence(f"{path}{display_name(node)}", node.op, text, tuple(products))


def _written_out(graph: Graph, path: str, made: tuple[str, ...]) -> Iterator[IntegerRecurrence]:
    """Yields chains of matmuls; names of rnnqc's own constants begin with one of `made`."""
    inside = owners(graph)
    users: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for value in (v for v in _weights(node)[:1] if not v.name.startswith(made)):
            users.setdefault(id(value), []).append(node)
    taken: set[int] = set()
    for nodes in users.values():
        if len(nodes) < _STEPS or id(nodes[0]) in taken:
            continue
        behind = reached(nodes[0].outputs, inside)
        row = [nodes[0], *(n for n in nodes[1:] if any(id(v) in behind for v in n.inputs if v.name))]
        between = {n.op for v in behind.values() for n in users_of(v, inside)}
        if len(row) < _STEPS or "Softmax" in between:  # layers with attention that share weights are not a recurrence
            continue
        own = {id(n) for same in users.values() if len(same) >= _STEPS for n in same}
        taken |= own
        name = _weights(nodes[0])[0].name
        found = f"{len(row)} matmuls with the quantized weights {name!r}; each depends on the one before"
        products = [n for n in graph.nodes if id(n) in own]
        yield IntegerRecurrence(f"{path}{display_name(nodes[0])}", nodes[0].op, found, tuple(products))
