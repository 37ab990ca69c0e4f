"""Input channels with different ranges are equalized before quantization.

What these would catch: a factor that is no power of two, W scaled the wrong way, compensation with moments of the input
as it was, inputs that are codes of the layer before, silent channels that blow up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.statistics import PointStatistics
from rnnqc.formats.histogram import Histogram
from rnnqc.passes.formats.equalize_inputs import channel_scales
from tests.generate.layers import RecurrentCase
from tests.runs.lowered import STOCK, all_nodes, assert_all_lowered, run_both, session
from tests.runs.sessions import run, sqnr
from tests.subjects.protos import of_nodes

SIZES = 2.0 ** np.linspace(0, -5, 24)
CASE = RecurrentCase(T=30, B=3, I=24, H=32)
OFF = "*.input.equalize=false"


def uneven(case: RecurrentCase) -> tuple[onnx.ModelProto, dict[str, np.ndarray], Any]:
    """A model whose inputs are of very different size, with weights that make all of them matter; data; statistics."""
    model, feeds = case.model(), case.feeds(padding=0.0)
    for tensor in model.graph.initializer:
        if tensor.name == "W":
            scaled = onnx.numpy_helper.to_array(tensor) / SIZES
            tensor.CopyFrom(onnx.numpy_helper.from_array(scaled.astype(np.float32), "W"))
    feeds = {**feeds, "X": (feeds["X"] * SIZES).astype(np.float32)}
    return model, feeds, rnnqc.calibrate(model, [feeds])


def statistics(sizes: np.ndarray) -> PointStatistics:
    return PointStatistics(
        shape=(1, 1, len(sizes)), count=1, calls=1, min=0.0, max=0.0, avg_min=0.0, avg_max=0.0, mean=0.0, std=0.0,
        mean_abs_dev=0.0, histogram=Histogram(1.0, 0, np.ones(1, np.int64)),
        channel_max=sizes, channel_mean=sizes, second_moment=np.diag(sizes**2),
    )  # fmt: skip


def test_scales_are_powers_of_two_that_even_out() -> None:
    weights = np.outer(1 / SIZES, np.ones(8)).astype(np.float32)
    scales = channel_scales(statistics(SIZES), weights)
    assert scales is not None
    np.testing.assert_array_equal(np.frexp(scales)[0], 0.5)
    evened = SIZES / scales
    assert evened.max() / evened.min() <= 2.0


def test_channels_of_one_size_stay() -> None:
    assert channel_scales(statistics(np.ones(24)), np.ones((24, 8), np.float32)) is None


def test_coarse_weights_stay() -> None:
    """If the weights' noise exceeds that of the input there is nothing to gain."""
    weights = np.ones((24, 8), np.float32)
    assert channel_scales(statistics(SIZES), weights, (8, None)) is not None
    assert channel_scales(statistics(SIZES), weights, (8, 2)) is None


@pytest.mark.parametrize("sizes", [np.zeros(4), np.array([1.0, np.inf, 1.0, 1.0]), np.ones(3)])
def test_what_says_nothing_changes_nothing(sizes: np.ndarray) -> None:
    assert channel_scales(statistics(sizes), np.ones((4, 8), np.float32)) is None


def test_silent_channels_stay_finite() -> None:
    sizes = np.where(np.arange(24) % 2, SIZES, 0.0)
    weights = np.outer(1 / SIZES, np.ones(8)).astype(np.float32)
    weights[3] = 0.0
    scales = channel_scales(statistics(sizes), weights)
    assert scales is not None and np.isfinite(scales).all() and (scales > 0).all()


def test_uneven_channels_gain() -> None:
    model, feeds, seen = uneven(CASE)
    expected = rnnqc.evaluation.evaluate.run_model(model, feeds)["Y"]
    reached = {}
    for name, overrides in {"on": [], "off": [OFF]}.items():
        lowered = rnnqc.lower(model, stats=seen, overrides=overrides)
        assert_all_lowered(lowered, name)
        outputs = run_both(lowered.proto, feeds, name)
        reached[name] = sqnr(expected, outputs["Y"])
    print(reached)
    assert reached["on"] > reached["off"] + 6
    assert reached["on"] > 34


def test_every_product_is_the_same_float() -> None:
    """W as it was is the new W times the factor of the input, bit by bit."""
    model, _, seen = uneven(CASE)
    before = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "W")[0]
    lowered = rnnqc.lower(model, form="qcdq", stats=seen, overrides=["*.weight.bits=none"])
    held = {t.name: onnx.numpy_helper.to_array(t) for t in lowered.proto.graph.initializer}
    factor = next(v for k, v in held.items() if k.endswith("input.factor"))
    scaled = next(v for k, v in held.items() if k.endswith("W.equalized"))
    gates = (scaled * factor[:, None]).T
    assert sorted(map(bytes, gates)) == sorted(map(bytes, before.astype(np.float32)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case",
    [
        CASE.replace(direction="bidirectional", lens=(30, 7, 12)),
        CASE.replace(direction="reverse"),
        CASE.replace(peepholes=True, initial_h=True, initial_c=True, dynamic_time=True, dynamic_batch=True),
        CASE.replace(placement="if"),
        CASE.replace(placement="function"),
    ],
    ids=["bidirectional", "reverse", "states", "if", "function"],
)
def test_wherever_the_layer_stands(case: RecurrentCase) -> None:
    model = case.model()
    feeds = case.feeds(padding=0.0)
    feeds = {**feeds, "X": (feeds["X"] * SIZES).astype(np.float32)}
    seen = rnnqc.calibrate(model, [feeds])
    lowered = rnnqc.lower(model, stats=seen)
    outputs = run_both(lowered.proto, feeds)
    plain = run(session(rnnqc.lower(model, stats=seen, overrides=[OFF]).proto, STOCK), feeds)
    expected = rnnqc.evaluation.evaluate.run_model(model, feeds)
    assert sqnr(expected["Y"], outputs["Y"]) > sqnr(expected["Y"], plain["Y"]) - 1


@pytest.mark.parametrize(
    "overrides",
    [[OFF], ["*.input.mode=static", "*.input.range=min-max"], ["*.input.bits=none", "*.weight.bits=8"]],
    ids=["off", "static", "float"],
)
def test_declines(overrides: list[str]) -> None:
    model, _, seen = uneven(CASE)
    lowered = rnnqc.lower(model, form="qcdq", stats=seen, overrides=overrides)
    assert _equalized(lowered.proto) == []


def test_codes_of_the_layer_before_stay() -> None:
    """Only the first of two layers has an input of its own."""
    rng = np.random.default_rng(0)
    stored = {"axis": np.array([1], np.int64)}
    for k, width in enumerate((24, 32)):
        for m, columns in (("W", width), ("R", 32)):
            value = rng.normal(0, 0.2, (1, 128, columns)) / (SIZES if (k, m) == (0, "W") else 1)
            stored[f"{m}{k}"] = value.astype(np.float32)
    helper = onnx.helper
    nodes = [
        helper.make_node("LSTM", ["X", "W0", "R0"], ["Y0"], name="first", hidden_size=32),
        helper.make_node("Squeeze", ["Y0", "axis"], ["X1"]),
        helper.make_node("LSTM", ["X1", "W1", "R1"], ["Y"], name="second", hidden_size=32),
    ]
    model = of_nodes(nodes, {"X": [9, 2, 24]}, {"Y": [9, 1, 2, 32]}, stored)
    feeds = {"X": (rng.normal(0, 1, (9, 2, 24)) * SIZES).astype(np.float32)}
    lowered = rnnqc.lower(model, stats=rnnqc.calibrate(model, [feeds]))
    assert_all_lowered(lowered, "two layers")
    assert _equalized(lowered.proto) == ["first.forward"]


def _equalized(proto: onnx.ModelProto) -> list[str]:
    """Names of the cells that multiply their inputs by factors."""
    return [n.name for n in all_nodes(proto) if any(i.endswith("input.factor") for i in n.input)]
