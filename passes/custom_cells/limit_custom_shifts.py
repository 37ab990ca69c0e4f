"""Lowers fix positions of a custom cell's matmuls until fixed-point hardware can shift between them.

The limits are in rnnqc/formats/shift_limits.py. They apply to weights with `shift_limits`, once all formats are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace

from rnnqc.formats.fix_position import position_of, scale_of
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.analysis.custom_cell import BIAS, WEIGHT, CustomCell
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.formats.limit_shifts import ShiftRemark, lowered_positions

Points = MutableMapping[str, PointFormat]
Operand = Callable[[str, CustomProduct], PointFormat | None]
_PASSES = 8
"""Number of rounds: a result whose position is lowered may be the operand of another matmul."""


def limit_custom_shifts(cell: CustomCell, points: Points, operand: Operand, products: list[str]) -> list[ShiftRemark]:
    """Changes formats of matmuls whose shifts exceed the limits; returns remarks about the changes.

    Args:
        cell: The cell.
        points: The formats of its points; changed.
        operand: Returns the format of a matmul's left operand.
        products: The names of the matmuls to limit.
    """
    remarks: list[ShiftRemark] = []
    for _ in range(_PASSES):
        found = [note for name in products for note in _limit(cell, points, operand, name)]
        new = [note for note in found if note not in remarks]
        remarks += new
        if not new:
            return remarks
    text = f"{cell.name}: shifts stay beyond the limits: products lower what they read themselves."
    return [*remarks, ShiftRemark(text, remarks[-1].found)]


def _limit(cell: CustomCell, points: Points, operand: Operand, name: str) -> Iterator[ShiftRemark]:
    """Changes the formats of one matmul."""
    sites = cell.products[name]
    names = {"weight": f"{name}.{WEIGHT}", "output": cell.origins.get(id(cell.sum_of(sites[0])), "")}
    if points.get(f"{name}.{BIAS}", FLOAT).static is not None:
        names["bias"] = f"{name}.{BIAS}"
    met = {code.scale[0]: None for site in sites if (code := operand(name, site)) is not None and code.scale}
    if not met or not all(points.get(p, FLOAT).scale for p in names.values()):
        return
    columns = sites[0].weights.shape[1]
    scales = {role: _of_columns(points[p].scale, columns) for role, p in names.items()}
    if not all(is_power_of_two(s) for s in (*met, *(s for v in scales.values() for s in v))):
        text = f"{cell.name}.{name}: shifts have no limits where scales are no powers of two."
        yield ShiftRemark(text, ", ".join(names.values()))
        return
    for scale in met:
        found = {role: [position_of(s) for s in v] for role, v in scales.items()}
        made, lowered = lowered_positions(found, position_of(scale))
        for role, was, now, text in lowered:
            yield ShiftRemark(f"{cell.name}.{names[role]}: fix position {was} is lowered to {now}.", text)
        scales = {role: [scale_of(p) for p in v] for role, v in made.items()}
        for role, point in names.items():
            if made[role] != found[role]:
                points[point] = _of_scales(points[point], role, scales[role])


def _of_columns(scale: tuple[float, ...], columns: int) -> list[float]:
    return list(scale) * columns if len(scale) == 1 else list(scale)


def _of_scales(point: PointFormat, role: str, scales: list[float]) -> PointFormat:
    """Returns the format of a point with new column scales."""
    held = point.complete
    if len(set(scales)) == 1 and len(held.scale) == 1:
        return replace(point, format=replace(held, scale=(scales[0],)))
    return replace(point, format=replace(held, scale=tuple(scales), axis=1 if role == "weight" else 0))
