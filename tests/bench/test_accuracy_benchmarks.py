"""The accuracy benchmarks measure what they claim, on small models, and on real ones if they are available.

What these would catch: tokens counted twice or left out, states that are not carried, a split model that computes
something else, a variant that is not what its label says, frames at the wrong place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distiller
import numpy as np
import onnx
import perplexity
import pytest
import tasks
import vitis
from onnx import TensorProto, helper, numpy_helper
from perplexity import Split
from support import variants
from support.variants import FLOAT, NOTHING, PER_CHANNEL, PER_TENSOR, Variant, build

import rnnqc
from rnnqc.recipes.recipe import builtin_recipes
from tests.runs.processors import product_branch
from tests.runs.sessions import plain_session, run, sqnr
from tests.subjects.protos import of_nodes

V, H = 1100, 16  # more tokens than one block of the decoder holds


@pytest.fixture(scope="module")
def language_model() -> onnx.ModelProto:
    """Embedding, LSTM of 16 with states, tied decoder, in the names of the real one."""
    rng = np.random.default_rng(0)
    arrays = {
        "e.weight": rng.normal(0, 1, (V, H)), "d.bias": rng.normal(0, 1, V),
        "W": rng.normal(0, 0.5, (1, 4 * H, H)), "R": rng.normal(0, 0.5, (1, 4 * H, H)),
    }  # fmt: skip
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    nodes = [
        helper.make_node("Transpose", ["e.weight"], ["tied"], perm=[1, 0]),
        helper.make_node("Gather", ["e.weight", "tokens"], ["x"]),
        helper.make_node("LSTM", ["x", "W", "R", "", "", "h0", "c0"], ["Y", "hn", "cn"], hidden_size=H),
        helper.make_node("Squeeze", ["Y", "axis"], ["y"]),
        helper.make_node("MatMul", ["y", "tied"], ["product"]),
        helper.make_node("Add", ["d.bias", "product"], ["logits"]),
    ]
    states = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, "B", H]) for n in ("h0", "c0")]
    graph = helper.make_graph(
        nodes,
        "lm",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["T", "B"]), *states],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
            for n, d in {"logits": ["T", "B", V], "hn": [1, "B", H], "cn": [1, "B", H]}.items()
        ],
        [*(numpy_helper.from_array(v.astype(np.float32), k) for k, v in arrays.items()), axis],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def columns(steps: int, batch: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, V, (steps, batch))


def test_text_is_read_in_streams(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\n<eos>\nb\n")
    (tmp_path / "some.txt").write_text(" a b \n\nb b\n")
    ids = perplexity.read_ids(tmp_path, "some")
    np.testing.assert_array_equal(ids, [0, 2, 1, 1, 2, 2, 1])
    np.testing.assert_array_equal(perplexity.streams(ids, 3), [[0, 1, 2], [2, 1, 2]])


@pytest.mark.parametrize(("length", "limit", "predicted"), [(100, None, 99), (71, None, 70), (100, 50, 50), (5, 9, 4)])
def test_every_token_but_the_first_is_predicted_once(length: int, limit: int | None, predicted: int) -> None:
    held = np.arange(length)[:, None]
    pairs = list(perplexity.pieces(held, limit))
    tokens, targets = (np.concatenate(part)[:, 0] for part in zip(*pairs, strict=True))
    np.testing.assert_array_equal(tokens, np.arange(predicted))
    np.testing.assert_array_equal(targets, tokens + 1)
    assert max(len(t) for t, _ in pairs) <= perplexity.STEPS


def test_perplexity_is_that_of_the_whole_model_in_one_piece(language_model: onnx.ModelProto) -> None:
    held = columns(80, 2)
    split = Split(language_model)
    zeros = perplexity.zero_states(split.recurrent, 2)
    logits = run(plain_session(language_model), {"tokens": held[:-1], **zeros})["logits"].astype(np.float64)
    chosen = np.take_along_axis(logits, held[1:][..., None], -1)[..., 0]
    expected = math.exp(float(np.mean(np.log(np.exp(logits).sum(-1)) - chosen)))
    sessions = [plain_session(m) for m in (split.recurrent, split.decoder)]
    got, _ = perplexity.perplexity(*sessions, split.hidden, held, zeros)
    assert got == pytest.approx(expected, rel=1e-5)
    assert perplexity.whole_model_difference(language_model, split, held) < 1e-4


def test_a_wrong_split_is_noticed(language_model: onnx.ModelProto) -> None:
    split = Split(language_model)
    bias = next(t for t in split.decoder.graph.initializer if t.name == "bias")
    wrong = numpy_helper.to_array(bias) + np.float32(0.01)
    bias.CopyFrom(numpy_helper.from_array(wrong, "bias"))
    difference = perplexity.whole_model_difference(language_model, split, columns(40, 2))
    assert difference == pytest.approx(0.01, rel=0.01)


def test_calibration_starts_with_zero_states(language_model: onnx.ModelProto) -> None:
    feeds = perplexity.calibration_feeds(Split(language_model), columns(200, perplexity.BATCH), 3)
    assert [f["tokens"].shape[0] for f in feeds] == [perplexity.STEPS] * 3
    assert set(feeds[0]) == {"tokens", "h0", "c0"}
    assert set(feeds[1]) == {"tokens"}


def test_losses() -> None:
    rows = [{"model": FLOAT, "valid": 100.0, "form": "float"}, {"model": "x", "valid": 101.5, "form": "fused"}]
    assert perplexity.with_losses(rows)[1] == {
        "model": "x", "valid": "101.500", "valid loss": "+1.500 %", "form": "fused",
    }  # fmt: skip


def test_variants_are_what_they_say(language_model: onnx.ModelProto) -> None:
    recurrent = Split(language_model).recurrent
    feeds = {"tokens": columns(30, 2), **perplexity.zero_states(recurrent, 2)}
    held = columns(8 * perplexity.STEPS, perplexity.BATCH)
    calibrated = rnnqc.calibrate(
        recurrent, perplexity.calibration_feeds(Split(language_model), held, 4), state=perplexity.CARRIED
    )
    labels = (FLOAT, PER_TENSOR, PER_CHANNEL, "int8", "int4 per channel", "int4 per channel calibrated")
    made = {v.label: build(v, recurrent, lambda: calibrated, 1) for v in variants.chosen(labels)}
    assert tuple(made) == labels
    outputs = {label: run(b.session, feeds)["y"] for label, b in made.items()}
    np.testing.assert_array_equal(outputs[FLOAT], run(plain_session(recurrent), feeds)["y"])
    assert [made[k].form for k in (FLOAT, PER_TENSOR, PER_CHANNEL, "int8")] == ["float", "dynamic", "dynamic", "fused"]
    close = {label: sqnr(outputs[FLOAT], y) for label, y in outputs.items() if label != FLOAT}
    exact = (
        (PER_TENSOR, PER_CHANNEL, "int8") if product_branch() == "int8" else ("int8",)
    )  # onnxruntime saturates there
    assert all(25 < close[k] < 60 for k in exact), close
    assert close["int4 per channel"] < close["int8"] - 10
    assert close["int4 per channel"] != close["int4 per channel calibrated"]
    sizes = made["int4 per channel"].kilobytes, made["int8"].kilobytes
    assert None not in sizes and sizes[0] < 0.7 * sizes[1]


def test_quantize_dynamic_that_does_nothing_is_said() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = of_nodes([node], {"x": [2]}, {"y": [2]})
    built = build(Variant(PER_CHANNEL), model, dict, 1)
    assert (built.form, built.note) == (FLOAT, NOTHING)


def test_choice_of_variants(capsys: pytest.CaptureFixture[str]) -> None:
    all_of_them = [Variant(FLOAT), Variant("int8", "int8"), Variant("other", "no-such-recipe")]
    assert [v.label for v in variants.chosen([], all_of_them)] == [FLOAT, "int8"]
    assert "other" in capsys.readouterr().out
    assert [v.label for v in variants.chosen(["x*"], all_of_them)] == [FLOAT]


def test_noise_has_the_power_asked_for() -> None:
    samples = np.sin(np.arange(8000) / 7).astype(np.float32)
    noise = tasks.with_noise(samples, 3, 5.0).astype(np.float64) - samples
    assert 10 * np.log10(np.mean(samples.astype(np.float64) ** 2) / np.mean(noise**2)) == pytest.approx(5.0, abs=0.01)


def test_si_sdr_ignores_the_scale() -> None:
    clean, orthogonal = np.array([1.0, 0.0]), np.array([0.0, 0.1])
    assert tasks.si_sdr_db(clean, 3 * (clean + orthogonal)) == pytest.approx(20.0)


def test_overlapping_frames_add_up() -> None:
    """Four frames of 512 shifted by 128 cover every sample in the middle four times."""
    dtln = object.__new__(tasks.Dtln)
    samples = np.random.default_rng(0).normal(size=2048)
    back = dtln.overlapped(dtln.frames(samples))
    np.testing.assert_allclose(back[384:-384], 4 * samples[384:-384])


TASKS: list[tuple[str, str, dict[str, Any]]] = [
    ("dtln", "mask dB", {"mask dB": 30, "states dB": 38, "signal dB": 42, "enhanced dB": 40}),
    ("silero_vad", "probability dB", {"probability dB": 50, "states dB": 33}),
    ("imdb", "probability dB", {"probability dB": 40}),
    ("imdb_gru", "probability dB", {"probability dB": 40}),
    ("rnnoise", "gains dB", {"gains dB": 36, "vad dB": 40, "last gains dB": 36}),
    ("gtcrn", "enh dB", {"enh dB": 48, "conv_cache_out dB": 38}),
]
QUICK = ("dtln", "imdb")
"""One task with a stream and one without; tests/end_to_end/models/test_real_models.py always runs the same models."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "measure", "least"),
    [pytest.param(*task, marks=[] if task[0] in QUICK else pytest.mark.slow) for task in TASKS],
)
def test_tasks(name: str, measure: str, least: dict[str, float], shared: Callable[[str], Path]) -> None:
    """A twentieth of the data of each task: the columns exist, int8 is close to float."""
    shared("models/dtln/model_1.onnx")
    root = shared("models").parent
    task = tasks.TASKS[name](root / "models", root / "data", 0.05)
    rows = tasks.measure(task, [Variant(FLOAT), Variant(PER_CHANNEL), Variant("int8", "int8")], 1)
    assert rows[0][measure] == "equal"
    assert {key: rows[2][key] >= bar for key, bar in least.items()} == dict.fromkeys(least, True), rows[2]
    assert rows[2]["form"] == "fused"
    others = {"dtln": f"model_2: {NOTHING}", "imdb": ""}
    assert rows[1]["note"] == others.get(name, NOTHING)


@pytest.mark.slow
def test_perplexity_of_the_real_model(shared: Callable[[str], Path]) -> None:
    """On some pieces, the split model equals the whole one; int8 loses almost nothing, with rest int8 as well."""
    model = onnx.load(shared("models/wikitext2_lm/wikitext2_lm.onnx"))
    split = Split(model)
    folder = shared("data/wikitext-2")
    held = perplexity.streams(perplexity.read_ids(folder, "valid"))
    assert held.shape == (21764, 10)
    assert perplexity.whole_model_difference(model, split, held) < perplexity.ALLOWED_DIFFERENCE
    statistics = perplexity.Statistics(split, folder, 1)
    chosen = (Variant(FLOAT), Variant("int8", "int8"), Variant("rest", "int8", rest="int8"))
    rows = [perplexity.measure(variant, split, {"valid": held}, statistics, 1, 105) for variant in chosen]
    assert 100 < rows[0]["valid"] < 170
    assert rows[1]["valid"] == pytest.approx(rows[0]["valid"], rel=1e-3)
    assert rows[2]["valid"] == pytest.approx(rows[0]["valid"], rel=2e-3)


def test_recipes_of_the_tables_exist() -> None:
    assert [v.label for v in variants.chosen([])] == [v.label for v in variants.VARIANTS]
    recipes = {r.name for r in builtin_recipes()}
    assert {v.recipe for v in variants.VARIANTS} - {""} == recipes
    assert {v.recipe for v in vitis.ROWS} - {""} <= recipes


def test_rows_of_distillers_notebook(language_model: onnx.ModelProto) -> None:
    """Every row, on a small model, has the published form and both ratios to float."""
    halved = distiller.with_half_tables(language_model)
    split, half = Split(language_model), Split(halved)
    changed = [
        a.name
        for a, b in zip(language_model.graph.initializer, halved.graph.initializer, strict=True)
        if a.SerializeToString() != b.SerializeToString()
    ]
    assert "e.weight" in changed and set(changed) <= {"e.weight", "d.bias"}
    text = columns(3 * perplexity.STEPS, perplexity.BATCH)
    feeds = perplexity.calibration_feeds(split, text, 2)
    calibrated = rnnqc.calibrate(split.recurrent, feeds, state=perplexity.CARRIED)
    rows = [
        perplexity.measure(r.variant, half if r.half else split, {distiller.TEXT: text}, lambda: calibrated, 1, 40)
        for r in distiller.ROWS
    ]
    assert [r["form"] for r in rows] == ["float", "fused", "fused", "weight-only", "qcdq", "fused", "fused"]
    table = distiller.table(rows)
    assert [r["published, to float"] for r in table[:2]] == ["1.0000", "1.2006"]
    assert [float(r["to float"]) for r in table[:5]] == pytest.approx([1] * 5, abs=0.01), "averaged ranges cut noise"
