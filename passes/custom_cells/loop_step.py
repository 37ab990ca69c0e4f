"""Finds the inputs, the states and the nodes of a Scan that replaces a Loop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Model, Node, Value, display_name, dtype_of, subgraphs
from rnnqc.passes.graph.loops.loop_states import is_used, live_states, states_of
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.sequence_elements import Element, element_of
from rnnqc.passes.recover.loops.filled_sequences import check_filled, insert_of
from rnnqc.passes.recover.loops.loop_bounds import TRIP
from rnnqc.passes.recover.loops.loop_to_sequence import Vectorizer
from rnnqc.passes.recover.loops.sequence_operators import Sequence


class LoopStep:
    """The part of a Loop's iteration that its results need.

    Args:
        model: The model.
        node: The Loop.
        vectorizer: The vectorizer of its body.

    Raises:
        NotHandled: No Scan does the same, or no custom cell node can replace it.

    Attributes:
        states: The states that are read, or used after the loop, without filled sequences.
        filled: Sequences that are filled and used, with the node that inserts.
        emitted: Pairs of a result of the loop that is used, and the value of each iteration.
        elements: The elements that the body reads from sequences, in the order of the body.
        masks: Conditions that depend on the iteration number alone, with the sequence of their values.
        counters: The inputs of these conditions: the iteration number, and states that count.
        nodes: The nodes that compute something, in order.
    """

    def __init__(self, model: Model, node: Node, vectorizer: Vectorizer) -> None:
        self.node, self.vectorizer = node, vectorizer
        self.body: Graph = node.attrs["body"]
        kept = {id(v) for g in model.graphs() for v in g.outputs}
        every = states_of(node)
        held = [(s, insert_of(s)) for s in every]
        self.filled = [(s, n) for s, n in held if n is not None and is_used(s.final, kept)]
        for state, insert in self.filled:
            check_filled(state, insert)
        plain = [s for s, n in held if n is None]
        results = list(zip(node.outputs[len(every) :], self.body.outputs[1 + len(every) :], strict=False))
        self.emitted = [(final, value) for final, value in results if is_used(final, kept)]
        self._read: dict[int, Value] = {}
        self._makers: set[int] = set()
        self._elements: dict[int, tuple[Value, Element]] = {}
        self.masks: list[tuple[Value, Sequence]] = []
        self.counters: dict[int, Value] = {}
        self._inside = {id(n) for n in self.body.nodes}
        self._visit([v for _, v in self.emitted] + [n.inputs[1] for _, n in self.filled])
        self.states = live_states(plain, kept, self._visit)
        self.nodes = [n for n in self.body.nodes if id(n) in self._makers]
        self._check_inputs({id(s.before) for s in self.states})
        order = {id(v): k for k, v in enumerate(v for n in self.body.nodes for v in n.outputs)}
        self.elements = sorted(self._elements.values(), key=lambda held: order[id(held[0])])

    def _visit(self, roots: list[Value]) -> Mapping[int, Value]:
        """Visits the values that `roots` depend on; returns all visited values by id."""
        stack = list(roots)
        while stack:
            value = stack.pop()
            if id(value) in self._read or not value.name:
                continue
            self._read[id(value)] = value
            for node in value.inputs:
                if id(node) not in self._inside:
                    continue
                element = element_of(value, self.vectorizer.trips.indices)
                if element is not None and self._moves(element):
                    self._elements[id(value)] = value, element
                    continue
                if self._is_mask(value):
                    continue
                if node.domain or subgraphs(node) or is_recurrent(node):
                    reason = "its step has an operator that no node of a custom cell has."
                    raise NotHandled(reason, f"node {display_name(node)!r} ({node.op})")
                self._makers.add(id(node))
                stack += node.inputs
        return self._read

    def _moves(self, element: Element) -> bool:
        """Whether an element moves with the iteration, through a sequence that does not change."""
        return (
            any(key == TRIP for key, _ in element.index.terms) and self.vectorizer.outer(element.sequence) is not None
        )

    def _is_mask(self, value: Value) -> bool:
        """Whether `value` is a condition on counters, such as `t < lengths`; records it."""
        makers: set[int] = set()
        counters: dict[int, Value] = {}
        stack = [value] if dtype_of(value) == np.bool_ else []
        while stack:
            current = stack.pop()
            node = next((n for n in current.inputs if id(n) in self._inside), None)
            if id(current) in self.vectorizer.trips.indices.given:
                counters[id(current)] = current
            elif node is not None and not node.domain and not subgraphs(node):
                makers.add(id(node))
                stack += [v for v in node.inputs if v.name]
            kind = dtype_of(current)
            if kind is None or kind.kind not in "iub" or any(v is current for v in self.body.inputs[1:2]):
                return False
        if not counters:
            return False
        try:
            self.masks.append((value, self.vectorizer.sequence(value)))
        except NotHandled:
            return False
        self.counters |= counters
        self._makers |= makers
        return True

    def _check_inputs(self, states: set[int]) -> None:
        counter, condition, *_ = self.body.inputs
        if id(counter) in self._read:
            raise NotHandled("its step reads the number of the iteration.", f"{counter.name!r}")
        if id(condition) in self._read:
            raise NotHandled("its step reads its condition.", f"{condition.name!r}")
        for value in self.body.inputs[2:]:
            if id(value) in self._read and id(value) not in states:
                raise NotHandled("a sequence is read while it is filled.", f"{value.name!r}")
