"""compute-in-float32: layers of float16 and float64 become layers of float32 between Casts.

What these would catch: an input or output without its Cast, weights of a layer in If, Loop or Scan that stay, shared
weights that are stored twice, a layer that changes its type and stays float all the same.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.ir import Model, constant_array, dtype_of, graph_info
from rnnqc.passes import Canonicalize, DecomposeLstm, PassManager
from rnnqc.passes.normalize.compute_in_float32 import ComputeInFloat32
from rnnqc.passes.pipeline import NORMAL_FORM
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import CASES, apply, nodes_of
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.other_types import retyped, retyped_arrays
from tests.subjects.protos import parse

TYPES = (np.float16, np.float64)
# Operator sets from 14 on have float16 everywhere around the layer.
MODERN = [c for c in CASES if c.opset >= 14]


def canonical(proto: onnx.ModelProto) -> Model:
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def layer(op: str, dtype: Any) -> onnx.ModelProto:
    """One bidirectional layer with everything its operator takes."""
    rng = np.random.default_rng(3)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    shapes = {"W": (2, 5 * gates, 3), "R": (2, 5 * gates, 5), "B": (2, 10 * gates)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("X", kind, ["T", 2, 3])]
    inputs += [helper.make_tensor_value_info("lens", TensorProto.INT32, [2])]
    names = ["initial_h", "initial_c"][: 1 + (op == "LSTM")]
    inputs += [helper.make_tensor_value_info(n, kind, [2, 2, 5]) for n in names]
    outputs = ["Y", "Y_h", "Y_c"][: 2 + (op == "LSTM")]
    node = helper.make_node(op, ["X", "W", "R", "B", "lens", *names], outputs, hidden_size=5, direction="bidirectional")
    tensors = [numpy_helper.from_array(rng.uniform(-0.5, 0.5, s).astype(dtype), n) for n, s in shapes.items()]
    shown = [helper.make_tensor_value_info(n, kind, None) for n in outputs]
    graph = helper.make_graph([node], "layer", inputs, shown, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", TYPES)
def test_all_inputs_and_outputs(op: str, dtype: Any) -> None:
    """The layer is the float32 one of the same weights, and outputs have the type they had."""
    proto = layer(op, dtype)
    model = canonical(proto)
    result = ComputeInFloat32()(model)
    assert result.modified and result.statistics["nodes"] == 1
    (node,) = nodes_of(model, op)
    assert {str(dtype_of(v)) for v in (*node.inputs, *node.outputs) if v.name != "lens"} == {"float32"}
    rng = np.random.default_rng(4)
    feeds = {"X": rng.standard_normal((6, 2, 3)), "lens": np.array([6, 2], np.int32)}
    feeds |= {n: rng.uniform(-1, 1, (2, 2, 5)) for n in ("initial_h", "initial_c")[: 1 + (op == "LSTM")]}
    feeds = retyped_arrays(feeds, dtype)
    expected = run(plain_session(retyped(proto, np.float32, dtype)), retyped_arrays(feeds, np.float32))
    found = run(plain_session(model.proto), feeds)
    assert_same_bits({k: v.astype(dtype) for k, v in expected.items()}, found, f"{op} of {np.dtype(dtype)}")


@pytest.mark.parametrize("case", MODERN)
def test_everywhere(case: RecurrentCase) -> None:
    """In branches and loops; differences to onnxruntime's own float16 stay within what the pass declares."""
    model = canonical(retyped(case.model(), np.float16))
    feeds = [retyped_arrays(case.feeds(), np.float16)]
    result = apply(ComputeInFloat32(), model, feeds)
    nodes = nodes_of(model, "LSTM")
    assert result.statistics["nodes"] == len(nodes) == (2 if case.placement == "if" else 1)
    for node in nodes:
        assert all(constant_array(node.inputs[k]).dtype == np.float32 for k in (1, 2))  # type: ignore[union-attr]


def test_what_is_transposed_is_cast_before() -> None:
    """Bits are the same; onnxruntime crashes on the other order."""
    case = RecurrentCase(layout=1, initial_h=True, opset=17)
    proto = retyped(case.model(), np.float16)
    model = canonical(proto)
    apply(ComputeInFloat32(), model, [retyped_arrays(case.feeds(), np.float16)])
    transposed = [n for n in model.graph.nodes if n.op == "Transpose" and n.outputs[0].name.endswith(".float32")]
    assert len(transposed) == 2 and {n.inputs[0].inputs[0].op for n in transposed} == {"Cast"}
    casts = [n for n in model.graph.nodes if n.op == "Cast" and n.outputs[0].name.endswith(".float32")]
    assert [n for n in casts if n.inputs[0].inputs] == []  # of inputs of the graph


def test_shared_weights_stay_shared() -> None:
    case = RecurrentCase(I=4, H=4)
    model = canonical(retyped(stacked_model([case, case.replace(seed=1)], shared_weights=True), np.float16))
    apply(ComputeInFloat32(), model)
    first, second = nodes_of(model, "LSTM")
    assert [a is b for a, b in zip(first.inputs[1:4], second.inputs[1:4], strict=True)] == [True] * 3
    types = [str(c.dtype) for c in graph_info(model.graph).initializers.values()]
    assert types.count("float32") == 3 and "float16" not in types


def test_float32_is_left_alone() -> None:
    assert not apply(ComputeInFloat32(), canonical(RecurrentCase().model())).modified


def test_what_stays_float_keeps_its_type() -> None:
    case = RecurrentCase()
    computed = retyped(case.model(), np.float16)
    (r,) = [t for t in computed.graph.initializer if t.name == "R"]
    computed.graph.initializer.remove(r)
    computed.graph.input.append(helper.make_tensor_value_info("R", TensorProto.FLOAT16, list(r.dims)))
    enormous = retyped(case.model(), np.float64)
    (w,) = [t for t in enormous.graph.initializer if t.name == "W"]
    w.CopyFrom(numpy_helper.from_array(np.full(tuple(w.dims), 1e300), "W"))
    for proto in (computed, enormous):
        model = canonical(proto)
        text = model.proto.SerializeToString(deterministic=True)
        assert not ComputeInFloat32()(model).modified
        assert model.proto.SerializeToString(deterministic=True) == text


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("between", ["", "Cast <to = {to}> ", "Identity "])
def test_a_float32_layer_behind_a_transpose_of_another_type(dtype: Any, between: str) -> None:
    """The Cast moves in front of the Transpose: onnxruntime crashes where a matmul follows `Transpose -> Cast`.

    Tools that convert models to float16 leave layers float32 if asked to, and write Casts that convert nothing.
    """
    kind, to = {np.float16: ("float16", 10), np.float64: ("double", 11)}[dtype]
    rng = np.random.default_rng(6)
    arrays = {"W": (1, 20, 3), "R": (1, 20, 5)}
    middle = f"u = {between.format(to=to)}(t) " if between else ""
    proto = parse(
        f"""<ir_version: 8, opset_import: ["" : 17]> g ({kind}[2,T,3] x) => (float[T,1,2,5] y) {{
            t = Transpose <perm = [1, 0, 2]> (x) {middle}f = Cast <to = 1> ({"u" if between else "t"})
            y = LSTM <hidden_size = 5> (f, W, R)
        }}""",
        **{n: rng.uniform(-0.5, 0.5, s).astype(np.float32) for n, s in arrays.items()},
    )
    model = canonical(proto)
    feeds = {"x": rng.standard_normal((2, 6, 3)).astype(dtype)}
    expected = run(plain_session(proto), feeds)
    assert ComputeInFloat32()(model).modified
    (node,) = nodes_of(model, "LSTM")
    moved = node.inputs[0].inputs[0]
    assert moved.op == "Transpose" and dtype_of(moved.inputs[0]) == np.float32
    assert_same_bits(expected, run(plain_session(model.proto), feeds), f"{np.dtype(dtype)} {between}")
    assert not ComputeInFloat32()(model).modified
    PassManager([DecomposeLstm()], given=NORMAL_FORM).run(model)
    alone = "import sys, onnxruntime as ort; ort.InferenceSession(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", alone], input=model.proto.SerializeToString(), check=True)
