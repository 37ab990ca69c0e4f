"""Where the weights of a layer come from: tied, behind constant expressions, defaults of inputs, or inputs.

What these would catch: tied weights that are stored once for each layer; weights behind a chain of operators that are
taken for computed ones, or for others; weights that a run gives and that are lowered all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from tests.generate.layers import RecurrentCase, stacked_model
from tests.laws.parametrize import in_turn
from tests.runs.commands import in_process
from tests.runs.lowered import STOCK, run_both, session
from tests.runs.sessions import Array, assert_same_bits, run, sqnr

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
H, I = 8, 6  # noqa: E741 - the operator's names
LARGE = 512  # bytes; codes of the weights of a tied layer are larger, everything else is smaller
SAME_ROUNDING = ("*.weight.compensation=false", "*.input.equalize=false")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("recipe", "overrides", "calibrated"),
    [
        ("int8", (), False),
        ("w4a8", (), False),
        ("int8-static", SAME_ROUNDING, True),
        ("weight-only-int8", (), False),
        ("weight-only-int8", (), True),
    ],
)
def test_tied_weights_are_stored_once(recipe: str, overrides: tuple[str, ...], calibrated: bool) -> None:
    """With statistics codes are rounded, and inputs scaled, for each layer's own data, if the recipe is left to it."""
    case = RecurrentCase(I=32, H=32)
    layers = [case.replace(seed=k) for k in range(2)]
    data = [{"X": case.feeds()["X"]}] if calibrated else None
    stored = []
    for shared in (True, False):
        lowered = rnnqc.lower(stacked_model(layers, shared), recipe, calibration=data, overrides=overrides)
        assert [e.status for e in lowered.report.entries] == ["lowered"] * 2
        codes = (TensorProto.INT8, TensorProto.UINT8)
        sizes = [len(t.raw_data) for t in lowered.proto.graph.initializer if t.data_type in codes]
        stored.append(sum(s for s in sizes if s >= LARGE))
    assert 2 * stored[0] == stored[1] > 0


def parameters(op: str) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {"W": (1, GATES[op] * H, I), "R": (1, GATES[op] * H, H), "B": (1, 2 * GATES[op] * H)}
    # Multiples of 2**-7 below 1: exact in float16 and as codes of int8.
    return {k: (rng.integers(-100, 100, s) / 128).astype(np.float32) for k, s in shapes.items()}


def model(op: str, how: str) -> onnx.ModelProto:
    """A layer whose weights are computed in this way."""
    nodes: list[onnx.NodeProto] = []
    stored: dict[str, Array] = {"zeroth": np.array([0]), "scale": np.float32(1 / 128), "zero": np.int8(0)}
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", 2, I])]

    def node(operator: str, takes: list[str], makes: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, takes, [makes], **attributes))
        return makes

    names = {}
    for key, array in parameters(op).items():
        value = key
        if how == "Identity":
            stored[f"{key}_0"] = array
            value = node("Identity", [node("Identity", [f"{key}_0"], f"{key}_1")], key)
        elif how == "Cast":
            stored[f"{key}_0"] = array.astype(np.float16)
            value = node("Cast", [f"{key}_0"], key, to=TensorProto.FLOAT)
        elif how == "DequantizeLinear":
            stored[f"{key}_0"] = (array * 128).astype(np.int8)
            value = node("DequantizeLinear", [f"{key}_0", "scale", "zero"], key)
        elif how == "Transpose" and key != "B":
            stored[f"{key}_0"] = np.ascontiguousarray(array[0].T)
            turned = node("Transpose", [f"{key}_0"], f"{key}_1", perm=[1, 0])
            value = node("Unsqueeze", [turned, "zeroth"], key)
        elif how == "Concat" and key != "B":
            halves = np.split(array[0], [H // 2])
            stored |= {f"{key}_{k}": half for k, half in enumerate(halves)}
            value = node("Unsqueeze", [node("Concat", [f"{key}_0", f"{key}_1"], f"{key}_2", axis=0), "zeroth"], key)
        elif how == "input" and key == "R":
            inputs.append(helper.make_tensor_value_info(key, TensorProto.FLOAT, list(array.shape)))
        elif how == "computed" and key == "R":
            stored["R_0"] = array
            first = node("ReduceMean", ["X"], "mean", keepdims=0)
            value = node("Mul", ["R_0", first], key)
        else:
            stored[key] = array
            if how == "default":
                inputs.append(helper.make_tensor_value_info(key, TensorProto.FLOAT, list(array.shape)))
        names[key] = value
    node(op, ["X", names["W"], names["R"], names["B"]], "Y", name="layer", hidden_size=H)
    shown = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, ["T", 1, 2, H])]
    used = {v for n in nodes for v in n.input}
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items() if k in used]
    graph = helper.make_graph(nodes, "g", inputs, shown, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds() -> dict[str, Array]:
    return {"X": np.random.default_rng(1).standard_normal((7, 2, I)).astype(np.float32)}


@pytest.mark.few(3)
@in_turn(how=["Identity", "Cast", "Transpose", "Concat", "DequantizeLinear"], op=GATES)
def test_constant_expressions(op: str, how: str) -> None:
    """The bits of the layer with plain initializers; codes of one scale that are kept are others, and as good."""
    plain = run(session(rnnqc.lower(model(op, "initializer"), strict=True).proto, STOCK), feeds())
    lowered = rnnqc.lower(model(op, how), strict=True).proto
    outputs = run_both(lowered, feeds())
    if how == "DequantizeLinear":
        floats = run(session(model(op, "initializer"), STOCK), feeds())
        assert sqnr(floats["Y"], outputs["Y"]) > 30.0
    else:
        assert_same_bits(plain, outputs, how)


@pytest.mark.parametrize("op", GATES)
def test_defaults_of_inputs_count(op: str) -> None:
    (entry,) = rnnqc.lower(model(op, "default")).report.entries
    assert entry.status == "lowered" and "defaults that a run could replace" in entry.reason
    assert "'W'" in entry.found and "graph inputs" in entry.found and entry.action


@pytest.mark.parametrize(
    ("op", "how", "found"),
    [("LSTM", "input", "the graph input 'R'"), ("GRU", "computed", "(Mul)"), ("RNN", "input", "the graph input 'R'")],
)
def test_given_weights_are_reported(
    op: str, how: str, found: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model(op, how), tmp_path / "in.onnx")
    (entry,) = rnnqc.lower(tmp_path / "in.onnx").report.entries
    assert (entry.node, entry.op, entry.status, entry.reason) == ("layer", op, "float", "R is not constant.")
    assert found in entry.found and "make the weights initializers" in entry.action
    strict = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--strict")
    text = " ".join(strict.text.split())
    assert strict.code == 3 and not (tmp_path / "out.onnx").exists(), text
    assert f"Operator \"{op}\" (node 'layer')" in text and "R is not constant." in text and found in text
