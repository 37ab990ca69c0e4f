"""Lowers fix positions of a cell's matmuls until fixed-point hardware can shift between them.

The limits are in rnnqc/formats/shift_limits.py.

This applies to weights with `shift_limits`, once all formats of the cell are known, including a chained input's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.stages import QuantizedCell
from rnnqc.formats.fix_position import position_of, scale_of
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.scales import is_power_of_two
from rnnqc.formats.shift_limits import ProductPositions, within_shift_limits
from rnnqc.passes.formats.quantized_parameters import MULTIPLIED


@dataclass(frozen=True)
class ShiftRemark:
    """A fix position that was lowered, or a matmul that could not be checked.

    Attributes:
        reason: The quantization point, and the change.
        found: The original shifts.
    """

    reason: str
    found: str


def limit_shifts(cell: QuantizedCell) -> tuple[QuantizedCell, list[ShiftRemark]]:
    """Returns the cell with permitted shifts in the formats of its matmuls, and the changes.

    If the output channels of a gate have separate fix positions, the coarsest of them determines the result's.
    """
    remarks: list[ShiftRemark] = []
    points = dict(cell.points)
    for key, source in MULTIPLIED.items():
        if points[f"{key}.weight"].shift_limits:
            for number in range(len(cell.type.gates)):
                remarks += _limit(cell, points, f"{key}.weight", source, number)
    return (replace(cell, points=points) if remarks else cell), remarks


def _limit(cell: Cell, points: dict[str, PointFormat], weight: str, source: str, number: int) -> Iterator[ShiftRemark]:
    """Changes the formats of one matmul in `points`; yields the changes."""
    gate = cell.type.gates[number]
    codes = _meets(cell, source, number)
    names = {"weight": weight, "output": f"{gate}.{source}_product"}
    if not all(points[p].scale for p in (*names.values(), codes)):
        return
    if source == "input" and points["bias"].scale:
        names["bias"] = "bias"
    scales = {role: _of_gate(cell, points[name], number) for role, name in names.items()}
    if not all(is_power_of_two(s) for s in (*points[codes].scale, *(s for v in scales.values() for s in v))):
        at = ", ".join((*names.values(), codes))
        yield ShiftRemark(
            f"{cell.name}.{names['output']}: shifts have no limits where scales are no powers of two.", at
        )
        return
    found = {role: [position_of(s) for s in v] for role, v in scales.items()}
    made, lowered = lowered_positions(found, position_of(points[codes].scale[0]))
    for role, was, now, text in lowered:
        part = "" if role == "output" else f" of the {gate.replace('_', ' ')}"
        yield ShiftRemark(f"{cell.name}.{names[role]}{part}: fix position {was} is lowered to {now}.", text)
    for role, name in names.items():
        if made[role] != found[role]:
            points[name] = _of_positions(cell, name, points[name], number, made[role])


Positions = Mapping[str, Sequence[int]]
"""Fix positions of the columns of a product, by their part in it: "weight", "output", and "bias" if there is one."""


def lowered_positions(found: Positions, meets: int) -> tuple[Positions, list[tuple[str, int, int, str]]]:
    """Lowers the positions of one matmul until its shifts are permitted.

    Args:
        found: The calibrated positions; for the output one position, repeated for each column.
        meets: The position of the other operand.

    Returns:
        The positions, and the changes: the part, its position before and after, and the original shifts.
    """
    made = {role: list(v) for role, v in found.items()}
    lowered: list[tuple[str, int, int, str]] = []
    output = found["output"][0]
    biases: Sequence[int | None] = found.get("bias", [None] * len(found["weight"]))
    # The coarsest weights first: they lower the result.
    for w, b in sorted(set(zip(found["weight"], biases, strict=True)), key=lambda pair: (pair[0], pair[1] or 0)):
        before = ProductPositions(w, meets, output, b)
        after = within_shift_limits(before)
        if after == before:
            continue
        text = f"shift_cut = {before.shift_cut} (0 to 16 allowed)"
        if before.shift_bias is not None:
            text += f", shift_bias = {before.shift_bias} ({before.least_shift_bias} to 16 allowed)"
        output = after.output
        for k in (k for k, pair in enumerate(zip(found["weight"], biases, strict=True)) if pair == (w, b)):
            made["weight"][k] = after.weight
            if after.bias is not None:
                made["bias"][k] = after.bias
        changes = ((role, getattr(before, role), getattr(after, role)) for role in found)
        lowered += [(role, was, now, text) for role, was, now in changes if was != now]
    made["output"] = [output] * len(made["output"])
    return made, lowered


def _meets(cell: Cell, source: str, number: int) -> str:
    """The point whose quantized values the weights of a gate multiply."""
    resets = cell.resets_state and number == cell.type.candidate
    return RESET_HIDDEN if source == "hidden" and resets else source


def _of_gate(cell: Cell, point: PointFormat, number: int) -> list[float]:
    """Scales of the columns of a gate; a single scale is repeated."""
    scale, size = point.scale, cell.hidden_size
    return list(scale) * size if len(scale) == 1 else list(scale[number * size : (number + 1) * size])


def _of_positions(cell: Cell, name: str, point: PointFormat, number: int, positions: Sequence[int]) -> PointFormat:
    """The format of a point with other fix positions for one gate."""
    size, held = cell.hidden_size, point.complete
    values = [scale_of(p) for p in positions]
    if name.endswith("_product"):
        return replace(point, format=replace(held, scale=tuple(values[:1])))
    scale = list(held.scale) * (len(cell.type.gates) * size if len(held.scale) == 1 else 1)
    scale[number * size : (number + 1) * size] = values
    return replace(point, format=replace(held, scale=tuple(scale), axis=1 if name.endswith("weight") else 0))
