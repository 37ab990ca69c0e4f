"""Every recipe on published models: all recurrent layers are lowered, and stock and native bits are the same.

What these would catch: a recipe that does not understand what exporters write (cells in branches, states as inputs,
computed weights), statistics that miss a point of such a model, and arithmetic that differs on trained weights only.
Each model runs a few steps on real data, half of which it was calibrated on; the bar on quality is that it is no noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.recipes.recipe import builtin_recipes
from tests.runs.lowered import NATIVE, STOCK, session
from tests.runs.sessions import assert_same_bits, sqnr
from tests.subjects.published_models import (
    SPEECH_BEGINS,
    Calls,
    Find,
    byte_sb,
    dtln_1,
    dtln_2,
    gtcrn,
    packed_reviews,
    reviews,
    rnnoise,
    silero,
)

STEPS = 6
LEAST_DB = 3.0
# What Vitis' floor does to 8 bits is noise on some of these; so are 8-bit powers of two on a small network (gtcrn).
NO_BAR = {("*", "pow2-int8-floor"), ("gtcrn/gtcrn_simple", "pow2-int8")}
WEIGHT_ONLY = {r.name for r in builtin_recipes() if r.kind == "weight-only"}


def _imdb(find: Find) -> Calls:
    return Calls([{"tokens": t[None]} for t in reviews(find, 2)[0]], layers=1)


def _packed(find: Find) -> Calls:
    whole = packed_reviews(find, STEPS, 60, ordered=True)
    halves = [{k: v[part] for k, v in whole.items()} for part in (slice(None, STEPS // 2), slice(STEPS // 2, None))]
    return Calls([{**h, "tokens": h["tokens"][:, : h["lengths"].max()]} for h in halves], layers=1)


def _language(find: Find) -> Calls:
    tokens = np.random.default_rng(0).integers(0, 2000, (2, 6, 3))
    zeros = np.zeros((2, 3, 400), np.float32)
    return Calls([{"tokens": t} for t in tokens], {"h0": "hn", "c0": "cn"}, {"h0": zeros, "c0": zeros})


def _rnnoise(find: Find) -> Calls:
    return rnnoise(find, [slice(1000 + 50 * k, 1050 + 50 * k) for k in range(STEPS)])


def _silero(find: Find) -> Calls:
    """From where somebody speaks."""
    first = SPEECH_BEGINS // 512
    return replace(calls := silero(find, first + STEPS), feeds=calls.feeds[first:])


MODELS: dict[str, Callable[[Find], Calls]] = {
    "dtln/model_1": partial(dtln_1, steps=STEPS),
    "dtln/model_2": partial(dtln_2, steps=STEPS),
    "silero_vad/silero_vad_16k_op15": _silero,
    "vitis_rnn/imdb_lstm_torch": _imdb,
    "vitis_rnn/imdb_lstm_torch_dynamo": _imdb,
    "vitis_rnn/imdb_lstm_packed_sorted": _packed,
    "vitis_rnn/imdb_lstm_packed_unsorted": _packed,
    "byte_sb_bidi_lstm/model": byte_sb,
    "wikitext2_lm/wikitext2_lm": _language,
    "vitis_rnn/imdb_gru_torch": _imdb,
    "rnnoise/rnnoise": _rnnoise,
    "gtcrn/gtcrn_simple": partial(gtcrn, steps=STEPS),
}


LARGE: dict[str, tuple[str, ...]] = {
    "wikitext2_lm/wikitext2_lm": (),
    "gtcrn/gtcrn_simple": ("pow2-int16",),
}
"""Models that take their time, with the recipes that are always tried."""
SMALL = [m for m in MODELS if m not in LARGE and m not in ("vitis_rnn/imdb_lstm_torch_dynamo",)]
RECIPES = [r.name for r in builtin_recipes()]
QUICK = {(SMALL[k % len(SMALL)], r) for k, r in enumerate(RECIPES)}
"""Each recipe with one of the small models in turn, so that each of these has one or two recipes."""
QUICK |= {(name, recipe) for name, recipes in LARGE.items() for recipe in recipes}
RUNS = [
    pytest.param(name, recipe, marks=[] if (name, recipe) in QUICK else [pytest.mark.slow])
    for name in MODELS
    for recipe in RECIPES
]


@functools.lru_cache(maxsize=2)
def _statistics(path: Path, make: Callable[[Find], Calls], find: Find) -> Statistics:
    case = make(find)
    first, *rest = case.feeds[: max(1, len(case.feeds) // 2)]
    return rnnqc.calibrate(path, [{**case.initial, **first}, *rest], state=case.state)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "recipe"), RUNS)
def test_lowers_and_runs(name: str, recipe: str, shared: Find) -> None:
    path = shared(f"models/{name}.onnx")
    make = MODELS[name]
    case = make(shared)
    statistics = _statistics(path, make, shared)
    lowered = rnnqc.lower(path, recipe, stats=statistics)
    # Silero has the same network for another sampling rate in a branch that the data never takes.
    silent = {c.partition(".")[0] for c in statistics.silent_cells}
    entries = [e for e in lowered.report.entries if e.status == "lowered"]
    assert len(entries) >= case.layers
    assert all("none reached it" in e.reason for e in lowered.report.float_entries), lowered.report.float_entries
    assert len(lowered.report.float_entries) <= len(silent)
    assert {e.form for e in entries} == {"weight-only" if recipe in WEIGHT_ONLY else "fused"}
    got = {way: case.outputs(session(lowered.proto, way)) for way in (STOCK, NATIVE)}
    assert_same_bits(got[STOCK], got[NATIVE], f"{name}, {recipe}: native against stock")
    expected = case.outputs(session(onnx.load(path), STOCK))
    reached = {k: sqnr(expected[k], v) for k, v in got[STOCK].items()}
    print(name, recipe, {k: f"{v:.1f} dB" for k, v in reached.items()})
    assert {("*", recipe), (name, recipe)} & NO_BAR or min(reached.values()) >= LEAST_DB
