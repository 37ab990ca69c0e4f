"""Operators that have changed their meaning keep it when a model is converted to a newer operator set.

What these would catch: an interpolation at other places, a Hardmax along another axis, a padding that is refused.
onnx's converter takes these operators over as they are.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.version_conversion import convert_version
from tests.runs.sessions import Array, plain_session, run
from tests.subjects.protos import parse

TARGET = 17
ENLARGING = ([1, 1, 2, 2], [1, 1, 3, 1.5], [1, 1, 1.3, 1.7])
SHRINKING = ([1, 1, 0.5, 0.5], [1, 1, 0.6, 0.7], [1, 1, 1, 0.3])


def _image() -> Array:
    return np.random.default_rng(0).standard_normal((1, 2, 6, 7)).astype(np.float32)


def _same(model: onnx.ModelProto) -> onnx.ModelProto:
    """The converted model, which computes the same bits."""
    (opset,) = model.opset_import
    converted = convert_version(model, opset.version, TARGET, "the model:")
    expected, found = (run(plain_session(m), {"x": _image()})["y"] for m in (model, converted))
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
    return converted


def _resized(op: str, opset: int, mode: str, scales: list[float]) -> onnx.ModelProto:
    text = f"""<ir_version: 4, opset_import: ["" : {opset}]> g (float[1,2,6,7] x) => (float[N,C,H,W] y) {{
        y = {op} <mode = "{mode}"> (x, scales)
    }}"""
    model = parse(text, scales=np.array(scales, np.float32))
    if opset < 9:
        (node,) = model.graph.node
        node.input.pop()
        node.attribute.append(helper.make_attribute("scales", [float(s) for s in scales]))
        model.graph.ClearField("initializer")
    return model


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", ENLARGING)
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
def test_enlarged(op: str, opset: int, scales: list[float], mode: str) -> None:
    _same(_resized(op, opset, mode, scales))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", SHRINKING)
def test_shrunk(scales: list[float], mode: str) -> None:
    _same(_resized("Resize", 10, mode, scales))


def test_shrunk_and_enlarged() -> None:
    _same(_resized("Resize", 10, "linear", [1, 1, 0.6, 1.7]))
    with pytest.raises(
        CompileError, match=r'"Resize" \(node \'y\'\) takes the nearest element.*export the model again'
    ):
        convert_version(_resized("Resize", 10, "nearest", [1, 1, 0.6, 1.7]), 10, TARGET, "the model:")


def test_scales_that_are_computed() -> None:
    """Those of an interpolation to a size, as PyTorch's exporter writes it."""
    text = """<ir_version: 4, opset_import: ["" : 10]> g (float[1,2,6,7] x) => (float[N,C,H,W] y) {
        shape = Shape (x)  sizes = Cast <to = 1> (shape)  scales = Div (wanted, sizes)
        y = Resize <mode = "nearest"> (x, scales)
    }"""
    _same(parse(text, wanted=np.array([1, 2, 9, 15], np.float32)))


def test_newer_ones_stay() -> None:
    text = """<ir_version: 6, opset_import: ["" : 11]> g (float[1,2,6,7] x) => (float[N,C,H,W] y) {
        y = Resize <mode = "linear"> (x, roi, scales)
    }"""
    _same(parse(text, roi=np.zeros(0, np.float32), scales=np.array([1, 1, 2, 1.5], np.float32)))


AXES = [(opset, axis) for opset in (7, 11, 12) for axis in (None, 0, 1, 2, 3, -1, -2)]


@pytest.mark.parametrize(("opset", "axis"), [(o, a) for o, a in AXES if o >= 11 or a is None or a >= 0])
def test_hardmax(opset: int, axis: int | None) -> None:
    given = "" if axis is None else f"<axis = {axis}>"
    text = f"""<ir_version: 4, opset_import: ["" : {opset}]> g (float[1,2,6,7] x) => (float[N,C,H,W] y) {{
        y = Hardmax {given} (x)
    }}"""
    _same(parse(text))


def test_in_branches() -> None:
    """Sibling branches whose values have the same names."""
    text = """<ir_version: 4, opset_import: ["" : 10]> g (float[1,2,6,7] x) => (float[N,C,H,W] y) {
        sum = ReduceSum <keepdims = 0> (x)  positive = Greater (sum, zero)
        y = If (positive) <
            then_branch = a () => (float[N,C,H,W] p) { u = Resize <mode = "linear"> (x, scales)  p = Hardmax (u) },
            else_branch = b () => (float[N,C,H,W] q) { u = Resize <mode = "linear"> (x, scales)  q = Hardmax (u) }
        >
    }"""
    model = parse(text, zero=np.float32(0), scales=np.array([1, 1, 2, 3], np.float32))
    converted = _same(model)
    names = [o for b in blocks_of([converted.graph]) for n in b.node if n.op_type == "Flatten" for o in n.output]
    assert len(names) == len(set(names)) == 2


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad_with_a_value(mode: str) -> None:
    text = f"""<ir_version: 4, opset_import: ["" : 9]> g (float[1,2,6,7] x) => (float[N,C,H,W] y) {{
        y = Pad <mode = "{mode}", pads = [0, 0, 1, 0, 0, 0, 2, 3], value = 0.7> (x)
    }}"""
    _same(parse(text))
