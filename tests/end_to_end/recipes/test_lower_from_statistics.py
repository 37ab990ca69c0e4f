"""Lowering with calibration data, and from a statistics file without any data.

What these would catch: a file that does not hold what lowering needs, bytes that differ from run to run, an edit of the
file that has no effect or too much of one, options that contradict each other and pass.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.runs.lowered import STOCK, run_both, session
from tests.runs.sessions import assert_same_bits, run, sqnr

CASE = RecurrentCase(T=9, B=3, I=12, H=24)
MIXING = np.random.default_rng(7).standard_normal((3, CASE.I))


def _feeds(seed: int) -> dict[str, np.ndarray]:
    """Inputs that depend on each other, as those of real models do."""
    sources = np.random.default_rng([seed, 7]).standard_normal((CASE.T, CASE.B, 3))
    return {"X": (sources @ MIXING).astype(np.float32)}


FEEDS = [_feeds(s) for s in range(1, 6)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Model, calibration data (five samples along a leading axis) and statistics."""
    model, data, stats = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "stats.json"
    onnx.save(CASE.model(), model)
    np.savez(data, X=np.stack([f["X"] for f in FEEDS]))
    stats.write_text(_statistics_text(), encoding="utf-8")
    return model, data, stats


@functools.cache
def _statistics_text() -> str:
    """The file of the statistics."""
    return rnnqc.calibrate(CASE.model(), FEEDS).text


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "w4a8", "brevitas-int8", "pow2-int16", "distiller-asym"])
def test_data_and_its_statistics_give_the_same_bytes(
    files: tuple[Path, Path, Path], recipe: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data, stats = files
    outputs = []
    for name, arguments in (("a", ["--calibration", data]), ("b", ["--stats", stats]), ("c", ["--stats", stats])):
        output = model.with_name(f"{recipe}.{name}.onnx")
        assert in_process(capfd, "lower", model, "-o", output, "--recipe", recipe, *arguments).code == 0
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]
    in_python = rnnqc.lower(model, recipe, stats=stats).proto.SerializeToString(deterministic=True)
    assert onnx.load_from_string(outputs[0]).SerializeToString(deterministic=True) == in_python


def test_a_batch_is_that_of_the_statistics(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Statistics of another batch size are refused, not silently used."""
    model, data, stats = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "stats.json"
    onnx.save(CASE.replace(dynamic_batch=True).model(), model)
    np.savez(data, X=np.stack([f["X"] for f in FEEDS]))
    assert in_process(capfd, "calibrate", model, "--data", data, "--batch", "5", "-o", stats).code == 0
    outputs = []
    for name, source in (("a", ["--calibration", data]), ("b", ["--stats", stats])):
        output = tmp_path / f"{name}.onnx"
        arguments = ["-o", output, "--recipe", "pow2-int8", *source, "--batch", "5"]
        assert in_process(capfd, "lower", model, *arguments).code == 0
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1]
    done = in_process(capfd, "lower", model, "-o", tmp_path / "c.onnx", "--stats", stats, "--batch", "3")
    assert done.code == 2 and "stats.json: measured in batches of 5 rows" in done.err and '"X": [9, 5, 12]' in done.err


def test_an_edit_of_the_file_changes_one_scale(files: tuple[Path, Path, Path]) -> None:
    model, _, stats = files
    held = json.loads(stats.read_text())
    path = "the_lstm.forward.forget_gate.acc"
    held["points"][path]["max"] = 50.0
    edited = stats.with_name("edited.json")
    edited.write_text(json.dumps(held))
    before, after = (
        rnnqc.lower(model, "distiller-sym", stats=s, overrides=["*.acc.share=none", "*.limit=none"], form="qcdq")
        for s in (stats, edited)
    )
    points = [next(iter(lowered.model.cells.values())).points for lowered in (before, after)]
    assert [p for p in points[0] if points[0][p] != points[1][p]] == ["forget_gate.acc"]
    assert points[1]["forget_gate.acc"].scale == (np.float32(50 / 127),)


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["distiller-asym", "distiller-avg"])
def test_limits_in_the_file_are_the_limit_of_the_recipe(files: tuple[Path, Path, Path], recipe: str) -> None:
    """The edit of docs/from_distiller.md, where it clips another number than `limit` does."""
    model, _, stats = files
    held = json.loads(stats.read_text())
    for name, point in held["points"].items():
        for entry in (point, point.get("gates", {})) if name.endswith(".acc") else ():
            for key in entry.keys() & {"min", "max", "avg_min", "avg_max"}:
                entry[key] = min(max(entry[key], -0.5), 0.5)
    edited = stats.with_name("edited.json")
    edited.write_text(json.dumps(held))
    without = rnnqc.lower(model, recipe, stats=stats, overrides=["*.acc.limit=none"])
    by_file = rnnqc.lower(model, recipe, stats=edited, overrides=["*.acc.limit=none"])
    by_recipe = rnnqc.lower(model, recipe, stats=stats, overrides=["*.acc.limit=0.5"])
    outputs = [run(session(lowered.proto, STOCK), FEEDS[0]) for lowered in (by_file, by_recipe, without)]
    assert_same_bits(outputs[0], outputs[1], "edited and limited")
    assert not np.array_equal(outputs[0]["Y"], outputs[2]["Y"])


def test_compensated_weights_need_the_moments_of_the_file(files: tuple[Path, Path, Path]) -> None:
    """Error compensation works from the file alone, and is worth something on other data."""
    model, _, stats = files
    feeds = _feeds(9)
    expected = CASE.expected(feeds)["Y"]
    held = json.loads(stats.read_text())
    for point in held["points"].values():
        point.pop("second_moment", None)
    without = stats.with_name("without.json")
    without.write_text(json.dumps(held))
    reached = {}
    for name, source in (("none", None), ("without", without), ("with", stats)):
        lowered = rnnqc.lower(model, "w4a8", stats=source, overrides=["*.weight.group_size=none"])
        got = run_both(lowered.proto, feeds, name)
        reached[name] = sqnr(expected, got["Y"])
    assert reached["none"] == reached["without"] < reached["with"] - 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stats", "STATS", "--calibration", "DATA"], "not allowed with"),
        (["--stats", "absent.json"], "absent.json"),
        (["--calibration", "absent.npz"], "absent.npz"),
        (["--stats", "MODEL"], "model.onnx"),
        (["--state", "a:b"], "States (--state) without calibration data"),
        (["--batch", "2"], "A batch (--batch 2) without calibration"),
        (["--batch", "2", "--stats", "STATS"], "measured without --batch"),
        (["--batch", "0", "--calibration", "DATA"], "batches of 0 rows"),
        (["--recipe", "distiller-avg"], "--calibration DATA or --stats STATS.json"),
    ],
)
def test_wrong_options(
    files: tuple[Path, Path, Path], arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data, stats = files
    given = [{"STATS": str(stats), "DATA": str(data), "MODEL": str(model)}.get(a, a) for a in arguments]
    output = model.with_name("out.onnx")
    done = in_process(capfd, "lower", model, "-o", output, *given)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not output.exists()


def test_outputs_replace_no_inputs(files: tuple[Path, Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    model, data, stats = files
    recipe = model.with_name("mine.toml")
    recipe.write_text('base = "int8"\n')
    held = {p: p.read_bytes() for p in (model, data, stats, recipe)}
    for output in (model, stats, recipe):
        done = in_process(capfd, "lower", model, "-o", output, "--stats", stats, "--recipe", recipe)
        assert (done.code, "is an input, which would be replaced" in done.err) == (2, True), output
    for command in (
        ["calibrate", model, "--data", data, "-o", model],
        ["calibrate", model, "--data", data, "-o", data],
        ["run", model, "-i", data, "-o", data],
    ):
        done = in_process(capfd, *command)
        assert (done.code, "is an input" in done.err) == (2, True), command
    assert {p: p.read_bytes() for p in held} == held


def test_statistics_of_another_model(files: tuple[Path, Path, Path]) -> None:
    _, _, stats = files
    other = RecurrentCase(T=9, B=3, I=12, H=16).model()
    with pytest.raises(rnnqc.CompileError, match=r"stats\.json: cell 'the_lstm\.forward' is .*hidden_size 24"):
        rnnqc.lower(other, stats=stats)
    with pytest.raises(rnnqc.UsageError, match="Both calibration data and statistics"):
        rnnqc.lower(CASE.model(), stats=stats, calibration=FEEDS)
