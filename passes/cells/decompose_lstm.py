"""Lowers LSTM, GRU and RNN nodes to explicit Scan loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell, Size, fixed
from rnnqc.cells.types import CELL_TYPES, output_names, type_of
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import (
    FLOAT_TAG,
    Graph,
    Model,
    Node,
    Value,
    display_name,
    info,
    input_or_none,
    safe_name,
    shape_of,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.float_arithmetic import FloatArithmetic
from rnnqc.passes.cells.loop_driver import emit_cell
from rnnqc.passes.cells.padded_output import check_padded_output, padded_output_notes
from rnnqc.passes.graph.nodes.listed_weights import STORED_COUNT, TAKE_OFF, found_listed, listed_weights
from rnnqc.passes.graph.nodes.lstm_node import (
    INITIAL_C,
    INITIAL_H,
    SEQUENCE_LENS,
    UNUSED,
    Layer,
    X,
    is_recurrent,
    read_layer,
    used_output,
)
from rnnqc.passes.invariants import Property
from rnnqc.proto.graph_walks import blocks_of

LARGEST_INPUT = 65024  # |acc| <= 65024 * 255 * 127 < 2**31; partial sums may wrap, the result does not
LARGEST_HIDDEN = 65536
LARGEST_WEIGHT = 2.0**40  # keeps every intermediate value of the integer form finite


class DecomposeLstm(Pass):
    """Replaces each LSTM, GRU and RNN node by one Scan per direction with named values.

    Before: `LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P) -> Y [T,D,B,H], Y_h [D,B,H], Y_c [D,B,H]`, and GRU
    and RNN, which have no cell state

    After, for each direction: `MatMul, Add -> Scan(MatMul, Add, Split, activations, Mul, Add)`, then Unsqueeze and
    Concat over directions. `sequence_lens` become masks and selections after the loop; reverse is a scan direction, or
    ReverseSequence where lengths differ.

    * A node whose W, R, B or P is not constant stays, with a remark.
    * A node of another type than float32 stays, with a remark.
    * A node with more than 65024 inputs or 65536 units stays, with a remark (integer accumulators would overflow).
    * A node with weights beyond 2**40 stays, with a remark.
    * A node whose padded output is searched for zeros, to remove the padding, stays, with a remark.
    """

    info = PassInfo(
        name="decompose-lstm",
        summary="lower LSTM, GRU and RNN nodes to explicit Scan loops",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
        sets=frozenset({Property.CELLS_DECOMPOSED}),
    )
    infers_shapes = True

    def __init__(self, ops: Sequence[str] | None = None) -> None:
        """Creates the pass.

        Args:
            ops: The operators to decompose, by default all; nodes of the others stay, with a remark.
        """
        self.ops = tuple(CELL_TYPES) if ops is None else ops

    def run(self, model: Model) -> PassResult:
        """Decomposes every recurrent node of every graph."""
        remarks: list[Remark] = []
        count = 0
        model.infer_shapes()
        for path, graph in list(model.paths()):
            for node in list(graph.nodes):
                if not is_recurrent(node) or FLOAT_TAG in info(node).metadata:
                    continue
                name = f"{path}{display_name(node)}"
                try:
                    layer = _readable(graph, node, self.ops)
                except NotHandled as refusal:
                    info(node).metadata[FLOAT_TAG] = refusal.reason
                    remarks.append(self.refused(Outcome.FLOAT, name, node.op, refusal))
                    count += 1
                    continue
                stored = listed_weights(model, node)
                notes = padded_output_notes(node)
                _decompose(model, graph, node, layer, name)
                count += 1
                remarks.append(
                    self.remark(Outcome.NOTE, name, node.op, f"decomposed into {len(layer.directions)} cell(s).")
                )
                remarks += [self.remark(Outcome.NOTE, name, node.op, *note) for note in notes]
                if stored:
                    found = found_listed(stored)
                    remarks.append(self.remark(Outcome.NOTE, name, node.op, STORED_COUNT, found, TAKE_OFF))
        if count:
            model.remove_dead()
            _remove_bodies(model)
        return PassResult(count > 0, tuple(remarks), {"nodes": count})


def _readable(graph: Graph, node: Node, ops: Sequence[str]) -> Layer:
    """Reads the node with all attributes explicit.

    Raises:
        NotHandled: The node stays float.
    """
    if node.op not in ops:
        found = f"a {node.op} node, where it has cells of {' and '.join(ops)} alone"
        raise NotHandled(
            "the form asked for has no such cell.", found, "leave --form out, or choose fused, integer or qcdq"
        )
    layer = read_layer(node)
    check_padded_output(node)
    if all(used_output(graph, node, k) is None for k in range(len(output_names(layer.type)))):
        raise NotHandled(*UNUSED)
    if layer.input_size > LARGEST_INPUT or layer.hidden_size > LARGEST_HIDDEN:
        raise NotHandled(
            "it is too large for 32-bit accumulators.",
            f"input size {layer.input_size}, hidden size {layer.hidden_size}",
            f"split the layer: up to {LARGEST_INPUT} inputs and {LARGEST_HIDDEN} units are supported",
        )
    for key, array in layer.weights.items():
        if array is not None and max(array.max(), -array.min()) > LARGEST_WEIGHT:
            raise NotHandled(
                f"{key} has enormous entries.",
                f"{key} up to {np.abs(array).max():.3g}",
                "repair the weights: up to 2**40 are supported",
            )
    return layer


def _remove_bodies(model: Model) -> None:
    """Removes the functions of layers that are no longer called."""
    called = {(n.op, n.domain) for g in model.graphs() for n in g.nodes}
    called |= {(n.op_type, n.domain) for block in blocks_of(model.functions) for n in block.node}
    layers = {(f.name, f.domain) for f in model.functions if type_of(f.name, f.domain) is not None}
    model.functions = [f for f in model.functions if (f.name, f.domain) not in layers - called]


def _decompose(model: Model, graph: Graph, node: Node, layer: Layer, path: str) -> None:
    base = safe_name(layer.name)
    directions = len(layer.directions)
    x = input_or_none(node, X)
    assert x is not None
    outputs = [used_output(graph, node, k) for k in range(3)]
    shape = shape_of(x)
    sizes = (shape or [None, None])[:2]
    outer = Builder(model, prefix=base)
    new_nodes: list[Node] = []
    parts: list[list[Value]] = [[], [], []]
    cells: list[tuple[Cell, Boundary]] = []
    for d, reverse in enumerate(layer.directions):
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
        cell = _cell(model, layer, name, path, d, sizes, x, lens, states, made)
        model.cells[name] = cell
        cells.append((cell, Boundary(x, lens, states[0], states[1], made[0], made[1], made[2])))
    new_nodes += outer.nodes
    outer.nodes = []
    for cell, at in cells:
        new_nodes += emit_cell(model, cell, at, FloatArithmetic()).nodes
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
    layer: Layer,
    name: str,
    path: str,
    d: int,
    sizes: Sequence[Size],
    x: Value,
    lens: Value | None,
    states: list[Value | None],
    made: list[Value | None],
) -> Cell:
    h = layer.hidden_size
    w, r, b, p = (layer.weights[k] for k in ("W", "R", "B", "P"))
    assert w is not None and r is not None and b is not None

    def store(key: str, array: npt.NDArray[np.float32]) -> str:
        return str(model.add_initializer(f"{name}/{key}.float", np.ascontiguousarray(array)).name)

    gates = layer.type.gates
    bias, recurrent_bias = (half.reshape(len(gates), h) for half in np.split(b[d], 2))
    inner = recurrent_bias[-1] if layer.linear_before_reset else None
    total = bias + recurrent_bias
    if inner is not None:
        total[-1] = bias[-1]
    return Cell(
        name=name,
        node=path,
        op=layer.type.op,
        hidden_size=h,
        input_size=layer.input_size,
        reverse=layer.directions[d],
        activations=layer.activations[d],
        clip=layer.clip,
        input_forget=layer.input_forget,
        static_length=fixed(sizes[0]),
        static_batch=fixed(sizes[1]),
        batch=model.given_name(sizes[1]),
        x=x.name,
        sequence_lens=lens.name if lens is not None else None,
        initial_h=states[0].name if states[0] is not None else None,
        initial_c=states[1].name if states[1] is not None else None,
        y=made[0].name if made[0] is not None else None,
        y_h=made[1].name if made[1] is not None else None,
        y_c=made[2].name if made[2] is not None else None,
        W=store("W", w[d].T),
        R=store("R", r[d].T),
        B=store("B", total.ravel()),
        P=store("P", p[d]) if p is not None else None,
        linear_before_reset=layer.linear_before_reset,
        hidden_bias=store("hidden_bias", inner) if inner is not None else None,
    )


def _direction_of(outer: Builder, states: Value | None, d: int, directions: int, name: str) -> Value | None:
    """Extracts the states `[B,H]` of one direction from `[D,B,H]`."""
    if states is None:
        return None
    if directions > 1:
        states = outer.op("Gather", [states, outer.i64([d])], f"{name}.kept", axis=0)
    return outer.op("Squeeze", [states, outer.i64([0])], name)


def _word(reverse: bool) -> str:
    return "reverse" if reverse else "forward"
