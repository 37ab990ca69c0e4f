"""The specification of a cell whose loop was written out: the loop again, from the model's description of the cell."""

from __future__ import annotations

from dataclasses import fields

import onnx

from rnnqc.builder import body_nodes
from rnnqc.cells.base import Cell
from rnnqc.ir import Model, Value, Variable, dtype_of
from rnnqc.passes.cell_function import emit_integer, stored_numbers
from rnnqc.passes.cell_graphs import graphs_of_cells
from rnnqc.passes.emit_cell import Boundary, boundary_of
from rnnqc.passes.operands import Operands


def rolled(model: Model, cell: Cell) -> tuple[list[onnx.NodeProto], list[str], list[str]]:
    """The nodes of the integer cell with its loop, and the names of inputs and outputs, which are those in the model.

    Whoever uses them compares what they make with what the model's own nodes make.
    """
    graph = graphs_of_cells(model)[cell.name]
    at = boundary_of(model, graph, cell)
    found = {k: model.initializer(n, graph) or model.find(n) for k, n in cell.operands.items()}
    known: dict[str, Value] = {}

    def stand_in(value: Value | None) -> Value | None:
        if value is None:
            return None
        return known.setdefault(value.name, Variable(value.name, dtype=dtype_of(value)))

    here = Boundary(**{f.name: stand_in(getattr(at, f.name)) for f in fields(Boundary)})
    operands = Operands(**{f.name: stand_in(found.get(f.name)) for f in fields(Operands)})
    codes = stand_in(model.find(cell.y_codes)) if cell.y_codes is not None else None
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.add(domain="", version=model.opset)
    proto.graph.name = "rolled"
    nodes = emit_integer(Model(proto), cell, stored_numbers(cell), here, operands, codes, dispatch=False)
    outputs = {v.name for v in (here.y, here.y_h, here.y_c, codes) if v is not None}
    return body_nodes(nodes), sorted(set(known) - outputs), sorted(outputs)
