"""The constant operands of a cell's integer form."""

from __future__ import annotations

from dataclasses import dataclass

from rnnqc.cells.stages import OperandNames
from rnnqc.ir import Value


@dataclass(frozen=True)
class Operands:
    """The constant inputs of the cell, as values of the main graph.

    Without multipliers W and R may be packed (uint8, rnnqc/formats/packing.py), with multipliers they always are. Only
    the arithmetic "grid" has int16 weights and zero points of weights.
    """

    W: Value
    R: Value
    x_multiplier: Value
    h_multiplier: Value
    B: Value
    gate_table: Value | None
    cell_table: Value | None
    P: Value | None = None
    hidden_bias: Value | None = None
    W_group_multiplier: Value | None = None
    R_group_multiplier: Value | None = None
    W_zero_point: Value | None = None
    R_zero_point: Value | None = None

    @property
    def names(self) -> OperandNames:
        """Returns their names."""
        return OperandNames(**{k: v.name for k, v in vars(self).items() if v is not None})
