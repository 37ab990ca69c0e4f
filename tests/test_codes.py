"""Codes of messages.

What these would catch: a warning without a code, two kinds with one, a code that the page lacks or that nothing gives.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from rnnqc.codes import Code
from rnnqc.passes.pipeline import every_pass
from rnnqc.recipes.recipe import load_recipe
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.subjects.whole_models import WholeModel

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
SOURCES = [*(ROOT / "rnnqc").rglob("*.py"), *(ROOT / "passes").rglob("*.py")]


def test_codes_differ_and_are_words() -> None:
    words = [code.word for code in Code]
    names = {p.info.name for p in every_pass(load_recipe("int8"), load_recipe("weight-only-int8"))}
    assert len(set(words)) == len(words) and not names & set(words)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", word) for word in (*words, *names))


def test_table_of_codes() -> None:
    """The page has every code, in the order of the source."""
    held = PAGE.split("<!-- codes:begin -->\n")[1].split("<!-- codes:end -->")[0]
    assert held == "| code | about |\n|---|---|\n" + "".join(f"| `{c.word}` | {c.meaning} |\n" for c in Code)


def test_every_code_is_given() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in SOURCES if p.name != "codes.py")
    of_remarks = {Code.CALIBRATE}  # remarks of the calibration: Remark("calibrate", ...)
    assert [c.name for c in Code if f"Code.{c.name}" not in text and c not in of_remarks] == []


def test_one_function_prints_warnings() -> None:
    """Its argument has a code, says the type checker."""
    assert [p.name for p in SOURCES if "[yellow]rnnqc" in p.read_text(encoding="utf-8")] == ["terminal.py"]


STATIC = ("lower", "lstm.onnx", "-o", "o", "--recipe", "int8-static")
CODED = re.compile(r"rnnqc: (?P<level>.*?: )?.* \[(?P<code>[a-z0-9-]+)\]")


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (STATIC, ["refused"]),
        (("lower", "lstm.onnx", "-o", "o", "--set", "*.W.weight.bits=8"), ["idle-override"]),
        (("lower", "lstm.onnx", "-o", "o", "--set", "*.wieght.bits=8"), ["usage"]),
        ((*STATIC, "--calibration", "x.npz", "--set", "*.input.scale=0.001"), ["clipped", "low-sqnr"]),
        (("lower", "lstm.onnx", "-o", "o", "--set", "*.bits=none"), ["insert-qcdq"]),
        (("lower", "gru.onnx", "-o", "o", "--form", "ort"), ["quantize-weights"]),
        (("lower", "whole.onnx", "-o", "o", "--remove-sorting"), ["not-sorted"]),
        (("lower", "linear.onnx", "-o", "o"), ["no-layer"]),
        (("calibrate", "lstm.onnx", "--data", "large.npz", "-o", "o"), ["calibrate"]),
        (("verify", "lstm.onnx", "lstm.onnx", "--data", "nan.npz"), ["data-not-finite"]),
        (("frobnicate",), ["usage"]),
        (("inspect", "nothing.onnx"), ["refused"]),
    ],
)
def test_messages_end_in_their_code(
    arguments: tuple[str, ...], codes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    case = RecurrentCase(direction="forward")
    ((name, x),) = case.feeds().items()
    onnx.save(case.model(), "lstm.onnx")
    onnx.save(case.replace(op="GRU").model(), "gru.onnx")
    onnx.save(WholeModel().model(), "whole.onnx")
    linear = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] a) => (float[2] b) { b = Neg (a) }'
    )
    onnx.save(linear, "linear.onnx")
    np.savez("x.npz", **{name: x[None]})
    np.savez("large.npz", **{name: np.full_like(x, 1e30)[None]})
    np.savez("nan.npz", **{name: np.full_like(x, np.nan)[None]})
    result = in_process(capfd, *arguments)
    lines = [line for line in result.err.splitlines() if line.startswith("rnnqc: ")]
    found = [CODED.fullmatch(line) for line in lines]
    assert None not in found, lines
    assert sorted({m["code"] for m in found if m}) == codes, lines
