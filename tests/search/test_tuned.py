"""The recipe file of `rnnqc tune` reproduces the measured model.

What these would catch: a tuned model whose file, read again, gives another one: rules lost, or in another order, or
taken for the recipe's own so that they do not end a `same_as`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rnnqc
from rnnqc.recipes.recipe import Recipe, load_recipe, parse_recipe
from rnnqc.search.greedy import Found, Measured, Step, thinned
from rnnqc.search.tuned import Settings, Tuned, Unit, rules_of, shown_frontier, with_rules
from tests.generate.layers import RecurrentCase

MINE = """
name = "int8"
base = "int8"

[[rule]]
points = "*.input"
mode = "static"

[[rule]]
points = "*.R.weight"
same_as = "W.weight"
"""
SETTINGS: dict[str, Settings] = {
    "lstm[0].forward.W.weight": {"bits": 4, "group_size": 32, "wide_channels": 0.0},
    "lstm[0].forward.R.weight": {"bits": 8, "group_size": None, "wide_channels": 0.0, "compensation": True},
}


def tuned(recipe: Recipe, chosen: dict[str, Settings] = SETTINGS) -> Tuned:
    measured = Measured(1, 0.1, 10.0)
    units = [Unit(point, ({}, settings)) for point, settings in chosen.items()]
    steps = [Step(k, 0, 1, measured, 2, 20.0) for k in range(len(units))]
    found = Found(measured, (1,) * len(units), measured, True, steps)
    return Tuned(recipe, units, found, chosen, (2, 1), (0.0, 0.0), np.inf, True)


@pytest.mark.parametrize("name", ["int8", "pow2-int16", "mine.toml"])
def test_the_file_is_read_as_the_recipe_that_was_measured(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    recipe = load_recipe(str(path) if name == "mine.toml" else name)
    read, measured = parse_recipe(tuned(recipe).text, "tuned.toml"), with_rules(recipe, rules_of(SETTINGS))
    assert read.rules == measured.rules
    assert (read.kind, read.own) == (measured.kind, measured.own)


def test_nothing_chosen_is_the_recipe_itself() -> None:
    recipe = load_recipe("int8")
    assert with_rules(recipe, rules_of({})) is recipe


def test_the_file_lowers_as_the_model_that_was_measured(tmp_path: Path) -> None:
    """The hidden state follows the input in this recipe, and tuning gives it other bits."""
    path, case = tmp_path / "mine.toml", RecurrentCase(T=6, B=2, I=4, H=8)
    path.write_text(MINE.replace("*.R.weight", "*.hidden").replace("W.weight", "input"))
    stats = rnnqc.calibrate(case.model(), [case.feeds()])
    recipe = load_recipe(str(path))
    settings: dict[str, Settings] = {"the_lstm.forward.hidden": {"bits": 16}}
    (tmp_path / "tuned.toml").write_text(tuned(recipe, settings).text)
    read = rnnqc.lower(case.model(), str(tmp_path / "tuned.toml"), stats=stats)
    measured = rnnqc.lower(case.model(), with_rules(recipe, rules_of(settings)), stats=stats)
    assert {c.name: c.points for c in read.model.cells.values()} == {
        c.name: c.points for c in measured.model.cells.values()
    }


@pytest.mark.parametrize("chosen", range(20))
def test_the_frontier_that_is_shown_has_what_was_chosen(chosen: int) -> None:
    """Would catch: a table of the frontier without the line of the result."""
    points = [((k,), Measured(10 + k, 1.0, float(k))) for k in range(20)]
    found = Found(points[0][1], *points[chosen], reached=True, frontier=points)
    shown = shown_frontier(found, 8)
    assert len(shown) == 8 and points[chosen] in shown and shown == sorted(shown)
    assert (shown[0], shown[-1]) == (points[0], points[-1])
    assert shown_frontier(replace(found, assignment=(99,)), 8) == thinned(points, 8)
    assert shown_frontier(found, 30) == points
