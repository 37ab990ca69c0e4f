"""The outputs of an integer cell from the results of its loop."""

from __future__ import annotations

from rnnqc.cells.base import Cell
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.emit_cell import Boundary, LengthMasks


def finish_integer(
    b: Builder,
    cell: Cell,
    at: Boundary,
    codes: Value | None,
    results: dict[str, Value],
    cell_scale: float,
    h_zero_point: int,
) -> None:
    """Writes the boundary outputs from the results of the loop.

    Args:
        b: Collects the nodes.
        cell: The cell.
        at: Its boundary.
        codes: Value that receives the hidden codes, or None.
        results: `hidden.steps`, `hidden.codes.steps`, `cell_state.steps` `[T,B,H]` and `cell_state.last` `[B,H]`, as
            far as they are needed.
        cell_scale: Real value of one unit of the cell state in `results`; 0 for real values.
        h_zero_point: The hidden code that stands for 0.
    """
    y, y_codes = results.get("hidden.steps"), results.get("hidden.codes.steps")

    def cell_state(value: Value, target: Value) -> None:
        if cell_scale:
            b.add("Mul", [value, b.f32(cell_scale)], [target], "Y_c")
        else:
            b.add("Identity", [value], [target], "Y_c")

    if at.sequence_lens is None:
        if at.y is not None:
            b.add("Identity", [y], [at.y], "Y")
        if codes is not None:
            b.add("Identity", [y_codes], [codes], "Y_codes")
        if at.y_h is not None:
            b.add("Gather", [y, b.i64(0 if cell.reverse else -1)], [at.y_h], "Y_h", axis=0)
        if at.y_c is not None:
            cell_state(results["cell_state.last"], at.y_c)
        return
    masks = LengthMasks(b, at)
    if at.y is not None and y is not None:
        masks.natural_order(masks.mask_float(y, "hidden.masked"), at.y, cell.reverse, "Y")
    if codes is not None:
        blank = b.u8(h_zero_point)
        masks.natural_order(masks.mask(y_codes, blank, "codes.masked"), codes, cell.reverse, "Y_codes")
    if at.y_h is not None and y is not None:
        b.add("Identity", [masks.pick(y, "hidden.picked")], [at.y_h], "Y_h")
    if at.y_c is not None:
        cell_state(masks.pick(results["cell_state.steps"], "cell_state.picked"), at.y_c)
