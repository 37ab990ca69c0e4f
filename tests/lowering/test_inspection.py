"""The list of a model's layers, and how lowering would handle them.

What these would catch: a list that says otherwise than lowering does, a model that is changed by looking at it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.lowering.inspection import inspect
from tests.generate.layers import RecurrentCase, stacked_model
from tests.generate.recurrences import RecurrenceCase
from tests.subjects.protos import parse


def weights_as_input() -> onnx.ModelProto:
    proto = RecurrentCase().model()
    (tensor,) = (t for t in proto.graph.initializer if t.name == proto.graph.node[0].input[1])
    proto.graph.initializer.remove(tensor)
    proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, list(tensor.dims)))
    return proto


def wide_codes() -> onnx.ModelProto:
    """W and R are 16-bit values behind a DequantizeLinear, which no form of rnnqc keeps."""
    proto = RecurrentCase(opset=21).model()
    layer = next(n for n in proto.graph.node if n.op_type == "LSTM")
    stored = {t.name: t for t in proto.graph.initializer}
    for k in (1, 2):
        name = layer.input[k]
        codes = np.rint(onnx.numpy_helper.to_array(stored[name]) * 4096).astype(np.int16)
        stored[name].CopyFrom(onnx.numpy_helper.from_array(codes, f"{name}.codes"))
        proto.graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", [f"{name}.codes", "scale"], [name]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 / 4096, np.float32), "scale"))
    return proto


def written_out_step() -> onnx.ModelProto:
    """A step of an LSTM in elementary operators; the names of its outputs give no hint."""
    proto = parse(
        """
        <ir_version: 8, opset_import: ["": 17]>
        step (float[B,5] x, float[B,7] h, float[B,7] c) => (float[B,7] first, float[B,7] second) {
          xw = MatMul (x, W)
          hr = MatMul (h, R)
          products = Add (xw, hr)
          sums = Add (products, b)
          i, f, g, o = Split <axis = 1> (sums)
          i_ = Sigmoid (i)
          f_ = Sigmoid (f)
          o_ = Sigmoid (o)
          g_ = Tanh (g)
          kept = Mul (f_, c)
          added = Mul (i_, g_)
          second = Add (kept, added)
          squashed = Tanh (second)
          first = Mul (o_, squashed)
        }
        """,
        **{n: np.random.default_rng(0).normal(0, 0.5, s).astype(np.float32) for n, s in SHAPES.items()},
    )
    return proto


SHAPES = {"W": (5, 28), "R": (7, 28), "b": (28,)}
MODELS = {
    "layers in a row": stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)]),
    "both directions": RecurrentCase(direction="bidirectional").model(),
    "loop": RecurrenceCase(form="scan").model(),
    "custom cell": RecurrenceCase(op="highway", form="scan", time=4).model(),
    "weights that are an input": weights_as_input(),
    "weights of 16 bits": wide_codes(),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_lowering_does(name: str) -> None:
    before = MODELS[name].SerializeToString(deterministic=True)
    found = inspect(MODELS[name])
    assert MODELS[name].SerializeToString(deterministic=True) == before
    entries = rnnqc.lower(MODELS[name]).report.entries
    assert [(n.path, n.op, n.status) for n in found.nodes] == [(e.node, e.op, e.status) for e in entries]
    assert [list(found.cells.get(n.path, [])) for n in found.nodes] == [e.cells for e in entries]
    assert [n.weight_bytes for n in found.nodes] == [e.float_bytes for e in entries]
    assert [n.refusal for n in found.nodes] == [(e.reason, e.found, e.action) for e in entries]


@pytest.mark.parametrize("name", ["layers in a row", "loop", "custom cell"])
def test_lowered_layers_are_done(name: str) -> None:
    lowered = rnnqc.lower(MODELS[name])
    nodes = inspect(lowered.proto).nodes
    assert [n.status for n in nodes] == ["done"] * len(lowered.report.entries)
    assert [n.form for n in nodes] == [e.form for e in lowered.report.entries]


def test_invalid_models_are_refused() -> None:
    with pytest.raises(CompileError):
        inspect(onnx.ModelProto())


def test_states_of_a_step_that_is_written_out() -> None:
    """They are those of the layer that it becomes, whatever their names, as `lower` and `calibrate` say."""
    proto = written_out_step()
    assert inspect(proto).states == {"h": "first", "c": "second"}
    frames = [{"x": np.ones((1, 5), np.float32)}] * 3
    with pytest.raises(CompileError, match=r"no array for input .h.*or carry the states: .*\"h\": \"first\""):
        rnnqc.calibrate(proto, frames)
    zeros = {n: np.zeros((1, 7), np.float32) for n in "hc"}
    (remark,) = rnnqc.calibrate(proto, [{**f, **zeros} for f in frames]).remarks
    assert "inputs that look like states are not carried" in str(remark)
    assert not rnnqc.calibrate(proto, frames, state={"h": "first", "c": "second"}).remarks


def test_inputs_that_decide() -> None:
    """One number that is compared with constants, a flag in a branch; no sizes, no longer lists, no floats."""
    branch = "<then_branch = t () => (r) { r = Neg (x) }, else_branch = e () => (r) { r = Relu (x) }>"
    text = f"""<ir_version: 10, opset_import: ["": 17]>
    g (float[N] x, int64 rate, bool[1] flag, int64[N] many, float level, bool unused) => (float[N] y)
    <int64 a = {{8}}, int64 b = {{16}}, int64[1] one = {{1}}, float half = {{0.5}}> {{
      c = Equal (rate, a) d = Equal (b, rate) e = Or (c, d) f = Greater (level, half)
      s = Shape (many) n = Equal (s, one) i = If (n) {branch} k = If (f) {branch}
      y = If (e) <then_branch = t2 () => (u) {{ u = If (flag) {branch} }},
      else_branch = e2 () => (u) {{ u = Add (i, k) }}>
    }}"""
    assert inspect(parse(text)).deciding == {"rate": [8, 16], "flag": []}


def test_a_number_that_decides_may_be_reshaped_first() -> None:
    """As torch writes `if sr == 16000` of an input without axes."""
    text = """<ir_version: 10, opset_import: ["": 17]>
    g (float[N] x, int64 sr) => (float[N] y) <int64[1] all = {-1}, int64 first = {0}, int64 wide = {16000}> {
      flat = Reshape (sr, all) one = Gather (flat, first) c = Equal (one, wide)
      y = If (c) <then_branch = t () => (r) { r = Neg (x) }, else_branch = e () => (s) { s = Relu (x) }>
    }"""
    assert inspect(parse(text)).deciding == {"sr": [16000]}


def test_inputs_and_outputs_as_declared() -> None:
    """Names of open dimensions, none, an unknown rank, a sequence; an initializer is no input; a bound input goes."""
    proto = parse("""<ir_version: 10, opset_import: ["": 17]>
    g (float[batch,3,?] x, int64 sr, float16 w, seq(float[2]) s) => (float[batch,3,?] y) <float16 w = {1}> {
      z = Cast <to = 1> (sr) y = Mul (x, z) }""")
    proto.graph.input[0].type.tensor_type.shape.dim[2].Clear()
    found = inspect(proto)
    assert [(v.name, v.type, v.shape_text) for v in found.inputs] == [
        ("x", "float32", "[batch, 3, ?]"), ("sr", "int64", "[]"), ("s", "sequence", "?"),
    ]  # fmt: skip
    assert [v.shape_text for v in found.outputs] == ["[batch, 3, ?]"]
    assert found.to_dict()["inputs"][0] == {"name": "x", "type": "float32", "shape": ("batch", 3, None)}
    assert [v.name for v in inspect(proto, bind={"sr": 1}, dims={"batch": 4}).inputs] == ["x", "s"]
    assert inspect(proto, dims={"batch": 4}).inputs[0].shape_text == "[4, 3, ?]"
