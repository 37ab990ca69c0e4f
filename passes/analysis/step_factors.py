"""Analysis: the factors of products that the steps of an unrolled recurrence have in common. Reads only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from rnnqc.ir import Constant, Node, Value, constant_array, shape_of, subgraphs
from rnnqc.passes.graph.values.constant_expressions import makes_the_same
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import PICKS, element_of

_COUNTS = ("Shape", "Size")
_SMALL = 64
"""Constants of up to so many numbers are equal if their numbers are; of larger ones there is one copy."""
_MATRIX = 2


@dataclass(frozen=True)
class Factor:
    """The meaning of a value in a step.

    Attributes:
        key: Equal for values that two steps compute in the same way, of different elements of the same sequences.
        fixed: Whether its numbers follow from constants; its shape may not.
    """

    key: int
    fixed: bool


class Factors:
    """The meanings of the values of a graph.

    Args:
        nodes: Its nodes, in order.
        indices: Indices of elements.
    """

    def __init__(self, nodes: Iterable[Node], indices: Indices) -> None:
        self._indices = indices
        self._keys: dict[Hashable, int] = {}
        self._known: dict[int, Factor] = {}
        self._values: list[Value] = []  # holds the values: ids are reused
        for node in nodes:
            for output, value in enumerate(node.outputs):
                if value.name:
                    self._note(value, self._made(node, output, value))

    def of(self, value: Value) -> Factor:
        """Returns the meaning of a value."""
        held = self._known.get(id(value))
        return self._note(value, self._given(value)) if held is None else held

    def _note(self, value: Value, factor: Factor) -> Factor:
        self._values.append(value)
        self._known[id(value)] = factor
        return factor

    def _key(self, *parts: Hashable) -> int:
        return self._keys.setdefault(parts, len(self._keys))

    def _given(self, value: Value) -> Factor:
        """The meaning of a constant, or of a value from outside."""
        if not value.name:
            return Factor(self._key("none"), True)
        large = isinstance(value, Constant) and size_of(value) > _SMALL
        array = None if large else constant_array(value)
        if array is not None and array.size <= _SMALL and array.dtype != object:
            parts = array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()
            return Factor(self._key("constant", *parts), True)
        return Factor(self._key("value", id(value)), large or array is not None)

    def _made(self, node: Node, output: int, value: Value) -> Factor:
        if subgraphs(node) or constant_array(value) is not None:
            return self._given(value)
        given = [self.of(v) for v in node.inputs]
        element = element_of(value, self._indices) if node.op in PICKS and not node.domain else None
        if element is not None and element.index.number is not None:
            sequence = self.of(element.sequence)
            if not sequence.fixed:
                return Factor(self._key("element", sequence.key, element.axis, element.axes), False)
        fixed = makes_the_same(node) and (node.op in _COUNTS or all(f.fixed for f in given))
        parts = (node.domain, node.op, output, configuration(node), *(f.key for f in given))
        return Factor(self._key("made", *parts), fixed)


def configuration(node: Node) -> tuple[tuple[str, str], ...]:
    """Returns a key of the attributes of a node."""
    return tuple(sorted((k, repr(v.tolist() if hasattr(v, "tolist") else v)) for k, v in node.attrs.items()))


def size_of(value: Value, unknown: int = 1, axes: int | None = None) -> int:
    """Returns how many numbers a value holds at least: those of its axes of known size.

    Args:
        value: The value.
        unknown: The size to take for other axes, and for a value of unknown rank.
        axes: How many of the last axes count; None for all.
    """
    shape = shape_of(value)
    if shape is None:
        return unknown
    counted = shape if axes is None else shape[-axes:]
    return int(np.prod([d if isinstance(d, int) else unknown for d in counted], dtype=np.int64))


def matrix_size(value: Value, unknown: int) -> int:
    """Returns the size of the last two axes of a value."""
    return size_of(value, unknown, _MATRIX)
