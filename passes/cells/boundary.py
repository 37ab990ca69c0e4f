"""The values that connect a cell to the rest of its graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    return boundaries_of(model, {cell.name: graph}, [cell])[cell.name]


def boundaries_of(model: Model, graphs: Mapping[str, Graph], cells: Iterable[Cell]) -> dict[str, Boundary]:
    """Looks up the boundary values of cells, by cell, in one walk of each graph.

    Args:
        model: The model.
        graphs: The graph of each cell, by name of the cell.
        cells: The cells.
    """
    together: dict[int, list[Cell]] = {}
    for cell in cells:
        together.setdefault(id(graphs[cell.name]), []).append(cell)
    found: dict[str, Boundary] = {}
    for members in together.values():
        names = {name for c in members for name in _names(c) if name}
        table = _values(model, graphs[members[0].name], names)
        found |= {c.name: _boundary(model, c, table) for c in members}
    return found


def _names(cell: Cell) -> list[str | None]:
    """The names of its boundary values, in the order of the fields of `Boundary`."""
    x_scale = cell.x_scale if isinstance(cell, IntegerCell) else None
    return [cell.x, cell.sequence_lens, cell.initial_h, cell.initial_c, cell.y, cell.y_h, cell.y_c, x_scale]


def _values(model: Model, graph: Graph, names: Collection[str]) -> dict[str, Value]:
    """The values of a graph and of the main graph with these names."""
    table: dict[str, Value] = {}
    for candidate in [model.graph, graph]:
        for node in candidate.nodes:
            for values in (node.inputs, node.outputs):
                for value in values:
                    if value.name in names:
                        table[value.name] = value
        table.update({v.name: v for v in [*candidate.inputs, *candidate.outputs]})
    return table


def _boundary(model: Model, cell: Cell, table: Mapping[str, Value]) -> Boundary:
    def get(name: str | None) -> Value | None:
        if name is None:
            return None
        value = table.get(name) or model.find(name)
        if value is None:
            raise StructureError(f"Cell {cell.name!r}: value {name!r} is gone.")
        return value

    x, *others = map(get, _names(cell))
    assert x is not None
    return Boundary(x, *others)
