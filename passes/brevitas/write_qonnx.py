"""Writes quantized cells as Brevitas exports them, for tools that read QONNX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rnnqc.cells.stages import QonnxCell, QuantizedCell
from rnnqc.errors import Outcome, Remark, UsageError
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.formats.point_format import CHAINED
from rnnqc.formats.qonnx import DOMAINS, QonnxQuantizer
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Constant, Graph, Model, Value, Variable, constant_array
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.boundary import Boundary, boundary_of
from rnnqc.passes.cells.cell_graphs import graphs_of_cells, replace_cell
from rnnqc.passes.formats.brevitas_contract import ROUNDING_NAMES, Misfit, bias_quantizers, misfits, quant_lstm_of
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP, GATES, NODE_GATES, QUANTIZERS, QuantLstm
from rnnqc.passes.invariants import Property

DOMAIN, DOMAIN_VERSION = DOMAINS[0], 2
"""The domain that Brevitas writes since 0.12, and the version that it imports."""
OUTPUTS = ("outputs", "hidden_state", "cell_state")
_SHOWN = 5
# QONNX has no ROUND_TO_ZERO, which Brevitas writes.
_QUANT_ROUNDING_NAMES: Mapping[Rounding, str] = {**ROUNDING_NAMES, Rounding.TOWARD_ZERO: "DOWN"}


class WriteQonnx(Pass):
    """Replaces each quantized cell by Brevitas' `QuantLSTMCell` node, with QONNX quantizers around it.

    Before: `QuantizeLinear -> DequantizeLinear -> MatMul ..., Scan(...)` with the formats of Brevitas' cell.

    After: `Quant(x), Quant(W_ii), ..., Quant(b_o) -> QuantLSTMCell(48 inputs) -> outputs, hidden_state, cell_state`

    * Inputs, attributes and their spelling are those of Brevitas 0.13.4. Weights and biases are rounded already: no
      reader's rounding changes them.
    * A cell that reads hidden states of other cells needs no input quantizer.
    * A cell with anything that the node does not support (see brevitas_contract.py, and `sequence_lens`) is an error.
    """

    info = PassInfo(
        name="write-qonnx",
        summary="write quantized cells as Brevitas' QuantLSTMCell",
        numerics=Bitwise(),
        requires=frozenset({Property.CELLS_QUANTIZED}),
    )

    def run(self, model: Model) -> PassResult:
        """Writes every quantized cell.

        Raises:
            UsageError: Brevitas' cell does not support the formats or the structure of a cell.
        """
        cells = [c for c in model.cells.values() if type(c) is QuantizedCell]
        for cell in cells:
            _check(cell)
        graphs = graphs_of_cells(model)
        remarks: list[Remark] = []
        for cell in cells:
            graph = graphs[cell.name]
            b = _emit(model, graph, cell, boundary_of(model, graph, cell))
            replace_cell(model, graph, cell, b.nodes)
            model.cells[cell.name] = QonnxCell.of_quantized(cell)
            remarks.append(self.remark(Outcome.NOTE, cell.node, cell.op, f"written as {CELL_OP} of {DOMAIN}."))
        if cells:
            model.import_domain(DOMAIN, DOMAIN_VERSION)
        return PassResult(bool(cells), tuple(remarks), {"cells": len(cells)})


def _check(cell: QuantizedCell) -> None:
    found = misfits(cell)
    if cell.sequence_lens is not None:
        found.insert(0, Misfit("sequence_lens", "an input of the layer", "whole sequences"))
    if not found:
        return
    alike: dict[tuple[str, str], list[str]] = {}
    for misfit in found:
        alike.setdefault((misfit.found, misfit.supported), []).append(misfit.point)
    texts = [str(Misfit(", ".join(points), *texts)) for texts, points in alike.items()]
    shown = "; ".join(texts[:_SHOWN])
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    raise UsageError(
        f"Cell {cell.name!r} has no form qonnx. {shown}{more}.",
        supported="layers and number formats that Brevitas' QuantLSTMCell has (docs/brevitas.md)",
        action="--recipe brevitas-int8 --calibration DATA gives such formats; leave --form out for other layers",
    )


def _emit(model: Model, graph: Graph, cell: QuantizedCell, at: Boundary) -> Builder:
    """Emits the node of the cell between its boundary values, with the quantizers before it."""
    b = Builder(model, cell.name)
    w, r, bias = (constant_array(model.initializer(name, graph)) for name in (cell.W, cell.R, cell.B))
    assert w is not None and r is not None and bias is not None
    lstm = quant_lstm_of(cell, w, r, bias)
    q = lstm.quantizers

    def stored(name: str, array: npt.NDArray[np.float32]) -> Constant:
        return model.add_initializer(f"{cell.name}/{name}", np.asarray(array, np.float32), graph)

    chained = cell.points["input"].mode == CHAINED
    zeros: Value | None = None
    inputs: list[Value] = [at.x if chained else _quant(b, q["output"], at.x, "quant_input")]
    for value, name, quantizer in (
        (at.initial_h, "quant_hidden_state", q["output"]),
        (at.initial_c, "quant_cell_state", q["cell_state"]),
    ):
        if value is None:
            zeros = zeros or stored("zeros", np.zeros((1, cell.hidden_size), np.float32))
            inputs.append(zeros)
        else:
            inputs.append(_quant(b, quantizer, value, name))
    order = [GATES.index(g) for g in NODE_GATES]
    for key, parameters in (("weight_i", lstm.W), ("weight_h", lstm.R)):
        for k in order:
            p = parameters[k]
            assert p.quantizer is not None
            name = f"{key}{GATES[k][0]}"
            inputs.append(_quant(b, p.quantizer, stored(name, p.values), f"quant_{name}"))
    of_biases = bias_quantizers(cell)
    for k in order:
        own, values, name = of_biases[k], lstm.bias[k], f"bias_{GATES[k]}"
        raw = stored(name, values)
        inputs.append(raw if own is None else _quant(b, own, raw, f"quant_{name}"))
    for name in QUANTIZERS:
        inputs += [b.f32(q[name].scale), b.f32(q[name].zero_point), b.f32(q[name].bits)]
    outputs = [v if v is not None else b.value(n) for v, n in zip((at.y, at.y_h, at.y_c), OUTPUTS, strict=True)]
    for k, value in enumerate(outputs):
        # No tool infers these shapes, because no tool knows the node.
        _declare(graph, value, [*([cell.static_length] if k == 0 else []), cell.static_batch, cell.hidden_size])
    b.add(CELL_OP, inputs, outputs, "cell", domain=DOMAIN, **_attributes(lstm))
    return b


def _declare(graph: Graph, value: Value, shape: list[int | None]) -> None:
    """Declares the known shape of a float value, unless it is an output of the graph, which has its own."""
    if isinstance(value, Variable) and not any(v is value for v in graph.outputs):
        value.dtype, value.shape = np.dtype(np.float32), shape


def _attributes(lstm: QuantLstm) -> dict[str, int | str]:
    """Returns the 36 attributes of a node."""
    made: dict[str, int | str] = {
        "batch_first": int(lstm.batch_first),
        "reverse_input": int(lstm.reverse),
        "cifg": int(lstm.cifg),
    }
    for name in QUANTIZERS:
        q = lstm.quantizers[name]
        # Every version of Brevitas misspells this one, and readers of its files expect that.
        narrow = "output_sigmoid_narrow_range" if name == "output_sigmoid" else f"{name}_narrow"
        made |= {
            narrow: int(q.narrow),
            f"{name}_signed": int(q.signed),
            f"{name}_rounding_mode": ROUNDING_NAMES[q.rounding],
        }
    return made


def _quant(b: Builder, q: QonnxQuantizer, x: Value, name: str) -> Value:
    """Emits `x` through a Quant or BipolarQuant node."""
    result = b.value(name, np.float32)
    if q.bipolar:
        b.add("BipolarQuant", [x, b.f32(q.scale)], [result], name, domain=DOMAIN)
        return result
    attributes = {
        "signed": int(q.signed), "narrow": int(q.narrow), "rounding_mode": _QUANT_ROUNDING_NAMES[q.rounding]
    }  # fmt: skip
    inputs = [x, b.f32(q.scale), b.f32(q.zero_point), b.f32(q.bits)]
    b.add("Quant", inputs, [result], name, domain=DOMAIN, **attributes)
    return result
