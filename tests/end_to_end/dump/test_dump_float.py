"""`rnnqc dump` of float models: the values that a calibration measures, as arrays.

What these would catch: a value under the name of another point, a point that statistics have and the dump has not, a
cell of a float model that is left out, hidden states that are not the model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.sessions import session
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.runs.sessions import save_arrays
from tests.subjects.around import TRIPS, in_loop, in_scan
from tests.subjects.custom_layers import feeds_of, layer

Array = npt.NDArray[Any]
CASES = (
    RecurrentCase(op="LSTM"),
    RecurrentCase(op="LSTM", direction="bidirectional", T=4),
    RecurrentCase(op="GRU", linear_before_reset=1),
    RecurrentCase(op="GRU", linear_before_reset=0, direction="reverse"),
    RecurrentCase(op="RNN"),
    RecurrentCase(op="LSTM", clip=0.5),
)
OPERANDS = ".hidden"  # of products of custom cells: what they multiply, which has a name of its own


def dumped(model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """Every array of the dump of a model, by cell and name."""
    index = rnnqc.dump(model, [feeds], folder)
    assert {c["form"] for c in index["cells"].values()} == {"float"}
    found = {}
    for cell, entry in index["cells"].items():
        with np.load(folder / entry["file"]) as held:
            found |= {f"{cell}.{name}": held[name] for name in entry["tensors"]}
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{c.direction}")
def test_has_the_values_of_a_calibration(case: RecurrentCase, tmp_path: Path) -> None:
    feeds = case.feeds()
    made = dumped(case.model(), feeds, tmp_path / "float")
    seen = rnnqc.calibrate(case.model(), [feeds]).points
    assert set(seen) <= set(made)
    for name, point in seen.items():
        assert (float(made[name].min()), float(made[name].max())) == (point.min, point.max), name
        assert made[name].size == point.count, name
    (y,) = session(case.model(), native=False).run(["Y"], feeds)
    hidden = [v for n, v in made.items() if n.endswith(("ward.hidden", "reverse.hidden"))]
    np.testing.assert_allclose(np.stack(hidden, axis=1), y, atol=1e-6)


def test_custom_cells(tmp_path: Path) -> None:
    model = layer()
    feeds = feeds_of(model, 9, steps=6)
    made = dumped(model, feeds, tmp_path / "float")
    seen = rnnqc.calibrate(model, [feeds]).points
    values = {n: p for n, p in seen.items() if not n.endswith(OPERANDS)}
    assert len(values) > 10 and set(values) <= set(made)
    for name, point in values.items():
        assert (float(made[name].min()), float(made[name].max())) == (point.min, point.max), name


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["float", "qcdq"])
@pytest.mark.parametrize("around", [in_loop, in_scan])
def test_in_a_subgraph(around: Callable[..., onnx.ModelProto], form: str, tmp_path: Path) -> None:
    case = RecurrentCase(initial_h=True, initial_c=True)
    model = around(case.model(), "X")
    given = case.feeds()
    index = rnnqc.dump(model if form == "float" else rnnqc.lower(model, form=form), [given], tmp_path / form)
    (cell,) = index["cells"].values()
    assert cell["form"] == form and [r["trips"] for r in cell["runs"]] == [[k] for k in range(TRIPS)]


def test_compares_a_lowered_model_with_the_float_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = RecurrentCase(direction="forward")
    paths = {form: tmp_path / f"{form}.onnx" for form in ("float", "grid")}
    onnx.save(case.model(), paths["float"])
    rnnqc.lower(case.model(), "brevitas-int8", calibration=[case.feeds()]).save(paths["grid"])
    save_arrays(tmp_path / "in.npz", case.feeds())
    arguments = ["dump", "-i", tmp_path / "in.npz"]
    result = in_process(capfd, *arguments, paths["float"], "-o", tmp_path / "dump", "--text")
    assert result.code == 0, result.text
    assert (tmp_path / "dump" / "frame_0").is_dir()
    index = json.loads((tmp_path / "dump" / "index.json").read_text())
    (cell,) = index["cells"].values()
    assert cell["form"] == "float" and not cell["points"]
    for name, limit, code in (("near", "0.2", 0), ("far", "1e-4", 1)):
        only = ["--only", "*.preactivation", "--only", "*.activation", "--only", "cell_state*", "--only", "hidden"]
        against = ["--compare", tmp_path / "dump", "--atol", limit, *only]
        result = in_process(capfd, *arguments, paths["grid"], "-o", tmp_path / name, *against)
        assert result.code == code, result.text
        assert ("arrays agree" in result.out) == (code == 0), result.text
