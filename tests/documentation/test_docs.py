"""The documentation agrees with the code: commands exist, tables are those the code prints, examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.cells.fused_nodes import input_names
from rnnqc.cells.types import CELL_TYPES, LSTM
from rnnqc.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced blocks of a text, the README, in one language ("" for none)."""
    pieces = re.split(r"^```(\w*)\n", text, flags=re.M)
    fenced = zip(pieces[1::4], pieces[2::4], strict=False)
    return [text for name, text in fenced if name == language]


def test_table_of_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """`rnnqc passes --markdown` between the markers."""
    assert main(["passes", "--markdown"]) == 0
    page = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    held = page.split("<!-- passes:begin -->\n")[1].split("<!-- passes:end -->")[0]
    assert held == capsys.readouterr().out, "`rnnqc passes --markdown` prints the table"


def test_table_of_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    """`rnnqc recipes --markdown` between the markers."""
    assert main(["recipes", "--markdown"]) == 0
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    held = page.split("<!-- recipes:begin -->\n")[1].split("<!-- recipes:end -->")[0]
    assert held == capsys.readouterr().out, "rnnqc recipes --markdown prints the table"


@pytest.mark.parametrize("page", ["README.md", "docs/evaluate.md"])
def test_commands_of_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `rnnqc ...` line, on a model of the repository."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes((ROOT / "models" / "digits_lstm.onnx").read_bytes())
    (tmp_path / "test.npz").write_bytes((ROOT / "models" / "digits_test.npz").read_bytes())
    recipe = ROOT / "rnnqc" / "recipes" / "builtin" / "int8.toml"
    (tmp_path / "mine.toml").write_text(recipe.read_text(encoding="utf-8"))
    (tmp_path / "quantized").mkdir()
    bounds = {"report": ["--seconds", "0"], "bench": ["--rounds", "1"], "tune": ["--models", "4"]}
    np.savez(tmp_path / "inputs.npz", x=np.zeros((2, 8, 8), np.float32))
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).random((6, 8, 8), np.float32))
    rnnqc.lower("model.onnx").save("model.int8.onnx")
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [line.split("#")[0].strip() for block in blocks("", text) for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("rnnqc ")]
    assert len(commands) >= 4
    for command in commands:
        arguments = [a.replace("encoder/*", "*") for a in shlex.split(command)[1:]]
        assert main([*arguments, *bounds.get(arguments[0], [])]) == 0, command


def test_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each Python block, in order, in a folder with a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes((ROOT / "models" / "digits_lstm.onnx").read_bytes())
    examples = blocks("python")
    assert len(examples) == 2
    exec(compile("\n".join(examples), "README.md", "exec"), {})
    assert "lowered" in capsys.readouterr().out


def test_score_of_entities_of_the_page() -> None:
    """An entity that begins where another ends, one of another kind that goes on, and padding."""
    page = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    (code,) = (c for c in blocks("python", page) if "def entities" in c)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["entities"]([1, 2, 2, 0, 3, 1, 0, 2, 2]) == {(0, 3, 1), (4, 5, 3), (5, 6, 1)}
    assert scope["entities"]([1, 1, 4]) == {(0, 1, 1), (1, 2, 1)}
    scores, labels = np.eye(5)[[[1, 2, 0, 3, 4]]], np.array([[1, 2, 0, 3, -1]])
    assert scope["f1"]([{"scores": scores}], [{"labels": labels}]) == 1
    labels[0, -1] = 0  # no padding any more: 3, 4 is one entity of the output, 3 of the labels
    assert scope["f1"]([{"scores": scores}], [{"labels": labels}]) == 0.5


def test_operator_page_lists_what_is_written() -> None:
    """Inputs and attributes of docs/quant_lstm_cell.md are those of a fused node."""
    page = (ROOT / "docs" / "quant_lstm_cell.md").read_text(encoding="utf-8")
    node = next(
        n
        for n in rnnqc.lower(ROOT / "models" / "digits_lstm.onnx").proto.graph.node
        if n.op_type.startswith("QuantLSTMCell")
    )
    for attribute in node.attribute:
        assert f"`{attribute.name}`" in page, attribute.name
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page.split("## Outputs")[0], re.M)
    names = input_names(LSTM)
    assert tuple(name for _, name in rows)[: len(names)] == names


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "README.md"])
def test_files_that_documents_name_exist(name: str) -> None:
    """Paths in backticks with a slash, as far as they look like files of the repository."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(
        r"`((?:docs|models|benchmarks|examples|passes|rnnqc|runtime_ops|tests|scripts)/[\w./-]*)`", text
    ):
        assert (ROOT / path).exists(), path


PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"command_line.md"}
"""Pages that only the site has."""


def anchors(page: Path) -> set[str]:
    """The link targets in a page: its headings, as GitHub and the site spell them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Files that a page links to, pictures and headings too; links to other sites are not followed."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)", text):
        if "://" in target or target in GENERATED:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_the_override_of_the_readme_fits_every_layer() -> None:
    """Its first example of an override must not depend on the model being an LSTM."""
    (override,) = re.findall(r"--set '([^']+)' +# override", README)
    for op in [t.op for t in CELL_TYPES.values() if not t.domain]:
        tiny = next((ROOT / "models" / "tiny").glob(f"{op.lower()}_*.onnx"))
        assert rnnqc.lower(tiny, overrides=[override]).report.is_changed
