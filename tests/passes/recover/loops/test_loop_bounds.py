"""Conditions that bound the trips of a loop: what they compare, in which type, and how often the loop runs.

What these would catch: a trip more or less than the loop makes, a limit rounded the wrong way, a type that cannot count
so far, a limit of the body that is used outside of it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form

T, ROWS, WIDTH, H = 9, 2, 3, 4


def loop(
    condition: str, *, most: str = "many", before: str = "", inputs: str = "", start: str = "true"
) -> onnx.ModelProto:
    """A loop over X with counters n (0, 1, ...), f (0.0, 1.0, ...) and two (0, 2, ...); `condition` makes `kept`."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 17]>
    g (float[9,2,3] X{inputs}) => (float[T,2,4] Y, float[2,4] out) {{
      {before}
      n_end, f_end, two_end, out, Y = Loop<body = body
        (int64 i, bool keep, int32 n, float f, int64 two, float[2,4] h)
        => (bool kept, int32 n1, float f1, int64 two2, float[2,4] hn, float[2,4] y) {{
          n1 = Add(n, one_n)
          f1 = Add(f, one_f)
          two2 = Add(two, two_i)
          x = Gather<axis = 0>(X, i)
          x3 = Unsqueeze(x, axis_0)
          h3 = Unsqueeze(h, axis_0)
          none, h1 = RNN<hidden_size = 4>(x3, W, R, , , h3)
          hn = Squeeze(h1, axis_0)
          y = Identity(hn)
          {condition}
      }}>({most}, {start}, zero_n, zero_f, zero_i, first)
    }}""")
    rng = np.random.default_rng(7)
    stored = {
        "W": rng.uniform(-1, 1, (1, H, WIDTH)).astype(np.float32),
        "R": rng.uniform(-1, 1, (1, H, H)).astype(np.float32),
        "first": np.zeros((ROWS, H), np.float32),
        "axis_0": np.array([0]),
        "true": np.array(True),
        "many": np.array(2**62),
        "zero_n": np.int32(0),
        "one_n": np.int32(1),
        "zero_f": np.float32(0),
        "one_f": np.float32(1),
        "zero_i": np.array(0),
        "two_i": np.array(2),
        "five": np.array(5),
        "six": np.array(6),
        "five_n": np.int32(5),
        "nine_n": np.int32(T),
        "ten_n": np.int32(T + 1),
        "five_f": np.float32(5),
        "five_d": np.float64(5),
        "halves": np.float32(4.5),
        "small": np.int8(5),
        "half": np.float16(5),
        "endless": np.float32(np.inf),
    }
    for name, array in stored.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def outcome(model: onnx.ModelProto, **more: np.ndarray) -> tuple[int | None, str]:
    """The number of trips, None where the loop stays, and why it stays; either way the model computes the same."""
    made = Model.load(model)
    results = PassManager(normal_form()).run(made)
    feeds = {"X": np.random.default_rng(3).uniform(-1, 1, (T, ROWS, WIDTH)).astype(np.float32), **more}
    expected, found = run_model(model, feeds), run_model(made.proto, feeds)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)
    stays = any(n.op == "Loop" for n in made.graph.nodes)
    reasons = " ".join(r.reason for result in results for r in result.remarks if r.action)
    assert bool(reasons) == stays
    return None if stays else len(expected["Y"]), reasons


@pytest.mark.parametrize(
    ("condition", "trips"),
    [
        ("kept = Less(n1, five_n)", 5),
        ("kept = LessOrEqual(n1, five_n)", 6),
        ("kept = Less(n, five_n)", 6),
        ("kept = Greater(five_n, n1)", 5),
        ("kept = GreaterOrEqual(five_n, n1)", 6),
        ("c = Cast<to = 1>(n1) kept = Less(c, five_f)", 5),
        ("c = Cast<to = 11>(n1) kept = Less(c, five_d)", 5),
        ("c = Cast<to = 3>(n1) kept = Less(c, small)", 5),
        ("c = Cast<to = 3>(n1) d = Cast<to = 1>(c) kept = Less(d, five_f)", 5),
        ("c = Cast<to = 1>(i) kept = Less(c, five_f)", 6),
        ("kept = Less(f1, five_f)", 5),
        ("kept = Less(f1, halves)", 5),
        ("kept = LessOrEqual(f1, halves)", 5),
        ("kept = Less(f, halves)", 6),
        ("kept = GreaterOrEqual(halves, f)", 6),
        ("a = Less(f1, five_f) b = Less(n, five_n) c = Less(i, six) d = And(a, b) kept = And(c, d)", 5),
    ],
)
def test_limits_that_are_numbers(condition: str, trips: int) -> None:
    assert outcome(loop(condition)) == (trips, "")


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", [1, 6, 7, 11])
@pytest.mark.parametrize("inside", [False, True])
def test_limits_that_are_inputs(kind: int, inside: bool) -> None:
    """The limit is cast in front of the loop or in its body; the first trip takes place whatever it is."""
    cast = f"limit = Cast<to = {kind}>(length)"
    condition = f"{cast if inside else ''} c = Cast<to = {kind}>(n1) kept = Less(c, limit)"
    model = loop(condition, before="" if inside else cast, inputs=", int64 length")
    for length in (5, 1, 0):
        assert outcome(model, length=np.array(length)) == (max(length, 1), "")


@pytest.mark.parametrize(
    ("condition", "inputs", "more", "reason"),
    [
        ("kept = Less(f1, limit)", ", float limit", {"limit": np.array(4.5, np.float32)}, "depends on data"),
        (
            "c = Cast<to = 5>(n1) l = Cast<to = 5>(limit) d = Cast<to = 6>(c) e = Cast<to = 6>(l) kept = Less(d, e)",
            ", int64 limit",
            {"limit": np.array(5)},
            "may not hold every number",
        ),
        ("m = ReduceMax<keepdims = 0>(hn) kept = Less(m, five_f)", "", {}, "depends on data"),
        ("kept = Less(two2, five)", "", {}, "depends on data"),
    ],
)
def test_what_bounds_no_loop(condition: str, inputs: str, more: dict[str, np.ndarray], reason: str) -> None:
    """The loop stays, with a reason; one of them is endless except for its trip count."""
    found = outcome(loop(condition, most="six", inputs=inputs), **more)
    assert found[0] is None
    assert reason in found[1]


def test_a_trip_count_of_none() -> None:
    """With a trip count of 0 a condition after each iteration does not cause a first one."""
    model = loop(
        "kept = Less(n1, limit)", most="length", before="limit = Cast<to = 6>(length)", inputs=", int64 length"
    )
    assert outcome(model, length=np.array(4)) == (4, "")


def test_a_counter_in_steps_of_two() -> None:
    """Its numbers are values of the loop, whatever bounds the trips."""
    condition = "kept = Less(n1, five_n)"
    model = loop(condition)
    (node,) = (n for n in model.graph.node if n.op_type == "Loop")
    body = next(a.g for a in node.attribute if a.name == "body")
    identity = next(n for n in body.node if n.op_type == "Identity")
    body.node.remove(identity)
    body.node.extend(
        onnx.parser.parse_graph(
            "g (float[2,4] hn, int64 two) => (float[2,4] y) { t = Cast<to = 1>(two) y = Add(hn, t) }"
        ).node
    )
    assert outcome(model) == (5, "")


@pytest.mark.parametrize(("limit", "works"), [("nine_n", True), ("ten_n", False)])
def test_more_trips_than_elements(limit: str, works: bool) -> None:
    """A loop that reads beyond its sequence fails; so does its replacement, instead of computing fewer elements."""
    model = loop(f"kept = Less(n1, {limit})")
    if works:
        assert outcome(model) == (T, "")
        return
    made = Model.load(model)
    PassManager(normal_form()).run(made)
    feeds = {"X": np.zeros((T, ROWS, WIDTH), np.float32)}
    for proto in (model, made.proto):
        with pytest.raises(Exception, match=r"(?i)out of .*bounds|indices element"):
            run_model(proto, feeds)
