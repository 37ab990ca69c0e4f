"""Messages in the words of the command line, and in those of Python.

What these would catch: an option in a message that no command has, a message to a program that names an option, a
value that is lost or not quoted, a command without a function that is torn apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import rnnqc
from rnnqc import cli
from rnnqc.commands.program import _parsers
from rnnqc.wording import command_line, in_python, worded

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "models" / "digits_lstm.onnx"

CASES = {
    "use --form integer or --form qcdq.": 'use form="integer" or form="qcdq".',
    "for example --dim T=100": 'for example dims={"T": 100}',
    "carry the states: --state h:hn --state 'c x:cn'": 'carry the states: state={"h": "hn", "c x": "cn"}',
    "--set '*.input.bits=6' '*.hidden.bits=6'": 'overrides=["*.input.bits=6", "*.hidden.bits=6"]',
    "lower without --unroll, or": "lower without unroll=True, or",
    "leave the batch (--batch) out": "leave the batch out",
    "give --calibration DATA or --stats STATS.json": 'give calibration=DATA or stats="STATS.json"',
    "--min-sqnr: output 'x' has less": "min_sqnr: output 'x' has less",
    "--rest int8; '<node>.weight.bits=none' leaves": "rest=\"int8\"; '<node>.weight.bits=none' leaves",
    "compare (rnnqc verify FLOAT LOWERED --data DATA); or": "compare (rnnqc.verify(FLOAT, LOWERED, data=DATA)); or",
    "swap: rnnqc verify b.onnx a.onnx": 'swap: rnnqc.verify("b.onnx", "a.onnx")',
    "rnnqc lower MODEL -o OUT.onnx --recipe w4a8": 'rnnqc.lower(MODEL, recipe="w4a8").save("OUT.onnx")',
    "`rnnqc layer IN.onnx -o OUT.onnx --state h:n` makes": '`rnnqc.layer("IN.onnx", state={"h": "n"})` makes',
    "`rnnqc inspect` lists cells, `rnnqc recipes --points` points":
        "`rnnqc.inspect` lists cells, `rnnqc recipes --points` points",
    "my--data.npz: no such file": "my--data.npz: no such file",
    "rnnqc quantizes; nothing -- really": "rnnqc quantizes; nothing -- really",
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_in_python(text: str) -> None:
    assert in_python(text) == CASES[text]


def test_each_reader_has_their_words() -> None:
    """The same error for both readers; a command in the same process does not change Python's words."""
    text = "bind it, for example --dim T=100"
    with command_line():
        assert worded(text) == text == str(rnnqc.CompileError(text))
    assert worded(text) == str(rnnqc.CompileError(text)) == 'bind it, for example dims={"T": 100}'


def test_the_command_line_names_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [str(DIGITS), "-o", str(tmp_path / "out.onnx"), "--state", "x:logits"]
    assert cli.main(["lower", *arguments]) == 2
    assert "States (--state) without calibration data" in capsys.readouterr().err
    with pytest.raises(rnnqc.UsageError, match=r"States \(state=\).*state= together with calibration=DATA"):
        rnnqc.lower(DIGITS, state={"x": "logits"})


def test_models_without_a_file_have_words_for_names() -> None:
    proto = onnx.load(DIGITS)
    lowered = rnnqc.lower(proto)
    assert str(lowered).startswith("the model, recipe int8")
    assert rnnqc.verify(proto, lowered).headline.startswith("the lowered model against the float model on ")


def test_options_in_messages() -> None:
    """Every option that a message names is one of a command, and Python has another word for it."""
    options = _options()
    found = list(_texts())
    assert len(found) > 100
    for place, text in found:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text):
            assert option in options, (place, option)
        assert not re.search(r"(?<![\w-])--[a-z]", in_python(text).replace("`rnnqc recipes --points`", "")), (
            place, in_python(text),
        )  # fmt: skip


def _options() -> set[str]:
    _, commands = _parsers()
    return {o for c in commands.values() for a in c._actions for o in a.option_strings}


def _texts() -> Iterator[tuple[str, str]]:
    """The texts with options outside the command line, with a value in the place of each expression."""
    files = [p for folder in ("rnnqc", "passes") for p in sorted((ROOT / folder).rglob("*.py"))]
    apart = ("rnnqc/commands", "rnnqc/cli.py", "rnnqc/wording.py", "rnnqc/reporting/sections", "rnnqc/passes/")
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(apart) or not path.is_relative_to(path.parent.resolve()):
            continue
        source = path.read_text(encoding="utf-8")
        if not re.search(r"--[a-z]", source):
            continue
        tree = ast.parse(source)
        parts = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        parts |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else " x.onnx" for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            if re.search(r"(?<![\w-])--[a-z]", text) and "var(--" not in text:  # colours of pictures
                yield f"{name}:{getattr(node, 'lineno', 0)}", text
