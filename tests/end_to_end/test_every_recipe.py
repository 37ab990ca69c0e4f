"""Every recipe that comes with rnnqc, on layers of all kinds: the same bytes from every way of execution.

What these would catch: a recipe whose formats the native library, the function body and the inlined form understand
differently; a recipe that leaves a usual layer in float arithmetic; a calibrated point that nobody measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from lstm_models import Op, RecurrentCase, stacked_model
from running import assert_same_bits, run, sqnr
from running_lowered import INTEGER, STOCK, UNROLLED, assert_equals_reference, lower_all, run_all, session
from strategies import gru_and_rnn_cases, lstm_cases

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.recipes.recipe import builtin_recipes
from rnnqc.testing.float_layer import Activation

pytestmark = pytest.mark.sampled(3)  # cases cross what other cases have, too

EXAMPLES = settings().max_examples
FEW = max(2, EXAMPLES // 4)
OPS = (("GRU", False), ("GRU", True), ("RNN", False))
CELLS = [r.name for r in builtin_recipes() if r.kind == "cells"]
WITHOUT_DATA = {"int8", "int16", "w4a8"}
USUAL = {"activations": None, "clip": None}
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
# They differ from another recipe in widths or ranges alone.
TWINS = {"pow2-w8a16", "pow2-int8-floor", "distiller-sym", "distiller-avg"}
with_twins_slow = pytest.mark.parametrize(
    "recipe", [pytest.param(r, marks=[pytest.mark.slow] if r in TWINS else []) for r in CELLS]
)
# Of Y of one calibrated layer of 24 units: what each reaches, less about 3 dB.
SQNR_DB = {
    "int8": 39.5, "int8-static": 36.0, "int16": 42.0, "w4a8": 17.7, "pow2-int16": 35.0, "pow2-int8": 25.5,
    "pow2-w8a16": 33.0, "pow2-int8-floor": 11.0,
    "brevitas-int8": 22.8, "distiller-sym": 27.3, "distiller-asym": 27.9, "distiller-avg": 13.0,
}  # fmt: skip


def test_every_recipe_has_a_bar() -> None:
    assert set(SQNR_DB) == set(CELLS)


@pytest.mark.parametrize("recipe", CELLS)
@settings(max_examples=FEW)
@given(case=lstm_cases(layouts=(0, 0, 1), placements=("main", "main", "if"), **USUAL))
def test_same_bits(recipe: str, case: RecurrentCase) -> None:
    _same_bits(recipe, case)


@with_twins_slow
@settings(max_examples=FEW)
@given(case=gru_and_rnn_cases(layouts=(0, 0, 1), placements=("main", "main", "if"), **USUAL))
def test_same_bits_of_gru_and_rnn(recipe: str, case: RecurrentCase) -> None:
    _same_bits(recipe, case)


def _same_bits(recipe: str, case: RecurrentCase) -> None:
    model, feeds = case.model(), case.feeds()
    whole = case if case.lens is None else case.replace(lens=(case.T,) * case.B)
    seen = [feeds, *(whole.feeds(condition=c) for c in (True, False))]
    results = lower_all(model, case.dims, recipe=recipe, stats=calibrate(model, seen))
    for way, lowered in results.items():
        forms = {c.form for c in lowered.model.cells.values()}
        assert forms == {"integer" if way in (INTEGER, UNROLLED) else "fused"}, f"{recipe}: {way}"
    outputs = run_all(results, feeds)
    for way, got in outputs.items():
        assert_same_bits(outputs[STOCK], got, f"{recipe}: {way} against stock")
    if case.placement == "main":
        assert assert_equals_reference(results[STOCK].proto, feeds) == case.directions
    for level in LEVELS:
        got = run(session(results[STOCK].proto, STOCK, level, 2), feeds)
        assert_same_bits(outputs[STOCK], got, f"{recipe}: {level}")


@pytest.mark.parametrize("recipe", CELLS)
def test_other_activations(recipe: str) -> None:
    """Activations without bounds, and those that saturate elsewhere."""
    for names in (("HardSigmoid", "Softsign", "Relu"), ("Sigmoid", "Elu", "ScaledTanh")):
        _other_activations(recipe, names)


@with_twins_slow
@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("GRU", ("HardSigmoid", "Relu")),
        ("GRU", ("Relu", "Softplus")),
        ("GRU", ("Tanh", "Affine")),
        ("RNN", ("Relu",)),
        ("RNN", ("Elu",)),
        ("RNN", ("Softsign",)),
    ],
)
def test_other_activations_of_gru_and_rnn(recipe: str, op: Op, names: tuple[str, ...]) -> None:
    for linear in (False, True) if op == "GRU" else (False,):
        _other_activations(recipe, names, op=op, linear_before_reset=linear)


def _other_activations(recipe: str, names: tuple[str, ...], **fields: Any) -> None:
    activations = tuple(Activation(n) for n in names)
    case = RecurrentCase(T=4, B=2, I=5, H=6, activations=activations, gain=0.25, **fields)
    model, feeds = case.model(), case.feeds()
    results = lower_all(model, case.dims, recipe=recipe, stats=calibrate(model, [feeds]))
    assert {c.form for c in results[STOCK].model.cells.values()} == {"fused"}, f"{recipe}, {names}"
    outputs = run_all(results, feeds)
    for way, got in outputs.items():
        assert_same_bits(outputs[STOCK], got, f"{recipe}, {names}: {way}")


@pytest.mark.parametrize("recipe", CELLS)
def test_stacked_layers_and_accuracy(recipe: str) -> None:
    """Two layers, one of which takes the codes of the other where their formats agree; calibrated on other data."""
    layers = [RecurrentCase(T=7, B=2, I=5, H=9), RecurrentCase(T=7, B=2, I=9, H=6, direction="bidirectional", seed=1)]
    model = stacked_model(layers)
    feeds = [layers[0].replace(seed=s).feeds() for s in range(4)]
    statistics = calibrate(model, feeds[:3])
    results = lower_all(model, None, recipe=recipe, stats=statistics)
    outputs = run_all({k: v for k, v in results.items() if k != UNROLLED}, feeds[3])
    for way, got in outputs.items():
        assert_same_bits(outputs[STOCK], got, f"{recipe}: {way}")


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("recipe", CELLS)
def test_accuracy_of_a_gru_or_rnn(recipe: str, op: tuple[str, bool]) -> None:
    """As close to float as an LSTM with the same recipe."""
    _accuracy(recipe, RecurrentCase(T=24, B=4, I=16, H=24, seed=3, op=op[0], linear_before_reset=op[1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", CELLS)
def test_accuracy_of_a_layer(recipe: str) -> None:
    _accuracy(recipe, RecurrentCase(T=24, B=4, I=16, H=24, seed=3))


def _accuracy(recipe: str, case: RecurrentCase) -> None:
    model = case.model()
    statistics = calibrate(model, [case.replace(seed=s).feeds() for s in range(4, 8)])
    lowered = rnnqc.lower(model, recipe, stats=statistics)
    assert [e.form for e in lowered.report.entries] == ["fused"]
    got, expected = run(session(lowered.proto, STOCK), case.feeds()), case.expected(case.feeds())
    reached = sqnr(expected["Y"], got["Y"])
    print(recipe, f"{reached:.1f} dB")
    assert reached >= SQNR_DB[recipe], recipe


@pytest.mark.parametrize("recipe", CELLS)
def test_data_is_asked_for_where_it_is_needed(recipe: str) -> None:
    model = RecurrentCase(T=3, B=1, I=4, H=4).model()
    if recipe in WITHOUT_DATA:
        assert np.isfinite(rnnqc.lower(model, recipe).report.bytes)
    else:
        with pytest.raises(rnnqc.CompileError, match=r"has no scale, and there is no calibration data.*--calibration"):
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
