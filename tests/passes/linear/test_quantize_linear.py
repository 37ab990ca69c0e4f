"""quantize-linear: matmuls with constant weights become one integer node each.

What these would catch: a weight that is turned the wrong way, scales of the wrong axis, a bias or a factor that is lost
or counted twice, an output that another node still needs, a weight that is stored twice, a site that stays without a
word, a node that computes something else with the native library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import Outcome
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, Cleanup, PassManager, QuantizeEmbeddings, QuantizeLinear, StoreWeights
from rnnqc.passes.linear.quantize_linear import LEAST_WEIGHTS
from rnnqc.passes.rest.int8_weights import Int8Weights
from rnnqc.recipes.recipe import load_recipe
from tests.native import quant_linear_reference as quant_linear
from tests.passes.linear.linear_statistics import statistics_of
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import NATIVE, STOCK, run_both, session
from tests.runs.sessions import LEVELS, Array, assert_same_bits, plain_session, run, sqnr
from tests.subjects.protos import parse

K, N = 24, 40
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
X, Y = f"float[R,{K}] x", f"float[R,{N}] y"
CASES: dict[str, tuple[str, str, str, tuple[int, ...]]] = {
    "MatMul": (X, Y, "y = MatMul (x, w)", (K, N)),
    "MatMul of rank 3": (f"float[2,R,{K}] x", f"float[2,R,{N}] y", "y = MatMul (x, w)", (K, N)),
    "MatMul of rank 1": (f"float[{K}] x", f"float[{N}] y", "y = MatMul (x, w)", (K, N)),
    "with a bias": (X, Y, "p = MatMul (x, w) y = Add (p, b)", (K, N)),
    "with a bias in front": (X, Y, "p = MatMul (x, w) y = Add (b, p)", (K, N)),
    "with one number": (X, Y, "one = Constant <value_floats = [2.5]> () p = MatMul (x, w) y = Add (p, one)", (K, N)),
    "Gemm": (X, Y, "y = Gemm (x, w, b)", (K, N)),
    "Gemm without a bias": (X, Y, "y = Gemm (x, w)", (K, N)),
    "Gemm, transposed": (X, Y, "y = Gemm <transB = 1> (x, w, b)", (N, K)),
    "Gemm with factors": (X, Y, "y = Gemm <transB = 1, alpha = -0.5, beta = 3.0> (x, w, b)", (N, K)),
    "Gemm without its bias": (X, Y, "y = Gemm <beta = 0.0> (x, w, b)", (K, N)),
    "behind a Transpose": (X, Y, "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)", (N, K)),
    "behind an Identity": (X, Y, "t = Identity (w) y = MatMul (x, t)", (K, N)),
    "behind a Reshape": (
        X, Y, "s = Constant <value_ints = [24, 40]> () t = Reshape (w, s) y = MatMul (x, t)", (4, 6, N),
    ),
    "Conv": (f"float[2,{K},7] x", f"float[2,{N},7] y", "y = Conv (x, w, b)", (N, K, 1)),
    "Conv of one element": (f"float[1,{K},1] x", f"float[1,{N},1] y", "y = Conv (x, w)", (N, K, 1)),
    "Conv of images": (f"float[2,{K},3,5] x", f"float[2,{N},3,5] y", "y = Conv (x, w, b)", (N, K, 1, 1)),
    "Einsum": (f"float[2,R,{K}] x", f"float[2,R,{N}] y", 'y = Einsum <equation = "btk, kn -> btn"> (x, w)', (K, N)),
    "Einsum, transposed": (X, Y, 'p = Einsum <equation = "...k,nk->...n"> (x, w) y = Add (p, b)', (N, K)),
    "a Relu behind": (X, Y, "p = MatMul (x, w) q = Add (p, b) y = Relu (q)", (K, N)),
}  # fmt: skip
"""Input, output, nodes, and the shape of the weight."""


def draw(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def canonical(proto: onnx.ModelProto) -> Model:
    """The model as the pass gets it."""
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def case_model(name: str) -> onnx.ModelProto:
    """The float model of a case."""
    given, made, nodes, shape = CASES[name]
    arrays = {"w": draw(*shape), **({"b": draw(N, seed=1)} if "b)" in nodes or "(b" in nodes else {})}
    return parse(f"{HEAD} g ({given}) => ({made}) {{ {nodes} }}", **arrays)


def case_feeds(name: str) -> dict[str, Array]:
    """Rows of different size."""
    dims = CASES[name][0].split("[")[1].split("]")[0].split(",")
    shape = [5 if d == "R" else int(d) for d in dims]
    return {"x": draw(*shape, seed=2) * np.float32(3.0)}


def every_size(**arguments: Any) -> QuantizeLinear:
    """The pass for matrices of any size."""
    return QuantizeLinear(least_weights=1, **arguments)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CASES)
def test_sites(name: str) -> None:
    """Stock, native and numpy reference agree, and are near the float model."""
    model, feeds = canonical(case_model(name)), case_feeds(name)
    expected = run(plain_session(model.proto), feeds)
    result = apply(every_size(), model, [feeds])
    assert result.statistics == {"layers": 1}
    assert [s.form for s in result.stored.values()] == ["int8 matmul"]
    (node,) = nodes_of(model, "QuantLinear")
    assert not nodes_of(model, "MatMul", "Gemm", "Add", "Conv", "Einsum")
    proto = model.proto
    stock = run_both(proto, feeds)
    for level in (LEVELS[0], LEVELS[-1]):
        for way in (STOCK, NATIVE):
            assert_same_bits(stock, run(session(proto, way, level, 2), feeds), f"{way}, {level}")
    assert sqnr(expected["y"], stock["y"]) > 38
    inputs = {n: getattr(v, "values", None) for n, v in zip(("X", "W", "multiplier", "B"), node.inputs, strict=True)}
    is_conv = name.startswith("Conv")
    reference = quant_linear.run({**inputs, "X": np.moveaxis(feeds["x"], 1, -1) if is_conv else feeds["x"]}, {})
    reference = np.ascontiguousarray(np.moveaxis(reference, -1, 1)) if is_conv else reference
    wanted = np.maximum(reference, 0) if nodes_of(model, "Relu") else reference
    assert_same_bits({"y": wanted}, stock, "reference")


@pytest.mark.few(4)
@pytest.mark.parametrize("recipe", ["int8", "w4a8"])
@pytest.mark.parametrize("name", ["with a bias", "Gemm with factors", "behind a Transpose", "Conv"])
def test_the_nodes_of_the_function(name: str, recipe: str) -> None:
    """Without functions a layer is the same computation in standard operators alone."""
    feeds, made = case_feeds(name), []
    for functions in (True, False):
        model = canonical(case_model(name))
        apply(every_size(recipe=load_recipe(recipe), functions=functions), model, [feeds])
        made.append(run(session(model.proto, STOCK), feeds))
        assert bool(model.functions) == functions
        assert ("ai.rnnqc" in {n.domain for n in nodes_of(model)}) == functions
    assert_same_bits(made[0], made[1], name)


@pytest.mark.parametrize("placement", ["if", "loop", "scan"])
def test_in_subgraphs(placement: str) -> None:
    """With weights of the main graph."""
    bodies = {
        "if": "y = If (c) <then_branch = t () => (float[5,24] a) { a = MatMul (x, w) }, "
        "else_branch = e () => (float[5,24] d) { d = Neg (x) }>",
        "loop": "n = Constant <value = int64 {3}> () y = Loop (n, , x) <body = l (int64 i, bool k, float[5,24] h) => "
        "(bool m, float[5,24] o) { m = Identity (k) p = MatMul (x, w) s = Add (h, p) o = Tanh (s) }>",
        "scan": "h0 = ReduceSum <keepdims = 0> (x, axis) hn, y = Scan <num_scan_inputs = 1, body = s (float[24] h, "
        "float[24] e) => (float[24] o, float[24] z) { p = MatMul (e, w) o = Add (h, p) z = Tanh (o) }> (h0, x)",
    }
    model = canonical(
        parse(
            f"{HEAD} g (float[5,24] x, bool c) => (float[5,24] y) {{ {bodies[placement]} }}",
            w=draw(24, 24) / np.float32(5),
            axis=np.array([0], np.int64),
        )
    )
    feeds = {"x": draw(5, 24, seed=3), "c": np.array(True)}
    assert apply(every_size(), model, [feeds]).statistics == {"layers": 1}
    run_both(model.proto, feeds)


REFUSED = {
    "left operand": (f"float[{N},R] x", f"float[{K},R] y", "y = MatMul (w, x)", (K, N), "is the left operand"),
    "several matrices": (f"float[3,R,{K}] x", f"float[3,R,{N}] y", "y = MatMul (x, w)", (3, K, N), "is no matrix"),
    "transposed input": (f"float[{K},R] x", Y, "y = Gemm <transA = 1> (x, w)", (K, N), "transposes its input"),
    "a bias that is data": (f"{X}, float[{N}] d", Y, "y = Gemm (x, w, d)", (K, N), "bias is no constant row"),
    "a bias for each row": (f"float[5,{K}] x", f"float[5,{N}] y", "y = Gemm (x, w, c)", (K, N), "bias is no constant"),
    "as many rows as columns": (
        f"float[{N},{K}] x", f"float[{N},{N}] y", "y = Gemm (x, w, s)", (K, N), "bias is no constant",
    ),
    "Einsum of columns": (
        f"float[{K},R] x", f"float[{N},R] y", 'y = Einsum <equation = "kr,kn->nr"> (x, w)', (K, N), "is no matmul",
    ),
    "Einsum with a product": (
        f"float[{N},{K}] x", f"float[{N},{K}] y", 'y = Einsum <equation = "bk,bk->bk"> (x, w)', (N, K), "is no matmul",
    ),
    "Einsum of several matrices": (
        f"float[3,R,{K}] x", f"float[3,R,{N}] y", 'y = Einsum <equation = "bik,bkn->bin"> (x, w)', (3, K, N),
        "is no matmul",
    ),
}  # fmt: skip


BIASES = {"c": draw(5, 1), "s": draw(N, 1)}


@pytest.mark.parametrize("name", REFUSED)
def test_sites_that_stay(name: str) -> None:
    given, made, nodes, shape, reason = REFUSED[name]
    arrays = {"w": draw(*shape), **{n: a for n, a in BIASES.items() if f", {n})" in nodes}}
    model = canonical(parse(f"{HEAD} g ({given}) => ({made}) {{ {nodes} }}", **arrays))
    result = every_size()(model)
    assert not result.modified
    (remark,) = result.remarks
    assert reason in remark.reason
    assert remark.found
    assert remark.action
    assert remark.outcome is Outcome.NOTE  # its weight may still be stored in int8


@pytest.mark.parametrize("attributes", ["strides = [2]", "pads = [1, 1]", "group = 2", "wide"])
def test_convolutions_that_are_no_matmul(attributes: str) -> None:
    """This pass ignores them silently."""
    shape = (N, K, 3) if attributes == "wide" else (N, K // 2, 1) if "group" in attributes else (N, K, 1)
    given = "" if attributes == "wide" else f"<{attributes}>"
    proto = parse(f"{HEAD} g (float[2,{K},8] x) => (float[2,{N},L] y) {{ y = Conv {given} (x, w) }}", w=draw(*shape))
    result = every_size()(canonical(proto))
    assert not result.modified
    assert not result.remarks


def test_small_layers_stay() -> None:
    model = canonical(parse(f"{HEAD} g (float[R,512] x) => (float[R,511] y) {{ y = MatMul (x, w) }}", w=draw(512, 511)))
    result = QuantizeLinear()(model)
    assert not result.modified
    assert "too small" in result.remarks[0].reason
    assert 512 * 511 < LEAST_WEIGHTS <= 512 * 512
    large = canonical(parse(f"{HEAD} g (float[R,512] x) => (float[R,512] y) {{ y = MatMul (x, w) }}", w=draw(512, 512)))
    assert QuantizeLinear()(large).modified


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [
        (f"{Y}, float[R,{N}] p", "p = MatMul (x, w) y = Add (p, b)"),
        (f"{Y}, float[R,{N}] z", "p = MatMul (x, w) y = Add (p, b) z = Neg (p)"),
        (Y, "p = MatMul (x, w) y = Add (p, p)"),
        (f"float[5,{N}] y", "p = MatMul (x, w) y = Add (p, c)"),
        (f"float[1,R,{N}] y", "p = MatMul (x, w) y = Add (p, d)"),
        (
            f"float[{N},{N}] y",
            "one = Constant <value_ints = [0]> () r = Gather (x, one) p = MatMul (r, w) y = Add (p, s)",
        ),
    ],
)
def test_additions_that_are_no_bias(outputs: str, nodes: str) -> None:
    """The product is read by something else, or what is added is no row: the Add stays."""
    arrays = {"w": draw(K, N), "b": draw(N), "d": draw(1, 1, N), **BIASES}
    used = {n: a for n, a in arrays.items() if f"{n})" in nodes}
    model = canonical(parse(f"{HEAD} g ({X}) => ({outputs}) {{ {nodes} }}", **used))
    apply(every_size(), model, [{"x": draw(5, K, seed=2)}])
    assert len(nodes_of(model, "QuantLinear")) == len(nodes_of(model, "Add")) == 1


def test_one_weight_of_several_layers() -> None:
    """Stored once, with one function; layers with factors of their own have scales of their own."""
    nodes = "p = MatMul (x, w) q = MatMul (z, w) s = Gemm <alpha = 2.0> (v, w, b) pq = Add (p, q) y = Add (pq, s)"
    inputs = ", ".join(f"float[R,{K}] {n}" for n in "xzv")
    model = canonical(parse(f"{HEAD} g ({inputs}) => (float[R,{K}] y) {{ {nodes} }}", w=draw(K, K), b=draw(K)))
    result = apply(every_size(), model, [{n: draw(5, K, seed=k) for k, n in enumerate("xzv")}])
    assert result.statistics == {"layers": 3}
    assert len([t for t in model.proto.graph.initializer if t.data_type == onnx.TensorProto.INT8]) == 1
    assert [f.name for f in model.functions] == ["QuantLinear"]
    assert sum({k: v for s in result.stored.values() for k, v in s.constants.items()}.values()) == K * K + 4 * K


@pytest.mark.parametrize("transposed", [True, False])
def test_a_weight_that_is_an_embedding(transposed: bool) -> None:
    """The int8 table serves both; where its rows are inputs of the layer, not channels, its matmul stays float."""
    turn = "t = Transpose <perm = [1, 0]> (w)" if transposed else "t = Identity (w)"
    size = 30 if transposed else 16
    model = canonical(
        parse(
            f"{HEAD} g (int64[R] i, float[R,{16 if transposed else 30}] x) => (float[R,{size}] y, float[R,16] e) "
            f"{{ e = Gather (w, i) {turn} y = MatMul (x, t) }}",
            w=draw(30, 16) * np.arange(1, 31, dtype=np.float32)[:, None],
        )
    )
    feeds = {"i": np.arange(-3, 2), "x": draw(5, 16 if transposed else 30, seed=2)}
    expected = run(plain_session(model.proto), feeds)
    weights = Int8Weights()
    PassManager([QuantizeEmbeddings(weights)], given=QuantizeEmbeddings.info.requires).run(model)
    result = every_size(weights=weights)(model)
    PassManager([StoreWeights(weights), Cleanup()], given=StoreWeights.info.requires).run(model)
    assert len([t for t in model.proto.graph.initializer if t.data_type == onnx.TensorProto.INT8]) in (1, 2)
    found = run_both(model.proto, feeds)
    assert min(sqnr(expected[n], found[n]) for n in expected) > 36
    if transposed:
        assert result.statistics == {"layers": 1}
        assert len([t for t in model.proto.graph.initializer if t.data_type == onnx.TensorProto.INT8]) == 1


@pytest.mark.parametrize(
    ("name", "suffix", "row", "least"),
    [("w4a8", "4", 17, 16), ("w4a8-uneven", "4Uneven", 17, 18), ("w5a8", "5", 22, 22), ("w6a8", "6", 26, 28)],
)
def test_few_bits_in_groups(name: str, suffix: str, row: int, least: float) -> None:
    """A recipe with weights of few bits: packed, and compensated where second moments are known."""
    model = canonical(parse(f"{HEAD} g (float[R,70] x) => (float[R,33] y) {{ y = MatMul (x, w) }}", w=draw(70, 33)))
    nodes_of(model, "MatMul")[0].name = "fc"
    mixed = draw(70, 70, seed=4)
    x = draw(200, 70, seed=5) @ mixed
    expected = run(plain_session(model.proto), {"x": x})["y"]
    reached, recipe = [], load_recipe(name)
    for statistics in (None, statistics_of(x, "fc", (70, 33))):
        lowered = Model.load(model.proto)
        apply(
            every_size(recipe=recipe, statistics=statistics),
            lowered,
            [{"x": x}],
        )
        (node,) = nodes_of(lowered, f"QuantLinearInt{suffix}")
        assert node.inputs[1].shape == (70, row)
        stock = run_both(lowered.proto, {"x": x})
        reached.append(sqnr(expected, stock["y"]))
    assert reached[0] > least
    assert reached[1] > reached[0] + 1


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("*.weight.bits=none", "does not quantize"),
        ("*.input.bits=none", "does not quantize"),
        ("*.weight.bits=16", "has a format that integer linear layers have not"),
        ("*.weight.symmetric=false", "has a format"),
    ],
)
def test_what_a_recipe_says(override: str, reason: str) -> None:
    model = canonical(case_model("MatMul"))
    result = every_size(recipe=load_recipe("int8").with_overrides([override]))(model)
    assert not result.modified
    assert reason in result.remarks[0].reason


def test_nodes_keep_their_names() -> None:
    model = canonical(case_model("with a bias"))
    nodes_of(model, "MatMul")[0].name = "fc/matmul"
    result = apply(every_size(), model)
    assert list(result.stored) == ["fc/matmul"]
    assert [n.name for n in nodes_of(model, "QuantLinear")] == ["fc/matmul"]
    assert {i.name for i in model.proto.graph.initializer} >= {"fc/matmul.W", "fc/matmul.multiplier", "fc/matmul.B"}


@pytest.mark.parametrize("defect", ["weight", "multiplier", "bias"])
def test_wrong_constants_are_found(defect: str) -> None:
    """The check of the pass, which --verify runs, finds them."""
    model = canonical(case_model("Gemm with factors"))
    pass_ = every_size()
    check = pass_.constant_check(model)
    pass_.run(model)
    assert check.findings(model).wrong == []
    assert check.findings(model).compared == 2
    (node,) = nodes_of(model, "QuantLinear")
    index = {"weight": 1, "multiplier": 2, "bias": 3}[defect]
    held = np.array(node.inputs[index].values)
    held.flat[7] = held.flat[7] * 2 + 1 if defect != "weight" else held.flat[7] - 2
    node.inputs[index].values = held
    assert len(check.findings(model).wrong) == 1


def test_a_lowered_model_is_read_again() -> None:
    """Its functions are accepted as rnnqc's own."""
    model = canonical(case_model("Gemm"))
    apply(every_size(), model)
    again = rnnqc.Model.load(model.proto)
    assert not every_size()(again).modified
    assert run(rnnqc.session(model.proto), case_feeds("Gemm"))
