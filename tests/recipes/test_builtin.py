"""The summaries of the power-of-two recipes are true at every point of every type of cell.

What these would catch: a point that a rule's pattern leaves out, so that it has the rounding or the scale of the base.
"""

from __future__ import annotations

from typing import Any

import pytest

import rnnqc
from rnnqc.cells.types import CELL_TYPES
from rnnqc.recipes.recipe import load_recipe
from tests.generate.layers import RecurrentCase

CASES: dict[str, dict[str, Any]] = {
    "LSTM": {},
    "GRU": {"op": "GRU"},
    "GRU_linear": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}
PARAMETERS = ("W.weight", "R.weight", "bias")
FLOOR = ("pow2-int16", "pow2-w8a16", "pow2-int8-floor")


def points_of(case: str, recipe: str) -> dict[str, dict[str, Any]]:
    """The formats of the points that have one, by their names in the cell."""
    subject = RecurrentCase(T=12, B=3, I=6, H=8, seed=3, **CASES[case])
    lowered = rnnqc.lower(subject.model(), recipe, calibration=[subject.feeds()])
    (cell,) = lowered.model.cells
    return {n.removeprefix(f"{cell}."): dict(p) for n, p in lowered.report.points.items() if p.get("scale")}


@pytest.mark.parametrize("case", CASES)
def test_pow2_int8_rounds_to_nearest_and_every_point_has_its_own_scale(case: str) -> None:
    points = points_of(case, "pow2-int8")
    assert len(points) > 7
    for name, point in points.items():
        assert point["rounding"] == ("half_away" if name in PARAMETERS else "half_even"), name
        assert point["source"].startswith("as input_product" if name == "bias" else "range "), name


@pytest.mark.few(3)
@pytest.mark.parametrize("recipe", FLOOR)
@pytest.mark.parametrize("case", CASES)
def test_vitis_arithmetic_rounds_down_and_has_one_scale_in_the_cell(case: str, recipe: str) -> None:
    points = points_of(case, recipe)
    for name, point in points.items():
        assert point["rounding"] == ("half_away" if name in PARAMETERS else "floor"), name
        own = name in ("input", "hidden", "W.weight", "R.weight") or name.endswith(".activation")
        assert point["source"].startswith("range " if own else "as "), name


@pytest.mark.parametrize("recipe", [*FLOOR, "pow2-int8"])
def test_the_rules_say_so_of_every_point(recipe: str) -> None:
    """Of points that a lowered cell need not have, too."""
    rules = load_recipe(recipe)
    for type_ in CELL_TYPES.values():
        for point in type_.points:
            settings = rules.settings(f"lstm.forward.{point.name}")
            if point.name == "accumulator":
                assert settings["bits"] is None
                continue
            nearest = "half_away" if point.name in PARAMETERS else "half_even"
            assert settings["rounding"] == (nearest if recipe == "pow2-int8" or nearest == "half_away" else "floor")
