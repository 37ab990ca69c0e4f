"""The values that connect a cell to the rest of its graph."""

from __future__ import annotations

from dataclasses import dataclass

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import IntegerCell
from rnnqc.errors import StructureError
from rnnqc.ir import Graph, Model, Value


@dataclass(frozen=True)
class Boundary:
    """The values that connect a cell to the rest of its graph."""

    x: Value
    sequence_lens: Value | None
    initial_h: Value | None
    initial_c: Value | None
    y: Value | None
    y_h: Value | None
    y_c: Value | None
    x_scale: Value | None = None


def boundary_of(model: Model, graph: Graph, cell: Cell) -> Boundary:
    """Looks up the boundary values of `cell` in `graph` and the graphs around it."""
    x_scale = cell.x_scale if isinstance(cell, IntegerCell) else None
    inputs = {cell.x, x_scale, cell.sequence_lens, cell.initial_h, cell.initial_c}
    names = (inputs | {cell.y, cell.y_h, cell.y_c}) - {None, ""}
    table: dict[str, Value] = {}
    for candidate in [model.graph, graph]:
        for node in candidate.nodes:
            for values in (node.inputs, node.outputs):
                for value in values:
                    if value.name in names:
                        table[value.name] = value
        table.update({v.name: v for v in [*candidate.inputs, *candidate.outputs]})

    def get(name: str | None) -> Value | None:
        if name is None:
            return None
        value = table.get(name) or model.find(name)
        if value is None:
            raise StructureError(f"Cell {cell.name!r}: value {name!r} is gone.")
        return value

    x = get(cell.x)
    assert x is not None
    return Boundary(
        x, get(cell.sequence_lens), get(cell.initial_h), get(cell.initial_c), get(cell.y), get(cell.y_h), get(cell.y_c),
        get(x_scale),
    )  # fmt: skip
