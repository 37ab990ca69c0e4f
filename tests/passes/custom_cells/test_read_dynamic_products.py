"""Recurrences that onnxruntime's tool has quantized, in loops and written out, become layers with the same weights.

What these would catch: weights or biases in another place, weights that are rounded once more, linear layers around
the recurrence that become float, a recurrence of which only a part is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model
from rnnqc.passes import ReadDynamicProducts
from tests.generate import RecurrenceCase
from tests.generate.outer_forms import called
from tests.laws.parametrize import every_pair
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import NATIVE, STOCK
from tests.runs.lowered import session as session_of
from tests.runs.sessions import run

LEAST_DB = 28.0
WARNED = "onnxruntime's tool has quantized it"


def quantized(proto: onnx.ModelProto, folder: Path, kind: str = "QInt8", *, channels: bool = False) -> onnx.ModelProto:
    """A model that onnxruntime's tool has quantized."""
    onnx.save(proto, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "dynamic.onnx", weight_type=getattr(QuantType, kind),
                     per_channel=channels, extra_options={"EnableSubgraph": True})  # fmt: skip
    return onnx.load(folder / "dynamic.onnx")


def optimized(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The same as onnxruntime's optimizer saves it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def assert_near(proto: onnx.ModelProto, lowered: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    """Stock and native runs are bit-exact, and near to what onnxruntime makes of the file as it is given."""
    stock, native = (run(session_of(lowered, way), feeds) for way in (STOCK, NATIVE))
    for name, value in run(session_of(proto, STOCK), feeds).items():
        np.testing.assert_array_equal(stock[name], native[name])
        assert sqnr_db(value, stock[name]) > LEAST_DB, name


@pytest.mark.few(6)
@every_pair(
    op=["LSTM", "GRU", "RNN", "highway"],
    form=["scan", "loop", "unrolled"],
    kind=["QInt8", "QUInt8"],
    channels=[False, True],
    gemm=[False, True],
    place=["", "optimized", "function"],
)
def test_a_recurrence(op: str, form: str, kind: str, channels: bool, gemm: bool, place: str, tmp_path: Path) -> None:
    case = RecurrenceCase(op=op, form=form, gemm=gemm)
    proto = quantized(case.model(), tmp_path, kind, channels=channels)
    given = {"": proto, "optimized": optimized(proto, tmp_path), "function": called(proto, "function")}[place]
    lowered = rnnqc.lower(given, strict=True)
    statuses = {(e.op, e.status) for e in lowered.report.entries}
    assert statuses == {(op if op != "highway" else "Scan", "lowered")}
    assert any(WARNED in w and "[read-dynamic-products]" in w for w in lowered.report.warnings)
    assert_near(proto, lowered.proto, case.feeds())


def test_the_weights_are_taken_over(tmp_path: Path) -> None:
    proto = quantized(RecurrenceCase(op="RNN", form="unrolled").model(), tmp_path, channels=True)
    given = {np.sort(numpy_helper.to_array(t), axis=None).tobytes() for t in proto.graph.initializer
             if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2}  # fmt: skip
    lowered = rnnqc.lower(proto, strict=True)
    (cell,) = lowered.model.cells.values()
    stored = {t.name: numpy_helper.to_array(t) for t in lowered.proto.graph.initializer}
    held = {np.sort(stored[cell.operands.as_dict()[k]], axis=None).tobytes() for k in "WR"}
    assert held == given and len(given) == 2


def test_the_pass(tmp_path: Path) -> None:
    """Steps share their weights; a linear layer behind them keeps its integers."""
    proto = RecurrenceCase(op="LSTM", form="unrolled").model()
    last = proto.graph.output[0].name
    width = run(session_of(proto, STOCK), RecurrenceCase().feeds())[last].shape[-1]
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((width, 3), np.float32), "dense"))
    proto.graph.node.append(onnx.helper.make_node("MatMul", [last, "dense"], ["z"], "dense"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    given = quantized(proto, tmp_path)
    model = Model.load(given)
    before = len(nodes_of(model, "MatMulInteger"))
    result = apply(ReadDynamicProducts(), model)
    assert result.statistics == {"products": before - 1}
    assert len(nodes_of(model, "MatMulInteger")) == 1
    assert len({id(n.inputs[1]) for n in nodes_of(model, "MatMul")}) == 2


@pytest.mark.parametrize("change", ["computed weight", "other operand", "read twice", "other type"])
def test_other_products_stay(change: str, tmp_path: Path) -> None:
    """A recurrence stays whole if one of its products is not known."""
    proto = quantized(RecurrenceCase(op="RNN", form="unrolled").model(), tmp_path)
    first = next(n for n in proto.graph.node if n.op_type == "MatMulInteger")
    if change == "computed weight":
        proto.graph.input.append(onnx.helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, []))
        scale = next(n for n in proto.graph.node if n.op_type == "Mul" and first.output[0] not in n.input)
        proto.graph.node.insert(0, onnx.helper.make_node("Identity", [scale.input[1]], ["computed"]))
        scale.input[1] = "more"
    elif change == "other operand":
        first.input[2] = first.input[3]
    elif change == "read twice":
        proto.graph.output.append(onnx.helper.make_tensor_value_info(first.output[0], onnx.TensorProto.INT32, None))
    else:
        cast = next(n for n in proto.graph.node if first.output[0] in n.input)
        cast.attribute[0].i = onnx.TensorProto.DOUBLE
    assert not ReadDynamicProducts()(Model.load(proto)).modified
