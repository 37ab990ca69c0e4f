"""Reads the cells that Brevitas exports, with the quantization they bring along."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rnnqc.builder import Builder
from rnnqc.cells.base import Cell
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.encoding import Rounding
from rnnqc.ir import (
    FLOAT_TAG,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    constant_array,
    display_name,
    info,
    input_or_none,
    output_or_none,
    safe_name,
    shape_of,
)
from rnnqc.numerics import Lossy
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.chain_codes import NEAREST, ReadCell, chain_codes
from rnnqc.passes.emit_brevitas_lstm import emit_brevitas_lstm
from rnnqc.passes.emit_cell import Boundary
from rnnqc.passes.emit_exported import emit_exported_cell
from rnnqc.passes.emit_tables import Tables
from rnnqc.passes.fold_grid import FoldedGrid
from rnnqc.passes.fold_quant_lstm import ACTIVATIONS, check_one_scale, fold_quant_lstm, grid_of, points_of
from rnnqc.passes.fold_scales import integer_operands
from rnnqc.passes.grid_numbers import Grid
from rnnqc.passes.insert_qcdq import MOVERS, USUAL_BITS
from rnnqc.passes.lstm_node import NotHandled
from rnnqc.passes.output_shapes import infer_output_shapes
from rnnqc.passes.quant_operators import CELL_OP, QuantLstm, is_quant, is_quant_lstm, read_quant, read_quant_lstm
from rnnqc.passes.weight_doubts import doubt_about_weights
from rnnqc.properties import Property
from rnnqc.qonnx import QonnxQuantizer

_MOVED = {**MOVERS, "Split": (0,)}


class ReadQuantLstmCell(Pass):
    """Turns each `QuantLSTMCell` of Brevitas into an integer cell in the arithmetic "grid32".

    Before: `Quant(x), Quant(W_ii), ... -> QuantLSTMCell(48 inputs) -> outputs, hidden_state, cell_state`

    After: the integer cell, with codes of the weights as initializers; or, of form qcdq, `QuantizeLinear -> Clip ->
    DequantizeLinear` around a readable float cell (see emit_exported.py).

    Elementwise operations are Brevitas' own; its products are sums in an order that nobody specifies: a code next to
    a tie may fall otherwise.

    * The cell keeps the quantization it was exported with; no recipe applies to it.
    * The input has to lie on a grid: a Quant node makes it, or other cells do. So do initial states; constant zeros are
      left out, so that the batch is not bound to theirs.
    * Where an integer layer's input is the hidden states of other cells, their codes pass, without going back to float.
    * A cell without an integer form (weights without codes, more than 16 bits, scales for each channel of an
      activation, ...) is written out in float32 operators, in Brevitas' order, with a remark.
    * A cell whose parameters are not constant or not known stays as it is, with a remark.
    """

    info = PassInfo(
        name="read-quant-lstm-cell",
        summary="turn the cells that Brevitas exports into integer cells",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, *, integer: bool = True, functions: bool = True) -> None:
        """Prepares the pass.

        Args:
            integer: Whether cells become integer ones; else they are of form qcdq.
            functions: Whether tables may be calls of a model-local function.
        """
        self.integer, self.functions = integer, functions

    def run(self, model: Model) -> PassResult:
        """Reads every cell of every graph, in topological order."""
        remarks: list[Remark] = []
        tables = Tables(model, functions=self.functions) if self.integer else None
        grids = _Grids()
        sites: dict[str, ReadCell] = {}
        count, inferred = 0, 0
        for path, graph in list(model.paths()):
            for node in list(graph.nodes):
                if not is_quant_lstm(node) or FLOAT_TAG in info(node).metadata:
                    continue
                if count > inferred and not _is_known(model, input_or_none(node, 0)):  # it may follow another cell
                    model.infer_shapes()
                    inferred = count
                name = f"{path}{display_name(node)}"
                try:
                    read = _readable(graph, node)
                except NotHandled as refusal:
                    info(node).metadata[FLOAT_TAG] = refusal.reason
                    remarks.append(
                        self.remark(Outcome.FLOAT, name, node.op, refusal.reason, refusal.found, refusal.action)
                    )
                    count += 1
                    continue
                try:
                    site = _lower(model, graph, node, read, name, tables, grids)
                    if site is not None:
                        sites[site.cell.name] = site
                    reason = "keeps the quantization it was exported with; recipes do not apply to it."
                    remarks.append(self.remark(Outcome.NOTE, name, node.op, reason))
                    doubt = doubt_about_weights(read)
                    if doubt is not None:
                        remarks.append(self.remark(Outcome.NOTE, name, node.op, *doubt))
                except NotHandled as refusal:
                    _write_out(model, graph, node, read, grids)
                    reason = f"{refusal.reason} It runs in float32 operators, exactly but without a native kernel."
                    remarks.append(self.remark(Outcome.FLOAT, name, node.op, reason, refusal.found, refusal.action))
                count += 1
        if count > inferred:
            model.infer_shapes()
        chain_codes(model, sites)
        if count:
            model.remove_dead()
            model.sort()
            infer_output_shapes(model, grids.known)
        widths = [p["bits"] for c in model.cells.values() if c.op == CELL_OP for p in c.points.values()]
        usual = min((bits for bits in widths if bits is not None), default=0) >= USUAL_BITS
        return PassResult(count > 0, tuple(remarks), {"nodes": count}, Lossy(20.0) if usual else None)


def _is_known(model: Model, value: Value | None) -> bool:
    """Whether the shape of `value` is made of numbers and of names that inputs of the model have."""
    shape = shape_of(value)
    names = {d for v in model.graph.inputs for d in shape_of(v) or () if isinstance(d, str)}
    return shape is not None and all(isinstance(d, int) or d in names for d in shape)


@dataclass
class _Grids:
    """On which grid values lie.

    Attributes:
        known: Quantizers by the name of the value that a cell made.
    """

    known: dict[str, QonnxQuantizer] = field(default_factory=dict)

    def of(self, value: Value, what: str) -> QonnxQuantizer:
        """The grid of `value`, which quantizers and cells make and other operators move.

        Raises:
            NotHandled: It lies on none, or its parts on different ones.
        """
        found: QonnxQuantizer | None = None
        stack, seen = [value], set()
        while stack:
            current = stack.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            grid = self.known.get(current.name)
            node = current.inputs[0] if len(current.inputs) == 1 else None
            if grid is None and node is not None and is_quant(node):
                grid = read_quant(node)
            if grid is None:
                if node is None or node.domain or node.op not in _MOVED:
                    made = f"{current.name!r}" + (f" is made by {node.op}" if node is not None else "")
                    raise NotHandled(f"{what} is not quantized.", made, "export the model with io_quant set")
                moved = _MOVED[node.op]
                stack.extend(node.inputs[k] for k in (range(len(node.inputs)) if moved is None else moved))
            elif found is not None and not found.same_format(grid):
                raise NotHandled(f"{what} lies on several grids.", f"{value.name!r}", "share io_quant")
            else:
                found = found or grid
        assert found is not None
        check_one_scale(what, found)
        return found


def _readable(graph: Graph, node: Node) -> QuantLstm:
    if all(_used_output(graph, node, k) is None for k in range(3)):
        raise NotHandled("nothing uses it.", "no used output", "remove the node")
    return read_quant_lstm(node)


def _input(node: QuantLstm, grids: _Grids) -> tuple[Value, Grid]:
    """What the cell takes, and its quantizer: a Quant node right before the cell becomes part of it."""
    quantizer = grids.of(node.x, "its input")
    producer = node.x.inputs[0] if node.x.inputs else None
    if producer is not None and is_quant(producer) and isinstance(quantizer.rounding, Rounding):
        return producer.inputs[0], grid_of("input", quantizer, unsigned=True)
    return node.x, grid_of("input", quantizer, unsigned=True, on_grid=True)


def _state(value: Value, own: QonnxQuantizer, what: str, grids: _Grids) -> Value | None:
    """An initial state as the cell takes it, which applies its own quantizer; None for zeros."""
    array = constant_array(value)
    nearest = own.rounding.value in NEAREST
    if array is not None:
        if not array.any():
            return None
        if nearest and np.array_equal(own(array), array):
            return value
        raise NotHandled(f"{what} is not quantized.", "constants off the grid", "export zeros, or pass the states")
    grid = grids.of(value, what)
    producer = value.inputs[0] if value.inputs else None
    same = grid.same_format(own)
    if same and grid.rounding is own.rounding and producer is not None and is_quant(producer):
        return producer.inputs[0]
    if same and nearest:
        return value
    action = "use a rounding to the nearest code" if same else "quantize it as the cell does"
    raise NotHandled(f"{what} would be rounded twice." if same else f"{what} lies on another grid.", what, action)


def _lower(
    model: Model, graph: Graph, node: Node, read: QuantLstm, path: str, tables: Tables | None, grids: _Grids
) -> ReadCell | None:
    """The cell that codes can reach; None for one of form qcdq."""
    x, x_grid = _input(read, grids)
    absorbed = grids.of(read.x, "its input") if x is not read.x else None
    h0 = _state(read.initial_h, read.quantizers["output"], "the initial hidden state", grids)
    c0 = _state(read.initial_c, read.quantizers["cell_state"], "the initial cell state", grids)
    folded = fold_quant_lstm(read, x_grid)
    points = points_of(read)
    name = model.fresh_name(f"{safe_name(display_name(node))}.{'reverse' if read.reverse else 'forward'}")
    shape = shape_of(x) or [None] * 3
    sizes = [d if isinstance(d, int) else None for d in (shape[1::-1] if read.batch_first else shape[:2])]
    x, before, made, after = _surroundings(model, graph, node, read, x, grids)
    y, y_h, y_c = made
    cell = Cell(
        name=name,
        node=path,
        op=node.op,
        hidden_size=read.hidden_size,
        input_size=read.input_size,
        reverse=read.reverse,
        activations=ACTIVATIONS,
        clip=None,
        input_forget=read.cifg,
        static_length=sizes[0],
        static_batch=sizes[1],
        x=x.name,
        sequence_lens=None,
        initial_h=h0.name if h0 is not None else None,
        initial_c=c0.name if c0 is not None else None,
        y=y.name if y is not None else None,
        y_h=y_h.name if y_h is not None else None,
        y_c=y_c.name if y_c is not None else None,
        W="",
        R="",
        B="",
        P=None,
        points=points,
        form="integer" if tables is not None else "qcdq",
    )
    model.cells[name] = cell
    at = Boundary(x, None, h0, c0, y, y_h, y_c)
    site = _integer_cell(model, graph, cell, folded, tables, at) if tables is not None else None
    nodes = site.emit(model, None) if site else emit_exported_cell(model, graph, cell, read, absorbed, at)
    model.insert_nodes(graph, node, [*before, *nodes, *after])
    model.remove_nodes(graph, [node])
    return site


def _integer_cell(model: Model, graph: Graph, cell: Cell, folded: FoldedGrid, tables: Tables, at: Boundary) -> ReadCell:
    operands = integer_operands(model, graph, cell, folded, tables, True)
    cell.integer = folded.numbers.__dict__.copy()
    cell.operands = {k: v.name for k, v in operands.__dict__.items() if v is not None}
    for key in ("W", "R", "B"):
        setattr(cell, key, cell.operands[key])
    return ReadCell(cell, graph, folded.numbers, at, operands)


def _write_out(model: Model, graph: Graph, node: Node, read: QuantLstm, grids: _Grids) -> None:
    """Replaces a cell without an integer form by its operations in float32."""
    prefix = model.fresh_name(f"{safe_name(display_name(node))}.{'reverse' if read.reverse else 'forward'}")
    x, before, made, after = _surroundings(model, graph, node, read, read.x, grids)
    nodes = emit_brevitas_lstm(model, read, prefix, x, made)
    model.insert_nodes(graph, node, [*before, *nodes, *after])
    model.remove_nodes(graph, [node])


def _surroundings(
    model: Model, graph: Graph, node: Node, read: QuantLstm, x: Value, grids: _Grids
) -> tuple[Value, list[Node], list[Variable | None], list[Node]]:
    """X and outputs with time first, and the nodes before and after the cell that make them so.

    The node loses its outputs; those that nothing uses are None.
    """
    targets = [_used_output(graph, node, k) for k in range(3)]
    sizes = (shape_of(x) or [None] * 3)[:2]
    batch = 0 if read.batch_first else 1
    around = Builder(model, prefix=safe_name(display_name(node)))
    node.outputs.clear()
    if read.batch_first:
        x = around.op("Transpose", [x], "X.time_first", perm=[1, 0, 2])
    before, around.nodes = around.nodes, []
    made: list[Variable | None] = []
    for k, target in enumerate(targets):
        if target is None:
            made.append(None)
            continue
        assert isinstance(target, Variable)
        target.dtype = np.dtype(np.float32)
        target.shape = [*(sizes if k == 0 else sizes[batch : batch + 1]), read.hidden_size]
        inner = target
        if read.batch_first and k == 0:
            inner = around.value("Y.time_first", np.float32, [*sizes[::-1], read.hidden_size])
            around.add("Transpose", [inner], [target], "Y.batch_first", perm=[1, 0, 2])
        made.append(inner)
        for value in (target, inner):
            grids.known[value.name] = read.quantizers["cell_state" if k == 2 else "output"]
    return x, before, made, around.nodes


def _used_output(graph: Graph, node: Node, k: int) -> Value | None:
    value = output_or_none(node, k)
    if value is None or not (value.outputs or any(v is value for v in graph.outputs)):
        return None
    return value
