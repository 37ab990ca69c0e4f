"""Scales `A / 2**n` from the recipe to the cell: integer-only requantization.

What these would catch: a scale that escapes the key (of weights that are compensated, of a bound, one that is given), a
multiplier of more bits, outputs that move by more than a code. That all forms have the same bits, tests/laws says.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from tests.generate.layers import RecurrentCase
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import Array, run

CASE = RecurrentCase(T=12, B=3, I=8, H=16, seed=5)
RECIPES = ("int8", "int8-static", "int16", "w4a8", "brevitas-int8", "distiller-sym", "distiller-asym")
BITS = (2, 8, 15)


@cache
def statistics() -> Statistics:
    return rnnqc.calibrate(CASE.model(), [CASE.replace(seed=s).feeds() for s in (6, 7)])


def scales(recipe: str, *overrides: str) -> dict[str, tuple[float, ...]]:
    lowered = rnnqc.lower(CASE.model(), recipe, stats=statistics(), overrides=overrides)
    (cell,) = lowered.model.cells.values()
    return {name: p.scale for name, p in cell.points.items() if p.scale}


def multiplier(scale: float) -> int:
    """A of `A / 2**n` with the fewest bits."""
    numerator = Fraction(scale).numerator
    return numerator // (numerator & -numerator)


@pytest.mark.few(2)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("bits", BITS)
def test_every_scale_has_a_multiplier_of_so_many_bits(recipe: str, bits: int) -> None:
    exact = scales(recipe, "*.weight.compensation=false")
    found = scales(recipe, "*.weight.compensation=false", f"*.scale_bits={bits}")
    assert set(found) == set(exact) and any(multiplier(s) >= 2**16 for v in exact.values() for s in v)
    # The scale of a bias is the product of two.
    for name in set(found) - {"bias"}:
        assert all(multiplier(s) < 2**bits for s in found[name]), name
        error = 1.0 - np.asarray(found[name]) / np.asarray(exact[name])
        assert (error >= -(2.0**-23)).all() and (error <= 2.0 ** (1 - bits)).all(), name
    if "bias" in found and 2 * bits <= 24:
        assert all(multiplier(s) < 2 ** (2 * bits) for s in found["bias"])


@pytest.mark.parametrize(
    "weights",
    [
        ("group_size=none",),
        ("group_size=32",),
        ("group_size=none", "wide_channels=0.1"),
        ("group_size=none", "scale=0.1"),
    ],
)
def test_weights_of_few_bits(weights: tuple[str, ...]) -> None:
    """Compensation searches scales of its own; groups and wide channels have others; one may be given."""
    found = scales("w4a8", "*.scale_bits=6", *(f"*.weight.{w}" for w in weights))
    assert found["W.weight"] and all(multiplier(s) < 2**6 for v in found.values() for s in v)


def test_powers_of_two_of_compensated_weights_and_of_bounds() -> None:
    found = scales("w4a8", "*.pow2=true", "*.weight.group_size=none", "*.weight.narrow=true")
    assert all(multiplier(s) == 1 for name in ("W.weight", "R.weight", "hidden") for s in found[name])


def test_combined_multipliers_of_tables_are_whole_numbers_over_a_power_of_two() -> None:
    """m bits of the weights alone where input and hidden state have powers of two, else 2 m bits."""
    for overrides, bits in ((["*.scale_bits=8"], 16), (["*.weight.scale_bits=8", "*.input.pow2=true"], 8)):
        overrides = [*overrides, "*.hidden.pow2=true"]
        lowered = rnnqc.lower(CASE.model(), "int8-static", stats=statistics(), overrides=overrides)
        held = {t.name: np.frombuffer(t.raw_data, np.float32) for t in lowered.proto.graph.initializer}
        for name, most in (("x_multiplier", bits), ("h_multiplier", 8)):
            (values,) = (v for n, v in held.items() if n.endswith(f"/{name}"))
            assert len(values) == 4 * CASE.H and all(multiplier(float(v)) < 2**most for v in values), name


def hidden(recipe: str, *overrides: str) -> tuple[Array, Any]:
    lowered = rnnqc.lower(CASE.model(), recipe, stats=statistics(), overrides=overrides)
    (cell,) = lowered.model.cells.values()
    return run(session(lowered.proto, STOCK), CASE.feeds())["Y"], cell.points


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", [r for r in RECIPES if not r.startswith("distiller")])
def test_fifteen_bits_move_outputs_by_one_code_at_most(recipe: str) -> None:
    """Outputs have 8 bits."""
    exact, points = hidden(recipe)
    rounded, _ = hidden(recipe, "*.scale_bits=15")
    coarse, _ = hidden(recipe, "*.scale_bits=3")
    assert np.abs(rounded - exact).max() <= 1.01 * max(points["hidden"].scale[0], 1 / 255)
    assert np.abs(coarse - exact).max() > np.abs(rounded - exact).max()


@pytest.mark.parametrize("recipe", ["distiller-sym", "distiller-asym"])
def test_where_every_value_has_eight_bits_a_code_of_the_pre_activation_may_flip(recipe: str) -> None:
    """It is coarser than the output's, and moves others in later steps."""
    exact, points = hidden(recipe)
    rounded, _ = hidden(recipe, "*.scale_bits=15")
    difference = np.abs(rounded - exact)[0]
    assert difference.max() <= points["input_gate.acc"].scale[0]
    assert (difference > 0.5 * points["hidden"].scale[0]).mean() < 0.05
