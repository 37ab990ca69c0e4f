"""The results of functions: text, HTML, rows, JSON-ready values; and the examples of their docstrings.

What these would catch: a result that prints as an object, HTML that a name in a model breaks out of, rows that make no
table, values that are not JSON, an example that no longer runs.
"""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.commands.shared.arguments import json_text
from rnnqc.results import Result
from rnnqc.wording import worded

ROOT = Path(__file__).resolve().parents[1]
DIGITS, DATA = ROOT / "models" / "digits_lstm.onnx", ROOT / "models" / "digits_calibration.npz"
FUNCTIONS = (
    "bench", "calibrate", "dump", "evaluate", "inspect", "lower", "report", "session", "tune", "verify",
)  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    function = getattr(rnnqc, name)
    examples = [t for t in doctest.DocTestFinder(recurse=False).find(function, name) if t.examples]
    assert examples, "the docstring has an example"
    for example in examples:
        assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    lowered = rnnqc.lower(DIGITS, recipe="w4a8", measure=True)
    folder = tmp_path_factory.mktemp("dump") / "dump"
    with np.load(DATA) as arrays:
        few = {name: array[:1, :8] for name, array in arrays.items()}
    np.savez(folder.parent / "few.npz", **few)
    data = folder.parent / "few.npz"
    return {
        "inspect": rnnqc.inspect(DIGITS),
        "lower": lowered,
        "calibrate": rnnqc.calibrate(DIGITS, data, limit=5),
        "verify": rnnqc.verify(DIGITS, lowered, data, min_sqnr={"logits": 100.0}),
        "report": rnnqc.report(DIGITS, lowered, data, seconds=0),
        "bench": rnnqc.bench(DIGITS, rounds=1, inputs={"x": np.zeros((1, 8, 8), np.float32)}),
        "tune": rnnqc.tune(DIGITS, data, min_sqnr=20.0, models=4),
        "dump": rnnqc.dump(lowered, data, folder, row=0, steps=(0, 1)),
        "evaluate": rnnqc.evaluate(DIGITS, ROOT / "models" / "digits_test.npz", "accuracy"),
    }


def test_text(results: dict[str, Result]) -> None:
    """A headline, the names of the columns, a line for each row and each message; and one line for `repr`."""
    for name, result in results.items():
        lines = str(result).splitlines()
        assert len(lines) == (2 + len(result.rows) if result.rows else 1) + len(result.messages) + len(result.hints), (
            name
        )
        assert lines[0] == worded(result.headline) and "object at" not in str(result), name
        assert all(column in lines[1] for column in result.rows[0]), name
        assert len(repr(result).splitlines()) == 1 and len(repr(result)) < 400, name
        assert worded(result.headline) in repr(result), name


def test_messages_stand_in_the_text_and_in_html(results: dict[str, Result]) -> None:
    """The warnings of the command line name Python arguments."""
    bounded = results["report"]
    assert any("not measured (--models" in text for text in bounded.messages)
    assert (
        str(bounded).splitlines()[-2].endswith("points or groups were not measured (models=, seconds=). [not-measured]")
    )
    assert "<li>" in bounded._repr_html_() and "not measured (models=, seconds=)" in bounded._repr_html_()
    assert "--" not in str(bounded) + bounded._repr_html_()


def test_a_model_that_is_lowered_already() -> None:
    """Nothing was lowered now, so the result does not claim the requested recipe."""
    once = rnnqc.lower(DIGITS)
    again = rnnqc.lower(once)
    assert "1 of 1 lowered already" in again.headline and "int8" not in again.headline
    again = rnnqc.lower(once, "w4a8", rest="int8")
    assert "warning: recipe 'w4a8' does not apply to 1 recurrent node(s)" in str(again)
    assert "Resolution: lower the float model" in again._repr_html_()


def test_rows_are_a_table(results: dict[str, Result]) -> None:
    """pandas takes a list of dicts with equal keys and plain values."""
    for name, result in results.items():
        assert result.rows, name
        assert {tuple(row) for row in result.rows} == {tuple(result.rows[0])}, name
        assert all(isinstance(v, str | int | float | type(None)) for row in result.rows for v in row.values()), name


def test_dicts_are_json(results: dict[str, Result]) -> None:
    for name, result in results.items():
        assert isinstance(json.loads(json_text(result.to_dict())), dict), name


def test_failures_of_a_verification(results: dict[str, Result]) -> None:
    """A threshold for one output, by its name; none for an output that is not there."""
    found = results["verify"]
    assert isinstance(found, rnnqc.Verification)
    assert not found and not found.ok and "100 dB asked for" in str(found)
    with pytest.raises(rnnqc.UsageError, match=r"no output 'x'.*Supported: logits"):
        rnnqc.verify(DIGITS, rnnqc.lower(DIGITS), min_sqnr={"x": 1.0})
    with pytest.raises(rnnqc.UsageError, match="no such value"):
        rnnqc.verify(DIGITS, rnnqc.lower(DIGITS), min_equal=2.0)


def test_html_of_hostile_names(results: dict[str, Result]) -> None:
    """Models may come from anybody, and a notebook executes HTML."""
    proto = onnx.load(DIGITS)
    node = next(n for n in proto.graph.node if n.op_type == "LSTM")
    node.name = "<script>alert(1)</script>\x1b[31m\nnext"
    found = rnnqc.inspect(proto)
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" in found._repr_html_()
    assert "\x1b" not in str(found) and len(str(found).splitlines()) == 3 + len(found.messages) + len(found.hints)
    for name, result in results.items():
        assert result._repr_html_().count("<tr>") == 1 + len(result.rows), name


def test_the_page_of_a_report(results: dict[str, Result], tmp_path: Path) -> None:
    found = results["report"]
    assert isinstance(found, rnnqc.ErrorReport)
    found.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == found.html
