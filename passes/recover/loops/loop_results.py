"""Replacements of a loop's results, once its layers have become nodes."""

from __future__ import annotations

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Node, Value, attribute, display_name, output_or_none, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.loops.loop_states import State
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.sequence_elements import flipped
from rnnqc.passes.recover.loops.filled_sequences import Results, check_filled, filled_results, insert_of, moved
from rnnqc.passes.recover.loops.loop_layers import LoopLayers
from rnnqc.passes.recover.loops.sequence_operators import Sequence


class LoopResults:
    """Computes the results of a loop from the layers of its body.

    Args:
        graph: The graph around the loop.
        node: The loop.
        layers: The layers of its body; all are built.
        b: Receives the new nodes.
    """

    def __init__(self, graph: Graph, node: Node, layers: LoopLayers, b: Builder) -> None:
        self.graph, self.node, self.b = graph, node, b
        self.body: Graph = node.attrs["body"]
        self.states, self.finals, self.vectorizer = layers.states, layers.finals, layers.vectorizer
        self.trips = self.vectorizer.trips

    def all(self) -> Results:
        """Returns the replacements of all results in use.

        Raises:
            NotHandled: A result cannot be computed without the loop.
        """
        found: Results = []
        for state in self.states:
            if state.final is not None and state.final.name and self._used(state.final):
                found += self._final(state)
        return found + self._outputs()

    def _used(self, value: Value) -> bool:
        return bool(value.outputs) or any(v is value for v in self.graph.outputs)

    def _final(self, state: State) -> Results:
        """Returns the replacement of the loop's result for a state."""
        assert state.final is not None
        if state.index in self.finals:
            return [(state.final, self._viewed(state))]
        if state.invariant:
            return [(state.final, state.initial)]
        insert = insert_of(state)
        if insert is not None:
            check_filled(state, insert)
            element = insert.inputs[1]
            return filled_results(self.graph, state, element, self.vectorizer.sequence(element), self.b)
        index = self.trips.indices.given.get(id(state.before))
        if index is not None:
            raise NotHandled("the counter of the loop is used after it.", f"{state.final.name!r}")
        sequence = self.vectorizer.sequence(state.after)
        return [(state.final, self.b.op("Gather", [sequence.value, self.b.i64(-1)], f"final.{state.index}", axis=0))]

    def _viewed(self, state: State) -> Value:
        """Returns the final state of a layer, with the views that the body applies to it in each iteration."""
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
                raise NotHandled(
                    "a state changes its shape by what is computed in the loop.", f"node {display_name(node)!r}"
                )
            value = self.b.op(node.op, [value, *operands], f"final.{state.index}", **node.attrs)
        return value

    def _check_mask(self, node: Node) -> None:
        """Raises NotHandled if a mask changes the rank of the state: the views around it need its rank."""
        shapes = [shape_of(v) for v in (node.inputs[1], node.outputs[0])]
        if shapes[0] is not None and shapes[1] is not None and len(shapes[0]) != len(shapes[1]):
            raise NotHandled("a mask changes the rank of a state.", f"node {display_name(node)!r} {shapes}")

    def _outputs(self) -> Results:
        """Returns the replacements of the values emitted in each iteration."""
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
            found.append((target, moved(self.b, Sequence(made, sequence.rank), axis % (sequence.rank + 1), "output")))
        return found
