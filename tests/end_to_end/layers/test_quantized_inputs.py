"""Layers behind QuantizeLinear and DequantizeLinear, as models have them that were trained with quantizers.

What these would catch: a range that the model brings and that is passed over in silence; values that are quantized
twice with two scales; a signed format that is taken for an unsigned one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from tests.laws.parametrize import every_pair
from tests.runs.lowered import STOCK, run_both, session
from tests.runs.sessions import run
from tests.subjects.protos import parse

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TYPES = {"uint8": 120, "int8": -8, "uint16": 32000, "int16": 77}
MODEL = """<ir_version: 8, opset_import: ["": {opset}]>
g (float[B,T,12] x) => (float[T,1,B,16] Y, float[1,B,16] Y_h) {{
    [quantize] codes = QuantizeLinear (x, scale, zero_point)
    [dequantize] real = DequantizeLinear (codes, scale, zero_point)
    turned = Transpose <perm = [1, 0, 2]> (real)
    [layer] Y, Y_h = {op} <hidden_size = 16> (turned, W, R)
}}"""
SCALE = np.float32(0.03)


def model(op: str, kind: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    rows = GATES[op] * 16
    weights = {k: (rng.standard_normal((1, rows, n)) * 0.4).astype(np.float32) for k, n in (("W", 12), ("R", 16))}
    text = MODEL.format(op=op, opset=21 if kind.endswith("16") else 17)
    return parse(text, **weights, scale=np.array(SCALE), zero_point=np.array(TYPES[kind], kind))


def data(count: int = 1) -> list[dict[str, npt.NDArray[Any]]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((3, 9, 12)).astype(np.float32)} for _ in range(count)]


@pytest.mark.few(3)
@every_pair(op=("LSTM", "GRU", "RNN"), kind=tuple(TYPES), form=("fused", "integer", "qcdq"))
def test_a_format_in_front_of_a_layer_is_its_own(op: str, kind: str, form: str) -> None:
    """The layer multiplies these quantized values: nothing of them is lost, with or without a calibration."""
    made = model(op, kind)
    recipe = "int16" if kind.endswith("16") else "int8"
    lowered = rnnqc.lower(made, recipe, form, verify=True)
    (point,) = [p for n, p in lowered.report.points.items() if n.endswith(".input")]
    raised = 2 ** (np.iinfo(kind).bits - 1) if kind.startswith("int") else 0
    assert (point["scale"], point["zero_point"]) == ([float(SCALE)], TYPES[kind] + raised)
    assert (point["bits"], point["signed"], point["on_grid"]) == (np.iinfo(kind).bits, False, True)
    calibrated = rnnqc.lower(made, recipe, form, calibration=data(3))
    assert calibrated.report.points["layer.forward.input"] == point
    again = rnnqc.lower(made, recipe, form, overrides=["*.input.chain=false"])
    (feeds,) = data()
    expected = run(session(made, STOCK), feeds)["Y"]
    kept, rounded = (sqnr_db(expected, run_both(m.proto, feeds)["Y"]) for m in (lowered, again))
    assert kept > 30.0 and (recipe == "int16" or kept > rounded)


@pytest.mark.few(1)
@pytest.mark.parametrize(("recipe", "zero_point"), [("int8-static", 120), ("brevitas-int8", -8)])
def test_another_scale_of_a_recipe_is_told(recipe: str, zero_point: int) -> None:
    lowered = rnnqc.lower(model("LSTM", "uint8"), recipe, calibration=data(3))
    (entry,) = lowered.report.entries
    assert "comes quantized, and is quantized again with another scale" in entry.reason
    overrides = [f"layer.forward.input.scale={float(SCALE)!r}", f"layer.forward.input.zero_point={zero_point}"]
    assert all(o in entry.action for o in overrides)
    lowered = rnnqc.lower(model("LSTM", "uint8"), recipe, calibration=data(3), overrides=overrides)
    assert "comes quantized" not in lowered.report.entries[0].reason


def test_a_width_of_ones_own_is_told() -> None:
    lowered = rnnqc.lower(model("GRU", "uint8"), overrides=["*.input.bits=16"])
    (told,) = [w for w in lowered.report.warnings if "changes nothing" in w]
    assert "its values come quantized" in told and "chain = false" in told


def test_more_bits_than_the_recipe_has_are_not_taken() -> None:
    assert rnnqc.lower(model("LSTM", "int16")).report.points["layer.forward.input"]["mode"] == "dynamic-row"


def test_scales_of_channels_are_not_taken() -> None:
    made = model("LSTM", "uint8")
    for tensor in made.graph.initializer:
        if tensor.name in ("scale", "zero_point"):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(12, array), tensor.name))
    for node in made.graph.node[:2]:
        node.attribute.append(onnx.helper.make_attribute("axis", 2))
    assert rnnqc.lower(made).report.points["layer.forward.input"]["mode"] == "dynamic-row"
