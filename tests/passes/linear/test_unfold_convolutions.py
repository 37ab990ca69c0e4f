"""unfold-convolutions: convolutions over few positions become matmuls of their windows.

What these would catch: a window that begins elsewhere, weights in another order than the elements they meet, padding
that is no zero, a Relu that is lost or whose input something else needs, a length that is not known, a weight that two
operators read, a model that gets larger or slower for it.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, UnfoldConvolutions
from tests.laws.law import law
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import INTEGER, NATIVE, STOCK
from tests.runs.sessions import Array
from tests.subjects.protos import parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
CHANNELS, MADE = 48, 64


def draw(*shape: int, seed: int = 0) -> Array:
    """Normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def model(
    length: object, taps: int, attributes: str = "", behind: str = "y = Identity (p)", channels: int = CHANNELS,
    batch: object = 1, shape: tuple[int, ...] | None = None, bias: bool = True,
) -> Model:  # fmt: skip
    """A convolution as the pass meets it."""
    given = f"<{attributes}>" if attributes else ""
    text = f"""{HEAD} g (float[{batch},{channels},{length}] x) => (float[B,M,P] y)
        {{ p = Conv {given} (x, w{", b" if bias else ""}) {behind} }}"""
    arrays = {"w": draw(*(shape or (MADE, channels, taps))), **({"b": draw(MADE, seed=1)} if bias else {})}
    made = Model.load(parse(text, **arrays))
    PassManager([Canonicalize()]).run(made)
    return made


def weight_shape(made: Model) -> list[int]:
    (gemm,) = nodes_of(made, "Gemm")
    return list(next(t.dims for t in made.proto.graph.initializer if t.name == gemm.inputs[1].name))


@pytest.mark.parametrize(
    ("length", "taps", "attributes", "used"),
    [
        (4, 3, "pads = [1, 1]", 3),
        (4, 3, "strides = [2], pads = [1, 1]", 3),
        (6, 3, "", 3),
        (9, 3, "dilations = [3]", 3),
        (8, 3, "dilations = [2], strides = [3], pads = [0, 2]", 3),
        (3, 3, "", 3),
        (1, 3, "pads = [1, 1]", 1),
        (2, 3, "strides = [2], pads = [1, 1]", 2),
        (2, 5, "pads = [4, 0]", 2),
        (12, 4, "strides = [4]", 4),
        (13, 4, "strides = [4], pads = [2, 3]", 4),
        (1, 5, "pads = [2, 4]", 3),
        (9, 4, "strides = [4], auto_pad = \"VALID\"", 4),
    ],
)  # fmt: skip
def test_windows(length: int, taps: int, attributes: str, used: int) -> None:
    """`apply` compares the results; weights that meet padding alone go."""
    made = model(length, taps, attributes)
    result = apply(UnfoldConvolutions(), made, [{"x": draw(1, CHANNELS, length, seed=s)} for s in (2, 3)])
    assert result.statistics == {"convolutions": 1}
    assert not nodes_of(made, "Conv", "Pad")
    assert weight_shape(made) == [MADE, CHANNELS * used]


@pytest.mark.parametrize("batch", [3, "B"])
@pytest.mark.parametrize("attributes", ["pads = [1, 1]", "strides = [2]"])
def test_batches(batch: object, attributes: str) -> None:
    made = model(5 if "strides" in attributes else 4, 3, attributes, batch=batch, bias=False)
    result = apply(UnfoldConvolutions(), made, [{"x": draw(3, CHANNELS, 5 if "strides" in attributes else 4)}])
    assert result.modified


def test_windows_of_one_channel() -> None:
    """A transform of frames that overlap by half: neighbours are read together."""
    made = model(640, 256, "strides = [128]", channels=1)
    assert apply(UnfoldConvolutions(), made, [{"x": draw(1, 1, 640)}]).modified
    (gather,) = nodes_of(made, "Gather")
    assert np.asarray(gather.inputs[1].values).tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_a_window_that_is_the_input_is_no_gather() -> None:
    made = model(5, 5, "", "y = Relu (p)")
    assert apply(UnfoldConvolutions(), made, [{"x": draw(1, CHANNELS, 5)}]).modified
    assert [n.op for n in made.graph.nodes] == ["Reshape", "Gemm", "Relu", "Reshape"]


@pytest.mark.parametrize(
    ("behind", "moved"),
    [
        ("y = Relu (p)", True),
        ("q = Relu (p) y = Neg (q)", True),
        ("q = Relu (p) y = Add (p, q)", False),
        ("y = Sigmoid (p)", False),
    ],
)
def test_a_relu_comes_along(behind: str, moved: bool) -> None:
    """onnxruntime fuses it with the matmul; other readers of the result still get it."""
    made = model(4, 3, "pads = [1, 1]", behind)
    assert apply(UnfoldConvolutions(), made, [{"x": draw(1, CHANNELS, 4)}]).modified
    (gemm,) = nodes_of(made, "Gemm")
    assert [n.op for n in gemm.outputs[0].outputs] == ["Relu" if moved else "Reshape"]


STAY = {
    "many positions": (7, 3),
    "open length": ("L", 3, "pads = [1, 1]"),
    "groups": (4, 3, "pads = [1, 1], group = 2", "y = Identity (p)", CHANNELS, 1, (MADE, CHANNELS // 2, 3)),
    "auto_pad": (4, 3, 'auto_pad = "SAME_UPPER"'),
    "read twice": (4, 3, "", "s = ReduceMax <keepdims = 0> (w) y = Mul (p, s)"),
    "small": (4, 2, "", "y = Identity (p)", 16),
    "one frame": (1, 1, "", "y = Identity (p)", 160),
}
"""Arguments of `model`."""


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    made = model(*STAY[name])  # type: ignore[arg-type]
    assert not UnfoldConvolutions()(made).modified


def test_weights_that_are_data_stay() -> None:
    text = f"{HEAD} g (float[1,{CHANNELS},4] x, float[{MADE},{CHANNELS},3] v) => (float[1,M,P] y) {{ y = Conv (x, v) }}"
    made = Model.load(parse(text))
    PassManager([Canonicalize()]).run(made)
    assert not UnfoldConvolutions()(made).modified


def _stream() -> onnx.ModelProto:
    """A frame of four columns through two convolutions and a GRU that carries its state."""
    size = 64
    text = f"""{HEAD} stream (float[1,{CHANNELS},4] x, float[1,1,{size}] h) => (float[T,1,B,H] y, float[1,B,H] hn) {{
        a = Conv <pads = [1, 1]> (x, w1, b1) r = Relu (a)
        c = Conv <strides = [2], pads = [1, 1]> (r, w2) s = Relu (c)
        t = Transpose <perm = [2, 0, 1]> (s)
        y, hn = GRU <hidden_size = {size}, linear_before_reset = 1> (t, w, q, bias, , h)
    }}"""
    arrays = {
        "w1": draw(64, CHANNELS, 3) / 12, "b1": draw(64), "w2": draw(64, 64, 3) / 14, "w": draw(1, 3 * size, 64) / 8,
        "q": draw(1, 3 * size, size) / 8, "bias": draw(1, 6 * size) / 8,
    }  # fmt: skip
    return parse(text, **{n: np.asarray(a, np.float32) for n, a in arrays.items()})


def test_in_a_stream() -> None:
    """Every way has the same bits; in form fused no operator that only moves elements stands alone."""
    feeds = [{"x": draw(1, CHANNELS, 4, seed=s), "h": np.zeros((1, 1, 64), np.float32)} for s in range(2)]
    forms = law(_stream(), feeds=feeds, rest="int8", ways=(STOCK, NATIVE, INTEGER))
    ops = [n.op_type for n in forms.stock.proto.graph.node]
    assert ops.count("Gemm") == 2
    assert not {"Conv", "Gather", "Transpose"} & set(ops)
    assert {e.op for e in forms.stock.report.rest.entries} == {"Gemm"}
    assert {e.status for e in forms.stock.report.rest.entries} == {"quantized"}
    plain = [n.op_type for n in rnnqc.lower(_stream()).proto.graph.node]
    assert plain.count("Conv") == 2
