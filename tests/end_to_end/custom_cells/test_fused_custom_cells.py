"""Custom cells as one node: the program that the native library runs gives the bits of the loop behind it.

What these would catch: an instruction that computes something else than its operator, a value that is read at another
step or row, states that overwrite each other, columns beyond a block, zero points that meet the wrong sums, an operator
that has no instruction and is left out in silence, constants that two cells mix up.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from custom_cells import CELLS, layer, step

import rnnqc
from rnnqc.cells.custom_nodes import is_custom_node
from tests.generate.recurrences import RecurrenceCase
from tests.laws.parametrize import every_pair, in_turn
from tests.native.kernel_calls import AVAILABLE
from tests.native.quant_lstm_cases import native_session
from tests.runs.lowered import NATIVE, STOCK, run_both, session
from tests.runs.sessions import assert_same_bits, run
from tests.subjects.custom_layers import feeds_of
from tests.subjects.fused_patterns import PATTERNS, patterned_layer
from tests.subjects.protos import parse

RECIPES = ("int8", "pow2-int8", "pow2-int16", "int8-static", "w4a8", "pow2-w8a16", "brevitas-int8", "int16")
SPECIAL = np.array([np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-40, -0.0, 1e-30], np.float32)


def lowered(model: onnx.ModelProto, recipe: str = "int8", **options: Any) -> onnx.ModelProto:
    """The model, whose custom cells are all nodes."""
    made = rnnqc.lower(model, recipe, calibration=[feeds_of(model, seed) for seed in range(2)], strict=True, **options)
    assert not [n for n in made.proto.graph.node if n.op_type in ("Scan", "Loop")], [str(n) for n in made.report.notes]
    assert [n for n in made.proto.graph.node if is_custom_node(n.op_type)]
    return made.proto


@pytest.mark.few(2)
@every_pair(
    cell=list(CELLS), recipe=list(RECIPES), units=[1, 7, 16, 33], batch=[1, 2, 5], lengths=[False, True],
    reverse=[False, True], initial_states=[False, True],
)  # fmt: skip
def test_the_named_cells(
    cell: str, recipe: str, units: int, batch: int, lengths: bool, reverse: bool, initial_states: bool
) -> None:
    """Also sequences longer than the chunk computed ahead of the steps, and a second call with other sizes."""
    units = max(units, 2) if cell == "layernorm" else units
    model = layer(cell, units, 5, lengths=lengths, reverse=reverse, initial_states=initial_states)
    proto = lowered(model, recipe)
    native = session(proto, NATIVE)
    for steps, rows in ((3, batch), (1, 1), (101, batch), (4, 7)):
        feeds = feeds_of(model, steps, steps, rows)
        assert_same_bits(run(session(proto, STOCK), feeds), run(native, feeds), f"{steps} steps of {rows}")


@pytest.mark.few(2)
@every_pair(
    isa=AVAILABLE, recipe=["int8", "pow2-int16", "w4a8", "brevitas-int8"], cell=[("projection", 40), ("slstm", 70)]
)
def test_instruction_sets(isa: str, recipe: str, cell: tuple[str, int]) -> None:
    name, units = cell
    model = layer(name, units, 19)
    proto, feeds = lowered(model, recipe), feeds_of(model, 1, 9, 3)
    found = run(native_session(proto, 1, isa), feeds)
    assert_same_bits(run(session(proto, STOCK), feeds), found, f"{name} on {isa}")


@pytest.mark.few(1)
@pytest.mark.parametrize("cell", CELLS)
def test_levels_threads_and_special_values(cell: str) -> None:
    model = layer(cell, 24, 20, initial_states=True)
    proto, feeds = lowered(model), feeds_of(model, 5, 12, 2)
    feeds["x"].ravel()[:: feeds["x"].size // len(SPECIAL)][: len(SPECIAL)] = SPECIAL
    expected = run_both(proto, feeds)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        for way in (STOCK, NATIVE):
            assert_same_bits(expected, run(session(proto, way, level, 2), feeds), f"{way} {level}")
    calibration = [feeds_of(model, seed) for seed in range(2)]
    for unroll in (False, True):
        dims = {"T": 12} if unroll else {}
        integer = rnnqc.lower(model, form="integer", calibration=calibration, unroll=unroll, dims=dims, strict=True)
        assert "Scan" not in [n.op_type for n in integer.proto.graph.node] or not unroll
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
            assert_same_bits(expected, run(session(integer.proto, STOCK, level), feeds), f"integer, {unroll}, {level}")


@pytest.mark.few(2)
@in_turn(cell=CELLS, recipe=RECIPES)
def test_rows_and_chunks(cell: str, recipe: str) -> None:
    """Rows alone, and a sequence in pieces with carried states, are the whole."""
    model = layer(cell, 18, 11, initial_states=True)
    proto = lowered(model, recipe)
    native, feeds = session(proto, NATIVE), feeds_of(model, 3, 10, 4)
    whole = run(native, feeds)
    states = [n for n in feeds if n != "x"]
    for row in range(4):
        part = {n: a[:, row : row + 1] if n == "x" else a[row : row + 1] for n, a in feeds.items()}
        if cell == "slstm":  # onnxruntime's Exp and Log depend on where a number stands
            assert_same_bits(run(session(proto, STOCK), part), run(native, part), "one row")
        else:
            assert run(native, part)["Y"].tobytes() == whole["Y"][:, row : row + 1].tobytes()
    carried, pieces = {n: feeds[n] for n in states}, []
    for piece in np.split(feeds["x"], [1, 4, 9]):
        made = run(native, {"x": piece, **carried})
        carried = {n: made[f"{n}_next"] for n in states}
        pieces.append(made["Y"])
    assert np.concatenate(pieces).tobytes() == whole["Y"].tobytes()
    assert all(carried[n].tobytes() == whole[f"{n}_next"].tobytes() for n in states)


def test_sessions_and_threads_at_once() -> None:
    """A session may be run from several threads."""
    model = layer("layernorm", 20)
    native = session(lowered(model), NATIVE)
    feeds = [feeds_of(model, k, 3 + k % 4, 1 + k % 3) for k in range(24)]
    expected = [run(native, f) for f in feeds]
    with ThreadPoolExecutor(4) as pool:
        for wanted, found in zip(expected, pool.map(lambda f: run(native, f), feeds), strict=True):
            assert_same_bits(wanted, found, "at once")


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "pow2-int16"])
def test_empty_sequences_are_refused_and_empty_batches_are_empty(recipe: str) -> None:
    proto = lowered(layer("highway", 8), recipe)
    for way in (STOCK, NATIVE):
        with pytest.raises(Exception, match="empty sequence" if way == NATIVE else "Dimension 0 is 0"):
            run(session(proto, way), {"x": np.zeros((0, 2, 8), np.float32)})
        made = run(session(proto, way), {"x": np.zeros((2, 0, 8), np.float32)})
        assert [a.shape for a in made.values()] == [(2, 0, 8), (0, 8), (0, 8)]


def test_states_that_change_places() -> None:
    """The old value of a state becomes the new value of another one."""
    text = """<ir_version: 8, opset_import: ["": 17]> cell (float[B,4] x, float[B,4] h, float[B,4] a, float[B,4] b)
        => (float[B,4] h_next, float[B,4] a_next, float[B,4] b_next, float[B,4] seen) {
      [from_x] p = MatMul (x, W) [from_h] q = MatMul (h, R) [sum] g = Add (p, q) [old] s = Add (g, a)
      [soft] n = Softsign (s)
      [mixed] h_next = Mul (n, g) a_next = Identity (b) b_next = Identity (h) [twice] seen = Add (a, b)
    }"""
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((4, 4)).astype(np.float32) for n in "WR"}
    model = rnnqc.layer(parse(text, **arrays), initial_states=True)
    run_both(lowered(model), feeds_of(model, 2, 7, 3))


@pytest.mark.few(3)
@in_turn(op=["highway", "projection"], opset=[13, 17, 18, 21, 23])
def test_operator_sets(op: str, opset: int) -> None:
    model = RecurrenceCase(op=op, form="scan", time=4, I=12, H=16, batch=2).model()
    converted = onnx.version_converter.convert_version(model, opset) if opset > 13 else model
    made = rnnqc.lower(converted, strict=True)
    assert [n for g in made.model.graphs() for n in g.nodes if is_custom_node(n.op)]
    run_both(made.proto, feeds_of(model, 1, 4, 2))


def test_bounds_from_outside_of_the_loop() -> None:
    """They are made by Constant nodes around the Scan; the function behind the node holds them."""
    model = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[T,B,4] x, float[B,4] first) => (float[T,b,4] Y) {
          zero = Constant<value_ints = [0]>() half = Constant<value_ints = [4]>() all = Constant<value_ints = [8]>()
          axis = Constant<value_ints = [1]>()
          last, Y = Scan<num_scan_inputs = 1, body = body (float[b,4] h, float[b,4] x_t)
          => (float[b,4] hn, float[b,4] y) {
            p = MatMul(x_t, W) q = MatMul(h, R) s = Add(p, q)
            a = Slice(s, zero, half, axis) b = Slice(s, half, all, axis)
            t = Tanh(a) u = Sigmoid(b) hn = Mul(t, u) y = Identity(hn)
          }>(first, x)
        }""",
        **{n: np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) for n in "WR"},
    )
    rng = np.random.default_rng(1)
    shapes = {"x": (5, 3, 4), "first": (3, 4)}
    run_both(rnnqc.lower(model, strict=True).proto, {k: rng.random(s, np.float32) for k, s in shapes.items()})


ALL_ROWS = {
    "to the end in 64 bits": "9223372036854775807",
    "to the end in 32 bits": "2147483647",
    "to the known number of rows": "3",
    "to the size of the batch": None,
}


def two_axes(start: str, end: str | None) -> onnx.ModelProto:
    """A custom cell that takes rows from `start` to `end`, or to the size of the batch, and half of the columns."""
    rows = "3" if end == "3" else "B"
    bound = f"[end] bound = Constant<value_ints = [{end}, 4]>()"
    if end is None:
        bound = """size = Shape(x) zero = Constant<value_ints = [0]>() rows = Gather<axis = 0>(size, zero)
          half = Constant<value_ints = [4]>() bound = Concat<axis = 0>(rows, half)"""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    cell (float[{rows},4] x, float[{rows},4] h) => (float[{rows},4] hn) {{
      p = MatMul (x, W) q = MatMul (h, R) s = Add (p, q) {bound}
      first = Constant<value_ints = [{start}, 0]>() middle = Constant<value_ints = [0, 4]>()
      last = Constant<value_ints = [9223372036854775807, 2147483647]>() axes = Constant<value_ints = [0, 1]>()
      a = Slice (s, first, bound, axes) b = Slice (s, middle, last)
      t = Tanh (a) u = Sigmoid (b) hn = Mul (t, u)
    }}"""
    held = {n: np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) for n in "WR"}
    return rnnqc.layer(parse(text, **held))


@pytest.mark.few(2)
@pytest.mark.parametrize("end", ALL_ROWS.values(), ids=ALL_ROWS)
def test_slices_over_rows_and_columns(end: str | None) -> None:
    model = two_axes("0", end)
    run_both(lowered(model), feeds_of(model, 1, 5, 3))


def test_a_part_without_columns() -> None:
    """A Split may have one; nothing reads it."""
    text = """<ir_version: 8, opset_import: ["": 17]> cell (float[B,4] x, float[B,4] h) => (float[B,4] hn) {
      p = MatMul (x, W) q = MatMul (h, R) s = Add (p, q) sizes = Constant<value_ints = [4, 4, 0]>()
      a, b, none = Split<axis = 1> (s, sizes) t = Tanh (a) u = Sigmoid (b) hn = Mul (t, u) }"""
    held = {n: np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) for n in "WR"}
    model = rnnqc.layer(parse(text, **held))
    run_both(lowered(model), feeds_of(model, 1, 5, 3))


@pytest.mark.parametrize(("start", "end"), [("0", "-1"), ("0", "2"), ("-3", "9223372036854775807")])
def test_slices_that_may_take_some_rows_stay_in_a_loop(start: str, end: str) -> None:
    (warning,) = [w for w in rnnqc.lower(two_axes(start, end)).report.warnings if "loop of standard operators" in w]
    assert "it takes some of the rows" in warning


def test_several_cells_in_one_file() -> None:
    """Each has a body of its own."""
    stack = rnnqc.stack([step("highway", 6, 6), step("highway", 6, 6, seed=4)], bidirectional=True)
    proto = rnnqc.lower(stack, strict=True).proto
    names = {n.op_type for n in proto.graph.node if is_custom_node(n.op_type)}
    assert len(names) == 2 == len({f.name for f in proto.functions})
    run_both(proto, feeds_of(stack, 1, 5, 2))


def test_cells_of_equal_weights_store_them_once() -> None:
    """In two loops; the entries count what the file holds."""
    stack = rnnqc.stack([step("highway", 16, 16), step("highway", 16, 16)])
    made = rnnqc.lower(stack, strict=True)
    matrices = [i for i in made.proto.graph.initializer if len(i.dims) == 2 and i.data_type == onnx.TensorProto.UINT8]
    assert sorted(i.dims[1] for i in matrices) == [5 * 16, 6 * 16]
    first, second = (e.bytes for e in made.report.entries)
    assert first - second == sum(i.dims[0] * i.dims[1] for i in matrices)
    run_both(made.proto, feeds_of(stack, 1, 5, 2))


def test_joined_models() -> None:
    """Two lowered models that are joined stay right, or are refused when the session is created."""
    parts = [rnnqc.lower(layer("highway", 6, seed=k)).proto for k in range(2)]
    joined = onnx.compose.merge_models(*parts, io_map=[("Y", "x")], prefix1="a/", prefix2="b/")
    feeds = {"a/x": feeds_of(layer("highway", 6), 0, 4, 2)["x"]}
    first = run(session(parts[0], NATIVE), {"x": feeds["a/x"]})["Y"]
    expected = run(session(parts[1], NATIVE), {"x": first})["Y"]
    assert run(session(joined, STOCK), feeds)["b/Y"].tobytes() == expected.tobytes()


def test_what_has_no_instruction_stays_a_loop_and_is_named() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> cell (float[B,4] x, float[B,4] h) => (float[B,4] h_next) {
      [from_x] p = MatMul (x, W) [from_h] q = MatMul (h, R) [sum] g = Add (p, q) [shares] h_next = Hardmax (g)
    }"""
    arrays = {n: np.eye(4, dtype=np.float32) for n in "WR"}
    made = rnnqc.lower(rnnqc.layer(parse(text, **arrays)), strict=True)
    assert "Scan" in [n.op_type for n in made.proto.graph.node]
    (warning,) = [w for w in made.report.warnings if "loop of standard operators" in w]
    assert "Found: Hardmax node " in warning
    assert "shares': the native library has no instruction for it. Resolution: " in warning


def test_the_node_says_what_it_is() -> None:
    """`inspect` of a lowered file finds the cell; lowering it again leaves it."""
    made = rnnqc.lower(layer("highway", 8))
    (node,) = rnnqc.inspect(made.proto).nodes
    assert (node.form, node.op, node.attributes["state_sizes"]) == ("products", "Scan", [8, 8])
    again = rnnqc.lower(made.proto)
    assert [e.earlier for e in again.report.entries] == [True]


@pytest.mark.few(1)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_onnxruntime_would_fuse_is_computed_operator_by_operator(pattern: str) -> None:
    """At every optimization level, in both forms of integers, as the native library does."""
    model = patterned_layer(pattern, initial_states=True)
    proto, feeds = lowered(model), feeds_of(model, 3, 7, 3)
    expected = run(session(proto, STOCK, "ORT_DISABLE_ALL"), feeds)
    integer = rnnqc.lower(model, form="integer", calibration=[feeds_of(model, seed) for seed in range(2)]).proto
    for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        for what, found in (("fused", proto), ("integer", integer)):
            assert_same_bits(expected, run(session(found, STOCK, level), feeds), f"{what} {level}")
    assert_same_bits(expected, run(session(proto, NATIVE), feeds), "native")


CALLED = {
    "pairs": "a = Abs (g) s = Pow (a, half) k = Tanh (g) t = Pow (two, k) u = PRelu (t, row) "
    "v = Mod <fmod=1> (g, two) n = Sum3",
    "rows": "s = Softmax (g) t = LogSoftmax <axis=1> (g) u = ReduceMean <keepdims=1> (g, axis) "
    "v = ReduceSum <keepdims=1> (g, axis) n = Sum3",
    "sizes of rows": "s = ReduceL2 <keepdims=1> (g, axis) t = ReduceMax (g, axis) u = ReduceMin <keepdims=1> (g, axis) "
    "v = ReduceSumSquare <keepdims=1> (g, axis) n = Sum3",
    "functions": 's = HardSwish (g) t = Mish (g) u = Gelu (g) v = Gelu <approximate="tanh"> (g) n = Sum3',
    "numbers": "s = Sin (g) a = Cos (s) b = Atan (a) t = Celu (g) u = ThresholdedRelu <alpha=0.5> (b) v = Sign (g) "
    "n = Sum3",
    "whole numbers": "s = Floor (g) t = Ceil (g) u = Round (g) v = Abs (t) n = Sum3",
    "comparisons": "c = GreaterOrEqual (g, p) s = Where (c, g, p) d = Less (g, q) e = Not (d) t = Where (e, g, q) "
    "f = Cast <to=1> (d) u = Mul (f, g) i = LessOrEqual (g, p) v = Where (i, q, g) n = Sum3",
}


@pytest.mark.few(3)
@every_pair(operators=list(CALLED), batch=[1, 2, 5], recipe=["int8", "pow2-int8", "int8-static"])
def test_operators_that_onnxruntime_computes(operators: str, batch: int, recipe: str) -> None:
    """Each is a call of the program; what has no kernel is written in operators that have one."""
    body = CALLED[operators].replace("n = Sum3", "st = Add (s, t) uv = Add (u, v) n = Add (st, uv)")
    text = f"""<ir_version: 9, opset_import: ["": 20]> cell (float[B,7] x, float[B,7] h)
        => (float[B,7] h_next, float[B,7] seen) {{
      half = Constant <value = float {{0.5}}> () two = Constant <value = float {{2.0}}> ()
      axis = Constant <value = int64[1] {{1}}> ()
      [from_x] p = MatMul (x, W) [from_h] q = MatMul (h, R) [sum] g = Add (p, q) {body}
      [left] seen = Neg (n) [soft] f0 = Softsign (n) [output] h_next = Sub (f0, g)
    }}"""
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in {"W": (7, 7), "R": (7, 7), "row": (7,)}.items()}
    model = rnnqc.layer(parse(text, **arrays), initial_states=True)
    feeds = feeds_of(model, 2, 6, batch)
    feeds["x"].ravel()[: 2 * len(SPECIAL) : 2] = np.nan_to_num(SPECIAL, posinf=9.0, neginf=-9.0)
    run_both(lowered(model, recipe), {n: np.clip(a, -9, 9) for n, a in feeds.items()})


@pytest.mark.few(2)
@pytest.mark.parametrize("operator", ["Elu", "Selu", "LeakyRelu", "HardSigmoid", "LayerNormalization"])
def test_attributes_that_are_not_given(operator: str) -> None:
    """onnxruntime's own kernel looks for every attribute that has a default."""
    inputs = "g, scale" if operator == "LayerNormalization" else "g"
    text = f"""<ir_version: 8, opset_import: ["": 17]> cell (float[B,4] x, float[B,4] h) => (float[B,4] h_next) {{
      [from_x] p = MatMul (x, W) [from_h] q = MatMul (h, R) [sum] g = Add (p, q) [made] n = {operator} ({inputs})
      [output] h_next = Softsign (n)
    }}"""
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((4, 4)).astype(np.float32) for n in "WR"} | {"scale": np.ones(4, np.float32)}
    model = rnnqc.layer(parse(text, **arrays))
    run_both(lowered(model), feeds_of(model, 2, 7, 3))
