"""The states of Loop and Scan nodes: values carried from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
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
    maker_of,
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
        index: Position among the states.
        initial: Its value in the first iteration.
        before: The input of the body.
        after: The output of the body.
        final: The result of the loop; its name may be empty.
    """

    index: int
    initial: Value
    before: Value
    after: Value
    final: Value | None

    @property
    def new(self) -> Value:
        """The output of the body; behind a mask that may keep the state before, the value that it selects otherwise."""
        value = behind_views(self.after)
        node = maker_of(value)
        if node is not None and node.op == "Where" and behind_views(node.inputs[2]) is self.before:
            return node.inputs[1]
        return self.after

    @property
    def invariant(self) -> bool:
        """Whether the body returns its input unchanged."""
        return behind_views(self.after, ("Identity",)) is self.before


def behind_views(value: Value, views: Collection[str] = VIEWS) -> Value:
    """Returns the value behind operators of one input, by default the ones that keep the order of its elements."""
    while (node := maker_of(value)) is not None and node.op in views:
        value = node.inputs[0]
    return value


def is_loop(node: Node) -> bool:
    """Whether `node` is a Loop or Scan that rnnqc has not created."""
    return node.op in ("Loop", "Scan") and not node.domain and CELL_TAG not in info(node).metadata


def is_real(value: Value) -> bool:
    """Whether a value holds floats, as far as its type is known."""
    kind = dtype_of(value)
    return kind is None or kind.kind == "f"


def states_of(node: Node) -> list[State]:
    """Returns the states of a Loop or Scan."""
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
    """Whether a result of a loop is read, or is one of the outputs `kept`, by id."""
    return value is not None and bool(value.name) and (bool(value.outputs) or id(value) in kept)


def live_states(
    states: Sequence[State], kept: Container[int], read: Callable[[list[Value]], Container[int]]
) -> list[State]:
    """Returns the states that results of a loop need, for any number of iterations.

    Args:
        states: The states to select from.
        kept: Outputs of graphs, by id.
        read: Returns the ids that the other results and the values passed so far depend on.
    """
    live = {s.index for s in states if is_used(s.final, kept)}
    held = read([s.after for s in states if s.index in live])
    while more := [s for s in states if s.index not in live and id(s.before) in held]:
        live |= {s.index for s in more}
        held = read([s.after for s in more])
    return [s for s in states if s.index in live]


def bodies(model: Model) -> Iterator[tuple[Graph, Node | None, str]]:
    """Yields every graph that rnnqc has not created, with its owner node and the path of nodes to it."""
    queue: list[tuple[Graph, Node | None, str]] = [(model.graph, None, "")]
    while queue:
        graph, owner, path = queue.pop(0)
        yield graph, owner, path
        for node in graph.nodes:
            if CELL_TAG not in info(node).metadata:
                queue.extend((g, node, f"{path}{display_name(node)}/{name}/") for name, g in subgraphs(node))


def shapes_of_states(node: Node) -> dict[int, list[int | str | None]]:
    """Returns shapes of states by the id of the value in the body, where shape inference does not provide them.

    They are the shapes of the first iteration, except for dimensions that may change.
    """
    shapes: dict[int, list[int | str | None]] = {}
    for state in states_of(node):
        shape = shape_of(state.initial)
        if shape is not None and len(shape) >= 2:
            kept: list[int | str | None] = [1 if d == 1 and k < len(shape) - 2 else None for k, d in enumerate(shape)]
            shapes[id(state.before)] = [*kept[:-1], shape[-1]]
    return shapes


def first_rows(node: Node) -> dict[int, int | str]:
    """Returns the row count of each state in the first iteration, a number or a name, by the id of the body's value."""
    rows: dict[int, int | str] = {}
    for state in states_of(node):
        shape = shape_of(state.initial)
        held = [d for d in shape[:-1] if d != 1] if shape is not None and len(shape) >= 2 else [None]
        if len(held) <= 1 and (size := (held or [1])[0]) is not None:
            rows[id(state.before)] = size
    return rows


def sizes_of(node: Node) -> dict[str, Any]:
    """Returns the known sizes of a Loop or Scan, with None for unknown ones.

    Returns:
        `state_sizes`, the last axis of each changing float state; `batch`, the axis before it of the first one;
        `sequence_length`; `input_size`, the last axis of the first float sequence of a Scan.
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
    """Replaces loop-invariant states in the body by the outer values; returns how many uses changed."""
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
    """Maps each node in `graph` or a subgraph below it, by id, to the node of `graph` that contains it."""
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
    """Replaces `SequenceAt(SplitToSequence(x), i)` in `graph` by Gather nodes; returns how many.

    Shape inference of SequenceAt ignores that `keepdims = 0` drops the axis; with a vector as `split`, onnxruntime and
    the specification ignore it, too.
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
        if shape_of(index) != []:  # also accepts a vector with one index
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
    """Clears the declared shapes of `value` and of all values that depend on it: a wrong inference."""
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
