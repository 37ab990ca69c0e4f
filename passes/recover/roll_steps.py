"""Joins recurrent nodes over one element each into a layer, where one passes its states to the next."""

from __future__ import annotations

import numpy as np

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import (
    Graph,
    Model,
    Node,
    Value,
    Variable,
    display_name,
    dtype_of,
    input_or_none,
    output_number,
    output_or_none,
    shape_of,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_reach import everything_behind
from rnnqc.passes.graph.loops.loop_states import VIEWS, bodies, owners
from rnnqc.passes.graph.nodes.lstm_node import INITIAL_C, INITIAL_H, SEQUENCE_LENS, B, P, R, W, X, is_recurrent
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, Indices, unknown
from rnnqc.passes.graph.values.sequence_elements import is_unsqueezed_in_front, keeps_all
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.recovery_sites import RecoverySites

_CONSTANTS = (W, R, B, P)


class RollSteps(RecoverySites, Pass):
    """Replaces the unrolled steps of one layer by one node over the stacked inputs.

    Before: `LSTM(x_0, h, c) -> h_0, c_0; LSTM(x_1, h_0, c_0) -> h_1, c_1; ...`, each over one element

    After: `LSTM(Concat(x_0, x_1, ...), h, c) -> Y, Y_h, Y_c; Split(Y) -> h_0, h_1, ...`

    The nodes need equal weights and attributes. A chain ends where a node other than the next step reads a cell state:
    the new node only returns the last one. Chains stay unchanged, with a note, where the input of a step depends on an
    earlier step of the same chain.
    """

    info = PassInfo(
        name="roll-steps",
        summary="join the unrolled steps of a layer into one node",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        remarks: list[Remark] = []
        self.sites = []
        constants = Constants(model)
        rolled = steps = 0
        for graph, _, path in list(bodies(model)):
            for chain in _chains(graph, constants):
                name = f"{path}{display_name(chain[0])}"
                op = chain[0].op
                try:
                    self.check_kept(name)
                    _check_feedback(graph, chain)
                except NotHandled as refusal:
                    what = f"{len(chain)} steps of one layer are not joined: {refusal.reason}"
                    action = "none; each step is a layer of its own"
                    remarks.append(self.remark(Outcome.NOTE, name, op, what, refusal.found, action))
                    continue
                _roll(model, graph, chain, constants)
                rolled, steps = rolled + 1, steps + len(chain)
                self.sites.append(name)
                remarks.append(self.remark(Outcome.NOTE, name, op, f"made of {len(chain)} unrolled steps."))
        return PassResult(bool(rolled), tuple(remarks), {"layers": rolled, "steps": steps})


def _single(node: Node) -> bool:
    if not is_recurrent(node) or node.attrs.get("direction", "forward") != "forward":
        return False
    if input_or_none(node, SEQUENCE_LENS) is not None or node.attrs.get("layout", 0):
        return False
    x = input_or_none(node, X)
    shape = shape_of(x)
    if shape is not None and len(shape) == 3 and isinstance(shape[0], int):
        return shape[0] == 1
    return x is not None and is_unsqueezed_in_front(x)


def _chains(graph: Graph, constants: Constants) -> list[list[Node]]:
    """Chains of two or more steps."""
    indices = Indices(constants, shape_of)
    nodes = [n for n in graph.nodes if _single(n)]
    members = {id(n) for n in nodes}
    following: dict[int, Node] = {}
    first = {id(n): n for n in nodes}
    for node in nodes:
        before = _source(input_or_none(node, INITIAL_H), indices)
        if before is None or id(before[0]) not in members or before[0] is node or before[1] not in (0, 1):
            continue
        if node.op == "LSTM":
            cell = _source(input_or_none(node, INITIAL_C), indices)
            if cell is None or cell[0] is not before[0] or cell[1] != 2:
                continue
        if id(before[0]) in following or not _same_layer(before[0], node, constants):
            continue
        following[id(before[0])] = node
        first.pop(id(node))
    outputs = {id(v) for v in graph.outputs}
    chains: list[list[Node]] = []
    for start in first.values():
        current: Node | None = start
        chain: list[Node] = []
        while current is not None:
            after = following.get(id(current))
            chain.append(current)
            cell = output_or_none(current, 2)
            if after is not None and cell is not None and any(n is not after for n in _ends(cell, outputs, indices)):
                chains.append(chain)
                chain = []
            current = after
        chains.append(chain)
    return [c for c in chains if len(c) > 1]


def _source(value: Value | None, indices: Indices) -> tuple[Node, int] | None:
    """The node and output that produce a state, through views."""
    while value is not None and len(value.inputs) == 1:
        node = value.inputs[0]
        if is_recurrent(node):
            return node, output_number(node, value)
        if not _is_view(node, indices):
            return None
        value = node.inputs[0]
    return None


def _is_view(node: Node, indices: Indices) -> bool:
    return (
        (node.op in VIEWS and not node.domain)
        or (node.op == "Expand" and not node.domain and _keeps_sizes(node, indices))
        or keeps_all(node, indices)
    )


def _keeps_sizes(node: Node, indices: Indices) -> bool:
    """Whether an Expand keeps the shape of its input."""
    shape, target = shape_of(node.inputs[0]), indices.vector(node.inputs[1])
    if shape is None or target is None or len(target) > len(shape):
        return False
    known = [None if d is None else Index(d) if isinstance(d, int) else unknown(d) for d in shape]
    return all(size in (Index(1), d) for size, d in zip(target[::-1], known[::-1], strict=False))


def _ends(value: Value, outputs: set[int], indices: Indices) -> list[Node | None]:
    """The nodes that read `value`, through views; None represents an output of the graph."""
    found: list[Node | None] = [None] if id(value) in outputs else []
    for node in value.outputs:
        if _is_view(node, indices) and node.inputs[0] is value:
            found += _ends(node.outputs[0], outputs, indices)
        else:
            found.append(node)
    return found


def _same_layer(a: Node, b: Node, constants: Constants) -> bool:
    if a.op != b.op or {k: v for k, v in a.attrs.items() if v is not None} != {
        k: v for k, v in b.attrs.items() if v is not None
    }:
        return False
    for k in _CONSTANTS if a.op == "LSTM" else _CONSTANTS[:3]:
        one, other = input_or_none(a, k), input_or_none(b, k)
        if one is other:
            continue
        arrays = [constants.array(v) for v in (one, other)]
        if arrays[0] is None or arrays[1] is None or not np.array_equal(arrays[0], arrays[1]):
            return False
    shapes = [shape_of(input_or_none(n, X)) for n in (a, b)]
    sizes = [s[1] if s is not None and len(s) == 3 else None for s in shapes]
    return sizes[0] == sizes[1]


def _check_feedback(graph: Graph, chain: list[Node]) -> None:
    """Refuses a chain with an input that depends on an earlier step, except through the states."""
    members = set(map(id, chain))
    others = {k: node for k, node in owners(graph).items() if id(node) not in members}
    reached = everything_behind([v for n in chain for v in n.outputs], others)
    for node in chain:
        if id(node.inputs[X]) in reached:
            found = f"the input {node.inputs[X].name!r} of node {display_name(node)!r}"
            raise NotHandled("the input of a step is made from an earlier one.", found)


def _roll(model: Model, graph: Graph, nodes: list[Node], constants: Constants) -> None:
    head = nodes[0]
    outputs = {id(v) for v in graph.outputs}
    indices = Indices(constants, shape_of)
    b = Builder(model, prefix=display_name(head))
    used: list[list[Value | None]] = []
    for node, following in zip(nodes, [*nodes[1:], Node("")], strict=True):
        values = [output_or_none(node, k) for k in range(3)]
        used.append(
            [
                v if v is not None and any(n is not following for n in _ends(v, outputs, indices)) else None
                for v in values
            ]
        )
    elements_of_x, others, name = [n.inputs[X] for n in nodes], list(head.inputs[1:]), display_name(head)
    for node in nodes:  # before an equal node exists: graphsurgeon removes edges by equality
        node.inputs.clear()
        node.outputs.clear()
    inputs = [b.op("Concat", elements_of_x, "X", axis=0), *others]
    kinds = [dtype_of(v) for row in used for v in row if v is not None]
    kind = next((t for t in kinds if t is not None), np.dtype(np.float32))
    made: list[Value] = [Variable.empty(), Variable.empty()]
    if any(y is not None or h is not None for y, h, _ in used[:-1]):
        made[0] = b.value("Y", kind)
    final = used[-1][1] or b.value("Y_h", kind)
    if not made[0].name:
        made[1] = final
    if used[-1][2] is not None:
        made.append(used[-1][2])
    b.add(head.op, inputs, made, "layer", **head.attrs).name = name
    if made[0].name:
        elements = [h or b.value(f"h.{k}", kind) for k, (_, h, _) in enumerate(used[:-1])]
        sequence = b.op("Squeeze", [made[0], b.i64([1])], "Y.sequence")
        b.add("Split", [sequence, b.i64([1] * len(nodes))], [*elements, final], "elements", axis=0)
    else:
        elements = []
    for k, h in enumerate([*elements, final] if elements else [final]):
        y = used[k if elements else -1][0]
        if y is not None:
            b.add("Unsqueeze", [h, b.i64([1])], [y], f"y.{k}")
    model.insert_nodes(graph, head, b.nodes)
    model.remove_nodes(graph, nodes)
