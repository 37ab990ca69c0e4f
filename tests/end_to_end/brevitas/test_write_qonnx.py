"""Cells written as Brevitas exports them, and read again: the bits of the direct lowering.

What these would catch: a gate, a scale or an attribute in another place than Brevitas has it, a value that is rounded
once more on the way, a direct lowering that computes in another order or precision than the cell it is written as.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.errors import CompileError, UsageError
from rnnqc.passes import VerifyModified
from rnnqc.passes.brevitas.write_qonnx import DOMAIN
from tests.generate.layers import RecurrentCase, stacked_model
from tests.generate.strategies import lstm_cases
from tests.runs.commands import in_process
from tests.runs.lowered import NATIVE, STOCK, assert_all_lowered, run_both, session
from tests.runs.sessions import assert_same_bits, run, save_arrays
from tests.subjects.protos import parse

RECIPE = "brevitas-int8"
Array = npt.NDArray[Any]
NODE_INPUTS = 48

STATES = {"initial_h": True, "initial_c": True}
CASES = {
    "one direction": RecurrentCase(T=9, B=3, I=11, H=13),
    "reverse": RecurrentCase(T=9, B=3, I=11, H=13, direction="reverse"),
    "two directions": RecurrentCase(T=9, B=3, I=11, H=13, direction="bidirectional"),
    "initial states": RecurrentCase(T=9, B=3, I=11, H=13, direction="bidirectional", **STATES),  # type: ignore[arg-type]
    "initial hidden state alone": RecurrentCase(T=9, B=3, I=11, H=13, initial_h=True),
    "coupled gates": RecurrentCase(T=9, B=3, I=11, H=13, input_forget=True, **STATES),  # type: ignore[arg-type]
    "no bias": RecurrentCase(T=9, B=3, I=11, H=13, bias=False),
    "batch first": RecurrentCase(T=9, B=3, I=11, H=13, layout=1, direction="bidirectional"),
    "dynamic": RecurrentCase(T=9, B=3, I=11, H=13, dynamic_time=True, dynamic_batch=True),
    "one output": RecurrentCase(T=9, B=3, I=11, H=13, outputs=("Y_c",)),
    "in a branch": RecurrentCase(T=9, B=3, I=11, H=13, placement="if"),
    "in a loop": RecurrentCase(T=4, B=2, I=5, H=6, placement="loop", **STATES),  # type: ignore[arg-type]
    "large values": RecurrentCase(T=9, B=3, I=11, H=13, gain=6.0),
}
# Formats beside those of the recipe that Brevitas' cell has.
VARIATIONS: dict[str, Sequence[str]] = {
    "powers of two": ["*.pow2=true"],
    "weights per channel": ["*.weight.granularity=per-channel"],
    "weights per tensor": ["*.weight.granularity=per-tensor"],
    "binary weights": ["*.weight.bits=1", "*.weight.narrow=false"],
    "ternary weights": ["*.weight.bits=2"],
    "12-bit weights": ["*.weight.bits=12"],
    "asymmetric weights": ["*.weight.symmetric=false", "*.weight.narrow=false"],
    "float bias": ["*.bias.bits=none"],
    "4 bits": ["*.acc.bits=4", "*.activation.bits=4"],
    "16-bit accumulators": ["*.acc.bits=16"],
    "16-bit cell states": ["re:.*\\.cell_state(\\.kept|\\.added)?.bits=16"],
    "16-bit states": ["*.input.bits=16", "*.hidden.bits=16"],
    "floor": ["*.acc.rounding=floor", "re:.*\\.cell_state(\\.kept|\\.added)?.rounding=floor"],
    "ceil": ["*.acc.rounding=ceil", "*.activation.rounding=ceil"],
    "toward zero": ["*.acc.rounding=toward_zero", "*.input.rounding=toward_zero", "*.hidden.rounding=toward_zero"],
    "half to even, up": ["*.acc.rounding=half_even_up", "re:.*\\.cell_state(\\.kept|\\.added)?.rounding=half_even_up"],
    "half away": ["*.acc.rounding=half_away"],
}


def round_trip(
    model: onnx.ModelProto | Path,
    calibration: Sequence[Mapping[str, Array]],
    feeds: Mapping[str, Array],
    **options: Any,
) -> tuple[rnnqc.Lowered, onnx.ModelProto]:
    """Lowers directly, and over the form qonnx; asserts equal bits. Returns the former and the written model."""
    direct = rnnqc.lower(model, RECIPE, calibration=list(calibration), **options)
    written = rnnqc.lower(model, RECIPE, form="qonnx", calibration=list(calibration), **options)
    assert_all_lowered(written, "written")
    assert {e.form for e in written.report.entries} == {"qonnx"}
    assert not written.model.cells
    onnx.checker.check_model(written.proto, full_check=True)
    assert ("qonnx.custom_op.general", 2) in {(o.domain, o.version) for o in written.proto.opset_import}
    again = onnx.ModelProto.FromString(written.proto.SerializeToString())
    read = rnnqc.lower(again)
    assert read.report.recipe != RECIPE
    assert_all_lowered(read, "read again")
    expected = run_both(direct.proto, feeds, "the direct lowering")
    assert any(len(np.unique(v)) > 8 for v in expected.values()), "a trivial case"
    assert_same_bits(expected, run_both(read.proto, feeds), "read again, against the direct lowering")
    return direct, written.proto


def written_alone(case: RecurrentCase, **options: Any) -> onnx.ModelProto:
    """The form qonnx of a case, without reading it again."""
    return rnnqc.lower(case.model(), RECIPE, form="qonnx", stats=statistics_of(case), **options).proto


def cells(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type == "QuantLSTMCell"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
    case = CASES[name]
    calibration = [case.replace(seed=s).feeds() for s in range(2)]
    if case.placement == "if":
        calibration = [{**f, "condition": np.array(c)} for f in calibration for c in (True, False)]
    round_trip(case.model(), calibration, case.feeds())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", VARIATIONS)
def test_other_formats(name: str) -> None:
    case = RecurrentCase(T=9, B=3, I=11, H=13, initial_h=True, initial_c=True, gain=2.0)
    direct, _ = round_trip(
        case.model(), [case.replace(seed=s).feeds() for s in range(2)], case.feeds(), overrides=VARIATIONS[name]
    )
    (cell,) = direct.model.cells.values()
    assert cell.numbers.arithmetic == "grid32"


@pytest.mark.few(1)
@pytest.mark.parametrize("overrides", [[], VARIATIONS["16-bit states"], VARIATIONS["toward zero"]])
def test_layers(overrides: Sequence[str]) -> None:
    """Two layers of two directions: the second one has no quantizer of its own in front."""
    layers = [
        RecurrentCase(T=7, B=2, I=5, H=9, direction="bidirectional"),
        RecurrentCase(T=7, B=2, I=18, H=6, direction="bidirectional", seed=1),
    ]
    feeds = [layers[0].replace(seed=s).feeds() for s in range(3)]
    _, written = round_trip(stacked_model(layers), feeds[:2], feeds[2], overrides=overrides)
    quantizers = {o: n for n in written.graph.node if n.op_type == "Quant" for o in n.output}
    assert [n.input[0] in quantizers for n in cells(written)] == [True, True, False, False]
    assert [quantizers[n.input[0]].input[0] for n in cells(written)[:2]] == ["X", "X"]


def test_the_node_is_brevitas_own(shared: Callable[[str], Path]) -> None:
    """Names, types and order of everything are those of an export; so is what stands in front of each input."""
    written = written_alone(CASES["one direction"])
    (own,), exported = cells(written), onnx.load(shared("brevitas/p01_default_8b/model.onnx"))
    (theirs,) = cells(exported)
    assert (own.domain, len(own.input), len(own.output)) == (theirs.domain, NODE_INPUTS, len(theirs.output))
    assert [(a.name, a.type) for a in sorted(own.attribute, key=lambda a: a.name)] == [
        (a.name, a.type) for a in sorted(theirs.attribute, key=lambda a: a.name)
    ]
    described = []
    for model, node in ((written, own), (exported, theirs)):
        made = {o: n for n in model.graph.node for o in n.output}
        stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        constants = {
            n.output[0]: onnx.numpy_helper.to_array(n.attribute[0].t)
            for n in model.graph.node
            if n.op_type == "Constant"
        }
        lines: list[Any] = []
        for name in node.input:
            if name in made and made[name].op_type != "Constant":
                quant = made[name]
                parameters = [{**stored, **constants}[v] for v in quant.input[1:]]
                attributes = sorted((a.name, onnx.helper.get_attribute_value(a)) for a in quant.attribute)
                lines.append((quant.op_type, quant.domain, [p.shape for p in parameters], str(attributes)))
                lines.append([float(p) for p in parameters[1:]])
            else:
                array = {**stored, **constants}[name]
                lines.append((array.dtype, array.ndim))
        described.append(lines)
    assert described[0] == described[1]


def test_names_of_roundings() -> None:
    """A Quant node says what QONNX knows; the cell says what Brevitas writes."""
    case = CASES["one direction"]
    written = written_alone(case, overrides=VARIATIONS["toward zero"])
    (cell,) = cells(written)
    of_cell = {a.name: a.s for a in cell.attribute}
    assert of_cell["output_rounding_mode"] == of_cell["input_acc_rounding_mode"] == b"ROUND_TO_ZERO"
    (quant,) = [n for n in written.graph.node if n.output[0] == cell.input[0]]
    assert b"DOWN" in [a.s for a in quant.attribute]


@functools.cache
def statistics_of(case: RecurrentCase) -> rnnqc.Statistics:
    return calibrate(case.model(), [case.feeds()])


def test_a_refusal_names_the_cell_and_a_recipe_that_fits() -> None:
    """Every misfit of its own: tests/passes/brevitas/test_write_qonnx.py."""
    case = RecurrentCase(T=5, B=2, I=3, H=4)
    with pytest.raises(UsageError) as raised:
        rnnqc.lower(case.model(), "int8", form="qonnx", stats=statistics_of(case))
    for part in ("the_lstm.forward", "input", "dynamic-row", 'recipe="brevitas-int8", calibration=DATA', "hidden"):
        assert part in str(raised.value)


def test_only_lstms_have_such_a_cell() -> None:
    """A float model must not be returned instead of the requested form."""
    for op in ("GRU", "RNN"):
        case = RecurrentCase(op=op, T=5, B=2, I=3, H=4)
        with pytest.raises(CompileError, match=f'no cell of form qonnx was made: Operator "{op}".*LSTM alone'):
            rnnqc.lower(case.model(), RECIPE, form="qonnx", calibration=[case.feeds()])


def test_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES["one direction"]
    source, target, data = tmp_path / "float.onnx", tmp_path / "written.onnx", tmp_path / "data.npz"
    onnx.save(case.model(), source)
    np.savez(data, **{k: v[np.newaxis] for k, v in case.feeds().items()})
    common = ("lower", source, "-o", target, "--form", "qonnx")
    failed = in_process(capfd, *common)
    assert failed.code == 2
    assert "brevitas-int8" in failed.err
    assert not target.exists()
    unrolled = in_process(capfd, *common, "--unroll", "--recipe", RECIPE, "--calibration", data)
    assert unrolled.code == 2
    made = in_process(capfd, *common, "--recipe", RECIPE, "--calibration", data, "--strict")
    assert made.code == 0, made.text
    assert "qonnx" in made.out
    assert len(cells(onnx.load(target))) == 1
    inspected = in_process(capfd, "inspect", target)
    assert "QuantLSTMCell" in inspected.out
    save_arrays(tmp_path / "feeds.npz", case.feeds())
    ran = in_process(capfd, "run", target, "-i", tmp_path / "feeds.npz", "-o", tmp_path / "out.npz")
    assert ran.code == 0, ran.text
    verified = in_process(capfd, "verify", source, target, "--data", tmp_path / "feeds.npz", "--min-sqnr", "15")
    assert verified.code == 0, verified.text
    direct = rnnqc.lower(source, RECIPE, calibration=str(data))
    with np.load(tmp_path / "out.npz") as outputs:
        assert_same_bits(run(session(direct.proto, STOCK), case.feeds()), dict(outputs), "run as it was written")


def test_a_model_without_such_a_cell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Would catch a file of floats as the result of a form that only LSTM has."""
    onnx.save(RecurrentCase(op="GRU").model(), tmp_path / "gru.onnx")
    onnx.save(
        parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'),
        tmp_path / "none.onnx",
    )
    for name, said in (("gru", "GRU"), ("none", "no recurrent layer")):
        common = ("lower", tmp_path / f"{name}.onnx", "-o", tmp_path / "out.onnx", "--form", "qonnx")
        failed = in_process(capfd, *common, "--recipe", RECIPE)
        assert failed.code == 2
        assert said in failed.err and "--form qonnx: no cell of this form was made" in failed.err
        assert not (tmp_path / "out.onnx").exists()
    assert in_process(capfd, "lower", tmp_path / "gru.onnx", *common[2:], "--recipe", RECIPE, "--strict").code == 3


@pytest.mark.slow
def test_two_lowerings_write_the_same_bytes() -> None:
    case = CASES["two directions"]
    first, second = (
        rnnqc.lower(case.model(), RECIPE, form="qonnx", calibration=[case.feeds()]).proto.SerializeToString(
            deterministic=True
        )
        for _ in range(2)
    )
    assert first == second


@pytest.mark.slow
def test_published_model(shared: Callable[[str], Path]) -> None:
    """DTLN's first network: two layers that get their states from outside, and dense layers around."""
    path = shared("models/dtln/model_1.onnx")
    model = onnx.load(path)
    shapes = {i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    rng = np.random.default_rng(5)
    feeds = [{n: np.abs(rng.normal(0, 1, s)).astype(np.float32) for n, s in shapes.items()} for _ in range(4)]
    _, written = round_trip(path, feeds[:3], feeds[3])
    assert len([n for n in written.graph.node if n.op_type == "QuantLSTMCell"]) == 2
    assert {n.domain for n in written.graph.node} == {"", DOMAIN}


def test_other_layers_stay_as_they_are() -> None:
    """A GRU beside the LSTM has no cell of Brevitas; it stays float, and the report says so."""
    case = RecurrentCase(T=5, B=2, I=3, H=4)
    model = case.model()
    rng = np.random.default_rng(1)
    for name, shape in {"gru_W": (1, 15, 3), "gru_R": (1, 15, 5)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name))
    gru = onnx.helper.make_node("GRU", ["X", "gru_W", "gru_R"], ["gru_Y"], "the_gru", hidden_size=5)
    model.graph.node.append(gru)
    model.graph.output.append(onnx.helper.make_tensor_value_info("gru_Y", 1, [5, 1, 2, 5]))
    written = rnnqc.lower(model, RECIPE, form="qonnx", calibration=[case.feeds()])
    assert {e.node: e.status for e in written.report.entries} == {"the_lstm": "lowered", "the_gru": "float"}
    (left,) = written.report.float_entries
    assert "form" in left.reason
    assert "GRU" in left.found
    read = rnnqc.lower(written.proto)
    got, expected = (run(session(m, STOCK), case.feeds())["gru_Y"] for m in (read.proto, model))
    assert np.array_equal(got, expected)


@settings(max_examples=max(3, settings().max_examples // 3))
@given(
    lstm_cases(
        layouts=(0, 0, 1), placements=("main", "main", "if", "loop", "scan", "function"),
        lens=None, clip=None, peepholes=False, activations=None,
    )
)  # fmt: skip
def test_any_layer_comes_back(case: RecurrentCase) -> None:
    model, feeds = case.model(), case.feeds()
    seen = [feeds, *(case.feeds(condition=c) for c in (True, False))]
    statistics = calibrate(model, seen)
    direct = rnnqc.lower(model, RECIPE, stats=statistics)
    written = rnnqc.lower(model, RECIPE, form="qonnx", stats=statistics, instruments=[VerifyModified()])
    onnx.checker.check_model(written.proto)
    assert_all_lowered(written, "written")
    read = rnnqc.lower(written.proto)
    assert_all_lowered(read, "read again")
    expected = run(session(direct.proto, NATIVE), feeds)
    assert_same_bits(expected, run(session(read.proto, STOCK), feeds), "read again against the direct lowering")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["initial states", "coupled gates", "reverse", "large values"])
def test_form_qcdq_is_the_same_cell(name: str) -> None:
    """With powers of two the order of sums does not matter: the float operations are those of the integer cell."""
    case = CASES[name]
    statistics = calibrate(case.model(), [case.replace(seed=s).feeds() for s in range(2)])
    fused, qcdq = (
        rnnqc.lower(case.model(), RECIPE, form=form, stats=statistics, overrides=["*.pow2=true"])
        for form in ("fused", "qcdq")
    )
    expected = run(session(fused.proto, STOCK), case.feeds())
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        got = run(session(qcdq.proto, STOCK, level), case.feeds())
        for output, wanted in expected.items():
            assert np.array_equal(got[output], wanted), f"{output}, {level}"


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [21, 17])
def test_form_qcdq_written_out(opset: int) -> None:
    """onnxruntime 1.31 fails on quantizers of signed states from operator set 21 on, where steps are written out."""
    case = RecurrentCase(T=4, B=2, I=5, H=6, opset=opset, initial_h=True, initial_c=True)
    written = rnnqc.lower(case.model(), RECIPE, form="qcdq", unroll=True, calibration=[case.feeds()])
    whole = rnnqc.lower(case.model(), RECIPE, form="qcdq", calibration=[case.feeds()])
    expected, got = (run(session(m.proto, STOCK), case.feeds()) for m in (whole, written))
    assert_same_bits(expected, got, "written out")
