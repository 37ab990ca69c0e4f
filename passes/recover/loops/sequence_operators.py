"""Applies operators of a loop's body to all iterations at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.ir import Node, Value, attribute, display_name, dtype_of, input_or_none, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import changed_axes

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


class SequenceOperators:
    """Applies operators to sequences, in a Builder for the graph around the loop.

    Args:
        constants: The constants of the model.
        indices: The indices of the loop.
        b: Receives the new nodes.
    """

    def __init__(self, constants: Constants, indices: Indices, b: Builder) -> None:
        self._constants, self._indices, self._b = constants, indices, b

    def apply(self, node: Node, operands: list[Sequence | Value]) -> list[Sequence] | None:
        """Returns the outputs of a node for all iterations; None if its operator does not support it.

        Args:
            node: A node of the body.
            operands: Its inputs: sequences and loop-invariant values, at least one sequence.
        """
        made = self._applied(node, operands)
        if made is None:
            return None
        outputs, rank = made
        ones = self._ones(node, operands[0], rank)
        return [Sequence(v, rank, ones) for v in outputs]

    def _applied(self, node: Node, operands: list[Sequence | Value]) -> tuple[list[Value], int] | None:
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
            axes = changed_axes(node, self._indices)
            if axes is None:
                return None
            total = rank + len(axes) if node.op == "Unsqueeze" else rank
            inputs = [first.value, self._b.i64([a % total + 1 for a in axes])]
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
            target = self._indices.numbers(input_or_none(node, 1))
            if target is None or 0 in target:
                return None
            inputs, rank = [first.value, self._b.i64([0, *target])], len(target)
        else:
            return None
        outputs: list[Value] = [self._b.value(v.name, v.dtype) for v in node.outputs]
        self._b.add(node.op, inputs, outputs, name, **attrs)
        return outputs, rank

    def _looked_up(
        self, node: Node, table: Value, others: list[Sequence | Value], name: str
    ) -> tuple[list[Value], int] | None:
        """Rows of a table: an embedding lookup for each iteration."""
        rank = _rank(table)
        if node.op != "Gather" or attribute(node, "axis", 0) != 0 or not isinstance(others[0], Sequence) or not rank:
            return None
        output = self._b.value(node.outputs[0].name, node.outputs[0].dtype)
        self._b.add("Gather", [table, others[0].value], [output], name, axis=0)
        return [output], others[0].rank + rank - 1

    def _slice_inputs(self, node: Node, others: list[Value], rank: int) -> list[Value] | None:
        """Starts, ends, axes and steps of a Slice, in int64, with a leading time axis."""
        held = dict(zip([k for k in range(1, 5) if input_or_none(node, k) is not None], others, strict=True))
        starts = self._indices.vector(node.inputs[1])
        count = None if starts is None else len(starts)
        axes = self._indices.numbers(node.inputs[3]) if 3 in held else None if count is None else list(range(count))
        if axes is None:
            return None

        def whole(k: int) -> Value:
            numbers = self._indices.numbers(node.inputs[k])
            return self._b.i64(numbers) if numbers is not None else self._b.cast(held[k], np.int64, "bounds")

        made = [whole(1), whole(2), self._b.i64([a % rank + 1 for a in axes])]
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
                axes = self._b.i64(list(range(1, rank - own + 1)))
                inputs.append(self._b.op("Unsqueeze", [operand.value, axes], f"{name}.aligned"))
            else:
                inputs.append(operand.value)
        if node.op == "MatMul" and (min(known) < 2 or not isinstance(operands[0], Sequence)):
            return None
        output = self._b.value(node.outputs[0].name, node.outputs[0].dtype)
        self._b.add(node.op, inputs, [output], name, **node.attrs)
        return [output], rank

    def _gemm(self, node: Node, operands: list[Sequence | Value], name: str) -> tuple[list[Value], int] | None:
        first, factor = operands[0], operands[1]
        if not isinstance(first, Sequence) or isinstance(factor, Sequence) or attribute(node, "transA", 0):
            return None
        if attribute(node, "transB", 0):
            array = self._constants.array(factor)
            if array is not None:
                factor = self._b.model.add_initializer(f"{name}.transposed", array.T)
            else:
                factor = self._b.op("Transpose", [factor], f"{name}.transposed", perm=[1, 0])
        product = self._times(self._b.op("MatMul", [first.value, factor], name), node, "alpha", name)
        if input_or_none(node, 2) is None:
            return [product], 2
        added = operands[2]
        value = added.value if isinstance(added, Sequence) else added
        if isinstance(added, Sequence) and added.rank < 2:
            axes = self._b.i64(list(range(1, 3 - added.rank)))
            value = self._b.op("Unsqueeze", [added.value, axes], f"{name}.aligned")
        value = self._times(value, node, "beta", name)
        return [self._b.op("Add", [product, value], f"{name}.sum")], 2

    def _times(self, value: Value, node: Node, key: str, name: str) -> Value:
        """`value` times an attribute of a Gemm."""
        factor = attribute(node, key, 1.0)
        if factor == 1.0:
            return value
        kind = dtype_of(node.outputs[0]) or np.dtype(np.float32)
        return self._b.op("Mul", [value, self._b.model.constant(factor, kind)], f"{name}.{key}")

    def _ones(self, node: Node, first: Sequence | Value, rank: int) -> frozenset[int]:
        """The axes of size 1 in the result of `node` for its first operand."""
        if not isinstance(first, Sequence) or node.op not in ("Squeeze", "Unsqueeze", "Identity"):
            return frozenset()
        changed = changed_axes(node, self._indices) if node.op != "Identity" else []
        if changed is None:
            return frozenset()
        if node.op == "Unsqueeze":
            added = {a % rank for a in changed}
            kept = [k for k in range(rank) if k not in added]
            return frozenset(added | {kept[k] for k in first.ones})
        dropped = {a % first.rank for a in changed}
        left = [k for k in range(first.rank) if k not in dropped]
        return frozenset(k for k, old in enumerate(left) if old in first.ones)


def _rank(value: Value) -> int | None:
    if not value.name:
        return 0
    shape = shape_of(value)
    return None if shape is None else len(shape)
