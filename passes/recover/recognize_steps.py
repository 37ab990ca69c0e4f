"""Finds single steps of recurrent layers that are written out, and makes nodes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Constant, Graph, Model, Node, Value, Variable, display_name, info
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.constant_expressions import Constants
from rnnqc.passes.graph.index_expressions import Index, unknown
from rnnqc.passes.graph.loop_states import (
    bodies,
    capture_invariants,
    gather_elements,
    is_loop,
    shapes_of_states,
    states_of,
)
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.first_steps import with_first_steps
from rnnqc.passes.recover.float_steps import STEP_NOTE, FloatStep
from rnnqc.passes.recover.recovery_sites import RecoverySites
from rnnqc.passes.recover.row_algebra import Atom, Floats
from rnnqc.passes.recover.row_reader import RowReader
from rnnqc.passes.recover.state_flow import StateFlow
from rnnqc.passes.recover.step_matcher import FoundStep, StepFinder
from rnnqc.passes.recover.step_roles import steps_of
from rnnqc.passes.recover.step_weights import NoNode, StepNode, step_node

_PRODUCTS = ("MatMul", "Gemm")
_STAYS = (
    "export the layer as an ONNX LSTM, GRU or RNN node (torch.nn.LSTM over one element), or let the step stay float"
)
_NAME_STATES = (
    "name its inputs and outputs of states alike (h and h_next as c and c_next), or make a layer of the step by "
    "`rnnqc layer --state`"
)


_Found = tuple[Graph, str, RowReader, list[FoundStep]]
"""A graph, its path, what read it, and the steps in it."""


class RecognizeSteps(RecoverySites, Pass):
    """Replaces unrolled steps of LSTM, GRU and RNN layers by nodes over one element.

    Before: `Split(x MatMul W + h MatMul R + b, 4) -> Sigmoid, Sigmoid, Sigmoid, Tanh -> c' = f * c + i * g, h' = o *
    tanh(c')`

    After: `LSTM(x [1,B,I], initial_h = h, initial_c = c) -> Y_h, Y_c`

    How products, biases and gates are cut up and ordered does not matter. A step of an RNN is one activation of one
    sum; it is looked for in loops, and where it is written out several times in a row. What is left alone, with a note:

    * It is not known which of its operands is the hidden state: nothing shows where the new one comes back.
    * A value inside the step is used elsewhere.
    * x, h and c are inputs of the model that are not declared to have the same number of rows.
    * Its hidden state is made of that of the step before by other products: it is part of another recurrence.
    * It begins with zeros, and others with its weights are no such steps: it is the first of another recurrence.

    Other weights than constants, and other equations, are no step.
    """

    info = PassInfo(
        name="recognize-steps",
        summary="recognize single unrolled steps of LSTM, GRU and RNN",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        self.sites = []
        captured = 0
        graphs = [(g, n, p) for g, n, p in bodies(model) if any(node.op in _PRODUCTS for node in g.nodes)]
        if graphs:
            model.infer_shapes()
        for graph, owner, _ in graphs:
            if owner is not None and is_loop(owner):
                captured += capture_invariants(model, owner) + gather_elements(model, graph, Constants(model))
        if captured:
            model.infer_shapes()
        constants = Constants(model)
        found: list[_Found] = []
        carried: dict[int, Value] = {}
        for graph, owner, path in graphs:
            loop = owner is not None and is_loop(owner)
            reader = RowReader(constants, shapes_of_states(owner) if owner is not None and loop else None)
            finder = StepFinder(reader)
            finder.walk(graph)
            pairs = [(s.before, s.new) for s in states_of(owner)] if owner is not None and loop else []
            carried.update((id(before), new) for before, new in pairs)
            flow = partial(StateFlow, model, constants, graph, reader.shape)
            found.append((graph, path, reader, with_first_steps(finder, steps_of(finder, pairs, flow))))
        remarks = self._replaced(model, constants, found, carried)
        made = len(self.sites)
        if made:
            model.remove_dead()
            model.sort()
            model.infer_shapes()
        return PassResult(bool(made or captured), tuple(remarks), {"steps": made})

    def _replaced(
        self, model: Model, constants: Constants, found: Sequence[_Found], carried: Mapping[int, Value]
    ) -> list[Remark]:
        """Replaces the steps that a node computes; `carried`: new states of loops, by the id of the state before."""
        remarks: list[Remark] = []
        weights = _Weights(model, constants)
        own, states = _steps_made(found, constants)
        for graph, path, reader, steps in found:
            for step in steps:
                anchor = step.h_next.inputs[0]
                where = f"{path}{display_name(anchor)}"
                try:
                    self.check_kept(where)
                    node = step_node(step, constants)
                    inside = _check_uses(graph, reader, step, node)
                    if node.h is None and step.like is None:
                        _check_weights(graph, inside, own)
                    _check_hidden(graph, node, own, states, carried)
                    node = _with_zeros(reader, step, node)
                    expand = _rows_differ(model, reader, step, node)
                except NoNode as refusal:
                    reason = f"a step is not taken over: {refusal.reason}"
                    action = _NAME_STATES if step.doubt else _STAYS
                    remarks.append(self.remark(Outcome.NOTE, where, step.op, reason, refusal.found, action))
                    left = FloatStep(step.op, (reason, refusal.found, action), _products_of(step, reader))
                    info(anchor).notes[STEP_NOTE] = left
                    continue
                name = _emit(model, graph, reader, node, weights, expand)
                self.sites.append(where)
                text = f"made of the step around node {display_name(anchor)!r}."
                remarks.append(self.remark(Outcome.NOTE, f"{path}{name}", step.op, text))
        return remarks


def _steps_made(found: Sequence[_Found], constants: Constants) -> tuple[set[int], dict[int, bytes]]:
    """Of all steps that can be nodes, by id: their products, and R for each new hidden state."""
    products: set[int] = set()
    states: dict[int, bytes] = {}
    for graph, _, reader, steps in found:
        for step in steps:
            with contextlib.suppress(NoNode):
                node = step_node(step, constants)
                inside = _check_uses(graph, reader, step, node)
                products |= {n for n, node in inside.items() if node.op in _PRODUCTS}
                states[id(node.h_next)] = node.R.tobytes()
    return products, states


def _check_hidden(
    graph: Graph, step: StepNode, own: set[int], states: Mapping[int, bytes], carried: Mapping[int, Value]
) -> None:
    """Refuses a step whose hidden state is made of that of the step before by products outside steps.

    Such a state (of a highway layer, say) need not lie within the bounds of what steps make. Masks of lengths are
    no products, and what a first step begins with is not made of another step.
    """
    local = {id(n) for n in graph.nodes}
    stack, seen = [step.h] if step.h is not None else [], set[int]()
    foreign: Node | None = None
    continued = False
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if id(value) in states:
            continued |= states[id(value)] == step.R.tobytes()
            continue
        if id(value) in carried:
            stack.append(carried[id(value)])
            continue
        for producer in value.inputs:
            if id(producer) not in local or id(producer) in own:
                continue
            if producer.op in _PRODUCTS:
                foreign = producer
            else:
                stack.extend(producer.inputs)
    if foreign is not None and continued:
        found = f"node {display_name(foreign)!r} ({foreign.op}) between two of its steps"
        raise NoNode("its hidden state passes products of another recurrence.", found)


def _check_weights(graph: Graph, inside: Mapping[int, Node], own: set[int]) -> None:
    """Refuses a step of whose weights `graph` makes products outside steps."""
    local = {id(n) for n in graph.nodes}
    for node in inside.values():
        for value in node.inputs[1:2] if node.op in _PRODUCTS else ():
            for user in value.outputs:
                if user.op in _PRODUCTS and id(user) in local and id(user) not in own:
                    found = f"{value.name!r}, used by node {display_name(user)!r} ({user.op})"
                    raise NoNode("its weights belong to another recurrence, too.", found)


def _check_uses(graph: Graph, reader: RowReader, step: FoundStep, node: StepNode) -> dict[int, Node]:
    """The nodes inside a step; refuses one that has a value that is used elsewhere."""
    stops = {id(v) for v in (*node.x, node.h, node.c) if v is not None}
    ends = {id(v) for v in (node.h_next, node.c_next) if v is not None}
    inside: dict[int, Node] = {}
    stack = [v for v in (node.h_next, node.c_next) if v is not None]
    while stack:
        value = stack.pop()
        for producer in value.inputs:
            if id(producer) in inside or (id(value) in stops and id(value) not in ends):
                continue
            if reader.constants.array(value) is not None:
                continue
            inside[id(producer)] = producer
            stack.extend(v for v in producer.inputs if id(v) not in stops)
    outputs = {id(v) for v in graph.outputs}
    states = {a for a in (step.hidden, step.cell) if a is not None}
    for producer in inside.values():
        for value in producer.outputs:
            users = [u for u in value.outputs if id(u) not in inside and not _is_unused(u, graph, outputs)]
            if id(value) in ends or not (users or id(value) in outputs):
                continue
            rows = reader.known(value)
            if rows is None:
                continue
            forms = rows.segments
            plain = all(f.linear and not (f.dense and states & set(f.terms)) for f in forms)
            if not plain:
                user = f"node {display_name(users[0])!r} ({users[0].op})" if users else "an output of the graph"
                raise NoNode("a value inside the step is used elsewhere.", f"{value.name!r}, used by {user}")
    return inside


def _products_of(step: FoundStep, reader: RowReader) -> tuple[Node, ...]:
    """The products with constants inside a step, as far as its operands."""
    atoms = [a for _, a, _, _ in step.operands()] + [a for a in (step.hidden, step.cell) if a is not None]
    starts = [v for v in (step.h_next, step.c_next) if v is not None]
    seen = {id(a.value) for a in atoms if a.value is not None} - {id(v) for v in starts}
    found: dict[int, Node] = {}
    while starts:
        value = starts.pop()
        if id(value) in seen or reader.constants.array(value) is not None:
            continue
        seen.add(id(value))
        for node in value.inputs:
            if node.op in _PRODUCTS:
                found[id(node)] = node
            starts += node.inputs
    return tuple(found.values())


def _is_unused(node: Node, graph: Graph, outputs: set[int]) -> bool:
    """As a part of a product is that belongs to a gate whose sum comes of another product."""
    return not any(v.outputs or id(v) in outputs for v in node.outputs) and any(n is node for n in graph.nodes)


def _batch(reader: RowReader, value: Value) -> int | str | None:
    shape = reader.shape(value)
    if shape is None:
        return None
    return next((d for d in shape[:-1] if d != 1), 1)


def _first(node: StepNode) -> Value:
    """The value that says how many rows the step has."""
    value = node.x[0] if node.x else node.h
    assert value is not None
    return value


def _with_zeros(reader: RowReader, step: FoundStep, node: StepNode) -> StepNode:
    """The node with those zeros as states that may have other rows than the input: the result has theirs."""
    indices = reader.indices
    size = _batch(reader, _first(node))
    rows = Index(size) if isinstance(size, int) else unknown(size) if size is not None else None

    def kept(value: Value | None, atom: Atom | None) -> Value | None:
        zeros = atom.value if atom is not None else None
        if value is not None or zeros is None or reader.constants.array(zeros) is not None:
            return value
        held = indices.rows(zeros)
        return None if held is not None and held in (rows, Index(1)) else zeros

    return replace(node, h=kept(node.h, step.hidden), c=kept(node.c, step.cell))


def _rows_differ(model: Model, reader: RowReader, step: FoundStep, node: StepNode) -> bool:
    """Whether the states may have another number of rows than the input; refuses what would be guessed."""
    values = [v for v in (*node.x, node.h, node.c) if v is not None]
    sizes = [_batch(reader, v) for v in values]
    for atom in (step.hidden, step.cell):  # zeros, too, say how many rows there are
        rows = _batch(reader, atom.value) if atom is not None and atom.value is not None else None
        if sizes[0] == 1 and rows not in (1, None):
            raise NoNode("one input row is used with several rows of a state.", f"{values[0].name!r} and {rows} rows")
    if None not in sizes and len(set(sizes)) == 1:
        return False
    inputs = {id(v) for v in model.graph.inputs}
    for value, size in zip(values, sizes, strict=True):
        if id(value) in inputs and (size is None or size != sizes[0] or sizes[0] is None):
            raise NoNode(
                "its input and states are not declared to have the same number of rows.",
                ", ".join(f"{v.name!r} {reader.shape(v)}" for v in values),
            )
    if len({_batch(reader, v) for v in node.x}) > 1:
        raise NoNode("the parts of its input have different numbers of rows.", ", ".join(repr(v.name) for v in node.x))
    return True


class _Weights:
    """Initializers of packed weights; equal ones are one."""

    def __init__(self, model: Model, constants: Constants) -> None:
        self.model, self.constants = model, constants
        self._held: dict[object, Constant] = {}

    def stored(self, name: str, array: Floats) -> Value:
        whole = np.ascontiguousarray(array[np.newaxis])
        key = self.constants.key(whole)
        if key not in self._held:
            self._held[key] = self.model.add_initializer(name, whole)
        return self._held[key]


def _nothing(b: Builder, reader: RowReader, node: StepNode) -> Value:
    """The input `[1,B,1]` of a step that has none: zeros, in as many rows as its state has."""
    state, rows = _first(node), _batch(reader, _first(node))
    if isinstance(rows, int):
        return b.model.constant(np.zeros((1, rows, 1)), np.float32)
    sizes = b.op("Shape", [b.op("Reshape", [state, b.i64([1, -1, node.attributes["hidden_size"]])], "rows")], "sizes")
    shape = b.op(
        "Concat", [b.op("Slice", [sizes, b.i64([0]), b.i64([2])], "sizes.rows"), b.i64([1])], "X.shape", axis=0
    )
    return b.op("Expand", [b.model.constant(0, np.float32), shape], "X")


def _emit(model: Model, graph: Graph, reader: RowReader, node: StepNode, weights: _Weights, expand: bool) -> str:
    anchor = node.h_next.inputs[0]
    name = model.fresh_name(f"{display_name(anchor)}.{node.op.lower()}")
    b = Builder(model, prefix=name)
    hidden = node.attributes["hidden_size"]

    def lifted(value: Value, key: str) -> Value:
        shape = reader.shape(value)
        assert shape is not None
        if len(shape) == 2:
            return b.op("Unsqueeze", [value, b.i64([0])], key)
        if len(shape) == 3 and shape[0] == 1:
            return value
        return b.op("Reshape", [value, b.i64([1, -1, shape[-1]])], key)

    parts = [lifted(v, "X" if len(node.x) == 1 else f"X.{k}") for k, v in enumerate(node.x)] or [
        _nothing(b, reader, node)
    ]
    x = parts[0] if len(parts) == 1 else b.op("Concat", parts, "X", axis=2)

    def state(value: Value | None, key: str) -> Value | None:
        if value is None:
            return None
        made = lifted(value, key)
        if not expand:
            return made
        rows = b.op("Slice", [b.op("Shape", [x], f"{key}.X_shape"), b.i64([1]), b.i64([2])], f"{key}.rows")
        size = b.op("Concat", [b.i64([1]), rows, b.i64([hidden])], f"{key}.shape", axis=0)
        return b.op("Expand", [made, size], f"{key}.rows_of_X")

    def stored(key: str, array: Floats | None) -> Value | None:
        return None if array is None else weights.stored(f"{name}/{key}", array)

    inputs = [x, stored("W", node.W), stored("R", node.R), stored("B", node.B), None, state(node.h, "initial_h")]
    if node.op == "LSTM":
        inputs += [state(node.c, "initial_c"), stored("P", node.P)]
    while inputs[-1] is None:
        inputs.pop()
    views: list[tuple[Value, Value, list[int | str | None]]] = []
    targets = [v for v in (node.h_next, node.c_next) if v is not None]
    outputs: list[Value] = []
    for target, key in zip(targets, ("Y_h", "Y_c"), strict=False):
        shape = reader.shape(target)
        assert shape is not None
        old = target.inputs[0]
        old.outputs[next(k for k, v in enumerate(old.outputs) if v is target)] = b.value(f"{key}.replaced")
        outputs.append(target if len(shape) == 3 and shape[0] == 1 else b.value(key, np.float32))
        if outputs[-1] is not target:
            views.append((outputs[-1], target, shape))
    b.add(node.op, inputs, [Variable.empty(), *outputs], name, **node.attributes).name = name
    for value, target, shape in views:
        if len(shape) == 2:
            b.add("Squeeze", [value, b.i64([0])], [target], f"{value.name.rpartition('/')[2]}.rows")
        else:
            rows = [1 if d == 1 else -1 for d in shape[:-1]]
            b.add("Reshape", [value, b.i64([*rows, hidden])], [target], f"{value.name.rpartition('/')[2]}.rows")
    model.insert_nodes(graph, anchor, b.nodes)
    return name
