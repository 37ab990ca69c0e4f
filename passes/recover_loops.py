"""Makes one recurrent node of a loop that computes one step per trip."""

from __future__ import annotations

import numpy as np

from rnnqc.builder import Builder
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.ir import (
    Graph,
    Model,
    Node,
    Value,
    attribute,
    display_name,
    graph_info,
    input_or_none,
    output_or_none,
    shape_of,
)
from rnnqc.numerics import Close
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.constant_expressions import Constants
from rnnqc.passes.loop_states import State, behind_views, bodies, is_loop, states_of
from rnnqc.passes.lstm_node import INITIAL_C, INITIAL_H, RECURRENT_OPS, SEQUENCE_LENS, X
from rnnqc.passes.sequence_elements import element_of, flipped
from rnnqc.passes.sequence_masks import Lengths, mask_lengths
from rnnqc.passes.step_weights import NoNode
from rnnqc.passes.trip_counts import Trips, trips_of
from rnnqc.passes.vectorize import Sequence, Vectorizer
from rnnqc.properties import Property

_VIEWS = ("Squeeze", "Unsqueeze", "Identity", "Reshape", "Expand")


class RecoverLoops(Pass):
    """Replaces Loop and Scan nodes whose recurrence is that of recurrent nodes in their bodies.

    Before: `Loop(T, h, c; x_t = X[t]; LSTM(x_t, h, c) -> h', c'; y_t = h' MatMul V)`

    After: `LSTM(X, h, c) -> Y, Y_h, Y_c; Y MatMul V`

    Everything else in the body is computed for all trips at once. A loop stays, with a note and with the nodes of its
    body, where

    * something else is carried from trip to trip, or the input of a layer depends on its own state;
    * the number of trips depends on data;
    * an operator of the body is not known to work on all trips at once.
    """

    info = PassInfo(
        name="recover-loops",
        summary="make recurrent nodes of loops over steps",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every loop, innermost first."""
        remarks: list[Remark] = []
        count = 0
        model.infer_shapes()
        for graph, _, path in reversed(list(bodies(model))):
            for node in list(graph.nodes):
                if not is_loop(node) or not _layers(node):
                    continue
                name, op = f"{path}{display_name(node)}", node.op
                recovery = _Recovery(model, graph, node)
                try:
                    made = recovery.run()
                except NoNode as refusal:
                    recovery.undo()
                    action = "none; the steps inside the loop are layers of their own"
                    remarks.append(
                        self.remark(Outcome.NOTE, name, op, f"the loop stays: {refusal.reason}", refusal.found, action)
                    )
                    continue
                count += 1
                remarks.append(self.remark(Outcome.NOTE, name, op, f"replaced by {', '.join(made)}."))
                model.remove_dead()
                model.sort()
                model.infer_shapes()
        return PassResult(bool(count), tuple(remarks), {"loops": count})


def _layers(node: Node) -> list[Node]:
    body: Graph = node.attrs["body"]
    return [n for n in body.nodes if n.op in RECURRENT_OPS and not n.domain]


class _Recovery:
    """The work on one loop; the model changes at the very end, when nothing can fail any more."""

    def __init__(self, model: Model, graph: Graph, node: Node) -> None:
        self.model, self.graph, self.node = model, graph, node
        self.body: Graph = node.attrs["body"]
        self.constants = Constants(model)
        self.before = set(graph_info(model.graph).initializers)
        self.b = Builder(model, prefix=display_name(node))
        self.states = states_of(node)
        self.finals: dict[int, Value] = {}  # of states of layers, by index
        self.lengths: dict[int, list[Lengths | None]] = {}  # of each layer's states
        self.scanned: dict[int, tuple[Value, int, bool]] = {}  # of a Scan: sequences, their axes and directions
        self.made: list[str] = []

    def run(self) -> list[str]:
        """Names of the new nodes.

        Raises:
            NoNode: The loop has to stay.
        """
        trips = trips_of(self.node, self.constants)
        self.vectorizer = Vectorizer(self.body, self._scanned(), trips, self.constants, self.b)
        self.vectorizer.recurrent = self._layer
        for layer in _layers(self.node):
            self._layer(layer)
        targets: list[tuple[Value, Value]] = []
        for state in self.states:
            if state.final is not None and state.final.name and self._used(state.final):
                targets += self._final(state, trips)
        targets += self._outputs()
        self.model.insert_nodes(self.graph, self.node, self.b.nodes)
        outputs = list(self.node.outputs)
        self.model.remove_nodes(self.graph, [self.node])
        tail = Builder(self.model, prefix=self.b.prefix)
        for old, new in targets:
            if any(old is v for v in outputs):
                tail.add("Identity", [new], [old], "result")
            else:  # the output of a ConcatFromSequence
                producer = old.inputs[0]
                self.model.remove_nodes(self.graph, [producer])
                tail.add("Identity", [new], [old], "result")
        self.graph.nodes.extend(tail.nodes)
        return self.made

    def undo(self) -> None:
        """Takes back what was prepared."""
        for node in self.b.nodes:
            node.inputs.clear()
            node.outputs.clear()
        held = graph_info(self.model.graph).initializers
        for name in [n for n in held if n not in self.before]:
            del held[name]

    def _used(self, value: Value) -> bool:
        return bool(value.outputs) or any(v is value for v in self.graph.outputs)

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
                raise NoNode("the rank of a sequence is not known.", f"{value.name!r}")
            axis %= len(shape)
            if axis:
                perm = [axis, *(a for a in range(len(shape)) if a != axis)]
                value = self.b.op("Transpose", [value], f"sequence.{k}", perm=perm)
            if direction:
                value = flipped(self.b, value, 0, f"sequence.{k}.backwards")
            found[id(formal)] = Sequence(value, len(shape) - 1)
            self.scanned[id(formal)] = (self.node.inputs[first + k], axis, bool(direction))
        return found

    def _layer(self, layer: Node) -> None:
        """Puts the node for all trips next to the loop, and what it computes into the vectorizer."""
        outputs = [output_or_none(layer, k) for k in range(3)]
        if any(v is not None and id(v) in self.vectorizer.known for v in outputs):
            return
        name = display_name(layer)
        if (
            not self._one_step(layer.inputs[X])
            or attribute(layer, "direction", "forward") != "forward"
            or input_or_none(layer, SEQUENCE_LENS) is not None
        ):
            raise NoNode("a layer in the loop is more than one step.", f"node {name!r} ({layer.op})")
        for index in (INITIAL_H, INITIAL_C)[: 2 if layer.op == "LSTM" else 1]:
            value = input_or_none(layer, index)
            if value is None:
                raise NoNode("a layer in the loop starts anew in each trip.", f"node {name!r} ({layer.op})")
        x = self.vectorizer.sequence(layer.inputs[X])
        if x.rank != 3:
            raise NoNode("the input of a layer has another rank than 3.", f"node {name!r} ({layer.op})")
        sequence = self.b.op("Squeeze", [x.value, self.b.i64([1])], f"{name}/X")
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
                    raise NoNode("the weights of a layer change from trip to trip.", f"{value.name!r} of node {name!r}")
                inputs.append(outside)
        lengths, backwards = self._lengths(layer, sequence)
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
        self.made.append(f"{layer.op} {node.name!r}")
        if lengths is not None:
            self._check_padding(layer)
        self._keep_finals(layer, made)
        if backwards:
            made[0] = flipped(self.b, made[0], 0, f"{name}/Y.of_trips")
        y, h = outputs[0], outputs[1]
        if h is not None:  # [1,B,H] in each trip, and [T,1,B,H] for all of them
            self.vectorizer.known[id(h)] = Sequence(made[0], 3, frozenset({0}))
        if y is not None:
            self.vectorizer.known[id(y)] = Sequence(
                self.b.op("Unsqueeze", [made[0], self.b.i64([1])], f"{name}/Y.trips"), 4, frozenset({0, 1})
            )

    def _lengths(self, layer: Node, sequence: Value) -> tuple[Value | None, bool]:
        """`sequence_lens`, where all states of the layer are masked by the same lengths; whether they run backwards."""
        found = self.lengths.get(id(layer), [])
        first = found[0] if found else None
        if any(v is not None if first is None else not first.same(v) for v in found):
            raise NoNode(
                "one state of a layer has a mask of lengths and another none.", f"node {display_name(layer)!r}"
            )
        if first is None:
            return None, False
        b = self.b
        most = b.op("Slice", [b.op("Shape", [sequence], "X.sizes"), b.i64([0]), b.i64([1])], "X.length")
        least = b.op("Min", [b.cast(first.value, np.int64, "lengths"), most], "lengths.least")
        return b.cast(least, np.int32, "sequence_lens"), first.backwards

    def _check_padding(self, layer: Node) -> None:
        """With lengths, what the layer computes behind the end of a row is not what the node puts out there."""
        stack = [v for v in layer.outputs if v.name]
        while stack:
            value = stack.pop()
            users = list(value.outputs)
            if any(v is value for v in self.body.outputs):
                raise NoNode("what a layer computes behind the end of a row is used.", f"{value.name!r}, an output")
            for user in users:
                if user.op in ("Squeeze", "Unsqueeze", "Identity", "Reshape") and any(
                    n is user for n in self.body.nodes
                ):
                    stack += user.outputs
                    continue
                masked = user.op == "Where" and behind_views(user.inputs[1]) is behind_views(value)
                if masked and any(
                    s.new is not s.after and behind_views(s.after) is user.outputs[0] for s in self.states
                ):
                    continue
                zeros = (
                    masked and self.constants.zero(user.inputs[2]) and any(user.inputs[0] is m for m in self._masks())
                )
                if not zeros:
                    found = f"{value.name!r}, used by node {display_name(user)!r} ({user.op})"
                    raise NoNode("what a layer computes behind the end of a row is used.", found)

    def _masks(self) -> list[Value]:
        """The conditions that mask states."""
        return [behind_views(s.after).inputs[0].inputs[0] for s in self.states if s.new is not s.after]

    def _one_step(self, x: Value) -> bool:
        shape = shape_of(x)
        if shape is not None and isinstance(shape[0], int):
            return shape[0] == 1
        element = element_of(x, self.vectorizer.trips.indices)
        return (element is not None and element.stacked_at(0)) or (bool(x.inputs) and x.inputs[0].op == "Unsqueeze")

    def _initial(self, layer: Node, k: int, sequence: Value) -> Value | None:
        """The initial state of the new node; None for zeros."""
        value, expanded = layer.inputs[k], False
        while len(value.inputs) == 1 and value.inputs[0].op in _VIEWS and not value.inputs[0].domain:
            expanded |= value.inputs[0].op == "Expand"
            value = value.inputs[0].inputs[0]
        state = next((s for s in self.states if s.before is value), None)
        if state is None:
            raise NoNode(
                "a state of a layer in the loop is not carried by the loop.",
                f"{layer.inputs[k].name!r} of node {display_name(layer)!r}",
            )
        mask, source = self._unmasked(state, layer)
        wanted = [output_or_none(layer, 1), output_or_none(layer, 0)] if k == INITIAL_H else [output_or_none(layer, 2)]
        if not any(v is source for v in wanted):
            made = f"{source.inputs[0].op!r}" if source.inputs else "an input"
            raise NoNode(
                "the loop changes a state between two steps.",
                f"state {state.index} comes from {made} ({source.name!r})",
            )
        if mask is not None and not self.constants.zero(state.initial):
            raise NoNode(
                "rows of length 0 would lose their initial state.", f"a mask of lengths and initial state {state.index}"
            )
        self.lengths.setdefault(id(layer), []).append(mask)
        self._check_state(state, layer, k)
        start: Value = state.initial
        if self.constants.zero(start):
            return None
        shape = shape_of(start) or shape_of(state.before)
        if shape is None:
            raise NoNode("the rank of a state is not known.", f"{start.name!r}")
        if len(shape) == 2:
            start = self.b.op("Unsqueeze", [start, self.b.i64([0])], f"{display_name(layer)}/initial.{k}")
        elif len(shape) != 3 or shape[0] != 1:
            start = self.b.op(
                "Reshape",
                [start, self.b.i64([1, -1, attribute(layer, "hidden_size", shape[-1])])],
                f"{display_name(layer)}/initial.{k}",
            )
        rows = next((d for d in shape[:-1] if d != 1), 1)
        batch = shape_of(layer.inputs[X])
        if expanded or rows is None or batch is None or rows != batch[1]:
            size = self.b.op(
                "Slice", [self.b.op("Shape", [sequence], "X.shape"), self.b.i64([1]), self.b.i64([2])], "rows"
            )
            target = self.b.op(
                "Concat",
                [self.b.i64([1]), size, self.b.i64([attribute(layer, "hidden_size", shape[-1])])],
                "state.shape",
                axis=0,
            )
            start = self.b.op("Expand", [start, target], f"{display_name(layer)}/initial.{k}.rows")
        return start

    def _unmasked(self, state: State, layer: Node) -> tuple[Lengths | None, Value]:
        """The lengths of the rows, where they mask the new state (None: they do not), and the new state itself."""
        if state.new is state.after:
            return None, behind_views(state.after)
        mask = behind_views(state.after).inputs[0].inputs[0]
        return mask_lengths(mask, self.scanned, self.vectorizer), behind_views(state.new)

    def _check_state(self, state: State, layer: Node, k: int) -> None:
        """The state goes nowhere but into the layer (and its rows into nothing but shapes)."""
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
            raise NoNode(
                "the state before a step is used besides the layer.",
                f"{state.before.name!r} by node {display_name(user)!r} ({user.op})",
            )
        if any(v is state.before for v in self.body.outputs):
            raise NoNode("the state before a step is an output of the loop.", f"{state.before.name!r}")

    def _keep_finals(self, layer: Node, made: list[Value]) -> None:
        for state in self.states:
            _, source = self._unmasked(state, layer)
            for k, value in enumerate(made):
                if source is output_or_none(layer, k) and source is not None:
                    self.finals[state.index] = made[1] if k == 0 else value

    def _final(self, state: State, trips: Trips) -> list[tuple[Value, Value]]:
        """What takes the place of the loop's result for a state."""
        assert state.final is not None
        if state.index in self.finals:
            shape = shape_of(state.after) or shape_of(state.initial)
            if shape is None:
                raise NoNode("the rank of a state is not known.", f"{state.after.name!r}")
            value: Value = self.finals[state.index]
            if len(shape) == 2:
                value = self.b.op("Squeeze", [value, self.b.i64([0])], f"final.{state.index}")
            elif len(shape) != 3 or shape[0] != 1:
                rows = [1 if d == 1 else -1 for d in shape[:-1]]
                value = self.b.op("Reshape", [value, self.b.i64([*rows, shape[-1]])], f"final.{state.index}")
            return [(state.final, value)]
        if state.invariant:
            return [(state.final, state.initial)]
        insert = state.after.inputs[0] if len(state.after.inputs) == 1 else None
        if insert is not None and insert.op == "SequenceInsert" and insert.inputs[0] is state.before:
            return self._inserted(state, insert)
        index = trips.indices.given.get(id(state.before))
        if index is not None:
            raise NoNode("the counter of the loop is used after it.", f"{state.final.name!r}")
        sequence = self.vectorizer.sequence(state.after)
        return [(state.final, self.b.op("Gather", [sequence.value, self.b.i64(-1)], f"final.{state.index}", axis=0))]

    def _inserted(self, state: State, insert: Node) -> list[tuple[Value, Value]]:
        """A sequence that grows by one element in each trip."""
        assert state.final is not None
        start = state.initial.inputs[0] if len(state.initial.inputs) == 1 else None
        if start is None or start.op != "SequenceEmpty" or input_or_none(insert, 2) is not None:
            raise NoNode("a sequence is not filled from empty, element by element.", f"{state.initial.name!r}")
        if any(u is not insert for u in state.before.outputs):
            raise NoNode("a sequence is read while it is filled.", f"{state.before.name!r}")
        elements = self.vectorizer.sequence(insert.inputs[1])
        found: list[tuple[Value, Value]] = []
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

    def _outputs(self) -> list[tuple[Value, Value]]:
        """What takes the place of the values put out in each trip."""
        count = len(self.states)
        outputs = self.node.outputs[count:]
        formal = self.body.outputs[count + (1 if self.node.op == "Loop" else 0) :]
        axes = attribute(self.node, "scan_output_axes", None) or [0] * len(outputs)
        directions = attribute(self.node, "scan_output_directions", None) or [0] * len(outputs)
        found: list[tuple[Value, Value]] = []
        for target, value, axis, direction in zip(outputs, formal, axes, directions, strict=False):
            if not target.name or not self._used(target):
                continue
            sequence = self.vectorizer.sequence(value)
            made = flipped(self.b, sequence.value, 0, "output.backwards") if direction else sequence.value
            found.append((target, self._moved(Sequence(made, sequence.rank), axis % (sequence.rank + 1), "output")))
        return found
