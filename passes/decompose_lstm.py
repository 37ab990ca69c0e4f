"""Takes LSTM nodes apart into a readable Scan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.cells.base import Cell
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.ir import (
    FLOAT_TAG,
    Graph,
    Model,
    Node,
    Value,
    display_name,
    graph_info,
    info,
    input_or_none,
    output_or_none,
    safe_name,
    shape_of,
)
from rnnqc.numerics import Close
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.emit_lstm import Boundary, emit_lstm
from rnnqc.passes.lstm_node import INITIAL_C, INITIAL_H, SEQUENCE_LENS, LstmNode, NotHandled, X, read_lstm
from rnnqc.properties import Property

LARGEST_INPUT = 65024  # |acc| <= 65024 * 255 * 127 < 2**31; sums on the way may wrap, the result does not
LARGEST_HIDDEN = 65536
LARGEST_WEIGHT = 2.0**40  # keeps every intermediate value of the integer form finite


class DecomposeLstm(Pass):
    """Replaces each LSTM node by one Scan per direction with named values.

    Before: `LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P) -> Y [T,D,B,H], Y_h [D,B,H], Y_c [D,B,H]`

    After, for each direction: `MatMul, Add -> Scan(MatMul, Add, Split, activations, Mul, Add)`, then Unsqueeze and
    Concat over directions. `sequence_lens` become masks and picks after the loop; reverse is a scan direction, or
    ReverseSequence where lengths differ.

    * A node whose W, R, B or P is not constant stays, with a remark.
    * A node of another type than float32 stays, with a remark.
    * A node with more than 65024 inputs or 65536 units stays, with a remark (integer accumulators would overflow).
    * A node with weights beyond 2**40 stays, with a remark.
    """

    info = PassInfo(
        name="decompose-lstm",
        summary="take LSTM nodes apart into a readable Scan",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
        sets=frozenset({Property.CELLS_DECOMPOSED}),
    )

    def run(self, model: Model) -> PassResult:
        """Decomposes every LSTM node of every graph."""
        remarks: list[Remark] = []
        count = 0
        model.infer_shapes()
        for path, graph in list(model.paths()):
            for node in list(graph.nodes):
                if node.op != "LSTM" or node.domain or FLOAT_TAG in info(node).metadata:
                    continue
                name = f"{path}{display_name(node)}"
                try:
                    lstm = _readable(graph, node)
                except NotHandled as refusal:
                    info(node).metadata[FLOAT_TAG] = refusal.reason
                    remarks.append(
                        self.remark(Outcome.FLOAT, name, node.op, refusal.reason, refusal.found, refusal.action)
                    )
                    count += 1
                    continue
                listed = [n for n in (v.name for v in node.inputs) if n in graph_info(model.graph).input_order]
                stored = [n for n in listed if n in graph_info(model.graph).initializers]
                _decompose(model, graph, node, lstm, name)
                count += 1
                remarks.append(
                    self.remark(Outcome.NOTE, name, node.op, f"decomposed into {len(lstm.directions)} cell(s).")
                )
                if stored:
                    reason = (
                        "its weights are defaults that a run could replace; the stored ones count, and the inputs go."
                    )
                    action = "take the initializers off the graph inputs, if the weights are constant"
                    found = f"{', '.join(map(repr, stored))} both stored and listed as graph inputs"
                    remarks.append(self.remark(Outcome.NOTE, name, node.op, reason, found, action))
        if count:
            model.remove_dead()
            model.infer_shapes()
        return PassResult(count > 0, tuple(remarks), {"nodes": count})


def _readable(graph: Graph, node: Node) -> LstmNode:
    """The node with everything explicit.

    Raises:
        NotHandled: It stays float.
    """
    lstm = read_lstm(node)
    if all(_used_output(graph, node, k) is None for k in range(3)):
        raise NotHandled("nothing uses it.", "no used output", "remove the node")
    if lstm.input_size > LARGEST_INPUT or lstm.hidden_size > LARGEST_HIDDEN:
        raise NotHandled(
            "it is too large for 32-bit accumulators.",
            f"input size {lstm.input_size}, hidden size {lstm.hidden_size}",
            f"split the layer: up to {LARGEST_INPUT} inputs and {LARGEST_HIDDEN} units are supported",
        )
    for key, array in lstm.weights.items():
        if array is not None and max(array.max(), -array.min()) > LARGEST_WEIGHT:
            raise NotHandled(
                f"{key} has enormous entries.",
                f"{key} up to {np.abs(array).max():.3g}",
                "repair the weights: up to 2**40 are supported",
            )
    return lstm


def _decompose(model: Model, graph: Graph, node: Node, lstm: LstmNode, path: str) -> None:
    base = safe_name(lstm.name)
    directions = len(lstm.directions)
    x = input_or_none(node, X)
    assert x is not None
    outputs = [_used_output(graph, node, k) for k in range(3)]
    shape = shape_of(x)
    sizes = [d if isinstance(d, int) else None for d in (shape or [None, None])]
    outer = Builder(model, prefix=base)
    new_nodes: list[Node] = []
    parts: list[list[Value]] = [[], [], []]
    cells: list[tuple[Cell, Boundary]] = []
    for d, reverse in enumerate(lstm.directions):
        states = [
            _direction_of(outer, input_or_none(node, k), d, directions, f"{n}.{_word(reverse)}")
            for k, n in ((INITIAL_H, "initial_h"), (INITIAL_C, "initial_c"))
        ]
        name = model.fresh_name(f"{base}.{_word(reverse)}")
        made: list[Value | None] = []
        for k, label in enumerate(("Y", "Y_h", "Y_c")):
            if outputs[k] is None:
                made.append(None)
                continue
            value = outer.value(f"{label}.{_word(reverse)}", np.float32, [None] * (3 if k == 0 else 2))
            parts[k].append(value)
            made.append(value)
        lens = input_or_none(node, SEQUENCE_LENS)
        cell = _cell(model, lstm, name, d, (sizes[0], sizes[1]), x, lens, states, made)
        cell.node = path
        model.cells[name] = cell
        cells.append((cell, Boundary(x, lens, states[0], states[1], made[0], made[1], made[2])))
    new_nodes += outer.nodes
    outer.nodes = []
    for cell, at in cells:
        new_nodes += emit_lstm(model, cell, at).nodes
    for k, (label, axis) in enumerate((("Y", 1), ("Y_h", 0), ("Y_c", 0))):
        target = outputs[k]
        if target is None:
            continue
        lifted = [outer.op("Unsqueeze", [v, outer.i64([axis])], f"{label}.{d}") for d, v in enumerate(parts[k])]
        producer = outer.nodes[-1]
        if directions == 1:
            producer.outputs.clear()
            node.outputs[k] = outer.value(f"{label}.replaced")
            producer.outputs.append(target)
        else:
            node.outputs[k] = outer.value(f"{label}.replaced")
            outer.add("Concat", lifted, [target], label, axis=axis)
    new_nodes += outer.nodes
    model.insert_nodes(graph, node, new_nodes)
    model.remove_nodes(graph, [node])


def _cell(
    model: Model,
    lstm: LstmNode,
    name: str,
    d: int,
    sizes: tuple[int | None, int | None],
    x: Value,
    lens: Value | None,
    states: list[Value | None],
    made: list[Value | None],
) -> Cell:
    h = lstm.hidden_size
    w, r, b, p = (lstm.weights[k] for k in ("W", "R", "B", "P"))
    assert w is not None and r is not None and b is not None

    def store(key: str, array: npt.NDArray[np.float32]) -> str:
        return str(model.add_initializer(f"{name}/{key}.float", np.ascontiguousarray(array)).name)

    return Cell(
        name=name,
        node=lstm.name,
        op="LSTM",
        hidden_size=h,
        input_size=lstm.input_size,
        reverse=lstm.directions[d],
        activations=lstm.activations[d],
        clip=lstm.clip,
        input_forget=lstm.input_forget,
        static_length=sizes[0],
        static_batch=sizes[1],
        x=x.name,
        sequence_lens=lens.name if lens is not None else None,
        initial_h=states[0].name if states[0] is not None else None,
        initial_c=states[1].name if states[1] is not None else None,
        y=made[0].name if made[0] is not None else None,
        y_h=made[1].name if made[1] is not None else None,
        y_c=made[2].name if made[2] is not None else None,
        W=store("W", w[d].T),
        R=store("R", r[d].T),
        B=store("B", b[d, : 4 * h] + b[d, 4 * h :]),
        P=store("P", p[d]) if p is not None else None,
    )


def _direction_of(outer: Builder, states: Value | None, d: int, directions: int, name: str) -> Value | None:
    """States `[B,H]` of one direction from `[D,B,H]`."""
    if states is None:
        return None
    if directions > 1:
        states = outer.op("Gather", [states, outer.i64([d])], f"{name}.kept", axis=0)
    return outer.op("Squeeze", [states, outer.i64([0])], name)


def _used_output(graph: Graph, node: Node, k: int) -> Value | None:
    """Output k of the node if anything uses it."""
    value = output_or_none(node, k)
    if value is None or not (value.outputs or any(v is value for v in graph.outputs)):
        return None
    return value


def _word(reverse: bool) -> str:
    return "reverse" if reverse else "forward"
