"""Calibration of linear layers: their inputs' second moments, and weights that are rounded by them.

What these would catch: moments of another value, of padding, or of the wrong axis of a convolution; layers that are
observed although nothing follows from it; windows of a convolution in another order than its weights; statistics that
get lost between calibration and pass, or of another model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.passes.linear.observe_linear import MOST_WINDOWS
from tests.runs.sessions import Array, plain_session, run, sqnr
from tests.subjects.protos import parse

INPUTS, H, N = 6, 64, 4096
CELL = ("input", "hidden", "W.weight", "R.weight", "*.acc", "*.activation")
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
LAYERS = {
    "MatMul": ("f = Squeeze (y, one) z = MatMul (f, w)", (H, N)),
    "Gemm": ("f = Reshape (y, rows) z = Gemm <transB = 1> (f, w, b)", (N, H)),
    "Conv": ("f = Squeeze (y, one) t = Transpose <perm = [1, 2, 0]> (f) z = Conv (t, w, b)", (N, H, 1)),
}


def draw(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def model_of(layer: str, columns: int = N) -> onnx.ModelProto:
    """An LSTM, and a linear layer behind it, of so many columns: a large one."""
    nodes, shape = LAYERS[layer]
    shape = tuple(columns if n == N else n for n in shape)
    arrays: dict[str, Any] = {
        "W": draw(1, 4 * H, INPUTS), "R": 0.2 * draw(1, 4 * H, H), "w": draw(*shape), "b": draw(columns),
        "one": np.array([1]), "rows": np.array([-1, H]),
    }  # fmt: skip
    proto = parse(
        f"{HEAD} g (float[T,B,{INPUTS}] x) => (float[..] z, float[T,1,B,{H}] y) "
        f"{{ y = LSTM <hidden_size = {H}> (x, W, R) {nodes} }}".replace("float[..] z", "float z"),
        **arrays,
    )
    proto.graph.node[-1].name = "fc"
    return proto


def feeds_of(seed: int, batch: int = 2) -> dict[str, Array]:
    """One call."""
    return {"x": draw(9, batch, INPUTS, seed=seed)}


@pytest.mark.parametrize("layer", LAYERS)
def test_second_moments_are_those_of_the_input(layer: str) -> None:
    proto = model_of(layer)
    feeds = [feeds_of(1), feeds_of(2)]
    statistics = rnnqc.calibrate(proto, feeds)
    session = plain_session(proto)
    rows = np.concatenate([run(session, f)["y"].reshape(-1, H) for f in feeds]).astype(np.float64)
    found = statistics.second_moments["fc.input"]
    np.testing.assert_allclose(found, rows.T @ rows / len(rows), rtol=1e-5, atol=1e-6)
    assert statistics.cells["fc"] == {"op": layer, "products": {"weight": [H, N]}}


def test_weights_are_compensated(tmp_path: Path) -> None:
    """The result on other data is better than without calibration; from the file as from the statistics."""
    proto = model_of("MatMul")
    statistics = rnnqc.calibrate(proto, [feeds_of(k, 8) for k in range(1, 9)])
    statistics.save(tmp_path / "stats.json")
    options: dict[str, Any] = {"rest": "int8", "overrides": ["fc.weight.bits=4", "fc.weight.group_size=32"]}
    plain = rnnqc.lower(proto, **options)
    made = [rnnqc.lower(proto, stats=s, **options) for s in (statistics, tmp_path / "stats.json")]
    assert made[0].proto.SerializeToString() == made[1].proto.SerializeToString()
    feeds = feeds_of(20)
    expected = run(plain_session(proto), feeds)["z"]
    reached = [sqnr(expected, run(rnnqc.session(m.proto), feeds)["z"]) for m in (plain, made[0])]
    assert reached[1] > reached[0] + 1


@pytest.mark.parametrize("form", ["fused", "qcdq"])
@pytest.mark.parametrize("layer", LAYERS)
def test_weights_that_are_only_stored_are_compensated(layer: str, form: str) -> None:
    """Better than without data on other data, with the scales of plain rounding; not where the recipe says so."""

    def faint(seed: int) -> dict[str, Array]:
        """Inputs for which hidden states are nearly linear, and correlated."""
        return {"x": feeds_of(seed, 8)["x"] * np.float32(0.1)}

    proto = model_of(layer, 48)
    options: dict[str, Any] = {"rest": "int8", "form": form, "overrides": [f"y_LSTM.*.{k}.bits=none" for k in CELL]}
    feeds = [faint(k) for k in range(1, 9)]
    plain, made = rnnqc.lower(proto, **options), rnnqc.lower(proto, calibration=feeds, **options)
    assert _stored(made, "w.scale").tobytes() == _stored(plain, "w.scale").tobytes()
    assert (_stored(made, "w.int8") != _stored(plain, "w.int8")).any()
    expected = run(plain_session(proto), faint(20))["z"]
    reached = [sqnr(expected, run(plain_session(m.proto), faint(20))["z"]) for m in (plain, made)]
    assert reached[1] > reached[0] + 1
    options["overrides"].append("fc.weight.compensation=false")
    without = rnnqc.lower(proto, calibration=feeds, **options)
    assert _stored(without, "w.int8").tobytes() == _stored(plain, "w.int8").tobytes()
    told = [str(r) for r in (*without.report.notes, *without.report.warnings)]
    assert not [r for r in told if "has no effect" in r]
    unheard = rnnqc.lower(proto, **options)
    assert [r for r in map(str, (*unheard.report.notes, *unheard.report.warnings)) if "has no effect" in r]


def _stored(lowered: rnnqc.Lowered, name: str) -> Array:
    return next(onnx.numpy_helper.to_array(t) for t in lowered.proto.graph.initializer if t.name == name)


CONVOLUTIONS = {
    "one tap": ("Conv", (300, 5, 1), [13], {}),
    "taps, padded": ("Conv", (300, 5, 3), [13], {"pads": [1, 1]}),
    "strides, dilations": ("Conv", (300, 5, 3), [21], {"strides": [2], "dilations": [3], "pads": [0, 2]}),
    "strides alone": ("Conv", (300, 5, 1), [13], {"strides": [2]}),
    "auto_pad": ("Conv", (300, 5, 4), [13], {"auto_pad": "SAME_UPPER", "strides": [2]}),
    "two axes": ("Conv", (300, 5, 3, 2), [6, 7], {"pads": [1, 0, 1, 1], "strides": [1, 2]}),
    "groups, one tap": ("Conv", (300, 4, 1), [13], {"group": 3}),
    "groups": ("Conv", (300, 4, 3, 2), [6, 7], {"group": 3, "pads": [1, 0, 1, 1]}),
    "groups of one": ("Conv", (160, 1, 3), [13], {"group": 160}),
    "transposed, one tap": ("ConvTranspose", (20, 50, 1), [13], {}),
    "transposed, one tap, larger": ("ConvTranspose", (20, 50, 1), [13], {"output_padding": [1], "strides": [2]}),
    "transposed": ("ConvTranspose", (20, 50, 3), [13], {"strides": [2], "pads": [1, 0]}),
    "transposed, two axes": ("ConvTranspose", (8, 50, 3, 2), [3, 4], {"strides": [1, 2], "dilations": [2, 1]}),
    "transposed, groups": ("ConvTranspose", (12, 50, 3), [13], {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2]}),
}
Layer = tuple[str, tuple[int, ...], list[int], dict[str, Any]]


def channels(layer: Layer) -> tuple[int, int]:
    """How many go in, and how many come out."""
    op, shape, _, attributes = layer
    groups = attributes.get("group", 1)
    return (shape[0], shape[1] * groups) if op == "ConvTranspose" else (shape[1] * groups, shape[0])


def convolution(layer: Layer, batch: object = "N") -> onnx.ModelProto:
    """A convolution `fc` of an input `v`, beside an LSTM."""
    op, shape, length, attributes = layer
    arrays = {"W": draw(1, 4 * 8, INPUTS), "R": 0.2 * draw(1, 4 * 8, 8), "w": draw(*shape)}
    sizes = ",".join(map(str, (batch, channels(layer)[0], *length)))
    proto = parse(
        f"{HEAD} g (float[T,B,{INPUTS}] x, float[{sizes}] v) => (float[T,1,B,8] y, float z) "
        f"{{ y = LSTM <hidden_size = 8> (x, W, R) z = {op} (v, w) }}",
        **arrays,
    )
    node = proto.graph.node[-1]
    node.name = "fc"
    node.attribute.extend(onnx.helper.make_attribute(k, a) for k, a in attributes.items())
    return proto


def windows(layer: Layer, v: Array) -> Array:
    """The windows that onnxruntime's convolution multiplies, `[N,P,groups,K]`: an output channel for each value."""
    op, shape, _, attributes = layer
    count, taps = channels(layer)[0], shape[2:]
    depth = count * int(np.prod(taps))
    one_hot = np.eye(depth, dtype=np.float32).reshape(depth, count, *taps)
    one_hot = one_hot.swapaxes(0, 1) if op == "ConvTranspose" else one_hot
    proto = convolution((op, one_hot.shape, list(v.shape[2:]), {k: a for k, a in attributes.items() if k != "group"}))
    w = next(t for t in proto.graph.initializer if t.name == "w")
    w.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(one_hot), "w"))
    made = np.moveaxis(run(plain_session(proto), {"x": draw(1, 1, INPUTS), "v": v})["z"], 1, -1)
    groups = attributes.get("group", 1)
    return made.reshape(len(v), -1, groups, depth // groups)


@pytest.mark.parametrize("layer", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_second_moments_are_those_of_windows(layer: Layer) -> None:
    """Of groups of channels, those of all groups together."""
    op, _, length, _ = layer
    incoming, outgoing = channels(layer)
    feeds = [{"x": draw(1, 1, INPUTS), "v": draw(n, incoming, *length, seed=n)} for n in (1, 2)]
    statistics = rnnqc.calibrate(convolution(layer), feeds)
    parts = [windows(layer, f["v"]) for f in feeds]
    rows = np.concatenate([p.reshape(-1, p.shape[-1]) for p in parts]).astype(np.float64)
    found = statistics.second_moments["fc.input"]
    np.testing.assert_allclose(found, rows.T @ rows / len(rows), rtol=1e-5, atol=1e-6)
    assert statistics.cells["fc"] == {"op": op, "products": {"weight": [rows.shape[1], outgoing]}}


@pytest.mark.parametrize("group", [1, 5])
def test_of_many_windows_some_count(group: int) -> None:
    """One of each of so many pieces, in every group."""
    count = 3 * MOST_WINDOWS + 7
    layer: Layer = ("Conv", (300, 5 // group, 3), [count + 2], {"group": group})
    v = draw(2, 5, count + 2)
    statistics = rnnqc.calibrate(convolution(layer), [{"x": draw(1, 1, INPUTS), "v": v}])
    k = np.arange(MOST_WINDOWS)
    places = np.floor((k + k * 648055 / 2**20 % 1) * count / MOST_WINDOWS).astype(int)
    kept = windows(layer, v)[:, places].astype(np.float64)
    rows = kept.reshape(-1, kept.shape[-1])
    np.testing.assert_allclose(statistics.second_moments["fc.input"], rows.T @ rows / len(rows), rtol=1e-5, atol=1e-6)


def test_windows_are_of_all_columns_and_phases() -> None:
    """Of an image as wide as the distance of the windows, and of every second element of a transposed convolution."""
    image = convolution(("Conv", (300, 1, 1, 3), [64, 66], {}))
    columns = np.broadcast_to(np.arange(66, dtype=np.float32), (1, 1, 64, 66))
    seen = rnnqc.calibrate(image, [{"x": draw(1, 1, INPUTS), "v": columns}]).points["fc.input"]
    assert seen.channel_max is not None
    assert (seen.channel_max > 60).all()
    assert seen.min < 3
    up = convolution(("ConvTranspose", (24, 24, 2, 2), [64, 64], {"strides": [2, 2]}))
    ones = np.ones((1, 24, 64, 64), np.float32)
    moment = rnnqc.calibrate(up, [{"x": draw(1, 1, INPUTS), "v": ones}]).second_moments["fc.input"]
    assert (np.diag(moment) > 0.1).all()


@pytest.mark.parametrize(
    ("length", "attributes", "op"),
    [(40, {"pads": [1, 1]}, "Conv"), (4, {"pads": [1, 1], "strides": [2]}, "Gemm"), (1, {"pads": [1, 1]}, "Gemm")],
)
def test_convolutions_are_compensated(length: int, attributes: dict[str, Any], op: str) -> None:
    """Also those that become a matmul of windows in another order, and without the taps that meet padding alone."""
    shape = (96, 48, 3)
    mix = draw(48, 48, seed=3) * np.geomspace(0.01, 1, 48, dtype=np.float32)

    def feeds(seed: int) -> dict[str, Array]:
        v = np.cumsum(draw(64, 48, length, seed=seed), axis=2, dtype=np.float32)
        return {"x": draw(1, 1, INPUTS), "v": np.asarray(np.einsum("ck,nkl->ncl", mix, v), np.float32)}

    proto = convolution(("Conv", shape, [length], attributes))
    plain = rnnqc.lower(proto, rest="int8")
    made = rnnqc.lower(proto, rest="int8", calibration=[feeds(k) for k in range(8)])
    assert [n.op_type for n in made.proto.graph.node if n.name == "fc"] == [op]
    expected = run(plain_session(proto), feeds(20))["z"]
    reached = [sqnr(expected, run(rnnqc.session(m.proto), feeds(20))["z"]) for m in (plain, made)]
    assert reached[1] > reached[0] + 3


@pytest.mark.parametrize(
    "layer",
    [
        ("Conv", (96, 12, 3), [40], {"group": 4}),
        ("Conv", (48, 1, 25), [80], {"group": 48}),
        ("ConvTranspose", (48, 40, 4), [40], {"strides": [2]}),
        ("ConvTranspose", (48, 20, 3), [40], {"group": 2}),
    ],
    ids=["groups", "groups of one", "transposed", "transposed, groups"],
)
def test_convolutions_in_groups_and_transposed_ones_are_compensated(layer: Layer) -> None:
    """Better on other data, with the scales of plain rounding."""
    mix = draw(12, 12, seed=3) * np.geomspace(0.01, 1, 12, dtype=np.float32)

    def feeds(seed: int) -> dict[str, Array]:
        smooth = np.cumsum(draw(16, 48, *layer[2], seed=seed), axis=2, dtype=np.float32)
        mixed = np.einsum("ck,ngkl->ngcl", mix, smooth.reshape(16, 4, 12, -1))
        return {"x": draw(1, 1, INPUTS), "v": np.asarray(mixed.reshape(smooth.shape), np.float32)}

    proto = convolution(layer)
    plain = rnnqc.lower(proto, rest="int8")
    made = rnnqc.lower(proto, rest="int8", calibration=[feeds(k) for k in range(8)])
    assert _stored(made, "w.scale").tobytes() == _stored(plain, "w.scale").tobytes()
    expected = run(plain_session(proto), feeds(20))["z"]
    reached = [sqnr(expected, run(plain_session(m.proto), feeds(20))["z"]) for m in (plain, made)]
    assert reached[1] > reached[0] + 3


def test_only_what_something_follows_from_is_observed() -> None:
    """Layers that stay float, tables that are also embeddings, and layers without moments are not observed."""
    proto = model_of("MatMul")
    assert list(rnnqc.calibrate(proto, [feeds_of(1)], moments=False).cells) == ["y_LSTM.forward"]
    table = next(t for t in proto.graph.initializer if t.name == "w")
    small = onnx.ModelProto.FromString(proto.SerializeToString())
    next(t for t in small.graph.initializer if t.name == "w").CopyFrom(onnx.numpy_helper.from_array(draw(H, 2), "w"))
    assert "fc" not in rnnqc.calibrate(small, [feeds_of(1)]).cells
    proto.graph.node.append(onnx.helper.make_node("Gather", [table.name, "one"], ["row"], "lookup"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("row", onnx.TensorProto.FLOAT, [1, N]))
    assert "fc" not in rnnqc.calibrate(proto, [feeds_of(1)]).cells


def test_statistics_of_another_model() -> None:
    """A layer of the same name and another size."""
    statistics = rnnqc.calibrate(model_of("MatMul"), [feeds_of(1)])
    with pytest.raises(rnnqc.UsageError, match=r"'fc' is op MatMul.*op Gemm"):
        rnnqc.lower(model_of("Gemm"), stats=statistics, rest="int8")
