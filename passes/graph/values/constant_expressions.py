"""Values that depend on constants only."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.evaluation.evaluate import NOT_RUN, evaluate_nodes
from rnnqc.ir import Constant, Model, Node, Value, constant_array, dtype_of, info, subgraphs
from rnnqc.proto.random_values import RANDOM

_NOT_FOLDED = (*RANDOM, "Dropout", *NOT_RUN)
_KEEP_NUMBERS = (
    "Expand",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "Transpose",
    "Identity",
    "Cast",
    "Slice",
    "Tile",
)
"""Operators all of whose results are elements of their first input."""
_CODES = ("DequantizeLinear",)


def constant_expression(value: Value, variable: dict[int, Value] | None = None) -> list[Node] | None:
    """Returns the nodes that compute `value` from constants only, in order; None if it has other sources.

    Args:
        value: The value.
        variable: Values that are known to depend on other sources, by `id`; newly found ones are added.
    """
    known = {} if variable is None else variable
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        current, expanded = stack.pop()
        if isinstance(current, Constant) or not current.name:
            continue
        if id(current) in known or not current.inputs or not makes_the_same(current.inputs[0]):
            known |= {id(v): v for v, expanded in [*stack, (current, True)] if expanded}  # the path to it
            return None
        node = current.inputs[0]
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((current, True))
        stack.extend((v, False) for v in node.inputs)
    return order


def makes_the_same(node: Node) -> bool:
    """Whether a node is a standard operator without subgraphs that is deterministic and may be evaluated."""
    is_standard = node.domain in (None, "", "ai.onnx") and not info(node).overload
    return is_standard and node.op not in _NOT_FOLDED and not subgraphs(node)


class Constants:
    """Arrays of constant values and expressions, each computed once.

    Arrays are cached: graphs must not be edited between two queries of one value.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._arrays: dict[int, tuple[Value, npt.NDArray[Any] | None]] = {}
        self._keys: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._variable: dict[int, Value] = {}

    def array(self, value: Value | None) -> npt.NDArray[Any] | None:
        """Returns the array of `value`; None if it depends on an input of a graph."""
        if value is None or not value.name:
            return None
        held = self._arrays.get(id(value))
        if held is None:
            held = (value, self._evaluate(value))
            self._arrays[id(value)] = held
        return held[1]

    def zero(self, value: Value) -> bool:
        """Whether all elements of `value` are 0, whatever its shape."""
        return self.uniform(value) == 0

    def uniform(self, value: Value) -> float | None:
        """Returns the number that all elements of `value` equal, whatever its shape; None if there is none."""
        while True:
            array = self.array(value)
            if array is not None:
                return _only(array)
            if len(value.inputs) != 1 or value.inputs[0].domain:
                return None
            node = value.inputs[0]
            if node.op == "ConstantOfShape":
                held = node.attrs.get("value")
                return 0.0 if held is None else _only(np.asarray(held.values))
            if node.op not in _KEEP_NUMBERS:
                return None
            value = node.inputs[0]

    def key(self, array: npt.NDArray[Any]) -> tuple[Any, ...]:
        """Returns a key that is equal for arrays with equal contents."""
        held = self._keys.get(id(array))
        if held is None:
            digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
            held = (array, (array.dtype.str, array.shape, digest))  # holds the array: ids are reused
            self._keys[id(array)] = held
        return held[1]

    def _evaluate(self, value: Value) -> npt.NDArray[Any] | None:
        while value.inputs and value.inputs[0].op == "Identity" and not value.inputs[0].domain:
            value = value.inputs[0].inputs[0]
        array = constant_array(value)
        if array is not None or isinstance(value, Constant) or not value.inputs:
            return array
        node = value.inputs[0]
        if not node.inputs or node.domain:
            return None
        nodes = constant_expression(value, self._variable)
        return evaluate_nodes(self.model, nodes, value) if nodes is not None else None


class StoredFloats:
    """Initializers of floats that nodes compute of constants, none of which are quantized values."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._held: dict[int, tuple[Value, Constant | None]] = {}  # holds the values: ids are reused

    def __len__(self) -> int:
        return sum(made is not None for _, made in self._held.values())

    def of(self, value: Value) -> Constant | None:
        """Returns the initializer of `value`, which is added to the model once; None if there is none."""
        if id(value) not in self._held:
            array, model = _computed_floats(value, self._constants), self._constants.model
            made = None if array is None else model.add_initializer(f"{value.name}.constant", np.asarray(array))
            self._held[id(value)] = value, made
        return self._held[id(value)][1]


def _computed_floats(value: Value, constants: Constants) -> npt.NDArray[Any] | None:
    if not value.name or constant_array(value) is not None or (dtype_of(value) or np.dtype("f4")).kind != "f":
        return None
    nodes = constant_expression(value)
    if nodes is None or any(n.op in _CODES for n in nodes):
        return None
    array = constants.array(value)
    return array if array is not None and array.dtype.kind == "f" else None


def _only(array: npt.NDArray[Any]) -> float | None:
    """The number that all elements equal; 0 if there are none."""
    if array.dtype.kind not in "biuf":
        return None
    if not array.size:
        return 0.0
    first = array.reshape(-1)[0]
    return float(first) if np.all(array == first) else None
