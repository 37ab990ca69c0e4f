"""The number of iterations of a loop, and the values of its counters in each iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Node, Value, attribute, display_name, input_or_none, maker_of, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.loops.loop_states import ENDLESS, behind_views, states_of
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import EXACT_TO, Index, Indices, unknown

_COMPARISONS = {"Less": (0, 1, 0), "Greater": (1, 0, 0), "LessOrEqual": (0, 1, 1), "GreaterOrEqual": (1, 0, 1)}
"""Which operand is the smaller one, which the larger one, and whether they may be equal."""
_COUNTERS = (np.int32, np.int64, np.float32, np.float64)
_EXACT = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-(2**15), 2**15 - 1),
    TensorProto.UINT16: (0, 2**16 - 1),
    TensorProto.UINT32: (0, 2**32 - 1),
    TensorProto.UINT64: (0, 2**63 - 1),
    TensorProto.FLOAT16: (-(2**11), 2**11),
    TensorProto.BFLOAT16: (-(2**8), 2**8),
}
"""Least and largest of the whole numbers that types of few bits (and without signs) hold without a gap."""
TRIP = object()
"""Key of the unknown that counts the iterations from 0: no name, as those of dimensions are."""


Bound = tuple[Index, Value | None, int]
"""A number of iterations as an expression, and as a value plus a number (no value: the expression is a number)."""


@dataclass(frozen=True, eq=False)
class Trips:
    """The number of iterations: the minimum of some bounds.

    Attributes:
        bounds: The bounds; no two of them differ by a number only.
        once: Whether there is a first iteration regardless of the bounds.
        indices: Expressions of values in the body; the iteration is the unknown TRIP.
    """

    bounds: tuple[Bound, ...]
    indices: Indices
    once: bool = False

    def is_dimension(self, size: Index) -> bool:
        """Whether the number of iterations equals `size`, independent of the data."""
        return len(self.bounds) == 1 and self.bounds[0][0] == size

    def within(self, size: Index) -> bool:
        """Whether there are at most `size` iterations, independent of the data."""
        return any(i.terms == size.terms and i.constant <= size.constant for i, _, _ in self.bounds)

    def count(self, b: Builder, outer: Callable[[Value], Value | None]) -> Value:
        """Returns the number as a vector with one element; not below 0.

        Args:
            b: Builder for the graph around the loop.
            outer: Maps a value of the body to the equal value of that graph, or None.

        Raises:
            NotHandled: A bound changes between iterations.
        """
        made: list[Value] = []
        for index, value, offset in self.bounds:
            if value is None:
                assert index.number is not None
                made.append(b.i64([index.number]))
                continue
            outside = outer(value)
            if outside is None:
                raise NotHandled("the limit of its counter changes from iteration to iteration.", f"{value.name!r}")
            whole: Value = b.op("Reshape", [b.cast(outside, np.int64, "trips.value"), b.i64([1])], "trips.vector")
            made.append(b.op("Add", [whole, b.i64([offset])], "trips.bound") if offset else whole)
        least = made[0] if len(made) == 1 else b.op("Min", made, "trips")
        if all(i.number is not None for i, _, _ in self.bounds):
            return least
        return b.op("Max", [least, b.i64([int(self.once)])], "trips.once" if self.once else "trips.at_least")


def trips_of(node: Node, constants: Constants) -> Trips:
    """Returns the iterations of a Loop or Scan.

    Raises:
        NotHandled: The number depends on results of the body.
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
    most = input_or_none(node, 0)
    size = Index(ENDLESS) if most is None else outside.scalar(most) or unknown(id(most))
    # iteration n + 1 runs if n + offset < limit: there are limit - offset + 1 iterations
    found = _strictest(_bound(*held, 1) for held in _conditions(body.outputs[0], body.inputs[1], indices))
    start_condition = input_or_none(node, 1)
    always = start_condition is None or constants.array(start_condition) is not None
    if start_condition is not None:
        before = {i for i, _, _ in _strictest(_bound(*held, 0) for held in _conditions(start_condition, None, outside))}
        after = {i for i, _, _ in found}
        # a constant limit that allows the first iteration may have been folded away
        folded = {i for i in after if i.number is not None and i.number > 0}
        if before - after or (not always and after - before - folded):
            raise NotHandled(
                "the condition before the first iteration is another than that after each.", f"{start_condition.name!r}"
            )
    endless = size.number is not None and size.number >= ENDLESS
    bounds = _strictest([*([] if endless else [_bound(size, most, 0, 0)]), *found])
    if not bounds:
        raise NotHandled(
            "nothing bounds the number of iterations.", "neither a trip count nor a condition on a counter"
        )
    if any(i.number is not None and i.number < 1 for i, _, _ in bounds):
        raise NotHandled("there are no iterations.", "a constant number of iterations below 1")
    once = bool(found) and always and any(i.number is None for i, _, _ in bounds)
    if once and most is not None and size.number is None:  # a trip count of 0 skips the first iteration, too
        once = False
        if any(i.terms != size.terms or i.constant < size.constant for i, _, _ in found):
            reason = "a trip count and a condition after the first iteration bound the number of iterations."
            raise NotHandled(reason, f"{most.name!r}")
    return Trips(tuple(bounds), indices, once)


def _bound(limit: Index, value: Value | None, offset: int, more: int) -> Bound:
    """A bound of `limit - offset + more` iterations, where `value` holds `limit`."""
    return limit.plus(Index(more - offset)), None if limit.number is not None else value, more - offset


def _strictest(bounds: Iterable[Bound]) -> list[Bound]:
    """Keeps only the smallest of bounds that differ by a number, in order."""
    least: dict[object, Bound] = {}
    for bound in bounds:
        held = least.setdefault(bound[0].terms, bound)
        if bound[0].constant < held[0].constant:
            least[bound[0].terms] = bound
    return list(least.values())


def _step(after: Value, before: Value, constants: Constants) -> int | None:
    """The increment of a counter per iteration."""
    after = behind_views(after)
    if len(after.inputs) != 1 or after.inputs[0].op not in ("Add", "Sub"):
        return None
    node = after.inputs[0]
    for value, other in (node.inputs, node.inputs[::-1]):
        array = constants.array(other)
        if value is before and array is not None and array.size == 1 and array.dtype in _COUNTERS:
            number = int(array.reshape(-1)[0])
            if number != array.reshape(-1)[0]:
                return None
            return number if node.op == "Add" else -number if value is node.inputs[0] else None
    return None


def _conditions(value: Value, passed: Value | None, indices: Indices) -> list[tuple[Index, Value, int]]:
    """Limit, its value and offset for every `trip + offset < limit` in the conjunction that `value` holds.

    Before the loop (`passed` is None): for every `offset < limit`.
    """
    array = indices.constants.array(value)
    if value is passed or (array is not None and bool(np.all(array))):
        return []
    node = maker_of(value)
    if node is not None and (
        node.op in ("Identity", "Squeeze", "Unsqueeze", "Reshape")
        or (node.op == "Cast" and attribute(node, "to", 0) == TensorProto.BOOL)
    ):
        return _conditions(node.inputs[0], passed, indices)
    if node is not None and node.op == "And":
        return [c for v in node.inputs for c in _conditions(v, passed, indices)]
    if node is not None and node.op in _COMPARISONS:
        found = _comparison(node, passed, indices)
        if found is not None:
            return [found]
    made = f"made by node {display_name(node)!r} ({node.op})" if node is not None else "an input of the graph"
    raise NotHandled(
        "its number of iterations depends on data: its condition compares no counter with a limit known before.",
        f"the condition {value.name!r} is {made}",
    )


def _comparison(node: Node, passed: Value | None, indices: Indices) -> tuple[Index, Value, int] | None:
    """Limit, its value and offset if `node` computes `trip + offset < limit`, else None."""
    low, high, or_equal = _COMPARISONS[node.op]
    small, exact = _compared(node.inputs[low], indices)
    large, exact_limit = _compared(node.inputs[high], indices)
    if large is None:
        large = _rounded(indices.constants.array(node.inputs[high]), or_equal)
    if small is None or large is None:
        return None
    rest = small.plus(unknown(TRIP) if passed is not None else Index(), -1)
    if any(key == TRIP for key, _ in large.terms) or rest.number is None:
        return None
    for least, most in (held for held in (exact, exact_limit) if held is not None):
        if (
            large.number is None
            or not least <= min(rest.number, large.number) <= max(rest.number, large.number) <= most
        ):
            found = f"node {display_name(node)!r} ({node.op})"
            raise NotHandled("its counter is compared in a type that may not hold every number up to the limit.", found)
    return large, node.inputs[high], rest.number - or_equal


def _compared(value: Value, indices: Indices) -> tuple[Index | None, tuple[int, int] | None]:
    """The compared index, and the smallest and largest integers that the narrow types on its way represent exactly."""
    found = indices.scalar(value)
    node = maker_of(value)
    if found is not None and (found.number is not None or node is None or node.op != "Cast"):
        return found, None
    if node is None or node.op != "Cast":
        return None, None
    inner, exact = _compared(node.inputs[0], indices)
    if inner is None:
        return found, None
    own = _EXACT.get(attribute(node, "to", TensorProto.UNDEFINED))
    if own is None or exact is None:
        return inner, own or exact
    return inner, (max(own[0], exact[0]), min(own[1], exact[1]))


def _rounded(limit: npt.NDArray[Any] | None, or_equal: int) -> Index | None:
    """Rounds a constant non-integer limit to an integer that accepts the same numbers."""
    if limit is None or limit.size != 1 or limit.dtype.kind != "f":
        return None
    number = float(limit.reshape(-1)[0])
    if not abs(number) <= EXACT_TO:
        return None
    return Index(math.floor(number) if or_equal else math.ceil(number))
