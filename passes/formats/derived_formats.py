"""Formats that follow from those of other points of the same cell: `same_as`, and mode "product" of the bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.errors import CompileError, UsageError
from rnnqc.passes.formats.point_format import FLOAT, format_of
from rnnqc.recipes.recipe import Settings

Points = dict[str, dict[str, Any]]
PRODUCT = "product"


def is_derived(s: Settings) -> bool:
    """Whether a point with these settings has such a format."""
    return bool(s.get("same_as")) or s.get("mode") == PRODUCT


def targets_of(cell: Cell, name: str, target: str) -> list[str]:
    """The points whose format the point `name` takes with `same_as = target`: for the bias those of all gates."""
    if name == "bias" and target in ("input_product", "hidden_product", "acc"):
        return [f"{g}.{target}" for g in cell.type.gates]
    return [target]


def waits_for(name: str, s: Settings, later: Sequence[str]) -> bool:
    """Whether the format of the point `name` follows from one that is among `later`."""
    if s.get("mode") == PRODUCT:
        return any(n in later for n in ("input", "W.weight"))
    target = s["same_as"]
    return any(n == target or (name == "bias" and n.endswith(f".{target}")) for n in later)


def derived_format(cell: Cell, name: str, s: Settings, made: Points) -> dict[str, Any]:
    """The resolved point of such a format.

    Args:
        cell: The cell.
        name: Of the point.
        s: What the recipe says about it.
        made: The points it follows from.

    Raises:
        CompileError: These have no scales.
        UsageError: `same_as` names no point with one scale.
    """
    if s.get("mode") == PRODUCT:
        code, weight = made["input"], made["W.weight"]
        if "scale" not in code or "scale" not in weight:
            raise CompileError(
                "mode = product without the scales of input and W.",
                supported="static formats of input and W.weight",
                action="give both bits and mode = static",
            )
        columns = len(cell.type.gates) * cell.hidden_size
        unit = np.broadcast_to(np.asarray(weight["scale"], np.float64) * code["scale"][0], columns)
        scale, like = [float(v) for v in unit.astype(np.float32)], format_of({**s, "signed": True, "zero_point": 0})
        return {**like, "scale": scale, "axis": 0, "mode": "static"}
    target = s["same_as"]
    if name == "bias" and target in ("input_product", "hidden_product", "acc"):
        gates = [made.get(f"{g}.{target}", FLOAT) for g in cell.type.gates]
        gates = [g if "scale" in g else gates[0] for g in gates]  # the coupled forget gate has none
        _check_target(target, gates[0])
        scale = [float(v) for v in np.repeat([g["scale"][0] for g in gates], cell.hidden_size)]
        like = {k: gates[0][k] for k in ("bits", "signed", "narrow", "zero_point")}
        return {**like, "scale": scale, "axis": 0, "mode": "static", "rounding": format_of(s)["rounding"]}
    _check_target(target, made.get(target, FLOAT))
    like = {k: made[target][k] for k in ("bits", "signed", "narrow", "scale", "zero_point", "axis", "mode")}
    own = {"table": s["table"]} if "table" in s and name.endswith("activation") else {}
    return {**like, "rounding": format_of(s)["rounding"], **own}


def _check_target(target: str, point: Mapping[str, Any]) -> None:
    if "scale" not in point or len(point["scale"]) != 1:
        raise UsageError(
            f"same_as = {target!r}, which is no point of this cell with one scale of its own.",
            supported="a point with a static format that does not follow from another one",
        )
