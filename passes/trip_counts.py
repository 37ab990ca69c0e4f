"""How often a loop runs, and what its counters are in each trip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnnqc.builder import Builder
from rnnqc.ir import Graph, Node, Value, attribute, input_or_none, shape_of
from rnnqc.passes.constant_expressions import Constants
from rnnqc.passes.index_expressions import Index, Indices, unknown
from rnnqc.passes.loop_states import states_of
from rnnqc.passes.step_weights import NoNode

ENDLESS = 2**31 - 1
TRIP = object()
"""Key of the unknown that counts the trips from 0: no name, as those of dimensions are."""


@dataclass(frozen=True, eq=False)
class Trips:
    """The number of trips: the least of some bounds.

    Attributes:
        bounds: Each as an expression, and as a value plus a number (no value: the number alone).
        once: Whether there is a first trip whatever the bounds say.
        indices: Expressions of values in the body; the number of the trip is the unknown TRIP.
    """

    bounds: tuple[tuple[Index, Value | None, int], ...]
    indices: Indices
    once: bool = False

    def is_dimension(self, size: Index) -> bool:
        """Whether the number of trips is `size`, without looking at the data."""
        return len(self.bounds) == 1 and self.bounds[0][0] == size

    def within(self, size: Index) -> bool:
        """Whether there are no more than `size` trips, without looking at the data."""
        return any(
            i == size or (i.number is not None and size.number is not None and i.number <= size.number)
            for i, _, _ in self.bounds
        )

    def count(self, b: Builder) -> Value:
        """The number as a vector with one element; not below 0."""
        made: list[Value] = []
        for index, value, offset in self.bounds:
            if value is None:
                assert index.number is not None
                made.append(b.i64([index.number]))
                continue
            whole: Value = b.op("Reshape", [b.cast(value, np.int64, "trips.value"), b.i64([1])], "trips.vector")
            made.append(b.op("Add", [whole, b.i64([offset])], "trips.bound") if offset else whole)
        least = made[0] if len(made) == 1 else b.op("Min", made, "trips")
        if all(i.number is not None for i, _, _ in self.bounds):
            return least
        return b.op("Max", [least, b.i64([int(self.once)])], "trips.once" if self.once else "trips.at_least")


def trips_of(node: Node, constants: Constants) -> Trips:
    """The trips of a Loop or Scan.

    Raises:
        NoNode: The number depends on what the body computes.
    """
    body: Graph = node.attrs["body"]
    if node.op == "Scan":
        return Trips((), Indices(constants, shape_of))
    outside = Indices(constants, shape_of)
    given = {id(body.inputs[0]): unknown(TRIP)}
    for state in states_of(node):
        step = _step(state.after, state.before, constants)
        start = outside.scalar(state.initial)
        if step is not None and start is not None:
            given[id(state.before)] = start.plus(unknown(TRIP), step)
    indices = Indices(constants, shape_of, given)
    bounds: dict[Index, tuple[Value | None, int]] = {}
    most = input_or_none(node, 0)
    if most is not None:
        size = outside.scalar(most)
        if size is None:
            size = unknown(id(most))
        if size.number is None or size.number < ENDLESS:
            bounds[size] = (None if size.number is not None else most, 0)
    start_condition = input_or_none(node, 1)
    found = _conditions(body.outputs[0], body.inputs[1], indices)
    for limit, value, offset in found:
        # trip n + 1 takes place if n + offset < limit: there are limit - offset + 1 trips
        bounds.setdefault(limit.plus(Index(1 - offset)), (value if limit.number is None else None, 1 - offset))
    conditional = start_condition is None or constants.array(start_condition) is not None
    if start_condition is not None:
        before = {(limit, offset + 1) for limit, _, offset in _conditions(start_condition, None, outside)}
        after = {(limit, offset) for limit, _, offset in found}
        # a limit that is a number, and lets the first trip take place, may have been folded away
        folded = {(limit, k) for limit, k in after if limit.number is not None and k - 1 < limit.number}
        if before - after or (not conditional and after - before - folded):
            raise NoNode(
                "the condition before the first trip is another than that after each.", f"{start_condition.name!r}"
            )
    if any(i.number is not None and i.number < 1 for i in bounds):
        raise NoNode("there are no trips.", "a constant number of trips below 1")
    if not bounds:
        raise NoNode("nothing bounds the number of trips.", "neither a trip count nor a condition on a counter")
    once = bool(found) and conditional and any(i.number is None for i in bounds)
    if once and most is not None and len(bounds) > len(found):
        raise NoNode("a trip count and a condition after the first trip bound the number of trips.", f"{most.name!r}")
    return Trips(tuple((i, value, offset) for i, (value, offset) in bounds.items()), indices, once)


def _step(after: Value, before: Value, constants: Constants) -> int | None:
    """By how much a counter grows in each trip."""
    while len(after.inputs) == 1 and after.inputs[0].op in ("Identity", "Squeeze", "Unsqueeze", "Reshape"):
        after = after.inputs[0].inputs[0]
    if len(after.inputs) != 1 or after.inputs[0].op not in ("Add", "Sub"):
        return None
    node = after.inputs[0]
    for value, other in (node.inputs, node.inputs[::-1]):
        array = constants.array(other)
        if value is before and array is not None and array.size == 1 and array.dtype.kind in "iu":
            number = int(array.reshape(-1)[0])
            return number if node.op == "Add" else -number if value is node.inputs[0] else None
    return None


def _conditions(value: Value, passed: Value | None, indices: Indices) -> list[tuple[Index, Value, int]]:
    """Limit, its value and offset of every `trip + offset < limit` that `value` is the conjunction of.

    In front of the loop (`passed` is None): of every `offset < limit`.
    """
    array = indices.constants.array(value)
    if value is passed or (array is not None and bool(np.all(array))):
        return []
    node = value.inputs[0] if len(value.inputs) == 1 and not value.inputs[0].domain else None
    if node is not None and (
        node.op in ("Identity", "Squeeze", "Unsqueeze", "Reshape")
        or (node.op == "Cast" and attribute(node, "to", 0) == 9)
    ):
        return _conditions(node.inputs[0], passed, indices)
    if node is not None and node.op == "And":
        return [c for v in node.inputs for c in _conditions(v, passed, indices)]
    pairs = {"Less": (0, 1, 0), "Greater": (1, 0, 0), "LessOrEqual": (0, 1, -1), "GreaterOrEqual": (1, 0, -1)}
    if node is not None and node.op in pairs:
        low, high, offset = pairs[node.op]
        small, large = indices.scalar(node.inputs[low]), indices.scalar(node.inputs[high])
        if small is not None and large is not None:
            moving = unknown(TRIP) if passed is not None else Index()
            rest = small.plus(moving, -1)
            if not any(key == TRIP for key, _ in large.terms) and rest.number is not None:
                return [(large, node.inputs[high], rest.number + offset)]
    made = f"made by node {node.name!r} ({node.op})" if node is not None else "an input of the graph"
    raise NoNode("its number of trips depends on data.", f"the condition {value.name!r} is {made}")
