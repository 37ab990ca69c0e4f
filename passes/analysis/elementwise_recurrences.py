"""Analysis: recurrences without a matrix, `h = f(x) * h + g(x)`, in loops or unrolled. Reads only.

Minimal GRUs, SRU, QRNN, LRU and selective state spaces (Mamba) are of this kind. Only their projections of x are
quantized, which no step depends on; the recurrence has no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rnnqc.ir import (
    CELL_TAG,
    CUSTOM_TAG,
    Graph,
    Model,
    Node,
    Value,
    constant_array,
    display_name,
    graphs_below,
    info,
    maker_of,
    shape_of,
)
from rnnqc.passes.analysis.float_recurrences import float_recurrences
from rnnqc.passes.graph.loops.loop_reach import reached
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop, is_real, owners, sizes_of, states_of
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.nodes.products import factors
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import PICKS, element_of

_REASON = "an elementwise recurrence, h = f(x) * h + g(x): it has no weights of its own."
_MIXED = "a recurrence without a matmul, which no recipe quantizes: {} mixes the elements of its state."
ACTION = "--rest int8 quantizes the projections around it"
_STEPS = 4
"""Of a recurrence that is written out; fewer may be layers that add something of two elements."""
_ELEMENTWISE = frozenset({
    "Mul", "Add", "Sub", "Div", "Neg", "Abs", "Exp", "Log", "Sqrt", "Pow", "Max", "Min", "Sum", "Clip", "Where", "Cast",
    "Sigmoid", "Tanh", "Relu", "Elu", "Gelu", "LeakyRelu", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Erf",
    "Identity", "Squeeze", "Unsqueeze", "Reshape", "Expand", "Transpose",
})  # fmt: skip
"""Elementwise operators; the last ones change shapes."""


@dataclass(frozen=True)
class ElementwiseRecurrence:
    """A recurrence that mixes no elements of its state, or that no matmul mixes.

    Attributes:
        path: Name of the loop, or of the first multiplication of the state, with the path through subgraphs.
        op: Its operator.
        sizes: `state_sizes`, `batch`, `sequence_length`, `input_size`; None if unknown.
        mixed: The operator that mixes them, with the name of its node; "" without one.
    """

    path: str
    op: str
    sizes: dict[str, Any]
    mixed: str = ""

    @property
    def reason(self) -> str:
        """Why it stays float."""
        return _MIXED.format(self.mixed) if self.mixed else _REASON


def elementwise_recurrences(model: Model) -> list[ElementwiseRecurrence]:
    """Returns those of a model in normal form, except inside cells and recurrences with matrices."""
    others = [r.path for r in float_recurrences(model)]
    model.infer_shapes()
    found: list[ElementwiseRecurrence] = []
    for graph, owner, path in bodies(model):
        for node in graph.nodes:
            where = f"{path}{display_name(node)}"
            inner = f"{where}/"
            if not is_loop(node) or CUSTOM_TAG in info(node).metadata or where in others:
                continue
            mixed = None if any(o.startswith(inner) for o in others) else _mixed(node)
            if mixed is not None:
                found.append(ElementwiseRecurrence(where, node.op, sizes_of(node), mixed))
        if owner is None or not is_loop(owner):
            found += _written_out(model, graph, path)
    return found


def _mixed(loop: Node) -> str | None:
    """Returns the operator that mixes elements of a state that is multiplied and returns, "" if there is none.

    None if no state is. A loop around steps of recurrent layers carries their masks and results, too.
    """
    body: Graph = loop.attrs["body"]
    inside = owners(body)
    if any(is_recurrent(n) for g in graphs_below(body) for n in g.nodes):
        return None
    states = [s for s in states_of(loop) if not s.invariant and is_real(s.before)]
    found = [
        m for s in states if (m := _mixed_on_the_way(s.after, reached([s.before], inside, is_real), inside)) is not None
    ]
    return min(found, key=len, default=None)


def _mixed_on_the_way(after: Value, carried: dict[int, Value], inside: dict[int, Node]) -> str | None:
    """The same for `after`, which depends on values in `carried`."""
    if id(after) not in carried:
        return None
    makers = list(_makers(after, carried, inside))
    if not any(n.op == "Mul" and not n.domain for n in makers):
        return None
    return _first_mixing(makers)


def _first_mixing(nodes: Iterable[Node]) -> str:
    """The first operator that mixes elements, with the name of its node; "" without one."""
    mixing = (n for n in nodes if n.domain or n.op not in _ELEMENTWISE)
    return next((f"{n.op} (node {display_name(n)!r})" for n in mixing), "")


@dataclass(frozen=True)
class _Row:
    """Facts about a value in unrolled steps.

    Attributes:
        elements: The elements of sequences that it depends on, as a bit set.
        steps: Number of multiplications of the state on its way, each depending on more elements than the one before.
        counted: The elements that the last multiplication depended on.
        first: The first multiplication.
    """

    elements: int = 0
    steps: int = 0
    counted: int = 0
    first: Node | None = None


def _written_out(model: Model, graph: Graph, path: str) -> Iterator[ElementwiseRecurrence]:
    """Yields chains of multiplications, each of which depends on the one before and another element of a sequence."""
    indices = Indices(Constants(model), shape_of)
    rows: dict[int, _Row] = {}
    longest: dict[int, tuple[Node, int, Value]] = {}
    for node in graph.nodes:
        if CELL_TAG in info(node).metadata:
            continue
        made = _after(node, [rows.get(id(v), _Row()) for v in node.inputs])
        if made.first is not None and made.steps >= longest.get(id(made.first), (node, 0, node.outputs[0]))[1]:
            longest[id(made.first)] = (made.first, made.steps, node.outputs[0])
        for value in node.outputs:
            element = element_of(value, indices) if node.op in PICKS else None
            number = element.index.number if element is not None else None
            rows[id(value)] = _Row(1 << number) if number is not None and number >= 0 else made
    inside = owners(graph)
    for first, steps, last in longest.values():
        if steps + 1 >= _STEPS:  # the first step multiplies zeros, or is omitted
            between = list(_between(first, last, inside))
            if any(factors(n) for n in between):  # a recurrence with a matrix
                continue
            mixed = _first_mixing(between)
            shape = shape_of(last) or [None]
            batch = shape[-2] if len(shape) > 1 else None
            sizes = {"state_sizes": [shape[-1]], "batch": batch, "sequence_length": steps + 1, "input_size": None}
            yield ElementwiseRecurrence(f"{path}{display_name(first)}", first.op, sizes, mixed)


def _adds_products(node: Node) -> bool:
    """Whether a node adds the products of a value with a constant matrix, which Mul computes."""
    made = maker_of(node.inputs[0]) if node.op == "ReduceSum" and not node.domain else None
    if made is None or made.op != "Mul":
        return False
    arrays = [a for v in made.inputs if (a := constant_array(v)) is not None]
    return any(sum(d > 1 for d in a.shape) > 1 for a in arrays)


def _between(first: Node, last: Value, inside: dict[int, Node]) -> Iterator[Node]:
    """Yields the nodes that make `last` of real numbers, each of which depends on `first`."""
    behind = reached(first.outputs, inside, is_real)
    yield from (n for n in _makers(last, behind, inside) if n is not first)


def _makers(last: Value, behind: dict[int, Value], inside: dict[int, Node]) -> Iterator[Node]:
    """Yields the nodes that make `last`, and what they read of the values in `behind`."""
    seen: set[int] = set()
    stack = [last]
    while stack:
        for maker in stack.pop().inputs:
            node = inside.get(id(maker))
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            stack += [v for v in node.inputs if id(v) in behind]


def _after(node: Node, rows: list[_Row]) -> _Row:
    """The facts about the outputs of a node, from those about its inputs."""
    elements = 0
    for row in rows:
        elements |= row.elements
    if (node.op not in _ELEMENTWISE or node.domain) and not _adds_products(node):
        return _Row(elements)
    state = max(rows, key=lambda r: (r.steps, r.elements.bit_count()), default=_Row())
    steps, counted, first = state.steps, state.counted, state.first
    if node.op == "Mul" and len(rows) == 2:
        held, factor = sorted(rows, key=lambda r: -r.elements.bit_count())
        grown = held.elements & ~held.counted
        if factor.elements.bit_count() <= 1 and not factor.elements & held.elements and held.elements and grown:
            steps, counted = held.steps + 1, held.elements
            first = held.first or node
    return _Row(elements, steps, counted, first)
