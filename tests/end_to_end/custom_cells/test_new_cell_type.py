"""Types of cells that are no operators of ONNX, through every form, from their descriptions alone.

What these would catch: code that takes every type for one of LSTM, GRU and RNN, or that asks for a type by its name
where it means a property of the description: such code would compute a new type wrongly, or fail.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.types import CELL_TYPES, CellType
from rnnqc.data.statistics import Statistics
from rnnqc.ir import Model
from rnnqc.passes.analysis.find_recurrent_nodes import recurrent_nodes
from tests.laws.law import Forms, law
from tests.runs.commands import in_process
from tests.runs.lowered import INTEGER, STOCK, UNROLLED, session
from tests.runs.sessions import run, sqnr
from tests.subjects.mgu import LEAKY, MGU, feeds, model

TIME = 9
LOOK_UP = ("int8", "int8-static", "int16")
FIXED_POINT = ("pow2-int16", "pow2-w8a16")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the types known, as entries of `CELL_TYPES` would."""
    for type_ in (MGU, LEAKY):
        monkeypatch.setitem(CELL_TYPES, type_.op, type_)


def calibrated(type_: CellType) -> Statistics:
    return calibrate(model(type_), [feeds(24, 4, seed=s) for s in range(8)])


@pytest.fixture
def statistics() -> Statistics:
    return calibrated(MGU)


def _law(
    recipe: str,
    statistics: Statistics,
    overrides: list[str] | None = None,
    *,
    type_: CellType = MGU,
    magnitude: float = 1.0,
) -> Forms:
    given = [feeds(TIME, seed=9), feeds(TIME, seed=10, magnitude=magnitude)]
    forms = law(model(type_), recipe, overrides or (), feeds=given, dims={"T": TIME}, settings=(), stats=statistics)
    assert sum(forms.reference(f) for f in given) == len(given), "nothing is compared with the reference"
    return forms


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("type_", "recipe"), [*((MGU, r) for r in (*LOOK_UP, *FIXED_POINT)), (LEAKY, "int8"), (LEAKY, "pow2-int16")]
)
def test_every_form_has_the_same_bits_and_is_close_to_float(type_: CellType, recipe: str) -> None:
    """Stock, integer, unrolled and the numpy reference; the float model is the function that comes with the node."""
    statistics = calibrated(type_)
    forms = _law(recipe, statistics, type_=type_)
    given = feeds(TIME, seed=11)
    expected = run(rnnqc.session(model(type_), native=False), given)
    assert set(forms.results) >= {STOCK, INTEGER, UNROLLED}
    assert sqnr(expected["Y"], forms.same_bits(given)["Y"]) > 35.0
    qcdq = rnnqc.lower(model(type_), recipe, form="qcdq", stats=statistics)
    assert [e.form for e in qcdq.report.entries] == ["qcdq"]
    assert sqnr(expected["Y"], run(rnnqc.session(qcdq.proto, native=False), given)["Y"]) > 35.0


@pytest.mark.few(1)
@pytest.mark.parametrize("overrides", [["*.hidden.mode=dynamic-row"], ["*.scale_bits=8"], ["*.weight.bits=4"]])
def test_other_formats(overrides: list[str], statistics: Statistics) -> None:
    _law("int8", statistics, overrides)


def test_states_beyond_the_bound(statistics: Statistics) -> None:
    """Part of such a state remains for many steps, as in a GRU: clipping it would cause a large error."""
    forms, far = _law("int8", statistics, magnitude=5.0), feeds(TIME, seed=12, magnitude=5.0)
    expected = run(rnnqc.session(model(), native=False), far)
    assert np.abs(expected["Y"][0]).max() > 1.0
    assert sqnr(expected["Y"], forms.same_bits(far)["Y"]) > 30.0


def test_pieces_give_the_bits_of_the_whole(statistics: Statistics) -> None:
    lowered = rnnqc.session(rnnqc.lower(model(), stats=statistics).proto)
    given = feeds(TIME, seed=13)
    whole = run(lowered, given)
    first = run(lowered, {"X": given["X"][:4], "initial_h": given["initial_h"]})
    rest = run(lowered, {"X": given["X"][4:], "initial_h": first["Y_h"]})
    np.testing.assert_array_equal(np.concatenate([first["Y"], rest["Y"]]), whole["Y"])
    np.testing.assert_array_equal(rest["Y_h"], whole["Y_h"])


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "pow2-int16"])
def test_verification_raises_no_alarm(recipe: str, statistics: Statistics) -> None:
    lowered = rnnqc.lower(model(), recipe, stats=statistics, verify=True)
    assert lowered.report.checks
    (entry,) = lowered.report.entries
    assert (entry.op, entry.status) == ("MGU", "lowered")


def test_weights_alone() -> None:
    """The node and its function stay."""
    lowered, given = rnnqc.lower(model(), "weight-only-int8").proto, feeds(TIME)
    assert [f.name for f in lowered.functions] == ["MGU"]
    expected = run(rnnqc.session(model(), native=False), given)
    assert sqnr(expected["Y"], run(rnnqc.session(lowered), given)["Y"]) > 35.0


def test_it_is_listed_and_told(statistics: Statistics) -> None:
    (node,) = recurrent_nodes(Model.load(model()))
    assert (node.op, node.status, node.attributes["hidden_size"]) == ("MGU", "lowered", 24)
    lowered = rnnqc.lower(model(), stats=statistics)
    assert "MGU" not in {f.name for f in lowered.proto.functions}, "its float function is dead"
    assert any("QuantMGUCell has no kernel" in note for note in lowered.report.notes)


def test_recipes_list_its_points(capfd: pytest.CaptureFixture[str]) -> None:
    """A point of several types may mean something else in each."""
    rows = [line.split(maxsplit=1) for line in in_process(capfd, "recipes", "--points").out.splitlines()]
    told = {row[0]: " ".join(row[1].split()) for row in rows if len(row) > 1}
    assert told["reset.hidden"].startswith("GRU, MGU r * h in front of R")
    assert told["forget_gate.acc"].startswith("LSTM, MGU, Leaky pre-activation")


@pytest.mark.few(1)
@pytest.mark.parametrize(("recipe", "form"), [("int8", "fused"), ("pow2-int16", "integer"), ("int8", "qcdq")])
def test_dump(
    recipe: str, form: str, statistics: Statistics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its tensors, by the names of its points; the hidden state is what the model gives out."""
    rnnqc.lower(model(), recipe, form=form, stats=statistics).save(tmp_path / "m.onnx")
    given = feeds(TIME, seed=14)
    np.savez(tmp_path / "in.npz", **given)  # type: ignore[arg-type]
    result = in_process(capfd, "dump", tmp_path / "m.onnx", "-i", tmp_path / "in.npz", "-o", tmp_path / "dump")
    assert result.code == 0, result.err
    with np.load(tmp_path / "dump" / "layer.forward.npz") as held:
        # Beyond basic optimizations onnxruntime rounds in its own way in form qcdq.
        expected = run(session(onnx.load(tmp_path / "m.onnx"), STOCK, "ORT_ENABLE_BASIC"), given)["Y"][:, 0]
        np.testing.assert_array_equal(held["hidden.value"] + np.float32(0), expected + np.float32(0))
        assert {"forget_gate.activation", "reset.hidden", "hidden_state.kept"} <= set(held.files)
