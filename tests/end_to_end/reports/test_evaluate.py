"""`rnnqc evaluate` and `rnnqc.evaluate`: figures of tasks, on the models of the repository.

What these would catch: labels that are not cut with their samples, states that are not carried or are those of the
other model, a row that should not count, a threshold that is not kept, an error that does not say what to do, a float
model that is taken for the lowered one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import model_scores
import numpy as np
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.measure.metrics import Accuracy, Perplexity
from tests.runs.commands import Command

MODELS = Path(__file__).resolve().parents[3] / "models"
DIGITS, PYDOC = MODELS / "digits_lstm.onnx", MODELS / "pydoc_lstm.onnx"
STATES = ("--state", "h0:hn", "--state", "c0:cn")


def text_pieces(batch: int = 8, steps: int = 64) -> Iterator[dict[str, Any]]:
    """The test text as the calls of a stream, with the characters that follow."""
    with np.load(model_scores.FOLDER / "pydoc_test.npz") as data:
        codes = data["codes"].astype(np.int64)
    columns = codes[: len(codes) // batch * batch].reshape(batch, -1).T
    for start in range(0, len(columns) - 1, steps):
        stop = min(start + steps, len(columns) - 1)
        yield {"tokens": columns[start:stop], "targets": columns[start + 1 : stop + 1]}


def write_pieces(folder: Path, count: int | None = None) -> Path:
    folder.mkdir()
    for k, piece in enumerate(itertools.islice(text_pieces(), count)):
        np.savez(folder / f"{k:04}.npz", **piece)
    return folder


def test_accuracy_is_that_of_the_test_images(cli: Command, tmp_path: Path) -> None:
    rnnqc.lower(DIGITS, overrides=["*.weight.bits=2"]).save(tmp_path / "low.onnx")
    arguments = ("evaluate", tmp_path / "low.onnx", "--against", DIGITS, "--metric", "accuracy", "--json", "--data")
    found = json.loads(cli(*arguments, MODELS / "digits_test.npz").out)
    wanted = [model_scores.digits_accuracy(rnnqc.session(p)) / 100 for p in (tmp_path / "low.onnx", DIGITS)]
    assert [found["value"], found["reference"]] == pytest.approx(wanted, abs=1e-12)
    assert found["value"] < found["reference"] and found["output"] == "logits" and found["calls"] == 1
    assert found["labels"] == "label"
    with np.load(MODELS / "digits_test.npz") as data:
        pairs = {"x": data["x"].reshape(-1, 2, 8, 8), "label": data["label"].reshape(-1, 2)}
    np.savez(tmp_path / "pairs.npz", **pairs, names=np.arange(10))  # labels are cut with their samples
    again = json.loads(cli(*arguments, tmp_path / "pairs.npz", "--labels", "label").out)
    assert again == {**found, "calls": 225}


def test_the_wrong_order_is_refused(cli: Command, tmp_path: Path) -> None:
    """A loss would be reported as a gain; two float or two lowered models are accepted."""
    lowered, data = rnnqc.lower(DIGITS), MODELS / "digits_test.npz"
    lowered.save(tmp_path / "low.onnx")
    found = cli("evaluate", DIGITS, "--against", tmp_path / "low.onnx", "--data", data, "--metric", "accuracy")
    assert found.code == 2 and not found.out
    told = " ".join(found.err.split())
    assert f"{tmp_path / 'low.onnx'} is a lowered model, and {DIGITS} is not." in told
    assert f"swap the two: rnnqc evaluate {tmp_path / 'low.onnx'} --against {DIGITS}" in told
    with pytest.raises(rnnqc.UsageError, match=r"the float model is a lowered model, .*\. Resolution: swap the two\.$"):
        rnnqc.evaluate(rnnqc.Model.load(DIGITS), data, "accuracy", against=lowered)
    assert rnnqc.evaluate(lowered, data, "accuracy", against=lowered).reference is not None


def test_perplexity_of_a_stream(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the models' own figure is measured, on the first 3,200 characters."""
    with np.load(MODELS / "pydoc_test.npz") as held:
        np.savez(tmp_path / "pydoc_test.npz", codes=held["codes"][:3200])
    monkeypatch.setattr(model_scores, "FOLDER", tmp_path)
    data = write_pieces(tmp_path / "pieces")
    rnnqc.lower(PYDOC).save(tmp_path / "low.onnx")
    result = cli(
        "evaluate", tmp_path / "low.onnx", "--against", PYDOC, "--data", data, "--metric", "perplexity",
        *STATES, "--json",
    )  # fmt: skip
    found = json.loads(result.out)
    wanted = [2 ** model_scores.pydoc_bits(rnnqc.session(p)) for p in (tmp_path / "low.onnx", PYDOC)]
    assert [found["value"], found["reference"]] == pytest.approx(wanted, rel=1e-9)
    assert found["value"] != found["reference"]
    few = list(itertools.islice(text_pieces(), 3))
    pieces = [{**piece, **{n: np.zeros((2, 8, 112), np.float32) for n in ("h0", "c0")}} for piece in few]
    known = rnnqc.evaluate(PYDOC, few, "perplexity", state={"h0": "hn", "c0": "cn"}).value
    assert rnnqc.evaluate(PYDOC, pieces, "perplexity").value > known, "without states less is known"
    data = write_pieces(tmp_path / "few", 3)
    assert "%" in cli("evaluate", PYDOC, "--against", PYDOC, "--data", data, "--metric", "perplexity", *STATES).out


@pytest.mark.parametrize(
    ("option", "threshold", "code"), [("--min", 0.98, 0), ("--min", 0.995, 1), ("--max", 0.98, 1), ("--max", 0.995, 0)]
)
def test_thresholds(cli: Command, option: str, threshold: float, code: int) -> None:
    data = MODELS / "digits_test.npz"
    found = cli("evaluate", DIGITS, "--data", data, "--metric", "accuracy", f"{option}-metric", str(threshold))
    assert found.code == code and ("asked for" in found.err) == bool(code)


def test_progress_counts_the_calls_of_both_models(tmp_path: Path) -> None:
    """Would catch: a bar that begins again with the second model, or that ends before the last call."""
    told: list[tuple[int, int]] = []
    calls = list(text_pieces())[:3]
    state = {"h0": "hn", "c0": "cn"}
    rnnqc.evaluate(PYDOC, calls, "perplexity", against=PYDOC, state=state, progress=lambda *done: told.append(done))
    assert told == [(done, 6) for done in range(1, 7)]


def test_a_function_gets_labels_of_all_calls(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_evaluation.py").write_text(
        "def wrong(outputs, feeds):\n"
        "    return sum((o['logits'].argmax(1) != f['label']).sum() for o, f in zip(outputs, feeds))\n"
        "def failing(outputs, feeds):\n"
        "    raise KeyError('nothing')\n"
    )
    arguments = ("evaluate", DIGITS, "--data", MODELS / "digits_test.npz", "--metric")
    assert cli(*arguments, "my_evaluation:wrong", "--json").out.count('"value": 4.0') == 1
    for metric, text in [
        ("my_evaluation:failing", "the metric failed (KeyError: 'nothing')"),
        ("my_evaluation:none", "cannot be loaded"),
        ("loss", "Supported: accuracy, perplexity, module:function"),
    ]:
        found = cli(*arguments, metric)
        assert found.code == 2 and text in " ".join(found.err.split()), found.err
    assert "leave --output out" in " ".join(cli(*arguments, "my_evaluation:wrong", "--output", "logits").err.split())
    found = cli(*arguments, "my_evaluation.py:wrong")
    assert found.code == 2 and "my_evaluation.py is a file" in found.err and "write my_evaluation:wrong." in found.err
    data = ("evaluate", DIGITS, "--data", "folder/my_data.py:calls", "--metric", "accuracy")
    assert "write my_data:calls, in the folder folder." in " ".join(cli(*data).err.split())


def test_the_labels_of_a_function_have_the_name_that_is_asked_for() -> None:
    """Arrays in the order of the inputs have no names: a batch of a loader, a tuple of arrays."""
    with np.load(MODELS / "digits_test.npz") as held:
        batch = (held["x"], held["label"])

    def right(outputs: Any, feeds: Any) -> float:
        return float(np.mean([o["logits"].argmax(1) == f["y"] for o, f in zip(outputs, feeds, strict=True)]))

    found = rnnqc.evaluate(DIGITS, [batch], right, labels="y")
    wanted = rnnqc.evaluate(DIGITS, [batch], "accuracy")
    assert found.value == wanted.value and (found.labels, wanted.labels) == ("y", "label")
    assert rnnqc.evaluate(DIGITS, [batch], "accuracy", labels="y").labels == "y"
    with pytest.raises(CompileError, match="the data has no array 'y'; arrays: label, x"):
        rnnqc.evaluate(DIGITS, MODELS / "digits_test.npz", right, labels="y")


def test_python_prints_what_the_command_line_does(cli: Command, tmp_path: Path) -> None:
    lowered = rnnqc.lower(DIGITS, overrides=["*.weight.bits=2"])
    lowered.save(tmp_path / "low.onnx")
    data = MODELS / "digits_test.npz"
    for metric, against in [
        ("accuracy", ["--against", DIGITS]),
        ("accuracy", []),
        ("perplexity", ["--against", DIGITS]),
    ]:
        told = cli("evaluate", tmp_path / "low.onnx", *against, "--data", data, "--metric", metric)
        found = rnnqc.evaluate(tmp_path / "low.onnx", data, metric, against=DIGITS if against else None)
        assert str(found).split() == told.out.split()
    found = rnnqc.evaluate(lowered, data, "accuracy", against=DIGITS)
    assert found.rows[1]["against float"] == found.value - (found.reference or 0.0) < 0
    assert [row["model"] for row in found.rows] == [str(DIGITS), "the lowered model"]
    assert f"{found.value:.2%}" in found._repr_html_() and " points" in str(found)


def test_a_bound_input_is_bound_in_the_float_model_too(cli: Command, tmp_path: Path) -> None:
    lowered = rnnqc.lower(PYDOC, bind={"h0": 0}, dims={"batch": 8})
    lowered.save(tmp_path / "bound.onnx")
    pieces = [{**piece, "c0": np.zeros((2, 8, 112), np.float32)} for piece in text_pieces()][:3]
    np.savez(tmp_path / "data.npz", **{n: np.stack([p[n] for p in pieces]) for n in pieces[0]})
    zeros = {"h0": np.zeros((2, 8, 112), np.float32)}
    wanted = rnnqc.evaluate(PYDOC, [{**zeros, **piece} for piece in pieces], "perplexity").value
    found = rnnqc.evaluate(tmp_path / "bound.onnx", str(tmp_path / "data.npz"), "perplexity", against=PYDOC)
    assert found.reference == pytest.approx(wanted) and found.value == pytest.approx(wanted, rel=0.01)


LOGITS = np.random.default_rng(0).normal(0, 2, (3, 5, 7)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 7, (3, 5))


def measured(kind: type[Accuracy] | type[Perplexity], outputs: np.ndarray, labels: np.ndarray) -> float:
    measure = kind("y", {"x"})
    for values, wanted in zip(outputs, labels, strict=True):
        measure.add({"y": values}, {"x": values, "label": wanted})
    return measure.value()


def test_metrics_are_their_definitions() -> None:
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    likelihood = np.log(np.take_along_axis(softmax.astype(np.float64), LABELS[..., None], -1))
    perplexity = math.exp(-likelihood.mean())
    for values in (LOGITS, LOGITS + 300, np.log(softmax), softmax):
        assert measured(Perplexity, values, LABELS) == pytest.approx(perplexity, rel=1e-5)
    assert measured(Accuracy, LOGITS, LABELS) == pytest.approx(np.mean(LOGITS.argmax(-1) == LABELS))
    padded = np.where(np.arange(5) < 3, LABELS, -1)
    assert measured(Accuracy, LOGITS, padded) == pytest.approx(np.mean(LOGITS.argmax(-1)[:, :3] == LABELS[:, :3]))
    yes, truth = softmax[..., :1], LABELS > 3
    for labels in (truth, truth[..., None]):
        assert measured(Accuracy, yes, labels) == pytest.approx(np.mean((yes[..., 0] > 0.5) == truth))
    chosen = np.where(LABELS % 2 == 0, LABELS, 6 - LABELS)  # what an argmax or a Viterbi decoder puts out
    for classes in (chosen, chosen.astype(np.uint8)):
        assert measured(Accuracy, classes, LABELS) == pytest.approx(np.mean(chosen == LABELS))
        assert measured(Accuracy, classes, padded) == pytest.approx(np.mean((chosen == LABELS)[:, :3]))
    assert measured(Accuracy, LABELS % 2 == 0, LABELS % 2 == 0) == 1.0
    with pytest.raises(CompileError, match=r"output .y. is int64\. Supported: floats"):
        measured(Perplexity, chosen, LABELS)
    lost = np.where(np.arange(7) == 0, np.nan, LOGITS)
    assert measured(Accuracy, lost, LOGITS.argmax(-1)) == 0.0, "NaN decides nothing"
    impossible = np.where(np.arange(7) == 0, 1.0, 0.0) + 0 * LOGITS
    assert measured(Perplexity, impossible, np.full((3, 5), 1)) == math.inf


@pytest.mark.parametrize(
    ("values", "feed", "text"),
    [
        (LOGITS[0], {}, "data has: none. Supported: .* Resolution: add labels to the data"),
        (LOGITS[0], {"a": LABELS[0], "b": LABELS[0]}, "has: a, b. .* name the labels with labels="),
        (LOGITS[0], {"label": LABELS[0].astype(np.float32)}, "are float32. Supported: whole numbers"),
        (LOGITS[0], {"label": LABELS[0][:4]}, r"shape \[4\], output 'y' \[5, 7\]. Supported: labels \[5\]"),
        (LOGITS[0], {"label": LABELS[0] + 7}, "has 7 value.* labels from 0 to 6"),
        (LOGITS[0].astype(np.int32), {"label": LABELS[0]}, r"of whole numbers, \[5, 7\]. Supported: labels \[5, 7\]"),
        (LABELS[0].astype(str), {"label": LABELS[0]}, "output 'y' is <U.*whole numbers: the classes"),
        (LOGITS[0][:, :1], {"label": LABELS[0] > 3}, "one value a row.* a probability"),
        (LOGITS[0], {"label": LABELS[0] * 0 - 1}, "no label counts"),
    ],
)
def test_what_does_not_fit_is_told(values: np.ndarray, feed: dict[str, Any], text: str) -> None:
    measure = Accuracy("y", {"x"})
    with pytest.raises(CompileError, match=text):
        measure.add({"y": values}, {"x": values, **feed})
        measure.value()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--output", "prob"), "--output 'prob': the model has no such output. Supported: logits"),
        (("--labels", "y"), "call 0: the data has no array 'y'"),
        (("--state", "x:logit"), "the model has no output 'logit'"),
    ],
)
def test_bad_usage(cli: Command, arguments: Sequence[str], text: str) -> None:
    found = cli("evaluate", DIGITS, "--data", MODELS / "digits_test.npz", "--metric", "accuracy", *arguments)
    assert found.code == 2 and text in " ".join(found.err.split()), found.err
