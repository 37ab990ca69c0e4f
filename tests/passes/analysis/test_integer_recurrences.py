"""Recurrences that another tool has quantized: listed with what to do.

What these would catch: an integer layer that is called no recurrent layer; one of rnnqc's own, or a network without
states, that is called one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes.analysis.integer_recurrences import integer_recurrences
from tests.generate import RecurrenceCase
from tests.generate.layers import RecurrentCase
from tests.generate.outer_forms import called
from tests.runs.commands import in_process
from tests.subjects.protos import of_nodes

PRODUCT = {"MatMulInteger", "QLinearMatMul", "MatMul"}


class _Data(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self._feeds: Any = iter([feeds])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def _quantized(form: str, how: str, folder: Path) -> Path:
    """A written-out LSTM, quantized by onnxruntime's tools."""
    case = RecurrenceCase(form=form)
    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(case.model(), source)
    wanted = ["MatMul", "Sigmoid", "Add", "Mul"]
    data = _Data(case.feeds())
    quantize_static(source, target, data, quant_format=getattr(QuantFormat, how), op_types_to_quantize=wanted)
    return target


@pytest.mark.parametrize(
    ("form", "how", "op"),
    [
        ("unrolled", "QOperator", "QLinearMatMul"),
        ("unrolled", "QDQ", "MatMul"),
    ],
)
def test_what_onnxruntime_has_quantized(
    form: str, how: str, op: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = _quantized(form, how, tmp_path)
    lowered = rnnqc.lower(source)
    (entry,) = lowered.report.entries
    assert (entry.status, entry.op, entry.form) == ("quantized", op, "")
    assert "quantized already" in entry.reason and "lower the float model" in entry.action
    assert "weights are quantized" in entry.found or "quantized weights" in entry.found
    assert 0 < entry.float_bytes == entry.bytes
    with pytest.raises(rnnqc.CompileError, match="recurrent nodes are not lowered"):
        rnnqc.lower(source, strict=True)
    target = tmp_path / "out.onnx"
    result = in_process(capfd, "lower", source, "-o", target)
    assert result.code == 0 and target.exists()
    text = " ".join(result.text.split())
    assert "stays as it is" in text and "no recurrent layer" not in text
    target.unlink()
    result = in_process(capfd, "lower", source, "-o", target, "--strict")
    assert result.code == 3 and "are not lowered" in result.err and not target.exists()
    inspected = in_process(capfd, "inspect", source)
    assert inspected.code == 0 and "stays as it is" in " ".join(inspected.out.split())


@pytest.mark.parametrize("calls", ["function", "nested"])
def test_in_functions(calls: str, tmp_path: Path) -> None:
    proto = called(onnx.load(_quantized("unrolled", "QOperator", tmp_path)), calls)
    (entry,) = rnnqc.lower(proto).report.entries
    assert (entry.status, entry.op) == ("quantized", "QLinearMatMul")


def _scan(kind: str, carried: bool) -> onnx.ModelProto:
    """A Scan with one quantized product, of the state or of the element alone."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-9, 9, (4, 4, 1) if kind == "ConvInteger" else (4, 4)).astype(np.int8)
    given = [numpy_helper.from_array(weights, "w")]
    source = "h" if carried else "x"
    nodes = [helper.make_node("DynamicQuantizeLinear", [source], ["q", "s", "z"])]
    if kind == "QLinearMatMul":
        scales = {"one": np.array(0.1, np.float32), "none": np.array(0, np.int8), "mid": np.array(128, np.uint8)}
        given += [numpy_helper.from_array(a, n) for n, a in scales.items()]
        nodes.append(helper.make_node(kind, ["q", "s", "z", "w", "one", "none", "one", "mid"], ["p"], "product"))
        nodes.append(helper.make_node("DequantizeLinear", ["p", "one", "mid"], ["f"]))
    else:
        nodes.append(helper.make_node(kind, ["q", "w", "z"], ["p"], "product"))
        nodes += [helper.make_node("Cast", ["p"], ["i"], to=1), helper.make_node("Mul", ["i", "s"], ["f"])]
    nodes += [
        helper.make_node("Add", ["f", "x"], ["g"]),
        helper.make_node("Add", ["g", "h"], ["b"]),
        helper.make_node("Tanh", ["b"], ["n"]),
        helper.make_node("Identity", ["n"], ["y"]),
    ]
    shape = [2, 4, 1] if kind == "ConvInteger" else [2, 4]

    def value(name: str, *outer: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [*outer, *shape])

    body = helper.make_graph(nodes, "body", [value("h"), value("x")], [value("n"), value("y")], given)
    scan = helper.make_node("Scan", ["H", "X"], ["last", "Y"], "loop", body=body, num_scan_inputs=1)
    graph = helper.make_graph([scan], "g", [value("H"), value("X", 5)], [value("last"), value("Y", 5)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger", "QLinearMatMul"])
def test_products_of_the_state(kind: str) -> None:
    (entry,) = rnnqc.lower(_scan(kind, carried=True)).report.entries
    assert (entry.node, entry.op, entry.status) == ("loop", "Scan", "quantized")
    assert "state 'h' goes through node 'product'" in entry.found


@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger", "QLinearMatMul"])
def test_products_of_the_elements_alone(kind: str) -> None:
    assert rnnqc.lower(_scan(kind, carried=False)).report.entries == []


@pytest.mark.few(3)
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("custom", [False, True])
def test_cells_of_rnnqc_are_none(form: str, unroll: bool, custom: bool) -> None:
    if unroll and form == "fused":
        return
    proto = RecurrenceCase("random", "unrolled" if unroll else "scan").model() if custom else RecurrentCase().model()
    lowered = rnnqc.lower(proto, form=form, unroll=unroll)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    assert list(integer_recurrences(Model.load(lowered.proto))) == []
    assert {e.status for e in rnnqc.lower(lowered.proto, form=form, unroll=unroll).report.entries} == {"lowered"}


def test_a_network_without_states() -> None:
    """Three layers one behind the other, each with weights of its own; and one that is used twice."""
    rng = np.random.default_rng(0)
    given = {f"w{k}": rng.integers(-9, 9, (8, 8)).astype(np.int8) for k in range(3)}
    nodes, value = [], "x"
    for k, w in enumerate((0, 1, 2, 2)):
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [value], [f"q{k}", f"s{k}", f"z{k}"]),
            helper.make_node("MatMulInteger", [f"q{k}", f"w{w}", f"z{k}"], [f"p{k}"]),
            helper.make_node("Cast", [f"p{k}"], [f"i{k}"], to=1),
            helper.make_node("Mul", [f"i{k}", f"s{k}"], [f"v{k}"]),
        ]
        value = f"v{k}"
    assert rnnqc.lower(of_nodes(nodes, {"x": [2, 8]}, {value: [2, 8]}, given)).report.entries == []
