"""widen-products: float16 matmuls behind a Transpose compute in float32.

What these would catch: a lowered file that ends the process that opens it, a matmul in a branch or behind a Cast that
stays, weights that the file holds in float32, other matmuls that lose their type.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model, dtype_of, graph_info
from rnnqc.lowering.executable import executable
from rnnqc.passes import Canonicalize, PassManager, WidenProducts
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import run_both
from tests.runs.sessions import Array
from tests.subjects.protos import parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g'
TYPES = "(float16[A,B,4] x) => (float16[B,A,3] y)"
CASES = {
    "left operand": "t = Transpose <perm = [1, 0, 2]> (x) y = MatMul (t, w)",
    "behind an idle Cast": "t = Transpose <perm = [1, 0, 2]> (x) c = Cast <to = 10> (t) y = MatMul (c, w)",
    "in a branch": """n = Size (x) c = Equal (n, n) y = If (c) <
        then_branch = one () => (float16[B,A,3] p) { t = Transpose <perm = [1, 0, 2]> (x) p = MatMul (t, w) },
        else_branch = two () => (float16[B,A,3] q) { s = Transpose <perm = [1, 0, 2]> (x) q = MatMul (s, w) }
    >""",
}
BATCH_FIRST = """<ir_version: 8, opset_import: ["" : 17]> g (float16[B,T,6] x) => (float16[B,T,7] y) {
    steps = Transpose <perm = [1, 0, 2]> (x)
    all = LSTM <hidden_size = 16> (steps, W, R)
    axes = Constant <value_ints = [1]> ()
    h = Squeeze (all, axes)
    rows = Transpose <perm = [1, 0, 2]> (h)
    y = MatMul (rows, w)
}"""


def _half(*shape: int) -> Array:
    return (np.random.default_rng(0).standard_normal(shape) * 0.4).astype(np.float16)


def _model(nodes: str) -> Model:
    model = Model.load(parse(f"{HEAD} {TYPES} {{ {nodes} }}", w=_half(4, 3)))
    PassManager([Canonicalize()]).run(model)
    return model


def _opens(model: onnx.ModelProto) -> bool:
    """Whether a process of its own makes a session with all of onnxruntime's optimizations, and runs on."""
    text = "import sys, onnxruntime as ort; ort.InferenceSession(sys.stdin.buffer.read())"
    return subprocess.run([sys.executable, "-c", text], input=model.SerializeToString(), check=False).returncode == 0


@pytest.mark.parametrize("name", CASES)
def test_behind_a_transpose(name: str) -> None:
    model = _model(CASES[name])
    result = apply(WidenProducts(), model, [{"x": _half(2, 5, 4)}])
    products = nodes_of(model, "MatMul")
    assert result.statistics == {"matmuls": len(products)}
    assert {str(dtype_of(v)) for n in products for v in (*n.inputs, *n.outputs)} == {"float32"}
    assert {str(v.dtype) for v in graph_info(model.graph).initializers.values()} <= {"float16", "int64"}
    assert _opens(model.proto)


@pytest.mark.parametrize(
    "nodes",
    ["y = MatMul (x, w)", "t = Neg (x) y = MatMul (t, w)", "c = Transpose <perm = [1, 0]> (v) y = MatMul (x, c)"],
)
def test_others_keep_their_type(nodes: str) -> None:
    weights = {"v": _half(3, 4)} if "(v)" in nodes else {"w": _half(4, 3)}
    model = Model.load(parse(f"{HEAD} (float16[A,B,4] x) => (float16[A,B,3] y) {{ {nodes} }}", **weights))
    PassManager([Canonicalize()]).run(model)
    assert not apply(WidenProducts(), model, [{"x": _half(2, 5, 4)}]).modified


@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_a_layer_with_the_batch_in_front(form: str) -> None:
    """onnxruntime may not open the float model; the lowered one it does."""
    proto = parse(BATCH_FIRST, W=_half(1, 64, 6), R=_half(1, 64, 16), w=_half(16, 7))
    lowered = rnnqc.lower(proto, form=form)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    assert _opens(lowered.model.proto)
    assert run_both(lowered.model.proto, {"x": _half(2, 9, 6)}, form)["y"].dtype == np.float16


def test_comparisons_run_the_float_model() -> None:
    """`verify`, `report`, `tune` and `bench` would end with the process where onnxruntime opens the model as it is."""
    proto = parse(BATCH_FIRST, W=_half(1, 64, 6), R=_half(1, 64, 16), w=_half(16, 7))
    made = executable(proto)
    assert _opens(made) and nodes_of(Model.load(made), "LSTM")
    others = parse(f"{HEAD} {TYPES} {{ y = MatMul (x, w) }}", w=_half(4, 3))
    assert executable(others) is others
