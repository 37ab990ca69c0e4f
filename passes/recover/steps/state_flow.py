"""Follows states from call to call and from iteration to iteration: finds the next value of a step's operand.

A loop defines the next value of each state. The inputs and outputs of a model do not: there any output may hold the
next value of an operand, at the positions where the input holds the operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Graph, Model, Node, Value, attribute, dtype_of, export_nodes, output_number, shape_of, subgraphs
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop, states_of
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.layout_ops import MOVERS

Numbers = npt.NDArray[np.int64]
Shape = list[int | str | None]
Shapes = Callable[[Value], Shape | None]
PRODUCTS = ("MatMul", "Gemm", "Conv", "Einsum")
_MOVERS: Mapping[str, Sequence[int] | None] = {
    **{op: moved for op, moved in MOVERS.items() if op != "Expand"},
    "Split": (0,),
    "SequenceConstruct": None,
    "ConcatFromSequence": (0,),
}
_ROWS = (3, 1)
"""Sizes tried for unknown dimensions: some models run with a single row only."""
_MOST_IDS = 2**24  # float32 represents them exactly
_MOST_MOVES = 200
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


@dataclass(frozen=True)
class Following:
    """The next value of an operand.

    Attributes:
        source: The input of the model, or the state of a loop, that holds the operand.
        output: The output of the model that holds the next value; None where a loop carries it.
        value: The next value, as a whole.
    """

    source: Value
    output: Value | None
    value: Value


@dataclass(frozen=True, eq=False)
class _Moved:
    """The elements of a value: positions in other values, which are numbered consecutively."""

    leaves: tuple[tuple[Value, tuple[int, ...]], ...]
    ids: Numbers

    def of_one(self) -> tuple[Value, tuple[int, ...], Numbers] | None:
        """Returns the single value that contains all elements, its shape, and their positions in it."""
        low = 0
        for leaf, shape in self.leaves:
            size = int(np.prod(shape))
            if self.ids.size and low <= self.ids.min() and self.ids.max() < low + size:
                return leaf, shape, self.ids - low
            low += size
        return None

    def at(self, places: Numbers) -> _Moved:
        return _Moved(self.leaves, self.ids.reshape(-1)[places])


class StateFlow:
    """Finds the next values of the operands of the steps in one graph.

    Args:
        model: The model; it must not be edited while the object is in use.
        constants: The constants of the model.
        graph: The graph.
        shape: Shapes of its values.
    """

    def __init__(self, model: Model, constants: Constants, graph: Graph, shape: Shapes) -> None:
        self.model, self.constants, self.graph, self._shape = model, constants, graph, shape
        self.inputs = {id(v) for v in model.graph.inputs}
        self.branches: dict[int, Graph] = {}
        self.carried: dict[int, tuple[Value, Value]] = {}
        around = {id(g): (owner, outer) for outer, _, _ in bodies(model) for owner in outer.nodes
                  for _, g in subgraphs(owner)}  # fmt: skip
        current = graph
        while id(current) in around:
            owner, outer = around[id(current)]
            if owner.op == "If":
                self.branches[id(owner)] = current
            elif is_loop(owner):
                self.carried.update((id(s.before), (s.before, s.after)) for s in states_of(owner))
            current = outer
        self._held: dict[tuple[int, int], tuple[Value, _Moved | None]] = {}

    def followings(self, operand: Value) -> list[Following]:
        """Returns the possible next values of an operand: one if a loop carries it; none if it is not a whole state."""
        for rows in _ROWS:
            found = list(self._followings(operand, rows))
            if found:
                return found
        return []

    def source(self, operand: Value) -> Value | None:
        """Returns the input of the model, or the state of a loop, that holds all elements of an operand."""
        for rows in _ROWS:
            moved = self._moved(operand, rows)
            one = moved.of_one() if moved is not None else None
            if one is not None and (id(one[0]) in self.inputs or id(one[0]) in self.carried):
                return one[0]
        return None

    def derives(self, value: Value, goals: Iterable[Value], stops: Iterable[Value], *, products: bool = False) -> bool:
        """Whether `value` depends on one of `goals` in the same call or iteration.

        Args:
            value: The value.
            goals: Other values.
            stops: Values at which the search stops.
            products: Whether the path may contain products.
        """
        wanted, seen = {id(v) for v in goals}, {id(v) for v in stops}
        stack = [value]
        while stack:
            current = stack.pop()
            if id(current) in wanted:
                return True
            if id(current) in seen:
                continue
            seen.add(id(current))
            for node in current.inputs:
                branch = self.branches.get(id(node))
                if branch is not None:
                    stack.append(branch.outputs[output_number(node, current)])
                elif products or not (node.op in PRODUCTS or is_recurrent(node)):
                    stack.extend(node.inputs)
        return False

    def _followings(self, operand: Value, rows: int) -> Iterable[Following]:
        moved = self._moved(operand, rows)
        one = moved.of_one() if moved is not None else None
        if one is None:
            return
        source, size, places = one
        afters: list[tuple[Value | None, Value]] = []
        if id(source) in self.carried:
            afters = [(None, self.carried[id(source)][1])]
        elif id(source) in self.inputs:
            afters = [(v, v) for v in self.model.graph.outputs]
        for output, after in afters:
            whole = self._moved(after, rows)
            if whole is None or (whole.ids.shape != size if output is not None else whole.ids.size != np.prod(size)):
                continue
            leaf = whole.at(places).of_one()
            if leaf is not None and np.array_equal(leaf[2].reshape(-1), np.arange(np.prod(leaf[1]))):
                yield Following(source, output, leaf[0])

    def _moved(self, value: Value, rows: int) -> _Moved | None:
        """The elements of `value`, seen from the graph; for an If around it, from its branch."""
        key = (id(value), rows)
        if key not in self._held:
            self._held[key] = (value, _Moves(self, rows, self._shape).of(value))
        return self._held[key][1]


class _Moves:
    """A small model of the nodes that move elements into one value; it runs on the numbers of the elements."""

    def __init__(self, flow: StateFlow, rows: int, shape: Shapes) -> None:
        self.flow, self.rows, self._shape = flow, rows, shape
        self.graph = onnx.GraphProto(name="moves")
        self.names: dict[int, str] = {}
        self.nodes: set[int] = set()
        self.feeds: dict[str, npt.NDArray[Any]] = {}
        self.leaves: list[tuple[Value, tuple[int, ...]]] = []
        self.count = 0

    def of(self, value: Value) -> _Moved | None:
        """Returns the elements of the value; None if unknown."""
        try:
            name = self._named(value, True, 0)
            if not self.nodes:
                return _Moved(tuple(self.leaves), np.asarray(self.feeds[name], np.int64))
            self.graph.output.add(name=name)
            proto = onnx.ModelProto(ir_version=10, graph=self.graph)
            proto.opset_import.add(domain="", version=self.flow.model.opset)
            return _Moved(tuple(self.leaves), np.asarray(run_model(proto, self.feeds)[name], np.int64))
        except (_Unknown, CompileError):
            return None

    def _named(self, value: Value, moves: bool, depth: int) -> str:
        """The name of a value in the small model; `moves`: whether its elements move, or it steers a movement."""
        if id(value) in self.names:
            return self.names[id(value)]
        self.names[id(value)] = made = self._made(value, moves, depth)
        return made

    def _made(self, value: Value, moves: bool, depth: int) -> str:
        if depth > _MOST_MOVES:
            raise _Unknown
        if not value.name:
            return ""
        node = value.inputs[0] if len(value.inputs) == 1 else None
        if node is not None and id(node) in self.flow.branches:
            return self._named(self.flow.branches[id(node)].outputs[output_number(node, value)], moves, depth + 1)
        if moves and node is not None and _is_float_cast(node):
            return self._named(node.inputs[0], True, depth + 1)
        array = None if moves else self.flow.constants.array(value)
        if array is not None:
            self.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            return str(value.name)
        if moves and (node is None or node.domain or node.op not in _MOVERS):
            return self._leaf(value, True)
        if node is None or node.domain or subgraphs(node):
            raise _Unknown
        if id(node) not in self.nodes:
            (proto,) = export_nodes([node])
            moved = _MOVERS.get(node.op, ()) if moves else ()
            for k, operand in enumerate(node.inputs):
                if node.op == "Shape" and not moves:
                    proto.input[k] = self.names.get(id(operand)) or self._leaf(operand, False)
                else:
                    proto.input[k] = self._named(operand, moved is None or k in moved, depth + 1)
            self.nodes.add(id(node))
            self.graph.node.append(proto)
        return str(value.name)

    def _leaf(self, value: Value, moves: bool) -> str:
        shape = self._shape(value) or shape_of(value)
        if shape is None:
            raise _Unknown
        sizes = tuple(d if isinstance(d, int) else self.rows for d in shape)
        kind, size = dtype_of(value), int(np.prod(sizes))
        if size == 0 or self.count + size > _MOST_IDS or (moves and kind is not None and kind.kind != "f"):
            raise _Unknown
        made = f"{value.name}:{len(self.feeds)}"
        numbers = np.arange(self.count, self.count + size, dtype=np.float32) if moves else np.zeros(size, kind)
        self.feeds[made] = numbers.reshape(sizes)
        self.graph.input.append(onnx.helper.make_tensor_value_info(
            made, onnx.helper.np_dtype_to_tensor_dtype(self.feeds[made].dtype), sizes))  # fmt: skip
        if moves:
            self.leaves.append((value, sizes))
            self.count += size
        return made


def _is_float_cast(node: Node) -> bool:
    """Whether a node converts between float types; the small model has numbers that float16 cannot represent."""
    kind = dtype_of(node.inputs[0]) if node.op == "Cast" and not node.domain else None
    return kind is not None and kind.kind == "f" and attribute(node, "to", 0) in _FLOATS


class _Unknown(Exception):  # noqa: N818 - not an error: the elements of the value are unknown
    """A value depends on more than movements of elements."""
