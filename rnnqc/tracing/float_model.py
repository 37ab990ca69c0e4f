"""Makes a float model traceable: its cells become explicit loops with named values and without quantizers."""

from __future__ import annotations

import json

import onnx

from rnnqc.calibration.float_cells import decompose
from rnnqc.cells.stages import QuantizedCell
from rnnqc.formats.point_format import FLOAT
from rnnqc.ir import CUSTOM_TAG, Model, info
from rnnqc.passes.analysis.custom_cell import CustomCell
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.cells.boundary import boundary_of
from rnnqc.passes.cells.cell_graphs import graphs_of_cells, replace_cell
from rnnqc.passes.cells.float_arithmetic import FloatArithmetic
from rnnqc.passes.cells.loop_driver import emit_cell
from rnnqc.passes.custom_cells.mark_custom_values import ValueMarks, record_of


def with_float_cells(model: Model) -> onnx.ModelProto:
    """Replaces the cells of a float model by loops of form qcdq without quantizers. `model` is changed.

    Raises:
        CompileError: It has no recurrent layer.
    """

    def mark(normal: Model) -> bool:
        marked = [_mark(c) for c in custom_cells_of(normal)]
        return any(marked)

    decompose(model, "dump", mark)
    graphs = graphs_of_cells(model)
    for name, plain in [*model.cells.items()]:
        cell = QuantizedCell.of(plain, {p.name: FLOAT for p in plain.type.points})
        at = boundary_of(model, graphs[name], cell)
        replace_cell(model, graphs[name], cell, emit_cell(model, cell, at, FloatArithmetic(products=True)).nodes)
        model.cells[name] = cell
    model.remove_dead()
    model.sort()
    model.infer_shapes()
    return model.proto


def _mark(cell: CustomCell) -> bool:
    """Annotates the values of a custom cell and records that they are float. Returns False if the cell has no nodes."""
    at = cell.recurrence
    nodes = [at.loop] if at.loop is not None else [p.node for sites in cell.products.values() for p in sites]
    if not nodes:
        return False
    ValueMarks(cell).put(set(cell.region), {})
    info(nodes[0]).metadata[CUSTOM_TAG] = json.dumps(record_of(cell, "float", {}, {}), sort_keys=True)
    return True
