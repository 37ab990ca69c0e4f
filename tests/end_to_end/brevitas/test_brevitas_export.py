"""Models that Brevitas itself exports, against Brevitas' own PyTorch outputs, bit by bit.

Needs the packages brevitas, onnxoptimizer and torch; skipped without them. What these would catch beyond
test_brevitas.py: anything that Brevitas writes otherwise than the models made by hand there, and arithmetic that the
numpy oracle has wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from tests.laws.parametrize import in_turn
from tests.runs.commands import in_process
from tests.runs.lowered import NATIVE, STOCK, assert_all_lowered, run_both, session
from tests.runs.sessions import run, save_arrays

pytest.importorskip("brevitas", reason="needs brevitas")
pytest.importorskip("onnxoptimizer", reason="needs onnxoptimizer")
torch = pytest.importorskip("torch", reason="needs torch")

from tests.subjects.brevitas.layers import NONE, PARTS, Layer, export, feeds_of, forward, is_far_from_ties, prepared  # noqa: E402

BOTH = {"bidirectional": True}
SHIFTED = {f"{part}_quant": "ShiftedUint8ActPerTensorFloat" for part in ("io", "gate_acc", "tanh", "cell_state")}
POWERS_OF_TWO = {
    **{f"{part}_quant": "Int8ActPerTensorFixedPoint" for part in ("io", "gate_acc", "tanh", "cell_state")},
    "sigmoid_quant": "Uint8ActPerTensorFixedPoint",
    "weight_quant": "Int8WeightPerTensorFixedPoint",
}
WIDTHS = {"io": 7, "gate_acc": 5, "sigmoid": 4, "tanh": 6, "cell_state": 3, "weight": 5}
ROUNDINGS = ("ROUND", "FLOOR", "CEIL", "ROUND_TO_ZERO", "DPU")


def rounding(mode: str) -> dict[str, str]:
    return {f"{part}_float_to_int_impl_type": mode for part in PARTS}


CASES: dict[str, Layer] = {
    "default": Layer(),
    "trained": Layer(qat=6),
    "trained, two bidirectional layers": Layer({**BOTH, "num_layers": 2}, qat=3, hidden=5, length=3, batch=1),
    "untrained": Layer(steps=0, input_scale=0.3),
    "two layers": Layer({"num_layers": 2}, length=5),
    "bidirectional": Layer(BOTH),
    "bidirectional, shared input weights": Layer({**BOTH, "shared_input_hidden_weights": True}),
    "bidirectional, shared input weights, cifg": Layer(
        {**BOTH, "shared_input_hidden_weights": True, "coupled_input_forget_gates": True}
    ),
    "cifg": Layer({"coupled_input_forget_gates": True}),
    "batch first": Layer({"batch_first": True}),
    "no bias": Layer({"bias": False}),
    "bias not quantized": Layer({"bias_quant": None}),
    "8-bit bias": Layer({"bias_quant": "Int8BiasPerTensorFloatInternalScaling"}),
    "16-bit bias": Layer({"bias_quant": "Int16Bias"}),
    "shared weight quantizer": Layer({"shared_intra_layer_weight_quant": True}),
    "shared accumulator quantizer": Layer({"shared_intra_layer_gate_acc_quant": True}),
    "one step": Layer(length=1),
    "initial states": Layer(states=True),
    "initial states, two bidirectional layers": Layer(
        {**BOTH, "num_layers": 2}, states=True, hidden=5, length=3, batch=1
    ),
    "initial states, two layers, batch first": Layer({"batch_first": True, "num_layers": 2}, states=True, length=4),
    "initial states, zero points": Layer(SHIFTED, states=True),
    **{f"{b}-bit weights": Layer({"weight_bit_width": b}) for b in range(2, 8)},
    "binary weights": Layer({"weight_quant": "SignedBinaryWeightPerTensorConst", "weight_scaling_init": 0.1}),
    "ternary weights": Layer({"weight_quant": "SignedTernaryWeightPerTensorConst", "weight_scaling_init": 0.1}),
    "per channel": Layer({"weight_quant": "Int8WeightPerChannelFloat"}),
    "asymmetric weights": Layer({"weight_quant": "ShiftedUint8WeightPerTensorFloat"}),
    "asymmetric weights, per channel": Layer({"weight_quant": "ShiftedUint8WeightPerChannelFloat"}, length=4),
    "6-bit state": Layer({"io_bit_width": 6}),
    "4-bit accumulators": Layer({"gate_acc_bit_width": 4}),
    "16-bit accumulators": Layer({"gate_acc_bit_width": 16}, hidden=5, length=3),
    "16-bit cells": Layer({"cell_state_bit_width": 16}),
    "16-bit accumulators and cells": Layer(
        {"gate_acc_bit_width": 16, "cell_state_bit_width": 16}, hidden=5, length=3, batch=1
    ),
    "mixed widths": Layer({f"{part}_bit_width": bits for part, bits in WIDTHS.items()}),
    "unsigned input": Layer({"io_quant": "Uint8ActPerTensorFloat"}),
    "ternary tanh": Layer({"tanh_quant": "SignedTernaryActPerTensorConst", "tanh_scaling_init": 0.5}),
    "zero points": Layer(SHIFTED),
    "narrow": Layer({f"{part}_narrow_range": True for part in PARTS}),
    "powers of two": Layer(POWERS_OF_TWO, exact=True, length=20),
    "powers of two, two bidirectional layers": Layer({**POWERS_OF_TWO, **BOTH, "num_layers": 2}, exact=True, length=3),
    **{f"rounding {mode}": Layer(rounding(mode)) for mode in ROUNDINGS},
    **{f"rounding {mode}, zero points": Layer({**rounding(mode), **SHIFTED}) for mode in ROUNDINGS},
}
SMALL = Layer({**BOTH, "num_layers": 2}, hidden=5, length=3, batch=1)
SLOW = (
    *("initial states, two bidirectional layers", "trained, two bidirectional layers"),
    *("powers of two, two bidirectional layers", "bidirectional, shared input weights, cifg", "16-bit cells"),
    # Attributes alone, of files that are written as others are; tests of cells made by hand have them all.
    *(f"{b}-bit weights" for b in (3, 4, 5, 6, 7)),
    *(f"rounding {mode}, zero points" for mode in ("ROUND", "CEIL", "ROUND_TO_ZERO", "FLOOR")),
    *(f"rounding {mode}" for mode in ("ROUND", "CEIL", "DPU")),
    *("6-bit state", "4-bit accumulators", "16-bit accumulators", "unsigned input", "ternary weights"),
    *("2-bit weights", "16-bit accumulators and cells", "rounding FLOOR", "untrained", "bidirectional", "one step"),
    *("asymmetric weights", "shared accumulator quantizer"),
    # Other tests of this file run these layers, in more forms or as parts of others.
    *("default", "initial states", "zero points", "two layers", "batch first"),
)

# What the file says if the arguments arrived.
TEXTS = {**{f"rounding {mode}": mode.encode() for mode in ROUNDINGS}, "binary weights": b"BipolarQuant"}
SHAPES = {"per channel": (9, 1), "asymmetric weights, per channel": (9, 1)}
BITS: dict[str, tuple[int, ...]] = {
    **{f"{b}-bit weights": (b,) for b in range(2, 8)},
    "6-bit state": (6,), "4-bit accumulators": (4,), "16-bit accumulators": (16,), "16-bit cells": (16,),
    "16-bit bias": (16,), "mixed widths": tuple(WIDTHS.values()),
}  # fmt: skip


def constants(model: onnx.ModelProto) -> list[npt.NDArray[Any]]:
    """Arrays of initializers and of Constant nodes."""
    nodes = [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    return [onnx.numpy_helper.to_array(t) for t in (*model.graph.initializer, *nodes)]


def assert_same(expected: list[Any], got: Mapping[str, npt.NDArray[Any]], what: str) -> None:
    assert len(got) == len(expected), what
    for wanted, (name, value) in zip(expected, got.items(), strict=True):
        assert value.shape == wanted.shape, f"{what}: {name}"
        different = int((value != wanted).sum())
        assert different == 0, f"{what}: {different} of {wanted.size} codes of {name} differ"


def check(model: onnx.ModelProto, feeds: Mapping[str, Any], expected: list[Any], what: str) -> None:
    lowered, qcdq = rnnqc.lower(model), rnnqc.lower(model, form="qcdq")
    for way, made in ((STOCK, lowered), (NATIVE, lowered), ("form qcdq", qcdq)):
        assert_all_lowered(made, what)
        assert_same(expected, run(session(made.proto, way), feeds), f"{what}, {way}")


def slow(values: Iterable[Any], chosen: Container[Any]) -> list[Any]:
    """Parameters, of which the chosen ones are slow: together they take a minute."""
    return [pytest.param(v, marks=pytest.mark.slow) if v in chosen else v for v in values]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow(CASES, SLOW))
def test_export(name: str) -> None:
    layer = CASES[name]
    module, inputs, expected = prepared(layer)
    model = export(module, inputs)
    held = constants(model)
    ignored = "Brevitas ignores an argument"
    assert TEXTS.get(name, b"QuantLSTMCell") in model.SerializeToString(), ignored
    assert name not in SHAPES or any(a.shape == SHAPES[name] for a in held), ignored
    for bits in BITS.get(name, ()):
        assert any(a.size == 1 and a == bits for a in held), ignored
    if "zero points" in name or "asymmetric" in name:
        zero_points = [a for a in held if a.size in (1, layer.hidden) and a.dtype == np.float32]
        assert any((a > 16).all() and (a != a.ravel()[0] / 2).all() for a in zero_points), ignored
    assert any(len(np.unique(v)) > 2 for v in expected), "a trivial case"
    check(model, feeds_of(model, inputs), expected, name)


@pytest.mark.slow
def test_near_ties_of_the_input() -> None:
    """Inputs on ties and one unit in the last place beside them: a reciprocal or a float64 quotient shows."""
    layer = CASES["default"]
    module, inputs, _ = prepared(layer)
    model = export(module, inputs)
    (x_name,) = feeds_of(model, inputs)
    (quant,) = [n for n in model.graph.node if n.op_type == "Quant" and n.input[0] == x_name]
    named = {n.output[0]: a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute}
    named |= {t.name: t for t in model.graph.initializer}
    scale = onnx.numpy_helper.to_array(named[quant.input[1]])
    found = 0
    for seed in range(30):
        if found == 2:
            break
        rng = np.random.default_rng(seed)
        ties = ((rng.integers(-100, 100, inputs[0].shape) + 0.5) * scale).astype(np.float32)
        steps = rng.integers(-1, 2, ties.shape)
        x = np.where(steps == 0, ties, np.nextafter(ties, np.float32(9) * steps.astype(np.float32)))
        x = x.astype(np.float32)
        units = x / scale
        wrong = np.rint(x * (np.float32(1) / scale)) != np.rint(units)
        if wrong.any() and is_far_from_ties(module, [torch.from_numpy(x)]):
            check(model, {x_name: x}, forward(module, [torch.from_numpy(x)]), f"near ties {seed}")
            found += 1
    assert found == 2


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("opset", slow([9, 10, 11, 12, 13, 15, 18, 19, 20, 21], (10, 11, 12, 15, 18, 19, 20)))
def test_operator_sets(opset: int) -> None:
    layer = Layer(hidden=5, length=3, batch=1)
    module, inputs, expected = prepared(layer)
    model = export(module, inputs, opset_version=opset)
    assert next(o.version for o in model.opset_import if not o.domain) == opset
    check(model, feeds_of(model, inputs), expected, f"operator set {opset}")


def test_quantized_tensors_are_outputs() -> None:
    """`return_quant_tensor=True` makes 18 outputs."""
    layer = Layer({"return_quant_tensor": True})
    _, inputs, expected = prepared(Layer())
    model = export(layer.module(), inputs)
    assert len(model.graph.output) == 18
    lowered = rnnqc.lower(model)
    for way in (STOCK, NATIVE):
        got = session(lowered.proto, way).run(None, feeds_of(model, inputs))  # some of one name
        assert_same(expected, {str(k): got[6 * k] for k in range(3)}, way)
        assert all(v.size == 1 for k, v in enumerate(got) if k % 6)


@pytest.mark.slow
def test_separate_cell_states() -> None:
    """`cat_output_cell_states=False`: one of the two is a quantized tensor of six outputs."""
    small = {"hidden": 5, "length": 3, "batch": 1}
    layer = Layer({"num_layers": 2, "cat_output_cell_states": False}, **small)
    _, inputs, (outputs, h, c) = prepared(Layer({"num_layers": 2}, **small))
    model = export(layer.module(), inputs)
    assert len(model.graph.output) == 9
    lowered = rnnqc.lower(model)
    for way in (STOCK, NATIVE):
        got = session(lowered.proto, way).run(None, feeds_of(model, inputs))
        first, second = got[2], got[-1]
        assert_same([outputs, h, c], {"outputs": got[0], "h": got[1], "c": np.concatenate([first, second])}, way)


def test_float_weights_run() -> None:
    """Cells with quantized activations and float weights become float32 operators, with a reason."""
    layer = Layer({"weight_quant": None, "bias_quant": None})
    module, inputs, expected = prepared(layer)
    model = export(module, inputs)
    lowered = rnnqc.lower(model)
    (entry,) = lowered.report.entries
    assert (entry.status, entry.found) == ("float", "float weights")
    assert "W is not quantized. It runs in float32 operators" in entry.reason
    for way in (STOCK, NATIVE):
        for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
            assert_same(expected, run(session(lowered.proto, way, level), feeds_of(model, inputs)), f"{way}, {level}")


WEIGHTS_ALONE: dict[str, Layer] = {
    "batch of 2": Layer(NONE),
    "batch of 1": Layer(NONE, batch=1),
    "batch first": Layer({**NONE, "batch_first": True}, batch=3),
    "two bidirectional layers": Layer({**NONE, **BOTH, "num_layers": 2}),
    "two bidirectional layers, batch first": Layer({**NONE, **BOTH, "num_layers": 2, "batch_first": True}),
    "cifg": Layer({**NONE, "coupled_input_forget_gates": True}),
    "4 bits": Layer({**NONE, "weight_bit_width": 4}),
    "per channel": Layer({**NONE, "weight_quant": "Int8WeightPerChannelFloat"}),
    "asymmetric, per channel": Layer({**NONE, "weight_quant": "ShiftedUint8WeightPerChannelFloat"}),
    "one step": Layer(NONE, length=1),
}


@pytest.mark.few(1)
@in_turn(
    made=[*((n, 14) for n in WEIGHTS_ALONE), ("batch of 2", 20), ("batch of 2", 21), ("batch first", 21)],
    qcdq=[True, False],
)
def test_weights_alone(made: tuple[str, int], qcdq: bool) -> None:
    """They keep their quantized values, and run although onnxruntime refuses the file for batches other than 1."""
    name, opset = made
    layer = WEIGHTS_ALONE[name]
    module = layer.module()
    inputs = layer._random()
    expected = forward(module, inputs)
    model = export(module, inputs, qcdq, opset_version=opset)
    lowered = rnnqc.lower(model)
    assert_entries = {e.form for e in lowered.report.entries}
    assert assert_entries == {"weight-only"}, lowered.report.entries
    for node in (n for n in lowered.proto.graph.node if n.op_type == "LSTM"):
        for value in node.input[1:3]:
            (maker,) = [n for n in lowered.proto.graph.node if value in n.output]
            assert maker.op_type == "DequantizeLinear"
            (codes,) = [t for t in lowered.proto.graph.initializer if t.name == maker.input[0]]
            assert codes.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    assert not {n.op_type for n in lowered.proto.graph.node} & {"Quant", "Clip", "Round"}
    feeds = feeds_of(model, inputs)
    for what, opened in (("lowered", session(lowered.proto, STOCK)), ("on the fly", rnnqc.session(model))):
        for wanted, got in zip(expected, run(opened, feeds).values(), strict=True):
            assert got.shape == wanted.shape
            assert float(np.abs(got - wanted).max()) < 1e-6, what


@pytest.mark.few(1)
@pytest.mark.parametrize("qcdq", [True, False], ids=["export_onnx_qcdq", "export_qonnx"])
@pytest.mark.parametrize("name", slow(WEIGHTS_ALONE, set(WEIGHTS_ALONE) - {"batch of 2", "batch first"}))
def test_weights_alone_with_a_recipe(name: str, qcdq: bool) -> None:
    """int8 makes cells of them, whose weights are those codes again; `verify` compares with the repaired model."""
    layer = WEIGHTS_ALONE[name]
    module = layer.module()
    inputs = layer._random()
    expected = forward(module, inputs)
    model = export(module, inputs, qcdq, opset_version=17)
    lowered = rnnqc.lower(model, "int8", verify=True, measure=True)
    assert_all_lowered(lowered, name)
    assert {e.form for e in lowered.report.entries} == {"fused"}
    assert min(lowered.report.sqnr_db.values()) > 25
    found = run_both(lowered.proto, feeds_of(model, inputs))
    for wanted, value in zip(expected, found.values(), strict=True):
        assert 0 < float(np.abs(value - wanted).max()) < 0.05


@pytest.mark.slow
def test_weights_alone_by_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layer = WEIGHTS_ALONE["batch first"]
    module = layer.module()
    inputs = layer._random()
    model = export(module, inputs, True, opset_version=17)
    source, target, feeds = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "in.npz"
    onnx.save(model, source)
    save_arrays(feeds, feeds_of(model, inputs))
    inspected = in_process(capfd, "inspect", source)
    assert "weight-only" in inspected.out
    lowered = in_process(capfd, "lower", source, "-o", target, "--strict")
    assert lowered.code == 0, lowered.text
    assert "keeps the weights it was exported with" in lowered.err
    assert in_process(capfd, "verify", source, target, "--min-sqnr", "120").code == 0
    for options in ([], ["--stock"]):
        ran = in_process(capfd, "run", source, "-i", feeds, "-o", tmp_path / "out.npz", *options)
        assert ran.code == 0, ran.text
        with np.load(tmp_path / "out.npz") as results:
            for wanted, got in zip(forward(module, inputs), results.values(), strict=True):
                assert float(np.abs(got - wanted).max()) < 1e-6


def test_weights_alone_with_dynamic_sizes() -> None:
    """Loads as it is, and fails for a batch of 2: a session repairs it all the same."""
    layer = Layer(NONE)
    module = layer.module()
    inputs = layer._random()
    axes = {"input_names": ["x"], "dynamic_axes": {"x": {0: "T", 1: "B"}}}
    model = export(module, inputs, True, opset_version=17, **axes)
    made = rnnqc.session(model)
    assert [i.shape for i in made.get_inputs() if i.name == "x"] == [["T", "B", 7]]
    for x in (inputs[0], torch.cat([inputs[0]] * 2, 1)[:3]):
        expected = forward(module, [x])
        for wanted, got in zip(expected, run(made, {"x": x.numpy()}).values(), strict=True):
            assert got.shape == wanted.shape
            assert float(np.abs(got - wanted).max()) < 1e-6
    names = [
        [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim]
        for o in rnnqc.lower(model).proto.graph.output
    ]
    assert names == [["T", "B", 9], [1, "B", 9], [1, "B", 9]]


@pytest.mark.slow
def test_batch_and_length_are_free() -> None:
    """Traced with a batch of 1 and 3 steps; the zeros of the initial states held that batch."""
    layer = SMALL
    module, inputs, _ = prepared(layer)
    model = export(module, inputs, input_names=["x"], dynamic_axes={"x": {0: "T", 1: "B"}})
    other, expected = Layer(layer.arguments, hidden=5, length=4).draw(module)
    check(model, {"x": other[0].numpy()}, expected, "another batch")
    outputs = rnnqc.lower(model).proto.graph.output
    names = [[d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in outputs]
    assert names == [["T", "B", 10], [4, "B", 5], [4, "B", 5]]


@pytest.mark.slow
def test_lost_layer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """torch's other exporter drops the layer without a word."""
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    layer = Layer()
    module = layer.module()
    inputs = layer._random()
    model = export(module, inputs, dynamo=True)
    assert not [n for n in model.graph.node if "LSTM" in n.op_type], "Brevitas exports it by now"
    with pytest.raises(CompileError, match="dynamo=False"):
        rnnqc.lower(model)
    onnx.save(model, tmp_path / "lost.onnx")
    failed = in_process(capfd, "lower", tmp_path / "lost.onnx", "-o", tmp_path / "none.onnx")
    assert failed.code == 2
    assert "dynamo=False" in failed.err
    inspected = in_process(capfd, "inspect", tmp_path / "lost.onnx")
    assert inspected.code == 0
    assert "dynamo=False" in inspected.err


@pytest.mark.slow
def test_rounding_of_weights_that_is_not_exported() -> None:
    """Brevitas writes ROUND for weights whatever they were trained with; the note says what cannot be known."""
    modes = {**rounding("FLOOR"), "weight_float_to_int_impl_type": "FLOOR"}
    layer = Layer(modes)
    module = layer.module()
    inputs = layer._random()
    report = rnnqc.lower(export(module, inputs)).report
    assert [entry.status for entry in report.entries] == ["lowered"]
    (warning,) = report.warnings
    assert "rounded to nearest" in warning
    assert "floor" in warning
    assert not rnnqc.lower(export(Layer().module(), inputs)).report.warnings


def test_weights_on_another_grid() -> None:
    layer = Layer({"weight_bit_width": 4}, hidden=24)
    module = layer.module()
    inputs = layer._random()
    model = export(module, inputs)
    assert not rnnqc.lower(model).report.warnings
    quantized = 0
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim == 2 and array.dtype == np.float32:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array((np.round(array / 0.031) * 0.031).astype(np.float32), tensor.name)
            )
            quantized += 1
    assert quantized == 8
    (warning,) = rnnqc.lower(model).report.warnings
    assert "another scale" in warning
    assert "0.031" in warning
