"""The recurrent nodes of a loop's body, over all iterations at once."""

from __future__ import annotations

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.ir import (
    Graph,
    Node,
    Value,
    attribute,
    display_name,
    dtype_of,
    input_or_none,
    maker_of,
    output_or_none,
    shape_of,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.loops.loop_states import VIEWS, State, behind_views, states_of
from rnnqc.passes.graph.nodes.lstm_node import INITIAL_C, INITIAL_H, SEQUENCE_LENS, W, X, is_recurrent
from rnnqc.passes.graph.values.index_expressions import Index
from rnnqc.passes.graph.values.sequence_elements import element_of, flipped, is_unsqueezed_in_front
from rnnqc.passes.recover.loops.loop_bounds import Trips
from rnnqc.passes.recover.loops.loop_to_sequence import Vectorizer
from rnnqc.passes.recover.loops.sequence_masks import Lengths, read_mask, skipped
from rnnqc.passes.recover.loops.sequence_operators import Sequence
from rnnqc.passes.recover.loops.skipped_steps import MovedSteps, Skipped

_VIEWS = (*VIEWS, "Expand")


def layers_of(node: Node) -> list[Node]:
    """Returns the recurrent nodes in the body of a loop."""
    body: Graph = node.attrs["body"]
    return [n for n in body.nodes if is_recurrent(n)]


class LoopLayers:
    """Builds layers over whole sequences for the graph around a loop.

    Args:
        graph: The graph around the loop.
        node: The loop.
        trips: The iterations of the loop.
        b: Receives the new nodes.

    Attributes:
        vectorizer: Provides the body's values for all iterations; it requests layers where it meets them.
        finals: The final states of the layers, by the index of the state.
        made: The new nodes.
    """

    def __init__(self, graph: Graph, node: Node, trips: Trips, b: Builder) -> None:
        self.graph, self.node, self.b = graph, node, b
        self.body: Graph = node.attrs["body"]
        self.constants = trips.indices.constants
        self.states = states_of(node)
        self.scanned: dict[int, tuple[Value, int, bool]] = {}  # of a Scan: sequences, their axes and directions
        self.masks: dict[int, list[Lengths | Skipped | None]] = {}  # for each state of each layer
        self.own: dict[int, list[State]] = {}  # the states of each layer
        self.finals: dict[int, Value] = {}
        self.made: list[Node] = []
        self._added: set[int] = set()
        self.vectorizer = Vectorizer(self.body, self._scanned(), trips, self.constants, b)
        self.vectorizer.recurrent = self.add

    def _scanned(self) -> dict[int, Sequence]:
        if self.node.op != "Scan":
            return {}
        count = attribute(self.node, "num_scan_inputs", 1)
        first = len(self.node.inputs) - count
        axes = attribute(self.node, "scan_input_axes", None) or [0] * count
        directions = attribute(self.node, "scan_input_directions", None) or [0] * count
        found: dict[int, Sequence] = {}
        for k, (axis, direction) in enumerate(zip(axes, directions, strict=True)):
            value: Value = self.node.inputs[first + k]
            formal = self.body.inputs[first + k]
            shape = shape_of(value) or ([None, *inner] if (inner := shape_of(formal)) is not None else None)
            if shape is None:
                raise NotHandled("the rank of a sequence is not known.", f"{value.name!r}")
            axis %= len(shape)
            if axis:
                perm = [axis, *(a for a in range(len(shape)) if a != axis)]
                value = self.b.op("Transpose", [value], f"sequence.{k}", perm=perm)
            if direction:
                value = flipped(self.b, value, 0, f"sequence.{k}.backwards")
            found[id(formal)] = Sequence(value, len(shape) - 1)
            self.scanned[id(formal)] = (self.node.inputs[first + k], axis, bool(direction))
        return found

    def add(self, layer: Node) -> None:
        """Adds the node for all iterations next to the loop, and its outputs to the vectorizer."""
        if id(layer) in self._added:
            return
        self._added.add(id(layer))
        outputs = [output_or_none(layer, k) for k in range(3)]
        name = display_name(layer)
        self._check_step(layer)
        x = self.vectorizer.sequence(layer.inputs[X])
        if x.rank != 3:
            raise NotHandled("the input of a layer has another rank than 3.", f"node {name!r} ({layer.op})")
        sequence = self.b.op("Squeeze", [x.value, self.b.i64([1])], f"{name}/X")
        inputs = self._inputs(layer, sequence)
        mask = self._mask(layer)
        choices = [] if mask is None else self._masked(layer)
        if isinstance(mask, Lengths) and any(s is not None and not self._owns(layer, s) for _, s in choices):
            mask = skipped(behind_views(self.own[id(layer)][0].after).inputs[0].inputs[0], self.vectorizer)
        backwards = isinstance(mask, Lengths) and mask.backwards
        moved = MovedSteps(mask.value, sequence, self.b) if isinstance(mask, Skipped) else None
        if moved is not None:
            inputs[X] = moved.front(sequence, f"{name}/X")
        lengths = moved.lengths if moved is not None else None
        if isinstance(mask, Lengths):
            lengths = self._lengths(mask, sequence)
        attrs = dict(layer.attrs)
        if lengths is not None:
            inputs += [None] * (SEQUENCE_LENS + 1 - len(inputs))
            inputs[SEQUENCE_LENS] = lengths
        if backwards:
            inputs[X] = flipped(self.b, sequence, 0, f"{name}/X.in_order")
            attrs["direction"] = "reverse"
        while inputs[-1] is None:
            inputs.pop()
        made: list[Value] = [
            self.b.value(f"{name}/{k}", layer.outputs[1].dtype if len(layer.outputs) > 1 else None)
            for k in ("Y", "Y_h", "Y_c")[: 3 if layer.op == "LSTM" else 2]
        ]
        taken = {n.name for n in self.graph.nodes}
        node = self.b.add(layer.op, inputs, made, name, **attrs)
        node.name = node.name if name in taken else name
        self.made.append(node)
        self._keep_finals(layer, made)
        if moved is not None:
            self._hold(layer, made[0], moved, choices)
            return
        if backwards:
            made[0] = flipped(self.b, made[0], 0, f"{name}/Y.of_trips")
        y, h = outputs[0], outputs[1]
        if h is not None:  # [1,B,H] in each iteration, and [T,1,B,H] for all of them
            self.vectorizer.known[id(h)] = Sequence(made[0], 3, frozenset({0}))
        if y is not None:
            self.vectorizer.known[id(y)] = Sequence(
                self.b.op("Unsqueeze", [made[0], self.b.i64([1])], f"{name}/Y.trips"), 4, frozenset({0, 1})
            )

    def _check_step(self, layer: Node) -> None:
        """Raises NotHandled unless a layer runs one step per iteration, from the state of the previous iteration."""
        at = f"node {display_name(layer)!r} ({layer.op})"
        if (
            not self._one_step(layer.inputs[X])
            or attribute(layer, "direction", "forward") != "forward"
            or input_or_none(layer, SEQUENCE_LENS) is not None
        ):
            raise NotHandled("a layer in the loop is more than one step.", at)
        states = (INITIAL_H, INITIAL_C)[: 2 if layer.op == "LSTM" else 1]
        if any(input_or_none(layer, k) is None for k in states):
            raise NotHandled("a layer in the loop starts anew in each iteration.", at)

    def _inputs(self, layer: Node, sequence: Value) -> list[Value | None]:
        """Returns the inputs of the node for all iterations, with `sequence` as X.

        Raises:
            NotHandled: Weights change between iterations.
        """
        inputs: list[Value | None] = [sequence]
        for k in range(1, len(layer.inputs)):
            value = input_or_none(layer, k)
            if value is None:
                inputs.append(None)
            elif k in (INITIAL_H, INITIAL_C):
                inputs.append(self._initial(layer, k, sequence))
            else:
                outside = self.vectorizer.outer(value)
                if outside is None:
                    at = f"{value.name!r} of node {display_name(layer)!r}"
                    raise NotHandled("the weights of a layer change from iteration to iteration.", at)
                inputs.append(outside)
        return inputs

    def _mask(self, layer: Node) -> Lengths | Skipped | None:
        """Returns the mask of all states of a layer."""
        found = self.masks.get(id(layer), [])
        first = found[0] if found else None
        if any(v is not None if first is None else not first.same(v) for v in found):
            raise NotHandled("one state of a layer has a mask and another none.", f"node {display_name(layer)!r}")
        return first

    def _lengths(self, mask: Lengths, sequence: Value) -> Value:
        """Returns `sequence_lens`, limited to the length of the sequence."""
        b = self.b
        most = b.op("Slice", [b.op("Shape", [sequence], "X.sizes"), b.i64([0]), b.i64([1])], "X.length")
        least = b.op("Min", [b.cast(mask.value, np.int64, "lengths"), most], "lengths.least")
        return b.cast(least, np.int32, "sequence_lens")

    def _masked(self, layer: Node) -> list[tuple[Node, State | None]]:
        """Returns the choices by a layer's mask between its outputs and zeros (None) or a state before the step.

        Raises:
            NotHandled: Another node reads an output, and so the layer's result where the mask is false.
        """
        conditions = [behind_views(s.after).inputs[0].inputs[0] for s in self.own[id(layer)]]
        found: list[tuple[Node, State | None]] = []
        stack = [v for v in layer.outputs if v.name]
        while stack:
            value = stack.pop()
            if any(v is value for v in self.body.outputs):
                raise NotHandled("what a layer computes where its mask is false is used.", f"{value.name!r}, an output")
            for user in value.outputs:
                if user.op in ("Squeeze", "Unsqueeze", "Identity", "Reshape") and any(
                    n is user for n in self.body.nodes
                ):
                    stack += user.outputs
                    continue
                masked = (
                    user.op == "Where"
                    and behind_views(user.inputs[1]) is behind_views(value)
                    and any(user.inputs[0] is c for c in conditions)
                )
                kept = next((s for s in self.states if behind_views(s.after) is user.outputs[0]), None)
                if kept is not None and kept.new is kept.after:
                    kept = None
                if not masked or not (kept or self.constants.zero(user.inputs[2])):
                    found_ = f"{value.name!r}, used by node {display_name(user)!r} ({user.op})"
                    raise NotHandled("what a layer computes where its mask is false is used.", found_)
                found.append((user, kept))
        return found

    def _owns(self, layer: Node, state: State) -> bool:
        return any(s is state for s in self.own[id(layer)])

    def _hold(self, layer: Node, y: Value, moved: MovedSteps, choices: list[tuple[Node, State | None]]) -> None:
        """Adds the masked outputs, computed from `y` `[T,1,B,H]`, to the vectorizer."""
        name = display_name(layer)
        values = self.b.op("Squeeze", [y, self.b.i64([1])], f"{name}/Y.steps")
        zero = self.b.model.constant(0.0, dtype_of(layer.inputs[W]) or np.float32)
        for node, state in choices:
            if layer.op == "LSTM" and behind_views(node.inputs[1]) is output_or_none(layer, 2):
                continue
            shape, initial = shape_of(node.outputs[0]), zero
            if state is not None and not self.constants.zero(state.initial):
                initial = state.initial
            if shape is None or len(shape) not in (2, 3) or (initial is not zero and shape_of(initial) is None):
                raise NotHandled("the rank of a state is not known.", f"{node.outputs[0].name!r}")
            if len(shape) == 3 or (initial is not zero and len(shape_of(initial) or []) != 2):
                raise NotHandled("a mask holds a state of rank 3.", f"{node.outputs[0].name!r} {shape}")
            made = (moved.counting if state is None else moved.held)(values, initial, f"{name}/{node.outputs[0].name}")
            self.vectorizer.known[id(node.outputs[0])] = Sequence(made, 2)

    def _one_step(self, x: Value) -> bool:
        shape = shape_of(x)
        if shape is not None and isinstance(shape[0], int):
            return shape[0] == 1
        element = element_of(x, self.vectorizer.trips.indices)
        return (element is not None and element.stacked_at(0)) or is_unsqueezed_in_front(x)

    def _initial(self, layer: Node, k: int, sequence: Value) -> Value | None:
        """Returns the initial state of the new node; None for zeros."""
        state, is_expanded = self._carried(layer, k)
        mask, source = self._unmasked(state)
        wanted = [output_or_none(layer, 1), output_or_none(layer, 0)] if k == INITIAL_H else [output_or_none(layer, 2)]
        if not any(v is source for v in wanted):
            made = f"{source.inputs[0].op!r}" if source.inputs else "an input"
            raise NotHandled(
                "the loop changes a state between two steps.",
                f"state {state.index} comes from {made} ({source.name!r})",
            )
        if mask is not None and not self.constants.zero(state.initial):
            raise NotHandled(
                "rows of length 0 would lose their initial state.", f"a mask and initial state {state.index}"
            )
        self.masks.setdefault(id(layer), []).append(mask)
        self.own.setdefault(id(layer), []).append(state)
        self._check_state(state, layer, k)
        return self._start(layer, k, state, sequence, is_expanded=is_expanded)

    def _carried(self, layer: Node, k: int) -> tuple[State, bool]:
        """Returns the state of the loop that input `k` of a layer is a view of, and whether an Expand is among them."""
        value, is_expanded = layer.inputs[k], False
        while (node := maker_of(value)) is not None and node.op in _VIEWS:
            is_expanded |= node.op == "Expand"
            value = node.inputs[0]
        state = next((s for s in self.states if s.before is value), None)
        if state is None:
            raise NotHandled(
                "a state of a layer in the loop is not carried by the loop.",
                f"{layer.inputs[k].name!r} of node {display_name(layer)!r}",
            )
        return state, is_expanded

    def _start(self, layer: Node, k: int, state: State, sequence: Value, *, is_expanded: bool) -> Value | None:
        """Returns the loop's initial state as `[1,B,H]`, with the rows of `sequence`; None for zeros."""
        start: Value = state.initial
        shape, x = shape_of(start) or shape_of(state.before), layer.inputs[X]
        batch = shape_of(x)
        if shape is not None and batch is not None and batch[1] == 1 and any(d not in (1, None) for d in shape[:-1]):
            raise NotHandled("one input row is used with several rows of a state.", f"{start.name!r} {shape}")
        if self.constants.zero(start):
            own, rows_of_x = self.vectorizer.trips.indices.rows(start), self._rows(x)
            if self.constants.array(start) is not None or (own is not None and own in (rows_of_x, Index(1))):
                return None
        if shape is None:
            raise NotHandled("the rank of a state is not known.", f"{start.name!r}")
        b, name = self.b, f"{display_name(layer)}/initial.{k}"
        hidden = attribute(layer, "hidden_size", shape[-1])
        if len(shape) == 2:
            start = b.op("Unsqueeze", [start, b.i64([0])], name)
        elif len(shape) != 3 or shape[0] != 1:
            start = b.op("Reshape", [start, b.i64([1, -1, hidden])], name)
        rows = next((d for d in shape[:-1] if d != 1), 1)
        if is_expanded or rows is None or batch is None or rows != batch[1]:
            size = b.op("Slice", [b.op("Shape", [sequence], "X.shape"), b.i64([1]), b.i64([2])], "rows")
            target = b.op("Concat", [b.i64([1]), size, b.i64([hidden])], "state.shape", axis=0)
            start = b.op("Expand", [start, target], f"{name}.rows")
        return start

    def _rows(self, x: Value) -> Index | None:
        """Returns the number of rows of a layer's input."""
        indices = self.vectorizer.trips.indices
        shape = shape_of(x)
        if shape is not None and len(shape) == 3 and shape[1] is not None:
            return indices.dimension(x, 1)
        value = behind_views(x)
        node = value.inputs[0] if len(value.inputs) == 1 else None
        if node is not None and is_recurrent(node):
            return self._rows(node.inputs[X])
        if node is not None and node.op == "Concat":
            return self._rows(node.inputs[0])
        element = element_of(value, indices)
        source, axis = self.scanned[id(value)][:2] if id(value) in self.scanned else (None, 0)
        if element is not None:
            source, axis = element.sequence, element.axis
        whole = shape_of(source)
        if source is None or whole is None or len(whole) < 3:
            return None
        return indices.dimension(source, [k for k in range(len(whole)) if k != axis][-2])

    def _unmasked(self, state: State) -> tuple[Lengths | Skipped | None, Value]:
        """Returns the mask of the new state (None: there is none), and the new state itself."""
        if state.new is state.after:
            return None, behind_views(state.after)
        mask = behind_views(state.after).inputs[0].inputs[0]
        return read_mask(mask, self.scanned, self.vectorizer), behind_views(state.new)

    def _check_state(self, state: State, layer: Node, k: int) -> None:
        """Raises NotHandled unless only the layer reads the state (or a Shape reads its rows)."""
        stack = list(state.before.outputs)
        while stack:
            user = stack.pop()
            if user is layer or user.op == "Shape":
                continue
            if user.op == "Where" and any(behind_views(s.after) is user.outputs[0] for s in self.states):
                continue
            if user.op in _VIEWS and not user.domain and any(n is user for n in self.body.nodes):
                stack.extend(user.outputs[0].outputs)
                continue
            raise NotHandled(
                "the state before a step is used besides the layer.",
                f"{state.before.name!r} by node {display_name(user)!r} ({user.op})",
            )
        if any(v is state.before for v in self.body.outputs):
            raise NotHandled("the state before a step is an output of the loop.", f"{state.before.name!r}")

    def _keep_finals(self, layer: Node, made: list[Value]) -> None:
        unmasked = self.masks[id(layer)][0] is None
        for state in self.states:
            if state.new is not state.after and (unmasked or not self._owns(layer, state)):
                continue
            source = behind_views(state.new)
            for k, value in enumerate(made):
                if source is output_or_none(layer, k) and source is not None:
                    self.finals[state.index] = made[1] if k == 0 else value
