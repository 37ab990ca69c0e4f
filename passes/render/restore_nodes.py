"""Turns cells that stay float back into nodes, for which onnxruntime has kernels."""

from __future__ import annotations

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import FLOAT_TAG, Model, Node, Value, Variable, constant_array, graph_info, info
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.boundary import Boundary, boundary_of
from rnnqc.passes.cells.cell_graphs import graphs_of_cells, parameters_of, replace_cell
from rnnqc.passes.graph.nodes.node_attributes import node_attributes
from rnnqc.passes.invariants import Property


class RestoreNodes(Pass):
    """Replaces each cell that the recipe leaves float by a node of one direction.

    Before: `MatMul, Add -> Scan(MatMul, Add, Split, activations, Mul, Add)`

    After: `LSTM(x, W, R, B, sequence_lens, Unsqueeze(initial_h), Unsqueeze(initial_c), P) -> Squeeze -> Y, Y_h, Y_c`,
    or GRU, RNN. The node records why its layer is float, so that lowering the file again leaves it alone.

    Explicit loops are about thirty times slower than the kernels of onnxruntime.
    """

    info = PassInfo(
        name="restore-nodes",
        summary="make nodes again of cells that stay float",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Restores the cells that the model records as kept."""
        graphs = graphs_of_cells(model)
        floats = [c for c in model.cells.values() if type(c) is Cell and c.name in model.kept and c.name in graphs]
        for cell in floats:
            graph = graphs[cell.name]
            replace_cell(model, graph, cell, _node(model, cell, boundary_of(model, graph, cell)))
            del model.cells[cell.name], model.kept[cell.name]
        return PassResult(bool(floats), (), {"cells": len(floats)})


def _node(model: Model, cell: Cell, at: Boundary) -> list[Node]:
    """Returns the node of a cell, with the views between its layout and that of the cell."""
    b = Builder(model, prefix=cell.name)
    states = [
        b.op("Unsqueeze", [v, b.i64([0])], f"{k}.node") if v is not None else None
        for k, v in (("initial_h", at.initial_h), ("initial_c", at.initial_c))
    ]
    inputs: list[Value | None] = [at.x, *_parameters(model, cell), at.sequence_lens, states[0]]
    outputs = [at.y, at.y_h]
    if cell.op == "LSTM":
        inputs, outputs = [*inputs, states[1], _peepholes(model, cell)], [*outputs, at.y_c]
    while inputs[-1] is None:
        inputs.pop()
    made = [
        b.value(f"{k}.node") if v is not None else Variable.empty()
        for k, v in zip(("Y", "Y_h", "Y_c"), outputs, strict=False)
    ]
    attributes = node_attributes(
        cell.type,
        cell.hidden_size,
        cell.activations,
        linear_before_reset=cell.linear_before_reset,
        input_forget=cell.input_forget,
    )
    if cell.reverse:
        attributes["direction"] = "reverse"
    if cell.clip is not None:
        attributes["clip"] = cell.clip
    node = b.add(cell.op, inputs, made, cell.name, **attributes)
    node.name = cell.name
    info(node).metadata[FLOAT_TAG] = model.kept[cell.name]
    for axis, value, target in zip((1, 0, 0), made, outputs, strict=False):
        if target is not None:
            b.add("Squeeze", [value, b.i64([axis])], [target], f"{target.name}.squeezed")
    return b.nodes


def _parameters(model: Model, cell: Cell) -> list[Value]:
    """Returns W `[1,GH,I]`, R `[1,GH,H]` and B `[1,2GH]`; a GRU's reset gate multiplies the second half of B."""
    held = parameters_of(model, cell)
    inner = np.zeros_like(held["B"])
    if cell.hidden_bias is not None:
        inner[-cell.hidden_size :] = held["hidden_bias"]
    arrays = {"W": held["W"].T, "R": held["R"].T, "B": np.concatenate([held["B"], inner])}
    return [model.add_initializer(f"{cell.name}/{k}", np.ascontiguousarray(a[np.newaxis])) for k, a in arrays.items()]


def _peepholes(model: Model, cell: Cell) -> Value | None:
    """Returns P `[1,3H]`."""
    array = None if cell.P is None else constant_array(graph_info(model.graph).initializers[cell.P])
    return None if array is None else model.add_initializer(f"{cell.name}/P", array[np.newaxis])
