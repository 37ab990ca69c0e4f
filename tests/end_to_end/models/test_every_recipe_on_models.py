"""Every recipe on published models: all recurrent layers are lowered, and stock and native bits are the same.

What these would catch: a recipe that does not understand what exporters write (cells in branches, states as inputs,
computed weights), statistics that miss a point of such a model, and arithmetic that differs on trained weights only.
Each model runs a few steps on real data, half of which it was calibrated on; the bar on quality is that it is no noise.
"""

from __future__ import annotations

import functools
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.recipes.recipe import builtin_recipes
from tests.runs.lowered import NATIVE, STOCK, session
from tests.runs.sessions import Array, assert_same_bits, options, run, sqnr

Find = Callable[[str], Path]
Feeds = dict[str, Array]
STEPS = 6
LEAST_DB = 3.0
# What Vitis' floor does to 8 bits is noise on some of these; so are 8-bit powers of two on a small network (gtcrn).
NO_BAR = {("*", "pow2-int8-floor"), ("gtcrn/gtcrn_simple", "pow2-int8")}
WEIGHT_ONLY = {r.name for r in builtin_recipes() if r.kind == "weight-only"}


@dataclass(frozen=True)
class Case:
    """A model with a few calls' worth of data; of streams the states are carried."""

    feeds: Sequence[Feeds]
    state: Mapping[str, str] = field(default_factory=dict)
    initial: Feeds = field(default_factory=dict)
    layers: int = 2


def _speech(find: Find) -> Array:
    with wave.open(str(find("models/silero_vad/test.wav"))) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), np.int16)
    return (samples / np.float32(32768)).astype(np.float32)[16000:]


def _dtln_1(find: Find) -> Case:
    frames = np.stack([_speech(find)[k * 128 : k * 128 + 512] for k in range(STEPS)])
    magnitudes = np.abs(np.fft.rfft(frames)).astype(np.float32)[:, None, None, :]
    zeros = np.zeros((1, 2, 128, 2), np.float32)
    return Case([{"input_2": m} for m in magnitudes], {"input_3": "tf_op_layer_stack_2"}, {"input_3": zeros})


def _dtln_2(find: Find) -> Case:
    frames = [_speech(find)[k * 128 : k * 128 + 512] for k in range(STEPS)]
    zeros = np.zeros((1, 2, 128, 2), np.float32)
    return Case([{"input_4": f[None, None]} for f in frames], {"input_5": "tf_op_layer_stack_5"}, {"input_5": zeros})


def _silero(find: Find) -> Case:
    samples, rate = _speech(find), np.array(16000, np.int64)
    feeds = [{"input": samples[None, k * 512 : k * 512 + 576], "sr": rate} for k in range(STEPS)]
    return Case(feeds, {"state": "stateN"}, {"state": np.zeros((2, 1, 128), np.float32)}, layers=1)


def _reviews(find: Find) -> tuple[Array, Array]:
    with np.load(find("data/imdb/test.npz")) as data:
        return data["tokens"][:STEPS].astype(np.int64), np.minimum(data["length"][:STEPS], 60).astype(np.int64)


def _imdb(find: Find) -> Case:
    return Case([{"tokens": t[None]} for t in _reviews(find)[0][:2]], layers=1)


def _packed(find: Find) -> Case:
    tokens, lengths = _reviews(find)
    padded = np.zeros((len(tokens), 60), np.int64)
    for row, length in enumerate(lengths):
        padded[row, :length] = tokens[row, tokens.shape[1] - length :]
    order = np.argsort(-lengths, kind="stable")
    halves = order[: STEPS // 2], order[STEPS // 2 :]
    return Case([{"tokens": padded[h][:, : lengths[h].max()], "lengths": lengths[h]} for h in halves], layers=1)


def _byte_sb(find: Find) -> Case:
    with np.load(find("models/byte_sb_bidi_lstm/io.npz")) as data:
        return Case([{"input": data["input"]}])


def _language(find: Find) -> Case:
    tokens = np.random.default_rng(0).integers(0, 2000, (2, 6, 3))
    zeros = np.zeros((2, 3, 400), np.float32)
    return Case([{"tokens": t} for t in tokens], {"h0": "hn", "c0": "cn"}, {"h0": zeros, "c0": zeros})


def _gtcrn(find: Find) -> Case:
    window = np.sqrt(np.hanning(513)[:-1])
    spectra = [np.fft.rfft(_speech(find)[k * 256 : k * 256 + 512] * window) for k in range(STEPS)]
    feeds = [{"mix": np.stack([z.real, z.imag], -1).astype(np.float32)[None, :, None, :]} for z in spectra]
    shapes = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}
    initial = {k: np.zeros(v, np.float32) for k, v in shapes.items()}
    return Case(feeds, {k: f"{k}_out" for k in shapes}, initial, layers=14)


def _rnnoise(find: Find) -> Case:
    with np.load(find("models/rnnoise/features_test_wav.npz")) as data:
        features = data["features"][1000 : 1000 + 50 * STEPS].astype(np.float32).reshape(STEPS, 50, 1, 42)
    initial = {f"{k}_h": np.zeros((1, 1, n), np.float32) for k, n in (("vad", 24), ("noise", 48), ("denoise", 96))}
    return Case([{"features": f} for f in features], {k: f"{k}n" for k in initial}, initial, layers=3)


MODELS: dict[str, Callable[[Find], Case]] = {
    "dtln/model_1": _dtln_1,
    "dtln/model_2": _dtln_2,
    "silero_vad/silero_vad_16k_op15": _silero,
    "vitis_rnn/imdb_lstm_torch": _imdb,
    "vitis_rnn/imdb_lstm_torch_dynamo": _imdb,
    "vitis_rnn/imdb_lstm_packed_sorted": _packed,
    "vitis_rnn/imdb_lstm_packed_unsorted": _packed,
    "byte_sb_bidi_lstm/model": _byte_sb,
    "wikitext2_lm/wikitext2_lm": _language,
    "vitis_rnn/imdb_gru_torch": _imdb,
    "rnnoise/rnnoise": _rnnoise,
    "gtcrn/gtcrn_simple": _gtcrn,
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
def _statistics(path: Path, make: Callable[[Find], Case], find: Find) -> Statistics:
    case = make(find)
    first, *rest = case.feeds[: max(1, len(case.feeds) // 2)]
    return rnnqc.calibrate(path, [{**case.initial, **first}, *rest], state=case.state)


def _outputs(running: ort.InferenceSession, case: Case) -> Feeds:
    state, steps = dict(case.initial), []
    for feed in case.feeds:
        got = run(running, {**feed, **state})
        state = {name: got[source] for name, source in case.state.items()}
        steps.append(got)
    return {name: np.concatenate([s[name].ravel() for s in steps]) for name in steps[0]}


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
    got = {way: _outputs(session(lowered.proto, way), case) for way in (STOCK, NATIVE)}
    assert_same_bits(got[STOCK], got[NATIVE], f"{name}, {recipe}: native against stock")
    expected = _outputs(
        ort.InferenceSession(onnx.load(path).SerializeToString(), options(), providers=["CPUExecutionProvider"]), case
    )
    reached = {k: sqnr(expected[k], v) for k, v in got[STOCK].items()}
    print(name, recipe, {k: f"{v:.1f} dB" for k, v in reached.items()})
    assert {("*", recipe), (name, recipe)} & NO_BAR or min(reached.values()) >= LEAST_DB
