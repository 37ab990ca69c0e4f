"""Integers that a graph computes from constants, dimensions and counters: `x.shape[0] - 1 - i`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from rnnqc.ir import Node, Value, attribute, dtype_of, input_or_none, maker_of
from rnnqc.passes.graph.values.constant_expressions import Constants

Shape = list[int | str | None]
LARGEST = 64  # maximum number of elements of an evaluated vector
EXACT_TO = 2**24  # integers up to here are exact in float32
_EXACT_CASTS = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Index:
    """A sum of integer multiples of unknowns, and a constant.

    Attributes:
        constant: The constant.
        terms: The factor of each unknown.
    """

    constant: int = 0
    terms: frozenset[tuple[Hashable, int]] = field(default_factory=frozenset)

    @property
    def number(self) -> int | None:
        """The number, if there are no unknowns."""
        return None if self.terms else self.constant

    def plus(self, other: Index, factor: int = 1) -> Index:
        """Returns the sum of this and `factor` times the other."""
        total = dict(self.terms)
        for unknown, count in other.terms:
            total[unknown] = total.get(unknown, 0) + factor * count
        return Index(self.constant + factor * other.constant, frozenset((u, c) for u, c in total.items() if c))

    def times(self, factor: int) -> Index:
        """Returns a multiple."""
        return Index().plus(self, factor)


def unknown(key: Hashable) -> Index:
    """Returns an unknown with this key."""
    return Index(0, frozenset({(key, 1)}))


class Indices:
    """Evaluates integer values; float values count if they hold integers exactly.

    Args:
        constants: The constants of the model.
        shape: Shapes of values.
        given: Known expressions of values, by their ids (a loop's counters).
    """

    def __init__(
        self,
        constants: Constants,
        shape: Callable[[Value | None], Shape | None],
        given: Mapping[int, Index] | None = None,
    ) -> None:
        self.constants = constants
        self.shape = shape
        self.given = dict(given or {})
        self._held: dict[int, tuple[Value, list[Index] | None]] = {}

    def numbers(self, value: Value | None) -> list[int] | None:
        """Returns the numbers of a scalar or vector, if all are known."""
        found = self.vector(value)
        numbers = [i.number for i in found] if found is not None else None
        return None if numbers is None or None in numbers else [n for n in numbers if n is not None]

    def sizes(self, value: Value | None) -> Shape | None:
        """Returns the elements of a vector as dimensions, with None for unknown ones."""
        found = self.vector(value)
        return None if found is None else [i.number for i in found]

    def dimension(self, value: Value, axis: int) -> Index | None:
        """Returns a dimension of `value`; None if its rank is unknown."""
        shape = self.shape(value)
        if shape is None:
            return None
        size = shape[axis]
        return Index(size) if isinstance(size, int) else unknown(size or (id(value), axis % len(shape)))

    def dimensions(self, value: Value) -> list[Index] | None:
        """Returns every dimension, also after an Expand or ConstantOfShape; None if the rank is unknown."""
        node = maker_of(value)
        sizes = None
        if node is not None and node.op == "ConstantOfShape":
            sizes = self.vector(node.inputs[0])
        elif node is not None and node.op == "Expand":
            number = self.constants.array(node.inputs[0])
            sizes = self.vector(node.inputs[1]) if number is not None and number.ndim == 0 else None
        if sizes is not None:
            return sizes
        shape = self.shape(value)
        if shape is None:
            return None
        return [Index(d) if isinstance(d, int) else unknown(d or (id(value), k)) for k, d in enumerate(shape)]

    def rows(self, value: Value) -> Index | None:
        """Returns the second to last dimension, even if only the producer of `value` determines it."""
        shape = self.shape(value)
        if shape is not None and len(shape) >= 2 and shape[-2] is not None:
            return self.dimension(value, -2)
        node = maker_of(value)
        if node is None or node.op not in ("ConstantOfShape", "Expand", "Identity"):
            return None
        if node.op == "Identity":
            return self.rows(node.inputs[0])
        sizes = self.vector(node.inputs[0 if node.op == "ConstantOfShape" else 1])
        return sizes[-2] if sizes is not None and len(sizes) >= 2 else None

    def scalar(self, value: Value | None) -> Index | None:
        """Returns a scalar, or the element of a vector of size one."""
        found = self.vector(value)
        return found[0] if found is not None and len(found) == 1 else None

    def vector(self, value: Value | None) -> list[Index] | None:
        """Returns the elements of an integer scalar or vector; None for other values."""
        if value is None or not value.name:
            return None
        if id(value) in self.given:
            return [self.given[id(value)]]
        held = self._held.get(id(value))
        if held is None:
            held = (value, self._evaluate(value))
            self._held[id(value)] = held
        return held[1]

    def _evaluate(self, value: Value) -> list[Index] | None:
        array = self.constants.array(value)
        if array is not None:
            if not _whole(array) or array.ndim > 1 or array.size > LARGEST:
                return None
            return [Index(int(n)) for n in array.reshape(-1)]
        node = maker_of(value)
        found = self._operator(node) if node is not None else None
        if found is None and self.shape(value) in ([], [1]) and not _real(value):
            return [unknown(id(value))]
        return found

    def _operator(self, node: Node) -> list[Index] | None:
        first = input_or_none(node, 0)
        if node.op == "Shape":
            shape = self.shape(first)
            if shape is None or first is None:
                return None
            low, high = attribute(node, "start", 0), attribute(node, "end", None)
            dims = [Index(d) if isinstance(d, int) else unknown(d or (id(first), k)) for k, d in enumerate(shape)]
            return dims[low:high]
        if node.op == "Size":
            shape = self.shape(first)
            return [Index(shape[0])] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None
        if node.op == "Concat":
            parts = [self.vector(v) for v in node.inputs]
            return None if any(p is None for p in parts) else [i for p in parts if p is not None for i in p]
        if node.op == "SequenceLength" and first is not None:
            return self._sequence_length(first)
        held = self.vector(first)
        if held is None:
            return None
        if node.op in ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Floor", "Ceil", "Round"):
            return held
        if node.op == "Cast":
            return held if attribute(node, "to", TensorProto.INT64) in _EXACT_CASTS else None
        if node.op == "Gather":
            at = self.numbers(node.inputs[1])
            return None if at is None or any(not -len(held) <= k < len(held) for k in at) else [held[k] for k in at]
        if node.op == "Slice":
            return self._slice(node, held)
        if node.op in ("Add", "Sub", "Mul", "Div", "Min", "Max") and len(node.inputs) == 2:
            other = self.vector(node.inputs[1])
            if other is None or (node.op == "Div" and any(map(_real, (*node.inputs, *node.outputs)))):
                return None
            return _arithmetic(node.op, held, other)
        return None

    def _sequence_length(self, sequence: Value) -> list[Index] | None:
        if len(sequence.inputs) != 1 or sequence.inputs[0].op != "SplitToSequence":
            return None
        node = sequence.inputs[0]
        split = self.constants.array(input_or_none(node, 1))
        if input_or_none(node, 1) is not None and (split is None or split.ndim or int(split) != 1):
            return None
        size = self.dimension(node.inputs[0], attribute(node, "axis", 0))
        return None if size is None else [size]

    def _slice(self, node: Node, held: list[Index]) -> list[Index] | None:
        bounds = [self.numbers(input_or_none(node, k)) for k in (1, 2)]
        steps = self.numbers(input_or_none(node, 4)) if input_or_none(node, 4) is not None else [1]
        if bounds[0] is None or bounds[1] is None or steps is None or len(bounds[0]) != 1:
            return None
        return held[slice(bounds[0][0], bounds[1][0], steps[0])]


def _real(value: Value) -> bool:
    kind = dtype_of(value)
    return kind is not None and kind.kind == "f"


def _whole(array: npt.NDArray[Any]) -> bool:
    """Whether an array holds integers, as floats only those that are exact."""
    if array.dtype.kind in "iu":
        return True
    if array.dtype not in (np.float32, np.float64):
        return False
    return bool(np.all(np.abs(array) <= EXACT_TO) and np.all(array == np.floor(array)))


def _arithmetic(op: str, a: list[Index], b: list[Index]) -> list[Index] | None:
    if len(a) != len(b):
        if 1 not in (len(a), len(b)):
            return None
        size = max(len(a), len(b))
        a, b = (v * size if len(v) == 1 else v for v in (a, b))
    made = [_element(op, x, y) for x, y in zip(a, b, strict=True)]
    return None if any(m is None for m in made) else [m for m in made if m is not None]


def _element(op: str, a: Index, b: Index) -> Index | None:
    if op in ("Add", "Sub"):
        return a.plus(b, 1 if op == "Add" else -1)
    x, y = a.number, b.number
    if op == "Mul" and (x is not None or y is not None):
        return b.times(x) if x is not None else a.times(y or 0)
    if op in ("Min", "Max"):
        if x is None or y is None:
            return a if a == b else None
        return Index(min(x, y) if op == "Min" else max(x, y))
    if op == "Div" and y:
        if x is not None:
            return Index(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))
        return a if y == 1 else None
    return None
