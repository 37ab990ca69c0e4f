"""The default passes and `lower`.

What these would catch: an option that does nothing, a report that does not say what happened, two runs that differ, a
caller's model that is changed.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError, UsageError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.ir import DOMAIN, Model
from rnnqc.lowering import stages
from rnnqc.lowering.lower import lower
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.reports.report import Lowered
from rnnqc.lowering.verification_feeds import verification_feeds
from rnnqc.measure.feeds import FeedGenerator
from rnnqc.passes import Instrument, Pass, QuantizeEmbeddings
from rnnqc.passes.base import PassResult
from rnnqc.passes.pipeline import default_passes, last_passes
from rnnqc.recipes.recipe import load_recipe
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import nodes_of, plain_op
from tests.runs.commands import in_process
from tests.runs.lowered import all_nodes
from tests.runs.sessions import save_arrays
from tests.subjects.protos import differences, in_order, parse

CASE = RecurrentCase()


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ({}, "fused"),
        ({"unroll": True}, "integer"),
        ({"form": "qcdq"}, "qcdq"),
        ({"form": "qcdq", "unroll": True}, "qcdq"),
    ],
)
def test_resolved_form(arguments: dict[str, object], form: str) -> None:
    assert LowerOptions(**arguments).resolved_form == form  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"recipe": "no-such-recipe"},
        {"recipe": "int8-static", "overrides": ["*.input.nothing=1"]},
        {"recipe": "int8-static", "form": "nothing"},
        {"recipe": "weight-only-int8", "form": "fused"},
    ],
)
def test_options_are_checked_before_data_is_taken(arguments: dict[str, Any]) -> None:
    taken: list[int] = []

    def data() -> Iterator[dict[str, Any]]:
        taken.append(1)
        yield CASE.feeds()

    with pytest.raises(UsageError):
        lower(CASE.model(), calibration=data(), **arguments)
    assert not taken


def test_packed_weights_that_layers_share_are_stored_once() -> None:
    """Would catch a missing cleanup after fusing, where each node packs its weights separately."""
    alone, shared = (
        rnnqc.lower(stacked_model([RecurrentCase(I=40, H=40)] * count, shared_weights=True), recipe="w4a8").proto
        for count in (1, 3)
    )
    sizes = [sorted(tuple(t.dims) for t in p.graph.initializer if t.name.endswith(".packed")) for p in (alone, shared)]
    assert sizes[0] == sizes[1] != []


def test_forms_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match=r"form 'fast'.*fused, integer, qcdq"):
        lower(CASE.model(), form="fast")
    with pytest.raises(UsageError, match=r'cannot be unrolled.*form="integer" or form="qcdq"'):
        lower(CASE.model(), form="fused", unroll=True)


@pytest.mark.parametrize(
    ("form", "present", "absent"),
    [
        ("fused", {"QuantLSTMCell"}, {"LSTM"}),
        ("integer", {"Scan", "MatMulInteger"}, {"LSTM", "QuantLSTMCell"}),
        ("qcdq", {"Scan", "QuantizeLinear", "DequantizeLinear", "MatMul"}, {"LSTM", "QuantLSTMCell", "MatMulInteger"}),
    ],
)
def test_forms(form: str, present: set[str], absent: set[str]) -> None:
    lowered = lower(CASE.model(), form=form)
    ops = {plain_op(n.op_type) for n in all_nodes(lowered.proto)}
    assert present <= ops
    assert not absent & ops
    (entry,) = lowered.report.entries
    assert (entry.node, entry.op, entry.status, entry.form) == ("the_lstm", "LSTM", "lowered", form)
    assert entry.cells == ["the_lstm.forward"]
    assert 0 < entry.bytes < entry.float_bytes
    assert (lowered.report.recipe, lowered.report.form, lowered.report.source) == ("int8", form, "the model")
    assert lowered.report.bytes == lowered.proto.ByteSize()
    assert lowered.report.float_bytes == CASE.model().ByteSize()
    onnx.checker.check_model(lowered.proto, full_check=True)


def test_same_bytes_and_untouched_input() -> None:
    model = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    before = model.SerializeToString(deterministic=True)
    first, second = (lower(model).proto.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
    assert model.SerializeToString(deterministic=True) == before


def test_instruments_see_every_pass_and_progress_speaks_of_stages() -> None:
    seen: list[str] = []
    told: list[str] = []

    class Watch(Instrument):
        def before_pass(self, pass_: Pass, model: Model) -> None:
            seen.append(pass_.info.name)

    lowered = lower(CASE.model(), instruments=[Watch()], progress=told.append)
    assert seen == [name for name, _ in lowered.report.seconds]
    assert len(told) == len(seen) and [*dict.fromkeys(told)] == [stages.FIND, stages.QUANTIZE, stages.WRITE]
    passes = [*default_passes(load_recipe("int8"), "fused", False), *last_passes("fused")]
    assert seen == [p.info.name for p in passes]
    assert all(seconds >= 0 for _, seconds in lowered.report.seconds)
    told.clear()
    lower(CASE.model(), calibration=[CASE.feeds()] * 2, progress=told.append)
    assert "calibrating, 2 of 2 samples done" in told
    told.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnnqc.calibration.distribute.LONGEST", 1)
        lower(CASE.model(), calibration=[CASE.feeds()] * 3, progress=told.append)
    assert [t.partition(" done")[2][:7] for t in told if t.startswith("calibrating")] == [", about", ", about", ""]
    told.clear()
    lower(CASE.model(), rest="int8", measure=True, verify=True, progress=told.append)
    assert f"{stages.QUANTIZE}, checking every pass" in told and f"{stages.REST}, checking every pass" in told
    assert told[-1].startswith(f"{stages.MEASURE}, ") and f"{stages.MEASURE}, magnitude 1" in told


def test_overrides_reach_the_cells() -> None:
    lowered = lower(CASE.model(), overrides=["*.R.weight.bits=4"])
    points = lowered.model.cells["the_lstm.forward"].points
    assert (points["W.weight"].bits, points["R.weight"].bits) == (8, 4)


def test_override_that_matches_nothing() -> None:
    with pytest.raises(UsageError, match=r"No quantization point matches '\*\.wieght'.*the_lstm\.forward\.W\.weight"):
        lower(CASE.model(), overrides=["*.wieght.bits=4"])


def test_binding_dimensions() -> None:
    case = RecurrentCase(dynamic_time=True)
    with pytest.raises(CompileError, match=r'length of its sequence is not known.*dims={"T": 100}'):
        lower(case.model(), unroll=True)
    lowered = lower(case.model(), unroll=True, dims={"T": 3})
    assert lowered.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    with pytest.raises(CompileError, match=r"No input has a dimension 'S'.*Supported: T"):
        lower(case.model(), dims={"S": 3})
    with pytest.raises(CompileError, match=r'dims={"T": 0}'):
        lower(case.model(), dims={"T": 0})


def test_strict() -> None:
    model = CASE.model()
    lower(model, strict=True)
    model.graph.node[0].input[1] = "X_as_weights"
    model.graph.node.insert(0, onnx.helper.make_node("Transpose", ["W"], ["X_as_weights"], name="t", perm=[0, 1, 2]))
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [1, 16, 3]))
    del model.graph.initializer[next(k for k, t in enumerate(model.graph.initializer) if t.name == "W")]
    (entry,) = lower(model).report.float_entries
    assert (entry.reason, entry.found) == ("W is not constant.", "W is the output of node 't' (Transpose)")
    assert (entry.status, entry.form, entry.bytes) == ("float", "", entry.float_bytes)
    with pytest.raises(CompileError, match=r"stay float: .*\"LSTM\" \(node 'the_lstm'\).*W is not constant"):
        lower(model, strict=True)


def test_measure() -> None:
    lowered = lower(CASE.model(), measure=True)
    assert set(lowered.report.sqnr_db) == {"Y", "Y_h", "Y_c"}
    assert min(lowered.report.sqnr_db.values()) > 25
    assert lower(CASE.model()).report.sqnr_db == {}


def test_a_model_without_recurrence_stays_as_it_is() -> None:
    proto = parse('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [n] y = Neg(x) }')
    lowered = lower(proto)
    assert lowered.report.entries == []
    assert differences(in_order(proto), in_order(lowered.proto)) == []


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    path.write_bytes(RecurrentCase(dynamic_time=True).model().SerializeToString())
    with pytest.raises(CompileError, match=r"dynamic\.onnx: .*length of its sequence"):
        lower(path, unroll=True)


def test_arguments_in_the_wrong_place_are_named() -> None:
    """Data in the place of the recipe, and one text where a list of overrides belongs."""
    with pytest.raises(UsageError, match=r"recipe is a list\..*data is given as calibration="):
        lower(RecurrentCase().model(), [{"X": np.zeros(1)}])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"overrides = '\*\.weight\.bits=4' is one text"):
        lower(RecurrentCase().model(), overrides="*.weight.bits=4")


def test_layers_in_a_row_pass_codes() -> None:
    """The second cell takes the first one's uint8 codes: nothing between them goes back to float."""
    lowered = lower(stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1), RecurrentCase(I=4, H=3, seed=2)]))
    nodes = {
        n.name: n for n in lowered.proto.graph.node if n.domain == DOMAIN and n.op_type.startswith("QuantLSTMCell")
    }
    modes = {k: next((a.s for a in n.attribute if a.name == "x_mode"), b"dynamic_row") for k, n in nodes.items()}
    assert modes == {"layer0.forward": b"dynamic_row", "layer1.forward": b"codes", "layer2.forward": b"codes"}
    makers = {o: n for n in lowered.proto.graph.node for o in n.output if o}
    for k in (1, 2):
        value = nodes[f"layer{k}.forward"].input[0]
        path = []
        while not makers[value].op_type.startswith("QuantLSTMCell"):
            path.append(makers[value].op_type)
            value = makers[value].input[0]
        assert set(path) <= {"Squeeze", "Unsqueeze", "Identity", "Reshape", "Transpose"}
        assert (makers[value].name, list(makers[value].output).index(value)) == (f"layer{k - 1}.forward", 3)
    inferred = onnx.shape_inference.infer_shapes(lowered.proto)
    types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    assert types[nodes["layer0.forward"].output[3]] == onnx.TensorProto.UINT8
    cells = lowered.model.cells
    for before, after in (("layer0.forward", "layer1.forward"), ("layer1.forward", "layer2.forward")):
        for key in ("scale", "zero_point"):
            passed_on = getattr(cells[before].numbers, f"h_{key}")
            assert getattr(cells[after].numbers, f"x_{key}") in (0.0, passed_on)
        assert cells[before].y is None, "the float hidden states are not computed"


def test_rnnqc_lower_is_the_same() -> None:
    assert rnnqc.lower is lower


def test_passes_are_verified_on_calibration_data_with_the_states_of_the_float_model() -> None:
    """Would catch data that is used up by calibration, states that every call starts anew, feeds that are not run."""
    case = RecurrentCase(op="RNN", T=4, initial_h=True)
    state = {"initial_h": "Y_h"}
    calls = [{"X": case.replace(seed=k).feeds()["X"]} for k in range(10)]
    proto = case.model()
    without = lower(proto, verify=True).report.checks
    lowered = lower(proto, calibration=(c for c in calls), state=state, verify=True)
    (_, _, *usual), extreme, left_out = verification_feeds(proto, FeedGenerator(proto), calls, state)
    assert (
        not left_out and len(extreme) == 1 and [id(f["X"]) for f in usual] == [id(calls[k]["X"]) for k in (0, 3, 6, 9)]
    )
    assert not usual[0]["initial_h"].any()
    session = make_session(proto)
    states = {n: np.zeros_like(case.feeds()[n]) for n in state}
    for k, call in enumerate(calls):
        if k in (3, 6, 9):
            assert all(np.array_equal(usual[k // 3][n], states[n]) for n in state)
        results = run_session(session, {**call, **states})
        states = {n: results[o] for n, o in state.items()}
    for name in ("decompose-lstm", "insert-qcdq"):
        counts = [sum(n == name for n, _ in checks) for checks in (without, lowered.report.checks)]
        assert counts[1] == counts[0] + 4 * len(proto.graph.output)


def test_calibration_data_that_passes_cannot_be_verified_on_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Data of another batch size than the one bound: a `verified` that leaves it out has to say so."""
    case = RecurrentCase(op="RNN", T=4, B=2, dynamic_batch=True)
    onnx.save(case.model(), tmp_path / "in.onnx")
    save_arrays(tmp_path / "data.npz", case.feeds())
    command = ("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--calibration", tmp_path / "data.npz")
    checks = lower(case.model(), calibration=[case.feeds()], verify=True, dims={"B": 2}).report.checks
    assert "calibration data" not in {name for name, _ in checks}
    result = in_process(capfd, *command, "--verify", "--dim", "B=3", "--json", tmp_path / "report.json")
    assert result.code == 0, result.text
    assert "not compared on the calibration data, only on generated data: sample 0: array 'X'" in result.err
    [text] = [
        t for name, t in json.loads((tmp_path / "report.json").read_text())["checks"] if name == "calibration data"
    ]
    assert "not compared: " in text and "'X' has shape [4, 2, 3]" in text


def test_an_invalid_result_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Should a pass write operands of two types: exit code 1, no file, where the float model runs."""
    usual = QuantizeEmbeddings.run

    def run(self: QuantizeEmbeddings, model: Model) -> PassResult:
        result = usual(self, model)
        cast = next(n for n in nodes_of(model, "Cast") if n.outputs[0].name.endswith("scale.cast"))
        cast.attrs["to"] = np.float16
        return result

    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[T,1] k) => (float[T,D,B,H] y) {
        x = Gather (table, k)  y = LSTM <hidden_size = 4> (x, W, R)
    }"""
    rng = np.random.default_rng(0)
    shapes = {"table": (300, 8), "W": (1, 16, 8), "R": (1, 16, 4)}
    onnx.save(parse(text, **{n: rng.normal(0, 0.5, s).astype(np.float32) for n, s in shapes.items()}), tmp_path / "m")
    command = ("lower", tmp_path / "m", "-o", tmp_path / "lowered.onnx", "--rest", "int8")
    assert in_process(capfd, *command).code == 0
    (tmp_path / "lowered.onnx").unlink()
    monkeypatch.setattr(QuantizeEmbeddings, "run", run)
    result = in_process(capfd, *command)
    assert result.code == 1
    assert "the lowered model is not valid, and was not written" in result.err
    assert not (tmp_path / "lowered.onnx").exists()


@pytest.mark.parametrize("again", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy], ids=["pickle", "copy"])
def test_what_lower_returns_goes_between_processes(again: Callable[[Lowered], Lowered]) -> None:
    """Would catch: a program that lowers in several processes, and gets an error about messages instead of models."""
    case = RecurrentCase(T=4, dynamic_time=True)
    lowered = rnnqc.lower(case.model(), calibration=[case.feeds()], measure=True)
    for _ in range(2):
        made = again(lowered)
        assert made.proto == lowered.proto and made.model.proto == lowered.proto
        assert list(made.model.cells) == list(lowered.model.cells) and made.model.source == lowered.model.source
        assert made.report == lowered.report and list(made.formats) == list(lowered.formats)
        assert made.statistics is not None and lowered.statistics is not None
        assert made.statistics.text == lowered.statistics.text
        lowered = made
