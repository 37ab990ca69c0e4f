"""fold-constants without floats, as every lowering runs it: indices, sizes and conditions, with the same bits.

What these would catch: a size that a file declares and a run does not have, sizes of two dimensions of one name taken
for equal, a default that a run replaces taken for a constant, a value of a loop taken from its first iteration, floats
that are computed, an output that goes, a file that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, FoldConstants, PassManager
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.sessions import Array, assert_same_bits, plain_session, run
from tests.subjects.protos import parse

HEADER = '<ir_version: 9, opset_import: ["": {}]> '
IF = "{} = If ({}) <then_branch = t () => ({} a) {{ {} }}, else_branch = e () => ({} a) {{ {} }}>"
FOLDED: dict[str, tuple[str, str, list[str]]] = {
    "int32 beside int64": (
        "g (float[2,3] x) => (int32[2] y) <int32[2] k = {-7, 7}>",
        "s = Shape (x) c = Cast <to = 6> (s) m = Mul (c, k) d = Div (m, c) a = Abs (d) n = Neg (a) y = Mod (n, c)",
        ["Mod"],
    ),
    "nothing of a shape": (
        "g (float[A,3] x) => (float[A,3] y) <int64[1] a = {2}, int64[1] b = {1}, int64[2] k = {-1, 3}>",
        "s = Shape (x) e = Slice (s, a, b) t = Concat <axis = 0> (e, k) y = Reshape (x, t)",
        ["Reshape"],
    ),
    "a scalar of a Shape of scalars": (
        "g (float[2,3] x, int64 n) => (int64 y)",
        "s = Size (x) t = Shape (s) p = ReduceProd <keepdims = 0> (t) m = Mul (p, s) y = Add (m, n)",
        ["Add"],
    ),
    "what a branch reads": (
        "g (float[2,3] x, bool c) => (float[6] y)",
        "s = Shape (x) p = ReduceProd <keepdims = 1> (s) "
        + IF.format("y", "c", "float[6]", "a = Reshape (x, p)", "float[6]", "n = Neg (x) a = Reshape (n, p)"),
        ["If", "Neg", "Reshape", "Reshape"],
    ),
    "a branch": (
        "g (float[2,3] x) => (float[2,3] y) <int64 one = {1}, int64 three = {3}>",
        "s = Shape (x) n = Gather (s, one) c = Equal (n, three) "
        + IF.format("y", "c", "float[2,3]", "a = Relu (x)", "float[2,3]", "a = Neg (x)"),
        ["Relu"],
    ),
    "a shape inside a loop": (
        "g (float[2,3] x) => (float[3,6] y) <int64 n = {3}, bool c = {1}>",
        """z, y = Loop (n, c, x) <body = b (int64 i, bool k, float[2,3] h) => (bool l, float[2,3] g, float[6] o)
        { l = Identity (k) g = Neg (h) s = Shape (x) p = ReduceProd <keepdims = 1> (s) o = Reshape (h, p) }>""",
        ["Identity", "Loop", "Neg", "Reshape"],
    ),
}
"""Inputs, outputs and initializers; nodes; operators that stay."""
KEPT: dict[str, tuple[str, str]] = {
    "a size of a name": ("g (float[A,B] x) => (int64[2] y)", "s = Shape (x) y = Neg (s)"),
    "sizes of one name": (
        "g (float[A] x, float[A] z) => (int64[1] y)",
        "s = Shape (x) r = Shape (z) d = Sub (s, r) y = Neg (d)",
    ),
    "floats": (
        "g (float[2] x) => (float[2] y) <float[2] k = {1.5, 2.5}>",
        "e = Exp (k) f = Cast <to = 10> (e) h = Cast <to = 1> (f) y = Add (x, h)",
    ),
    "what takes more than its node": ("g (float[1,2,1,1,2,1,1,1] x) => (int64[8] y)", "s = Shape (x) y = Neg (s)"),
    "more than 64 bytes": (
        "g (int64[9] x) => (int64[9] y) <int64 a = {0}, int64 b = {9}, int64 d = {1}>",
        "r = Range (a, b, d) y = Add (x, r)",
    ),
    "an output": (
        "g (float[2,3] x, int64[2] k) => (int64[2] s, int64[2] y) <int64[2] a = {1, 2}, int64[2] b = {3, 4}>",
        "s = Mul (a, b) y = Add (s, k)",
    ),
    "what a loop carries": (
        "g (float[2] x) => (float[M] y, int64[1] q) <int64 n = {3}, bool c = {1}, int64[1] z = {0}>",
        """y, q = Loop (n, c, x, z) <body = b (int64 i, bool k, float[K] h, int64[1] v) => (bool l, float[L] g,
        int64[1] w) { l = Identity (k) g = Concat <axis = 0> (h, h) s = Shape (h) w = Add (s, v) }>""",
    ),
    "a division by zero": ("g (int64[2] x) => (int64[2] y) <int64[2] z = {0, 1}>", "d = Div (z, z) y = Add (x, d)"),
}
"""Inputs, outputs and initializers; nodes."""
SLICED: dict[str, tuple[str, str, int, str]] = {
    "the last two": ("{-2}, int64[1] b = {9223372036854775807}", "", 15, "Shape"),
    "none": ("{2}, int64[1] b = {1}", "", 15, ""),
    "from before the first": ("{-9223372036854775808}, int64[1] b = {-1}", ", z", 15, "Shape"),
    "no attributes yet": ("{0}, int64[1] b = {2}", "", 14, "Slice"),
    "every second": ("{0}, int64[1] b = {3}", ", z, t", 15, "Slice"),
}
"""Start and end; further operands; operator set; the operator that makes the result, if any."""


CONSTANTS = """<int64[2] k = {5, 7}, int64[1] first = {0}, int64[1] second = {1}, int64[1] third = {2},
int64[1] one = {1}, int64[1] two = {2}, bool[1] yes = {1}>"""


def _model(graph: str, nodes: str, opset: int = 17) -> Model:
    model = Model.load(parse(f"{HEADER.format(opset)} {graph} {{ {nodes} }}"))
    PassManager([Canonicalize()]).run(model)
    return model


def _fold(model: Model, feeds: Sequence[Mapping[str, Array]] | None = None) -> None:
    """Runs the pass on a model, which must not become larger."""
    before = model.proto.ByteSize()
    apply(FoldConstants(floats=False), model, feeds)
    assert model.proto.ByteSize() <= before


@pytest.mark.parametrize("name", FOLDED)
def test_indices_are_computed(name: str) -> None:
    graph, nodes, left = FOLDED[name]
    model = _model(graph, nodes)
    _fold(model)
    assert sorted(n.op for n in nodes_of(model) if n.op != "Constant") == left


@pytest.mark.parametrize("name", KEPT)
def test_everything_else_stays(name: str) -> None:
    model = _model(*KEPT[name])
    assert not FoldConstants(floats=False).run(model).modified


@pytest.mark.parametrize("name", SLICED)
def test_a_slice_of_a_shape(name: str) -> None:
    bounds, operands, opset, expected = SLICED[name]
    graph = f"g (float[A,B,4] x) => (int64[K] y) <int64[1] a = {bounds}, int64[1] z = {{0}}, int64[1] t = {{2}}>"
    model = _model(graph, f"s = Shape (x) e = Slice (s, a, b{operands}) y = Neg (e)", opset)
    _fold(model)
    maker = nodes_of(model, "Neg")[0].inputs[0].inputs
    assert [n.op for n in maker] == ([expected] if expected else [])


def test_declared_shapes_are_not_believed() -> None:
    """`t` has the size of `x`, which no file knows; onnxruntime only warns."""
    model = _model("g (float[A,B] x) => (int64[2] y) <float[3,3] t>", "t = Relu (x) s = Shape (t) y = Neg (s)")
    FoldConstants(floats=False)(model)
    assert run(plain_session(model.proto), {"x": np.zeros((4, 5), np.float32)})["y"].tolist() == [-4, -5]


def test_defaults_are_no_constants() -> None:
    """A run may give another `k`, which changes shape and condition."""
    model = _model(
        "g (float[2,3] x, int64[2] k, bool c) => (float[M,N] y) <int64[2] k = {3, 2}, bool c = {1}>",
        "r = Add (k, k) h = Sub (r, k) z = Reshape (x, h) "
        + IF.format("y", "c", "float[M,N]", "a = Relu (z)", "float[M,N]", "a = Neg (z)"),
    )
    before = model.proto
    assert not FoldConstants(floats=False)(model).modified
    feeds = {"x": np.ones((2, 3), np.float32), "k": np.array([6, 1]), "c": np.array(False)}
    assert_same_bits(run(plain_session(before), feeds), run(plain_session(model.proto), feeds), "other defaults")


def test_sizes_below_zero_are_no_sizes() -> None:
    """Some exporters write -1 for a dimension of any size; -1 + 2 is not 1."""
    graph = onnx.parser.parse_graph(
        "g (float[N,5] x) => (int64[2] y) <int64[4] p = {2, 0, 0, 0}> { c = Pad (x, p) s = Shape (c) y = Neg (s) }"
    )
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model = Model.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9))
    PassManager([Canonicalize()]).run(model)
    FoldConstants(floats=False)(model)
    assert run(plain_session(model.proto), {"x": np.zeros((3, 5), np.float32)})["y"].tolist() == [-5, -5]


@st.composite
def _expressions(draw: st.DrawFn) -> tuple[str, int]:
    """Nodes that compute with sizes of `x` [2,N,3] and of `z` [4], vectors of int64; the number of values."""
    lines, values = ["s0 = Shape (x)", "s1 = Shape (z)", "s2 = Abs (k)"], 3
    for _ in range(draw(st.integers(1, 12))):
        a, b = (f"s{draw(st.integers(0, values - 1))}" for _ in range(2))
        operator: Any = draw(
            st.sampled_from(
                (
                    f"Concat <axis = 0> ({a}, {b})",
                    f"Slice ({a}, first, second)",
                    f"Slice ({a}, second, third)",
                    f"Gather ({a}, first)",
                    f"ReduceProd <keepdims = 1> ({a})",
                    f"ReduceMax <keepdims = 1> ({a})",
                    f"Neg ({a})",
                    f"Mul ({a}, {a})",
                    f"Sub ({a}, one)",
                    f"Div ({a}, two)",
                    f"Where (yes, {a}, {a})",
                    f"Shape ({a})",
                )
            )
        )
        lines.append(f"s{values} = {operator}")
        values += 1
    return "\n".join(lines), values


@settings(max_examples=max(15, settings().max_examples))
@given(_expressions(), st.data())
def test_any_expression_of_sizes(drawn: tuple[str, int], data: st.DataObject) -> None:
    """The same bits for sizes that are not known, from files that are not larger."""
    nodes, values = drawn
    shown = data.draw(st.lists(st.integers(0, values - 1), min_size=1, max_size=3, unique=True))
    outputs = ", ".join(f"int64[K{k}] y{k}" for k in shown)
    results = "\n".join(f"y{k} = Add (s{k}, n)" for k in shown)
    graph = f"g (float[2,N,3] x, float[4] z, int64[1] n) => ({outputs}) {CONSTANTS}"
    try:
        model = _model(graph, f"{nodes}\n{results}")
        before = _results(model)
    except (CompileError, Fail, InvalidArgument, RuntimeException):
        reject()  # of nothing there is no element, and no largest
    size = model.proto.ByteSize()
    FoldConstants(floats=False)(model)
    assert model.proto.ByteSize() <= size
    for expected, found in zip(before, _results(model), strict=True):
        assert_same_bits(expected, found, "folded")


def _results(model: Model) -> list[Mapping[str, Array]]:
    """For two sizes of the unknown dimension."""
    session = plain_session(model.proto)
    feeds = ({"x": np.zeros((2, n, 3), np.float32), "z": np.zeros(4, np.float32), "n": np.array([9])} for n in (1, 7))
    return [run(session, feed) for feed in feeds]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fewer"),
    [("gtcrn/gtcrn", 1000), ("silero_vad/silero_vad_16k_op15", 70), ("exporters/deepfilternet_df_dec", 20)],
)
def test_public_models(shared: Callable[[str], Path], name: str, fewer: int) -> None:
    """The pass removes at least the given number of nodes; outputs are compared bit by bit."""
    model = Model.load(str(shared(f"models/{name}.onnx")))
    PassManager([Canonicalize()]).run(model)
    before = len(nodes_of(model))
    given = {"sr": np.array(16000), "input": np.random.default_rng(0).standard_normal((1, 576)).astype(np.float32)}
    _fold(model, [given | {"state": np.ones((2, 1, 128), np.float32)}] if "sr" in _inputs(model) else None)
    assert len(nodes_of(model)) <= before - fewer


def _inputs(model: Model) -> list[str]:
    return [v.name for v in model.graph.inputs]
