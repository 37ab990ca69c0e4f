"""widen-operators: operators with float16 weights compute in float32, so that int8 can store the weights.

What these would catch: a float16 model that `--rest int8` leaves as large as it was, an input or bias that stays
float16, a tied weight that is stored twice, a weight that stays in the file in float32, sizes of another type in the
report, statistics of float16 layers that are not gathered.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import Outcome
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Model, constant_array, dtype_of, graph_info
from rnnqc.passes import Canonicalize, PassManager, WidenOperators
from tests.passes.pass_testing import INT8, apply, nodes_of
from tests.runs.lowered import run_both
from tests.runs.sessions import Array, plain_session, run, sqnr
from tests.subjects import whole_models
from tests.subjects.protos import parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
CASES = {
    "MatMul": ("float16[N,24] x", "float16[N,80] y", "y = MatMul (x, w)", (24, 80)),
    "MatMul behind a Transpose": (
        "float16[24,N] x", "float16[N,80] y", "t = Transpose <perm = [1, 0]> (x) y = MatMul (t, w)", (24, 80),
    ),
    "Gemm with a bias": ("float16[N,24] x", "float16[N,80] y", "y = Gemm <transB = 1> (x, w, b)", (80, 24)),
    "Gemm with a computed bias": ("float16[N,24] x", "float16[N,80] y", "c = Neg (b) y = Gemm (x, w, c)", (24, 80)),
    "Conv with a bias": ("float16[N,8,T] x", "float16[N,80,T] y", "y = Conv <pads = [1, 1]> (x, w, b)", (80, 8, 3)),
    "embedding": ("int64[N,T] x", "float16[N,T,24] y", "y = Gather (w, x)", (100, 24)),
    "behind a Transpose": (
        "float16[N,24] x", "float16[N,80] y", "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)", (80, 24),
    ),
    "in a branch": (
        "float16[N,24] x", "float16[N,80] y",
        """n = Size (x) c = Equal (n, n) y = If (c) <
            then_branch = one () => (float16[N,80] p) { p = MatMul (x, w) },
            else_branch = two () => (float16[N,80] q) { m = Neg (x) q = MatMul (m, w) }
        >""", (24, 80),
    ),
}  # fmt: skip
"""Input, output, nodes, shape of the weight."""
SMALL = "%s g (float16[N,24] x) => (float16[N,10] y) { y = MatMul (x, w) }"
READ_ELSEWHERE = "%s g (float16[N,24] x) => (float16[N,80] y, float16[24,80] z) { y = MatMul (x, w) z = Neg (w) }"


def _half(*shape: int) -> Array:
    return (np.random.default_rng(0).standard_normal(shape) * 0.3).astype(np.float16)


def _model(text: str, **arrays: Array) -> Model:
    model = Model.load(parse(text, **{n: a for n, a in arrays.items() if n in text.split("{", 1)[1]}))
    PassManager([Canonicalize()]).run(model)
    return model


def _case(name: str) -> Model:
    given, made, nodes, shape = CASES[name]
    return _model(f"{HEAD} g ({given}) => ({made}) {{ {nodes} }}", w=_half(*shape), b=_half(80))


def _feeds(model: Model) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    (given,) = model.proto.graph.input
    shape = [d.dim_value or 5 for d in given.type.tensor_type.shape.dim]
    if given.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return {"x": rng.integers(-100, 100, shape)}
    return {"x": rng.standard_normal(shape).astype(np.float16)}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    """The operator and its constants are float32, its input and output float16 as before; so are the results."""
    model = _case(name)
    feeds, before = _feeds(model), model.proto
    expected = run(plain_session(before), feeds)
    result = apply(WidenOperators(), model, [feeds])
    assert result.modified and result.numerics is None
    assert all(r.outcome is Outcome.NOTE for r in result.remarks)
    for node in nodes_of(model, "MatMul", "Gemm", "Conv", "Gather"):
        assert {str(dtype_of(v)) for v in node.inputs} <= {"float32", "int64"}
    found = run(plain_session(model.proto), feeds)
    assert found["y"].dtype == np.float16
    assert np.abs(found["y"].astype(float) - expected["y"].astype(float)).max() <= 2**-7
    held = [constant_array(v) for g in model.graphs() for v in graph_info(g).initializers.values()]
    assert not [a for a in held if a is not None and a.dtype == np.float16 and a.size > 80], "nothing is stored twice"


@pytest.mark.parametrize("why", ["small", "read elsewhere", "not finite", "bits = none", "store = float16"])
def test_what_int8_does_not_store_stays_float16(why: str) -> None:
    """Float32 weights that nothing quantizes afterwards would make the file larger."""
    recipe, weight = INT8, _half(24, 80)
    if why == "small":
        model = _model(SMALL % HEAD, w=weight[:, :10])
    elif why == "read elsewhere":
        model = _model(READ_ELSEWHERE % HEAD, w=weight)
    else:
        if why == "not finite":
            weight[1, 2] = np.inf
        else:
            recipe = INT8.with_overrides([f"y_MatMul.weight.{why.replace(' ', '')}"])
        model = _model((SMALL % HEAD).replace("10", "80"), w=weight)
    before = model.proto.SerializeToString(deterministic=True)
    result = apply(WidenOperators(recipe), model, [_feeds(model)])
    assert not result.modified and result.numerics == Bitwise()
    assert model.proto.SerializeToString(deterministic=True) == before


WHOLE = """
<ir_version: 8, opset_import: ["" : 17]>
whole (int64[T,B] tokens) => ({kind}[T,B,200] logits)
{{
    embedded = Gather (table, tokens)
    y = LSTM <hidden_size = 16> (embedded, w, r)
    {head}
}}
"""
WEIGHTS = {"table": (200, 16), "kernel": (96, 16, 3), "projection": (96, 16), "decoder_table": (200, 16)}


def _whole(tied: bool, dtype: type[np.floating]) -> onnx.ModelProto:
    """A model with an embedding, a convolution and linear layers around a layer."""
    rng = np.random.default_rng(3)
    shapes = WEIGHTS | {"w": (1, 64, 16), "r": (1, 64, 16), "kernel_bias": (96,)}
    if tied:
        del shapes["decoder_table"]
    head = whole_models.HEAD.format(decoder="table" if tied else "decoder_table")
    text = WHOLE.format(kind=np.dtype(dtype).name.removesuffix("32"), head=head)
    return parse(text, **{n: (rng.standard_normal(s) * 0.3).astype(dtype) for n, s in shapes.items()})


def _tokens(seed: int) -> dict[str, Array]:
    return {"tokens": np.random.default_rng(seed).integers(0, 200, (9, 2))}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_a_whole_model(tied: bool, form: str) -> None:
    """All weights are stored as int8 and counted in their own type; stock and native give the same bits."""
    proto = _whole(tied, np.float16)
    lowered = rnnqc.lower(proto, rest="int8", form=form)
    rest = lowered.report.rest
    assert rest.float_bytes == sum(len(t.raw_data) for t in proto.graph.initializer if t.name in WEIGHTS)
    assert {e.status for e in rest.entries} == {"quantized"}
    assert not {f"{n}.float32" for n in WEIGHTS} & {t.name for t in lowered.model.proto.graph.initializer}
    stock = run_both(lowered.model.proto, _tokens(2), form)["logits"]
    assert stock.dtype == np.float16
    float_ = run(plain_session(proto), _tokens(2))["logits"]
    assert sqnr(float_.astype(np.float32), stock.astype(np.float32)) > 30


def test_calibration_gathers_statistics_of_float16_layers() -> None:
    """Weights are then rounded together, as those of float32 layers."""
    tokens = [_tokens(s) for s in range(8)]
    seen = [rnnqc.calibrate(_whole(False, t), tokens).second_moments.keys() for t in (np.float16, np.float32)]
    assert seen[0] == seen[1]
    assert {"filtered_Conv.input", "features_MatMul.input"} <= seen[0]
