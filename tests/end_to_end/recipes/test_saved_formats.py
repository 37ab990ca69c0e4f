"""`lower --save-formats`: a recipe file with every format of a lowering.

What these would catch: a format that the file says otherwise than the model has it, one that only data gives, an edit
without effect, and a record of the lowering that an edited file claims to be.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, UsageError
from rnnqc.lowering.saved_formats import save_formats
from rnnqc.recipes.recipe import builtin_recipes
from rnnqc.recipes.rules import parse_override
from tests.generate.layers import RecurrentCase, stacked_model
from tests.laws.parametrize import every_pair
from tests.runs.commands import in_process
from tests.subjects.custom_layers import cutting_layer, feeds_of
from tests.subjects.custom_layers import layer as custom_layer

RECIPES = tuple(r.name for r in builtin_recipes())
CASES = {
    "LSTM": RecurrentCase(T=5, B=2, I=32, H=32, direction="bidirectional"),
    "GRU": RecurrentCase(T=5, B=2, I=32, H=32, op="GRU", direction="reverse"),
    "reset before": RecurrentCase(T=5, B=2, I=32, H=32, op="GRU", linear_before_reset=True),
    "RNN": RecurrentCase(T=5, B=2, I=32, H=32, op="RNN"),
}


def _lowered(case: RecurrentCase, recipe: str, **options: Any) -> tuple[onnx.ModelProto, Any]:
    return case.model(), rnnqc.lower(case.model(), recipe, stats=_statistics(case), **options)


@functools.cache
def _statistics(case: RecurrentCase) -> Statistics:
    return calibrate(case.model(), [case.replace(seed=s).feeds() for s in (4, 5)])


def _bytes(model: onnx.ModelProto, *, record: bool = True) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if not record:
        del copy.metadata_props[:]
    return copy.SerializeToString(deterministic=True)


@pytest.mark.few(1)
@every_pair(recipe=RECIPES, cell=["memory", "parts"], form=("fused", "integer", "qcdq"))
def test_custom_cells(recipe: str, cell: str, form: str, tmp_path: Path) -> None:
    """Their formats are in the file: with them alone the values are quantized again as they were."""
    if recipe.startswith("weight-only") or recipe == "fp16":
        pytest.skip("a recipe of weights alone")
    model = custom_layer() if cell == "memory" else cutting_layer()
    lowered = rnnqc.lower(model, recipe, calibration=[feeds_of(model, s) for s in range(2)], form=form)
    save_formats(lowered, tmp_path / "formats.toml")
    text = (tmp_path / "formats.toml").read_text()
    written = {p for p in lowered.report.points if f'"{p}"' in text}
    assert written == set(lowered.report.points) != set()
    if any(p.endswith(".value") and f["bits"] for p, f in lowered.report.points.items()):
        scale = re.compile(r'(points = "layer\.[^"]*\.value"\n(?:(?!\[\[).*\n)*?scale = )(\S+)')
        assert scale.search(text)
    again = rnnqc.lower(model, str(tmp_path / "formats.toml"), form=form)
    assert _bytes(again.proto) == _bytes(lowered.proto)


@pytest.mark.few(3)
@every_pair(recipe=RECIPES, case=tuple(CASES), form=("fused", "integer", "qcdq"))
def test_the_same_file_without_data(recipe: str, case: str, form: str, tmp_path: Path) -> None:
    options = {} if recipe.startswith("weight-only") or recipe == "fp16" else {"form": form}
    model, lowered = _lowered(CASES[case], recipe, **options)
    save_formats(lowered, tmp_path / "formats.toml")
    again = rnnqc.lower(model, str(tmp_path / "formats.toml"), **options)
    assert _bytes(again.proto) == _bytes(lowered.proto)
    assert again.report.warnings == [w for w in lowered.report.warnings if form == "qcdq" or "a byte each" in w]


def test_the_reset_hidden_state_of_a_gru_is_no_output(tmp_path: Path) -> None:
    """Rules for `*.hidden` reach its format, too, which the file gives once more without what it follows from."""
    model, lowered = _lowered(CASES["GRU"], "pow2-int16")
    save_formats(lowered, tmp_path / "formats.toml")
    again = rnnqc.lower(model, str(tmp_path / "formats.toml"))
    assert _bytes(again.proto) == _bytes(lowered.proto)


def test_a_lowering_without_data_asks_for_none(tmp_path: Path) -> None:
    lowered = rnnqc.lower(CASES["LSTM"].model(), "int8")
    save_formats(lowered, tmp_path / "formats.toml")
    again = rnnqc.lower(CASES["LSTM"].model(), str(tmp_path / "formats.toml"))
    assert _bytes(again.proto) == _bytes(lowered.proto)
    assert not again.report.warnings


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["brevitas-int8", "pow2-int8-floor", "distiller-asym"])
def test_the_file_alone_says_every_format(recipe: str, tmp_path: Path) -> None:
    """Statistics are read for weights that are rounded together, and for nothing else."""
    model, lowered = _lowered(CASES["LSTM"], recipe)
    file = tmp_path / "formats.toml"
    save_formats(lowered, file)
    file.write_text(re.sub(r"(?m)^(statistics|digest) = .*\n", "", file.read_text()))
    assert _bytes(rnnqc.lower(model, str(file)).proto, record=False) == _bytes(lowered.proto, record=False)


def test_an_edit_takes_effect_and_is_read_back(tmp_path: Path) -> None:
    model, lowered = _lowered(CASES["LSTM"], "pow2-int8")
    file, point = tmp_path / "formats.toml", "lstm.forward.forget_gate.acc"
    save_formats(lowered, file)
    (path,) = (p for p in lowered.report.points if p.endswith("forward.forget_gate.acc"))
    before = lowered.report.points[path]
    block = next(b for b in file.read_text().split("\n\n") if "forward.forget_gate.acc" in b)
    assert block.startswith("# range pow2-mse: ") and f"scale = {before['scale'][0]!r}" in block, point
    edited = block.replace(f"scale = {before['scale'][0]!r}", "scale = 0.5").replace("bits = 8", "bits = 6")
    file.write_text(file.read_text().replace(block, edited))
    again = rnnqc.lower(model, str(file))
    after = again.report.points[path]
    assert (after["scale"], after["bits"], after["source"]) == ([0.5], 6, "given")
    assert {p: s["bits"] for p, s in again.report.points.items() if p != path} == {
        p: s["bits"] for p, s in lowered.report.points.items() if p != path
    }
    save_formats(again, tmp_path / "more.toml")
    assert _bytes(rnnqc.lower(model, str(tmp_path / "more.toml")).proto) == _bytes(again.proto)
    record = json.loads(next(p.value for p in again.proto.metadata_props if p.key == "rnnqc.recipe"))
    assert record["name"] == "pow2-int8-formats"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("recipe", "override", "bits", "same_file"),
    [
        ("distiller-sym", "*.weight.granularity=per-channel", "*.W.weight.bits=4", False),
        ("distiller-asym", "*.weight.granularity=per-channel", "*.W.weight.bits=4", False),
        ("distiller-avg", "*.acc.limit=5.0", "*.cell_state.bits=6", True),
        ("pow2-int8-floor", "*.R.weight.bits=7", "*.cell_state.bits=16", True),
        ("pow2-int8-floor", "*.R.weight.bits=7", "*.bits=12", True),
        ("int8", "*.R.weight.bits=7", "*.W.weight.bits=4", True),
        ("brevitas-int8", "*.R.weight.rounding=floor", "*.hidden.activation.bits=7", True),
    ],
)
def test_an_override_of_bits_makes_a_new_scale(
    recipe: str, override: str, bits: str, same_file: bool, tmp_path: Path
) -> None:
    """The format, and where nothing follows from it the file, that the recipe gives with both overrides."""
    case, file = CASES["LSTM"].replace(direction="forward"), tmp_path / "formats.toml"
    model, lowered = _lowered(case, recipe, overrides=[override])
    save_formats(lowered, file)
    again = rnnqc.lower(model, str(file), overrides=[bits])
    direct = rnnqc.lower(model, recipe, stats=_statistics(case), overrides=[bits, override])
    rule = parse_override(bits)
    points = [p for p in direct.report.points if rule.matches(p)]
    assert points and {p: again.report.points[p] for p in points} == {p: direct.report.points[p] for p in points}
    assert again.report.points != lowered.report.points
    if same_file:
        assert _bytes(again.proto, record=False) == _bytes(direct.proto, record=False)


def test_an_override_of_the_same_bits_or_of_the_scale_keeps_the_file(tmp_path: Path) -> None:
    model, lowered = _lowered(CASES["RNN"], "distiller-asym")
    save_formats(lowered, file := tmp_path / "formats.toml")
    same = rnnqc.lower(model, str(file), overrides=["*.W.weight.bits=8"])
    assert _bytes(same.proto, record=False) == _bytes(lowered.proto, record=False)
    given = rnnqc.lower(model, str(file), overrides=["*.hidden.bits=7", "*.hidden.scale=0.125"])
    (hidden,) = (p for n, p in given.report.points.items() if n.endswith(".hidden"))
    assert (hidden["bits"], hidden["scale"]) == (7, [0.125])


def test_a_file_that_is_edited_and_saved_again_does_not_grow(tmp_path: Path) -> None:
    """From the second save on it contains nothing twice, and still gives the same model."""
    model, lowered = _lowered(CASES["LSTM"], "pow2-int8-floor")
    names, texts, made = [tmp_path / f"{k}.toml" for k in range(3)], [], []
    for file in names:
        save_formats(lowered, file)
        texts.append(file.read_text())
        edited = texts[0].replace("scale = 0.0", "scale = 0.00", 1) if not made else texts[-1]
        file.write_text(edited)
        lowered = rnnqc.lower(model, str(file))
        made.append(_bytes(lowered.proto, record=False))
    assert texts[1].count("[[rule]]") == texts[2].count("[[rule]]")
    assert made[0] == made[1] == made[2]


def test_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two layers, the second on the codes of the first; an override; the formats in the JSON and in `inspect`."""
    model = stacked_model([RecurrentCase(I=5, H=6), RecurrentCase(I=6, H=6, seed=1)])
    onnx.save(model, tmp_path / "m.onnx")
    one, two, file = tmp_path / "1.onnx", tmp_path / "2.onnx", tmp_path / "f.toml"
    given = ("lower", tmp_path / "m.onnx", "-q", "-o")
    override = ("--set", "*.W.weight.bits=6", "--save-formats", file)
    assert in_process(capfd, *given, one, *override, "--json", tmp_path / "1.json").code == 0
    assert not (tmp_path / "f.toml.stats.json").exists()
    assert in_process(capfd, *given, two, "--recipe", file).code == 0
    assert one.read_bytes() == two.read_bytes()
    points = json.loads((tmp_path / "1.json").read_text())["points"]
    path = next(p for p in points if p.endswith(".W.weight"))
    assert points[path]["bits"] == 6 and len(points[path]["scale"]) == 24
    shown = in_process(capfd, "inspect", one)
    assert shown.code == 0 and "quantization points" in shown.out
    machine = json.loads(in_process(capfd, "inspect", one, "--json").out)
    assert machine["points"][path]["bits"] == 6
    assert json.loads(in_process(capfd, "inspect", tmp_path / "m.onnx", "--json").out)["points"] == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('points = "*.W.weight"\nscale = [0.1, 0.2]', r"W.weight.*scale is a list of 2 numbers.*a list of 128"),
        ('points = "*.cell_state"\nbits = 24\nscale = [0.1, 0.2]', r"cell_state.*scale is a list.*weights and biases"),
        ('points = "*.W.weight"\nscale = []', r"scale = \[\]"),
    ],
)
def test_refused_lists(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(f'name = "r"\nbase = "int8"\n\n[[rule]]\n{text}\n')
    with pytest.raises(CompileError, match=message):
        rnnqc.lower(CASES["LSTM"].model(), str(file))


def test_nothing_to_save(tmp_path: Path) -> None:
    lowered = rnnqc.lower(CASES["RNN"].model())
    with pytest.raises(UsageError, match=r"names that end in \.toml"):
        save_formats(lowered, tmp_path / "f.json")
    with pytest.raises(UsageError, match="no recipe has quantized now"):
        save_formats(rnnqc.lower(lowered.proto), tmp_path / "f.toml")
