"""read-ort-lstm: LSTMs that onnxruntime's tool has quantized become layers with the same quantized weights.

What these would catch: gates, directions or channels in another order, an input or an attribute that gets lost, weights
that are rounded once more, a file that rnnqc has written itself read as one of onnxruntime's tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import rnnqc
from rnnqc.cells.activations import Activation
from rnnqc.cells.forms import ORT, ORT_LSTM
from rnnqc.cells.stages import IntegerCell
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model, constant_array
from rnnqc.passes import ReadOrtLstm
from rnnqc.passes.graph.nodes.lstm_node import R, W
from tests.generate.layers import RecurrentCase
from tests.generate.outer_forms import called
from tests.laws.parametrize import every_pair
from tests.passes.pass_testing import apply, declines, nodes_of
from tests.runs.commands import in_process
from tests.runs.lowered import NATIVE, STOCK, all_nodes
from tests.runs.lowered import session as session_of
from tests.runs.sessions import run

LEAST_DB = 28.0
CASE = RecurrentCase(T=9, B=2, I=16, H=20, dynamic_time=True, dynamic_batch=True)
TWO = CASE.replace(direction="bidirectional", lens=(9, 4), initial_h=True, initial_c=True)
UNUSUAL = (Activation("HardSigmoid"), Activation("Softsign"), Activation("Tanh"))
Array = np.ndarray[Any, Any]


def quantized(proto: onnx.ModelProto, folder: Path, **options: Any) -> onnx.ModelProto:
    """A model that onnxruntime's tool has quantized."""
    onnx.save(proto, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "dynamic.onnx", **options)
    made = onnx.load(folder / "dynamic.onnx")
    assert ORT_LSTM in {n.op_type for n in made.graph.node}
    return made


def unsigned(proto: onnx.ModelProto, zero_point: int) -> onnx.ModelProto:
    """The same weights as uint8, as older versions of the tool wrote them."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.INT8:
            codes = numpy_helper.to_array(tensor).astype(np.int16) + zero_point
            tensor.CopyFrom(numpy_helper.from_array(np.clip(codes, 0, 255).astype(np.uint8), tensor.name))
    return made


def released(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A file of rnnqc that nothing but its operators says so of."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.metadata_props[:]
    for node in all_nodes(made):
        del node.metadata_props[:]
    return made


def constants(proto: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def assert_near(proto: onnx.ModelProto, lowered: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    """Stock and native runs are bit-exact, and near to what onnxruntime makes of the file as it is given.

    The padding is 0: onnxruntime's scale of X follows from its largest value, which is one of the padding otherwise.
    """
    feeds = {name: np.asarray(np.nan_to_num(array)) for name, array in feeds.items()}
    for row, length in enumerate(feeds.get("sequence_lens", ())):
        feeds["X"][length:, row] = 0.0
    stock, native = (run(session_of(lowered, way), feeds) for way in (STOCK, NATIVE))
    for name, value in run(session_of(proto, STOCK), feeds).items():
        np.testing.assert_array_equal(stock[name], native[name])
        assert sqnr_db(value, stock[name]) > LEAST_DB, name


def assert_taken_over(lowered: Any, given: Mapping[str, Array], zero_point: int = 0) -> None:
    """Every cell computes with the quantized values of the file, in their order."""
    held = constants(lowered.proto)
    cells = list(lowered.model.cells.values())
    assert cells
    for direction, cell in enumerate(cells):
        assert isinstance(cell, IntegerCell)
        for k in "WR":
            expected = given[f"{k}_quantized"][direction].astype(np.int16) - zero_point
            np.testing.assert_array_equal(held[cell.operands.as_dict()[k]], expected)


@pytest.mark.few(6)
@every_pair(
    direction=["forward", "reverse", "bidirectional"],
    per_channel=[False, True],
    lens=[None, (9, 3)],
    states=[False, True],
    peepholes=[False, True],
    special=[{}, {"clip": 0.7}, {"input_forget": True}, {"activations": UNUSUAL}],
    opset=[11, 17, 21],
)
def test_a_layer(
    direction: str,
    per_channel: bool,
    lens: Any,
    states: bool,
    peepholes: bool,
    special: Any,
    opset: int,
    tmp_path: Path,
) -> None:
    if "activations" in special:
        special = {"activations": UNUSUAL * (1 + (direction == "bidirectional"))}
    case = CASE.replace(
        direction=direction, lens=lens, initial_h=states, initial_c=states, peepholes=peepholes, opset=opset, **special
    )
    proto = quantized(case.model(), tmp_path, per_channel=per_channel)
    lowered = rnnqc.lower(proto, strict=True, verify=True)
    assert not lowered.report.warnings, "an operator set that is converted is compared without what this pass changes"
    assert_taken_over(lowered, constants(proto))
    assert_near(proto, lowered.proto, case.feeds())
    (entry,) = lowered.report.entries
    assert (entry.op, entry.form, entry.code) == ("LSTM", "fused", ReadOrtLstm.info.name)
    assert "takes its weights over" in entry.reason and ORT_LSTM in entry.found


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("zero_point", [128, 120])
def test_unsigned_weights(zero_point: int, per_channel: bool, tmp_path: Path) -> None:
    """The zero point goes into the values; what lies beyond int8 then is rounded again, and said."""
    proto = unsigned(quantized(TWO.model(), tmp_path, per_channel=per_channel), zero_point)
    lowered = rnnqc.lower(proto, strict=True)
    assert_taken_over(lowered, constants(proto), zero_point)
    assert_near(proto, lowered.proto, TWO.feeds())
    assert "quantized again" not in lowered.report.entries[0].reason
    for tensor in proto.graph.initializer:
        if tensor.name.endswith("zero_point"):
            tensor.CopyFrom(numpy_helper.from_array(np.full(list(tensor.dims), 60, np.uint8), tensor.name))
    wide = rnnqc.lower(proto, strict=True)
    assert "quantized again" in wide.report.entries[0].reason
    assert_near(proto, wide.proto, TWO.feeds())


@pytest.mark.parametrize("calls", ["function", "nested"])
def test_in_a_function(calls: str, tmp_path: Path) -> None:
    """Would catch: a layer that is called no recurrent layer because a function holds it."""
    proto = quantized(CASE.model(), tmp_path)
    lowered = rnnqc.lower(called(proto, calls), strict=True, verify=True)
    assert_taken_over(lowered, constants(proto))
    assert_near(proto, lowered.proto, CASE.feeds())


def test_the_pass(tmp_path: Path) -> None:
    """Two nodes of the same constants share the new ones, too; none of the old ones stays."""
    proto = quantized(TWO.model(), tmp_path, per_channel=True)
    copy = proto.graph.node.add()
    copy.CopyFrom(next(n for n in proto.graph.node if n.op_type == ORT_LSTM))
    copy.name, copy.output[:] = "", ["Y2", "", ""]
    proto.graph.output.append(helper.make_tensor_value_info("Y2", TensorProto.FLOAT, [None, 2, None, 20]))
    model = Model.load(proto)
    assert apply(ReadOrtLstm(), model).statistics == {"nodes": 2}
    first, second = nodes_of(model, "LSTM")
    assert second.name and not first.domain
    assert [id(v) for v in first.inputs[1:3]] == [id(v) for v in second.inputs[1:3]]
    given = constants(proto)
    for k, name in ((W, "W"), (R, "R")):
        codes, scale = given[f"{name}_quantized"].astype(np.float32), given[f"{name}_scale"]
        expected = (codes * scale[:, np.newaxis]).transpose(0, 2, 1)
        np.testing.assert_array_equal(constant_array(first.inputs[k]), expected)
    assert not {t.name for t in model.proto.graph.initializer} & {
        f"{k}_{n}" for k in "WR" for n in ("quantized", "scale")
    }


@pytest.mark.parametrize("placement", ["if", "loop"])
def test_subgraphs(placement: str) -> None:
    case = TWO.replace(placement=placement, lens=None)
    proto = released(rnnqc.lower(case.model(), form=ORT).proto)
    assert ORT_LSTM in {n.op_type for n in all_nodes(proto)}
    lowered = rnnqc.lower(proto, strict=True)
    assert {e.form for e in lowered.report.entries} == {"fused"}
    assert_near(proto, lowered.proto, case.feeds())


def test_what_rnnqc_has_written_stays() -> None:
    proto = rnnqc.lower(CASE.model(), form=ORT).proto
    model = Model.load(proto)
    assert not ReadOrtLstm()(model).modified
    (entry,) = rnnqc.lower(proto, form=ORT).report.entries
    assert (entry.form, entry.earlier) == (ORT, True)


@pytest.mark.parametrize("recipe", ["weight-only-int8", "int8"])
def test_the_form_of_onnxruntime_again(recipe: str, tmp_path: Path) -> None:
    """Would catch: a file that another lowering has to be started from, for a form that it has already."""
    proto = quantized(CASE.model(), tmp_path, per_channel=True)
    form = ORT if recipe == "int8" else None
    lowered = rnnqc.lower(proto, recipe, form=form, strict=True)
    assert_near(proto, lowered.proto, CASE.feeds())
    if form:
        assert ORT_LSTM in {n.op_type for n in lowered.proto.graph.node}


def test_weights_that_a_run_could_replace(tmp_path: Path) -> None:
    proto = quantized(CASE.model(), tmp_path)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    lowered = rnnqc.lower(proto)
    assert [i.name for i in lowered.proto.graph.input] == ["X"]
    (entry,) = lowered.report.entries
    assert "the stored ones count" in entry.reason and "'W_quantized'" in entry.found
    proto.ir_version = 3  # every initializer is listed there, which says nothing
    old = rnnqc.lower(proto)
    assert [i.name for i in old.proto.graph.input] == ["X"]
    assert "the stored ones count" not in old.report.entries[0].reason


def test_weights_that_are_computed(tmp_path: Path) -> None:
    proto = quantized(CASE.model(), tmp_path)
    node = next(n for n in proto.graph.node if n.op_type == ORT_LSTM)
    proto.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [1]))
    node.input[8] = "scale"
    declines(ReadOrtLstm(), Model.load(proto), "already quantized, dynamically.* its weights are computed")
    (entry,) = rnnqc.lower(proto).report.entries
    assert (entry.status, entry.op) == ("quantized", ORT_LSTM)
    assert "W with its scale and zero point not all constant" in entry.found


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("W_quantized", np.zeros((1, 80, 16), np.int8)),
        ("R_quantized", np.zeros((20, 80), np.int8)),
        ("W_scale", np.ones(80, np.float32)),
        ("R_zero_point", np.zeros((1, 20), np.int8)),
    ],
)
def test_shapes_that_do_not_fit(name: str, array: Array, tmp_path: Path) -> None:
    proto = quantized(CASE.model(), tmp_path)
    (tensor,) = (t for t in proto.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    declines(ReadOrtLstm(), Model.load(proto), f"does not run it: {name.removesuffix('_quantized')} should have shape")


def test_beside_quantization_of_its_own(tmp_path: Path) -> None:
    """Without a recipe everything stays: an LSTM in float arithmetic would be slower than what the file has."""
    proto = quantized(CASE.model(), tmp_path)
    held = constants(proto)
    weights = {k: np.ascontiguousarray(held[f"{k}_quantized"].transpose(0, 2, 1)) for k in "WR"}
    proto.graph.initializer.extend(numpy_helper.from_array(v, f"{k}q") for k, v in weights.items())
    for k in "WR":
        proto.graph.initializer.append(numpy_helper.from_array(held[f"{k}_scale"][0], f"{k}s"))
        proto.graph.node.insert(0, helper.make_node("DequantizeLinear", [f"{k}q", f"{k}s"], [f"{k}f"]))
    proto.graph.node.append(helper.make_node("LSTM", ["X", "Wf", "Rf"], ["Y2"], "other", hidden_size=20))
    proto.graph.output.append(helper.make_tensor_value_info("Y2", TensorProto.FLOAT, None))
    kept = {e.op: e for e in rnnqc.lower(proto).report.entries}
    assert {op: e.form for op, e in kept.items()} == {"LSTM": "weight-only", ORT_LSTM: ""}
    assert "--recipe int8 takes its quantized weights over" in kept[ORT_LSTM].explanation
    assert {e.form for e in rnnqc.lower(proto, "int8", strict=True).report.entries} == {"fused"}


def test_other_operators_of_the_tool_stay(tmp_path: Path) -> None:
    """Would catch: an integer matmul around the layer that is taken for a part of it, or lost."""
    proto = CASE.model()
    rng = np.random.default_rng(0)
    proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((20, 5)).astype(np.float32), "head"))
    proto.graph.node.append(helper.make_node("MatMul", ["Y", "head"], ["logits"], "head_product"))
    proto.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, None))
    made = quantized(proto, tmp_path, weight_type=QuantType.QUInt8)
    lowered = rnnqc.lower(made, strict=True)
    assert "MatMulInteger" in {n.op_type for n in lowered.proto.graph.node}
    assert_taken_over(lowered, constants(made))
    assert_near(made, lowered.proto, CASE.feeds())


def test_inspect_says_that_it_is_lowered(tmp_path: Path) -> None:
    """Would catch: sizes that nobody knows, for the operator has no shape inference."""
    (row,) = rnnqc.inspect(quantized(CASE.model(), tmp_path)).rows
    assert (row["op"], row["lowering"], row["input_size"], row["hidden_size"]) == ("LSTM", "will be lowered", 16, 20)


def test_sizes_before_are_of_floats(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Would catch: weights that seem to shrink to a quarter in a file that is as large as before."""
    quantized(CASE.replace(I=64, H=64).model(), tmp_path)
    said = [in_process(capfd, "lower", tmp_path / f"{k}.onnx", "-o", tmp_path / "l.onnx") for k in ("dynamic", "float")]
    assert ["recurrent weights, in float before," in s.out for s in said] == [True, False]
