"""What fold-scales has to write, from the quantizers that the graph has before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.ir import Model
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.fold.grid_numbers import GRID, GRID32
from rnnqc.passes.formats.brevitas_contract import misfits
from rnnqc.passes.render.check_fold_grid import GridCheck, check_knots, grid_before
from rnnqc.passes.render.check_fold_tables import TablesCheck
from rnnqc.passes.render.check_tables import values_of_tables
from rnnqc.passes.render.read_cell import constants_of, read_cell

TABLES = ("gate_table", "cell_table")


def operands_of(model: Model, cells: Sequence[Cell]) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """The constants of integer cells and the tables that nodes make, by the cell's name and that of the operand."""
    tables = values_of_tables(model, [c.operands[k] for c in cells for k in TABLES if k in c.operands])
    found = {c.name: constants_of(model, c.operands) for c in cells}
    for cell in cells:
        found[cell.name] |= {k: tables[cell.operands[k]] for k in TABLES if cell.operands.get(k) in tables}
    return found


class FoldScalesCheck(ConstantCheck):
    """Multipliers, biases, tables and numbers of every cell, from the scales in the graph before.

    Args:
        model: Before the pass.
    """

    def __init__(self, model: Model) -> None:
        cells = [c for c in model.cells.values() if c.form == "qcdq" and not c.kept]
        self._before = {c.name: read_cell(model, c) for c in cells}

    def findings(self, after: Model) -> Findings:
        """Compares every cell that the pass has folded."""
        found = Findings()
        cells = [c for n, c in after.cells.items() if n in self._before and c.form == "integer"]
        of_cells = operands_of(after, cells)
        for cell in cells:
            before, operands = self._before[cell.name], of_cells[cell.name]
            if before is None:
                found.passed_over.append(f"{cell.name} (weights that are no codes)")
                continue
            arithmetic = cell.integer.get("arithmetic")
            if arithmetic in (GRID, GRID32):
                float32 = not misfits(before.cell)
                found.word(f"arithmetic of {cell.name}", arithmetic, GRID32 if float32 else GRID, node=cell.name)
                GridCheck(found, grid_before(before, float32=float32), cell, operands).run(after)
                check_knots(found, before, cell)
            else:
                TablesCheck(found, before, cell, operands).run(after)
        return found
