"""docs/dump.md: its scripts run and do what the page says.

What these would catch: a tensor or an option that the page does not name, a comparison that finds nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.pages.dump_page import COMPARE, PAGE, TRACE, run
from tests.runs.sessions import save_arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lowered model, its data and its dump."""
    path = tmp_path_factory.mktemp("page")
    case = RecurrentCase()
    rnnqc.lower(case.model(), overrides=["*.cell_state.bits=24"]).save(path / "lowered.onnx")
    save_arrays(path / "in.npz", case.feeds())
    rnnqc.dump(path / "lowered.onnx", path / "in.npz", path / "dump")
    return path


@pytest.mark.slow
def test_tracing(folder: Path) -> None:
    printed = run("import rnnqc\n" + TRACE, folder)
    assert len(printed.splitlines()) == 22
    assert "cell_state (5, 2, 4) int64" in printed


def test_comparison_names_step_and_tensor(folder: Path) -> None:
    shutil.copytree(folder / "dump", folder / "other")
    assert run(COMPARE, folder, "dump", "other") == ""
    (file,) = (folder / "other").glob("*.npz")
    with np.load(file) as held:
        arrays = dict(held)
    # What a wrong table entry makes: the gate first, and everything after it.
    arrays["forget_gate.activation.codes"][2:, 1] += 1
    arrays["cell_state.codes"][2:, 1] += 5
    arrays["hidden.previous.codes"][3:] += 1
    arrays["input_gate.acc.codes"][3:] += 1
    np.savez(file, **arrays)
    printed = run(COMPARE, folder, "dump", "other")
    assert ": step 2, forget_gate.activation.codes, row 1, column 0: " in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize(("op", "recipe"), [("LSTM", "int8"), ("LSTM", "pow2-int8"), ("GRU", "int8"), ("RNN", "int8")])
def test_every_tensor_is_on_the_page(tmp_path: Path, op: str, recipe: str) -> None:
    case = RecurrentCase(op=op)  # type: ignore[arg-type]
    lowered = rnnqc.lower(case.model(), recipe=recipe, calibration=[case.feeds()])
    rnnqc.dump(lowered.proto, [case.feeds()], tmp_path / "out")
    (cell,) = json.loads((tmp_path / "out/index.json").read_text())["cells"].values()
    for name in cell["tensors"]:
        assert f"`{re.sub('^[a-z]+_gate[.](?!reset)', 'GATE.', name)}`" in PAGE, name


COMMON = {"--help", "--quiet", "--verbose", "--input", "--output", "--no-text"}
"""Options that every command has, or that the page names in short."""


def test_options_are_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    from rnnqc.cli import main

    assert main(["dump", "--help"]) == 0
    listed = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - COMMON
    assert {"--stock", "--state", "--row", "--text"} <= listed
    for option in listed:
        assert f"`{option}" in PAGE, option
