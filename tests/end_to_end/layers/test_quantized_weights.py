"""Layers whose weights come from DequantizeLinear, as models have them that were trained with quantizers.

What these would catch: trained weights that are rounded once more by a recipe that could hold them, or in silence.
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
from tests.runs.lowered import run_both
from tests.subjects.protos import parse

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,B,12] x) => (float[T,1,B,16] Y) {{
    w = DequantizeLinear <axis = 1> (wq, ws, wz)
    r = DequantizeLinear <axis = 1> (rq, rs, rz)
    [layer] Y = {op} <hidden_size = 16> (x, w, r)
}}"""
RANGES = {"int8": (-127, 127), "int4": (-7, 7), "full int8": (-128, 127), "uint8": (-100, 155)}


def model(op: str, kind: str, per_channel: bool) -> onnx.ModelProto:
    rng, (low, high) = np.random.default_rng(0), RANGES[kind]
    arrays: dict[str, npt.NDArray[Any]] = {}
    zero, dtype = (100, np.uint8) if kind == "uint8" else (0, np.int8)
    for key, width in (("w", 12), ("r", 16)):
        rows = GATES[op] * 16
        size = rng.uniform(0.3, 1.0, (rows, 1))  # so that channels do not reach the ends of the range alike
        drawn = rng.standard_normal((1, rows, width)) * (high - low) * 0.16 * size
        codes = np.clip(np.rint(drawn), low, high)
        codes[0, 0, :2] = low, high
        scale = 0.5 / high * (rng.uniform(0.5, 1.0, rows) if per_channel else np.ones(()))
        arrays |= {f"{key}q": (codes + zero).astype(dtype), f"{key}s": scale.astype(np.float32)}
        arrays[f"{key}z"] = np.full(scale.shape, zero, dtype)
    return parse(MODEL.format(op=op), **arrays)


def feeds() -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.random.default_rng(1).standard_normal((9, 3, 12)).astype(np.float32)}


def loss(proto: onnx.ModelProto, recipe: str, **options: Any) -> tuple[float, str]:
    """The SQNR of a lowering, and what is said of its weights."""
    lowered = rnnqc.lower(proto, recipe, verify=True, **options)
    expected = rnnqc.session(proto, native=False).run(None, feeds())
    return sqnr_db(expected[0], run_both(lowered.proto, feeds())["Y"]), lowered.report.entries[0].reason


@every_pair(op=tuple(GATES), kind=("int8", "int4"), per_channel=(False, True), calibrated=(False, True))
def test_trained_weights_are_taken_over(op: str, kind: str, per_channel: bool, calibrated: bool) -> None:
    """With float arithmetic nothing is lost; otherwise what activations lose, which was 20 dB in 4 bits before."""
    proto, data = model(op, kind, per_channel), [feeds()] * 3 if calibrated else None
    stored = {"int8": "weight-only-int8", "int4": "weight-only-int4"}[kind]
    assert loss(proto, stored, calibration=data)[0] > 120.0
    for recipe in ("int8", "w4a8") if kind == "int4" else ("int8",):
        sqnr, reason = loss(proto, recipe, calibration=data)
        assert sqnr > 38.0 and reason == ""


def test_what_a_recipe_does_not_hold_is_told() -> None:
    full = model("LSTM", "full int8", per_channel=False)
    _, reason = loss(full, "int8")
    assert "its weights come quantized, and are quantized again: layer.forward.W.weight with an SQNR of " in reason
    kept, reason = loss(full, "int8", overrides=["*.weight.narrow=false"])
    assert reason == "" and kept > 38.0
    assert "quantized again" in loss(full, "weight-only-int8")[1]
    kept, reason = loss(full, "weight-only-int8", overrides=["*.weight.narrow=false"])
    assert reason == "" and kept > 120.0
    lowered = rnnqc.lower(model("LSTM", "int8", per_channel=True), "distiller-sym", calibration=[feeds()] * 2)
    assert "which is not the scale in the recipe" in lowered.report.entries[0].found
    assert "quantized again" in loss(model("GRU", "uint8", per_channel=True), "int8")[1]
    assert "quantized again" in loss(model("RNN", "int8", per_channel=True), "w4a8")[1]


@pytest.mark.parametrize("op", GATES)
def test_weights_that_stay_count_for_no_equalization(op: str) -> None:
    """Powers of two for each row of W would round it again: channels have to differ by more than that costs."""
    proto = model(op, "int8", per_channel=True)
    sizes = np.float32(2.0) ** np.linspace(-1.0, 1.0, 12, dtype=np.float32)
    equalized = []
    for power in (1, 6):
        lowered = rnnqc.lower(proto, "int8", calibration=[{"x": feeds()["x"] * sizes**power} for _ in range(3)])
        equalized.append(any("input.factor" in i for n in lowered.proto.graph.node for i in n.input))
    assert equalized == [False, True]
