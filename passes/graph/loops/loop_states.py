"""What Loop and Scan nodes carry from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.ir import (
    CELL_TAG,
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    info,
    input_or_none,
    shape_of,
    subgraphs,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.values.constant_expressions import Constants

VIEWS = ("Squeeze", "Unsqueeze", "Identity", "Reshape")
"""Operators that change the shape and keep the order of the elements."""
ENDLESS = 2**31 - 1
"""A trip count from here on is none: a condition ends the loop, as tf2onnx writes it."""


@dataclass(frozen=True, eq=False)
class State:
    """A value that a loop carries.

    Attributes:
        index: Its position among the states.
        initial: What the first iteration gets.
        before: What the body gets.
        after: What the body hands on.
        final: What the loop returns; its name may be empty.
    """

    index: int
    initial: Value
    before: Value
    after: Value
    final: Value | None

    @property
    def new(self) -> Value:
        """What the body hands on, or what it hands on where a mask does not keep what it gets."""
        value = behind_views(self.after)
        node = value.inputs[0] if len(value.inputs) == 1 and not value.inputs[0].domain else None
        if node is not None and node.op == "Where" and behind_views(node.inputs[2]) is self.before:
            return node.inputs[1]
        return self.after

    @property
    def invariant(self) -> bool:
        """Whether the body hands on what it gets."""
        value = self.after
        while value is not self.before and len(value.inputs) == 1 and value.inputs[0].op == "Identity":
            value = value.inputs[0].inputs[0]
        return value is self.before


def behind_views(value: Value) -> Value:
    """What `value` is made of by changes of shape that keep the order of its elements."""
    while len(value.inputs) == 1 and value.inputs[0].op in VIEWS and not value.inputs[0].domain:
        value = value.inputs[0].inputs[0]
    return value


def is_loop(node: Node) -> bool:
    """Whether `node` is a Loop or Scan that rnnqc has not made."""
    return node.op in ("Loop", "Scan") and not node.domain and CELL_TAG not in info(node).metadata


def is_real(value: Value) -> bool:
    """Whether a value has floats, as far as its type is known."""
    kind = dtype_of(value)
    return kind is None or kind.kind == "f"


def states_of(node: Node) -> list[State]:
    """The states of a Loop or Scan."""
    body: Graph = node.attrs["body"]
    if node.op == "Loop":
        before, after, initial = body.inputs[2:], body.outputs[1:], node.inputs[2:]
    else:
        count = len(node.inputs) - attribute(node, "num_scan_inputs", 1)
        before, after, initial = body.inputs[:count], body.outputs[:count], node.inputs[:count]
    return [
        State(k, start, old, new, node.outputs[k] if k < len(node.outputs) else None)
        for k, (start, old, new) in enumerate(zip(initial, before, after, strict=False))
    ]


def is_used(value: Value | None, kept: Container[int]) -> bool:
    """Whether a result of a loop is read, or among the outputs `kept`, by id."""
    return value is not None and bool(value.name) and (bool(value.outputs) or id(value) in kept)


def live_states(
    states: Sequence[State], kept: Container[int], read: Callable[[list[Value]], Container[int]]
) -> list[State]:
    """The states that results of a loop need, in any number of iterations.

    Args:
        states: Those to choose from.
        kept: Outputs of graphs, by id.
        read: The ids of what the other results and the values given so far depend on.
    """
    live = {s.index for s in states if is_used(s.final, kept)}
    held = read([s.after for s in states if s.index in live])
    while more := [s for s in states if s.index not in live and id(s.before) in held]:
        live |= {s.index for s in more}
        held = read([s.after for s in more])
    return [s for s in states if s.index in live]


def bodies(model: Model) -> Iterator[tuple[Graph, Node | None, str]]:
    """Every graph that rnnqc has not made, with the node it belongs to and the path of nodes that leads to it."""
    queue: list[tuple[Graph, Node | None, str]] = [(model.graph, None, "")]
    while queue:
        graph, owner, path = queue.pop(0)
        yield graph, owner, path
        for node in graph.nodes:
            if CELL_TAG not in info(node).metadata:
                queue.extend((g, node, f"{path}{display_name(node)}/{name}/") for name, g in subgraphs(node))


def shapes_of_states(node: Node) -> dict[int, list[int | str | None]]:
    """Shapes of states by the id of the value in the body, as far as shape inference does not tell them.

    They are those of the first iteration, but for the dimensions that may change.
    """
    shapes: dict[int, list[int | str | None]] = {}
    for state in states_of(node):
        shape = shape_of(state.initial)
        if shape is not None and len(shape) >= 2:
            kept: list[int | str | None] = [1 if d == 1 and k < len(shape) - 2 else None for k, d in enumerate(shape)]
            shapes[id(state.before)] = [*kept[:-1], shape[-1]]
    return shapes


def first_rows(node: Node) -> dict[int, int | str]:
    """By the id of the value in the body: how many rows a state has in the first iteration, a number or its name."""
    rows: dict[int, int | str] = {}
    for state in states_of(node):
        shape = shape_of(state.initial)
        held = [d for d in shape[:-1] if d != 1] if shape is not None and len(shape) >= 2 else [None]
        if len(held) <= 1 and (size := (held or [1])[0]) is not None:
            rows[id(state.before)] = size
    return rows


def sizes_of(node: Node) -> dict[str, Any]:
    """What is known of the sizes of a Loop or Scan, None for what is not.

    Returns:
        `state_sizes`, the last axis of each state of floats that changes; `batch`, the axis before it of the first one;
        `sequence_length`; `input_size`, the last axis of the first sequence of floats that a Scan takes apart.
    """
    shapes = [
        shape_of(s.before) or shape_of(s.initial) for s in states_of(node) if not s.invariant and is_real(s.before)
    ]
    known = [shape for shape in shapes if shape]
    batch = known[0][-2] if known and len(known[0]) > 1 else None
    length = constant_array(node.inputs[0]) if node.op == "Loop" else None
    sizes = {"state_sizes": [s[-1] for s in known], "batch": batch, "sequence_length": None, "input_size": None}
    if length is not None and length.size == 1 and length.item() < ENDLESS:
        sizes["sequence_length"] = int(length.item())
    count = attribute(node, "num_scan_inputs", 0)
    axes = attribute(node, "scan_input_axes", None) or [0] * count
    for value, axis in zip(node.inputs[len(node.inputs) - count :], axes, strict=False):
        shape = shape_of(value)
        if shape is not None and len(shape) > 1 and is_real(value):
            inner = [d for k, d in enumerate(shape) if k != axis % len(shape)]
            return {**sizes, "sequence_length": shape[axis], "input_size": inner[-1]}
    return sizes


def capture_invariants(model: Model, node: Node) -> int:
    """Makes the body use what it gets unchanged from outside as outer values; returns how many uses changed."""
    body: Graph = node.attrs["body"]
    inside = {id(n) for n in body.nodes}
    changed = 0
    for state in states_of(node):
        if not state.invariant or not state.initial.name:
            continue
        for user in list(state.before.outputs):
            if id(user) not in inside or user.op == "Identity":
                continue
            for k, value in enumerate(user.inputs):
                if value is state.before:
                    user.inputs[k] = state.initial
                    changed += 1
    return changed


def owners(graph: Graph) -> dict[int, Node]:
    """The node of `graph` that each node in it, or in a subgraph below, belongs to; by the id of the latter."""
    found: dict[int, Node] = {}
    for node in graph.nodes:
        found[id(node)] = node
        stack = [g for _, g in subgraphs(node)]
        while stack:
            for inner in stack.pop().nodes:
                found[id(inner)] = node
                stack.extend(g for _, g in subgraphs(inner))
    return found


def gather_elements(model: Model, graph: Graph, constants: Constants) -> int:
    """Makes Gather nodes of `SequenceAt(SplitToSequence(x), i)` in `graph`; returns how many.

    Shape inference of the former ignores that `keepdims = 0` drops the axis; with a `split` that is a vector,
    onnxruntime and the specification ignore it, too.
    """
    count = 0
    for node in list(graph.nodes):
        maker = node.inputs[0].inputs[0] if node.op == "SequenceAt" and node.inputs[0].inputs else None
        if node.domain or maker is None or maker.op != "SplitToSequence" or maker.domain:
            continue
        given = input_or_none(maker, 1)
        split = constants.array(given)
        if given is not None and (split is None or split.size == 0 or np.any(split != 1)):
            continue
        axis = attribute(maker, "axis", 0)
        dropped = not attribute(maker, "keepdims", 1) and (given is None or (split is not None and split.ndim == 0))
        b = Builder(model, prefix=node.name)
        target = node.outputs[0]
        node.outputs.clear()
        source, index = maker.inputs[0], node.inputs[1]
        if shape_of(index) != []:  # a vector of one index is one, too
            index = b.op("Reshape", [index, model.constant([], np.int64)], "index.scalar")
        if dropped:
            b.add("Gather", [source, index], [target], "element", axis=axis)
        else:
            whole = b.op("Unsqueeze", [index, b.i64([0])], "index")
            b.add("Gather", [source, whole], [target], "element", axis=axis)
        model.insert_nodes(graph, node, b.nodes)
        model.remove_nodes(graph, [node])
        _forget_shapes(graph, target)
        count += 1
    return count


def _forget_shapes(graph: Graph, value: Value) -> None:
    """Takes away what is declared of shapes of `value` and what is made of it: an inference that was wrong."""
    kept = {id(v) for v in graph.outputs}
    inside = {id(n) for n in graph.nodes}
    seen: set[int] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if id(current) not in kept:
            current.shape = None
        for node in current.outputs:
            if id(node) in inside:
                stack.extend(v for v in node.outputs if v.name)
