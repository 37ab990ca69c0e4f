"""widen-steps: steps that are written in float16 compute in float32, and become nodes.

What these would catch: a model in float16 whose steps stay unseen, other types of inputs and outputs than before, a
body of a loop whose types contradict each other, a model that is changed although nothing comes of it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RecognizeSteps, WidenSteps
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import run
from tests.subjects.protos import parse

H = 4
STEP = """
    xz = Cast <to = 10> ({x})
    p = MatMul (xz, W)  q = MatMul ({h}, R)  m = Add (p, q)  s = Add (m, b)
    i, f, o, g = Split <axis = 1, num_outputs = 4> (s)
    i1 = Sigmoid (i)  f1 = Sigmoid (f)  o1 = Sigmoid (o)  g1 = Tanh (g)
    k = Mul (f1, {c})  a = Mul (i1, g1)  {c2} = Add (k, a)  t = Tanh ({c2})  {h2} = Mul (o1, t)"""
CELL = (
    """<ir_version: 10, opset_import: ["": 18]>
g (float[2, 3] x, float16[2, 4] h, float16[2, 4] c) => (float16[2, 4] h2, float16[2, 4] c2, float16[2, 2] y) {"""
    + STEP.format(x="x", h="h", c="c", h2="h2", c2="c2")
    + "  y = MatMul (h2, V) }"
)
LOOP = (
    """<ir_version: 10, opset_import: ["": 18]>
g (float[T, 2, 3] x, float16[2, 4] h0, float16[2, 4] c0) => (float16[T, 2, 4] y, float16[2, 4] hn, float16[2, 4] cn)
<bool go = {1}> {
  sizes = Shape (x)  length = Gather <axis = 0> (sizes, zero)
  hn, cn, y = Loop (length, go, h0, c0) <body = step (int64 n, bool before, float16[2, 4] h, float16[2, 4] c)
    => (bool after, float16[2, 4] h2, float16[2, 4] c2, float16[2, 4] e)
    { after = Identity (before)  xs = Gather (x, n)"""
    + STEP.format(x="xs", h="h", c="c", h2="h2", c2="c2")
    + "  e = Mul (h2, one) }> }"
)

OWN_WEIGHTS = (
    LOOP.replace("xz = Cast", "Wf = Cast <to = 10> (W32)  Rf = Cast <to = 10> (R32)  xz = Cast")
    .replace(", W)", ", Wf)")
    .replace(", R)", ", Rf)")
)
"""Variables of float32, which Keras' cells cast in the loop."""


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"W": (3, 4 * H), "R": (H, 4 * H), "b": (4 * H,), "V": (H, 2)}
    floats = {n: rng.normal(0, 0.5, s).astype(np.float16) for n, s in shapes.items()}
    wide = {f"{n}32": floats[n].astype(np.float32) for n in "WR"}
    return floats | wide | {"zero": np.asarray(0, np.int64), "one": np.ones(1, np.float16)}


def model(text: str) -> Model:
    loaded = Model.load(parse(text, **arrays()))
    PassManager([Canonicalize()]).run(loaded)
    return loaded


@pytest.mark.parametrize("text", [CELL, LOOP, OWN_WEIGHTS])
def test_fires(text: str) -> None:
    loaded = model(text)
    typed = [(v.name, np.dtype(v.dtype)) for v in (*loaded.graph.inputs, *loaded.graph.outputs)]
    result = apply(WidenSteps(), loaded)
    assert result.statistics["widened"] == 1
    assert [(v.name, np.dtype(v.dtype)) for v in (*loaded.graph.inputs, *loaded.graph.outputs)] == typed
    PassManager([RecognizeSteps()], given=RecognizeSteps.info.requires).run(loaded)
    assert len(nodes_of(loaded, "LSTM")) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("text", [CELL, LOOP, OWN_WEIGHTS])
def test_a_lowered_step_computes_the_same(text: str) -> None:
    """In int8, with inputs and outputs of float16 as before."""
    proto = parse(text, **arrays())
    lowered = rnnqc.lower(proto, strict=True)
    assert [e.op for e in lowered.report.entries] == ["LSTM"]
    rng = np.random.default_rng(1)
    x = (2, 3) if text is CELL else (5, 2, 3)
    feeds = {v.name: rng.uniform(-1, 1, x if v.name == "x" else (2, H)) for v in proto.graph.input}
    typed = {n: a.astype(np.float32 if n == "x" else np.float16) for n, a in feeds.items()}
    expected = run_model(proto, typed)
    for name, got in run(session(lowered.proto, STOCK), typed).items():
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, expected[name], atol=0.03)


def test_what_keeps_a_step_float_is_said() -> None:
    """Rows that are named apart: the model stays as it is, and `--strict` refuses it."""
    text = CELL.replace("float[2, 3] x", "float[A, 3] x").replace("(float[A, 3] x, float16[2, 4] h, float16[2, 4] c)",
                        "(float[A, 3] x, float[B, 4] hs, float[B, 4] cs)")  # fmt: skip
    text = text.replace("xz = Cast", "h = Cast <to = 10> (hs)  c = Cast <to = 10> (cs)  xz = Cast")
    loaded = model(text)
    before = loaded.proto.SerializeToString(deterministic=True)
    result = WidenSteps()(loaded)
    assert not result.modified
    assert loaded.proto.SerializeToString(deterministic=True) == before
    (entry,) = rnnqc.lower(parse(text, **arrays())).report.entries
    assert (entry.op, entry.status) == ("LSTM", "float")
    assert entry.action.startswith("--dim A=1 --dim B=1 ")
    assert rnnqc.lower(parse(text, **arrays()), dims={"B": 2}, strict=True).report.dims == {"A": 2}


def test_declines_where_no_step_is_found() -> None:
    """A feed-forward layer stays float16."""
    loaded = Model.load(
        parse('<ir_version: 10, opset_import: ["": 18]> g (float16[2, 4] x) => (float16[2, 2] y) { y = MatMul (x, V) }',
              V=arrays()["V"])
    )  # fmt: skip
    PassManager([Canonicalize()]).run(loaded)
    assert not apply(WidenSteps(), loaded).modified


@pytest.mark.parametrize("case", ["type in an attribute", "replaceable weight", "foreign operator"])
def test_declines_what_cannot_be_widened(case: str) -> None:
    proto = model(CELL).proto
    if case == "type in an attribute":
        node = onnx.helper.make_node("RandomNormalLike", ["x"], ["noise"], "noise", dtype=10)
    elif case == "foreign operator":
        node = onnx.helper.make_node("Gelu", ["x"], ["noise"], "noise", domain="com.microsoft")
        proto.opset_import.add(domain="com.microsoft", version=1)
    else:
        node = onnx.helper.make_node("Identity", ["x"], ["noise"], "noise")
        proto.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT16, [3, 4 * H]))
    proto.graph.node.append(node)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("noise", onnx.TensorProto.FLOAT, None))
    loaded = Model.load(proto)
    before = loaded.proto.SerializeToString(deterministic=True)
    assert not WidenSteps()(loaded).modified
    assert loaded.proto.SerializeToString(deterministic=True) == before
