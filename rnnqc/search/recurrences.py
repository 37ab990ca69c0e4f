"""The recurrences of a model that have quantization points: cells of LSTM, GRU and RNN layers, and custom cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rnnqc.cells.activations import TABLE
from rnnqc.cells.base import Cell
from rnnqc.cells.stages import points_of
from rnnqc.data.statistics import identity
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.ir import Model
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, WEIGHT
from rnnqc.passes.analysis.custom_products import custom_cells

ACCUMULATOR = "accumulator"
OF_GATES = ("acc", "activation", "input_product", "hidden_product")
"""Kinds of points that every gate of a cell has."""
OF_OTHERS = (WEIGHT, HIDDEN, BIAS, "sigmoid.value", "tanh.value", "input.value")
"""Kinds of points that a custom cell may have several times."""


@dataclass(frozen=True)
class Recurrence:
    """One direction of a recurrent layer, or a custom cell.

    Attributes:
        name: The prefix of the names of its points.
        node: The recurrent node, the loop, or the first matmul, with its path through subgraphs.
        points: Formats of its points; for a custom cell only quantized ones.
        sizes: Properties that distinguish it from another one of the same name.
        cell: None for a custom cell.
    """

    name: str
    node: str
    points: Mapping[str, PointFormat]
    sizes: Mapping[str, Any]
    cell: Cell | None = None

    @property
    def quantized(self) -> list[str]:
        """The points that have a number format, named without the recurrence."""
        return [p for p, s in self.points.items() if s.is_quantized]

    @property
    def form(self) -> str:
        """The form of its arithmetic, for people."""
        if self.cell is not None:
            return self.cell.form
        whole = sum(p.endswith(f".{WEIGHT}") for p in self.sizes["points"])
        floats = whole - sum(p.endswith(f".{WEIGHT}") for p in self.quantized)
        return f"{floats} of {whole} products float" if floats else "products"

    def kind(self, point: str) -> str:
        """The kind that a point shares with others that are tried together; the point itself if there are none."""
        kinds = OF_OTHERS if self.cell is None else OF_GATES
        return next((k for k in kinds if point.endswith(f".{k}")), point)

    def limit(self, point: str) -> float:
        """The magnitude beyond which a value makes no difference, as for pre-activations beyond a table's range."""
        gate, _, kind = point.partition(".")
        if self.cell is None or kind != "acc":
            return math.inf
        activation = self.cell.gate_activation(self.cell.type.gates.index(gate))
        return activation.limit if activation.kind == TABLE else math.inf


def recurrences_of(model: Model) -> dict[str, Recurrence]:
    """Returns every lowered recurrence of a model, by its name."""
    found = {c.name: Recurrence(c.name, c.node, points_of(c), identity(c), c) for c in model.cells.values()}
    for record in custom_cells(model).values():
        points = {p: PointFormat.from_dict(f) for p, f in record.get("formats", {}).items()}
        sizes = {"op": record["op"], "points": sorted(record["points"])}
        found[record["name"]] = Recurrence(record["name"], record["path"], points, sizes)
    return found


def quantized_points(recurrences: Mapping[str, Recurrence]) -> dict[str, None]:
    """Returns the names of all points with a number format, in order."""
    return dict.fromkeys(f"{r.name}.{p}" for r in recurrences.values() for p in r.quantized)


def point_of(recurrences: Mapping[str, Recurrence], path: str) -> PointFormat:
    """Returns the format of the point `<recurrence>.<point>`; float if there is none."""
    for recurrence in recurrences.values():
        below = path.removeprefix(f"{recurrence.name}.")
        if below != path and below in recurrence.points:
            return recurrence.points[below]
    return FLOAT
