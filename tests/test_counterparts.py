"""Messages name the counterpart of other tools' words, and what they name exists.

What these would catch: an advice that is itself an error, a word that no message looks up, a hint that hides the rest
of the message.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnnqc.cells.types import all_points
from rnnqc.cli import main
from rnnqc.counterparts import COMMANDS, FORMATS, OPTIONS, RECIPES
from rnnqc.passes.formats.override_effects import check_overrides
from rnnqc.recipes.keys import KEYS, checked
from rnnqc.recipes.recipe import builtin_recipes, load_recipe
from tests.runs.commands import in_process

ROOT = Path(__file__).resolve().parent.parent
TEXTS = {**FORMATS, **OPTIONS, **COMMANDS, **RECIPES}
NAMES = {r.name for r in builtin_recipes()}


@pytest.mark.parametrize("word", TEXTS)
def test_what_is_advised_exists(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = TEXTS[word]
    overrides = re.findall(r"'(\*[^']*=[^']*)'", text)
    for override in overrides:
        cells = {"layer.forward": tuple(all_points())}
        check_overrides(load_recipe("int8").with_overrides([override.replace("KEY=...", "bits=none")]), cells)
    commands = re.findall(r"`(rnnqc [^`]*)`", text)
    for command in commands:
        assert main([command.split()[1], "--help"]) == 0
        assert all(option in capsys.readouterr().out for option in re.findall(r"--[\w-]+", command))
    recipes = re.findall(r"\b(?:pow2-(?:int|w)\w+(?:-floor)?|distiller-\w+|brevitas-\w+)", text)
    assert set(recipes) <= NAMES
    pairs = re.findall(r"(?<![\w'.*])([a-z_0-9]+)=([\w.-]+)", re.sub(r"'[^']*'", "", text))
    for key, value in pairs:
        checked(key, {"true": True, "false": False}.get(value, float(value) if key == "scale" else value), word)
    keys = [k for k in ("bits", "half_range", "scale_bits", "n_std") if text.startswith(k)]
    options = [
        o
        for o in ("-o", "--rest", "--recipe", "--calibration", "--stats", "--set", "--quantized-outputs")
        if text.startswith(o)
    ]
    assert overrides or commands or recipes or pairs or options or (keys and set(keys) <= set(KEYS)), text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "*.io_quant.bits=6"], "io_quant (Brevitas): '*.input.KEY=...' '*.hidden.KEY=...'; `rnnqc inspect`"),
        (["--set", "*.weight.bit_width=4"], "zero_point. Resolution: bit_width (Brevitas): bits"),
        (["--set", ".*eltwise.*.bits=none"], "eltwise (Distiller): '*.acc.KEY=...'"),
        (["--set", "*.acc.range=AVG"], "AVG (Distiller): range=average"),
        (["--recipe", "vitis"], "vitis (Vitis): pow2-int16"),
        (["--bitwidth", "16"], "bitwidth (Vitis): `rnnqc lower --recipe pow2-int16`"),
        (["--mode", "calib"], "calib (Vitis): `rnnqc calibrate`; mode (Distiller): --recipe distiller-sym"),
        (["--recipe", "quant_info.json"], "quant_info (Vitis): `rnnqc lower --save-formats FILE.toml`"),
        (["--io_quant", "none"], "Resolution: with --set, io_quant (Brevitas): '*.input.KEY=...'"),
        (["--quant-mode=calib"], "quant_mode (Vitis): `rnnqc calibrate` is calib"),
        (["--return-quant-tensor"], "return_quant_tensor (Brevitas): --quantized-outputs NAME"),
        (["--set", "*.eltwiseadd.bits=8"], "eltwiseadd (Distiller): '*.acc.KEY=...'"),
        (["--set", "*.weight.fp=7"], "fp (Vitis): scale=0.0625 for fix position 4"),
        (["--set", "*.input.scaling_stats_momentum=0.1"], "scaling_stats_momentum (Brevitas): range=ema-percentile"),
        (["--qe-no-quant-layers", "decoder"], "qe_no_quant_layers (Distiller): --set 'layer*.bits=none'"),
        (["--fast_finetune"], "fast_finetune (Vitis): `rnnqc calibrate` for --stats"),
        (["--enforce_sorted"], "enforce_sorted (torch-neuron): not needed"),
        (["--recipe", "QuantLSTM"], "QuantLSTM (Brevitas): brevitas-int8"),
    ],
)
def test_messages_name_the_counterpart(
    arguments: list[str], text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = in_process(capfd, "lower", ROOT / "models" / "digits_lstm.onnx", "-o", tmp_path / "out.onnx", *arguments)
    assert found.code == 2 and text in " ".join(found.err.split()), found.err
    assert not (tmp_path / "out.onnx").exists()


def test_commands_of_others(capfd: pytest.CaptureFixture[str]) -> None:
    assert "calib (Vitis): `rnnqc calibrate`; see `rnnqc --help`" in in_process(capfd, "calib", "m.onnx").err
    assert "export_xmodel (Vitis): `rnnqc lower`" in in_process(capfd, "export_xmodel", "m.onnx").err
    assert "nndct_stat (Vitis): `rnnqc report`" in in_process(capfd, "nndct_stat", "m.onnx").err
    missing = in_process(capfd, "calibrate", "m.onnx", "--quant_mode", "calib").err
    assert "required: --data" in missing and "quant_mode (Vitis)" in missing
    assert "calib (Vitis)" not in in_process(capfd, "calibrate", "m.onnx").err
