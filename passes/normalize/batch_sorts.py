"""Finds sorts of a vector and their inverses: TopK over the whole vector, ScatterElements of 0, 1, ... to its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnnqc.ir import Model, Node, Value, attribute, constant_array, shape_of

SIZES = frozenset(("Gather", "Slice", "Reshape", "Squeeze", "Unsqueeze", "Cast", "Identity", "ReduceProd", "Concat"))
"""Operators that pass the only entry of a shape on."""
COPIES = ("Cast", "Identity")


@dataclass(frozen=True)
class Sort:
    """A sort of a vector and its inverse permutation.

    Attributes:
        source: The unsorted vector, `[B]`.
        sorted: The sorted vector.
        order: Values that hold the permutation p: `sorted = source[p]`.
        inverse: Values that hold the inverse q: `x[p][q] = x`.
    """

    source: Value
    sorted: Value
    order: tuple[Value, ...]
    inverse: tuple[Value, ...]


def read_sort(node: Node) -> Sort | None:
    """Returns the sort that a TopK computes; None unless it sorts a whole vector and the ScatterElements invert it."""
    source = node.inputs[0]
    shape = shape_of(source)
    if len(node.outputs) < 2 or shape is None or len(shape) != 1 or not attribute(node, "sorted", 1):
        return None
    same = [source, *_copied_from(source), *_copies(source)]
    if not _is_size(node.inputs[1], same):
        return None
    order = _copies(node.outputs[1])
    scatters = [u for p in order for u in p.outputs if u.op == "ScatterElements" and not u.domain]
    if not scatters or not all(_is_inverse(u, order, same) for u in scatters):
        return None
    return Sort(source, node.outputs[0], tuple(order), tuple(v for u in scatters for v in _copies(u.outputs[0])))


def sizes_of_sorted(model: Model) -> dict[str, str]:
    """Maps the names that shape inference gave to sizes of sorted vectors to the names of the unsorted sizes."""
    found: dict[str, str] = {}
    for node in (n for g in model.graphs() for n in g.nodes if n.op == "TopK" and not n.domain):
        sort = read_sort(node)
        given = shape_of(sort.source) if sort is not None else None
        if sort is None or given is None or not isinstance(given[0], str):
            continue
        made = [shape_of(v) for v in (sort.sorted, *sort.order)]
        found.update((s[0], given[0]) for s in made if s is not None and isinstance(s[0], str) and s[0] != given[0])
    return found


def _is_inverse(node: Node, order: Sequence[Value], same: Sequence[Value]) -> bool:
    """Whether a ScatterElements writes 0, 1, ... to the sorted indices."""
    if len(node.inputs) != 3 or not any(node.inputs[1] is p for p in order):
        return False
    counter = node.inputs[2].inputs[0] if node.inputs[2].inputs else None
    if attribute(node, "reduction", "none") != "none" or counter is None or counter.op != "Range":
        return False
    first, step = constant_array(counter.inputs[0]), constant_array(counter.inputs[2])
    if first is None or step is None or (first.item(), step.item()) != (0, 1):
        return False
    return _is_size(counter.inputs[1], [*order, *same])


def _copies(value: Value) -> list[Value]:
    """The value and its copies by Cast and Identity."""
    found = [value]
    for v in found:
        found += [u.outputs[0] for u in v.outputs if u.op in COPIES and not u.domain]
    return found


def _copied_from(value: Value) -> list[Value]:
    """The values that `value` is a copy of, by Cast and Identity."""
    found: list[Value] = []
    while value.inputs and value.inputs[0].op in COPIES:
        value = value.inputs[0].inputs[0]
        found.append(value)
    return found


def _is_size(value: Value, vectors: Sequence[Value]) -> bool:
    """Whether the value is the size of one of the vectors."""
    array = constant_array(value)
    if array is not None:
        shapes = [shape_of(v) for v in vectors]
        return array.size == 1 and any(s is not None and s[0] == array.item() for s in shapes)
    while value.inputs:
        maker = value.inputs[0]
        if maker.op == "Shape" and not maker.domain:
            return any(maker.inputs[0] is v for v in vectors)
        if maker.op not in SIZES or maker.domain or (maker.op == "Concat" and len(maker.inputs) > 1):
            return False
        value = maker.inputs[0]
    return False
