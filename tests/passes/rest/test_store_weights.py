"""store-weights: int8 constants that standard operators make floats of.

What these would catch: scales of the wrong axis or group, a weight behind a Transpose that is left out or turned twice,
a tied weight that is stored twice, arithmetic that is not that of the dequantized weights, a session that computes the
floats anew in every run, a weight that stays float without a word.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.errors import Outcome
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, Cleanup, PassManager, QuantizeEmbeddings, StoreWeights
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.rest.int8_weights import Int8Weights
from tests.passes.pass_testing import apply, declines, nodes_of
from tests.runs.sessions import LEVELS, Array, assert_same_bits, options, run
from tests.subjects.protos import parse
from tests.subjects.whole_models import WholeModel, in_groups

HEAD = '<ir_version: 8, opset_import: ["" : {opset}]>'
CASES = {
    "MatMul": ("float[N,24] x", "float[N,40] y", "y = MatMul (x, w)", (24, 40), 1),
    "MatMul, constant on the left": ("float[40,N] x", "float[24,N] y", "y = MatMul (w, x)", (24, 40), 0),
    "MatMul of several matrices": ("float[3,N,24] x", "float[3,N,40] y", "y = MatMul (x, w)", (3, 24, 40), 2),
    "Gemm": ("float[N,24] x", "float[N,40] y", "y = Gemm (x, w)", (24, 40), 1),
    "Gemm, transposed": ("float[N,24] x", "float[N,40] y", "y = Gemm <transB = 1> (x, w)", (40, 24), 0),
    "Gemm, constant on the left": ("float[40,N] x", "float[24,N] y", "y = Gemm <transA = 1> (w, x)", (40, 24), 1),
    "Conv": ("float[N,8,T] x", "float[N,24,T] y", "y = Conv <pads = [1, 1]> (x, w)", (24, 8, 3), 0),
    "Conv in groups": ("float[N,8,T] x", "float[N,48,T] y", "y = Conv <group = 2> (x, w)", (48, 4, 3), 0),
    "ConvTranspose": ("float[N,24,T] x", "float[N,16,U] y", "y = ConvTranspose (x, w)", (24, 16, 3), 1),
    "behind a Transpose": (
        "float[N,24] x", "float[N,40] y", "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)", (40, 24), 0,
    ),
    "behind a Transpose without perm": (
        "float[N,24] x", "float[N,40] y", "t = Transpose (w) i = Identity (t) y = MatMul (x, i)", (40, 24), 0,
    ),
    "behind a Reshape": (
        "float[N,24] x", "float[N,40] y",
        "s = Constant <value_ints = [24, 40]> () t = Reshape (w, s) y = MatMul (x, t)", (4, 6, 40), 2,
    ),
    "embedding of columns": ("int64[N] x", "float[24,N] y", "y = Gather <axis = 1> (w, x)", (24, 400), 1),
}  # fmt: skip
"""Input, output, nodes, shape of the weight, and the axis of its scales."""


def _weight(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _proto(name: str, opset: int = 17) -> onnx.ModelProto:
    given, made, nodes, shape, _ = CASES[name]
    return parse(f"{HEAD.format(opset=opset)} g ({given}) => ({made}) {{ {nodes} }}", w=_weight(shape))


def _feeds(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    kind, dims = CASES[name][0].split()[0].split("[")
    shape = [5 if d in "NT" else int(d) for d in dims.rstrip("]").split(",")]
    if kind == "int64":
        return {"x": rng.integers(0, 400, shape)}
    return {"x": rng.standard_normal(shape).astype(np.float32)}


def _canonical(proto: onnx.ModelProto) -> Model:
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def _session(model: onnx.ModelProto, level: str) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), options(level), providers=["CPUExecutionProvider"])


def _dequantized(name: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the floats that the int8 values stand for."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    (tensor,) = (t for t in made.graph.initializer if t.name == "w")
    array = _weight(CASES[name][3])
    tensor.CopyFrom(numpy_helper.from_array(in_groups(array, CASES[name][4]), "w"))
    return made


@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_the_dequantized_weights(name: str) -> None:
    """At every level of onnxruntime's optimizations."""
    proto, feeds = _proto(name), _feeds(name)
    model = _canonical(proto)
    reference = _dequantized(name, model.proto)
    result = apply(StoreWeights(), model, [feeds])
    assert [s.form for s in result.stored.values()] == ["int8 storage"]
    for level in LEVELS:
        expected = run(_session(reference, level), feeds)
        assert_same_bits(expected, run(_session(model.proto, level), feeds), f"{name} {level}")


@pytest.mark.parametrize("opset", [13, 21])
def test_other_operator_sets(opset: int) -> None:
    name = "behind a Transpose"
    model = _canonical(_proto(name, opset))
    reference = _dequantized(name, model.proto)
    apply(StoreWeights(), model, [_feeds(name)])
    for level in LEVELS:
        expected = run(_session(reference, level), _feeds(name))
        assert_same_bits(expected, run(_session(model.proto, level), _feeds(name)), f"{opset} {level}")


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_folds_them(name: str, tmp_path: Path) -> None:
    """A session has the operators that it has of the float model: nothing is computed anew in every run."""
    proto = _proto(name)
    model = _canonical(proto)
    apply(StoreWeights(), model, [_feeds(name)])
    operators = []
    for k, made in enumerate((proto, model.proto)):
        chosen = options("ORT_ENABLE_EXTENDED")
        chosen.optimized_model_filepath = str(tmp_path / f"{k}.onnx")
        ort.InferenceSession(made.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
        operators.append([n.op_type for n in onnx.load(chosen.optimized_model_filepath).graph.node])
    assert operators[0] == operators[1]


def test_bytes() -> None:
    model = _canonical(_proto("Conv"))
    (stored,) = apply(StoreWeights(), model, [_feeds("Conv")]).stored.values()
    held = {t.name: numpy_helper.to_array(t) for t in model.proto.graph.initializer}
    assert stored.constants == {n: a.nbytes for n, a in held.items() if a.dtype != np.int64}
    assert {a.dtype.name: a.shape for a in held.values()} == {
        "int8": (24, 3, 8),
        "float16": (24, 3, 1),
        "int64": (3,),
    }


def test_groups_that_are_small_in_their_channel() -> None:
    """A few of them, or groups of zeros, do not double all scales; the channel's loss includes theirs."""
    weight = _weight((24, 40))
    weight[:8, 3] = 0.0
    weight[:8, 4] *= np.float32(1e-5)
    weight[:8, 5] *= np.float32(1e-30)
    proto = _proto("MatMul")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    model = _canonical(proto)
    apply(StoreWeights(), model, [_feeds("MatMul")])
    (scale,) = (a for t in model.proto.graph.initializer if (a := numpy_helper.to_array(t)).dtype.kind == "f")
    assert (scale.dtype, bool((scale > 0).all())) == (np.float16, True)
    got = run(_session(model.proto, "ORT_ENABLE_ALL"), {"x": np.eye(24, dtype=np.float32)})["y"]
    assert (np.abs(got - weight) <= np.abs(weight).max(axis=0) / 125).all()
    small = weight[:8, 4]
    assert np.abs(got[:8, 4] - small).max() <= np.abs(small).max() / 100, "not rounded to zero"


@pytest.mark.parametrize(("factor", "dtype"), [(1.0, "float16"), (1e-6, "float32"), (1e7, "float32")])
def test_scales_that_float16_has_not_are_float32(factor: float, dtype: str) -> None:
    """The loss is the same share of the weights."""
    weight = _weight((24, 40)) * np.float32(factor)
    proto = _proto("MatMul")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    model = _canonical(proto)
    apply(StoreWeights(), model, [_feeds("MatMul")])
    arrays = [numpy_helper.to_array(t) for t in model.proto.graph.initializer]
    assert dtype in {a.dtype.name for a in arrays}
    got = run(_session(model.proto, "ORT_ENABLE_ALL"), {"x": np.eye(24, dtype=np.float32)})["y"]
    assert np.abs(got - weight).max() <= np.abs(weight).max() / 250


@pytest.mark.parametrize("grid", ["power of two", "of channels", "of all"])
def test_weights_that_are_int8_values_stay(grid: str) -> None:
    """Models are trained with such weights; a group's weights need not reach 127."""
    rng = np.random.default_rng(2)
    codes = rng.integers(-60, 61, (24, 8, 30)).astype(np.float32)
    codes[:, 0, 0] = 127.0
    if grid == "of all":
        codes[1:, 0, 0] = 3.0
    steps = np.exp(rng.standard_normal((24, 1, 1))).astype(np.float16) if grid == "of channels" else np.float16(0.0123)
    weight = codes * np.float32(1 / 256) if grid == "power of two" else codes * steps.astype(np.float32)
    text = f"{HEAD.format(opset=17)} g (float[N,8,T] x) => (float[N,24,T] y) {{ y = Conv (x, w) }}"
    model = _canonical(parse(text, w=weight))
    apply(StoreWeights(), model, [{"x": np.ones((1, 8, 40), np.float32)}])
    (floats,) = (n.inputs[1] for n in nodes_of(model, "Conv"))
    held = Constants(model).array(floats)
    assert held is not None
    np.testing.assert_allclose(held, weight, rtol=2**-10, atol=0)
    if grid == "power of two":
        assert held.tobytes() == weight.tobytes()


def test_groups_hold_channels_with_one_large_weight() -> None:
    """Weights in other groups are as precise as without the large weight."""
    weight = _weight((24, 8, 30))
    weight[:, 0, 0] = 100.0
    text = f"{HEAD.format(opset=17)} g (float[N,8,T] x) => (float[N,24,T] y) {{ y = Conv (x, w) }}"
    model = _canonical(parse(text, w=weight))
    apply(StoreWeights(), model, [{"x": np.ones((1, 8, 40), np.float32)}])
    (floats,) = (n.inputs[1] for n in nodes_of(model, "Conv"))
    error = np.abs(Constants(model).array(floats) - weight).reshape(24, -1)  # type: ignore[operator]
    assert error[:, 64:].max() < 4 / 127


def test_a_tied_table_is_stored_once() -> None:
    proto = WholeModel(tied=True).model()
    model, weights = _canonical(proto), Int8Weights()
    first = apply(QuantizeEmbeddings(weights), model, [WholeModel.feeds()]).stored
    second = apply(StoreWeights(weights), model, [WholeModel.feeds()]).stored
    assert len(first) == 1
    assert len(second) == 3
    assert sum(s.constants == next(iter(first.values())).constants for s in second.values()) == 1
    apply(Cleanup(), model, [WholeModel.feeds()])
    arrays = [numpy_helper.to_array(t) for t in model.proto.graph.initializer]
    assert len([a for a in arrays if a.dtype == np.int8]) == 3, "table, kernel and projection"


def test_in_a_subgraph() -> None:
    """A weight outside the branch that reads it, and one in it."""
    text = f"""{HEAD.format(opset=17)} g (float[N,24] x, bool c) => (float[N,40] y) {{
        y = If (c) <
            then_branch = a () => (float[N,40] p) {{ p = MatMul (x, w) }},
            else_branch = b () => (float[N,40] q) {{ q = MatMul (x, v) }}
        >
    }}"""
    proto = parse(text, w=_weight((24, 40)))
    branch = next(a.g for a in proto.graph.node[0].attribute if a.name == "else_branch")
    branch.initializer.append(numpy_helper.from_array(2 * _weight((24, 40)), "v"))
    model = _canonical(proto)
    feeds = [{"x": _feeds("MatMul")["x"], "c": np.array(c)} for c in (True, False)]
    assert len(apply(StoreWeights(), model, feeds).stored) == 2
    for level in LEVELS:
        one, two = (run(_session(model.proto, level), f)["y"] for f in feeds)
        assert (2 * one).tobytes() == two.tobytes(), f"scales of both are alike: {level}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("small", "would save less than"),
        ("not finite", "NaN or infinite"),
        ("float16", "not float32"),
        ("double", "not float32 or float16"),
        ("input", "may replace"),
        ("read elsewhere", "read as floats"),
    ],
)
def test_what_stays_has_a_reason(change: str, reason: str) -> None:
    weight = _weight((24, 40))
    text = f"{HEAD.format(opset=17)} g (float[N,24] x) => (float[N,40] y) {{ y = MatMul (x, w) }}"
    if change == "small":
        text, weight = text.replace("40", "10"), weight[:, :10]
    elif change == "not finite":
        weight[1, 2] = np.nan
    elif change == "float16":
        text, weight = text.replace("float[", "float16[").replace("40", "80"), np.tile(weight, 2).astype(np.float16)
    elif change == "double":
        text, weight = text.replace("float[", "double["), weight.astype(np.float64)
    elif change == "read elsewhere":
        text = text.replace("y = MatMul (x, w)", "y = MatMul (x, w) z = Neg (w)")
        text = text.replace("(float[N,40] y)", "(float[N,40] y, float[24,40] z)")
    proto = parse(text, w=weight)
    if change == "input":
        proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape))
    result = declines(StoreWeights(), _canonical(proto), reason, Outcome.FLOAT)
    assert not result.modified
    assert not result.stored
