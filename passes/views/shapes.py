"""Shapes that hold whatever a file declares."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.cells.stages import FusedCell
from rnnqc.ir import Model, Value, shape_of

Shape = list[int | str | None]
_SWEEPS = 16


def infer_shapes_of_values(model: Model) -> None:
    """Notes the shapes that follow from the inputs of the model, from constants, and from the sizes of cells."""
    values = {v.name: v for g in model.graphs() for n in g.nodes for v in [*n.inputs, *n.outputs]}
    known: dict[str, Shape] = {}
    for _ in range(_SWEEPS):
        model.infer_shapes(known)
        found = {
            name: shape
            for cell in model.cells.values()
            if isinstance(cell, FusedCell)
            for name, shape in _outputs(cell, shape_of(values.get(cell.x)), values).items()
        }
        if found == known:
            return
        known = found


def _outputs(cell: FusedCell, x: Sequence[int | str | None] | None, values: dict[str, Value]) -> dict[str, Shape]:
    """The shapes of a fused cell's outputs, as far as that of its input is known."""
    found: dict[str, Shape] = {}
    if x is None or len(x) != 3:
        return found
    length, batch, _ = x
    for name, sequence in ((cell.y, True), (cell.y_codes, True), (cell.y_h, False), (cell.y_c, False)):
        before = shape_of(values.get(name)) if name is not None else None
        if name is None or before is None:
            continue
        plain: Shape = [length, batch, cell.hidden_size] if sequence else [batch, cell.hidden_size]
        if len(before) == len(plain) + 1:
            plain.insert(1 if sequence else 0, 1)
        if len(before) == len(plain):
            found[name] = plain
    return found
