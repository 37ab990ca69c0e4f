"""Values that are NaN or infinite: in one of two models only, and in the data.

What these would catch: a lowered model that makes infinities where the float model makes numbers and is written all the
same, or looks good on the page of a report, or to `rnnqc tune`; a report that counts NaN as a value, or refuses it in
padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rnnqc
from rnnqc.measure.runs import Calls
from rnnqc.search.quality import Quality
from tests.generate.layers import RecurrentCase
from tests.pages.report_pages import Page
from tests.runs.commands import Result
from tests.runs.sessions import save_arrays

CASE = RecurrentCase(T=48, B=2, I=8, H=16)


@pytest.fixture
def logarithm(tmp_path: Path) -> Path:
    """LSTM, Abs, Log: a state that is quantized to zero becomes an infinity."""
    model = CASE.model()
    model.graph.node.append(helper.make_node("Abs", ["Y"], ["magnitude"]))
    model.graph.node.append(helper.make_node("Log", ["magnitude"], ["level"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("level", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def _data(folder: Path) -> Path:
    save_arrays(folder / "data.npz", CASE.feeds())
    return folder / "data.npz"


def test_min_sqnr_fails_where_only_one_model_makes_infinities(
    cli: Callable[..., Result], logarithm: Path, tmp_path: Path
) -> None:
    output, report = tmp_path / "out.onnx", tmp_path / "out.json"
    pow2 = ("--recipe", "pow2-int8", "--calibration", _data(tmp_path))
    assert cli("lower", logarithm, "-o", tmp_path / "any.onnx", *pow2).code == 0
    assert cli("verify", logarithm, tmp_path / "any.onnx").code == 1, "what --min-sqnr has to see"
    result = cli("lower", logarithm, "-o", output, *pow2, "--min-sqnr", "-100", "--json", report)
    assert result.code == 1, result.text
    assert "output 'level': " in result.err and "NaN or infinite in one of the models only" in result.err
    assert "the model was not written" in result.err and not output.exists()
    assert len(json.loads(report.read_text())["unlike"]) == 1


def test_the_page_names_outputs_with_infinities(cli: Callable[..., Result], logarithm: Path, tmp_path: Path) -> None:
    """SQNR is of the values that are finite in both: without a word the output looks as if nothing were wrong."""
    output, page = tmp_path / "out.onnx", tmp_path / "page.html"
    data = _data(tmp_path)
    assert cli("lower", logarithm, "-o", output, "--recipe", "pow2-int8", "--calibration", data).code == 0
    result = cli("report", logarithm, output, "--data", data, "-o", page, "--seconds", "0", "--json")
    assert result.code == 0, result.text
    evidence = json.loads(page.with_suffix(".json").read_text())
    [seen] = evidence["outputs"]
    assert seen["unlike"] > 0 and "call 0" in seen["first_unlike"]
    assert evidence["sqnr_db"] < -200.0
    text = Page.read(page.read_text()).text
    assert f"{seen['unlike']} value(s) are NaN or infinite in one of the models only" in text


def test_tuning_takes_no_model_that_makes_infinities(logarithm: Path) -> None:
    model = onnx.load(logarithm)
    quality = Quality(model, Calls.of([CASE.feeds()], model))
    lowered = rnnqc.lower(model, "pow2-int8", calibration=[CASE.feeds()]).proto
    assert quality.score(quality.outputs(model)).quality == np.inf
    assert quality.score(quality.outputs(lowered)).quality == -np.inf


def test_a_report_on_padding_of_nan(cli: Callable[..., Result], tmp_path: Path) -> None:
    """Elements beyond a sequence's length are ignored: neither refused nor counted, whatever they are."""
    case = RecurrentCase(T=12, B=3, I=8, H=16, lens=(12, 5, 9))
    onnx.save(case.model(), tmp_path / "in.onnx")
    assert cli("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx").code == 0
    points = []
    for filler in (0.0, np.nan):
        feeds = case.feeds()
        for k, length in enumerate((12, 5, 9)):
            feeds["X"][length:, k] = filler
        save_arrays(tmp_path / "data.npz", feeds)
        command = (tmp_path / "in.onnx", tmp_path / "out.onnx", "--data", tmp_path / "data.npz", "--json")
        result = cli("report", *command, "-o", tmp_path / "page.html", "--seconds", "0")
        assert result.code == 0, result.text
        points.append(json.loads((tmp_path / "page.json").read_text())["points"])
    assert points[0] == points[1] and points[0]


def test_a_report_on_data_with_nan(cli: Callable[..., Result], tmp_path: Path) -> None:
    """A value that is no padding: refused with the call and the point, not counted in a histogram."""
    onnx.save(CASE.model(), tmp_path / "in.onnx")
    assert cli("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx").code == 0
    feeds = CASE.feeds()
    feeds["X"][3, 1, 5] = np.nan
    save_arrays(tmp_path / "data.npz", feeds)
    command = (tmp_path / "in.onnx", tmp_path / "out.onnx", "--data", tmp_path / "data.npz")
    result = cli("report", *command, "-o", tmp_path / "page.html", "--models", "2")
    assert result.code == 2, result.text
    assert "call 0: the model computes a value that is NaN or infinite at the_lstm.forward.input" in result.err
    assert not (tmp_path / "page.html").exists()
