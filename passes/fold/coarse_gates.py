"""Gates so close to 1 or 0 that a piecewise-linear table cannot resolve the difference (no graph here)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, INPUT
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.tables import PIECEWISE_LINEAR

STEADY_BIAS = 7.0
"""Here 1 - sigmoid is 30 steps of the table, and a state decays in 1,100 steps of time."""


@dataclass(frozen=True)
class CoarseGates:
    """Gates of units with long-lived states.

    Attributes:
        gates: Their names: the gate that keeps the state, and the input gate if it adds as little.
        bias: The largest bias of the former.
    """

    gates: tuple[str, ...]
    bias: float


def coarse_gates(cell: QuantizedCell, bias: npt.NDArray[np.float32]) -> CoarseGates | None:
    """Returns the gates whose tables are too coarse for units of a cell; None if there are none.

    Args:
        cell: The cell.
        bias: `[GH]`, for all gates.
    """
    coupled = cell.type.cell_state and cell.input_forget
    kept_by = INPUT if coupled else FORGET if cell.type.cell_state else cell.type.update
    if kept_by is None:
        return None
    of_gates = bias.reshape(len(cell.type.gates), cell.hidden_size)
    keeping = -of_gates[kept_by] if coupled else of_gates[kept_by]
    steady = keeping >= STEADY_BIAS
    if not steady.any():
        return None
    concerned = [kept_by]
    if cell.type.cell_state and not coupled and (of_gates[INPUT][steady] <= -STEADY_BIAS).any():
        concerned.append(INPUT)
    found = tuple(cell.type.gates[k] for k in concerned if _is_coarse(cell, k))
    return CoarseGates(found, float(keeping.max())) if found else None


def _is_coarse(cell: QuantizedCell, gate: int) -> bool:
    point = cell.points[f"{cell.type.gates[gate]}.activation"]
    return cell.gate_activation(gate).name == "Sigmoid" and point.table == PIECEWISE_LINEAR
