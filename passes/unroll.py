"""Writes loops out."""

from __future__ import annotations

from typing import Any

from rnnqc.builder import Builder
from rnnqc.diagnostics import CompileError, Outcome, Remark
from rnnqc.ir import CELL_TAG, Graph, Model, Node, Value, Variable, attribute, display_name, info, shape_of, subgraphs
from rnnqc.numerics import Bitwise
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.properties import Property

LARGEST_LENGTH = 20000


class Unroll(Pass):
    """Replaces each Scan by one copy of its body per element of the sequence.

    Before: `Scan(states, sequences; body)`

    After: for each t: `Gather(sequence, t) -> body nodes`, states handed on from copy to copy, then one Concat per scan
    output. Initializers stay single.

    * The sequence length has to be known: from the shapes, or bound with `--dim`.
    * A length above 20000 is refused.
    """

    info = PassInfo(
        name="unroll",
        summary="replace each Scan by copies of its body",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
        sets=frozenset({Property.UNROLLED}),
    )

    def run(self, model: Model) -> PassResult:
        """Unrolls every Scan of every graph, outermost first."""
        remarks: list[Remark] = []
        count = 0
        while True:
            model.infer_shapes()
            site = next(((g, n) for g in model.graphs() for n in g.nodes if n.op == "Scan" and not n.domain), None)
            if site is None:
                break
            graph, node = site
            length = _length(node)
            name = info(node).metadata.get(CELL_TAG) or display_name(node)
            _unroll(model, graph, node, length, name)
            remarks.append(self.remark(Outcome.NOTE, name, "Scan", f"unrolled {length} times."))
            count += 1
        for graph in model.graphs():
            for node in graph.nodes:
                if node.op == "Loop" and not node.domain:
                    raise CompileError(
                        f"Node {display_name(node)!r} (Loop) cannot be unrolled.", supported="Scan", action="lower without --unroll"
                    )
        if count:
            model.remove_dead()
            model.sort()
        return PassResult(count > 0, tuple(remarks), {"scans": count})


def _length(node: Node) -> int:
    scanned = attribute(node, "num_scan_inputs", 1)
    axes = attribute(node, "scan_input_axes", None) or [0] * scanned
    for value, axis in zip(node.inputs[len(node.inputs) - scanned :], axes, strict=True):
        shape = shape_of(value)
        if shape is not None and isinstance(shape[axis], int):
            length = int(shape[axis])  # type: ignore[arg-type]
            if length > LARGEST_LENGTH:
                raise CompileError(
                    f"Node {display_name(node)!r}: a sequence of {length} elements would be unrolled.",
                    supported=f"up to {LARGEST_LENGTH}",
                    action="lower without --unroll",
                )
            if length == 0:
                raise CompileError(f"Node {display_name(node)!r}: the sequence is empty.", supported="at least one element")
            return length
    value = node.inputs[-1]
    raise CompileError(
        f"Node {display_name(node)!r} (from {info(node).metadata.get(CELL_TAG, 'the model')!r}) cannot be unrolled: the length of its "
        f"sequence {value.name!r} is not known (shape {shape_of(value)}).",
        supported="a static sequence length",
        action="bind the dimension, for example --dim T=100",
    )


def _unroll(model: Model, graph: Graph, node: Node, length: int, name: str) -> None:
    body: Graph = node.attrs["body"]
    scanned = attribute(node, "num_scan_inputs", 1)
    states = len(node.inputs) - scanned
    outputs = len(node.outputs) - states
    in_axes = attribute(node, "scan_input_axes", None) or [0] * scanned
    out_axes = attribute(node, "scan_output_axes", None) or [0] * outputs
    in_directions = attribute(node, "scan_input_directions", None) or [0] * scanned
    out_directions = attribute(node, "scan_output_directions", None) or [0] * outputs
    cell = info(node).metadata.get(CELL_TAG, "")
    new_nodes: list[Node] = []
    current: list[Value] = list(node.inputs[:states])
    sequences = list(node.inputs[states:])
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    wanted = [bool(node.outputs[states + k].name) for k in range(outputs)]
    slices = [_split(model, cell, name, v, axis, length, new_nodes) for v, axis in zip(sequences, in_axes, strict=True)]
    for step in range(length):
        copier = _Copier(model, cell, f"{name}/step_{step}")
        for formal, actual in zip(body.inputs[:states], current, strict=True):
            copier.values[id(formal)] = actual
        for k, formal in enumerate(body.inputs[states:]):
            copier.values[id(formal)] = slices[k][length - 1 - step if in_directions[k] else step]
        new_nodes += copier.copy(body)
        current = [copier.value(v) for v in body.outputs[:states]]
        for k, value in enumerate(body.outputs[states:]):
            collected[k].append(copier.value(value))
    tail = Builder(model, cell, name)
    for k in range(states):
        if node.outputs[k].name:
            _hand_over(tail, current[k], node, k)
    for k in range(outputs):
        if not wanted[k]:
            continue
        values = collected[k][::-1] if out_directions[k] else collected[k]
        axis = tail.i64([out_axes[k]])
        lifted = [tail.op("Unsqueeze", [v, axis], f"output_{k}.{t}") for t, v in enumerate(values)]
        target = node.outputs[states + k]
        node.outputs[states + k] = Variable.empty()
        tail.add("Concat", lifted, [target], f"output_{k}", axis=out_axes[k])
    model.insert_nodes(graph, node, [*new_nodes, *tail.nodes])
    model.remove_nodes(graph, [node])


def _hand_over(tail: Builder, value: Value, node: Node, k: int) -> None:
    target = node.outputs[k]
    node.outputs[k] = Variable.empty()
    tail.add("Identity", [value], [target], f"state_{k}")


def _split(model: Model, cell: str, name: str, value: Value, axis: int, length: int, nodes: list[Node]) -> list[Value]:
    """The elements of a sequence: one Split and a Squeeze each (Gather would copy the sequence's shape logic T times)."""
    builder = Builder(model, cell, name)
    pieces: list[Variable] = builder.ops(
        "Split", [value, builder.i64([1] * length)], [f"input.{t}" for t in range(length)], axis=axis
    )
    axes = builder.i64([axis])
    elements: list[Value] = [builder.op("Squeeze", [p, axes], f"input.{t}.element") for t, p in enumerate(pieces)]
    nodes += builder.nodes
    return elements


class _Copier:
    """Copies the nodes of a body under new names; values of outer graphs stay themselves."""

    def __init__(self, model: Model, cell: str, prefix: str) -> None:
        self.model, self.cell, self.prefix = model, cell, prefix
        self.values: dict[int, Value] = {}

    def value(self, value: Value) -> Value:
        return self.values.get(id(value), value)

    def copy(self, graph: Graph) -> list[Node]:
        made: list[Node] = []
        for node in graph.nodes:
            attrs: dict[str, Any] = dict(node.attrs)
            inputs = [self.value(v) if v.name else Variable.empty() for v in node.inputs]
            outputs = [self._fresh(v) for v in node.outputs]
            for key, inner in subgraphs(node):
                attrs[key] = self._copy_graph(inner)
            short = node.name.rsplit("/", 1)[-1] or node.op
            copy = Node(node.op, self.model.fresh_name(f"{self.prefix}/{short}"), attrs, inputs, outputs, node.domain)
            info(copy).metadata.update(info(node).metadata)
            info(copy).overload = info(node).overload
            made.append(copy)
        return made

    def _copy_graph(self, graph: Graph) -> Graph:
        inputs = [self._fresh(v) for v in graph.inputs]
        nodes = self.copy(graph)
        return Graph(nodes=nodes, inputs=inputs, outputs=[self.value(v) for v in graph.outputs], name=graph.name, opset=graph.opset)

    def _fresh(self, value: Value) -> Value:
        if not value.name:
            return Variable.empty()
        short = value.name.rsplit("/", 1)[-1]
        copy = Variable(self.model.fresh_name(f"{self.prefix}/{short}"), dtype=value.dtype, shape=value.shape)
        self.values[id(value)] = copy
        return copy


def bind_dimensions(model: Model, dims: dict[str, int]) -> None:
    """Replaces symbolic dimensions of the graph's inputs by numbers.

    Raises:
        CompileError: No input has a dimension of that name, or the number is not positive.
    """
    for name, size in dims.items():
        if size <= 0:
            raise CompileError(f"--dim {name}={size}.", supported="positive sizes")
        found = False
        for value in model.graph.inputs:
            if value.shape is not None and name in value.shape:
                value.shape = [size if d == name else d for d in value.shape]
                found = True
        for value in model.graph.outputs:
            if value.shape is not None and name in value.shape:
                value.shape = [size if d == name else d for d in value.shape]
        if not found:
            known = sorted({d for v in model.graph.inputs for d in (v.shape or []) if isinstance(d, str)})
            raise CompileError(f"No input has a dimension {name!r}.", supported=", ".join(known) or "the model has no symbolic dimensions")
