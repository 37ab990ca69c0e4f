"""The instruments.

What these would catch: a wrong pass that is not noticed, a reproducer that does not load, a `modified` that is
believed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rnnqc
from rnnqc.cells.forms import FORMS
from rnnqc.errors import InternalError, NumericsError, UsageError
from rnnqc.evaluation.numerics import Bitwise, Close
from rnnqc.ir import Constant, Model
from rnnqc.passes import (
    Canonicalize,
    Cleanup,
    DecomposeLstm,
    DumpAfterChange,
    FuseQuantLstmCell,
    Pass,
    PassInfo,
    PassManager,
    PassResult,
    Timing,
    VerifyModified,
    VerifyNumerics,
)
from tests.generate.layer_specs import Op
from tests.generate.layers import RecurrentCase, stacked_model
from tests.generate.strategies import lstm_cases
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import CASES, before
from tests.runs.commands import in_process
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.other_types import retyped
from tests.subjects.protos import parse


class Liar(Pass):
    """Says the opposite of what it does."""

    info = PassInfo("liar", "lie", Bitwise())

    def __init__(self, changes: bool) -> None:
        self.changes = changes

    def run(self, model: Model) -> PassResult:
        if self.changes:
            model.graph.nodes[0].name += "_renamed"
        return PassResult(not self.changes)


class WrongBias(Pass):
    """Changes the bias of a layer by a quarter."""

    info = PassInfo("wrong-bias", "spoil a bias", Close(1e-3))

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, model: Model) -> PassResult:
        held = model.find(self.name)
        assert isinstance(held, Constant)
        held.values = np.asarray(held.values) + np.float32(0.25)
        return PassResult(True)


@pytest.mark.parametrize("changes", [True, False])
def test_modified_that_is_wrong(changes: bool) -> None:
    manager = PassManager([Liar(changes)], [VerifyModified()])
    with pytest.raises(InternalError, match=rf"'liar' says modified = {not changes}; the model changed: {changes}"):
        manager.run(Model.load(RecurrentCase().model()))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("form", "unroll", "cases"),
    [
        ("fused", False, CASES[::3]), ("fused", False, CASES), ("integer", True, CASES), ("integer", False, CASES[::3]),
        ("qcdq", False, CASES[1::3]), ("qcdq", True, CASES[2::3]),
    ],
    ids=["fused", "fused, all", "integer, unrolled", "integer", "qcdq", "qcdq, unrolled"],
)  # fmt: skip
def test_modified_is_exact_in_every_lowering(form: str, unroll: bool, cases: Sequence[RecurrentCase]) -> None:
    """With --slow every pass on every layer: passes of the other forms are among those of the two with all layers."""
    for case in cases:
        dims = case.dims if unroll else {}
        rnnqc.lower(case.model(), form=form, unroll=unroll, dims=dims, instruments=[VerifyModified()])


@settings(max_examples=settings().max_examples // 5)
@given(lstm_cases(layouts=(0, 0, 1), weights="initializer", opsets=(9, 22)), st.sampled_from(FORMS), st.booleans())
def test_modified_and_numerics_of_any_layer(case: RecurrentCase, form: str, unroll: bool) -> None:
    """Every pass changes what it says, by as much as it says."""
    # These are wrong: see test_fold_scales.py, test_cell_gates_of_every_kind.
    assume(case.activations is None or not {"HardSigmoid", "Softsign"} & {a.name for a in case.activations[1::3]})
    unroll = unroll and form != "fused"
    dims = case.dims if unroll else {}
    lowered = rnnqc.lower(
        case.model(), form=form, unroll=unroll, dims=dims, verify=True, instruments=[VerifyModified()]
    )
    assert {name for name, _ in lowered.report.checks} >= {"decompose-lstm", "insert-qcdq"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["*.bits=none"]),
        ["*.weight.bits=none"],
        ["*.weight.bits=12"],
        ["*.activation.bits=none"],
        ["*.input.chain=false"],
    ],
)
def test_modified_is_exact_with_other_recipes(overrides: list[str]) -> None:
    for model in (RecurrentCase().model(), stacked_model([RecurrentCase(), RecurrentCase(I=4)])):
        rnnqc.lower(model, overrides=overrides, instruments=[VerifyModified()])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case",
    [
        RecurrentCase(T=8, B=1, I=10, H=3, direction="reverse", bias=False, weights="computed", opset=20, seed=334),
        RecurrentCase(B=1, I=1, H=3, direction="reverse", bias=False, opset=7, seed=10),
    ],
    ids=["computed weights", "weights that IR 3 lists as inputs"],
)
def test_no_false_alarm_about_canonicalize(case: RecurrentCase) -> None:
    rnnqc.lower(case.model(), verify=True)


@pytest.mark.few(1)
@in_turn(op=["LSTM", "GRU", "RNN"], dtype=["float32", "float64", "float64", "float16"], layout=[1, 0, 1, 1])
def test_layers_that_onnxruntime_refuses_are_compared(op: Op, dtype: str, layout: int) -> None:
    """Would catch a false alarm where only one side of a pass runs, and passes that nothing was compared around."""
    lowered = rnnqc.lower(retyped(RecurrentCase(op=op, layout=layout).model(), dtype), verify=True)
    assert len(lowered.report.checks) > 3
    assert not [c for c in lowered.report.checks if "not compared" in c[1]]


def test_timing() -> None:
    timing = Timing()
    PassManager([Canonicalize(), Cleanup()], [timing]).run(Model.load(RecurrentCase().model()))
    assert [name for name, _ in timing.seconds] == ["canonicalize", "cleanup"]


def test_dump_after_change(tmp_path: Path) -> None:
    case = RecurrentCase()
    PassManager([Canonicalize(), Cleanup(), DecomposeLstm()], [DumpAfterChange(tmp_path / "dump")]).run(
        Model.load(case.model())
    )
    files = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert files == ["01_canonicalize.onnx", "03_decompose-lstm.onnx"]
    for name in files:
        run(plain_session(tmp_path / "dump" / name), case.feeds())
    assert "LSTM" not in {n.op_type for n in onnx.load(tmp_path / "dump" / files[1]).graph.node}


def test_dump_of_nothing(tmp_path: Path) -> None:
    PassManager([Cleanup()], [DumpAfterChange(tmp_path / "dump")]).run(Model.load(RecurrentCase().model()))
    assert not (tmp_path / "dump").exists()


def test_numerics_of_a_right_pass() -> None:
    case = RecurrentCase()
    verifier = VerifyNumerics([case.feeds(), case.replace(seed=1).feeds()])
    PassManager([Canonicalize(), DecomposeLstm()], [verifier]).run(Model.load(case.model()))
    assert [name for name, _ in verifier.checks] == ["canonicalize"] * 6 + ["decompose-lstm"] * 6
    assert all("max abs difference" in text or "bit-exact" in text for _, text in verifier.checks)


def test_a_wrong_pass_is_found_and_can_be_reproduced(tmp_path: Path) -> None:
    layers = [RecurrentCase(), RecurrentCase(I=4, seed=1), RecurrentCase(I=4, seed=2)]
    proto = stacked_model(layers)
    feeds = layers[0].feeds()
    verifier = VerifyNumerics([feeds], tmp_path / "reproducer")
    with pytest.raises(NumericsError) as caught:
        PassManager([WrongBias("B1")], [verifier]).run(Model.load(proto))
    message = str(caught.value)
    assert "Pass 'wrong-bias' changed output " in message
    assert "declared 0.001" in message
    assert "The first value that diverges is 'Y1'" in message, "the layer whose bias was spoilt, not the last one"
    folder = tmp_path / "reproducer"
    assert f"rnnqc verify {folder / 'before.onnx'} {folder / 'after.onnx'} --data {folder / 'feeds.npz'}" in message
    with np.load(folder / "feeds.npz") as data:
        assert_same_bits(feeds, dict(data), "feeds")
        results = [run(plain_session(folder / f"{n}.onnx"), dict(data)) for n in ("before", "after")]
    assert np.abs(results[0]["Y"] - results[1]["Y"]).max() > 1e-3
    report = json.loads((folder / "report.json").read_text())
    assert report["pass"] == "wrong-bias"
    assert report["output"] in results[0]
    assert report["first_divergence"]["value"] == "Y1" and report["declared"] == str(Close(1e-3))


def test_a_wrong_pass_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    case = RecurrentCase()
    with pytest.raises(NumericsError, match=r"'wrong-bias' changed output 'Y'.*first value that diverges is 'Y'"):
        PassManager([WrongBias("B")], [VerifyNumerics([case.feeds()])]).run(Model.load(case.model()))
    assert list(tmp_path.iterdir()) == []


class NewShape(Pass):
    """Removes an output."""

    info = PassInfo("new-shape", "change an output's type", Bitwise())

    def run(self, model: Model) -> PassResult:
        del model.graph.outputs[0]
        return PassResult(True)


def test_a_pass_that_loses_an_output() -> None:
    case = RecurrentCase()
    with pytest.raises(NumericsError, match="'Y'"):
        PassManager([NewShape()], [VerifyNumerics([case.feeds()])]).run(Model.load(case.model()))


class NoSuchOperator(Pass):
    """Makes a model that onnxruntime refuses."""

    info = PassInfo("no-such-operator", "break the model", Bitwise())

    def run(self, model: Model) -> PassResult:
        model.graph.nodes[0].op = "NoSuchOperator"
        return PassResult(True)


def test_a_pass_that_breaks_the_model(tmp_path: Path) -> None:
    case = RecurrentCase()
    with pytest.raises(NumericsError, match=r"'no-such-operator'.*NoSuchOperator"):
        PassManager([NoSuchOperator()], [VerifyNumerics([case.feeds()], tmp_path / "r")]).run(Model.load(case.model()))
    assert {f.name for f in (tmp_path / "r").iterdir()} == {"before.onnx", "after.onnx", "feeds.npz", "report.json"}


def test_a_model_that_onnxruntime_does_not_run() -> None:
    case = RecurrentCase(layout=1)
    verifier = VerifyNumerics([case.feeds()])
    PassManager([Canonicalize(), DecomposeLstm()], [verifier]).run(Model.load(case.model()))
    name, text = verifier.checks[0]
    assert name == "canonicalize"
    assert text.startswith("not compared: the model before it does not run: onnxruntime ")
    assert "layout_ == 0 was false" in text
    assert not text.endswith(".")
    assert [n for n, _ in verifier.checks[1:]] == ["decompose-lstm"] * 3


class Rounding(Pass):
    """Rounds the index of a table inside the loop of a fused cell's function down, where it should be to nearest."""

    info = PassInfo("rounding", "spoil a value in the function of a cell", Bitwise())

    def run(self, model: Model) -> PassResult:
        proto = model.proto
        blocks: list[onnx.GraphProto | onnx.FunctionProto] = [*proto.functions]
        while blocks:
            for node in blocks.pop().node:
                blocks += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
                if node.op_type == "Round" and "hidden.squashed" in node.output[0]:
                    node.op_type = "Floor"
        wrong = Model.load(proto)
        model.__dict__.update(wrong.__dict__)
        return PassResult(True)


def test_a_value_in_the_loop_of_a_function_is_named_and_the_command_reproduces_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The printed command works when it is pasted, from a folder whose name has to be quoted."""
    case = RecurrentCase()
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    with pytest.raises(NumericsError):
        PassManager([WrongBias("B")], [VerifyNumerics([case.feeds()], folder)]).run(Model.load(case.model()))
    (folder / "mine.txt").write_text("kept")
    verifier = VerifyNumerics([case.feeds()], folder)
    assert [f.name for f in folder.iterdir()] == ["mine.txt"], "nothing of an earlier run is left"
    fused = before("fuse-quant-lstm-cell", case.model())
    FuseQuantLstmCell()(fused)
    with pytest.raises(NumericsError) as caught:
        PassManager([Rounding()], [verifier]).run(fused)
    message = str(caught.value)
    value = "the_lstm.forward/hidden.squashed.rounded"
    assert f"diverges is '{value}' in Scan " in message and " at step 0: " in message
    command = shlex.split(message.split("Reproducer: ")[1])
    result = in_process(capfd, *command[1:])
    assert command[0] == "rnnqc" and result.code == 1, result.text
    assert "--min-equal: output 'Y' is equal in" in result.err
    report = json.loads((folder / "report.json").read_text())
    assert report["pass"] == "rounding" and report["first_divergence"]["step"] == 0
    assert {f.name for f in folder.iterdir()} == {"mine.txt", "before.onnx", "after.onnx", "feeds.npz", "report.json"}


def test_nothing_of_an_earlier_failure_is_left(tmp_path: Path) -> None:
    case = RecurrentCase()
    folder = tmp_path / "r"
    with pytest.raises(NumericsError):
        PassManager([WrongBias("B")], [VerifyNumerics([case.feeds()], folder)]).run(Model.load(case.model()))
    assert (folder / "report.json").exists()
    rnnqc.lower(case.model(), "fp16", reproducer=folder)
    assert folder.exists(), "not asked to verify: left alone"
    rnnqc.lower(case.model(), "fp16", verify=True, reproducer=folder)
    assert not folder.exists()


def test_an_empty_folder_of_the_user_stays(tmp_path: Path) -> None:
    case = RecurrentCase()
    with pytest.raises(NumericsError):
        PassManager([WrongBias("B")], [VerifyNumerics([case.feeds()], tmp_path)]).run(Model.load(case.model()))
    rnnqc.lower(case.model(), "fp16", verify=True, reproducer=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["before.onnx", "feeds.npz", "report.json"])
def test_files_of_the_user_are_not_taken_for_a_reproducer(name: str, tmp_path: Path) -> None:
    """A folder that merely has files of these names is refused, before and after it has been a reproducer's."""
    case = RecurrentCase()
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(UsageError, match=rf"{name} was not written by rnnqc.*choose another folder"):
        rnnqc.lower(case.model(), verify=True, reproducer=tmp_path)
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [(name, b"{}")]
    (tmp_path / name).unlink()
    with pytest.raises(NumericsError):
        PassManager([WrongBias("B")], [VerifyNumerics([case.feeds()], tmp_path)]).run(Model.load(case.model()))
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(UsageError, match="was not written by rnnqc"):
        rnnqc.lower(case.model(), verify=True, reproducer=tmp_path)
    assert (tmp_path / name).read_bytes() == b"{}" and len(list(tmp_path.iterdir())) == 4


def test_a_reproducer_that_is_read_is_not_removed(tmp_path: Path) -> None:
    case, folder = RecurrentCase(), tmp_path / "r"
    with pytest.raises(NumericsError):
        PassManager([WrongBias("B")], [VerifyNumerics([case.feeds()], folder)]).run(Model.load(case.model()))
    for source in (folder, folder / "feeds.npz"):
        with pytest.raises(UsageError, match="is an input, and would be removed"):
            rnnqc.lower(case.model(), calibration=source, verify=True, reproducer=folder)
    assert len(list(folder.iterdir())) == 4


class OtherRounding(Pass):
    """Changes a constant by some units in the last place."""

    info = PassInfo("other-rounding", "round otherwise", Close(1e-6))

    def __init__(self, units: int) -> None:
        self.units = units

    def run(self, model: Model) -> PassResult:
        held = model.find("table")
        assert isinstance(held, Constant)
        array = np.asarray(held.values)
        held.values = array + self.units * np.spacing(array) * np.resize([1, -1], array.shape).astype(np.float32)
        return PassResult(True)


def tokens_model(factor: float) -> onnx.ModelProto:
    """Tokens to logits of about `factor`, of differences of nearly equal numbers: roundings are amplified."""
    rng = np.random.default_rng(0)
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (int64[T] tokens) => (float[T, C] logits) '
        "{ e = Gather(table, tokens) m = ReduceMean<axes = [1], keepdims = 1>(e) d = Sub(e, m) "
        "logits = Mul(d, factor) }"
    )
    table = (100 + 0.1 * rng.normal(size=(50, 4))).astype(np.float32)
    return parse(text, table=table, factor=np.float32(factor))


def test_roundings_of_a_model_of_tokens() -> None:
    """There are no floats among its inputs whose last bits could be changed: those of its constants are."""
    proto = tokens_model(10.0)
    feeds = [{"tokens": np.arange(20)}]
    verifier = VerifyNumerics(feeds)
    PassManager([OtherRounding(1)], [verifier]).run(Model.load(proto))
    ((_, text),) = verifier.checks
    assert "other last bits of the constants alone make" in text
    with pytest.raises(NumericsError, match=r"'other-rounding' changed output 'logits'"):
        PassManager([OtherRounding(1000)], [VerifyNumerics(feeds)]).run(Model.load(proto))
