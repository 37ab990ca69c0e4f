"""quantize-embeddings: int8 rows with a scale each.

What these would catch: a scale of another row, rows of another axis, the floats of the whole table in the file or in
the session, indices that behave otherwise than before, a tied table that is stored twice, an embedding in a subgraph
that does not find its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, QuantizeEmbeddings, StoreWeights
from tests.passes.pass_testing import apply, nodes_of, op_types
from tests.runs.sessions import LEVELS, Array, options, run
from tests.subjects.protos import parse
from tests.subjects.whole_models import WholeModel, in_float32_rows, in_rows

SHAPES = ((300, 8), (90, 4, 6))
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def _table(shape: Sequence[int] = SHAPES[0], seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal(shape) * np.exp(rng.standard_normal((shape[0], *[1] * (len(shape) - 1))))
    return rows.astype(np.float32)


def _gather(table: Array, indices: str = "int64[N,M]", axis: int = 0) -> onnx.ModelProto:
    rank = table.ndim + indices.count(",") + ("[" in indices) - 1
    out = ", ".join(f"D{k}" for k in range(rank))
    text = f"{HEAD} g ({indices} tokens) => (float[{out}] y) {{ y = Gather <axis = {axis}> (table, tokens) }}"
    return parse(text, table=table)


def _canonical(proto: onnx.ModelProto) -> Model:
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def _session(model: onnx.ModelProto, level: str = "ORT_ENABLE_ALL") -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), options(level), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_rows_are_those_of_the_int8_format(dtype: str, shape: tuple[int, ...], level: str) -> None:
    """The same bits as rows of the dequantized table, negative indices included."""
    table = _table(shape)
    model = _canonical(_gather(table, f"{dtype}[N,M]"))
    indices = np.random.default_rng(1).integers(-shape[0], shape[0], (7, 2)).astype(dtype)
    result = apply(QuantizeEmbeddings(), model, [{"tokens": indices}])
    assert {p: s.form for p, s in result.stored.items()} == {n.name: "int8 rows" for n in nodes_of(model, "Gather")[:1]}
    assert op_types(model.graph) == ["Cast", "Gather", "Gather", "Cast", "Mul"]
    wanted = in_rows(table)[indices]
    got = run(_session(model.proto, level), {"tokens": indices})["y"]
    assert got.tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_bytes_of_the_table() -> None:
    """The file holds int8 values and a scale for each row, and the result says so."""
    table = _table()
    model = _canonical(_gather(table))
    (stored,) = apply(QuantizeEmbeddings(), model).stored.values()
    held = {t.name: numpy_helper.to_array(t) for t in model.proto.graph.initializer}
    assert stored.constants == {n: a.nbytes for n, a in held.items()}
    assert sorted(stored.constants.values()) == [table.shape[0] * 2, table.size]


def test_no_session_makes_floats_of_the_table(tmp_path: Path) -> None:
    """The model that onnxruntime has optimized still reads int8 rows."""
    model = _canonical(_gather(_table()))
    apply(QuantizeEmbeddings(), model)
    chosen = options()
    chosen.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.proto.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    saved = onnx.load(chosen.optimized_model_filepath)
    sizes = {t.data_type: int(np.prod(t.dims)) for t in saved.graph.initializer}
    assert sizes == {TensorProto.INT8: 2400, TensorProto.FLOAT: 300}


def test_indices_out_of_range_fail_as_before() -> None:
    proto = _gather(_table())
    model = _canonical(proto)
    apply(QuantizeEmbeddings(), model)
    feeds = {"tokens": np.array([[0, 300]])}
    for session in (_session(proto), _session(model.proto)):
        with pytest.raises(Exception, match="indices element out of data bounds, idx=300"):
            run(session, feeds)


@pytest.mark.parametrize(("largest", "is_half"), [(127 * 2.0**-14, True), (127 * 2.0**-14.1, False), (9e6, False)])
def test_scales_that_float16_does_not_hold(largest: float, is_half: bool) -> None:
    """If float16 cannot hold one scale, all are float32."""
    table = _table()
    table[7] *= np.float32(largest) / np.abs(table[7]).max()
    model = _canonical(_gather(table))
    apply(QuantizeEmbeddings(), model)
    assert {i.data_type == TensorProto.FLOAT16 for i in model.proto.graph.initializer if i.name == "table.scale"} == {
        is_half
    }
    wanted = (in_rows if is_half else in_float32_rows)(table)
    got = run(_session(model.proto), {"tokens": np.arange(300)[np.newaxis]})["y"][0]
    assert got.tobytes() == wanted.tobytes()


def test_rows_of_zeros_and_of_large_numbers() -> None:
    table = _table()
    table[0], table[1] = 0.0, 3e38
    table[2] = 1e-40
    model = _canonical(_gather(table))
    apply(QuantizeEmbeddings(), model)
    got = run(_session(model.proto), {"tokens": np.array([[0, 1, 2]])})["y"]
    assert not got[0, 0].any()
    assert not got[0, 2].any()
    np.testing.assert_allclose(got[0, 1], table[1], rtol=1e-6)


@pytest.mark.parametrize(
    "change", ["axis", "constant indices", "small", "not finite", "float16", "input", "read elsewhere"]
)
def test_other_tables_stay(change: str) -> None:
    """StoreWeights stores some of them, and reports all others."""
    table = _table()
    if change == "not finite":
        table[3, 1] = np.inf
    proto = _gather(table[:20] if change == "small" else table, axis=1 if change == "axis" else 0)
    if change == "constant indices":
        text = f"{HEAD} g (float[2,8] x) => (float[2,8] y) {{ r = Gather (table, k)  y = Add (x, r) }}"
        proto = parse(text, table=table, k=np.array([4, -1]))
    elif change == "float16":
        proto = parse(
            f"{HEAD} g (int64[N] k) => (float16[N,8] y) {{ y = Gather (table, k) }}", table=table.astype(np.float16)
        )
    elif change == "input":
        proto.graph.input.append(helper.make_tensor_value_info("table", TensorProto.FLOAT, table.shape))
    elif change == "read elsewhere":
        text = f"{HEAD} g (int64[N] k) => (float[N,8] y, float[300,8] z) {{ y = Gather (table, k)  z = Neg (table) }}"
        proto = parse(text, table=table)
    model = _canonical(proto)
    before = model.proto.SerializeToString(deterministic=True)
    assert not QuantizeEmbeddings()(model).modified
    assert model.proto.SerializeToString(deterministic=True) == before


def test_in_a_subgraph() -> None:
    """The table stands outside the branch that reads it, and in it."""
    text = f"""{HEAD} g (int64[N] k, bool c) => (float[N,8] y) {{
        y = If (c) <
            then_branch = a () => (float[N,8] p) {{ p = Gather (table, k) }},
            else_branch = b () => (float[N,8] q) {{ q = Gather (inner, k) }}
        >
    }}"""
    proto = parse(text, table=_table())
    (node,) = proto.graph.node
    branch = next(a.g for a in node.attribute if a.name == "else_branch")
    branch.initializer.append(numpy_helper.from_array(_table(seed=3), "inner"))
    model = _canonical(proto)
    indices = np.array([1, 5, -2])
    feeds = [{"k": indices, "c": np.array(flag)} for flag in (True, False)]
    assert len(apply(QuantizeEmbeddings(), model, feeds).stored) == 2
    session = _session(model.proto)
    for given, seed in zip(feeds, (0, 3), strict=True):
        table = _table(seed=seed)
        wanted = in_rows(table)[indices]
        assert run(session, given)["y"].tobytes() == wanted.tobytes()


def test_two_embeddings_share_a_table() -> None:
    text = f"""{HEAD} g (int64[N] k, int64[N] l) => (float[N,8] y, float[N,8] z) {{
        y = Gather (table, k)  z = Gather (table, l)
    }}"""
    model = _canonical(parse(text, table=_table()))
    first, second = apply(QuantizeEmbeddings(), model).stored.values()
    assert first == second
    assert len(model.proto.graph.initializer) == 2


@pytest.mark.parametrize("level", LEVELS)
def test_known_indices_beside_others(level: str) -> None:
    """The first token of a decoder is a constant, the others are what it put out."""
    nodes = "a = Gather (table, bos)  b = Gather (table, k)  y = Add (a, b)"
    text = f"{HEAD} g (int64[N] k) => (float[D,8] y) {{ {nodes} }}"
    table = _table()
    model = _canonical(parse(text, table=table, bos=np.array([2])))
    assert len(apply(QuantizeEmbeddings(), model, [{"k": np.arange(5)}]).stored) == 2
    assert not StoreWeights()(model).modified
    rows = in_rows(table)
    got = run(_session(model.proto, level), {"k": np.arange(5)})["y"]
    assert got.tobytes() == (rows[[2]] + rows[:5]).tobytes()


def test_a_graph_output_keeps_its_name_and_type() -> None:
    proto = WholeModel().model()
    model = _canonical(proto)
    apply(QuantizeEmbeddings(), model, [WholeModel.feeds()])
    assert model.proto.graph.output == proto.graph.output
