"""Analysis: matmuls of a recurrence without a quantization point. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from rnnqc.errors import NotHandled
from rnnqc.ir import CELL_TAG, Graph, Node, Value, attribute, constant_array, display_name, info, subgraphs
from rnnqc.passes.analysis.custom_cell import CustomCell
from rnnqc.passes.graph.nodes.products import PRODUCTS, is_product
from rnnqc.passes.graph.values.layout_ops import MOVERS

_PICKS = ("Gather", "Slice", "Split", "SequenceAt", "SplitToSequence")


def unreached_products(cell: CustomCell) -> list[tuple[Node, NotHandled]]:
    """Returns matmuls with constants in branches of the loop's body, and those whose results the recurrence adds.

    A matmul in front of the loop belongs to the recurrence if no matmul of a step multiplies its result: it is the
    input projection of all steps, computed at once. Unrolled steps have none.
    """
    loop = cell.recurrence.loop
    if loop is None:
        return []
    found = [(n, _in_branch(n)) for n in _in_branches(cell.graph)]
    return found + [(n, _in_front(n)) for n in _projections(cell, loop)]


def _in_branches(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        for _, inner in subgraphs(node) if CELL_TAG not in info(node).metadata else ():
            yield from (n for n in inner.nodes if is_product(n) and CELL_TAG not in info(n).metadata)
            yield from _in_branches(inner)


def _projections(cell: CustomCell, loop: Node) -> list[Node]:
    """The matmuls before a recurrence whose results its steps add or multiply elementwise."""
    inside = {id(n) for n in cell.graph.nodes}
    states = {id(v) for values in cell.entering.values() for v in values}
    made: dict[int, Node] = {}
    for outer, inner, element in _entering(cell, loop):
        users, picked_inside = _users(inner, inside)
        node, picked_outside = _producer(outer)
        multiplied = any(n.op in PRODUCTS for n in users)
        if node is None or not users or multiplied or id(outer) in states or id(node) in inside:
            continue
        if element or picked_inside or picked_outside:  # not the same in every step
            made[id(node)] = node
    return list(made.values())


def _entering(cell: CustomCell, loop: Node) -> Iterator[tuple[Value, Value, bool]]:
    """Values from outside that are not states: outside, inside, and whether it is an element of a Scan's sequence."""
    if loop.op == "Scan":
        count = len(loop.inputs) - attribute(loop, "num_scan_inputs", 1)
        yield from ((o, i, True) for o, i in zip(loop.inputs[count:], cell.graph.inputs[count:], strict=True))
    local = {id(v) for v in (*cell.graph.inputs, *(v for n in cell.graph.nodes for v in n.outputs))}
    read = {id(v): v for n in cell.graph.nodes for v in n.inputs if v.name and id(v) not in local}
    yield from ((v, v, False) for v in read.values())


def _users(value: Value, inside: Collection[int]) -> tuple[list[Node], bool]:
    """The nodes that compute with a value, behind those that only move it, and whether these select elements of it."""
    found: list[Node] = []
    picked = False
    stack, seen = [value], set[int]()
    while stack:
        for node in stack.pop().outputs:
            if id(node) in seen or id(node) not in inside:
                continue
            seen.add(id(node))
            if node.op in (*MOVERS, *_PICKS):
                picked |= node.op in _PICKS
                stack.extend(node.outputs)
            elif node.op not in ("Shape", "Size"):
                found.append(node)
    return found, picked


def _producer(value: Value) -> tuple[Node | None, bool]:
    """The matmul behind `value`, ignoring added constants, and whether elements of its result are selected."""
    picked = False
    while len(value.inputs) == 1:
        node = value.inputs[0]
        if is_product(node):
            return node, picked
        sources = [v for v in node.inputs if v.name and constant_array(v) is None]
        moved = node.op in (*MOVERS, *_PICKS) and sources
        if node.domain or not (moved or (node.op == "Add" and len(sources) == 1)):
            return None, picked
        picked |= node.op in _PICKS
        value = sources[0]
    return None, picked


def _in_branch(node: Node) -> NotHandled:
    return NotHandled(
        "matmuls in branches of an If are not quantized.", _described(node), "compute both ways, and select with Where"
    )


def _in_front(node: Node) -> NotHandled:
    return NotHandled(
        "the projection of its input is computed before the loop.",
        _described(node),
        "compute it within the step; `rnnqc layer` makes the layer of it",
    )


def _described(node: Node) -> str:
    shapes: Iterable[str] = (str(list(a.shape)) for v in node.inputs[:2] if (a := constant_array(v)) is not None)
    return f"node {display_name(node)!r} ({node.op}) with weights {' and '.join(shapes)}"
