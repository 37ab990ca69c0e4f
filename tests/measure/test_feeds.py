"""Generated feeds: sizes that a model runs with, and values that do not flatter it.

What these would catch: a model that runs on some data but is never compared; inputs of one magnitude alone;
values that the model's own constants say it is not made for.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from rnnqc.data.feeds import check_feed, with_dimensions_of
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.errors import CompileError
from rnnqc.lowering.lower import lower
from rnnqc.measure.feeds import FeedGenerator, generated_feeds, generated_levels
from tests.generate.layers import RecurrentCase
from tests.subjects.protos import parse
from tests.subjects.running_never import never_running

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '


@pytest.mark.parametrize(
    ("text", "constants", "shape"),
    [
        ("(float[A, 4] x) => (float[B, C] y) { y = Reshape(x, s) }", {"s": np.array([1, 4])}, (1, 4)),
        ("(float[A, 5] x) => (float[B, C] y) { y = Reshape(x, s) }", {"s": np.array([2, 5])}, (2, 5)),
        ("(float[A, C] x) => (float[B, C] y) { y = Reshape(x, s) }", {"s": np.array([-1, 160])}, (3, 160)),
        ("(float[A, C] x) => (float[A, 24] y) { y = MatMul(x, w) }", {"w": np.ones((24, 24), np.float32)}, (3, 24)),
        (
            "(float[N, 1, L] x) => (float[N, K, M] y) { y = Conv<kernel_shape = [700]>(x, w) }",
            {"w": np.ones((1, 1, 700), np.float32)},
            (3, 1, 700),
        ),
    ],
    ids=["batch 1", "batch 2", "clips of 160", "declared", "a convolution over 700"],
)  # fmt: skip
def test_sizes_that_the_model_runs_with(text: str, constants: dict[str, np.ndarray], shape: tuple[int, ...]) -> None:
    (feeds,) = generated_feeds(parse(f"{HEAD}{text}", **constants), 1)
    assert feeds["x"].shape == shape


MASKED = "(float[A, T, 4] x, bool[A, T] mask) => (float[A, L, 4] y)"
VALID = "m = Cast<to = 1>(mask) k = Unsqueeze(m, last) y = Mul(x, k)"
PADDING = "n = Not(mask) m = Cast<to = 1>(n) k = Unsqueeze(m, last) y = Mul(x, k)"
WHOLE = (
    "c = Cast<to = 7>(mask) k = ReduceMin<keepdims = 0>(c) i = Sub(k, one) j = Mul(i, many) y = Gather<axis = 1>(x, j)"
)
SOFTMAX = "a = ReduceSum<keepdims = 0>(x, last) b = Where(mask, a, low) p = Softmax(b) q = Log(p)"


@pytest.mark.parametrize(
    ("nodes", "mixed"),
    [
        (VALID, True),
        (PADDING, True),
        (WHOLE, False),
        (f"{SOFTMAX} k = Unsqueeze(q, last) y = Mul(x, k)", False),
    ],
    ids=["true is valid", "true is padding", "refused", "not finite"],
)
def test_masks(nodes: str, mixed: bool) -> None:
    """Each row has both, whichever means padding, unless the model does not run or has no numbers then."""
    constants = {"last": [2], "one": [1], "many": [99]}
    proto = parse(
        f"{HEAD}{MASKED} {{ {nodes} }}", **{k: np.array(v) for k, v in constants.items() if k in nodes},
        **({"low": np.array(-np.inf, np.float32)} if "low" in nodes else {}),
    )  # fmt: skip
    for feeds in generated_feeds(proto, 3):
        assert (feeds["mask"].any(1) & ~feeds["mask"].all(1)).all() == mixed
        assert mixed or feeds["mask"].all()


def test_conditions_are_true() -> None:
    (feeds,) = generated_feeds(parse(f"{HEAD}(float[A, 4] x, bool c) => (float[A, 4] y) {{ y = Where(c, x, x) }}"), 1)
    assert feeds["c"].shape == () and feeds["c"]


@pytest.mark.parametrize("names", [("basins", "days"), ("batch", "days"), ("T", "N"), ("", "")])
def test_axes_are_those_of_the_recurrent_layer(names: tuple[str, str]) -> None:
    """Batch first, as torch exports it; whatever the axes are called, if they are."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 16, 5), "r": (1, 16, 4)}
    held = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in shapes.items()}
    nodes = "t = Transpose<perm = [1, 0, 2]>(x) y = LSTM<hidden_size = 4>(t, w, r)"
    proto = parse(f"{HEAD}(float[A, B, 5] x) => (float[B, 1, A, 4] y) {{ {nodes} }}", **held)
    for dims in (proto.graph.input[0].type.tensor_type.shape.dim, proto.graph.output[0].type.tensor_type.shape.dim):
        for dim in dims:
            if dim.dim_param:
                dim.dim_param = names["AB".index(dim.dim_param)]
    assert FeedGenerator(proto).feeds(0)["x"].shape == (3, 12, 5)


@pytest.mark.parametrize("names", [("T", "C"), ("", ""), ("batch", "length")])
def test_features_are_as_many_as_the_weights_have_columns(names: tuple[str, str]) -> None:
    """Models of madmom declare the frames of a recording as `[frames, bins]` and leave both open."""
    rng = np.random.default_rng(0)
    held = {"w": rng.normal(0, 0.3, (1, 16, 5)), "r": rng.normal(0, 0.3, (1, 16, 4)), "one": np.array([1])}
    nodes = "s = Unsqueeze(x, one) y = LSTM<hidden_size = 4>(s, w, r)"
    arrays = {n: a.astype(np.float32 if a.dtype.kind == "f" else np.int64) for n, a in held.items()}
    proto = parse(f"{HEAD}(float[A, B] x) => (float[A, 1, 1, 4] y) {{ {nodes} }}", **arrays)
    for dim, name in zip(proto.graph.input[0].type.tensor_type.shape.dim, names, strict=True):
        dim.dim_param = name
    for model in (proto, lower(proto).proto):
        generator = FeedGenerator(model).checked()
        assert generator.feeds(0)["x"].shape[1] == 5


@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_that_make_a_mask_of_a_loop(batch_first: bool) -> None:
    """Keras with a mask of lengths, by tf2onnx: one row of length 0 was compared, nothing of which counts."""
    view = "Transpose<perm = [1, 0, 2]> (x)" if batch_first else "Identity (x)"
    axis = "at1" if batch_first else "at0"
    text = f"""{HEAD}(float[A, B, 5] x, int32[C] n) => (float[D, E] h) {{
      s = {view} size = Shape (x) steps = Gather (size, {axis}) counter = Range (first, steps, one)
      column = Unsqueeze (n, last) number = Cast<to = 7> (column) mask = Less (counter, number)
      m = Cast<to = 1> (mask) mt = Transpose<perm = [1, 0]> (m) h0 = ReduceSum<keepdims = 0> (s, many)
      h = Loop (steps, , h0) <body = b (int64 i, bool c, float[R, S] before) => (bool more, float[R, S] after) {{
        more = Identity (c) element = Gather (s, i) row = Gather (mt, i) held = Unsqueeze (row, last)
        p = MatMul (before, W) q = Add (p, element) k = Mul (q, held) after = Add (before, k) }}> }}"""
    ints = {"first": 0, "one": 1, "at0": 0, "at1": 1, "last": [1], "many": [0]}
    model = parse(text, **{n: np.array(v) for n, v in ints.items()}, W=np.ones((5, 5), np.float32))
    feeds = FeedGenerator(model).checked().feeds(0)
    assert feeds["x"].shape == ((3, 12, 5) if batch_first else (12, 3, 5))
    assert feeds["n"].shape == (3,) and feeds["n"].min() >= 1 and 1 < feeds["n"].max() <= 12


@pytest.mark.parametrize(
    ("node", "shape"), [("MatMul(x, w)", (7, 3)), ("Gemm<transB = 1>(x, w)", (3, 7)), ("Conv(image, w)", (3, 7, 1))]
)
def test_features_of_other_weights(node: str, shape: tuple[int, ...]) -> None:
    view = "axis = Constant<value_ints = [2]>() image = Unsqueeze(x, axis) " if "image" in node else ""
    model = parse(f"{HEAD}(float[A, B] x) => (float[C, D] y) {{ {view}y = {node} }}", w=np.ones(shape, np.float32))
    assert generate_feeds(model)["x"].shape[1] == 7


@pytest.mark.parametrize("batch", [5, 16])
@pytest.mark.parametrize("held", ["lens", "states"])
def test_a_batch_that_constants_are_bound_to(held: str, batch: int) -> None:
    """As in models that are traced with one batch and declare it as open."""
    case = RecurrentCase(T=12, B=batch, I=3, H=4, dynamic_batch=True)
    case = case.replace(lens=(12,) * batch) if held == "lens" else case.replace(initial_h=True, initial_c=True)
    proto = case.model()
    for name in {i.name for i in proto.graph.input} - {"X"}:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(case.feeds()[name], name))
    del proto.graph.input[1:]
    assert [i.name for i in proto.graph.input] == ["X"]
    assert {f["X"].shape[1] for f in generated_feeds(proto)} == {batch}


def test_minus_one_is_any_size() -> None:
    """Some exporters write it for dimensions that they leave open."""
    proto = parse(f"{HEAD}(float[T, 2, 3] x) => (float[T, 2, 3] y) {{ y = Identity(x) }}")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert generate_feeds(proto)["x"].shape == (12, 2, 3)
    check_feed({"x": np.zeros((5, 2, 3), np.float32)}, proto, "data")
    bound = parse(f"{HEAD}(float[7, 2, 3] x) => (float[7, 2, 3] y) {{ y = Identity(x) }}")
    assert generate_feeds(with_dimensions_of(proto, bound))["x"].shape == (7, 2, 3)
    assert generate_feeds(with_dimensions_of(bound, proto))["x"].shape == (7, 2, 3)


def test_a_model_that_runs_on_nothing() -> None:
    generator = FeedGenerator(never_running())
    assert generator.refusal is not None and not generator.takes_short
    with pytest.raises(
        CompileError, match=r"does not run on generated data \(\d+ choices of sizes tried\): .*\(data=; rnnqc.bench"
    ):
        generated_feeds(never_running())


def test_batches_that_have_a_name_for_each_input() -> None:
    """As tf2onnx writes Keras models with states: nothing relates the dimensions of one input to those of another."""
    text = "(float[A, B, 4] x, float[C, 4] h) => (float[D, E, F, G] y) {"
    body = "t = Transpose<perm = [1, 0, 2]>(x) a = Constant<value_ints = [0]>() s = Unsqueeze(h, a)"
    weights = {n: np.ones((1, 8 if n == "b" else 4, *(() if n == "b" else (4,))), np.float32) for n in "wrb"}
    proto = parse(f"{HEAD}{text} {body} y = RNN<hidden_size = 4>(t, w, r, b, , s) }}", **weights)
    feeds = generated_feeds(proto, 1)[0]
    assert feeds["x"].shape[0] == feeds["h"].shape[0] and feeds["x"].shape[1] > 1


def test_empty_outputs_are_nothing_to_compare() -> None:
    """A Slice from step 100 on runs on 12 steps, too."""
    text = "(float[T, 2, 3] x) => (float[U, 2, 3] y) { y = Slice(x, a, b) }"
    proto = parse(f"{HEAD}{text}", a=np.array([100]), b=np.array([2**40]))
    assert FeedGenerator(proto).sizes.length > 100


def _levels(proto: object) -> dict[str, dict[str, np.ndarray]]:
    return {level.name: level.feeds[0] for level in generated_levels(FeedGenerator(proto))}  # type: ignore[arg-type]


def test_levels_of_floats_and_states() -> None:
    levels = _levels(RecurrentCase(T=30, B=8, initial_h=True, initial_c=True).model())
    sizes = {name: float(np.std(feeds["X"])) for name, feeds in levels.items()}
    for magnitude in (0.1, 1, 3, 10, 30):
        assert sizes[f"magnitude {magnitude:g}"] == pytest.approx(magnitude, rel=0.1)
    within = [np.abs(f["initial_h"]).max() for n, f in levels.items() if "states" not in n]
    assert max(within) <= 1.0
    (beyond,) = (f for n, f in levels.items() if "states" in n)
    assert np.abs(beyond["initial_h"]).max() > 2.0 and np.std(beyond["X"]) == pytest.approx(1.0, rel=0.1)


def test_levels_of_tokens() -> None:
    """Magnitudes say nothing there; but words are not drawn evenly from a vocabulary."""
    text = "(int64[batch, seq] tokens) => (float[A, B, C] y) { y = Gather(table, tokens) }"
    levels = _levels(parse(f"{HEAD}{text}", table=np.zeros((5000, 2), np.float32)))
    assert list(levels) == ["usual values", "frequent indices"]
    even, frequent = (levels[n]["tokens"] for n in levels)
    assert np.median(frequent) < 400 < np.median(even) and max(even.max(), frequent.max()) < 5000
    assert min(even.min(), frequent.min()) >= 0


def test_a_stream_holds_zeros_for_its_first_states_alone() -> None:
    proto = RecurrentCase(initial_h=True).model()
    for level in generated_levels(FeedGenerator(proto), 3, {"initial_h": "Y_h"}):
        first, *others = level.feeds
        assert not first["initial_h"].any() and len(others) == 2 and all("initial_h" not in f for f in others)


MEAN, DEVIATION = np.array([100.0, -7.0], np.float32), np.array([20.0, 0.5], np.float32)
NORMALIZING = {
    "Sub, Div": ("c = Sub(x, m) y = Div(c, d)", {"m": MEAN, "d": DEVIATION}),
    "Add, Mul": ("c = Add(x, m) y = Mul(c, d)", {"m": -MEAN, "d": 1 / DEVIATION}),
    "Clip": ("c = Clip(x, l, h) y = Identity(c)", {"l": np.float32(60), "h": np.float32(140)}),
}


@pytest.mark.parametrize("name", NORMALIZING)
def test_inputs_that_the_model_normalizes(name: str) -> None:
    """Features of another mean and spread: numbers around 0 are no such features."""
    body, constants = NORMALIZING[name]
    x = generate_feeds(parse(f"{HEAD}(float[64, 50, 2] x) => (float[64, 50, 2] y) {{ {body} }}", **constants))["x"]
    assert x[..., 0].mean() == pytest.approx(100, abs=2) and x[..., 0].std() == pytest.approx(20, rel=0.1)
    if name != "Clip":
        assert x[..., 1].mean() == pytest.approx(-7, abs=0.1) and x[..., 1].std() == pytest.approx(0.5, rel=0.1)


def test_inputs_of_a_batch_normalization() -> None:
    text = "(float[64, 2, 50] x) => (float[64, 2, 50] y) { y = BatchNormalization(x, s, b, m, v) }"
    ones = np.ones(2, np.float32)
    x = generate_feeds(parse(f"{HEAD}{text}", s=ones, b=ones, m=MEAN, v=DEVIATION**2))["x"]
    assert x.mean(axis=(0, 2)) == pytest.approx(MEAN, abs=1.5) and x.std(axis=(0, 2)) == pytest.approx(DEVIATION, 0.1)


def test_a_bias_is_no_mean() -> None:
    text = "(float[64, 2] x) => (float[64, 2] y) { c = Add(x, m) y = Relu(c) }"
    assert abs(generate_feeds(parse(f"{HEAD}{text}", m=MEAN))["x"].mean()) < 0.5


def test_samples_of_few_bits_have_their_range() -> None:
    text = "(int16[64] x, uint8[64] u, int64[64] n) => (float[64] y) { y = Cast<to = 1>(x) }"
    feeds = generate_feeds(parse(f"{HEAD}{text}"))
    assert np.abs(feeds["x"].astype(int)).max() > 20_000 and feeds["u"].max() > 200 and feeds["n"].max() <= 1


def test_lowered_models_get_the_same_feeds() -> None:
    proto = RecurrentCase(dynamic_time=True, initial_h=True).model()
    one, other = (generated_feeds(p, 1)[0] for p in (proto, lower(proto).proto))
    assert all(np.array_equal(one[n], other[n]) for n in one)


def test_samples_that_a_row_of_convolutions_needs() -> None:
    """Sound behind strided convolutions and pools, as in front of a recognizer of speakers: at least 1,801 samples."""
    text = f"""{HEAD}(float[B, 1, samples] x) => (float[B, 4, T] y) {{
      a = Conv<kernel_shape = [251], strides = [10]> (x, first) b = MaxPool<kernel_shape = [3], strides = [3]> (a)
      c = Conv<kernel_shape = [5]> (b, second) d = AveragePool<kernel_shape = [3], strides = [3]> (c)
      y = Conv<kernel_shape = [16]> (d, third) }}"""
    shapes = {"first": (4, 1, 251), "second": (4, 4, 5), "third": (4, 4, 16)}
    model = parse(text, **{n: np.ones(s, np.float32) for n, s in shapes.items()})
    generator = FeedGenerator(model).checked()
    assert generator.sizes.length >= 1801
    assert not generator.takes_short
