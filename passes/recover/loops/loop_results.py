"""What takes the place of a loop's results, where its layers have become nodes."""

from __future__ import annotations

from rnnqc.ir import Graph, Node, Value, attribute, display_name, input_or_none, output_or_none, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.loops.loop_states import State
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.sequence_elements import flipped
from rnnqc.passes.recover.loops.loop_layers import LoopLayers
from rnnqc.passes.recover.loops.sequence_operators import Sequence
from rnnqc.passes.recover.steps.step_weights import NoNode

Results = list[tuple[Value, Value]]
"""A value of the graph around the loop, and what takes its place."""


class LoopResults:
    """The results of a loop from the layers of its body.

    Args:
        graph: The graph around the loop.
        node: The loop.
        layers: Of its body; all are made.
        b: Takes the new nodes.
    """

    def __init__(self, graph: Graph, node: Node, layers: LoopLayers, b: Builder) -> None:
        self.graph, self.node, self.b = graph, node, b
        self.body: Graph = node.attrs["body"]
        self.states, self.finals, self.vectorizer = layers.states, layers.finals, layers.vectorizer
        self.trips = self.vectorizer.trips

    def all(self) -> Results:
        """Every result that is used.

        Raises:
            NoNode: One cannot be computed without the loop.
        """
        found: Results = []
        for state in self.states:
            if state.final is not None and state.final.name and self._used(state.final):
                found += self._final(state)
        return found + self._outputs()

    def _used(self, value: Value) -> bool:
        return bool(value.outputs) or any(v is value for v in self.graph.outputs)

    def _final(self, state: State) -> Results:
        """What takes the place of the loop's result for a state."""
        assert state.final is not None
        if state.index in self.finals:
            return [(state.final, self._viewed(state))]
        if state.invariant:
            return [(state.final, state.initial)]
        insert = state.after.inputs[0] if len(state.after.inputs) == 1 else None
        if insert is not None and insert.op == "SequenceInsert" and insert.inputs[0] is state.before:
            return self._inserted(state, insert)
        index = self.trips.indices.given.get(id(state.before))
        if index is not None:
            raise NoNode("the counter of the loop is used after it.", f"{state.final.name!r}")
        sequence = self.vectorizer.sequence(state.after)
        return [(state.final, self.b.op("Gather", [sequence.value, self.b.i64(-1)], f"final.{state.index}", axis=0))]

    def _viewed(self, state: State) -> Value:
        """The final state of a layer, with the views that the body takes of it in each iteration."""
        views: list[Node] = []
        current = state.after
        while len(current.inputs) == 1 and not is_recurrent(current.inputs[0]):
            node = current.inputs[0]
            if node.op == "Where":  # the mask of the state
                self._check_mask(node)
                current = node.inputs[1]
                continue
            views.append(node)
            current = node.inputs[0]
        value: Value = self.finals[state.index]
        if current is output_or_none(current.inputs[0], 0):
            value = self.b.op("Unsqueeze", [value, self.b.i64([1])], f"final.{state.index}.Y")
        for node in reversed(views):
            operands = [self.vectorizer.outer(v) for v in node.inputs[1:]]
            if any(v is None for v in operands):
                raise NoNode(
                    "a state changes its shape by what is computed in the loop.", f"node {display_name(node)!r}"
                )
            value = self.b.op(node.op, [value, *operands], f"final.{state.index}", **node.attrs)
        return value

    def _check_mask(self, node: Node) -> None:
        """A mask has no more axes than the state, so that views before and after it can be taken without it."""
        shapes = [shape_of(v) for v in (node.inputs[1], node.outputs[0])]
        if shapes[0] is not None and shapes[1] is not None and len(shapes[0]) != len(shapes[1]):
            raise NoNode("a mask changes the rank of a state.", f"node {display_name(node)!r} {shapes}")

    def _inserted(self, state: State, insert: Node) -> Results:
        """A sequence that grows by one element in each iteration."""
        assert state.final is not None
        start = state.initial.inputs[0] if len(state.initial.inputs) == 1 else None
        if start is None or start.op != "SequenceEmpty" or input_or_none(insert, 2) is not None:
            raise NoNode("a sequence is not filled from empty, element by element.", f"{state.initial.name!r}")
        if any(u is not insert for u in state.before.outputs):
            raise NoNode("a sequence is read while it is filled.", f"{state.before.name!r}")
        elements = self.vectorizer.sequence(insert.inputs[1])
        found: Results = []
        for user in state.final.outputs:
            if user.op != "ConcatFromSequence" or not any(n is user for n in self.graph.nodes):
                break
            found.append((user.outputs[0], self._concatenated(user, elements, insert.inputs[1])))
        if len(found) == len(state.final.outputs) and not any(v is state.final for v in self.graph.outputs):
            return found
        return [
            (state.final, self.b.op("SplitToSequence", [elements.value], f"final.{state.index}", axis=0, keepdims=0))
        ]

    def _concatenated(self, user: Node, elements: Sequence, element: Value) -> Value:
        axis = attribute(user, "axis", 0)
        if attribute(user, "new_axis", 0):
            return self._moved(elements, axis % (elements.rank + 1), display_name(user))
        axis %= elements.rank
        name = display_name(user)
        shape = shape_of(element)
        if axis in elements.ones or (shape is not None and shape[axis] == 1):
            one = self.b.op("Squeeze", [elements.value, self.b.i64([axis + 1])], f"{name}.elements")
            return self._moved(Sequence(one, elements.rank - 1), axis, name)
        value = self._moved(elements, axis, f"{name}.elements")
        whole = self.b.op("Shape", [value], f"{name}.sizes")
        parts = [
            self.b.op("Slice", [whole, self.b.i64([low]), self.b.i64([high])], f"{name}.sizes.{low}")
            for low, high in ((0, axis), (axis + 2, elements.rank + 1))
            if low < high
        ]
        parts.insert(1 if axis else 0, self.b.i64([-1]))
        target = self.b.op("Concat", parts, f"{name}.joined", axis=0) if len(parts) > 1 else parts[0]
        return self.b.op("Reshape", [value, target], name)

    def _moved(self, sequence: Sequence, axis: int, name: str) -> Value:
        if axis == 0:
            return sequence.value
        perm = list(range(1, sequence.rank + 1))
        perm.insert(axis, 0)
        return self.b.op("Transpose", [sequence.value], name, perm=perm)

    def _outputs(self) -> Results:
        """What takes the place of the values emitted in each iteration."""
        count = len(self.states)
        outputs = self.node.outputs[count:]
        formal = self.body.outputs[count + (1 if self.node.op == "Loop" else 0) :]
        axes = attribute(self.node, "scan_output_axes", None) or [0] * len(outputs)
        directions = attribute(self.node, "scan_output_directions", None) or [0] * len(outputs)
        found: Results = []
        for target, value, axis, direction in zip(outputs, formal, axes, directions, strict=False):
            if not target.name or not self._used(target):
                continue
            sequence = self.vectorizer.sequence(value)
            made = flipped(self.b, sequence.value, 0, "output.backwards") if direction else sequence.value
            found.append((target, self._moved(Sequence(made, sequence.rank), axis % (sequence.rank + 1), "output")))
        return found
