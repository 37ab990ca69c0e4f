"""Guides, and the pages for people who come from other tools, run as they stand, from their first line to their last.

A page is a session: its Python blocks and its `rnnqc` lines, in order, in one folder that has the models of the
repository. Needs torch, and Brevitas for its page.
"""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnnqc.cli import main
from rnnqc.commands.program import _parsed, _separated
from rnnqc.counterparts import COMMANDS, FORMATS, OPTIONS, RECIPES

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
PAGES = sorted((ROOT / "docs").glob("from_*.md"))
TASKS = [
    ROOT / "docs" / f"{name}.md"
    for name in ("getting_started", "pytorch", "streaming", "four_bits", "hardware", "file_formats")
]
LONG = {
    *("pytorch", "four_bits", "hardware", "from_vitis_custom_lstm", "from_vitis_rnn_quantizer"),
    *("from_distiller", "from_brevitas", "from_torch_neuron"),
}
"""Pages that take more than a second; of their commands the options are checked without `--slow`."""
BOUNDS = {"tune": ["--models", "4"], "report": ["--seconds", "0"], "bench": ["--rounds", "1"]}
"""Options appended to a page's commands to keep them short: other tests check what the commands find."""
TOOLS = {"Brevitas": "brevitas", "Distiller": "distiller", "Vitis": "vitis", "torch-neuron": "torch_neuron"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a classifier, a language model, and data for both."""
    monkeypatch.chdir(tmp_path)
    for name, source in {
        "model.onnx": "digits_lstm.onnx",
        "test.npz": "digits_test.npz",
        "lm.onnx": "pydoc_lstm.onnx",
    }.items():
        (tmp_path / name).write_bytes((MODELS / source).read_bytes())
    with np.load(MODELS / "digits_calibration.npz") as data:
        np.savez("samples.npz", x=data["x"][:2])
        np.savez("first.npz", x=data["x"][0, :1])
    with np.load(MODELS / "pydoc_calibration.npz") as data:
        np.savez("lm_samples.npz", tokens=data["tokens"])
    with np.load(MODELS / "pydoc_test.npz") as data:
        columns = data["codes"].astype(np.int64)[:4096].reshape(8, -1).T
    np.savez("lm_test.npz", tokens=columns[:-1].reshape(7, 73, 8), targets=columns[1:].reshape(7, 73, 8))
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in LONG else []) for p in [*PAGES, *TASKS]],
)
def test_page_runs(page: Path, folder: Path) -> None:
    blocks = blocks_of(page)
    for module in ("torch", "brevitas"):
        if any(re.search(rf"^(import|from) {module}\b", code, re.M) for language, code in blocks if language):
            pytest.importorskip(module, reason=f"needs {module}: {page.name} NOT tested")
    scope: dict[str, Any] = {}
    ran = 0
    for language, code in blocks:
        if language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(code, page.name, "exec"), scope)
        for words in lines_of(code) if not language else []:
            if words[:1] == ["mkdir"]:
                (folder / words[1]).mkdir()
            elif words[:1] == ["rnnqc"]:
                assert main([*words[1:], *BOUNDS.get(words[1], [])]) == 0, words
                ran += 1
    assert ran >= 3


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def lines_of(code: str) -> list[list[str]]:
    """The words of each line of a block without a language."""
    return [shlex.split(line, comments=True) for line in code.splitlines()]


@pytest.mark.parametrize("page", [*PAGES, *TASKS], ids=lambda p: p.stem)
def test_commands_of_a_page_have_such_options(page: Path) -> None:
    """The parser accepts every command; `test_page_runs` runs them."""
    codes = [code for language, code in blocks_of(page) if not language]
    commands = [words[1:] for code in codes for words in lines_of(code) if words[:1] == ["rnnqc"]]
    assert len(commands) >= 3
    for command in commands:
        _parsed(_separated(command))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page_has_a_table_of_words(page: Path) -> None:
    """Each page has one, with the words of its tool that messages know, and the README leads to it."""
    assert f"docs/{page.name}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^\| .+ \| rnnqc \|$", page.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("tool", TOOLS)
def test_pages_know_the_words_of_messages(tool: str) -> None:
    pages = [p.read_text(encoding="utf-8").lower().replace("-", "_") for p in PAGES if TOOLS[tool] in p.stem]
    words = {w for table in (FORMATS, OPTIONS, COMMANDS, RECIPES) for w, (whose, _) in table.items() if whose == tool}
    missing = {w for w in words if not any(w in page for page in pages)}
    assert not missing
