"""Calibration of a model whose dimensions or inputs lowering binds.

What these would catch: statistics of layers that lowering does not find, because it knows sizes that the calibration
did not, data of other sizes that is refused where no layer depends on the sizes, options of `calibrate` that do
nothing, a report that calibrates another model than the one it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from tests.generate.layers import RecurrentCase
from tests.passes.analysis.test_rows_of_layers import H, cells
from tests.runs.commands import Result

Cli = Callable[..., Result]
STATE = ["s1:n1", "s2:n2"]
CALLS = 4


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two steps with different batch names, which become layers once one is bound, and the calls of a stream."""
    rng = np.random.default_rng(3)
    model, data = tmp_path / "steps.onnx", tmp_path / "calls.npz"
    onnx.save(cells(), model)
    frame, side = (rng.uniform(-1, 1, (CALLS, 1, n)).astype(np.float32) for n in (H, 2))
    np.savez(data, frame=frame, side=side)
    return model, data


def test_layers_that_are_there_once_dimensions_are_bound(files: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    """`lower --calibration`, and `calibrate` with the same --dim and `lower --stats`, write the same bytes."""
    model, data = files
    stats, once, later = (tmp_path / n for n in ("stats.json", "once.onnx", "later.onnx"))
    recipe = ["--recipe", "pow2-int8", "--strict", "--dim", "b0=1"]
    result = cli("lower", model, "-o", once, *recipe, "--calibration", data, "--state", *STATE)
    assert result.code == 0, result.text
    result = cli("calibrate", model, "--data", data, "-o", stats, "--state", *STATE, "--dim", "b0=1")
    assert result.code == 0, result.text
    result = cli("lower", model, "-o", later, *recipe, "--stats", stats)
    assert result.code == 0, result.text
    assert once.read_bytes() == later.read_bytes()
    assert sum(cell["op"] == "GRU" for cell in rnnqc.Statistics.load(stats).cells.values()) == 2
    found = [(n.op, n.status) for n in rnnqc.inspect(model, dims={"b0": 1}).nodes]
    assert found == [("GRU", "lowered")] * 2
    assert cli("inspect", model, "--dim", "b0=1").text.count("will be lowered") == 2


def test_statistics_of_other_layers_say_what_to_do(files: tuple[Path, Path]) -> None:
    model, _ = files
    case = RecurrentCase()
    unbound = rnnqc.calibrate(case.model(), [case.feeds()])
    with pytest.raises(CompileError, match=r"nothing about cell.*calibrate this model, with the dims= and bind="):
        rnnqc.lower(model, "pow2-int8", stats=unbound, dims={"b0": 1})


def test_a_report_of_such_layers(files: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    """With and without a calibration, the report binds the model that it lowers again in the same way."""
    model, data = files
    lowered, page = tmp_path / "lowered.onnx", tmp_path / "page.html"
    for more in (["--calibration", data, "--state", *STATE], []):
        assert cli("lower", model, "-o", lowered, "--dim", "b0=1", *more).code == 0
        result = cli("report", model, lowered, "-o", page, "--seconds", "0", "--data", data, "--state", *STATE)
        assert result.code == 0, result.text
        assert "n1" in page.read_text(encoding="utf-8")


def test_bound_inputs() -> None:
    """The data needs no array for a bound input; the values at the points are the same as with the array."""
    case = RecurrentCase(T=4, initial_h=True)
    feeds = case.feeds()
    state = feeds["initial_h"]
    bound = rnnqc.calibrate(case.model(), [{"X": feeds["X"]}], bind={"initial_h": state})
    free = rnnqc.calibrate(case.model(), [feeds])
    assert "initial_h" not in bound.settings["shapes"] and "initial_h" in free.settings["shapes"]
    assert bound.points.keys() == free.points.keys()
    assert all(bound.points[n].max == pytest.approx(free.points[n].max, rel=1e-5) for n in free.points)


def test_data_of_other_sizes_where_no_layer_depends_on_them() -> None:
    """Only unbound dimensions stay open: batches of any size, sequences of any length."""
    case = RecurrentCase(T=4, B=3, dynamic_time=True, dynamic_batch=True)
    feeds = [case.feeds()]
    (batch,) = {d for d in _names(case.model()) if "B" in d or "batch" in d.lower()}
    assert rnnqc.calibrate(case.model(), feeds, dims={batch: 1}).text == rnnqc.calibrate(case.model(), feeds).text
    with pytest.raises(CompileError, match="No input has a dimension 'other'"):
        rnnqc.calibrate(case.model(), feeds, dims={"other": 1})


def _names(proto: onnx.ModelProto) -> set[str]:
    return {d.dim_param for v in proto.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
