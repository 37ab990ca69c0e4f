"""`rnnqc tune` on small models: it finds what a sensitive layer needs, says what it did, and its file does the same.

What these would catch: a file that gives another model than was measured, widths saved where they hurt, a metric or a
state that is ignored, results that differ from run to run.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rnnqc
from rnnqc.errors import UsageError
from rnnqc.measure.compare import compare_models
from rnnqc.recipes.recipe import parse_recipe
from rnnqc.recipes.rules import Rule
from rnnqc.search.call_times import call_seconds
from rnnqc.search.tune import tune
from rnnqc.search.tuned import Tuned, recipe_text, rules_of
from rnnqc.search.units import WEIGHT_CHOICES
from tests.generate.layers import RecurrentCase
from tests.runs.commands import Result
from tests.runs.sessions import Array, save_arrays
from tests.subjects.protos import of_nodes, parse

T, B, I, H = 12, 2, 16, 32  # noqa: E741
SENSITIVE, IDLE = "main", "side"
TARGET = 33.0

Cli = Callable[..., Result]


def made_up(models: Sequence[onnx.ModelProto], _feed: Any) -> list[float]:
    """Times of calls: a nanosecond for each byte of the constants."""
    return [sum(t.ByteSize() for t in m.graph.initializer) * 1e-9 for m in models]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Limits the search to two weight formats, because each adds models to every search, and fakes times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnnqc.search.units.WEIGHT_CHOICES", (WEIGHT_CHOICES[0], WEIGHT_CHOICES[-1]))
        patch.setattr("rnnqc.search.tune.call_seconds", made_up)
        yield


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Two layers side by side; the output is nearly all the first one's."""
    rng = np.random.default_rng(0)
    nodes, stored = [], {"little": np.array(0.01, np.float32)}
    for name in (SENSITIVE, IDLE):
        for m, width in (("W", I), ("R", H)):
            stored[f"{name} {m}"] = rng.normal(0, 1 / np.sqrt(H), (1, 4 * H, width)).astype(np.float32)
        nodes.append(helper.make_node("LSTM", ["X", f"{name} W", f"{name} R"], [f"{name} Y"], name=name, hidden_size=H))
    nodes += [
        helper.make_node("Mul", [f"{IDLE} Y", "little"], ["small"]),
        helper.make_node("Add", [f"{SENSITIVE} Y", "small"], ["Y"]),
    ]
    return of_nodes(nodes, {"X": ["T", "B", I]}, {"Y": ["T", 1, "B", H]}, stored)


def one_layer() -> onnx.ModelProto:
    """One layer, with half of the units to try: for tests that do not need several layers."""
    return RecurrentCase(T=T, B=B, I=I, H=H, dynamic_time=True, dynamic_batch=True).model()


@pytest.fixture(scope="module")
def feeds() -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"X": rng.normal(0, 1, (T, B, I)).astype(np.float32)} for _ in range(3)]


@pytest.fixture(scope="module")
def tuned(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> Tuned:
    return tune(model, feeds, min_sqnr=TARGET)


def _files(folder: Path, model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> tuple[Path, Path]:
    onnx.save(model, folder / "model.onnx")
    save_arrays(folder / "data.npz", {"X": np.stack([f["X"] for f in feeds])})
    return folder / "model.onnx", folder / "data.npz"


def test_the_idle_layer_gets_four_bits(tuned: Tuned) -> None:
    assert tuned.found.reached
    idle = {f"{IDLE}.forward.{m}.weight" for m in "WR"}
    assert idle <= set(tuned.settings)
    assert {tuned.settings[p]["bits"] for p in idle} == {4}
    narrow = [p for p, s in tuned.settings.items() if p.startswith(SENSITIVE) and s["bits"] == 4]
    assert not narrow
    start, end = tuned.weight_bytes
    assert end <= 0.8 * start
    assert tuned.found.measured.cost < tuned.found.start.cost


def test_the_file_gives_the_model_that_was_measured(
    tuned: Tuned, model: onnx.ModelProto, feeds: list[dict[str, Array]], tmp_path: Path
) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text(tuned.text, encoding="utf-8")
    lowered = rnnqc.lower(model, str(path))
    [compared] = compare_models(model, lowered.proto, feeds)
    assert compared.sqnr_db == pytest.approx(tuned.found.measured.quality, abs=1e-9)
    assert compared.sqnr_db >= TARGET
    assert sum(e.bytes for e in lowered.report.entries) == tuned.weight_bytes[1]
    points = {c.name: c.points for c in lowered.model.cells.values()}
    assert points[f"{IDLE}.forward"]["W.weight"].bits == 4
    assert (points[f"{SENSITIVE}.forward"]["W.weight"].bits or 0) > 4
    assert tuned.text.count("[[rule]]") == tuned.text.count("# When this was chosen") == len(tuned.settings)


@pytest.mark.slow
def test_a_start_that_is_too_coarse_gets_wider(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    """From w4a8 the sensitive layer needs more bits; the idle one does not."""
    result = tune(model, feeds, min_sqnr=TARGET, recipe="w4a8")
    assert result.found.start.quality < TARGET <= result.found.measured.quality
    found = [result.settings[f"{SENSITIVE}.forward.{m}.weight"]["bits"] for m in "WR"]
    assert all(4 < bits <= 8 for bits in found)
    assert all(result.settings.get(f"{IDLE}.forward.{m}.weight", {"bits": 4})["bits"] == 4 for m in "WR")
    assert 'base = "w4a8"' in result.text


def test_a_recipe_with_the_name_of_another_keeps_its_rules(tuned: Tuned) -> None:
    mine = replace(tuned.recipe, rules=(Rule("*.input", {"bits": 16}), *tuned.recipe.rules))
    text = recipe_text(replace(tuned, recipe=mine))
    assert parse_recipe(text, "tuned.toml").rules[-len(mine.rules) :] == mine.rules


@pytest.mark.slow
def test_sixteen_bit_activations_are_for_what_eight_do_not_reach(
    tuned: Tuned, model: onnx.ModelProto, feeds: list[dict[str, Array]]
) -> None:
    most = tuned.found.start.quality + 1.0
    result = tune(model, feeds, min_sqnr=most)
    assert result.found.reached
    wide = {p for p, s in result.settings.items() if s["bits"] == 16}
    assert wide and all(p.startswith(SENSITIVE) for p in wide)


@pytest.mark.slow
def test_a_metric_decides(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    """A metric that ignores values allows the cheapest formats; it gets the outputs of the models."""
    seen: list[tuple[int, float]] = []

    def shape_only(outputs: Any, inputs: Any) -> float:
        seen.append((len(outputs), float(inputs[0]["X"].sum())))
        return float(outputs[0]["Y"].shape[0])

    result = tune(model, feeds, metric=shape_only, min_metric=T)
    assert result.found.reached and result.float_quality == T
    assert {s["bits"] for p, s in result.settings.items() if p.endswith("weight")} == {4}
    assert len(result.settings) == 4
    assert set(seen) == {(3, float(feeds[0]["X"].sum()))}


@pytest.mark.slow
def test_statistics_compensate(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    statistics = rnnqc.calibrate(model, feeds)
    result = tune(model, feeds, min_sqnr=TARGET, stats=statistics)
    weights = {p: s for p, s in result.settings.items() if p.endswith("weight")}
    assert {s.get("compensation") for s in weights.values()} == {True}
    assert {s["bits"] for p, s in weights.items() if p.startswith(IDLE)} == {4}


@pytest.mark.slow
def test_what_was_tuned_with_statistics_asks_for_them(
    model: onnx.ModelProto, feeds: list[dict[str, Array]], tmp_path: Path
) -> None:
    """Would catch: a file that loses what it was tuned for, without a word."""
    statistics = rnnqc.calibrate(model, feeds)
    tune(model, feeds, min_sqnr=TARGET, stats=statistics).save(tmp_path / "mine.toml")
    recipe = str(tmp_path / "mine.toml")
    for stats, said in ((None, 1), (statistics, 0)):
        warnings = rnnqc.lower(model, recipe, stats=stats).report.warnings
        assert len([w for w in warnings if "with compensation" in w and "no statistics" in w]) == said
    assert not [w for w in rnnqc.lower(model, "w4a8").report.warnings if "compensation" in w]


def test_states_are_carried(tmp_path: Path) -> None:
    from tests.generate.layers import RecurrentCase

    case = RecurrentCase(T=4, B=1, I=8, H=16, initial_h=True, initial_c=True)
    model, first = case.model(), case.feeds()
    later = {"X": first["X"][::-1].copy()}
    names = {i.name for i in model.graph.input}
    carried = {next(n for n in names if "h" in n.lower() and n != "X"): "Y_h"}
    carried[next(n for n in names if n not in carried and n != "X")] = "Y_c"
    seen: list[Any] = []

    def remember(outputs: Any, inputs: Any) -> float:
        seen.append(outputs)
        return 1.0

    tune(model, [first, later], metric=remember, min_metric=0.0, state=carried)  # the float model comes last
    alone = rnnqc.session(model, native=False).run(["Y"], {**first, **later})[0]
    assert not np.array_equal(seen[-1][1]["Y"], alone)
    follow = {name: seen[-1][0][output] for name, output in carried.items()}
    np.testing.assert_array_equal(
        seen[-1][1]["Y"], rnnqc.evaluation.evaluate.run_model(model, {**later, **follow}, optimize=True)["Y"]
    )


def test_command_and_the_same_bytes_again(
    model: onnx.ModelProto, feeds: list[dict[str, Array]], tuned: Tuned, tmp_path: Path, cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("rnnqc.search.tune.call_seconds", call_seconds)
    path, data = _files(tmp_path, model, feeds)
    out = tmp_path / "tuned.toml"
    plot = tmp_path / "frontier.svg"
    result = cli("tune", path, "--data", data, "-o", out, "--min-sqnr", TARGET, "--plot", plot)
    assert result.code == 0, result.text
    circles = ElementTree.parse(plot).getroot().iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(circles)) == len(tuned.frontier) + 2
    assert all(str(p.measured.cost) in result.out for p in tuned.frontier)
    assert out.read_text(encoding="utf-8") == tuned.text
    assert f"{IDLE}.forward.R.weight" in result.out
    assert f"{tuned.found.measured.cost} B" in result.out, "a cost has its unit"
    assert "cost: bytes of recurrent weights" in result.out
    *_, told = result.out.splitlines()
    words = shlex.split(told.removeprefix("next: rnnqc "))
    assert cli(*words).code == 0, "the next command is whole"
    made = Path(words[words.index("-o") + 1])
    assert str(out) in words[words.index("--recipe") + 1]
    assert cli("verify", path, made, "--data", data, "--min-sqnr", TARGET).code == 0


@pytest.mark.slow
def test_a_target_out_of_reach(model: onnx.ModelProto, feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli) -> None:
    path, data = _files(tmp_path, model, feeds)
    result = cli("tune", path, "--data", data, "-o", tmp_path / "tuned.toml", "--min-sqnr", "90")
    assert result.code == 1, result.text
    assert "dB, 90 dB asked for; nothing was written." in result.err and "rnnqc report" in result.err
    assert not (tmp_path / "tuned.toml").exists()


def _cost(result: Tuned) -> list[tuple[int, float]]:
    return [(p.measured.cost, p.measured.quality) for p in result.frontier]


def test_the_frontier_leads_to_what_was_chosen(tuned: Tuned) -> None:
    """No entry costs more for the same result, and the chosen one is included; in JSON, too."""
    costs, qualities = zip(*_cost(tuned), strict=True)
    assert list(costs) == sorted(set(costs)) and list(qualities) == sorted(set(qualities))
    assert 2 <= len(costs) <= 8
    assert all(p.seconds > 0 for p in tuned.frontier)
    assert tuned.found.measured.cost >= costs[0]
    assert [p["cost"] for p in tuned.to_dict()["frontier"]] == list(costs)


@pytest.mark.slow
def test_the_best_within_so_many_bytes(tuned: Tuned, model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    """The idle layer loses bits so that the sensitive one keeps its own."""
    most = tuned.found.measured.cost
    result = tune(model, feeds, max_bytes=most)
    assert result.found.reached and result.found.measured.cost <= most
    assert result.found.measured.quality >= tuned.found.measured.quality
    lowered = rnnqc.lower(model, parse_recipe(result.text, "tuned.toml"))
    assert sum(e.bytes for e in lowered.report.entries) == result.weight_bytes[1] <= most


@pytest.mark.slow
def test_the_best_within_some_time(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    best = tune(model, feeds, max_ms=1e3)
    assert best.found.measured.quality == max(p.measured.quality for p in best.frontier)
    most = 0.8 * best.call_seconds[0]
    quick = tune(model, feeds, max_ms=1e3 * most)
    assert quick.found.reached and quick.call_seconds[1] <= most
    assert quick.found.measured.quality < best.found.measured.quality
    assert parse_recipe(quick.text, "tuned.toml").rules[: len(quick.settings)] == rules_of(quick.settings)
    assert not tune(model, feeds, max_ms=1e-9).found.reached


METRICS = """
def good(outputs, inputs): return -abs(float(outputs[0]["Y"].mean()))
def broken(outputs, inputs): raise KeyError("labels")
def nan(outputs, inputs): return float("nan")
number = 3
"""


@pytest.mark.slow
def test_command_with_a_metric(
    model: onnx.ModelProto, feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = _files(tmp_path, model, feeds)
    (tmp_path / "metrics_of_a_test.py").write_text(METRICS)
    monkeypatch.chdir(tmp_path)
    arguments = ("tune", path, "--data", data, "-o", "tuned.toml", "--min-metric", "-1", "--metric")
    shown = cli(*arguments, "metrics_of_a_test:good", "--json")
    assert shown.code == 0, shown.text
    result = json.loads(shown.out)
    assert result["reached"] and result["weight_bytes"][1] < result["weight_bytes"][0]
    for name, text in {"broken": "labels", "nan": "NaN", "number": "int", "absent": "absent"}.items():
        refused = cli(*arguments, f"metrics_of_a_test:{name}")
        assert refused.code == 2 and text in refused.err and "Traceback" not in refused.err, refused.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Goals given: none"),
        (["--min-sqnr", "30", "--metric", "math:sqrt", "--min-metric", "1"], "Goals given: metric, min_sqnr"),
        (["--metric", "math:sqrt"], "Goals given: metric"),
        (["--min-metric", "1"], "Goals given: min_metric"),
        (["--max-bytes", "1000", "--min-sqnr", "30"], "Goals given: min_sqnr, max_bytes"),
        (["--max-ms", "nan"], "number of milliseconds"),
        (["--min-sqnr", "30", "--plot", "out.png"], ".svg"),
        (["--metric", "no", "--min-metric", "1"], "accuracy, perplexity, module:function"),
        (["--metric", "accuracy", "--min-metric", "1"], "labels"),
        (["--metric", "accuracy", "--max-metric", "1"], "more is better"),
        (["--metric", "perplexity", "--min-metric", "1"], "less is better"),
        (["--min-sqnr", "much"], "number of decibels"),
        (["--min-sqnr", "30", "--recipe", "no"], "There is no recipe"),
        (["--min-sqnr", "30", "--state", "X"], "IN:OUT"),
        (["--min-sqnr", "30", "--stats", "no.json"], "no.json"),
        (["--min-sqnr", "30", "--data", "no.npz"], "no.npz"),
        (["--min-sqnr", "30", "-o", "out.json"], ".toml"),
        (["--min-sqnr", "30", "-o", "no/such/out.toml"], "no/such"),
    ],
)
def test_bad_arguments(
    arguments: list[str], message: str, model: onnx.ModelProto, feeds: list[dict[str, Array]], tmp_path: Path,
    cli: Cli, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path, data = _files(tmp_path, model, feeds)
    monkeypatch.chdir(tmp_path)
    result = cli("tune", path, "--data", data, "-o", "tuned.toml", *arguments)
    assert result.code == 2, result.text
    assert message in result.err and "Traceback" not in result.err, result.err
    assert not list(tmp_path.glob("*.toml"))


@pytest.mark.slow
def test_outputs_without_floats_need_a_metric(model: onnx.ModelProto, feeds: list[dict[str, Array]]) -> None:
    """Would catch: a search of minutes by an SQNR that no output has."""
    tags = onnx.ModelProto()
    tags.CopyFrom(model)
    tags.graph.node.append(helper.make_node("ArgMax", ["Y"], ["tags"], axis=-1, keepdims=0))
    del tags.graph.output[:]
    tags.graph.output.append(helper.make_tensor_value_info("tags", TensorProto.INT64, None))
    told: list[tuple[int, int]] = []
    with pytest.raises(UsageError, match=r"no output is of floats: tags.*metric="):
        tune(tags, feeds, min_sqnr=40, progress=lambda *done: told.append(done))
    assert told == []

    def equal(outputs: Sequence[dict[str, Array]], inputs: Sequence[dict[str, Array]]) -> float:
        return 1.0

    found = tune(tags, feeds, metric=equal, min_metric=0.5, progress=lambda *done: told.append(done))
    assert found.found.reached and told[0][0] == 0 and told[0][1] > 1


def labelled(outputs: Sequence[dict[str, Array]], inputs: Sequence[dict[str, Array]]) -> float:
    """Accuracy, by a function of the user."""
    right = [o["Y"].argmax(-1) == f["labels"] for o, f in zip(outputs, inputs, strict=True)]
    return float(np.mean(right))


def test_metrics_are_those_of_evaluate(feeds: list[dict[str, Array]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: labels of the data that do not reach a metric, a metric that only other commands know."""
    model = one_layer()
    monkeypatch.setattr("rnnqc.search.units.WEIGHT_CHOICES", WEIGHT_CHOICES[4:5])
    made = [rnnqc.session(model).run(["Y"], f)[0] for f in feeds]
    data = [{**f, "labels": y.argmax(-1)} for f, y in zip(feeds, made, strict=True)]
    data = data[:2]
    found = [tune(model, data, metric=m, min_metric=0.8, models=3) for m in ("accuracy", labelled)]
    assert found[0].text == found[1].text and found[0].float_quality == 1.0
    assert found[0].found.reached and found[0].settings
    lowered = rnnqc.lower(model, parse_recipe(found[0].text, "tuned.toml"))
    assert rnnqc.evaluate(lowered, data, "accuracy").value == found[0].found.measured.quality
    most = 1.001 * rnnqc.evaluate(model, data, "perplexity").value
    less = tune(model, data, metric="perplexity", max_metric=most, models=3)
    told = less.to_dict()
    assert less.found.reached and 1 < told["result"]["quality"] <= most
    assert told["float_quality"] == pytest.approx(most / 1.001) and f"{told['result']['quality']:.6g}" in less.headline
    lowered = rnnqc.lower(model, parse_recipe(less.text, "tuned.toml"))
    assert rnnqc.evaluate(lowered, data, "perplexity").value == told["result"]["quality"]
    assert not tune(model, data, metric="perplexity", max_metric=1.0, models=3).found.reached


def test_models_without_anything_to_tune(feeds: list[dict[str, Array]], model: onnx.ModelProto) -> None:
    node = helper.make_node("Relu", ["X"], ["Y"])
    relu = of_nodes([node], {"X": ["T", "B", I]}, {"Y": ["T", "B", I]})
    with pytest.raises(rnnqc.CompileError, match="no recurrent layer"):
        tune(relu, feeds, min_sqnr=30)
    with pytest.raises(rnnqc.CompileError, match="lowered already"):
        tune(rnnqc.lower(model).proto, feeds, min_sqnr=30)
    with pytest.raises(UsageError, match="NaN"):
        tune(model, feeds, min_sqnr=float("nan"))


def test_a_bound_of_time(model: onnx.ModelProto, feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli) -> None:
    """Almost no time: only the start is measured and becomes the result, and the user is told."""
    model_path, data = _files(tmp_path, model, feeds)
    arguments = ["tune", model_path, "--data", data, "--min-sqnr", "20", "--seconds", "0.001", "--json"]
    result = cli(*arguments, "-o", tmp_path / "tuned.toml")
    assert result.code == 0
    found = json.loads(result.out)
    assert (found["tried"], found["ended_early"], found["settings"]) == (1, True, {})
    assert "the search ended before it was done" in result.err
    assert rnnqc.lower(model, str(tmp_path / "tuned.toml")).report.is_changed
    with pytest.raises(UsageError, match="0 seconds"):
        tune(model, feeds, min_sqnr=20.0, seconds=0)


def test_a_bound_of_models(feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli) -> None:
    """No more are measured, combinations among them, and two runs find the same."""
    model = one_layer()
    model_path, data = _files(tmp_path, model, feeds)
    texts = []
    for run in range(2):
        recipe = tmp_path / f"{run}.toml"
        given = ["--data", data, "--min-sqnr", "20", "--models", "4", "--json"]
        result = cli("tune", model_path, *given, "-o", recipe)
        found = json.loads(result.out)
        assert result.code == 0 and 1 < found["tried"] <= 4 and found["ended_early"] and found["settings"]
        texts.append(recipe.read_text())
    assert texts[0] == texts[1]
    with pytest.raises(UsageError, match="0 models"):
        tune(model, feeds, min_sqnr=20.0, models=0)


def test_the_work_is_told_before_it_begins(feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli) -> None:
    """As many models as there are changes of a single point, and the recipe."""
    model_path, data = _files(tmp_path, one_layer(), feeds)
    told: list[tuple[int, int]] = []
    tuned = tune(one_layer(), feeds, min_sqnr=20.0, models=2, progress=lambda *done: told.append(done))
    singles = 1 + sum(len(u.choices) - 1 for u in tuned.units)
    assert told[0] == (0, singles) and told[-1][0] == 2
    given = ["tune", model_path, "--data", data, "-o", tmp_path / "t.toml", "--min-sqnr", "20", "--models", "2"]
    loud = cli(*given).err
    assert f"rnnqc: {singles} models are measured first" in loud and "it ends after 2 models (--models)" in loud
    assert "models are measured" not in cli(*given, "-q").err


def test_bound_inputs_and_dimensions(feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli) -> None:
    """As `lower` has them: the data has no array for a bound input, and the next command binds it, too."""
    model = one_layer()
    model.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, []))
    [node] = [n for n in model.graph.node if "X" in n.input]
    node.input[:] = ["louder" if name == "X" else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Mul", ["X", "gain"], ["louder"]))
    path, data = _files(tmp_path, model, feeds)
    given = ["tune", path, "--data", data, "-o", tmp_path / "t.toml", "--min-sqnr", "20", "--models", "2"]
    assert "no array for input 'gain'" in cli(*given).err
    result = cli(*given, "--bind", "gain=0.5", "--dim", "T=12")
    assert result.code == 0, result.text
    words = shlex.split(result.out.splitlines()[-1].removeprefix("next: rnnqc "))
    assert cli(*words).code == 0
    inputs = onnx.load(words[words.index("-o") + 1]).graph.input
    assert [i.name for i in inputs] == ["X"] and inputs[0].type.tensor_type.shape.dim[0].dim_value == T


def test_what_follows_from_the_data_is_told_before_the_search(tmp_path: Path, cli: Cli) -> None:
    """States that are not carried make the whole search useless; would catch one that is told at the end only."""
    case = RecurrentCase(T=4, B=1, I=8, H=16, initial_h=True, initial_c=True)
    model = case.model()
    names = {"initial_h": "h_in", "initial_c": "c_in", "Y_h": "h_out", "Y_c": "c_out"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    feed = {names.get(k, k): a for k, a in case.feeds().items()}
    onnx.save(model, tmp_path / "model.onnx")
    save_arrays(tmp_path / "data.npz", {k: np.stack([a, a]) for k, a in feed.items()})
    result = cli(
        "tune", tmp_path / "model.onnx", "--data", tmp_path / "data.npz", "-o", tmp_path / "t.toml",
        "--min-sqnr", "10", "--models", "2",
    )  # fmt: skip
    assert result.code == 0, result.text
    assert result.err.count("look like states") == 1
    assert result.err.index("look like states") < result.err.index("models are measured first")


def test_layers_of_a_branch_that_may_not_run() -> None:
    """Two models in one, as Silero's for 8 and 16 kHz: nothing is lost by a layer that the data does not run."""
    rng = np.random.default_rng(0)
    proto = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[T,1,8] x, int64 rate) => (float[1,1,16] y)
        <int64 wide = {16}> { is = Equal (rate, wide) y = If (is) <
          then_branch = t () => (float[1,1,16] a) { u, a = LSTM <hidden_size = 16> (x, W, R) },
          else_branch = e () => (float[1,1,16] b) { v, b = LSTM <hidden_size = 16> (x, V, S) }> }""",
        **{n: rng.standard_normal((1, 64, 8 if n in "WV" else 16)).astype(np.float32) for n in "WRVS"},
    )
    data = [{"x": rng.standard_normal((12, 1, 8)).astype(np.float32), "rate": np.int64(16)} for _ in range(2)]
    told = "input 'rate' decides which branches run"
    assert any(told in m for m in tune(proto, data, min_sqnr=20.0, models=2).messages)
    calibrated = tune(proto, data, min_sqnr=20.0, models=2, stats=rnnqc.calibrate(proto, data))
    assert not any(told in m for m in calibrated.messages) and calibrated.silent


class Work:
    """A clock that advances by a second with every lowering."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lowerings = 0

        def counted(*arguments: Any, **options: Any) -> Any:
            self.lowerings += 1
            return rnnqc.lower(*arguments, **options)

        monkeypatch.setattr("rnnqc.search.tune.lower", counted)
        monkeypatch.setattr("rnnqc.search.tune.time", SimpleNamespace(monotonic=lambda: float(self.lowerings)))


def test_a_bound_of_time_is_kept_and_spent_on_all_layers(
    model: onnx.ModelProto, feeds: list[dict[str, Array]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a layer that is left out for want of time, unsaid; models lowered again when the time is over."""
    work = Work(monkeypatch)
    found = tune(model, feeds, min_sqnr=20.0, seconds=9.0)
    assert found.found.ended_early and work.lowerings <= 10
    assert found.unseen_layers == [] and {p.split(".")[0] for p in found.settings} == {SENSITIVE, IDLE}
    work.lowerings = 0
    short = tune(model, feeds, min_sqnr=20.0, seconds=2.0)
    assert len(short.unseen_layers) == 1 and f"Never looked at: {short.unseen_layers[0]}." in short.messages[0]
    assert short.to_dict()["unseen_layers"] == short.unseen_layers


def test_a_time_is_measured_once(
    feeds: list[dict[str, Array]], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: two times of one model, which contradict each other on a busy machine."""
    told: list[int] = []

    def made_up(models: Sequence[onnx.ModelProto], _feed: Any) -> list[float]:
        told.append(len({m.SerializeToString(deterministic=True) for m in models}))
        assert told[-1] == len(models)
        return [1.0 + 0.001 * k for k in range(len(models))]

    monkeypatch.setattr("rnnqc.search.tune.call_seconds", made_up)
    path, data = _files(tmp_path, one_layer(), feeds)
    result = cli("tune", path, "--data", data, "-o", tmp_path / "tuned.toml", "--max-bytes", 6000, "--json")
    assert len(told) == 1, "all models in one measurement"
    found = json.loads(result.out)
    assert result.code == 0, result.text
    times = {p["cost"]: p["call_seconds"] for p in found["frontier"]}
    assert found["call_seconds"][1] == times[found["result"]["cost"]]


def test_layers_of_the_same_weights_are_one_unit() -> None:
    """Would catch: a width that one of two steps gets, for which the other one's weights stay beside the new ones."""
    case = RecurrentCase(T=4, B=2, I=16, H=32)
    proto = case.model()
    (first,) = proto.graph.node
    second = proto.graph.node.add()
    second.CopyFrom(first)
    second.name = "second"
    second.output[:] = [f"{name}_2" if name else "" for name in first.output]
    for output in list(proto.graph.output):
        added = proto.graph.output.add()
        added.CopyFrom(output)
        added.name = f"{output.name}_2"
    tuned = tune(proto, [case.feeds()], min_sqnr=15.0)
    assert [len(u.points) for u in tuned.units] == [2] * 4
    saved = [u for u in tuned.units if u.point in tuned.settings and u.point.endswith(".weight")]
    assert saved and all(tuned.settings[p] == tuned.settings[u.point] for u in saved for p in u.points)
    assert tuned.weight_bytes[1] < 0.7 * tuned.weight_bytes[0]
    lowered = rnnqc.lower(proto, parse_recipe(recipe_text(tuned), "tuned.toml"))
    assert lowered.report.weight_bytes[1] == tuned.weight_bytes[1]
    assert " and 1 more" in tuned.rows[0]["point"]


def test_the_verdict_is_that_of_verify(tmp_path: Path) -> None:
    """Would catch: an output that does not vary on the data called good for its infinite SQNR."""
    rng = np.random.default_rng(0)
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[T,1,8] x) => (float[1,1,16] y) <float big = {90.0}> '
        "{ all, last = LSTM <hidden_size = 16> (x, W, R) sum = Add (last, big) y = Sigmoid (sum) }",
        W=rng.standard_normal((1, 64, 8)).astype(np.float32),
        R=rng.standard_normal((1, 64, 16)).astype(np.float32),
    )
    data = [{"x": rng.standard_normal((12, 1, 8)).astype(np.float32)} for _ in range(2)]
    tuned = tune(proto, data, min_sqnr=30.0, models=2)
    lowered = rnnqc.lower(proto, parse_recipe(recipe_text(tuned), "tuned.toml"))
    assert tuned.verdict == rnnqc.verify(proto, lowered, data).verdict
    assert tuned.verdict is not None and tuned.verdict.level == "watch"
    assert "this comparison shows little" in tuned.headline
