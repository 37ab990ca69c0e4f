"""Loops and steps that are nearly a layer over a sequence: they compute what they did, or stay with a reason.

What these would catch: a mask of another layer's lengths taken for the layer's own, a trip more or less than the loop
makes, a result of another shape, an operand aligned with the wrong axis.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form

T, ROWS, WIDTH, H = 7, 3, 5, 6
STEP = """x = Gather<axis = 0>(X, i)
  x3 = Unsqueeze(x, axis_0)
  {h}3 = Unsqueeze({h}, axis_0)
  none_{h}, {h}1 = RNN<hidden_size = 6>(x3, W, R, , , {h}3)
  {h}q = Squeeze({h}1, axis_0)"""
"""One step of an RNN over element i of X, from state `{h}` to `{h}q`."""


def proto(text: str) -> onnx.ModelProto:
    """A model of a graph as text; W, R and some constants are there."""
    rng = np.random.default_rng(7)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    stored = {
        "W": rng.uniform(-1, 1, (1, H, WIDTH)).astype(np.float32),
        "R": rng.uniform(-1, 1, (1, H, H)).astype(np.float32),
        "V": rng.uniform(-1, 1, (H, 4)).astype(np.float32),
        "start": np.zeros((ROWS, H), np.float32),
        "nothing": np.float32(0),
        "true": np.array(True),
        "T": np.array(T),
        "H": np.array([H]),
        **{f"axis_{k}": np.array([k]) for k in (0, 1)},
        **{f"number_{k}": np.array(k) for k in (0, 1)},
    }
    for name, array in stored.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def sequence(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (T, ROWS, WIDTH)).astype(np.float32)


def normalized(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The model in normal form, and the reasons for what stays."""
    made = Model.load(model)
    results = PassManager(normal_form()).run(made)
    return made.proto, [r.reason for result in results for r in result.remarks if r.action]


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.op_type in ("Loop", "RNN", "Scan")]


def assert_same(a: onnx.ModelProto, b: onnx.ModelProto, data: dict[str, np.ndarray]) -> None:
    expected, found = run_model(a, data), run_model(b, data)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


def masked_step(h: str, lengths: str) -> str:
    return f"""{STEP.format(h=h)}
  {h}_less = Less(i, {lengths})
  {h}_mask = Unsqueeze({h}_less, axis_1)
  {h}n = Where({h}_mask, {h}q, {h})
"""


@pytest.mark.parametrize(("mask", "stays"), [("a", False), ("b", True)])
def test_the_output_masked_by_another_layers_lengths(mask: str, stays: bool) -> None:
    """After its own lengths the node returns zeros where the loop returned computed values."""
    second = (
        masked_step("b", "second").replace(STEP.splitlines()[0] + "\n", "").replace("x3 = Unsqueeze(x, axis_0)", "")
    )
    model = proto(f"""
    g (float[7,3,5] X, int64[3] first, int64[3] second) => (float[7,3,6] Y, float[3,6] a_out, float[3,6] b_out) {{
      a_out, b_out, Y = Loop<body = body (int64 i, bool keep, float[3,6] a, float[3,6] b)
        => (bool kept, float[3,6] an, float[3,6] bn, float[3,6] y) {{
          {masked_step("a", "first")} {second}
          y = Where({mask}_mask, aq, nothing)
          kept = Identity(keep)
      }}>(T, true, start, start)
    }}""")
    made, reasons = normalized(model)
    assert ("Loop" in operators(made)) == stays
    assert any("where its mask is false" in r for r in reasons) == stays
    assert_same(model, made, {"X": sequence(), "first": np.array([3, 2, 5]), "second": np.array([7, 6, 5])})


def test_a_state_masked_by_other_lengths_than_the_layers() -> None:
    """A second copy of the state that stops elsewhere is not the layer's final state."""
    model = proto(f"""
    g (float[7,3,5] X, int64[3] first, int64[3] second) => (float[3,6] a_out, float[3,6] b_out) {{
      a_out, b_out = Loop<body = body (int64 i, bool keep, float[3,6] a, float[3,6] b)
        => (bool kept, float[3,6] an, float[3,6] bn) {{
          {masked_step("a", "first")}
          b_less = Less(i, second)
          b_mask = Unsqueeze(b_less, axis_1)
          bn = Where(b_mask, aq, b)
          kept = Identity(keep)
      }}>(T, true, start, start)
    }}""")
    made, _ = normalized(model)
    assert "Loop" in operators(made)
    assert_same(model, made, {"X": sequence(), "first": np.array([3, 2, 5]), "second": np.array([7, 6, 5])})


@pytest.mark.parametrize(
    ("kind", "before", "prepare", "moves"),
    [
        ("int64", "lens = Cast<to = 1>(lengths)", "t = Cast<to = 1>(i) less = Less(t, lens)", False),
        ("int32", "", "t = Cast<to = 6>(i) less = Less(t, lengths)", False),
        ("float", "lens = Cast<to = 7>(lengths)", "less = Less(i, lens)", False),
        ("float", "", "t = Cast<to = 1>(i) less = Less(t, lengths)", True),
    ],
)
def test_lengths_that_are_no_whole_numbers(kind: str, before: str, prepare: str, moves: bool) -> None:
    """2.5 elements are three iterations, but two in `sequence_lens`: the effective steps are counted."""
    model = proto(f"""
    g (float[7,3,5] X, {kind}[3] lengths) => (float[7,3,6] Y, float[3,6] out) {{
      {before}
      out, Y = Loop<body = body (int64 i, bool keep, float[3,6] h) => (bool kept, float[3,6] hn, float[3,6] y) {{
          {STEP.format(h="h")}
          {prepare}
          mask = Unsqueeze(less, axis_1)
          hn = Where(mask, hq, h)
          y = Where(mask, hq, nothing)
          kept = Identity(keep)
      }}>(T, true, start)
    }}""")
    made, _ = normalized(model)
    assert operators(made) == ["RNN"]
    assert any(n.op_type == "TopK" for n in made.graph.node) == moves
    lengths = np.array([6.5, 2.5, 4.5]).astype({"int64": np.int64, "int32": np.int32, "float": np.float32}[kind])
    assert_same(model, made, {"X": sequence(), "lengths": lengths})


MASKED = """
    g (float[7,3,5] X, bool[7,3] live, float[3,6] first) => (float[7,3,6] Y, float[3,6] out, float[3,6] last) {{
      out, last, Y = Loop<body = body (int64 i, bool keep, float[3,6] h, float[3,6] shown)
        => (bool kept, float[3,6] hn, float[3,6] shown_n, float[3,6] y) {{
          {step}
          now = Gather(live, i)
          mask = Unsqueeze(now, axis_1)
          {more}
          hn = Where(mask, hq, h)
          shown_n = Where(mask, hq, shown)
          y = {y}
          kept = Identity(keep)
      }}>(T, true, {start}, {shown})
    }}"""
"""A loop with a mask that has gaps, as Keras writes it: the output, too, holds what it was."""


def masked(y: str = "Identity(shown_n)", start: str = "start", shown: str = "start", more: str = "") -> onnx.ModelProto:
    return proto(MASKED.format(step=STEP.format(h="h"), y=y, start=start, shown=shown, more=more))


def gaps() -> dict[str, np.ndarray]:
    """Rows that begin late, with gaps, and without a step that counts."""
    live = np.array([[0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0]], bool)
    first = np.random.default_rng(5).uniform(-1, 1, (ROWS, H)).astype(np.float32)
    return {"X": sequence(), "live": live, "first": first}


@pytest.mark.parametrize(
    "y", ["Identity(shown_n)", "Identity(hn)", "Where(mask, hq, nothing)", "Mul(shown_n, shown_n)"]
)
@pytest.mark.parametrize("shown", ["start", "first"])
def test_steps_that_a_mask_skips(y: str, shown: str) -> None:
    """The steps that count move to the front; what is held, and from where on, differs from row to row."""
    model = masked(y, shown=shown)
    made, _ = normalized(model)
    assert operators(made) == ["RNN"]
    (node,) = [n for n in made.graph.node if n.op_type == "RNN"]
    assert node.input[4]
    assert_same(model, made, gaps())
    assert_same(model, made, gaps() | {"live": np.ones((T, ROWS), bool)})


def test_one_mask_for_all_rows() -> None:
    model = masked()
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 1
    made, _ = normalized(model)
    assert operators(made) == ["RNN"]
    assert_same(model, made, gaps() | {"live": gaps()["live"][:, 1:2]})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start": "first"}, "rows of length 0 would lose their initial state"),
        ({"y": "Identity(hq)"}, "what a layer computes where its mask is false is used"),
        ({"y": "Where(mask, hq, h)"}, "the state before a step is used"),
        ({"more": "other = Not(mask)", "y": "Where(other, hq, nothing)"}, "where its mask is false is used"),
    ],
)
def test_masked_loops_that_stay(changes: dict[str, str], reason: str) -> None:
    model = masked(**changes)
    made, reasons = normalized(model)
    assert "Loop" in operators(made)
    assert any(reason in r for r in reasons), reasons
    assert_same(model, made, gaps())


def test_a_mask_of_every_unit_stays() -> None:
    model = masked()
    body = next(n for n in model.graph.node if n.op_type == "Loop").attribute[0].g
    next(n for n in body.node if n.op_type == "Unsqueeze" and n.output[0] == "mask").input[0] = "column"
    position = next(k for k, n in enumerate(body.node) if "column" in n.input)
    nodes = [
        onnx.helper.make_node("Unsqueeze", ["now", "axis_1"], ["wide"]),
        onnx.helper.make_node("Greater", ["h", "nothing"], ["grown"]),
        onnx.helper.make_node("Or", ["wide", "grown"], ["mask"]),
    ]
    kept = [*body.node[:position], *nodes, *body.node[position + 1 :]]
    del body.node[:]
    body.node.extend(kept)
    made, reasons = normalized(model)
    assert "Loop" in operators(made)
    assert any("one truth value for each row" in r for r in reasons), reasons
    assert_same(model, made, gaps())


def test_a_masked_state_with_views_around_the_mask() -> None:
    """The final state has the shape that the loop carries."""
    model = proto(f"""
    g (float[7,3,5] X, int64[3] lengths) => (float[7,3,6] Y, float[1,3,6] out) {{
      first = Unsqueeze(start, axis_0)
      out, Y = Loop<body = body (int64 i, bool keep, float[1,3,6] state)
        => (bool kept, float[1,3,6] next, float[3,6] y) {{
          h = Squeeze(state, axis_0)
          {masked_step("h", "lengths")}
          next = Unsqueeze(hn, axis_0)
          y = Where(h_mask, hq, nothing)
          kept = Identity(keep)
      }}>(T, true, first)
    }}""")
    made, _ = normalized(model)
    assert operators(made) == ["RNN"]
    assert_same(model, made, {"X": sequence(), "lengths": np.array([7, 3, 5])})


@pytest.mark.parametrize("shape", ["3,4", "4", "1", ""])
def test_gemm_after_the_step_adds_an_element_of_a_sequence(shape: str) -> None:
    """With as many trips as rows an unaligned addition does not even fail."""
    whole = ",".join(filter(None, ["3", shape]))
    model = proto(f"""
    g (float[3,3,5] X, float[{whole}] added) => (float[3,3,4] Y) {{
      trips = Identity(three)
      out, Y = Loop<body = body (int64 i, bool keep, float[3,6] h) => (bool kept, float[3,6] hq, float[3,4] y) {{
          {STEP.format(h="h")}
          row = Gather<axis = 0>(added, i)
          y = Gemm(hq, V, row)
          kept = Identity(keep)
      }}>(trips, true, start)
    }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3), "three"))
    made, _ = normalized(model)
    assert operators(made) == ["RNN"]
    added = np.random.default_rng(1).uniform(-1, 1, [int(d) for d in whole.split(",")]).astype(np.float32)
    assert_same(model, made, {"X": sequence()[:3], "added": added})


@pytest.mark.parametrize(
    ("start", "stays"), [("first", True), ("both", False), ("both, with a constant", False), ("true", False)]
)
def test_conditions_before_the_first_trip(start: str, stays: bool) -> None:
    """A condition that is only checked after each iteration does not prevent the first one."""
    condition = {
        "first": "c = Less(number_0, n)",
        "both": "c0 = Less(number_0, n) c1 = Less(number_0, k) c = And(c0, c1)",
        "both, with a constant": "c0 = Less(number_0, n) c1 = Less(number_0, k) c2 = And(c0, c1) c = And(c2, true)",
        "true": "c = Identity(true)",
    }[start]
    model = proto(f"""
    g (float[7,3,5] X, int64 n, int64 k) => (float[t,3,6] Y, float[3,6] out) {{
      {condition}
      out, Y = Loop<body = body (int64 i, bool keep, float[3,6] h) => (bool kept, float[3,6] hq, float[3,6] y) {{
          {STEP.format(h="h")}
          next = Add(i, number_1)
          less_n = Less(next, n)
          less_k = Less(next, k)
          kept = And(less_n, less_k)
          y = Identity(hq)
      }}>(, c, start)
    }}""")
    made, reasons = normalized(model)
    assert ("Loop" in operators(made)) == stays
    assert any("before the first iteration" in r for r in reasons) == stays
    for n, k in ((5, 3), (5, 7), *([(5, 0), (3, -2)] if start in ("first", "true") else [])):
        assert_same(model, made, {"X": sequence(), "n": np.array(n), "k": np.array(k)})


@pytest.mark.parametrize("backwards", [False, True])
def test_a_trip_count_that_is_no_dimension(backwards: bool) -> None:
    """Below 0 it does not count from the end of the sequence, and above its size it fails as the loop does."""
    index = "last = Sub(T, number_1) at = Sub(last, i)" if backwards else "at = Identity(i)"
    model = proto(f"""
    g (float[7,3,5] X, int64 n) => (float[t,3,6] Y, float[3,6] out) {{
      trips = Sub(n, number_1)
      out, Y = Loop<body = body (int64 i, bool keep, float[3,6] h) => (bool kept, float[3,6] hq, float[3,6] y) {{
          {index}
          {STEP.format(h="h").replace("(X, i)", "(X, at)")}
          y = Identity(hq)
          kept = Identity(keep)
      }}>(trips, , start)
    }}""")
    made, _ = normalized(model)
    assert operators(made) == ["RNN"]
    for n in (-2, 0, 1, 2, 5, 8):
        assert_same(model, made, {"X": sequence(), "n": np.array(n)})
    too_many = {"X": sequence(), "n": np.array(9)}
    if not backwards:  # backwards the loop goes on from the end
        with pytest.raises(Exception, match=r"out of (data )?bounds"):
            run_model(model, too_many)
    for level in (GraphOptimizationLevel.ORT_DISABLE_ALL, GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = SessionOptions()
        options.graph_optimization_level = level
        session = InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        with pytest.raises(Exception, match=r"out of (data )?bounds"):
            session.run(None, too_many)


@pytest.mark.parametrize(
    ("a", "b", "layers"), [("?", "?", 2), ("N", "M", 2), ("3", "?", 2), ("N", "N", 1), ("3", "3", 1)]
)
def test_steps_of_other_rows(a: str, b: str, layers: int) -> None:
    """A row that is expanded to the rows of the next step is not a state of that step."""
    model = proto(f"""
    g (float[1,{a},5] x0, float[1,{b},5] x1) => (float[1,r,6] out) {{
      none0, h0 = RNN<hidden_size = 6>(x0, W, R)
      rows = Shape<start = 1, end = 2>(x1)
      shape = Concat<axis = 0>(axis_1, rows, H)
      h0_rows = Expand(h0, shape)
      none1, out = RNN<hidden_size = 6>(x1, W, R, , , h0_rows)
    }}""")
    made, _ = normalized(model)
    assert operators(made) == ["RNN"] * layers
    rows = 1 if layers == 2 and a != "3" else 3
    assert_same(model, made, {"x0": sequence()[:1, :rows], "x1": sequence()[1:2]})


@pytest.mark.parametrize("shape", ["3,5", "7,3,5"])
def test_a_product_of_rank_2_in_front_of_a_layer(shape: str) -> None:
    """The bias makes three axes of two; the layer cannot take the product's input."""
    model = proto(f"""
    g (float[{shape}] x) => (float[t,1,3,6] Y) {{
      product = MatMul(x, factor)
      X = Add(product, added)
      Y = RNN<hidden_size = 6>(X, identity, R)
    }}""")
    rng = np.random.default_rng(2)
    for name, array in (
        ("factor", rng.uniform(-1, 1, (WIDTH, H))),
        ("added", rng.uniform(-1, 1, (1, 1, H))),
        ("identity", np.eye(H)[np.newaxis]),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    made, _ = normalized(model)
    assert ("MatMul" in [n.op_type for n in made.graph.node]) == (shape == "3,5")
    assert_same(model, made, {"x": sequence() if shape == "7,3,5" else sequence()[0]})


def test_a_dimension_called_trip() -> None:
    """It is no counter: the loop takes the same element in each trip."""
    model = proto(f"""
    g (float[7,3,5] X, float[trip] other) => (float[7,3,6] Y, float[3,6] out) {{
      sizes = Shape(other)
      size = Gather<axis = 0>(sizes, number_0)
      out, Y = Loop<body = body (int64 i, bool keep, float[3,6] h) => (bool kept, float[3,6] hq, float[3,6] y) {{
          {STEP.format(h="h").replace("(X, i)", "(X, size)")}
          y = Identity(hq)
          kept = Identity(keep)
      }}>(T, true, start)
    }}""")
    made, _ = normalized(model)
    assert_same(model, made, {"X": sequence(), "other": np.zeros(2, np.float32)})


@pytest.mark.parametrize("table", ["float[4,5]", "float[4,1,5]"])
def test_an_embedding_of_each_element(table: str) -> None:
    """The tokens of all trips are looked up at once."""
    rank = table.count(",") + 1
    view = "x = Identity(e)" if rank == 2 else "x = Squeeze(e, axis_1)"
    model = proto(f"""
    g (int64[7,3] tokens, {table} E) => (float[7,3,6] Y, float[3,6] out) {{
      out, Y = Loop<body = body (int64 i, bool keep, float[3,6] h) => (bool kept, float[3,6] hn, float[3,6] y) {{
          token = Gather<axis = 0>(tokens, i)
          e = Gather<axis = 0>(E, token)
          {view}
          {STEP.format(h="h").split(chr(10), 1)[1]}
          hn = Identity(hq)
          y = Identity(hn)
          kept = Identity(keep)
      }}>(T, true, start)
    }}""")
    made, reasons = normalized(model)
    assert operators(made) == ["RNN"], reasons
    rng = np.random.default_rng(2)
    shape = (4, 5) if rank == 2 else (4, 1, 5)
    feeds = {"tokens": rng.integers(0, 4, (T, ROWS)), "E": rng.uniform(-1, 1, shape).astype(np.float32)}
    assert_same(model, made, feeds)
