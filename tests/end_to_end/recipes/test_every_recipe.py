"""Every recipe that comes with rnnqc: how close it comes to float, and what data it needs.

What these would catch: a recipe whose scales or tables are wrong in a way that equal bits (tests/laws) do not show; a
calibrated point that nobody measured.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.recipes.recipe import builtin_recipes
from tests.generate.layer_specs import Op
from tests.generate.layers import RecurrentCase
from tests.laws.law import assert_on_grids
from tests.laws.layers import WITHOUT_DATA
from tests.laws.parametrize import in_turn
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import run, sqnr

OPS: tuple[tuple[Op, bool], ...] = (("GRU", False), ("GRU", True), ("RNN", False))
CELLS = [r.name for r in builtin_recipes() if r.kind == "cells"]
# Of Y of one calibrated layer of 24 units: what each reaches, less about 3 dB.
SQNR_DB = {
    "int8": 39.5, "int8-static": 36.0, "int16": 42.0, "w4a8": 17.7, "w4a8-uneven": 19.0, "w5a8": 20.0, "w6a8": 25.0,
    "pow2-int16": 35.0, "pow2-int8": 25.5, "pow2-w8a16": 33.0, "pow2-int8-floor": 11.0,
    "brevitas-int8": 22.8, "distiller-sym": 27.3, "distiller-asym": 27.9, "distiller-avg": 13.0,
}  # fmt: skip
FIXED_POINT = ("pow2-int16", "pow2-int8", "pow2-int8-floor", "brevitas-int8", *(r for r in CELLS if "distiller" in r))
"""Recipes all of whose points are static."""


def test_every_recipe_has_a_bar() -> None:
    assert set(SQNR_DB) == set(CELLS)


def _accuracy(recipe: str, case: RecurrentCase) -> None:
    model = case.model()
    statistics = calibrate(model, [case.replace(seed=s).feeds() for s in range(4, 8)])
    lowered = rnnqc.lower(model, recipe, stats=statistics)
    assert [e.form for e in lowered.report.entries] == ["fused"]
    if recipe in FIXED_POINT:
        assert_on_grids(lowered)
    got, expected = run(session(lowered.proto, STOCK), case.feeds()), case.expected(case.feeds())
    reached = sqnr(expected["Y"], got["Y"])
    print(recipe, f"{reached:.1f} dB")
    assert reached >= SQNR_DB[recipe], recipe


@pytest.mark.few(3)
@pytest.mark.parametrize("recipe", CELLS)
def test_accuracy_of_a_layer(recipe: str) -> None:
    _accuracy(recipe, RecurrentCase(T=24, B=4, I=16, H=24, seed=3))


@pytest.mark.few(3)
@in_turn(recipe=CELLS, op=OPS)
def test_accuracy_of_a_gru_or_rnn(recipe: str, op: tuple[Op, bool]) -> None:
    """As close to float as an LSTM with the same recipe."""
    _accuracy(recipe, RecurrentCase(T=24, B=4, I=16, H=24, seed=3, op=op[0], linear_before_reset=op[1]))


@pytest.mark.parametrize("recipe", CELLS)
def test_data_is_asked_for_where_it_is_needed(recipe: str) -> None:
    model = RecurrentCase(T=3, B=1, I=4, H=4).model()
    if recipe in WITHOUT_DATA:
        assert np.isfinite(rnnqc.lower(model, recipe).report.bytes)
    else:
        with pytest.raises(
            rnnqc.CompileError, match=r"has no scale, and there is no calibration data.*calibration=DATA"
        ):
            rnnqc.lower(model, recipe)


def test_a_branch_that_the_data_never_took_stays_float() -> None:
    case = RecurrentCase(T=3, B=1, I=4, H=4, placement="if")
    model = case.model()
    statistics = calibrate(model, [case.feeds()])
    lowered = rnnqc.lower(model, "brevitas-int8", stats=statistics)
    assert [e.status for e in lowered.report.entries].count("float") == 1
    assert "none reached it" in lowered.report.float_entries[0].reason
    with pytest.raises(rnnqc.CompileError, match="calibrate with data that runs it"):
        rnnqc.lower(model, "brevitas-int8", stats=statistics, strict=True)
    assert not rnnqc.lower(model, "int8", stats=statistics).report.float_entries
