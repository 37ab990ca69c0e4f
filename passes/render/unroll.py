"""Unrolls loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.errors import CompileError, Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Float16Close
from rnnqc.ir import (
    CELL_TAG,
    Constant,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    attribute,
    constant_array,
    display_name,
    graph_info,
    graphs_below,
    info,
    input_or_none,
    shape_of,
    subgraphs,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.point_marks import copied_marks
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import behind_views
from rnnqc.passes.graph.point_names import step_path
from rnnqc.passes.invariants import Property

LARGEST_LENGTH = 20000
LARGEST_MODEL = 250_000
"""Largest number of nodes after unrolling: nested loops multiply."""


class Unroll(Pass):
    """Replaces each Scan, and each Loop with a constant number of iterations, by copies of its body.

    Before: `Scan(states, sequences; body)`

    After: for each t: body nodes on element t of the sequences, each copy reading the states of the previous one, then
    one Concat per scan output. The copies share initializers.

    * The sequence length has to be known: from the shapes, or set with `--dim`.
    * A Loop needs a constant trip count and a condition that stays true.
    * Unrolling is refused for more than 20000 copies of one body, and more than 250,000 nodes in all.
    * Loops that compute in float16 change by roundings to it: onnxruntime rounds the states of a loop, but omits
      roundings between operators of one graph.
    """

    info = PassInfo(
        name="unroll",
        summary="unroll loops",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
        sets=frozenset({Property.UNROLLED}),
    )

    def run(self, model: Model) -> PassResult:
        """Unrolls every Scan and Loop of every graph, outermost first."""
        remarks: list[Remark] = []
        count = made = 0
        rounds = False
        model.infer_shapes()
        while True:
            site = next(
                ((g, n) for g in model.graphs() for n in g.nodes if n.op in ("Scan", "Loop") and not n.domain), None
            )
            if site is None:
                break
            graph, node = site
            cell = model.cells.get(info(node).metadata.get(CELL_TAG, ""))
            name = cell.name if cell is not None else display_name(node)
            plan = (
                _loop_plan(node)
                if node.op == "Loop"
                else _scan_plan(node, cell.static_length if cell is not None else None)
            )
            nodes = [n for g in graphs_below(node.attrs["body"]) for n in g.nodes]
            made += plan.length * len(nodes)
            rounds |= any(v.dtype == np.float16 for n in nodes for v in n.outputs)
            if made > LARGEST_MODEL:
                raise CompileError(
                    f"Node {display_name(node)!r} ({node.op}): {plan.length} copies of its body make a model of more "
                    f"than {LARGEST_MODEL} nodes.",
                    supported=f"up to {LARGEST_MODEL} nodes",
                    action="lower without --unroll, or for a shorter sequence",
                )
            _unroll(model, graph, node, plan, name)
            remarks.append(self.remark(Outcome.NOTE, name, node.op, f"unrolled {plan.length} times."))
            count += 1
        return PassResult(count > 0, tuple(remarks), {"loops": count}, Float16Close() if rounds else None)


@dataclass(frozen=True)
class _Plan:
    """The inputs and outputs of a loop for unrolling.

    Attributes:
        length: Number of copies.
        fixed: For each leading body input that is not a state: its value in every copy, or None for the iteration
            number.
        states: Initial values of the states.
        sequences: Scanned inputs with axis and direction.
        skipped: Number of body outputs before the states (a Loop's condition).
        outputs: Axis and direction of each scan output.
    """

    length: int
    fixed: tuple[Value | None, ...]
    states: tuple[Value, ...]
    sequences: tuple[tuple[Value, int, int], ...]
    skipped: int
    outputs: tuple[tuple[int, int], ...]


def _scan_plan(node: Node, length: int | None) -> _Plan:
    scanned = attribute(node, "num_scan_inputs", 1)
    states = len(node.inputs) - scanned
    outputs = len(node.outputs) - states
    in_axes = attribute(node, "scan_input_axes", None) or [0] * scanned
    out_axes = attribute(node, "scan_output_axes", None) or [0] * outputs
    in_directions = attribute(node, "scan_input_directions", None) or [0] * scanned
    out_directions = attribute(node, "scan_output_directions", None) or [0] * outputs
    values = list(node.inputs[states:])
    for value, axis in zip(values, in_axes, strict=True):
        shape = shape_of(value)
        size = shape[axis] if shape is not None else None
        if length is None and isinstance(size, int):
            length = size
    if length is None:
        value = values[-1]
        raise CompileError(
            f"Node {display_name(node)!r} (a Scan of {info(node).metadata.get(CELL_TAG, 'the model')!r}) "
            "cannot be unrolled: the length of "
            f"its sequence is not known (shape {shape_of(value)}).",
            supported="a static sequence length",
            action="bind the dimension, for example --dim T=100",
        )
    _check_length(node, length)
    return _Plan(
        length,
        (),
        tuple(node.inputs[:states]),
        tuple(zip(values, in_axes, in_directions, strict=True)),
        0,
        tuple(zip(out_axes, out_directions, strict=True)),
    )


def _loop_plan(node: Node) -> _Plan:
    body: Graph = node.attrs["body"]
    trips = constant_array(input_or_none(node, 0))
    start = constant_array(input_or_none(node, 1))
    condition = behind_views(body.outputs[0], ("Identity",))
    held = constant_array(condition)
    stays_true = condition is body.inputs[1] or (held is not None and bool(np.all(held)))
    if (
        trips is None
        or (start is not None and not np.all(start))
        or (input_or_none(node, 1) is not None and start is None)
        or not stays_true
    ):
        raise CompileError(
            f"Node {display_name(node)!r} (Loop) cannot be unrolled: its number of iterations depends on data.",
            supported="a constant trip count and a condition that stays true",
            action="lower without --unroll",
        )
    length = int(np.asarray(trips).reshape(-1)[0])
    _check_length(node, length)
    states = tuple(node.inputs[2:])
    true = start if start is not None else np.asarray(True)
    outputs = len(node.outputs) - len(states)
    constant = node.inputs[1] if input_or_none(node, 1) is not None else Constant("", np.asarray(true))
    return _Plan(length, (None, constant), states, (), 1, ((0, 0),) * outputs)


def _check_length(node: Node, length: int) -> None:
    if length > LARGEST_LENGTH:
        raise CompileError(
            f"Node {display_name(node)!r} ({node.op}): a body would be copied {length} times.",
            supported=f"up to {LARGEST_LENGTH}",
            action="lower without --unroll",
        )
    if length < 1:
        raise CompileError(
            f"Node {display_name(node)!r} ({node.op}): the sequence is empty.", supported="at least one element"
        )


def _unroll(model: Model, graph: Graph, node: Node, plan: _Plan, name: str) -> None:
    body: Graph = node.attrs["body"]
    _hoist_initializers(model, body)
    cell = info(node).metadata.get(CELL_TAG, "")
    states = len(plan.states)
    lead = len(plan.fixed)
    head = Builder(model, cell, name)
    fixed = [model.constant(v.values, v.dtype) if isinstance(v, Constant) and not v.name else v for v in plan.fixed]
    elements = [_split(head, k, value, axis, plan.length) for k, (value, axis, _) in enumerate(plan.sequences)]
    new_nodes: list[Node] = head.nodes
    current: list[Value] = list(plan.states)
    collected: list[list[Value]] = [[] for _ in plan.outputs]
    for step in range(plan.length):
        copier = _Copier(model, cell, step_path(name, step), step)
        for formal, actual in zip(body.inputs[:lead], fixed, strict=True):
            copier.values[id(formal)] = actual if actual is not None else model.constant(step, np.int64)
        for formal, actual in zip(body.inputs[lead : lead + states], current, strict=True):
            copier.values[id(formal)] = actual
        for k, formal in enumerate(body.inputs[lead + states :]):
            copier.values[id(formal)] = elements[k][plan.length - 1 - step if plan.sequences[k][2] else step]
        new_nodes += copier.copy(body)
        results = [copier.value(v) for v in body.outputs]
        current = results[plan.skipped : plan.skipped + states]
        for k, value in enumerate(results[plan.skipped + states :]):
            collected[k].append(value)
    tail = Builder(model, cell, name)
    for k in range(states):
        if node.outputs[k].name:
            _hand_over(tail, current[k], node, k)
    for k, (axis, backwards) in enumerate(plan.outputs):
        target = node.outputs[states + k]
        if not target.name:
            continue
        values = collected[k][::-1] if backwards else collected[k]
        lifted = [tail.op("Unsqueeze", [v, tail.i64([axis])], f"output_{k}.{t}") for t, v in enumerate(values)]
        node.outputs[states + k] = Variable.empty()
        tail.add("Concat", lifted, [target], f"output_{k}", axis=axis)
    model.insert_nodes(graph, node, [*new_nodes, *tail.nodes])
    model.remove_nodes(graph, [node])


def _hoist_initializers(model: Model, body: Graph) -> None:
    """Moves the initializers of a body, and of graphs inside it, to the main graph, where copies share them."""
    for graph in graphs_below(body):
        held = graph_info(graph).initializers
        for constant in held.values():
            constant.name = model.fresh_name(constant.name)
            graph_info(model.graph).initializers[constant.name] = constant
        held.clear()


def _hand_over(tail: Builder, value: Value, node: Node, k: int) -> None:
    target = node.outputs[k]
    node.outputs[k] = Variable.empty()
    tail.add("Identity", [value], [target], f"state_{k}")


def _split(builder: Builder, k: int, value: Value, axis: int, length: int) -> list[Value]:
    """Returns the elements of a sequence: outputs of one Split, each squeezed."""
    pieces = builder.ops(
        "Split", [value, builder.i64([1] * length)], [f"input_{k}.{t}" for t in range(length)], axis=axis
    )
    axes = builder.i64([axis])
    return [builder.op("Squeeze", [p, axes], f"input_{k}.{t}.element") for t, p in enumerate(pieces)]


class _Copier:
    """Copies the nodes of a body under new names; they read the same values of outer graphs."""

    def __init__(self, model: Model, cell: str, prefix: str, step: int) -> None:
        self.model, self.cell, self.prefix, self.step = model, cell, prefix, step
        self.values: dict[int, Value] = {}

    def value(self, value: Value) -> Value:
        return self.values.get(id(value), value)

    def copy(self, graph: Graph) -> list[Node]:
        made: list[Node] = []
        for node in graph.nodes:
            attrs: dict[str, Any] = dict(node.attrs)
            inputs = [self.value(v) if v.name else Variable.empty() for v in node.inputs]
            for key, inner in subgraphs(node):
                attrs[key] = self._copy_graph(inner)
            outputs = [self._fresh(v) for v in node.outputs]
            short = node.name.rsplit("/", 1)[-1] or node.op
            copy = Node(node.op, self.model.fresh_name(f"{self.prefix}/{short}"), attrs, inputs, outputs, node.domain)
            info(copy).metadata.update(copied_marks(info(node).metadata, self.step))
            info(copy).overload = info(node).overload
            self.model.hold(copy)
            made.append(copy)
        return made

    def _copy_graph(self, graph: Graph) -> Graph:
        inputs = [self._fresh(v) for v in graph.inputs]
        nodes = self.copy(graph)
        return Graph(
            nodes=nodes,
            inputs=inputs,
            outputs=[self.value(v) for v in graph.outputs],
            name=graph.name,
            opset=graph.opset,
        )

    def _fresh(self, value: Value) -> Value:
        if not value.name:
            return Variable.empty()
        short = value.name.rsplit("/", 1)[-1]
        copy = Variable(self.model.fresh_name(f"{self.prefix}/{short}"), dtype=value.dtype, shape=value.shape)
        self.model.hold(copy)
        self.values[id(value)] = copy
        return copy
