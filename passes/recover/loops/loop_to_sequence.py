"""Computes values of a loop's body for all iterations at once, with a leading time axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.ir import (
    Graph,
    Node,
    Value,
    display_name,
    dtype_of,
    graph_info,
    info,
    shape_of,
    subgraphs,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, unknown
from rnnqc.passes.graph.values.sequence_elements import NEW, element_of, flipped
from rnnqc.passes.recover.loops.loop_bounds import TRIP, Trips
from rnnqc.passes.recover.loops.sequence_operators import Sequence, SequenceOperators


class Vectorizer:
    """Vectorizes values of a body, in a Builder for the graph around the loop.

    Args:
        body: The body.
        scanned: Sequences that the loop itself splits into elements, by the id of the body's input.
        trips: The iterations of the loop.
        constants: The constants of the model.
        b: Receives the new nodes.
    """

    def __init__(
        self, body: Graph, scanned: dict[int, Sequence], trips: Trips, constants: Constants, b: Builder
    ) -> None:
        self.body, self.trips, self.constants, self.b = body, trips, constants, b
        self._operators = SequenceOperators(constants, trips.indices, b)
        self.known: dict[int, Sequence] = dict(scanned)
        self.recurrent: Callable[[Node], None] | None = None
        self._inside = {id(v) for n in body.nodes for v in n.outputs if v.name} | {id(v) for v in body.inputs}
        self._inside |= {id(v) for v in graph_info(body).initializers.values()}
        self._inputs = {id(v) for v in body.inputs}
        self._outer: dict[int, Value] = {}
        self._busy: set[int] = set()

    def outer(self, value: Value) -> Value | None:
        """Returns the equal value of the graph around the loop; None if `value` changes between iterations."""
        if id(value) not in self._inside or not value.name:
            return value
        if id(value) in self._outer:
            return self._outer[id(value)]
        array = self.constants.array(value)
        if array is not None:
            made = self.b.model.add_initializer(value.name, array)
            self._outer[id(value)] = made
            return made
        if id(value) in self._inputs:
            return None
        node = value.inputs[0]
        if subgraphs(node) or any(id(v) in self._busy for v in node.outputs):
            return None
        operands = [self.outer(v) for v in node.inputs]
        if any(v is None for v in operands):
            return None
        if node.op in ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"):
            return None
        outputs = [self.b.value(v.name, v.dtype) for v in node.outputs]
        made_node = self.b.add(node.op, operands, outputs, display_name(node), domain=node.domain, **node.attrs)
        info(made_node).overload = info(node).overload
        for old, new in zip(node.outputs, outputs, strict=True):
            self._outer[id(old)] = new
        return self._outer[id(value)]

    def sequence(self, value: Value) -> Sequence:
        """Returns `value` for all iterations.

        Raises:
            NotHandled: It does not depend on the loop's sequences alone.
        """
        if id(value) not in self.known:
            made = self._make(value)
            if made is not None:
                self.known[id(value)] = made
        if id(value) not in self.known:  # a cell state of a layer: the layer only returns the last one
            raise NotHandled("a cell state is used in every iteration.", f"{value.name!r}")
        return self.known[id(value)]

    def _make(self, value: Value) -> Sequence | None:
        index = self.trips.indices.given.get(id(value))
        if index is not None and {key for key, _ in index.terms} == {TRIP}:
            ((_, step),) = index.terms
            end = self.b.op("Squeeze", [self.trips.count(self.b, self.outer)], "trips.scalar")
            numbers: Value = self.b.op("Range", [self.b.i64(0), end, self.b.i64(1)], "trips.numbers")
            numbers = self.b.op("Mul", [numbers, self.b.i64(step)], "counter.steps") if step != 1 else numbers
            numbers = self.b.op("Add", [numbers, self.b.i64(index.constant)], "counter") if index.constant else numbers
            kind = dtype_of(value)
            if kind is not None and kind != np.int64:
                numbers = self.b.cast(numbers, kind, "counter.cast")
            return Sequence(numbers, 0)
        if id(value) in self._inputs:
            raise NotHandled(
                "what is computed in an iteration depends on the iteration before in more than the layer's states.",
                f"{value.name!r}",
            )
        if id(value) in self._busy:
            raise NotHandled("the input of the layer depends on its own state.", f"{value.name!r}")
        if len(value.inputs) != 1:
            raise NotHandled("a loop-invariant value is emitted every iteration.", f"{value.name!r}")
        node = value.inputs[0]
        element = self.element(value)
        if element is not None:
            return element
        self._busy.add(id(value))
        try:
            if is_recurrent(node) and self.recurrent is not None:
                self.recurrent(node)
                return None
            return self._operator(node, value)
        finally:
            self._busy.discard(id(value))

    def element(self, value: Value) -> Sequence | None:
        """Returns `value` for all iterations if it is an element of a sequence from outside, else None.

        Raises:
            NotHandled: The elements are not read in order.
        """
        found = element_of(value, self.trips.indices)
        if found is None:
            return None
        source = self.outer(found.sequence)
        shape = shape_of(found.sequence)
        kept = [k for k in found.axes if k not in (NEW, found.axis)]
        if source is None or shape is None or kept != [k for k in range(len(shape)) if k != found.axis]:
            return None
        rest = found.index.plus(unknown(TRIP), -1)
        backwards = found.index.plus(unknown(TRIP))
        size = shape[found.axis]
        length = Index(size) if isinstance(size, int) else unknown(size or (id(found.sequence), found.axis))
        b = self.b
        value_ = source
        if rest.number is not None and rest.number >= 0:
            if rest.number or not self.trips.is_dimension(length):
                value_ = self._range(value_, found.axis, rest.number, length)
        elif self._runs_backwards(backwards, length):
            value_ = flipped(b, value_, found.axis, "backwards")
            if not self.trips.is_dimension(length):
                value_ = self._range(value_, found.axis, 0, length)
        else:
            raise NotHandled(
                "it does not go through a sequence element by element.", f"an index of {found.sequence.name!r}"
            )
        if found.axis:
            perm = [found.axis, *(k for k in range(len(shape)) if k != found.axis)]
            value_ = b.op("Transpose", [value_], "time_first", perm=perm)
        added = [k + 1 for k, a in enumerate(found.axes) if a in (NEW, found.axis)]
        if added:
            value_ = b.op("Unsqueeze", [value_, b.i64(added)], "elements")
        return Sequence(value_, len(found.axes))

    def _range(self, value: Value, axis: int, first: int, length: Index) -> Value:
        """Selects an element for each iteration; too many iterations fail, as they do in the loop."""
        b = self.b
        count = self.trips.count(b, self.outer)
        if self.trips.within(length.plus(Index(-first))):
            end = b.op("Add", [count, b.i64([first])], "end") if first else count
            return b.op("Slice", [value, b.i64([first]), end, b.i64([axis])], "range")
        # Start at 1: onnxruntime turns Gather after Range into a Slice, which ignores missing elements.
        end = b.op("Squeeze", [b.op("Add", [count, b.i64([first + 1])], "end")], "end.scalar")
        numbers = b.op("Range", [b.i64(first + 1), end, b.i64(1)], "range.from_1")
        numbers = b.op("Sub", [numbers, b.i64(1)], "range.numbers")
        return b.op("Gather", [value, numbers], "range", axis=axis)

    def _runs_backwards(self, sum_: Index, length: Index) -> bool:
        """Whether index + iteration is the last index, counted from the end or from the start."""
        return sum_ == Index(-1) or sum_ == length.plus(Index(-1))

    def _operator(self, node: Node, value: Value) -> Sequence:
        if node.domain or subgraphs(node):
            raise NotHandled(
                "an operator of the loop is not known to work on all iterations at once.",
                f"node {display_name(node)!r} ({node.op})",
            )
        operands: list[Sequence | Value] = []
        for operand in node.inputs:
            outside = self.outer(operand)
            operands.append(outside if outside is not None else self.sequence(operand))
        if not any(isinstance(v, Sequence) for v in operands):
            raise NotHandled("a loop-invariant value is emitted every iteration.", f"{value.name!r}")
        made = self._operators.apply(node, operands)
        if made is None:
            raise NotHandled(
                "an operator of the loop is not known to work on all iterations at once.",
                f"node {display_name(node)!r} ({node.op})",
            )
        for old, new in zip(node.outputs, made, strict=False):
            if old.name:
                self.known[id(old)] = new
        return self.known[id(value)]
