"""Finding the int8 rows of an embedding behind a value.

What these would catch: rows that are taken although something else than their place changes, or that are not taken
although only their place does; indices that move otherwise than the floats; scales that are no scales of these rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from rnnqc.ir import Model, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes import Canonicalize, PassManager, QuantizeEmbeddings
from rnnqc.passes.graph.values.embedding_rows import embedding_rows, reads_int8_rows, reads_scales_of_rows
from tests.passes.pass_testing import nodes_of
from tests.runs.sessions import plain_session, run
from tests.subjects.protos import parse

TABLE = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
TOKENS = np.random.default_rng(1).integers(-300, 300, (4, 5))


def _model(text: str, opset: int = 17, **constants: np.ndarray) -> Model:
    """`text` computes y `[.., 8]` from tokens `[N,M]` and `e`, their embedding."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g (int64[N,M] tokens, float[K] more)'
    proto = parse(f"{head} => (float[D,E,F] y) {{ e = Gather (table, tokens) {text} }}", table=TABLE, **constants)
    model = Model.load(proto)
    PassManager([Canonicalize(), QuantizeEmbeddings()]).run(model)
    model.infer_shapes()
    return model


def _y(model: Model) -> Value:
    return model.graph.outputs[0]


MOVED = {
    "Identity": "y = Identity (e)",
    "Transpose": "y = Transpose <perm = [1, 0, 2]> (e)",
    "Squeeze": "axes = Constant <value_ints = [0]> () u = Unsqueeze (e, axes) y = Squeeze (u, axes)",
    "negative axes": "axes = Constant <value_ints = [-3]> () u = Unsqueeze (e, axes) y = Squeeze (u, axes)",
    "Reshape": "shape = Constant <value_ints = [2, -1, 8]> () y = Reshape (e, shape)",
    "Reshape of unknown width": "shape = Constant <value_ints = [2, 10, -1]> () y = Reshape (e, shape)",
    "Reshape by a computed shape": """
        s = Shape (tokens) w = Constant <value_ints = [8]> () shape = Concat <axis = 0> (s, w) y = Reshape (e, shape)
    """,
    "several": """
        t = Transpose <perm = [1, 0, 2]> (e) shape = Constant <value_ints = [-1, 8]> () r = Reshape (t, shape)
        axes = Constant <value_ints = [1]> () y = Unsqueeze (r, axes)
    """,
}


@pytest.mark.parametrize("moved", MOVED)
def test_indices_move_as_the_floats(moved: str) -> None:
    """The int8 rows times their scales are the floats behind the views."""
    model = _model(MOVED[moved])
    found = embedding_rows(_y(model), 8)
    assert found is not None
    builder = Builder(model, prefix="moved")
    codes, scale = found.codes(builder)
    assert bool(builder.nodes) == (moved != "Identity")
    model.insert_nodes_after(model.graph, found.rows, builder.nodes)
    codes.dtype, scale.dtype = np.dtype(np.int8), np.dtype(np.float32)
    model.graph.outputs += [codes, scale]
    model.sort()
    got = run(plain_session(model.proto), {"tokens": TOKENS, "more": np.ones(8, np.float32)})
    assert got[codes.name].dtype == np.int8
    assert got[scale.name].shape == (*got["y"].shape[:-1], 1)
    assert (got[codes.name].astype(np.float32) * got[scale.name]).tobytes() == got["y"].tobytes()


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("y = Add (e, more)", 8),
        ("y = Mul (e, more)", 8),
        ("y = Transpose <perm = [0, 2, 1]> (e)", 8),
        ("y = Transpose (e)", 8),
        ("shape = Constant <value_ints = [4, 10, 4]> () y = Reshape (e, shape)", 4),
        ("axes = Constant <value_ints = [-1]> () y = Unsqueeze (e, axes)", 1),
        ("y = Concat <axis = 2> (e, e)", 16),
        ("y = Concat <axis = 0> (e, e)", 8),
        ("n = Constant <value_ints = [1]> () m = Constant <value_ints = [3]> () y = Slice (e, n, m)", 8),
        ("y = Relu (e)", 8),
        (
            """a = Constant <value_ints = [4, 10, 4]> () r = Reshape (e, a)
            b = Constant <value_ints = [4, 5, 8]> () y = Reshape (r, b)""",
            8,
        ),
    ],
)
def test_other_values_are_no_rows(text: str, width: int) -> None:
    """Something computes with the floats, or moves parts of rows."""
    assert embedding_rows(_y(_model(text)), width) is None


def test_tables_of_more_axes_are_no_rows() -> None:
    """A scale belongs to a matrix there."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (int64[N] t) => (float[N,4,6] y) { y = Gather (table, t) }'
    model = Model.load(parse(text, table=np.ones((90, 4, 6), np.float32)))
    PassManager([Canonicalize(), QuantizeEmbeddings()]).run(model)
    assert embedding_rows(_y(model), 6) is None
    assert [reads_int8_rows(n) for n in nodes_of(model, "Gather")] == [True, False]


def test_scales_beyond_the_limit_of_cells_are_none() -> None:
    """A cell limits what it reads to 2^60, which the products of such rows are not."""
    for size, is_found in ((2.0**52, True), (2.0**61, False)):
        text = '<ir_version: 8, opset_import: ["" : 17]> g (int64[N] t) => (float[N,8] y) { y = Gather (table, t) }'
        model = Model.load(parse(text, table=TABLE / np.abs(TABLE).max() * np.float32(size)))
        PassManager([Canonicalize(), QuantizeEmbeddings()]).run(model)
        assert (embedding_rows(_y(model), 8) is not None) == is_found


@pytest.mark.parametrize(
    ("scales", "indices", "are_scales"),
    [
        (np.ones((300, 1), np.float32), "tokens", True),
        (np.ones((300, 1), np.float16), "tokens", True),
        (np.ones((300, 1), np.float32), "other", False),
        (np.ones((299, 1), np.float32), "tokens", False),
        (np.ones((300, 2), np.float32), "tokens", False),
        (np.ones(300, np.float32), "tokens", False),
        (np.ones((300, 1), np.int64), "tokens", False),
    ],
)
def test_scales_are_a_column_read_with_the_indices_of_rows(scales: np.ndarray, indices: str, are_scales: bool) -> None:
    """Otherwise a table of a single number for each token would not be listed among the weights of a model."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (int64[N] tokens, int64[N] other) => (int8[N,8] r, float[N,1] s) {'
    )
    text += f" r = Gather (rows, tokens) s = Gather (scales, {indices}) }}"
    proto = parse(text, rows=np.ones((300, 8), np.int8), scales=scales)
    rows, found = nodes_of(Model.load(proto), "Gather")
    assert (reads_scales_of_rows(rows), reads_scales_of_rows(found)) == (False, are_scales)
    assert reads_int8_rows(rows) == are_scales


@pytest.mark.parametrize(
    ("scale", "to", "are_rows"),
    [(0.5, 1, True), (-0.5, 1, False), (0.0, 1, False), (np.nan, 1, False), (np.inf, 1, False), (0.5, 11, False)],
)
def test_an_int8_embedding_that_a_model_has_itself(scale: float, to: int, are_rows: bool) -> None:
    """Its rows are taken, too, where their scales are some that a cell takes, and float32 numbers are made of them."""
    scales = np.full((300, 1), 0.25, np.float32 if to == TensorProto.FLOAT else np.float64)
    scales[7] = scale
    kind = "float" if to == TensorProto.FLOAT else "double"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (int64[N] t) => ({kind}[N,8] y) {{'
    text += f" r = Gather (rows, t) s = Gather (scales, t) f = Cast <to = {to}> (r) y = Mul (f, s) }}"
    model = Model.load(parse(text, rows=np.ones((300, 8), np.int8), scales=scales))
    assert (embedding_rows(_y(model), 8) is not None) == are_rows
