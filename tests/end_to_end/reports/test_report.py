"""`rnnqc report` and `lower --report`: a planted bad range comes first, and the override that the page prints mends it.

What these would catch: a report about another model than the one given, an override that does not do what the page
says, a page that models can write into, numbers that differ between the page and its JSON or from run to run.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

import rnnqc
from rnnqc.cli import main
from rnnqc.commands.shared import terminal
from rnnqc.measure.compare import compare_models
from rnnqc.recipes.recipe_record import RECIPE_KEY
from tests.generate.layers import RecurrentCase
from tests.pages.report_pages import Page
from tests.runs.commands import HANGS, Result, in_subprocess
from tests.runs.sessions import Array, save_arrays
from tests.subjects.protos import of_nodes, parse

T, B, I, H = 24, 2, 12, 16  # noqa: E741
BAD = "lstm_b.forward.forget_gate.acc"
HOSTILE = '"><script>alert(1)</script>'
FEW = ("--models", "20")
"""Enough for the worst point to be measured and mended."""
QUICK = ("--set", "*.input.range=min-max")
BIDI = "</style>\u202egnp\u2066'&amp;\x1b[31m"

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
Cli = Callable[..., Result]


def _model(first: str = "lstm_a", second: str = "lstm_b", x: str = "X", y: str = "Y") -> onnx.ModelProto:
    """Two LSTMs in a row, trained enough to have states that differ: their gates are of usual size."""
    rng = np.random.default_rng(0)
    stored, nodes, size, value = {"axes": np.array([1])}, [], I, x
    for k, name in enumerate((first, second)):
        for m, width in (("W", size), ("R", H)):
            stored[f"{m}{k}"] = rng.normal(0, 2 / np.sqrt(H), (1, 4 * H, width)).astype(np.float32)
        nodes.append(helper.make_node("LSTM", [value, f"W{k}", f"R{k}"], [f"y{k}"], name=name, hidden_size=H))
        value = y if k else "between"
        nodes.append(helper.make_node("Squeeze", [f"y{k}", "axes"], [value], name=f"squeeze{k}"))
        size = H
    return of_nodes(nodes, {x: ["T", "B", I]}, {y: ["T", "B", H]}, stored)


def _feeds() -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"X": rng.normal(0, 1, (T, B, I)).astype(np.float32)} for _ in range(3)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    onnx.save(_model(), tmp_path / "model.onnx")
    save_arrays(tmp_path / "data.npz", {"X": np.stack([f["X"] for f in _feeds()])})
    return tmp_path / "model.onnx", tmp_path / "data.npz"


def _numbers(data: Any) -> Iterator[float]:
    """All numbers in a JSON value."""
    if isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _numbers(value)
    elif data in ("inf", "-inf") or (isinstance(data, int | float) and not isinstance(data, bool)):
        yield float(data)


def test_a_planted_range_comes_first_and_the_override_mends_it(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = files
    bad, page, out = tmp_path / "bad.onnx", tmp_path / "bad.html", tmp_path / "bad.json"
    planted = f"{BAD}.scale=0.00005"
    assert cli("lower", model, "-o", bad, "--set", planted).code == 0
    assert cli("report", model, bad, "--data", data, "-o", page, "--json", *FEW).code == 0
    evidence = json.loads(out.read_text())
    assert evidence["points"][0]["point"] == BAD
    assert evidence["points"][0]["clipped"] > 0.2
    assert evidence["sensitivities"][0]["points"] == BAD
    assert evidence["sensitivities"][0]["noise_share"] > 0.9
    repair = evidence["repairs"][0]
    assert repair["points"] == BAD
    read = Page.read(page.read_text(encoding="utf-8"))
    words = shlex.split(read.commands[0])
    assert words == ["--set", *repair["overrides"]]
    mended = rnnqc.lower(model, overrides=[*words[1:], planted])
    [as_it_is] = compare_models(_model(), onnx.load(bad), _feeds())
    [after] = compare_models(_model(), mended.proto, _feeds())
    [never] = compare_models(_model(), rnnqc.lower(model).proto, _feeds())
    assert as_it_is.sqnr_db == pytest.approx(repair["sqnr_before"], abs=1e-6)
    assert after.sqnr_db == pytest.approx(repair["sqnr_after"], abs=1e-6)
    assert as_it_is.sqnr_db < never.sqnr_db - 10
    assert after.sqnr_db > never.sqnr_db - 1.5
    # The whole command does the same.
    command = shlex.split(read.commands[1].replace("\\\n", " "))
    assert command[:5] == ["rnnqc", "lower", str(model), "-o", str(tmp_path / "bad.changed.onnx")]
    assert cli(*command[1:]).code == 0
    [again] = compare_models(_model(), onnx.load(tmp_path / "bad.changed.onnx"), _feeds())
    assert again.sqnr_db == after.sqnr_db


@pytest.mark.slow
def test_an_edited_statistics_file(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    stats, bad, page = tmp_path / "stats.json", tmp_path / "bad.onnx", tmp_path / "bad.html"
    assert cli("calibrate", model, "--data", data, "-o", stats).code == 0
    held = json.loads(stats.read_text())
    point = held["points"]["lstm_a.forward.input"]
    point["min"], point["max"] = point["min"] / 20, point["max"] / 20
    stats.write_text(json.dumps(held))
    options = ["--recipe", "int8-static", *QUICK]
    assert cli("lower", model, "-o", bad, "--stats", stats, *options).code == 0
    assert cli("report", model, bad, "--data", data, "--stats", stats, "-o", page, "--json", *FEW).code == 0
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert "bit for bit" in evidence["remade"]
    assert evidence["warnings"] == []
    assert evidence["points"][0]["point"] == evidence["sensitivities"][0]["points"] == "lstm_a.forward.input"
    repair = evidence["repairs"][0]
    assert repair["points"] == "lstm_a.forward.input"
    assert repair["sqnr_after"] > repair["sqnr_before"] + 15
    overrides = shlex.split(Page.read(page.read_text(encoding="utf-8")).commands[0])[1:]
    assert cli("lower", model, "-o", bad, "--stats", stats, *options, "--set", *overrides).code == 0
    # The first match counts: behind the others the scale still has no rival.
    [after] = compare_models(_model(), onnx.load(bad), _feeds())
    assert after.sqnr_db == pytest.approx(repair["sqnr_after"], abs=1e-6)


def test_without_the_statistics_scales_are_those_of_the_model(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    few = tmp_path / "few.npz"
    save_arrays(few, {"X": 0.3 * _feeds()[0]["X"]})
    assert cli("lower", model, "-o", quant, "--recipe", "int8-static", "--calibration", few, *QUICK).code == 0
    assert cli("report", model, quant, "--data", data, "-o", page, "--json", "--seconds", "0").code == 0
    evidence = json.loads(page.with_suffix(".json").read_text())
    points = {c.name: c.points for c in rnnqc.Model.load(quant).cells.values()}
    [seen] = [p for p in evidence["points"] if p["point"] == "lstm_a.forward.input"]
    assert seen["scale"] == points["lstm_a.forward"]["input"].scale[0]
    assert any("--stats" in w for w in evidence["warnings"])
    assert evidence["calibration"] is None, "it is calibrated"


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_another_width_has_a_scale_of_its_own(cli: Cli, files: tuple[Path, Path], tmp_path: Path, given: bool) -> None:
    """Scales that are held are those of the width that a point has."""
    model, data = files
    stats, quant, page = tmp_path / "stats.json", tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("calibrate", model, "--data", data, "-o", stats).code == 0
    options = ["--recipe", "int8-static", "--stats", stats, *QUICK]
    few = "lstm_a.forward.input.bits=4"
    assert cli("lower", model, "-o", quant, *options, few).code == 0
    more = ["--stats", stats] if given else []
    assert cli("report", model, quant, "--data", data, "-o", page, "--json", *FEW, *more).code == 0
    wider = (["lstm_a.forward.input.bits=8"], ["lstm_a.forward.input.bits=16"])
    repairs = json.loads(page.with_suffix(".json").read_text())["repairs"]
    repair = next(r for r in repairs if r["overrides"] in wider)
    assert repair["sqnr_after"] > repair["sqnr_before"] + 10
    mended = tmp_path / "mended.onnx"
    assert cli("lower", model, "-o", mended, *options[:-1], *repair["overrides"], *options[-1:], few).code == 0
    [after] = compare_models(_model(), onnx.load(mended), _feeds())
    assert after.sqnr_db == pytest.approx(repair["sqnr_after"], abs=1e-6)


def test_the_page_has_the_numbers_of_its_json_and_what_a_calibration_does_first(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """4-bit weights that are rounded one by one: a calibration rounds them together, at no cost."""
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("lower", model, "-o", quant, "--recipe", "w4a8").code == 0
    result = cli("report", model, quant, "--data", data, "-o", page, "--json", "--models", "4")
    assert result.code == 0, result.err
    text = page.read_text(encoding="utf-8")
    evidence = json.loads(page.with_suffix(".json").read_text())
    read = Page.read(text)
    known = {f"{v:.9g}" for v in _numbers(evidence)}
    shown = [float(v) for v, _ in read.values if v]
    assert len(shown) > 100
    derived = [v for v in shown if f"{v:.9g}" not in known]
    # Gains, unused codes and growth are differences of numbers of the JSON; nothing else is derived.
    differences = {f"{s['sqnr_after'] - s['sqnr_before']:.6g}" for s in evidence["repairs"]}
    together = evidence["together"]
    differences |= {f"{together['sqnr_after'] - together['sqnr_before']:.6g}"} if together else set()
    differences |= {
        f"{1 - p['codes_used'] / p['codes']:.6g}" for p in evidence["points"] if p["codes_used"] is not None
    }
    curves = [c["curve"] for c in (*evidence["layers"], *evidence["outputs"]) if c["curve"]]
    differences |= {f"{c['quarters_db'][-1] - c['quarters_db'][0]:.6g}" for c in curves}
    assert [v for v in derived if f"{v:.6g}" not in differences and v not in (0.0, 2.0)] == []
    for group in ("sensitivities", "points", "layers", "outputs", "entries"):
        for row in evidence[group]:
            name = row.get("points") or row.get("point") or row.get("cell") or row.get("name") or row["node"]
            assert name in read.text, (group, name)
    gain = evidence["calibration"]
    feeds = _feeds()
    calibrated = rnnqc.lower(model, "w4a8", calibration=feeds).proto
    for key, proto in (("sqnr_before", onnx.load(quant)), ("sqnr_after", calibrated)):
        [compared] = compare_models(_model(), proto, feeds)
        assert gain[key] == pytest.approx(compared.sqnr_db, abs=1e-6)
    assert f"{gain['worst_before']:.1f} -> {gain['worst_after']:.1f} dB with --calibration DATA" in result.out
    assert read.text.index(f"--calibration {data}") < read.text.index("--set")


@pytest.mark.slow
def test_a_calibrated_model_needs_no_calibration(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("lower", model, "-o", quant, "--calibration", data, "-q").code == 0
    result = cli("report", model, quant, "--data", data, "-o", page, "--json", "--models", "1")
    assert json.loads(page.with_suffix(".json").read_text())["calibration"] is None
    assert "with --calibration" not in result.out


def test_the_page_is_the_same_again_loads_nothing_and_tells_its_bounds(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = files
    quant, pages = tmp_path / "quant.onnx", [tmp_path / "a.html", tmp_path / "b.html"]
    assert cli("lower", model, "-o", quant).code == 0
    for page in pages:
        result = cli("report", model, quant, "--data", data, "-o", page, "--json", "--models", "1")
        assert result.code == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert pages[0].with_suffix(".json").read_bytes() == pages[1].with_suffix(".json").read_bytes()
    text = pages[0].read_text(encoding="utf-8")
    assert re.findall(r"https?:|src=|srcset=|url\(|@import|<script|javascript:|\son\w+=", text) == []
    assert "default-src 'none'" in text
    assert "not measured" in result.err
    evidence = json.loads(pages[0].with_suffix(".json").read_text())
    assert len(evidence["sensitivities"]) == 1
    assert len(evidence["unmeasured"]) >= 5
    assert "NOT measured" in Page.read(text).text


@pytest.mark.slow
def test_lowering_with_a_report(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """The same numbers as of `rnnqc report` afterwards, on the calibration data; the JSON has them, too."""
    model, data = files
    quant, page, out = tmp_path / "quant.onnx", tmp_path / "page.html", tmp_path / "out.json"
    given = ["--recipe", "int8-static", "--calibration", data, *QUICK]
    assert cli("lower", model, "-o", quant, *given, "--report", page, "--json", out, *FEW).code == 0
    evidence = json.loads(out.read_text())["evidence"]
    assert "bit for bit" in evidence["remade"]
    [compared] = compare_models(_model(), onnx.load(quant), _feeds())
    assert evidence["outputs"][0]["sqnr_db"] == pytest.approx(compared.sqnr_db, abs=1e-6)
    Page.read(page.read_text(encoding="utf-8"))
    plain = tmp_path / "plain.onnx"
    assert cli("lower", model, "-o", plain, *given).code == 0
    assert plain.read_bytes() == quant.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["--calibration", "--stats"])
def test_the_whole_command_of_a_calibrated_model(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path, given: str
) -> None:
    """The command names the existing data or statistics, and does not overwrite the model of the page."""
    model, data = files
    quant, page, stats = tmp_path / "quant.onnx", tmp_path / "page.html", tmp_path / "its own.json"
    assert cli("calibrate", model, "--data", data, "-o", stats).code == 0
    source = data if given == "--calibration" else stats
    planted = ["--recipe", "int8-static", "--set", f"{BAD}.scale=0.00005", QUICK[1]]
    few = ["--report", page, "--models", "15"]
    assert cli("lower", model, "-o", quant, given, source, *planted, *few).code == 0
    before = quant.read_bytes()
    pages = [page]
    if given == "--stats":
        pages.append(tmp_path / "again.html")
        options = ["--data", data, "--stats", stats, "--models", "15"]
        assert cli("report", model, quant, *options, "-o", pages[1]).code == 0
    for written in pages:
        commands = Page.read(written.read_text(encoding="utf-8")).commands
        command = shlex.split(commands[1].replace("\\\n", " "))
        assert command[command.index(given) + 1] == str(source)
        assert cli(*command[1:]).code == 0
        changed = tmp_path / "quant.changed.onnx"
        [was] = compare_models(_model(), onnx.load(quant), _feeds())
        [now] = compare_models(_model(), onnx.load(changed), _feeds())
        assert now.sqnr_db > was.sqnr_db + 5
        changed.unlink()
    assert quant.read_bytes() == before


@pytest.mark.slow
def test_names_of_models_cannot_write_into_the_page(cli: Cli, tmp_path: Path) -> None:
    model, quant, page = tmp_path / "model.onnx", tmp_path / "quant.onnx", tmp_path / "page.html"
    onnx.save(_model(HOSTILE, "x=y\n--set", x=BIDI, y="</pre><img src=x onerror=alert(1)>"), model)
    save_arrays(tmp_path / "data.npz", {BIDI: _feeds()[0]["X"]})
    planted = "*.forget_gate.acc.scale=0.00005"
    assert cli("lower", model, "-o", quant, "--set", planted).code == 0
    assert cli("report", model, quant, "--data", tmp_path / "data.npz", "-o", page, "--json", *FEW).code == 0
    text = page.read_text(encoding="utf-8")
    read = Page.read(text)
    assert HOSTILE in read.text
    assert "</style>\\u202egnp\\u2066'&amp;\\x1b[31m" in read.text
    assert not set(text) & set("\u202e\u2066\x1b\x00")
    assert "alert(1)" not in "".join(read.texts["style"])
    assert read.counts["style"] == read.counts["h1"] == 1
    # What it prints still mends the model.
    evidence = json.loads(page.with_suffix(".json").read_text())
    best = evidence["repairs"][0]
    words = shlex.split(read.commands[0])
    assert words == ["--set", *best["overrides"]]
    assert cli("lower", model, "-o", quant, "--set", *words[1:], planted).code == 0


def test_a_model_that_does_not_say_how_it_was_made(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    proto = rnnqc.lower(model).proto
    kept = [p for p in proto.metadata_props if p.key != RECIPE_KEY]
    assert len(kept) == len(proto.metadata_props) - 1
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    onnx.save(proto, quant)
    assert cli("report", model, quant, "--data", data, "-o", page, "--json").code == 0
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert set(evidence["missing"]) == {"layers", "points", "sensitivity"}
    assert evidence["outputs"][0]["sqnr_db"] > 20
    assert "Lower it again" in Page.read(page.read_text(encoding="utf-8")).text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "damaged"),
        ('{"name":"int8","kind":"cells","form":"fused","overrides":0,"rules":[{"points":"*","bits":99}]}', "bits"),
        ('{"name":"int8","kind":"cells","form":"fused","overrides":-1,"rules":[]}', "damaged"),
        ("[" * 10_000, "damaged"),
    ],
)
def test_a_damaged_record(cli: Cli, files: tuple[Path, Path], tmp_path: Path, text: str, part: str) -> None:
    model, data = files
    proto = rnnqc.lower(model).proto
    [entry] = [p for p in proto.metadata_props if p.key == RECIPE_KEY]
    entry.value = text
    onnx.save(proto, tmp_path / "quant.onnx")
    page = tmp_path / "page.html"
    result = cli("report", model, tmp_path / "quant.onnx", "--data", data, "-o", page)
    assert result.code == 2
    assert part in result.err
    assert not page.exists()


def test_values_that_are_no_numbers(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    feed = _feeds()[0]["X"].copy()
    feed[3, 0, 0] = np.inf
    save_arrays(tmp_path / "data.npz", {"X": feed})
    assert cli("lower", model, "-o", quant).code == 0
    result = cli("report", model, quant, "--data", tmp_path / "data.npz", "-o", page)
    assert result.code == 2
    assert "NaN or infinite at lstm_a.forward.input" in result.err
    assert not page.exists()


@pytest.mark.parametrize("options", [["-o", "page.txt"], ["-o", "page.html", "--models", "0"]])
def test_bad_usage(cli: Cli, files: tuple[Path, Path], options: list[str]) -> None:
    model, _ = files
    assert cli("report", model, model, *options).code == 2


def test_another_float_model(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    onnx.save(rnnqc.lower(_model("one", "two")).proto, tmp_path / "quant.onnx")
    result = cli("report", model, tmp_path / "quant.onnx", "--data", data, "-o", tmp_path / "page.html")
    assert result.code == 2
    assert "one.forward" in result.err


def _without_measurements(cli: Cli, given: list[Any], page: Path) -> None:
    """Asserts that a report begins with the mismatch, and prints no override."""
    result = cli("report", *given, "-o", page, "--json")
    assert result.code == 0, result.err
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert "is not the model that" in evidence["mismatch"]
    assert result.err.replace("\n", " ").startswith(f"rnnqc: {evidence['mismatch']}")
    assert evidence["repairs"] == evidence["sensitivities"] == evidence["points"] == []
    assert evidence["together"] is None
    read = Page.read(page.read_text(encoding="utf-8"))
    assert evidence["mismatch"] in read.texts["header"][0]
    assert read.commands == []
    assert "was applied to this model" not in read.text
    assert "see the top of this page" in read.texts["section"][0]


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "int8-static"])
def test_another_checkpoint(cli: Cli, files: tuple[Path, Path], tmp_path: Path, recipe: str) -> None:
    """The same cells with other weights: nothing is measured on a newly lowered model."""
    model, data = files
    other = _model()
    for stored in other.graph.initializer:
        array = numpy_helper.to_array(stored)
        stored.CopyFrom(numpy_helper.from_array(array if array.ndim < 3 else array[:, ::-1], stored.name))
    calibrated = {"calibration": str(data)} if recipe == "int8-static" else {}
    onnx.save(other, tmp_path / "other.onnx")
    quant = rnnqc.lower(tmp_path / "other.onnx", recipe, overrides=[f"{BAD}.scale=0.00005"], **calibrated)
    quant.save(tmp_path / "quant.onnx")
    _without_measurements(cli, [model, tmp_path / "quant.onnx", "--data", data], tmp_path / "page.html")


def test_a_file_changed_after_lowering(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    proto = rnnqc.lower(model, overrides=[f"{BAD}.scale=0.00005"]).proto
    weights = [t for t in proto.graph.initializer if t.data_type == TensorProto.INT8]
    assert weights
    array = numpy_helper.to_array(weights[0]).copy()
    array.flat[:: array.size // 4] ^= 64
    weights[0].CopyFrom(numpy_helper.from_array(array, weights[0].name))
    onnx.save(proto, tmp_path / "quant.onnx")
    _without_measurements(cli, [model, tmp_path / "quant.onnx", "--data", data], tmp_path / "page.html")


def test_models_of_other_outputs(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """The same refusal as that of `rnnqc verify`."""
    model, data = files
    onnx.save(rnnqc.lower(_model(y="other")).proto, tmp_path / "quant.onnx")
    given = [model, tmp_path / "quant.onnx", "--data", data]
    result = cli("report", *given, "-o", tmp_path / "page.html")
    assert result.code == 2
    assert "have different outputs: ['Y'] and ['other']" in result.err
    assert result.err == cli("verify", *given).err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["B", B])
def test_data_without_time_steps(tmp_path: Path, batch: str | int) -> None:
    """onnxruntime 1.31 ends the process where a GRU in float gets a sequence without steps."""
    proto = onnx.load(TINY / "gru_bidirectional.onnx")
    [x, *_] = proto.graph.input
    time, rows, width = x.type.tensor_type.shape.dim
    time.dim_param = "T"
    rows.CopyFrom(onnx.TensorShapeProto.Dimension(**{"dim_param" if isinstance(batch, str) else "dim_value": batch}))
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    model, quant, data = tmp_path / "gru.onnx", tmp_path / "quant.onnx", tmp_path / "data.npz"
    onnx.save(proto, model)
    rnnqc.lower(model).save(quant)
    save_arrays(data, {x.name: np.zeros((0, B, width.dim_value), np.float32)})
    page = tmp_path / "page.html"
    commands = [
        ("calibrate", model, "-o", tmp_path / "stats.json"), ("verify", model, quant),
        ("report", model, quant, "-o", page),
    ]  # fmt: skip
    results = [in_subprocess(*command, "--data", data) for command in commands]
    assert [r.code for r in results] == [2, 2, 2], results
    assert all(f"all arrays are empty: {x.name!r} [0, {B}, {width.dim_value}]" in r.err for r in results)
    assert not page.exists()


@pytest.mark.slow
def test_bounds_of_a_lowering(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """The options of `rnnqc report`, and its progress."""
    model, data = files
    given = ["lower", model, "-o", tmp_path / "quant.onnx", "--recipe", "int8-static", "--calibration", data, *QUICK]
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    for bound, measured in ((["--models", "2"], 2), (["--seconds", "0"], 0)):
        result = cli(*given, "--report", page, "--json", out, *bound)
        assert result.code == 0, result.err
        evidence = json.loads(out.read_text())["evidence"]
        assert len(evidence["sensitivities"]) == measured
        assert f"{len(evidence['unmeasured'])} points or groups were not measured" in result.err
    assert cli(*given, "--report", page, "--models", "0").code == 2
    without = cli(*given, "--models", "2")
    assert without.code == 2
    assert "without --report" in without.err


class PromptProgress(Progress):
    """Shows every change immediately and nothing in between, independent of the clock."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        super().__init__(*columns, auto_refresh=False, **options)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes, refresh=True)


@pytest.mark.slow
def test_progress(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress of `lower --report` and of `report`: the stages, and the number of measured models."""
    monkeypatch.setattr("rich.progress.Progress", PromptProgress)
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    bound = ["--models", "3"]
    for arguments in (
        ["lower", model, "-o", quant, "--report", page, *bound],
        ["report", model, quant, "--data", data, "-o", page, *bound],
    ):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=True, width=100)
        monkeypatch.setattr(terminal, "_console", lambda _, made=console: made)
        assert main([str(a) for a in arguments]) == 0
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
        assert "measuring what each quantized value costs" in text, arguments
        assert "insert-qcdq" not in text, "passes are nothing to those who wait"
        assert re.findall("[1-9]/3", text) == ["1/3", "2/3", "3/3"], arguments


@pytest.mark.few(1)
@pytest.mark.parametrize("bound", [["--seconds", "0"], ["--models", "1"]])
def test_what_was_not_measured_is_not_said_to_gain_nothing(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path, bound: list[str]
) -> None:
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("lower", model, "-o", quant, "--set", "*.input.bits=16").code == 0
    assert cli("report", model, quant, "--data", data, "-o", page, "--json", *bound).code == 0
    evidence = json.loads(page.with_suffix(".json").read_text())
    measured, left = len(evidence["sensitivities"]), len(evidence["unmeasured"])
    assert evidence["repairs"] == []
    assert measured == (1 if "--models" in bound else 0)
    assert left > 5
    read = Page.read(page.read_text(encoding="utf-8"))
    [gained] = [d.strip() for d in read.texts["div"] if d.startswith("To be gained")]
    assert "no override helps" not in read.text
    assert "is spread over many points" not in read.text
    if measured:
        assert gained == f"To be gainedunknownnothing among the 1 of {1 + left} points and groups that were measured"
        assert f"among the 1 of {1 + left} points" in read.texts["section"][0]
        assert f"{left} of {1 + left} points and groups" in read.texts["section"][0]
    else:
        assert gained == f"To be gainednot measurednone of the {left} points and groups"
        assert (
            f"NOT measured, to bound the work (--models, --seconds): {left} of {left} points"
            in read.texts["section"][0]
        )


@pytest.mark.slow
def test_times_of_layers(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("lower", model, "-o", quant).code == 0
    assert cli("report", model, quant, "--data", data, "-o", page, "--json", "--models", "1", "--time").code == 0
    times = json.loads(page.with_suffix(".json").read_text())["times"]
    assert [t["node"] for t in times] == ["lstm_a", "lstm_b"]
    assert [t["shape"] for t in times] == [[T, B, I], [T, B, H]]
    assert all(0.0 < t[k] < math.inf for t in times for k in ("float_us", "stock_us", "native_us"))


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="WARNING: no chromium, the page was NOT opened in a browser")
def test_in_a_browser(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """The browser's DOM has the page's contents, and nothing in a hostile name is executed."""
    _, data = files
    model, quant, page = tmp_path / "hostile.onnx", tmp_path / "quant.onnx", tmp_path / "page.html"
    onnx.save(_model(HOSTILE, "</style><svg/onload=document.title=1>"), model)
    assert cli("lower", model, "-o", quant).code == 0
    assert cli("report", model, quant, "--data", data, "-o", page, "--models", "2").code == 0
    assert CHROMIUM is not None
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *arguments, page.as_uri()], capture_output=True, text=True, timeout=HANGS, check=True, env=os.environ
    )
    seen, written = (
        Page.read(done.stdout.replace("<!DOCTYPE html>", "<!DOCTYPE html>\n", 1)),
        Page.read(page.read_text()),
    )
    assert seen.counts == written.counts
    # The browser moves the line break behind the body into it.
    assert {k: "".join(v).rstrip() for k, v in seen.texts.items()} == {
        k: "".join(v).rstrip() for k, v in written.texts.items()
    }
    assert seen.texts["title"][0] == f"{quant} – rnnqc report"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("gru_bidirectional", 2), ("lstm_escaped_names", 1), ("lstm_in_if", 2), ("lstm_in_loop", 1),
        ("lstm_in_scan", 1), ("lstm_layout1", 1), ("lstm_sequence_lens", 2), ("lstm_states", 1), ("rnn_relu", 1),
    ],
)  # fmt: skip
def test_every_kind_of_layer(cli: Cli, tmp_path: Path, model: str, layers: int) -> None:
    """On generated data: in subgraphs, in both directions, with lengths; lowering again gives the same model."""
    source, quant, page = TINY / f"{model}.onnx", tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("lower", source, "-o", quant).code == 0
    assert cli("report", source, quant, "-o", page, "--json", "--seconds", "0").code == 0
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert "bit for bit" in evidence["remade"]
    found = {layer["cell"] for layer in evidence["layers"]}
    assert len(found) == layers or "never ran" in evidence["missing"]["layers"]
    points = {p["point"] for p in evidence["points"]}
    assert all(f"{cell}.{m}.weight" in points for cell in found for m in "WR")
    assert {c for e in evidence["entries"] for c in e["cells"]} >= found
    Page.read(page.read_text(encoding="utf-8"))


def test_growing_errors_of_a_stream(cli: Cli, tmp_path: Path) -> None:
    """States carried from call to call: one curve over the calls, for layers and outputs."""
    source, quant, page = TINY / "lstm_states.onnx", tmp_path / "quant.onnx", tmp_path / "page.html"
    inputs = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in onnx.load(source).graph.input}
    rng = np.random.default_rng(0)
    calls = rng.normal(0, 1, (30, 1, 1, 3)).astype(np.float32)
    save_arrays(tmp_path / "data.npz", {next(iter(inputs)): calls})
    outputs = [o.name for o in onnx.load(source).graph.output]
    states = [f"{i}:{o}" for i, o in zip(list(inputs)[1:], outputs[-2:], strict=True)]
    assert cli("lower", source, "-o", quant).code == 0
    given = ["--data", tmp_path / "data.npz", "--state", *states, "--seconds", "0"]
    assert cli("report", source, quant, "-o", page, "--json", *given).code == 0
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert evidence["data"]["calls"] == 30
    assert [layer["curve"]["unit"] for layer in evidence["layers"]] == ["call"]
    curves = [c["curve"] for c in (*evidence["layers"], *evidence["outputs"])]
    assert all(c["stops"] == list(range(1, 31)) for c in curves)


def test_a_model_that_was_not_lowered(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    page = tmp_path / "page.html"
    result = cli("report", model, model, "--data", data, "-o", page, "--json")
    assert result.code == 0
    assert "no layer of the model was lowered" in result.err
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert {e["status"] for e in evidence["entries"]} == {"float"}
    assert "no layer of the model was lowered" in evidence["missing"]["points"]


@pytest.mark.parametrize(
    ("recipe", "form"), [("int8", None), ("int8", "qcdq"), ("weight-only-int8", None), ("fp16", None), ("int8", "ort")]
)
def test_swapped_arguments(cli: Cli, files: tuple[Path, Path], tmp_path: Path, recipe: str, form: str | None) -> None:
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    rnnqc.lower(model, recipe, form).save(quant)
    for second in (model, quant):
        result = cli("report", quant, second, "--data", data, "-o", page)
        assert result.code == 2, result.err
        assert "is lowered already; this is no float model" in result.err
        assert f"{quant}: " in result.err
        assert "swapped" in result.err
    assert not page.exists()


def test_onnxruntimes_own_operator(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Its gates and states are float: the page shows no formats of the recipe that are unused."""
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    assert cli("lower", model, "-o", quant, "--form", "ort", "--calibration", data).code == 0
    result = cli("report", model, quant, "--data", data, "-o", page, "--json")
    assert result.code == 0, result.err
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert evidence["outputs"][0]["sqnr_db"] > 20
    assert not evidence["points"] and "weights alone" in evidence["missing"]["points"]


def test_cells_of_brevitas_way(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Form qonnx does not run as it is."""
    model, data = files
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    given = ["--recipe", "brevitas-int8", "--calibration", data]
    assert cli("lower", model, "-o", quant, "--form", "qonnx", *given).code == 0
    result = cli("report", model, quant, "--data", data, "-o", page, "--json", "--seconds", "0")
    assert result.code == 0, result.err
    evidence = json.loads(page.with_suffix(".json").read_text())
    assert evidence["outputs"][0]["sqnr_db"] > 10
    assert evidence["points"]
    Page.read(page.read_text(encoding="utf-8"))
    swapped = cli("report", quant, model, "--data", data, "-o", page)
    assert swapped.code == 2
    assert "is lowered already" in swapped.err


METRIC = """
import numpy as np

def positive(outputs, feeds):
    return float(np.mean([np.mean(o["Y"] > 0) for o in outputs]))
"""


def test_a_metric_that_fails_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after minutes of measuring."""
    monkeypatch.setattr(
        "rnnqc.reporting.report.gather", lambda *_: pytest.fail("measured before the metric was called")
    )

    def failing(*_: object) -> float:
        raise KeyError("labels")

    digits = TINY.parent / "digits_lstm.onnx"
    with pytest.raises(rnnqc.UsageError, match=r"the metric failed \(KeyError: 'labels'\)"):
        rnnqc.report(digits, digits, TINY.parent / "digits_test.npz", metric=failing)


def test_a_metric_decides_the_verdict(
    cli: Cli, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--metric` from the command line to the page: accuracy on labels decides, a function's result is shown beside."""
    root = Path(__file__).resolve().parents[3]
    model, data = root / "models" / "digits_lstm.onnx", tmp_path / "digits.npz"
    with np.load(root / "models" / "digits_test.npz") as held:
        save_arrays(data, {name: array[:40] for name, array in held.items()})
    quant, page = tmp_path / "quant.onnx", tmp_path / "page.html"
    rnnqc.lower(model).save(quant)
    given = ["report", model, quant, "-o", page, "--json", "--seconds", "0"]
    result = cli(*given, "--data", data, "--metric", "accuracy")
    assert result.code == 0, result.err
    task = json.loads(page.with_suffix(".json").read_text())["task"]
    found = rnnqc.evaluate(quant, str(data), "accuracy", against=model)
    assert (task["metric"], task["value"], task["reference"]) == ("accuracy", found.value, found.reference)
    figures = f"accuracy {found.reference:.2%} -> {found.value:.2%}"
    assert (
        found.value > 0.9
        and figures.replace("->", "→").capitalize() in Page.read(page.read_text(encoding="utf-8")).text
    )
    assert result.out.startswith(f"good: {figures}.")
    (tmp_path / "mine.py").write_text(METRIC)
    monkeypatch.chdir(tmp_path)
    rnnqc.lower(files[0]).save(tmp_path / "lowered.onnx")
    result = cli(
        "report",
        files[0],
        tmp_path / "lowered.onnx",
        "--data",
        files[1],
        "-o",
        page,
        "--seconds",
        "0",
        "--metric",
        "mine:positive",
    )
    assert result.code == 0, result.err
    assert "Mine:positive 0." in Page.read(page.read_text(encoding="utf-8")).text
    result = cli(*given, "--metric", "accuracy")
    assert result.code == 2 and "--metric without --data" in result.err


@pytest.mark.slow
def test_statistics_that_are_not_given_are_asked_for(cli: Cli, tmp_path: Path) -> None:
    """Weights rounded with other statistics are not an error of the float model or the file."""
    root = Path(__file__).resolve().parents[3]
    model, quant, stats = root / "models" / "digits_lstm.onnx", tmp_path / "quant.onnx", tmp_path / "stats.json"
    with np.load(root / "models" / "digits_calibration.npz") as held:
        rnnqc.calibrate(model, {"x": held["x"]}).save(stats)
    rnnqc.lower(model, "w4a8", stats=stats).save(quant)
    rng = np.random.default_rng(0)
    save_arrays(tmp_path / "other.npz", {"x": rng.normal(0, 1, (20, 1, 8, 8)).astype(np.float32)})
    given = ["report", model, quant, "--data", tmp_path / "other.npz", "-o", tmp_path / "page.html", "--models", "1"]
    result = cli(*given)
    makes = f"rnnqc calibrate {model} --data DATA -o STATS.json makes them"
    assert result.code == 0 and f"with --stats STATS.json; {makes}" in result.err.replace("\n", " ")
    assert "is not the model" not in result.err and "was changed" not in result.err
    page = Page.read((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "is not the model" not in page.text and "--stats STATS.json" in page.text
    found = rnnqc.report(model, quant, str(tmp_path / "other.npz"), models=1)
    assert "warning: Layers, points and overrides were not measured" in str(found)
    assert 'stats="STATS.json"' in str(found)
    result = cli(*given, "--stats", stats)
    assert result.code == 0 and "statistics" not in result.err


def _note(events: list[tuple[str, str]], kind: str, text: str, *_: object) -> None:
    events.append((kind, text))


def test_statistics_that_are_not_given_are_asked_for_before_a_calibration() -> None:
    """Would catch a report that calibrates all its data before it says what is missing."""
    model = RecurrentCase(T=4).model()
    feeds = [RecurrentCase(T=4, seed=k).feeds() for k in range(3)]
    statistics, others = rnnqc.calibrate(model, feeds), rnnqc.calibrate(model, feeds[:1])
    calibrated, plain = rnnqc.lower(model, stats=statistics).proto, rnnqc.lower(model).proto
    for lowered, stats, said in (
        (calibrated, None, "the 3 calls of the data are calibrated first"),
        (calibrated, others, "--stats is not what"),
        (plain, statistics, "--stats is not what"),
        (calibrated, statistics, ""),
        (plain, None, ""),
    ):
        events: list[tuple[str, str]] = []
        rnnqc.report(
            model, lowered, feeds, stats=stats, models=1,
            progress=partial(_note, events, "stage"), notify=partial(_note, events, "told"),
        )  # fmt: skip
        told = [text for kind, text in events if kind == "told"]
        assert len(told) == bool(said)
        assert all(said in text for text in told)
        assert not told or events[0][0] == "told", "nothing has run before"


@pytest.mark.slow
def test_the_data_of_a_calibration_takes_the_place_of_its_statistics(cli: Cli, tmp_path: Path) -> None:
    """`lower --calibration` leaves no statistics file: the same data gives the same statistics, and the command."""
    root = Path(__file__).resolve().parents[3] / "models"
    model, data, quant = root / "digits_lstm.onnx", root / "digits_calibration.npz", tmp_path / "quant.onnx"
    assert cli("lower", model, "-o", quant, "--recipe", "w4a8", "--calibration", data, "-q").code == 0
    page = tmp_path / "page.html"
    result = cli("report", model, quant, "--data", data, "-o", page, "--models", "8")
    assert result.code == 0 and "statistics" not in result.err
    read = Page.read(page.read_text(encoding="utf-8"))
    assert "the same outputs, bit for bit" in read.text
    command = shlex.split(read.commands[1].replace("\\\n", " "))
    assert command[command.index("--calibration") + 1] == str(data) and "--stats" not in command


def _streaming() -> onnx.ModelProto:
    """An LSTM of one step with its states outside, and a linear layer."""
    rng = np.random.default_rng(3)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[1,1,{I}] x, float[1,1,{H}] h, float[1,1,{H}] c, int64[1] unused)
    => (float[1,512] y, float[1,1,{H}] hn, float[1,1,{H}] cn) {{
        z = Cast <to = 1> (unused)
        xz = Mul (x, z)
        Y, hn, cn = LSTM <hidden_size = {H}> (xz, W, R, , , h, c)
        flat = Reshape (hn, rows)
        y = MatMul (flat, M)
    }}"""
    weights = {"W": (1, 4 * H, I), "R": (1, 4 * H, H), "M": (H, 512)}
    arrays = {n: rng.normal(0, 0.5, s).astype(np.float32) for n, s in weights.items()}
    arrays["M"][0] *= 30.0  # columns have large values, and small ones that int8 loses
    return parse(text, rows=np.array([1, H]), **arrays)


@pytest.mark.slow
def test_the_rest_and_the_states_are_part_of_it(cli: Cli, tmp_path: Path) -> None:
    """`--rest int8` can cause the largest loss, and a command without it makes another model."""
    model, quant, page = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "r.html"
    onnx.save(_streaming(), model)
    save_arrays(tmp_path / "calls.npz", {"x": np.random.default_rng(4).normal(size=(20, 1, 1, I)).astype(np.float32)})
    options = ("--rest", "int8", "--bind", "unused=1", "--recipe", "int16")
    assert cli("lower", model, "-o", quant, *options).code == 0
    states = ("--state", "h:hn", "--state", "c:cn")
    said = cli("report", model, quant, "--data", tmp_path / "calls.npz", "-o", page, "--json", *states, *FEW)
    assert said.code == 0, said.text
    rest = json.loads(page.with_suffix(".json").read_text())["rest"]
    assert rest["sqnr_without"] > rest["sqnr_with"] + 1.0 and rest["bytes_with"] < rest["bytes_without"]
    assert f"have {rest['sqnr_without']:.1f} instead of {rest['sqnr_with']:.1f} dB" in said.out
    read = Page.read(page.read_text())
    assert f"have {rest['sqnr_without']:.1f} instead of" in read.text
    whole = [c for c in read.commands if c.startswith("rnnqc lower")]
    assert whole and all(" --rest int8 " in c and " --bind unused=1 " in c for c in whole)
    # the same as lowering without the option
    assert cli("lower", model, "-o", tmp_path / "plain.onnx", *options[2:]).code == 0
    plain = cli("verify", model, tmp_path / "plain.onnx", "--data", tmp_path / "calls.npz", *states, "--json")
    levels = [o["sqnr_db"] for o in json.loads(plain.out)["outputs"]]
    assert min(levels) == pytest.approx(rest["worst_without"], abs=0.05)


@pytest.mark.slow
def test_states_that_are_not_carried_are_told(cli: Cli, tmp_path: Path) -> None:
    """`verify` reports them; without them every figure of the report is for another use of the model."""
    model, quant, page = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "r.html"
    onnx.save(_streaming(), model)
    draw = np.random.default_rng(4).normal
    shapes = {"x": (5, 1, 1, I), "h": (5, 1, 1, H), "c": (5, 1, 1, H)}
    arrays = {n: draw(size=s).astype(np.float32) for n, s in shapes.items()}
    save_arrays(tmp_path / "calls.npz", arrays | {"unused": np.ones((5, 1), np.int64)})
    assert cli("lower", model, "-o", quant).code == 0
    data = ("--data", tmp_path / "calls.npz")
    verified = cli("verify", model, quant, *data)
    wanted = "inputs that look like states are not carried from one of 5 feeds to the next: 'h', 'c'. Resolution: "
    assert wanted in verified.err
    reported = cli("report", model, quant, *data, "-o", page, *FEW)
    assert wanted in reported.err and wanted in Page.read(page.read_text()).text
    tuned = cli("tune", model, *data, "-o", tmp_path / "t.toml", "--min-sqnr", "5")
    assert wanted in tuned.err
