"""Formats derived from those of other points of the same cell: `same_as`, and mode "product" of the bias."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.errors import CompileError, UsageError
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.passes.formats.point_format import integer_format, with_scale
from rnnqc.recipes.keys import Settings, rounding_of

Points = dict[str, PointFormat]
PRODUCT = "product"


def is_derived(s: Settings) -> bool:
    """Whether a point with these settings has a derived format."""
    return bool(s.get("same_as")) or s.get("mode") == PRODUCT


def targets_of(cell: Cell, name: str, target: str) -> list[str]:
    """Returns the points whose format `name` gets with `same_as = target`: for the bias those of all gates."""
    if name == "bias" and target in ("input_product", "hidden_product", "acc"):
        return [f"{g}.{target}" for g in cell.type.gates]
    return [target]


def follows_float(cell: Cell, name: str, s: Settings, floats: Collection[str]) -> bool:
    """Whether a derived point stays float: its source is among `floats`, points that the recipe leaves float."""
    if s.get("mode") == PRODUCT:
        return "input" in floats or "W.weight" in floats
    return all(target in floats for target in targets_of(cell, name, s["same_as"]))


def waits_for(name: str, s: Settings, later: Sequence[str]) -> bool:
    """Whether the format of the point `name` depends on one among `later`."""
    if s.get("mode") == PRODUCT:
        return any(n in later for n in ("input", "W.weight"))
    target = s["same_as"]
    return any(n == target or (name == "bias" and n.endswith(f".{target}")) for n in later)


def derived_format(cell: Cell, name: str, s: Settings, made: Points) -> PointFormat:
    """Returns the format of a derived point.

    Args:
        cell: The cell.
        name: Name of the point.
        s: Its settings in the recipe.
        made: The points it depends on.

    Raises:
        CompileError: The source points have no scales.
        UsageError: `same_as` does not name a point with one scale.
    """
    if s.get("mode") == PRODUCT:
        code, weight = made["input"].static, made["W.weight"].static
        if code is None or weight is None:
            raise CompileError(
                "mode = product without the scales of input and W.",
                supported="static formats of input and W.weight",
                action="give both bits and mode = static",
            )
        return product_format(s, code, weight, len(cell.type.gates) * cell.hidden_size)
    target, rounding = s["same_as"], rounding_of(s)
    if name == "bias" and target in ("input_product", "hidden_product", "acc"):
        gates = [made.get(f"{g}.{target}", FLOAT) for g in cell.type.gates]
        gates = [g if g.scale else gates[0] for g in gates]  # the coupled forget gate has no format
        first = _one_scale(target, gates[0])
        scale = tuple(float(v) for v in np.repeat([g.scale[0] for g in gates], cell.hidden_size))
        return PointFormat.of(replace(first, scale=scale, axis=0, rounding=rounding))
    like = replace(_one_scale(target, made.get(target, FLOAT)), rounding=rounding)
    return replace(
        PointFormat.of(like),
        mode=made[target].mode,
        table=s.get("table") if name.endswith("activation") else None,
    )


def product_format(s: Settings, code: Format, weight: Format, columns: int) -> PointFormat:
    """Returns the format of a sum of products of quantized values, with one scale per output column.

    Args:
        s: Its settings in the recipe.
        code: Format of the other operand, with one scale.
        weight: Format of the weights.
        columns: Number of output channels.

    Raises:
        FormatError: The products of the scales are not valid scales.
    """
    unit = np.broadcast_to(np.asarray(weight.scale, np.float64) * code.scale[0], columns)
    asked = integer_format({**s, "signed": True, "zero_point": 0})
    return PointFormat.of(with_scale(asked, [float(v) for v in unit.astype(np.float32)], axis=0))


def _one_scale(target: str, point: PointFormat) -> Format:
    """The format of a point with one scale, for use by another point."""
    if len(point.scale) != 1:
        raise UsageError(
            f"same_as = {target!r}, which is no point of this cell with one scale of its own.",
            supported="a point with a static format that does not follow from another one",
        )
    assert point.bits is not None
    return replace(point.complete, bits=point.bits, zero_points=())
