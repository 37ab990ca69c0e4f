"""Gates so close to 1 that a piecewise-linear table cannot tell how far away (no graph here)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, INPUT, Cell
from rnnqc.cells.stages import QuantizedCell
from rnnqc.formats.point_format import PointFormat

STEADY_BIAS = 8.0
"""Here 1 - sigmoid is 11 steps of the table, and a state decays in 3,000 steps of time."""


def coarse_gate(cell: QuantizedCell, bias: npt.NDArray[np.float32]) -> tuple[str, float] | None:
    """The gate that keeps the state, and its largest bias, if its table is too coarse for it; else None.

    Args:
        cell: The cell.
        bias: `[GH]`, of all gates.
    """
    k = _keeping_gate(cell)
    if k is None or cell.gate_activation(k).name != "Sigmoid" or not _is_piecewise_linear(cell, k):
        return None
    of_gate = bias[k * cell.hidden_size : (k + 1) * cell.hidden_size]
    largest = float(np.max(-of_gate if k == INPUT and cell.input_forget else of_gate))
    return (cell.type.gates[k], largest) if largest >= STEADY_BIAS else None


def _keeping_gate(cell: Cell) -> int | None:
    if not cell.type.cell_state:
        return cell.type.update
    return INPUT if cell.input_forget else FORGET


def _is_piecewise_linear(cell: QuantizedCell, k: int) -> bool:
    point: PointFormat = cell.points[f"{cell.type.gates[k]}.activation"]
    return point.table == "piecewise-linear"
