"""The values of a loop's body for all iterations at once, each with a leading time axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.ir import (
    Graph,
    Node,
    Value,
    attribute,
    display_name,
    dtype_of,
    graph_info,
    info,
    input_or_none,
    shape_of,
    subgraphs,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.constant_expressions import Constants
from rnnqc.passes.graph.index_expressions import Index, unknown
from rnnqc.passes.graph.lstm_node import is_recurrent
from rnnqc.passes.graph.sequence_elements import NEW, changed_axes, element_of, flipped
from rnnqc.passes.recover.loop_bounds import TRIP, Trips
from rnnqc.passes.recover.step_weights import NoNode

ELEMENTWISE = (
    "Add", "Sub", "Mul", "Div", "Pow", "Neg", "Abs", "Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Relu", "LeakyRelu",
    "Elu", "HardSigmoid", "Softplus", "Softsign", "Clip", "Identity", "Cast", "Where", "Min", "Max", "Less", "Greater",
    "LessOrEqual", "GreaterOrEqual", "Equal", "And", "Or", "Not", "Erf", "Reciprocal", "Floor", "Ceil", "Round", "Sign",
    "HardSwish", "Selu", "ThresholdedRelu",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sequence:
    """A value of the body for all iterations.

    Attributes:
        value: `[T, ...]`.
        rank: Rank in the body.
        ones: Axes in the body that are known to have size 1.
    """

    value: Value
    rank: int
    ones: frozenset[int] = frozenset()


class Vectorizer:
    """Makes sequences of the values of a body, in a Builder for the graph around the loop.

    Args:
        body: The body.
        scanned: Sequences that the loop itself takes apart, by the id of the body's input.
        trips: Of the loop.
        constants: Of the model.
        b: Takes the new nodes.
    """

    def __init__(
        self, body: Graph, scanned: dict[int, Sequence], trips: Trips, constants: Constants, b: Builder
    ) -> None:
        self.body, self.trips, self.constants, self.b = body, trips, constants, b
        self.known: dict[int, Sequence] = dict(scanned)
        self.recurrent: Callable[[Node], None] | None = None
        self._inside = {id(v) for n in body.nodes for v in n.outputs if v.name} | {id(v) for v in body.inputs}
        self._inside |= {id(v) for v in graph_info(body).initializers.values()}
        self._inputs = {id(v) for v in body.inputs}
        self._outer: dict[int, Value] = {}
        self._busy: set[int] = set()

    def outer(self, value: Value) -> Value | None:
        """`value` as the graph around the loop has it; None if it changes from iteration to iteration."""
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
        """`value` for all iterations.

        Raises:
            NoNode: It is not computed from the loop's sequences alone.
        """
        if id(value) not in self.known:
            made = self._make(value)
            if made is not None:
                self.known[id(value)] = made
        if id(value) not in self.known:  # a layer's, which hands out its cell state after the last element alone
            raise NoNode("a cell state is used in every iteration.", f"{value.name!r}")
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
            raise NoNode(
                "what is computed in an iteration depends on the iteration before in more than the layer's states.",
                f"{value.name!r}",
            )
        if id(value) in self._busy:
            raise NoNode("the input of the layer depends on its own state.", f"{value.name!r}")
        if len(value.inputs) != 1:
            raise NoNode("a loop-invariant value is emitted every iteration.", f"{value.name!r}")
        node = value.inputs[0]
        element = self._element(value)
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

    def _element(self, value: Value) -> Sequence | None:
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
            raise NoNode(
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
        """An element for each iteration; too many iterations fail, as they do in the loop."""
        b = self.b
        count = self.trips.count(b, self.outer)
        if self.trips.within(length.plus(Index(-first))):
            end = b.op("Add", [count, b.i64([first])], "end") if first else count
            return b.op("Slice", [value, b.i64([first]), end, b.i64([axis])], "range")
        # From 1: of Gather after Range onnxruntime makes a Slice, which leaves out what is not there.
        end = b.op("Squeeze", [b.op("Add", [count, b.i64([first + 1])], "end")], "end.scalar")
        numbers = b.op("Range", [b.i64(first + 1), end, b.i64(1)], "range.from_1")
        numbers = b.op("Sub", [numbers, b.i64(1)], "range.numbers")
        return b.op("Gather", [value, numbers], "range", axis=axis)

    def _runs_backwards(self, sum_: Index, length: Index) -> bool:
        """Whether index + iteration is the last index: counted from the end, or from the beginning."""
        return sum_ == Index(-1) or sum_ == length.plus(Index(-1))

    def _operator(self, node: Node, value: Value) -> Sequence:
        if node.domain or subgraphs(node):
            raise NoNode(
                "an operator of the loop is not known to work on all iterations at once.",
                f"node {display_name(node)!r} ({node.op})",
            )
        operands: list[Sequence | Value] = []
        for operand in node.inputs:
            outside = self.outer(operand)
            operands.append(outside if outside is not None else self.sequence(operand))
        if not any(isinstance(v, Sequence) for v in operands):
            raise NoNode("a loop-invariant value is emitted every iteration.", f"{value.name!r}")
        made = self._apply(node, operands)
        if made is None:
            raise NoNode(
                "an operator of the loop is not known to work on all iterations at once.",
                f"node {display_name(node)!r} ({node.op})",
            )
        outputs, rank = made
        for old, new in zip(node.outputs, outputs, strict=False):
            if old.name:
                self.known[id(old)] = Sequence(new, rank, self._ones(node, operands[0], rank))
        return self.known[id(value)]

    def _ones(self, node: Node, first: Sequence | Value, rank: int) -> frozenset[int]:
        """Axes of size 1 of what `node` makes of its first operand."""
        if not isinstance(first, Sequence) or node.op not in ("Squeeze", "Unsqueeze", "Identity"):
            return frozenset()
        changed = changed_axes(node, self.trips.indices) if node.op != "Identity" else []
        if changed is None:
            return frozenset()
        if node.op == "Unsqueeze":
            added = {a % rank for a in changed}
            kept = [k for k in range(rank) if k not in added]
            return frozenset(added | {kept[k] for k in first.ones})
        dropped = {a % first.rank for a in changed}
        left = [k for k in range(first.rank) if k not in dropped]
        return frozenset(k for k, old in enumerate(left) if old in first.ones)

    def _apply(self, node: Node, operands: list[Sequence | Value]) -> tuple[list[Value], int] | None:
        name = display_name(node)
        if node.op in ELEMENTWISE or node.op == "MatMul":
            return self._aligned(node, operands, name)
        first = operands[0]
        if not isinstance(first, Sequence):
            return self._looked_up(node, first, operands[1:], name)
        rank = first.rank
        if node.op == "Gemm":
            return self._gemm(node, operands, name)
        others = [v for v in operands[1:] if not isinstance(v, Sequence)]
        if node.op != "Concat" and len(others) != len(operands) - 1:
            return None
        attrs: dict[str, Any] = dict(node.attrs)
        inputs: list[Value] = [first.value, *others]
        if node.op in ("Unsqueeze", "Squeeze"):
            axes = changed_axes(node, self.trips.indices)
            if axes is None:
                return None
            total = rank + len(axes) if node.op == "Unsqueeze" else rank
            inputs = [first.value, self.b.i64([a % total + 1 for a in axes])]
            rank = total if node.op == "Unsqueeze" else rank - len(axes)
        elif node.op == "Transpose":
            attrs["perm"] = [0, *(p + 1 for p in attribute(node, "perm", list(range(rank))[::-1]))]
        elif node.op in ("Softmax", "LogSoftmax"):
            attrs["axis"] = attribute(node, "axis", -1) % rank + 1
        elif node.op == "Split":
            attrs["axis"] = attribute(node, "axis", 0) % rank + 1
        elif node.op == "Concat":
            parts = [v for v in operands if isinstance(v, Sequence)]
            if len(parts) != len(operands) or any(p.rank != rank for p in parts):
                return None
            attrs["axis"] = attribute(node, "axis", 0) % rank + 1
            inputs = [p.value for p in parts]
        elif node.op == "Slice":
            made = self._slice_inputs(node, others, rank)
            if made is None:
                return None
            inputs = [first.value, *made]
        elif node.op == "Reshape":
            target = self.trips.indices.numbers(input_or_none(node, 1))
            if target is None or 0 in target:
                return None
            inputs, rank = [first.value, self.b.i64([0, *target])], len(target)
        else:
            return None
        outputs: list[Value] = [self.b.value(v.name, v.dtype) for v in node.outputs]
        self.b.add(node.op, inputs, outputs, name, **attrs)
        return outputs, rank

    def _looked_up(
        self, node: Node, table: Value, others: list[Sequence | Value], name: str
    ) -> tuple[list[Value], int] | None:
        """Rows of a table: an embedding of what each iteration has."""
        rank = _rank(table)
        if node.op != "Gather" or attribute(node, "axis", 0) != 0 or not isinstance(others[0], Sequence) or not rank:
            return None
        output = self.b.value(node.outputs[0].name, node.outputs[0].dtype)
        self.b.add("Gather", [table, others[0].value], [output], name, axis=0)
        return [output], others[0].rank + rank - 1

    def _slice_inputs(self, node: Node, others: list[Value], rank: int) -> list[Value] | None:
        """Starts, ends, axes and steps of a Slice, in int64, with a leading time axis."""
        held = dict(zip([k for k in range(1, 5) if input_or_none(node, k) is not None], others, strict=True))
        starts = self.trips.indices.vector(node.inputs[1])
        count = None if starts is None else len(starts)
        axes = (
            self.trips.indices.numbers(node.inputs[3]) if 3 in held else None if count is None else list(range(count))
        )
        if axes is None:
            return None

        def whole(k: int) -> Value:
            numbers = self.trips.indices.numbers(node.inputs[k])
            return self.b.i64(numbers) if numbers is not None else self.b.cast(held[k], np.int64, "bounds")

        made = [whole(1), whole(2), self.b.i64([a % rank + 1 for a in axes])]
        return [*made, whole(4)] if 4 in held else made

    def _aligned(self, node: Node, operands: list[Sequence | Value], name: str) -> tuple[list[Value], int] | None:
        ranks = [v.rank if isinstance(v, Sequence) else _rank(v) for v in operands]
        known = [r for r in ranks if r is not None]
        if len(known) != len(ranks):
            return None
        rank = max(known)
        inputs: list[Value] = []
        for operand, own in zip(operands, known, strict=True):
            if not isinstance(operand, Sequence):
                inputs.append(operand)
                continue
            if own < rank:
                if node.op == "MatMul":
                    return None
                axes = self.b.i64(list(range(1, rank - own + 1)))
                inputs.append(self.b.op("Unsqueeze", [operand.value, axes], f"{name}.aligned"))
            else:
                inputs.append(operand.value)
        if node.op == "MatMul" and (min(known) < 2 or not isinstance(operands[0], Sequence)):
            return None
        output = self.b.value(node.outputs[0].name, node.outputs[0].dtype)
        self.b.add(node.op, inputs, [output], name, **node.attrs)
        return [output], rank

    def _gemm(self, node: Node, operands: list[Sequence | Value], name: str) -> tuple[list[Value], int] | None:
        first, factor = operands[0], operands[1]
        if not isinstance(first, Sequence) or isinstance(factor, Sequence) or attribute(node, "transA", 0):
            return None
        if attribute(node, "transB", 0):
            array = self.constants.array(factor)
            if array is not None:
                factor = self.b.model.add_initializer(f"{name}.transposed", array.T)
            else:
                factor = self.b.op("Transpose", [factor], f"{name}.transposed", perm=[1, 0])
        product = self._times(self.b.op("MatMul", [first.value, factor], name), node, "alpha", name)
        if input_or_none(node, 2) is None:
            return [product], 2
        added = operands[2]
        value = added.value if isinstance(added, Sequence) else added
        if isinstance(added, Sequence) and added.rank < 2:
            axes = self.b.i64(list(range(1, 3 - added.rank)))
            value = self.b.op("Unsqueeze", [added.value, axes], f"{name}.aligned")
        value = self._times(value, node, "beta", name)
        return [self.b.op("Add", [product, value], f"{name}.sum")], 2

    def _times(self, value: Value, node: Node, key: str, name: str) -> Value:
        """`value` times an attribute of a Gemm."""
        factor = attribute(node, key, 1.0)
        if factor == 1.0:
            return value
        kind = dtype_of(node.outputs[0]) or np.dtype(np.float32)
        return self.b.op("Mul", [value, self.b.model.constant(factor, kind)], f"{name}.{key}")


def _rank(value: Value) -> int | None:
    if not value.name:
        return 0
    shape = shape_of(value)
    return None if shape is None else len(shape)
