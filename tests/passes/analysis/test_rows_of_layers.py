"""A layer's input and states may name the batch differently: setting one name sets the others.

What these would catch: a layer that stays a loop or float because one name of its rows was left out, a name that
no layer ties and that is bound all the same, a state of one row for an input of
two, a file that onnxruntime does not run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import run_model
from rnnqc.lowering.reports.report import Lowered
from rnnqc.wording import in_python
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import run
from tests.subjects.protos import parse

H = 4
LOOPS = """<ir_version: 10, opset_import: ["": 17]>
g (float[b0, 1, 4] frame, float[b1, 4] s1, float[b2, 4] s2, float[other, 2] side)
  => (float[c0, T, 4] y, float[c1, 4] n1, float[c2, 4] n2, float[other, 2] beside)
<int64 trips = {1}, bool go = {1}> {
  x = Transpose <perm = [1, 0, 2]> (frame)
  n1, first = Loop (trips, go, s1) <body = l1 (int64 i, bool k, float[u1, 4] h)
    => (bool o, float[u2, 4] z, float[u3, 4] q)
    { o = Identity (k)  e = Gather (x, i)  a = MatMul (e, W)  d = MatMul (h, R)  m = Add (a, d)  p = Add (m, B)
      z = Tanh (p)  q = Identity (z) }>
  n2, second = Loop (trips, go, s2) <body = l2 (int64 i2, bool k2, float[v1, 4] h2)
    => (bool o2, float[v2, 4] z2, float[v3, 4] q2)
    { o2 = Identity (k2)  e2 = Gather (first, i2)  a2 = MatMul (e2, W)  d2 = MatMul (h2, R)  m2 = Add (a2, d2)
      p2 = Add (m2, B)  z2 = Tanh (p2)  q2 = Identity (z2) }>
  y = Transpose <perm = [1, 0, 2]> (second)
  beside = Neg (side)
}"""
CELLS = """<ir_version: 10, opset_import: ["": 17]>
g (float[b0, 4] frame, float[b1, 4] s1, float[b2, 4] s2, float[other, 2] side)
  => (float[c0, 4] y, float[c1, 4] n1, float[c2, 4] n2, float[other, 2] beside) {
  n1 = GRU1 (frame, s1)
  n2 = GRU1 (n1, s2)
  y = Neg (n2)
  beside = Neg (side)
}"""
GRU = """
  a{k} = MatMul ({x}, W)  az{k}, ar{k}, ah{k} = Split <axis = 1, num_outputs = 3> (a{k})
  d{k} = MatMul ({h}, RZ)  dz{k}, dr{k} = Split <axis = 1, num_outputs = 2> (d{k})
  mz{k} = Add (az{k}, dz{k})  z{k} = Sigmoid (mz{k})  mr{k} = Add (ar{k}, dr{k})  r{k} = Sigmoid (mr{k})
  rh{k} = Mul (r{k}, {h})  dh{k} = MatMul (rh{k}, RH)  mh{k} = Add (ah{k}, dh{k})  c{k} = Tanh (mh{k})
  zh{k} = Mul (z{k}, {h})  w{k} = Sub (one, z{k})  wc{k} = Mul (w{k}, c{k})  {y} = Add (zh{k}, wc{k})"""


def loops() -> onnx.ModelProto:
    """Two layers, each a loop whose body names its dimensions anew, as Keras' GRU by tf2onnx."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((H, H)).astype(np.float32) for n in "WR"}
    return parse(LOOPS, **arrays, B=rng.standard_normal(H).astype(np.float32))


def cells() -> onnx.ModelProto:
    """Two steps of GRU layers with their states as inputs, as Keras' GRUCell."""
    rng = np.random.default_rng(0)
    text = CELLS.replace("17]", "18]")
    for k, (x, h, y) in enumerate((("frame", "s1", "n1"), ("n1", "s2", "n2"))):
        text = text.replace(f"  {y} = GRU1 ({x}, {h})", GRU.format(k=k, x=x, h=h, y=y))
    shapes = {"W": (H, 3 * H), "RZ": (H, 2 * H), "RH": (H, H)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return parse(text, **arrays, one=np.float32(1))


def shapes(lowered: Lowered) -> dict[str, list[int | str]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in lowered.proto.graph.input
    }


@pytest.mark.few(2)
@pytest.mark.parametrize("model", [loops, cells])
@pytest.mark.parametrize("dims", [{"b0": 2}, {"b1": 2}, {"b2": 2}, {"b0": 2, "b1": 2, "b2": 2}])
def test_one_name_binds_the_rows_of_every_layer(model: object, dims: Mapping[str, int]) -> None:
    """Any of the names sets the others; a dimension of another input stays open."""
    proto = loops() if model is loops else cells()
    lowered = rnnqc.lower(proto, dims=dims, strict=True)
    assert [(e.op in ("RNN", "GRU"), e.status) for e in lowered.report.entries] == [(True, "lowered")] * 2
    inputs = shapes(lowered)
    assert [inputs[n][0] for n in ("frame", "s1", "s2", "side")] == [2, 2, 2, "other"]
    assert lowered.report.dims == {n: 2 for n in ("b0", "b1", "b2") if n not in dims}
    assert not {n.op_type for n in lowered.proto.graph.node} & {"Loop", "Expand"}


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [loops, cells])
def test_what_is_bound_runs_and_computes_the_same(model: object) -> None:
    proto = loops() if model is loops else cells()
    lowered = rnnqc.lower(proto, dims={"b1": 2})
    rng = np.random.default_rng(1)
    frame = rng.standard_normal((2, 1, H) if model is loops else (2, H)).astype(np.float32)
    feeds = {"frame": frame, "side": np.zeros((3, 2), np.float32)}
    feeds |= {n: rng.uniform(-1, 1, (2, H)).astype(np.float32) for n in ("s1", "s2")}
    expected = run_model(proto, feeds)
    for name, got in run(session(lowered.proto, STOCK), feeds).items():
        np.testing.assert_allclose(got, expected[name], atol=0.05)


@pytest.mark.parametrize("model", [loops, cells])
@pytest.mark.parametrize("dims", [{"b0": 2, "b1": 3}, {"b0": 1, "b2": 2}, {"b1": 3, "b2": 1}])
def test_unequal_sizes_are_refused(model: object, dims: Mapping[str, int]) -> None:
    with pytest.raises(CompileError) as refusal:
        rnnqc.lower(loops() if model is loops else cells(), dims=dims)
    (a, m), (b, _) = dims.items()
    assert f'for example dims={{"{a}": {m}, "{b}": {m}}}' in str(refusal.value)


def test_another_dimension_binds_nothing_else() -> None:
    lowered = rnnqc.lower(loops(), dims={"other": 3})
    assert lowered.report.dims == {}
    assert [s[0] for s in shapes(lowered).values()] == ["b0", "b1", "b2", 3]


def test_a_constant_state_of_one_row_binds_nothing() -> None:
    """It is repeated for every row of the input, which stays open."""
    proto = loops()
    proto.graph.input.remove(next(v for v in proto.graph.input if v.name == "s2"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, H), np.float32), "s2"))
    assert shapes(rnnqc.lower(proto, dims={"other": 3}))["frame"] == ["b0", 1, 4]
    assert rnnqc.lower(proto, dims={"b0": 5}).report.dims == {"b1": 5}


def test_a_step_that_stays_float_says_what_to_type() -> None:
    """The suggested options lower it."""
    entries = rnnqc.lower(cells()).report.entries
    assert [e.action for e in entries] == [
        f"--dim b0=1 --dim {n}=1 (or another number of rows, the streams of a call)" for n in ("b1", "b2")
    ]
    assert 'dims={"b0": 1, "b1": 1} (or another' in in_python(entries[0].explanation)


def test_a_size_that_may_follow_from_a_dimension_names_it_first() -> None:
    """The rows of the input are computed from those of the state: binding these lowers the step, and is said first."""
    proto = cells()
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[b0, 4] frame) => (float[r, 4] x)
      <int64[1] least = {1}, int64[1] first = {0}> {
      s = Shape <end = 1> (frame)  c = Less (s, least)  d = Where (c, least, s)
      x = Slice (frame, first, d, first) }"""
    made = parse(text)
    for node in proto.graph.node:
        node.input[:] = ["x" if name == "frame" else name for name in node.input]
    nodes = [*made.graph.node, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.graph.initializer.extend(made.graph.initializer)
    for value in proto.graph.input:
        if value.name != "side":
            value.type.tensor_type.shape.dim[0].dim_param = "b0"
    first = rnnqc.lower(proto).report.entries[0]
    assert first.status == "float" and "'x'" in first.found
    assert first.action.startswith("--dim b0=1 (or another number of rows") and "; else export" in first.action
    assert [e.status for e in rnnqc.lower(proto, dims={"b0": 1}, strict=True).report.entries] == ["lowered"] * 2
