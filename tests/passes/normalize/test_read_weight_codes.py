"""read-weight-codes: fires, declines, edges.

What these would catch: codes in the place of others, scales along the wrong axis, weights of a value other than the
graph computes, constants that stay graph inputs, of which every session warns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.ir import Model, constant_array
from rnnqc.passes import ReadWeightCodes
from rnnqc.passes.normalize.read_weight_codes import has_weight_codes
from tests.laws.parametrize import every_pair
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.sessions import plain_session, run
from tests.subjects.protos import of_nodes

I, H = 3, 4  # noqa: E741 - the operator's name for it
RNG = np.random.default_rng(3)
BITS = {"int8": (np.int8, -128, 127), "uint8": (np.uint8, 0, 255)}


def layer(
    kind: str = "int8", *, channels: bool = False, zero: bool = False, clip: bool = True, **options: Any
) -> onnx.ModelProto:
    """An LSTM whose gates are dequantized one by one, as Brevitas exports weights alone."""
    dtype, low, high = BITS[kind]
    held: dict[str, Any] = {
        "low": np.array(low + 9, dtype), "high": np.array(high - 9, dtype), "axes": np.zeros(1, np.int64)
    }  # fmt: skip
    nodes = []
    for key, width in (("W", I), ("R", H)):
        parts = []
        for gate in range(4):
            name = f"{key}{gate}"
            held[f"{name}_q"] = RNG.integers(low, high + 1, (H, width)).astype(dtype)
            size = H if channels else ()
            held[f"{name}_s"] = RNG.uniform(0.001, 0.01, size).astype(np.float32)
            held[f"{name}_z"] = np.full(size, 5 if zero else 0, dtype)
            source = f"{name}_q"
            if clip:
                nodes.append(helper.make_node("Clip", [source, "low", "high"], [f"{name}_c"], f"{name}_clip"))
                source = f"{name}_c"
            axis = {"axis": options.get("axis", 0)} if channels else {}
            inputs = [source, f"{name}_s", f"{name}_z"]
            nodes.append(helper.make_node("DequantizeLinear", inputs, [name], f"{name}_dq", **axis))
            parts.append(name)
        nodes.append(helper.make_node("Concat", parts, [f"{key}_all"], f"{key}_concat", axis=0))
        nodes.append(helper.make_node("Unsqueeze", [f"{key}_all", "axes"], [key], f"{key}_unsqueeze"))
    if options.get("axis"):
        for name in [n for n in held if n.endswith(("_s", "_z"))]:
            width = I if name.startswith("W") else H
            held[name] = np.resize(held[name], width).astype(held[name].dtype)
    nodes.append(helper.make_node("LSTM", ["X", "W", "R"], ["Y", "Y_h", "Y_c"], "lstm", hidden_size=H))
    outputs = {"Y": [5, 1, 2, H], "Y_h": [1, 2, H], "Y_c": [1, 2, H]}
    return of_nodes(nodes, {"X": [5, 2, I]}, outputs, held, ir_version=9)


def weights(proto: onnx.ModelProto) -> dict[str, Any]:
    """W and R as onnxruntime computes them."""
    seen = onnx.ModelProto()
    seen.CopyFrom(proto)
    names = list(next(n for n in proto.graph.node if n.op_type == "LSTM").input[1:3])
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    del seen.graph.output[:]
    seen.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in stored)
    if not seen.graph.output:
        return {k: stored[n] for k, n in zip("WR", names, strict=True)}
    got = run(plain_session(seen), {"X": np.zeros((5, 2, I), np.float32)})
    return {k: got[n] for k, n in zip("WR", names, strict=True)}


@every_pair(kind=BITS, channels=[False, True], zero=[False, True], clip=[False, True], keep=[False, True])
def test_fires(kind: str, channels: bool, zero: bool, clip: bool, keep: bool) -> None:
    proto = layer(kind, channels=channels, zero=zero, clip=clip)
    expected = weights(proto)
    model = Model.load(proto)
    (node,) = nodes_of(model, "LSTM")
    assert has_weight_codes(node)
    result = apply(ReadWeightCodes(keep=keep), model)
    assert result.statistics["nodes"] == 1
    assert has_weight_codes(node) == keep
    got = weights(model.proto)
    for key, wanted in expected.items():
        assert np.array_equal(got[key], wanted), key
    assert not nodes_of(model, "Concat", "Unsqueeze", "Clip")
    makers = nodes_of(model, "DequantizeLinear")
    assert len(makers) == (2 if keep else 0)
    for maker in makers:
        codes = constant_array(maker.inputs[0])
        assert codes is not None
        assert codes.dtype == BITS[kind][0]
        assert codes.shape[:2] == (1, 4 * H)


def test_scales_along_the_inputs_become_floats() -> None:
    proto = layer(channels=True, axis=1)
    expected = weights(proto)
    model = Model.load(proto)
    apply(ReadWeightCodes(keep=True), model)
    assert not nodes_of(model, "DequantizeLinear")
    got = weights(model.proto)
    assert all(np.array_equal(got[k], v) for k, v in expected.items())


def test_float_weights_stay() -> None:
    proto = layer()
    model = Model.load(proto)
    ReadWeightCodes()(model)
    assert not ReadWeightCodes(keep=True)(model).modified


def test_a_matrix_that_is_shared_is_stored_once() -> None:
    proto = layer()
    other = onnx.NodeProto()
    other.CopyFrom(proto.graph.node[-1])
    other.name = "again"
    del other.output[:]
    other.output.extend(["Z", "Z_h", "Z_c"])
    proto.graph.node.append(other)
    proto.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, [5, 1, 2, H]))
    model = Model.load(proto)
    apply(ReadWeightCodes(keep=True), model)
    assert len(nodes_of(model, "DequantizeLinear")) == 2


@pytest.mark.parametrize("keep", [True, False])
def test_a_bias_that_is_a_graph_input_as_well(keep: bool) -> None:
    """As Brevitas lists it. Where the weights stay, nothing else would take it off."""
    proto = layer()
    proto.graph.node[-1].input.append("bias")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 8 * H), np.float32), "bias"))
    proto.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [1, 8 * H]))
    model = Model.load(proto)
    result = apply(ReadWeightCodes(keep=keep), model)
    listed_now = [v.name for v in model.proto.graph.input]
    assert ("bias" in listed_now) != keep
    if keep:
        (remark,) = result.remarks
        assert "the inputs go" in remark.reason and "'bias' both stored and listed" in remark.found
        assert "bias" in {t.name for t in model.proto.graph.initializer}
