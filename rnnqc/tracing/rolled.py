"""Rebuilds the loop of an unrolled cell in form qcdq from the model's description of the cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import onnx

from rnnqc.cells.stages import QuantizedCell
from rnnqc.errors import CompileError, StructureError
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.ir import Model, Value, Variable, dtype_of
from rnnqc.ir.builder import Builder, body_nodes
from rnnqc.passes.brevitas.emit_exported import exported_quantizer
from rnnqc.passes.cells.boundary import Boundary, boundary_of
from rnnqc.passes.cells.cell_graphs import graphs_of_cells
from rnnqc.passes.cells.float_arithmetic import FloatArithmetic
from rnnqc.passes.cells.float_step import Quantizer
from rnnqc.passes.cells.loop_driver import emit_cell
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.passes.graph.point_names import plain_name
from rnnqc.passes.qcdq.emit_qcdq import ALIASES, emit_flags, qcdq_quantizer
from rnnqc.proto.graph_walks import needed


def rolled(model: Model, cell: QuantizedCell, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Returns the nodes of the cell with its loop. Inputs and outputs keep their names in the model.

    The caller compares the results of these nodes with those of the model's own nodes.

    Args:
        model: The model.
        cell: The cell.
        nodes: Its nodes in the model; those that compute weights are reused unchanged.
    """
    graph = graphs_of_cells(model)[cell.name]
    try:
        at = boundary_of(model, graph, cell)
    except StructureError as error:
        raise CompileError(
            f"{error} The file was changed since it was lowered.",
            supported="files as `rnnqc lower` writes them",
            action="lower the original model again",
        ) from error
    known: dict[str, Value] = {}

    def stand_in(value: Value | None) -> Value | None:
        if value is None:
            return None
        return known.setdefault(value.name, Variable(value.name, dtype=dtype_of(value)))

    def stored(name: str | None) -> Value | None:
        return None if name is None else stand_in(model.initializer(name, graph) or model.find(name))

    here = Boundary(**{f.name: stand_in(getattr(at, f.name)) for f in fields(Boundary)})
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.add(domain="", version=model.opset)
    proto.graph.name = "rolled"
    empty = Model(proto)
    own = {plain_name(o, cell.name): o for n in nodes for o in n.output if o}
    weights = {p: own[f"{p}.quantized"] for p in ("W.weight", "R.weight") if f"{p}.quantized" in own}
    for name in weights.values():
        known[name] = Variable(name, dtype=np.dtype(np.float32))
    names = {"W": cell.W, "R": cell.R, "B": cell.B, "P": cell.P, "hidden_bias": cell.hidden_bias}
    parameters = {k: v for k, n in names.items() if (v := stored(n)) is not None}
    quantizer = _quantizer(cell, {p: known[n] for p, n in weights.items()}, "input.quantized" in own)
    flags = {"bias_last": True} if cell.op == CELL_OP else emit_flags(cell)
    emitted = emit_cell(empty, cell, here, FloatArithmetic(quantizer, parameters=parameters, **flags)).nodes
    return [*needed(nodes, weights.values()), *body_nodes(emitted)]


def _quantizer(cell: QuantizedCell, weights: Mapping[str, Value], takes_reals: bool) -> Quantizer:
    """Returns the quantizer of a cell of form qcdq. It reuses the weights; Brevitas cells may skip the input."""
    if cell.op != CELL_OP:
        quantizer = qcdq_quantizer(cell, {})
    else:
        points = {**cell.points, **{alias: cell.points[p] for alias, p in ALIASES.items()}}
        left_out = () if takes_reals else ("input",)
        quantizers = {p: _exported(s) for p, s in points.items() if not p.endswith(".weight") and p not in left_out}
        quantizer = exported_quantizer(quantizers, {})

    def quantize(b: Builder, point: str, value: Value) -> Value:
        if point.endswith(".weight"):
            return weights.get(point, value)
        return quantizer(b, point, value)

    return quantize


def _exported(point: PointFormat) -> QonnxQuantizer:
    """Returns the Brevitas quantizer that a point describes."""
    held = point.complete
    scale, zero_point = (np.asarray(v, np.float32) for v in (held.scale[0], held.zero_point))
    return QonnxQuantizer(scale, zero_point, held.bits, held.signed, held.narrow, held.rounding)
