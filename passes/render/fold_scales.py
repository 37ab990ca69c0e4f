"""Converts quantized cells to integer arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import IntegerCell, QuantizedCell
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.formats.point_format import CHAINED, EMBEDDED
from rnnqc.ir import Constant, Graph, Model, Node, Value, Variable, constant_array
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.boundary import Boundary, boundaries_of
from rnnqc.passes.cells.cell_graphs import chain_sources, graphs_of_cells, replace_cell
from rnnqc.passes.fold.coarse_gates import coarse_gates
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint
from rnnqc.passes.fold.fold_lut import FoldedLut, with_zero_point_rows
from rnnqc.passes.fold.integer_forms import Folded, integer_form, is_within, with_own_codes, without_long_codes
from rnnqc.passes.fold.integer_operands import Operands, names_of
from rnnqc.passes.graph.values.embedding_rows import embedding_rows
from rnnqc.passes.graph.values.layout_ops import MOVERS
from rnnqc.passes.invariants import Property
from rnnqc.passes.qcdq.insert_qcdq import USUAL_BITS
from rnnqc.passes.render.cell_function import emit_integer
from rnnqc.passes.render.lut.emit_tables import Tables


class FoldScales(Pass):
    """Folds the scales of a cell so that its matmuls are integer and its activations are table look-ups.

    Before: `DequantizeLinear(h) MatMul DequantizeLinear(R) -> Add -> fake-quantization -> Sigmoid, Tanh -> ...`

    After: `MatMulInteger(h codes, R codes) -> Cast -> Mul -> Add -> Clip -> Cast -> GatherElements(table) -> ...`

    * The lut arithmetic has priority (fold_lut.py), then the fixed-point arithmetic (fold_fixed_point.py); a cell with
      all the formats of Brevitas' QuantLSTMCell gets Brevitas' arithmetic (fold_quant_lstm.py). A cell without an
      integer form (for example with a float gate, or per-row dynamic scales and 16-bit weights) stays as it is, with a
      remark.
    * If a layer reads the quantized hidden states of other layers, the quantized values pass through copies of the
      operators between them, without conversion to float. 16-bit values do not pass: the layer quantizes the float
      hidden states again, to the same values.
    * If a layer reads the int8 rows of an embedding, it takes these and their scales. Operators that move the rows move
      the indices instead.
    """

    info = PassInfo(
        name="fold-scales",
        summary="fold scales: quantized cells become integer matmuls and tables",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CELLS_QUANTIZED}),
        sets=frozenset({Property.SCALES_FOLDED}),
    )

    def __init__(self, *, dispatch: bool = True) -> None:
        """A pass with these options.

        Args:
            dispatch: Whether cells choose between int8 and uint8 weights when a session is created. Without dispatch
                weights are uint8 with zero point 128: exact everywhere, slower on processors with VNNI.
        """
        self.dispatch = dispatch

    def run(self, model: Model) -> PassResult:
        """Folds every quantized cell."""
        remarks: list[Remark] = []
        folded: dict[str, Folded] = {}
        found = (c for c in model.cells.values() if type(c) is QuantizedCell and c.name not in model.kept)
        cells = list(map(without_long_codes, found))
        graphs = graphs_of_cells(model)
        boundaries = boundaries_of(model, graphs, cells)
        for cell in cells:
            result = _try_fold(model, graphs[cell.name], cell, boundaries[cell.name])
            if isinstance(result, NotHandled):
                model.kept[cell.name] = reason = "quantized, not integer: " + result.reason
                remarks.append(self.remark(Outcome.NOTE, cell.node, cell.op, reason, result.found, result.action))
            else:
                folded[cell.name] = result
                remarks += self._of_coarse_gates(model, graphs[cell.name], cell)
        tables = Tables(model)
        codes: dict[str, Value] = {}
        rows: dict[int, tuple[Value, Value]] = {}
        sites: list[tuple[QuantizedCell, Graph, Boundary]] = []
        for cell in [c for c in cells if c.name in folded]:
            graph = graphs[cell.name]
            at = boundaries[cell.name]
            if cell.points["input"].mode == CHAINED:
                sources = chain_sources(model, at.x) or []
                if sources and all(c.name in folded for c, _ in sources):
                    at = replace(at, x=pass_codes(model, graph, cell, at.x, codes))
                    cell = replace(cell, x=at.x.name)
                else:
                    cell = with_own_codes(cell)
                    folded[cell.name] = _fold(model, graph, cell, at)
            elif cell.points["input"].mode == EMBEDDED:
                x, x_scale = rows_behind(model, graph, cell, at.x, rows)
                at, cell = replace(at, x=x, x_scale=x_scale), replace(cell, x=x.name)
            sites.append((cell, graph, at))
        for cell, graph, at in sites:
            operands = integer_operands(model, graph, cell, folded[cell.name], tables, self.dispatch)
            target = codes.get(cell.name)
            numbers = folded[cell.name].numbers
            replace_cell(
                model, graph, cell, emit_integer(model, cell, numbers, at, operands, target, dispatch=self.dispatch)
            )
            y_codes = target.name if target is not None else None
            x_scale = at.x_scale.name if at.x_scale is not None else None
            model.cells[cell.name] = IntegerCell.of_quantized(cell, numbers, names_of(operands), y_codes, x_scale)
        widths = [p.bits for c, _, _ in sites for p in c.points.values() if p.bits is not None]
        usual = all(bits >= USUAL_BITS for bits in widths)
        return PassResult(bool(sites), tuple(remarks), {"cells": len(sites)}, Lossy(20.0) if usual else None)

    def _of_coarse_gates(self, model: Model, graph: Graph, cell: QuantizedCell) -> list[Remark]:
        bias = constant_array(model.initializer(cell.B, graph))
        found = None if bias is None else coarse_gates(cell, bias)
        if found is None:
            return []
        gates = " and ".join(g.replace("_", " ") for g in found.gates)
        reason = (
            f"its states last for a thousand steps and more; tables of the {gates} in steps of 2^-15 may make them too "
            "large or too small over as many."
        )
        overrides = " ".join(f"'{cell.name}.{g}.activation.table=exact'" for g in found.gates)
        action = f"rnnqc verify on sequences as long as yours; exact tables, 33 kB in the file, are --set {overrides}"
        return [self.remark(Outcome.WARNING, cell.node, cell.op, reason, f"biases up to {found.bias:.3g}", action)]


def _fold(model: Model, graph: Graph, cell: QuantizedCell, at: Boundary) -> Folded:
    """Returns the integer form in the first arithmetic that supports the cell's formats; raises NotHandled."""
    named = {"B": cell.B, "P": cell.P, "hidden_bias": cell.hidden_bias}
    held = {k: constant_array(model.initializer(n, graph)) for k, n in named.items() if n is not None}
    parameters = {k: a for k, a in held.items() if a is not None}
    w = constant_array(model.initializer(cell.W, graph))
    assert w is not None
    r = constant_array(model.initializer(cell.R, graph))
    assert r is not None
    folded = integer_form(cell, w, r, parameters)
    if isinstance(folded, FoldedFixedPoint):
        return folded
    return _of_initial_state(model, folded, at.initial_h)


def _try_fold(model: Model, graph: Graph, cell: QuantizedCell, at: Boundary) -> Folded | NotHandled:
    try:
        return _fold(model, graph, cell, at)
    except NotHandled as refusal:
        return refusal


def _of_initial_state(model: Model, folded: FoldedLut, state: Value | None) -> FoldedLut:
    """Returns the form with what is known about the initial hidden state."""
    numbers = folded.numbers
    if state is None or not numbers.h_bound:
        return folded
    if is_within(model, state, numbers.h_bound):
        return replace(folded, numbers=replace(numbers, h_bound=0.0))
    return replace(folded, numbers=replace(numbers, h_is_data=_is_data(state)))


def _is_data(value: Value) -> bool:
    """Whether `value` depends on runtime data, and not on shapes alone."""
    pending, seen = [value], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen or isinstance(current, Constant):
            continue
        seen.add(id(current))
        if not current.inputs:
            return True
        producer = current.inputs[0]
        if producer.op not in ("Shape", "Size", "If"):
            pending += [v for v in producer.inputs if v.name]
    return False


def integer_operands(
    model: Model, graph: Graph, cell: Cell, folded: Folded, tables: Tables, dispatch: bool
) -> Operands:
    """Adds the cell's constants to its own graph: onnxruntime packs weights of an outer graph again in every call."""

    def add(key: str, array: np.ndarray[Any, Any]) -> Value:
        return model.add_initializer(f"{cell.name}/{key}", array, graph)

    if isinstance(folded, FoldedFixedPoint):
        arrays = {k: v for k, v in folded.__dict__.items() if v is not None and k != "numbers" and "table" not in k}
        return Operands(
            **{k: add(k, v) for k, v in arrays.items()},
            gate_table=tables.fixed_point_table(folded.gate_tables),
            cell_table=tables.fixed_point_table([folded.cell_table]) if folded.cell_table is not None else None,
        )

    def weight(key: str, name: str) -> Value:
        codes = constant_array(model.initializer(name, graph))
        assert codes is not None
        if dispatch:
            return add(key, codes)
        if key == "W" and folded.numbers.zero_point_rows:
            codes = with_zero_point_rows(codes, folded.numbers.zero_point_rows)
        return add(key, (codes.astype(np.int16) + 128).astype(np.uint8))

    return Operands(
        W=weight("W", cell.W),
        R=weight("R", cell.R),
        x_multiplier=add("x_multiplier", folded.x_multiplier),
        h_multiplier=add("h_multiplier", folded.h_multiplier),
        B=add("B", folded.B),
        gate_table=tables.gate_table(folded.gate_tables) if folded.gate_tables else None,
        cell_table=tables.cell_table(folded.cell_table) if folded.cell_table is not None else None,
        P=add("P", folded.P) if folded.P is not None else None,
        hidden_bias=add("hidden_bias", folded.hidden_bias) if folded.hidden_bias is not None else None,
    )


def rows_behind(
    model: Model, graph: Graph, cell: Cell, x: Value, known: dict[int, tuple[Value, Value]]
) -> tuple[Value, Value]:
    """Returns the int8 rows of an embedding that `x` consists of, and their scales; adds them to `known`."""
    if id(x) not in known:
        found = embedding_rows(x, cell.input_size)
        assert found is not None
        builder = Builder(model, prefix=f"{cell.name}/input")
        known[id(x)] = found.codes(builder)
        model.insert_nodes_after(graph, found.rows, builder.nodes)
    return known[id(x)]


def pass_codes(model: Model, graph: Graph, cell: Cell, x: Value, codes: dict[str, Value]) -> Value:
    """Copies the operators between hidden states and `x`, for integers; adds the providing cells to `codes`."""
    by_output = {c.y: c for c in model.cells.values() if c.y is not None}
    made: dict[int, Value] = {}
    builder = Builder(model, prefix=f"{cell.name}/input")

    def source(value: Value) -> Value:
        provider = by_output[value.name]
        if provider.name not in codes:
            codes[provider.name] = Variable(model.fresh_name(f"{provider.name}/Y_codes"), dtype=np.uint8)
        return codes[provider.name]

    stack: list[tuple[Value, bool]] = [(x, False)]
    while stack:
        value, ready = stack.pop()
        if id(value) in made:
            continue
        if value.name in by_output:
            made[id(value)] = source(value)
            continue
        node: Node = value.inputs[0]
        moved = MOVERS[node.op]
        positions = list(range(len(node.inputs)) if moved is None else moved)
        if not ready:
            stack.append((value, True))
            stack.extend((node.inputs[k], False) for k in positions)
            continue
        inputs = [made[id(v)] if k in positions else v for k, v in enumerate(node.inputs)]
        made[id(value)] = builder.op(node.op, inputs, f"{value.name}.codes", **dict(node.attrs))
    position = next(i for i, n in enumerate(graph.nodes) if any(v is x for v in n.inputs) or n is graph.nodes[-1])
    graph.nodes[position:position] = builder.nodes
    return made[id(x)]
