"""Reads the cells that Brevitas exports, with their own quantization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.cells.base import Cell, Size, fixed
from rnnqc.cells.stages import IntegerCell, QuantizedCell
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.formats.format import FormatError
from rnnqc.formats.point_format import PointFormat
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
    safe_name,
    shape_of,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.brevitas.emit_exported import emit_exported_cell
from rnnqc.passes.brevitas.exported_formats import KnownFormats, input_of, state_of
from rnnqc.passes.brevitas.float_sums import doubt_about_sums
from rnnqc.passes.brevitas.weight_doubts import doubt_about_weights
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.sequence_lengths import dimensions
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint
from rnnqc.passes.fold.fold_quant_lstm import fold_quant_lstm, points_of
from rnnqc.passes.fold.integer_operands import names_of
from rnnqc.passes.graph.nodes.lstm_node import UNUSED, used_output
from rnnqc.passes.graph.nodes.quant_operators import ACTIVATIONS, CELL_OP, QuantLstm, is_quant_lstm, read_quant_lstm
from rnnqc.passes.graph.values.output_shapes import infer_output_shapes
from rnnqc.passes.invariants import Property
from rnnqc.passes.qcdq.insert_qcdq import USUAL_BITS
from rnnqc.passes.render.chain_codes import ReadCell, chain_codes
from rnnqc.passes.render.fold_scales import integer_operands
from rnnqc.passes.render.lut.emit_tables import Tables


class ReadQuantLstmCell(Pass):
    """Replaces each `QuantLSTMCell` of Brevitas by an integer cell in the arithmetic "grid32".

    Before: `Quant(x), Quant(W_ii), ... -> QuantLSTMCell(48 inputs) -> outputs, hidden_state, cell_state`

    After: the integer cell, with the quantized weights as initializers; or, in form qcdq, `QuantizeLinear -> Clip ->
    DequantizeLinear` around an explicit float cell (see emit_exported.py).

    Elementwise operations are Brevitas' own. Brevitas' matmuls sum in an unspecified order, so a quantized value next
    to a tie may differ.

    * The cell keeps the quantization that it was exported with; no recipe applies to it.
    * The input has to be quantized: by a Quant node, or because other cells compute it. So do initial states; constant
      zeros are dropped, so that they do not fix the batch size.
    * If an integer layer reads the hidden states of other cells, their quantized values pass without conversion to
      float.
    * A cell without an integer form (for example with float weights, more than 16 bits, or per-channel scales of an
      activation) becomes float32 operators, in Brevitas' order, with a remark.
    * A cell whose parameters are not constant or not known stays as it is, with a remark.
    """

    info = PassInfo(
        name="read-quant-lstm-cell",
        summary="lower Brevitas' QuantLSTMCell to integer cells",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, *, integer: bool = True) -> None:
        """A pass with these options.

        Args:
            integer: Whether cells become integer; otherwise they have form qcdq.
        """
        self.integer = integer

    def run(self, model: Model) -> PassResult:
        """Reads every cell of every graph, in topological order."""
        remarks: list[Remark] = []
        tables = Tables(model) if self.integer else None
        grids = KnownFormats()
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
                    reason = f"{refusal.reason} Nothing runs it as it is."
                    remarks.append(self.remark(Outcome.FLOAT, name, node.op, reason, refusal.found, refusal.action))
                    count += 1
                    continue
                doubts = _doubts(read, grids)
                try:
                    site = _lower(model, graph, node, read, name, tables, grids)
                    if site is not None:
                        sites[site.cell.name] = site
                    reason = "keeps the quantization it was exported with; recipes do not apply to it."
                    remarks.append(self.remark(Outcome.NOTE, name, node.op, reason))
                    remarks += [self.remark(Outcome.WARNING, name, node.op, *doubt) for doubt in doubts]
                except NotHandled as refusal:
                    _write_out(model, graph, node, read, name, grids)
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
        read_cells = [c for c in model.cells.values() if isinstance(c, QuantizedCell) and c.op == CELL_OP]
        widths = [p.bits for c in read_cells for p in c.points.values()]
        usual = min((bits for bits in widths if bits is not None), default=0) >= USUAL_BITS
        return PassResult(count > 0, tuple(remarks), {"nodes": count}, Lossy(20.0) if usual else None)


def _is_known(model: Model, value: Value | None) -> bool:
    """Whether the shape of `value` consists of numbers and names that inputs of the model have."""
    shape = shape_of(value)
    names = {d for v in model.graph.inputs for d in shape_of(v) or () if isinstance(d, str)}
    return shape is not None and all(isinstance(d, int) or d in names for d in shape)


def _readable(graph: Graph, node: Node) -> QuantLstm:
    if all(used_output(graph, node, k) is None for k in range(3)):
        raise NotHandled(*UNUSED)
    return read_quant_lstm(node)


def _doubts(read: QuantLstm, grids: KnownFormats) -> list[tuple[str, str, str]]:
    """Returns the reasons why Brevitas may compute something other than the file says."""
    try:
        sums = doubt_about_sums(read, grids.of(read.x, "its input"))
    except NotHandled:
        sums = None
    return [doubt for doubt in (doubt_about_weights(read), sums) if doubt is not None]


def _lower(
    model: Model, graph: Graph, node: Node, read: QuantLstm, path: str, tables: Tables | None, grids: KnownFormats
) -> ReadCell | None:
    """Replaces the node; returns the integer cell, for passing quantized values, or None for form qcdq."""
    x, x_grid = input_of(read, grids)
    absorbed = grids.of(read.x, "its input") if x is not read.x else None
    h0 = state_of(read.initial_h, read.quantizers["output"], "the initial hidden state", grids)
    c0 = state_of(read.initial_c, read.quantizers["cell_state"], "the initial cell state", grids)
    folded = fold_quant_lstm(read, x_grid)
    points = _points_of(read)
    name, sizes = _name(model, node, read), _sizes(x, read)
    batch = fixed(sizes[1])
    x, before, made, after = _surroundings(model, graph, node, read, x, grids)
    rows = Builder(model, prefix=name)
    h0 = _for_every_row(rows, h0, x, batch, read.hidden_size, "initial_h")
    c0 = _for_every_row(rows, c0, x, batch, read.hidden_size, "initial_c")
    before += rows.nodes
    at = Boundary(x, None, h0, c0, *made)
    bare = _cell(read, name, node.op, path, sizes, model.given_name(sizes[1]), at)
    cell = QuantizedCell.of(bare, points)
    site = _integer_cell(model, graph, cell, folded, tables, at) if tables is not None else None
    if site is not None:
        model.cells[name] = site.cell
        nodes = site.emit(model, None)
    else:
        outer = {"initial_h": read.quantizers["output"], "initial_c": read.quantizers["cell_state"]}
        outer |= {"input": absorbed} if absorbed is not None else {}
        nodes, model.cells[name] = emit_exported_cell(model, graph, cell, read, at, outer)
    model.insert_nodes(graph, node, [*before, *nodes, *after])
    model.remove_nodes(graph, [node])
    return site


def _points_of(read: QuantLstm) -> dict[str, PointFormat]:
    try:
        return points_of(read)
    except FormatError as error:
        raise NotHandled("a quantizer has no format.", error.message, error.supported) from error


def _cell(
    read: QuantLstm, name: str, op: str, path: str, sizes: Sequence[Size], batch: str | None, at: Boundary
) -> Cell:
    """Returns a cell without parameters and points; `sizes` are of time and batch, `batch` is its name."""
    assert at.x is not None
    names = [v.name if v is not None else None for v in (at.initial_h, at.initial_c, at.y, at.y_h, at.y_c)]
    return Cell(
        name=name,
        node=path,
        op=op,
        hidden_size=read.hidden_size,
        input_size=read.input_size,
        reverse=read.reverse,
        activations=ACTIVATIONS,
        clip=None,
        input_forget=read.cifg,
        static_length=fixed(sizes[0]),
        static_batch=fixed(sizes[1]),
        batch=batch,
        x=at.x.name,
        sequence_lens=None,
        initial_h=names[0],
        initial_c=names[1],
        y=names[2],
        y_h=names[3],
        y_c=names[4],
        W="",
        R="",
        B="",
        P=None,
    )


def _integer_cell(
    model: Model, graph: Graph, cell: QuantizedCell, folded: FoldedFixedPoint, tables: Tables, at: Boundary
) -> ReadCell:
    operands = integer_operands(model, graph, cell, folded, tables, True)
    made = IntegerCell.of_quantized(cell, folded.numbers, names_of(operands), None)
    return ReadCell(made, graph, folded.numbers, at, operands)


def _name(model: Model, node: Node, read: QuantLstm) -> str:
    return model.fresh_name(f"{safe_name(display_name(node))}.{'reverse' if read.reverse else 'forward'}")


def _sizes(x: Value, read: QuantLstm) -> list[Size]:
    """Returns the sizes of time and batch."""
    shape = shape_of(x) or [None] * 3
    if len(shape) != 3:
        raise NotHandled("what its quantizer takes has not three axes.", f"shape {shape}", "export the model again")
    return shape[1::-1] if read.batch_first else shape[:2]


def _write_out(model: Model, graph: Graph, node: Node, read: QuantLstm, path: str, grids: KnownFormats) -> None:
    """Replaces a cell without an integer form by its operations in float32; it is not a cell any more."""
    name, sizes = _name(model, node, read), _sizes(read.x, read)
    x, before, made, after = _surroundings(model, graph, node, read, read.x, grids)
    b = Builder(model, prefix=name)
    given = ((read.initial_h, "initial_h"), (read.initial_c, "initial_c"))
    states = [_broadcast(b, v, x, read.hidden_size, n) for v, n in given]
    at = Boundary(x, None, *states, *made)
    bare = _cell(read, name, node.op, path, sizes, model.given_name(sizes[1]), at)
    cell = QuantizedCell.of(bare, {"hidden": PointFormat(rounded_output=True)})
    nodes, _ = emit_exported_cell(model, graph, cell, read, at, {})
    model.insert_nodes(graph, node, [*before, *b.nodes, *nodes, *after])
    model.remove_nodes(graph, [node])
    model.release_cells([name])


def _broadcast(b: Builder, value: Value, x: Value, hidden: int, name: str) -> Value | None:
    """Returns an initial state `[B,H]`, None for zeros; a constant with equal rows does not fix the batch size."""
    array = constant_array(value)
    if array is not None and not array.any():
        return None
    if array is not None and array.ndim == 2 and array.size and (array == array[:1]).all():
        value = b.f32(array[:1])
    batch = dimensions(b, x, 1, 2, f"{name}.batch")
    shape = b.op("Concat", [batch, b.i64([hidden])], f"{name}.shape", axis=0)
    return b.op("Expand", [value, shape], name)


def _for_every_row(
    b: Builder, value: Value | None, x: Value, batch: int | None, hidden: int, name: str
) -> Value | None:
    """Returns an initial state `[B,H]`; a single row is repeated for all rows of the input, as float operators do."""
    rows = None if value is None else (shape_of(value) or [None])[0]
    if value is None or rows != 1 or batch == 1:
        return value
    shape = b.op("Concat", [dimensions(b, x, 1, 2, f"{name}.batch"), b.i64([hidden])], f"{name}.shape", axis=0)
    return b.op("Expand", [value, shape], name)


def _surroundings(
    model: Model, graph: Graph, node: Node, read: QuantLstm, x: Value, grids: KnownFormats
) -> tuple[Value, list[Node], list[Variable | None], list[Node]]:
    """Returns X and outputs with time first, and the nodes before and after the cell that transpose them.

    Detaches the outputs from the node; unused ones are None.
    """
    targets = [used_output(graph, node, k) for k in range(3)]
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
