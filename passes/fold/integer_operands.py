"""What the integer form of a cell is made from, and what is wanted of it."""

from __future__ import annotations

from dataclasses import dataclass

from rnnqc.ir import Value
from rnnqc.passes.cells.emit_cell import Boundary


@dataclass(frozen=True)
class Operands:
    """The constant inputs of the cell, as values of the main graph.

    Without multipliers W and R may be packed int4 (uint8 `[K,ceil(GH/2)]`), with multipliers they are. Only the
    arithmetic "grid" has int16 weights and zero points of weights.
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


@dataclass(frozen=True)
class Wanted:
    """Which results of the loop are needed: hidden states, their codes, cell states of all steps, the last one."""

    y: bool
    codes: bool
    c_steps: bool
    last_c: bool

    @classmethod
    def of(cls, at: Boundary, codes: Value | None) -> Wanted:
        """What a cell with these boundary values needs, and `codes` `[T,B,H]` where an integer consumer follows."""
        return cls(
            y=at.y is not None or at.y_h is not None,
            codes=codes is not None,
            c_steps=at.y_c is not None and at.sequence_lens is not None,
            last_c=at.y_c is not None and at.sequence_lens is None,
        )
