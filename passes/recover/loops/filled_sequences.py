"""Sequences that a loop fills element by element, and their readers behind the loop."""

from __future__ import annotations

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Node, Value, attribute, display_name, input_or_none, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.loops.loop_states import State
from rnnqc.passes.recover.loops.sequence_operators import Sequence

Results = list[tuple[Value, Value]]
"""A value of the graph around a loop, and what takes its place."""


def insert_of(state: State) -> Node | None:
    """Returns the SequenceInsert by which a state grows; None if the state is not a growing sequence."""
    node = state.after.inputs[0] if len(state.after.inputs) == 1 else None
    return node if node is not None and node.op == "SequenceInsert" and node.inputs[0] is state.before else None


def check_filled(state: State, insert: Node) -> None:
    """Raises NotHandled unless a sequence starts empty, grows element by element, and is not read in the loop."""
    start = state.initial.inputs[0] if len(state.initial.inputs) == 1 else None
    if start is None or start.op != "SequenceEmpty" or input_or_none(insert, 2) is not None:
        raise NotHandled("a sequence is not filled from empty, element by element.", f"{state.initial.name!r}")
    if any(u is not insert for u in state.before.outputs):
        raise NotHandled("a sequence is read while it is filled.", f"{state.before.name!r}")


def filled_results(graph: Graph, state: State, element: Value, elements: Sequence, b: Builder) -> Results:
    """Returns the replacements of a filled sequence, or of the ConcatFromSequence nodes that read it.

    Args:
        graph: The graph around the loop.
        state: The sequence; `check_filled` holds.
        element: The element that the body inserts.
        elements: The element for all iterations.
        b: Receives the new nodes.
    """
    assert state.final is not None
    found: Results = []
    for user in state.final.outputs:
        if user.op != "ConcatFromSequence" or not any(n is user for n in graph.nodes):
            break
        found.append((user.outputs[0], _concatenated(user, elements, element, b)))
    if len(found) == len(state.final.outputs) and not any(v is state.final for v in graph.outputs):
        return found
    return [(state.final, b.op("SplitToSequence", [elements.value], f"final.{state.index}", axis=0, keepdims=0))]


def moved(b: Builder, sequence: Sequence, axis: int, name: str) -> Value:
    """Moves the time axis of a sequence to `axis`."""
    if axis == 0:
        return sequence.value
    perm = list(range(1, sequence.rank + 1))
    perm.insert(axis, 0)
    return b.op("Transpose", [sequence.value], name, perm=perm)


def _concatenated(user: Node, elements: Sequence, element: Value, b: Builder) -> Value:
    axis = attribute(user, "axis", 0)
    if attribute(user, "new_axis", 0):
        return moved(b, elements, axis % (elements.rank + 1), display_name(user))
    axis %= elements.rank
    name = display_name(user)
    shape = shape_of(element)
    if axis in elements.ones or (shape is not None and shape[axis] == 1):
        one = b.op("Squeeze", [elements.value, b.i64([axis + 1])], f"{name}.elements")
        return moved(b, Sequence(one, elements.rank - 1), axis, name)
    value = moved(b, elements, axis, f"{name}.elements")
    whole = b.op("Shape", [value], f"{name}.sizes")
    parts = [
        b.op("Slice", [whole, b.i64([low]), b.i64([high])], f"{name}.sizes.{low}")
        for low, high in ((0, axis), (axis + 2, elements.rank + 1))
        if low < high
    ]
    parts.insert(1 if axis else 0, b.i64([-1]))
    target = b.op("Concat", parts, f"{name}.joined", axis=0) if len(parts) > 1 else parts[0]
    return b.op("Reshape", [value, target], name)
