"""Computes values of a graph with their last two axes exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Model, Node, Value, attribute, dtype_of, maker_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Shape
from rnnqc.passes.recover.loops.sequence_operators import ELEMENTWISE

_MATRIX = 2
T = TypeVar("T")


def swapped(axes: Sequence[T]) -> list[T]:
    """Returns axes with the last two exchanged."""
    return [*axes[:-2], axes[-1], axes[-2]]


def kept_in_place(rank: int, axis: int) -> list[int]:
    """Returns the permutation that exchanges the last two axes of the elements along `axis`."""
    others = swapped([k for k in range(rank) if k != axis])
    others.insert(axis, axis)
    return others


class TurnedValues:
    """Values with their last two axes exchanged, and nodes that compute with these.

    Args:
        model: The model.
        graph: The graph of the values.
        shape: Returns the shape of a value.
        outer: The graph around the loop whose body `graph` is; the same graph if it is no body.
        b: Receives the nodes of `graph`.
        around: Receives the nodes of `outer`.
    """

    def __init__(
        self, model: Model, graph: Graph, shape: Callable[[Value], Shape | None], b: Builder, around: Builder
    ) -> None:
        self.model, self.shape, self.b, self.around = model, shape, b, around
        self.made: dict[int, Value] = {}
        """By the id of a value what computes it turned; a Transpose makes the value itself."""
        self.asked: dict[int, tuple[Value, Value]] = {}
        """By the id of a value that is not computed turned: the value, and the result of a Transpose of it."""
        self.replaced: list[Node] = []
        """The nodes whose results other nodes compute."""
        self._sequences: dict[tuple[int, int], Value] = {}
        self._constants = Constants(model)
        self._inside = {id(v) for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs))}

    def of(self, value: Value) -> Value:
        """Returns a value turned.

        Raises:
            NotHandled: Its rank is unknown, or it has less than two axes.
        """
        if id(value) in self.made:
            return self.made[id(value)]
        array = self._constants.array(value)
        if array is not None:
            turned = array[:, None] if array.ndim == 1 else np.swapaxes(array, -1, -2) if array.ndim else array
            self.made[id(value)] = self.model.add_initializer(f"{value.name}.turned", np.ascontiguousarray(turned))
        elif id(value) not in self.asked and not self.computes(value):
            self.asked[id(value)] = value, self._element(value) or self.transposed(self.b, value)
        return self.made[id(value)] if id(value) in self.made else self.asked[id(value)][1]

    def computes(self, value: Value) -> bool:
        """Whether the node that makes a value can compute it turned; then it does."""
        if id(value) in self.made:
            return True
        node = maker_of(value)
        if node is None or id(value) not in self._inside or not value.inputs:
            return False
        if self._turns(node):
            self.made[id(value)] = node.inputs[0]
            return True
        return self._rewrites(node)

    def transposed(self, b: Builder, value: Value, perm: Sequence[int] | None = None) -> Value:
        """Adds a Transpose of a value, of the last two axes without a permutation."""
        perm = swapped(range(self.rank(value))) if perm is None else list(perm)
        made = b.op("Transpose", [value], f"{value.name}.turned", perm=perm)
        shape = self.shape(value)
        made.dtype, made.shape = dtype_of(value), None if shape is None else [shape[k] for k in perm]
        return made

    def rank(self, value: Value) -> int:
        """Returns the rank of a value that has at least two axes."""
        shape = self.shape(value)
        if shape is None or len(shape) < _MATRIX:
            raise NotHandled("its products are not written for rows.", f"{value.name!r} has no known axes", "none")
        return len(shape)

    def _element(self, value: Value) -> Value | None:
        """Returns the element of a turned sequence, where Gather takes one of a sequence of at least three axes."""
        node = maker_of(value)
        shape = self.shape(node.inputs[0]) if node is not None else None
        if node is None or node.op != "Gather" or node.domain or shape is None or len(shape) <= _MATRIX:
            return None
        source, axis = node.inputs[0], attribute(node, "axis", 0) % len(shape)
        if self.shape(node.inputs[1]) != []:
            return None
        key = id(source), axis
        if key not in self._sequences:
            home = self.b if id(source) in self._inside else self.around
            self._sequences[key] = self.transposed(home, source, kept_in_place(len(shape), axis))
        made = self.b.op("Gather", [self._sequences[key], node.inputs[1]], f"{value.name}.turned", axis=axis)
        self._describe(made, value)
        return made

    def _describe(self, made: Value, value: Value) -> None:
        shape = self.shape(value)
        made.dtype, made.shape = dtype_of(value), None if shape is None else swapped(shape)

    def note(self, value: Value, turned: Value) -> None:
        """Notes what computes a value turned, and lets a Transpose make the value of it."""
        self._describe(turned, value)
        self.made[id(value)] = turned
        self.b.add("Transpose", [turned], [value], f"{value.name}.back", perm=swapped(range(self.rank(value))))

    def node(self, node: Node) -> None:
        """Computes the results of a node turned, if an input is."""
        if not any(id(v) in self.made and self._constants.array(v) is None for v in node.inputs if v.name):
            return
        if self._turns(node):
            value, turned = node.outputs[0], self.made[id(node.inputs[0])]
            node.outputs.clear()
            self.replaced.append(node)
            self.b.add("Identity", [turned], [value], f"{value.name}.same")
        else:
            self._rewrites(node)

    def _turns(self, node: Node) -> bool:
        """Whether a node exchanges the last two axes."""
        axes = range(len(self.shape(node.inputs[0]) or ())) if node.op == "Transpose" and not node.domain else range(0)
        return len(axes) >= _MATRIX and list(node.attrs.get("perm", axes[::-1])) == swapped(axes)

    def _rewrites(self, node: Node) -> bool:
        """Computes the results of a node turned, and returns whether it can."""
        real = [v for v in node.inputs if v.name]
        rank = len(self.shape(node.outputs[0]) or ())
        if node.domain or rank < _MATRIX or any(self.shape(v) is None for v in real):
            return False
        ranks = [len(self.shape(v) or ()) for v in real]
        attributes = dict(node.attrs)
        if node.op in ("Split", "Concat"):
            axis = attribute(node, "axis", 0) % rank
            attributes["axis"] = swapped(range(rank))[axis]
            moved = node.inputs if node.op == "Concat" else node.inputs[:1]
        elif node.op in ELEMENTWISE:
            moved = node.inputs
            if any(r not in (0, rank) and self._constants.array(v) is None for r, v in zip(ranks, real, strict=True)):
                return False
        else:
            return False
        given = [
            self.of(v) if k < len(moved) and v.name and self.shape(v) != [] else v for k, v in enumerate(node.inputs)
        ]
        outputs = list(node.outputs)
        node.outputs.clear()
        self.replaced.append(node)
        made = self.b.ops(node.op, given, [f"{v.name}.turned" if v.name else "" for v in outputs], **attributes)
        self.b.nodes[-1].name = node.name
        for value, turned in zip(outputs, made, strict=True):
            if value.name:
                self.note(value, turned)
        return True
