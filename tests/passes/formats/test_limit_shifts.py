"""Fix positions that fixed-point hardware cannot shift between are lowered, and the report says so.

What these would catch: products of other gates that change, a bias or weights left behind, limits applied to a format
that is replaced later by that of a chained input, notes without the numbers, a key that does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rnnqc
from tests.generate.layers import RecurrentCase, stacked_model
from tests.runs.lowered import run_both

CASE = RecurrentCase(T=5, B=2, I=4, H=6, seed=2)
FEEDS = CASE.feeds()
CELL = "the_lstm.forward"


def lowered(overrides: Sequence[str], case: RecurrentCase = CASE) -> Any:
    return rnnqc.lower(case.model(), "pow2-int16", calibration=[case.feeds()], overrides=overrides)


def points(result: Any) -> dict[str, Any]:
    (cell,) = result.model.cells.values()
    return dict(cell.points)


def position(scale: float) -> int:
    mantissa, exponent = np.frexp(scale)
    assert mantissa == 0.5
    return int(1 - exponent)


def positions(result: Any, point: str) -> list[int]:
    """Returns a position for each gate, or one."""
    scale = points(result)[point].scale
    return [position(s) for s in scale[:: CASE.H]]


def notes(result: Any) -> list[str]:
    return [n for n in result.report.notes if "fix position" in n or "shifts" in n]


@pytest.mark.few(2)
@pytest.mark.parametrize("recipe", ["pow2-int16", "pow2-w8a16", "pow2-int8", "pow2-int8-floor"])
def test_usual_models_stay_as_they_are(recipe: str) -> None:
    with_, without = (
        rnnqc.lower(CASE.model(), recipe, calibration=[FEEDS], overrides=o)
        for o in ((), ("*.weight.shift_limits=false",))
    )
    assert not notes(with_) and points(with_)["W.weight"].shift_limits
    assert [points(with_)[p] for p in ("bias", "hidden", "input")] == [
        points(without)[p] for p in ("bias", "hidden", "input")
    ]


@pytest.mark.parametrize("linear", [False, True])
def test_a_candidate_of_a_gru_meets_codes_of_its_own(linear: bool) -> None:
    """Position 12 of the weights, 11 of r * h and 5 of the result make a shift of 18; with 4 of h it were 11."""
    case = RecurrentCase(T=5, B=2, I=4, H=6, seed=2, op="GRU", linear_before_reset=linear)
    reset = [] if linear else ["*.reset.hidden.scale=0.00048828125"]
    overrides = ["*.R.weight.scale=0.000244140625", *reset, "*.forward.hidden.scale=0.0625"]
    overrides += [f"*.hidden_product.{k}" for k in ("same_as=none", "scale=0.03125")]
    result = rnnqc.lower(case.model(), "pow2-int16", calibration=[case.feeds()], overrides=overrides)
    assert positions(result, "R.weight") == [12, 12, 12 if linear else 10]
    assert len([n for n in notes(result) if ".R.weight" in n]) == (0 if linear else 1)


def test_weights_are_lowered_where_the_shift_is_too_large() -> None:
    """Positions 12 of W, 12 of the input and 5 of the result: the sum of products is shifted by 19, 16 are allowed."""
    plan = ["input_gate.input_product.same_as=none", "input_gate.input_product.scale=0.03125"]
    overrides = [*(f"*.{o}" for o in plan), "*.input.scale=0.000244140625", "*.bias.same_as=cell_state"]
    free = lowered([*overrides, "*.weight.shift_limits=false"])
    assert positions(free, "W.weight") == [12] * 4 and positions(free, "input") == [12]
    result = lowered(overrides)
    assert positions(result, "W.weight") == [9, 12, 12, 12]
    assert points(result)["R.weight"].scale == points(free)["R.weight"].scale
    (note,) = notes(result)
    assert f"{CELL}.W.weight of the input gate: fix position 12 is lowered to 9." in note
    assert "shift_cut = 19 (0 to 16 allowed)" in note and "shift_limits=false" in note
    got, wanted = (run_both(r.proto, FEEDS) for r in (result, free))
    assert 0 < np.abs(got["Y"] - wanted["Y"]).max() < 0.02, "the codes follow the scale"


def test_results_are_lowered_where_the_shift_is_negative() -> None:
    """Position -3 of the input and 12 of weights and result: 9 - 12 = -3."""
    result = lowered(["*.input.scale=8.0"])
    assert positions(result, "W.weight") == [12] * 4
    for gate in ("input", "output", "forget", "cell"):
        assert positions(result, f"{gate}_gate.input_product") == [9]
        assert positions(result, f"{gate}_gate.hidden_product") == [12]
        assert positions(result, f"{gate}_gate.acc") == [12], "only the result of the product is lowered"
    assert len(notes(result)) == 4
    assert f"{CELL}.cell_gate.input_product: fix position 12 is lowered to 9." in notes(result)[-1]


def test_the_bias_is_lowered_where_it_is_too_fine() -> None:
    """w + x - y = 0 allows a bias 16 positions finer than the product, not 20."""
    overrides = ["*.input.scale=1.0", "*.weight.scale=1.0", "*.input_product.same_as=none", "*.input_product.scale=1.0"]
    overrides += ["*.bias.same_as=none", "*.bias.scale=9.5367431640625e-07", "*.bias.bits=32", "*.bias.mode=static"]
    overrides += ["*.hidden_product.same_as=none", "*.hidden_product.scale=1.0"]
    result = lowered(overrides)
    assert positions(result, "bias") == [16] * 4
    assert all("bias of the" in n and "fix position 20 is lowered to 16" in n for n in notes(result))
    assert len(notes(result)) == 4


def test_output_channels_are_limited_one_by_one() -> None:
    """The result is as coarse as the coarsest channel asks for, and then the shift of the finest is too large."""
    overrides = ["*.weight.granularity=per-channel", "*.weight.max_fix_position=none", "*.input.scale=4.0"]
    case = CASE.replace(gain=2.0**-6)
    free = lowered([*overrides, "*.weight.shift_limits=false"], case)
    result = lowered(overrides, case)
    before = [position(s) for s in points(free)["W.weight"].scale]
    after = [position(s) for s in points(result)["W.weight"].scale]
    for k, gate in enumerate(("input", "output", "forget", "cell")):
        columns = slice(k * CASE.H, (k + 1) * CASE.H)
        made = positions(result, f"{gate}_gate.input_product")[0]
        assert made == min(12, min(before[columns]) - 2)
        assert after[columns] == [min(w, made + 16 + 2) for w in before[columns]]


def test_scales_that_are_no_powers_of_two_are_named() -> None:
    result = lowered(["*.input.scale=0.01"])
    assert len(notes(result)) == 4
    assert f"{CELL}.input_gate.input_product: shifts have no limits" in notes(result)[0]


def test_the_format_of_a_chained_input_counts() -> None:
    layers = [CASE, CASE.replace(I=CASE.H, seed=3)]
    model = stacked_model(layers)
    result = rnnqc.lower(
        model, "pow2-int8", calibration=[FEEDS], overrides=["*.hidden.scale=16.0", "*.weight.shift_limits=true"]
    )
    second = list(result.model.cells.values())[1]
    assert second.points["input"].mode == "codes" and position(second.points["input"].scale[0]) == -4
    for k, gate in enumerate(("input", "output", "forget", "cell")):
        w = position(second.points["W.weight"].scale[k * CASE.H])
        assert position(second.points[f"{gate}_gate.input_product"].scale[0]) == w - 4
    assert [n for n in notes(result) if f"{second.name}.cell_gate.input_product: fix position" in n]


@pytest.mark.parametrize("recipe", ["int8", "brevitas-int8"])
def test_other_recipes_have_no_limits(recipe: str) -> None:
    result = rnnqc.lower(CASE.model(), recipe, calibration=[FEEDS])
    assert not notes(result) and not points(result)["W.weight"].shift_limits
