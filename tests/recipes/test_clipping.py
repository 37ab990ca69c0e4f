"""Overrides that clip the calibration data are told, with the point, both ranges and what to do.

What these would catch: an override that ruins a model in silence, a warning about another override or point than the
one at fault, numbers that are not those of the data, warnings about what recipes do by themselves.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.recipes.recipe import builtin_recipes, load_recipe
from tests.generate.recurrences import RecurrenceCase
from tests.runs.commands import in_process
from tests.runs.sessions import Array, save_arrays
from tests.subjects.protos import of_nodes

T, B, I, H = 20, 2, 6, 8  # noqa: E741
CALIBRATED = [r.name for r in builtin_recipes() if r.kind == "cells"]


def _layer(op: str = "LSTM", size: float = 0.5) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    gates = {"LSTM": 4, "GRU": 3}[op]
    shapes = {"W": (1, gates * H, I), "R": (1, gates * H, H)}
    stored = {n: rng.normal(0, size, s).astype(np.float32) for n, s in shapes.items()}
    node = helper.make_node(op, ["X", "W", "R"], ["Y"], name="layer", hidden_size=H)
    return of_nodes([node], {"X": [T, "B", I]}, {"Y": [T, 1, "B", H]}, stored)


def _feeds() -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [{"X": rng.normal(0, 1, (T, B, I)).astype(np.float32)} for _ in range(4)]


def _highway(form: str = "scan") -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    made = RecurrenceCase(op="highway", form=form, time=5, I=12, H=16, initial="zeros")
    return made.model(), [made.feeds(seed) for seed in range(4)]


@functools.cache
def _calibrated(subject: str) -> tuple[onnx.ModelProto, Statistics]:
    """A calibrated layer, shared by tests, which must not change it."""
    model, data = _highway() if subject == "highway" else (_layer(subject), _feeds())
    return model, rnnqc.calibrate(model, data)


def _warnings(model: onnx.ModelProto, recipe: str, statistics: Statistics, *overrides: str) -> list[str]:
    lowered = rnnqc.lower(model, recipe, stats=statistics, overrides=overrides)
    return [w for w in lowered.report.warnings if "clips" in w]


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_fix_positions_of_other_recurrences(form: str) -> None:
    """With 15 bits behind the point the values of the cell have a range of 2."""
    model, data = _highway(form)
    statistics = rnnqc.calibrate(model, data)
    [warning] = _warnings(model, "pow2-int16", statistics, "*.max_fix_position=15")
    found = re.fullmatch(
        r"override '\*\.max_fix_position=15' clips the calibration data at '(?P<point>.*)' and at \d+ other points\. "
        r"Found: a range from (?P<low>.*) to (?P<high>.*); the values reach from (?P<min>.*) to (?P<max>.*), and "
        r"(?P<share>.*) % of them lie beyond\. Resolution: leave the override out, or give a lower max_fix_position\. "
        r"\[clipped\]",
        warning,
    )
    assert found is not None, warning
    seen = statistics.points[found["point"]]
    assert (float(found["min"]), float(found["max"])) == pytest.approx((seen.min, seen.max), rel=1e-3)
    assert -float(found["low"]) == pytest.approx(float(found["high"]), rel=1e-3)
    x = seen.histogram.centers
    beyond = seen.histogram.counts[np.abs(x) > float(found["high"])].sum() / seen.count
    assert float(found["share"]) == pytest.approx(100 * beyond, rel=0.1)
    for harmless in ("*.max_fix_position=12", "*.max_fix_position=11", "*.value.rounding=half_even"):
        assert _warnings(model, "pow2-int16", statistics, harmless) == []


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("recipe", "override", "point", "advice"),
    [
        ("int8-static", "*.input.scale=0.003", "input", ", or give a scale 9.8 times as large."),
        ("int8-static", "layer.forward.input.limit=0.5", "input", ", or give a limit of 3.752 or more."),
        ("brevitas-int8", "*.cell_state.same_as=cell_state.kept", "cell_state", "."),
        ("distiller-sym", "*.forget_gate.acc.scale=0.002", "forget_gate.acc", ", or give a scale"),
        ("pow2-int8", "*.hidden.scale=0.0009765625", "hidden", ", or give a scale"),
    ],
)
def test_every_key_of_a_range(recipe: str, override: str, point: str, advice: str) -> None:
    model, statistics = _calibrated("LSTM")
    [warning] = _warnings(model, recipe, statistics, override)
    assert warning.startswith(f"override {override!r} clips the calibration data at 'layer.forward.{point}'")
    assert f"Resolution: leave the override out{advice}" in warning


def test_two_overrides_are_told_each() -> None:
    model, statistics = _calibrated("LSTM")
    overrides = "*.input.limit=0.5", "*.hidden.scale=0.001"
    found = _warnings(model, "int8-static", statistics, *overrides)
    assert sorted(w.split("'")[1] for w in found) == sorted(overrides)


def test_what_an_activation_does_not_see_is_not_clipped() -> None:
    """A sigmoid is flat where a range of 10 ends, whatever the pre-activations are; and steep at 1."""
    model, data = _layer(size=6.0), _feeds()
    statistics = rnnqc.calibrate(model, data)
    point = "layer.forward.input_gate.acc"
    assert statistics.points[point].max > 30
    for bound, told in ((10.0, 0), (1.0, 1)):
        override = f"{point}.scale={bound / 2**12}"
        assert len(_warnings(model, "int8", statistics, override)) == told


@pytest.mark.few(3)
@pytest.mark.parametrize("recipe", CALIBRATED)
@pytest.mark.parametrize("subject", ["LSTM", "GRU", "highway"])
@pytest.mark.parametrize(
    "overrides",
    [(), ("*.range=min-max",), ("*.weight.bits=8", "*.weight.group_size=none")],
    ids=["none", "range", "bits"],
)
def test_recipes_alone_are_not_told_of(recipe: str, subject: str, overrides: tuple[str, ...]) -> None:
    """Nor are overrides that keep ranges, or set others that cover the values."""
    model, statistics = _calibrated(subject)
    assert _warnings(model, recipe, statistics, *overrides) == []


@functools.cache
def _integrator() -> tuple[onnx.ModelProto, Statistics]:
    """An LSTM that adds up its input for 400 steps: its cell state grows to more than 100."""
    model = _layer()
    bias = np.zeros((1, 8 * H), np.float32)
    bias[0, : 3 * H] = 12.0  # all gates are open
    bias[0, 3 * H : 4 * H] = 2.0
    model.graph.initializer.append(numpy_helper.from_array(bias, "B"))
    model.graph.node[0].input.append("B")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "T"
    rng = np.random.default_rng(2)
    feeds = [{"X": rng.normal(0, 0.3, (400, 1, I)).astype(np.float32)}]
    return model, rnnqc.calibrate(model, feeds)


def test_a_recipe_that_loses_the_cell_state_is_told_of() -> None:
    """One scale in the cell, of the hidden state: a state of hundreds saturates at 8; and the setting mends it."""
    model, statistics = _integrator()
    assert statistics.points["layer.forward.cell_state"].max > 100
    [warning] = _warnings(model, "pow2-int16", statistics)
    assert "the recipe clips" in warning and "a range from -8 to 8" in warning
    remedy = warning.split("--set '")[1].split("'")[0]
    lowered = rnnqc.lower(model, "pow2-int16", stats=statistics, overrides=[remedy])
    assert not [w for w in lowered.report.warnings if "clips" in w]
    points = lowered.report.points["layer.forward.cell_state"]
    assert points["bits"] == 16 and 2**15 * points["scale"][0] > 100


@pytest.mark.few(2)
@pytest.mark.parametrize("recipe", ["int8", "int8-static", "pow2-int8-floor"])
def test_no_other_recipe_is(recipe: str) -> None:
    """Recipes with float states, or with states too coarse in a range that covers them, cause no warning."""
    model, statistics = _integrator()
    assert _warnings(model, recipe, statistics) == []


def test_rare_values_that_a_percentile_leaves_out_are_meant() -> None:
    model, statistics = _calibrated("LSTM")
    given = "*.input.range=percentile", "*.input.percentile=99.9"
    assert _warnings(model, "int8-static", statistics, *given) == []
    [warning] = _warnings(model, "int8-static", statistics, given[0], "*.input.percentile=60")
    assert "'*.input.percentile=60.0'" in warning


def test_nothing_is_known_without_data() -> None:
    lowered = rnnqc.lower(_layer(), overrides=["*.forget_gate.acc.scale=0.00005"])
    assert lowered.report.warnings == []


def test_rules_of_a_recipe_file(tmp_path: Path) -> None:
    """Rules of the file cause warnings, those of its base do not."""
    model, statistics = _calibrated("LSTM")
    path = tmp_path / "mine.toml"
    text = 'name = "mine"\nbase = "int8-static"\n[[rule]]\npoints = "*.input"\nscale = 0.003\n'
    path.write_text(text)
    [warning] = _warnings(model, str(path), statistics)
    assert "'*.input.scale=0.003'" in warning
    path.write_text(text.replace("0.003", "0.04"))
    assert _warnings(model, str(path), statistics) == []
    assert load_recipe(str(path)).own == 1


def test_the_command_tells(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, data, out = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "out.onnx"
    onnx.save(_layer(), model)
    save_arrays(data, {"X": np.stack([f["X"] for f in _feeds()])})
    given = ["lower", model, "-o", out, "--recipe", "int8-static", "--calibration", data]
    result = in_process(capfd, *given, "--set", "*.input.limit=0.5")
    assert result.code == 0
    assert "override '*.input.limit=0.5' clips the calibration data" in result.err.replace("\n", " ")
    assert out.exists()
