"""Locates a quantized LSTM, GRU or RNN in a lowered model: its nodes, inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.fused_nodes import fused_outputs, given_inputs, input_names
from rnnqc.cells.stages import IntegerCell, QuantizedCell
from rnnqc.cells.types import fused_type
from rnnqc.errors import CompileError
from rnnqc.ir import CELL_TAG, DOMAIN, Model
from rnnqc.proto.graph_walks import blocks_of, reads
from rnnqc.tracing.rolled import rolled


@dataclass(frozen=True)
class Place:
    """A cell with its values in a model.

    Attributes:
        cell: Its description in the model.
        nodes: Its nodes; in form fused the fused node alone. In form qcdq they contain a loop: if it was unrolled, it
            is rebuilt from the cell's description.
        inputs: The names of its inputs in the model, by the names of the operator's inputs. Form qcdq has no operator:
            there they are keyed by themselves.
        outputs: The names of its outputs in the model, by the names of the operator's outputs.
    """

    cell: QuantizedCell
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def node(self) -> onnx.NodeProto | None:
        """The fused node; None in other forms."""
        first = self.nodes[0]
        return first if first.domain == DOMAIN and fused_type(first.op_type) else None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the operator, in the forms fused and integer."""
        if self.node is None:
            assert isinstance(self.cell, IntegerCell)
            return self.cell.numbers.attributes(self.cell)
        given = {a.name: onnx.helper.get_attribute_value(a) for a in self.node.attribute}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in given.items()}


def places_of_cells(model: Model, cells: Mapping[str, Cell], known: Collection[str]) -> dict[str, Place]:
    """Returns the places of cells by their names, in the order of the model's graphs.

    Args:
        model: The model.
        cells: The cells of interest, by name.
        known: Names of all values of the model.

    Raises:
        CompileError: A fused node has no function, or a value of a cell is missing.
    """
    proto = model.proto
    functions = {(f.domain, f.name, f.overload) for f in proto.functions}
    found: dict[str, list[onnx.NodeProto]] = {}
    for graph in blocks_of([proto.graph]):
        tags = [next((p.value for p in n.metadata_props if p.key == CELL_TAG), "") for n in graph.node]
        for name in dict.fromkeys(t for t in tags if t in cells and t not in found):  # subgraph nodes have it, too
            found[name] = [n for n, t in zip(graph.node, tags, strict=True) if t == name]
    made = {}
    for name, nodes in found.items():
        node = nodes[0]
        if node.domain == DOMAIN and (node.domain, node.op_type, node.overload) not in functions:
            raise CompileError(
                f"Cell {name!r}: the model has no function for {node.op_type} {node.overload}".rstrip() + ".",
                supported="files with the functions that `rnnqc lower` writes: they say what a cell computes",
                action="lower the float model again",
            )
        cell = cells[name]
        if isinstance(cell, QuantizedCell):
            made[name] = _place(model, cell, nodes, known)
    return made


def _place(model: Model, cell: QuantizedCell, nodes: Sequence[onnx.NodeProto], known: Collection[str]) -> Place:
    type_ = fused_type(nodes[0].op_type) if nodes[0].domain == DOMAIN else None
    if type_ is not None:
        outputs = {f: v for f, v in zip(fused_outputs(type_), nodes[0].output, strict=False) if v}
        return Place(cell, nodes, given_inputs(nodes[0], input_names(type_)), outputs)
    if not isinstance(cell, IntegerCell):
        if not any(n.op_type == "Scan" for n in nodes):
            nodes = rolled(model, cell, nodes)
        made = {o for n in nodes for o in n.output}
        inputs = {i: i for n in nodes for i in sorted(reads(n)) if i not in made}
    else:
        data = {
            "X": cell.x,
            "X_scale": cell.x_scale,
            **{n: getattr(cell, n) for n in ("sequence_lens", "initial_h", "initial_c")},
        }
        inputs = {k: n for k, n in {**data, **cell.operands.as_dict()}.items() if n is not None}
    results = {
        "Y": cell.y,
        "Y_h": cell.y_h,
        "Y_c": cell.y_c,
        "Y_codes": cell.y_codes if isinstance(cell, IntegerCell) else None,
    }
    outputs = {k: n for k, n in results.items() if n is not None}
    missing = sorted({*inputs.values(), *outputs.values()} - set(known))
    if missing:
        raise CompileError(
            f"Cell {cell.name!r}: value {missing[0]!r} is not in the model. The file was changed since it was lowered.",
            supported="files as `rnnqc lower` writes them",
            action="lower the original model again",
        )
    return Place(cell, nodes, inputs, outputs)
