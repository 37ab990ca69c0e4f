"""Layers of Brevitas made from float weights, against rnnqc's lowering of the float layer with `brevitas-int8`.

What these would catch: a quantizer more or less than QuantRNN has, and calls of a shared quantizer in another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.formats.format_request import FormatRequest
from rnnqc.recipes.ranges import RangeRule, scale_of_statistics
from rnnqc.recipes.sharing import merge_for_sharing
from tests.laws.parametrize import every_pair
from tests.runs.lowered import NATIVE, run_both, session
from tests.runs.sessions import run

pytest.importorskip("brevitas", reason="needs brevitas")
torch = pytest.importorskip("torch", reason="needs torch")

from brevitas.nn import QuantLSTM, QuantRNN  # noqa: E402

from tests.subjects.brevitas.layers import forward, moved_products  # noqa: E402
from tests.subjects.torch.exports import exported  # noqa: E402

SIZE, HIDDEN, LENGTH, BATCH = 7, 9, 6, 4  # no quantizer sees 300 calls
ACTIVATIONS = {
    "input_gate": "input_sigmoid_quant", "forget_gate": "forget_sigmoid_quant", "output_gate": "output_sigmoid_quant",
    "cell_gate": "cell_tanh_quant", "hidden": "hidden_state_tanh_quant",
}  # fmt: skip


def _quantizers(op: str) -> dict[str, str]:
    """By point of a cell the name of Brevitas' quantizer."""
    if op == "RNN":
        return {"hidden": "output_quant", "hidden_gate.acc": "gate_acc_quant"}
    return {
        "hidden": "output_quant",
        **{f"{g}_gate.acc": f"{g}_acc_quant" for g in ("input", "output", "forget", "cell")},
        **{f"{point}.activation": q for point, q in ACTIVATIONS.items()},
        **dict.fromkeys(("cell_state.kept", "cell_state.added", "cell_state"), "cell_state_quant"),
    }


def _trained(op: str, wide: Mapping[str, Any] | None = None, **options: Any) -> tuple[Any, Statistics, Any]:
    """The float model, its statistics and Brevitas' layer of the same weights after two calls in training mode."""
    torch.manual_seed(1)
    plain = getattr(torch.nn, op)(SIZE, HIDDEN, **options)
    layer = {"LSTM": QuantLSTM, "RNN": QuantRNN}[op](SIZE, HIDDEN, **options, **(wide or {}))
    layer.load_state_dict(plain.state_dict(), strict=False)
    calls = [torch.randn(LENGTH, BATCH, SIZE) * 0.6 for _ in range(2)]
    layer.train()
    for x in calls:
        layer(x)
    layer.eval()
    axes = {name: {0: "T", 1: "B"} for name in "xy"}
    model = exported(
        plain, calls[:1], False, input_names=["x"], output_names=["y"], dynamic_axes=axes, opset_version=17
    )
    return model, rnnqc.calibrate(model, [{"x": x.numpy()} for x in calls]), layer


@pytest.mark.few(1)
@every_pair(op=("LSTM", "RNN"), layers=(1, 2), both=(False, True))
def test_scales_are_those_that_brevitas_collects(op: str, layers: int, both: bool) -> None:
    _, statistics, layer = _trained(op, num_layers=layers, bidirectional=both)
    cells = list(statistics.cells)
    shared = {"output_quant": ["input", "hidden"]}
    if op == "LSTM":
        shared["cell_state_quant"] = ["cell_state.kept", "cell_state.added", "cell_state"]
    for quantizer, points in shared.items():
        # A second layer's input is on the grid already.
        paths = [f"{c}.{p}" for c in cells for p in points if p != "input" or c in cells[: 1 + both]]
        merged = merge_for_sharing([statistics.points[p] for p in paths], [statistics.cell_of(p) for p in paths])
        scale, _ = scale_of_statistics(merged, RangeRule("ema-percentile"), FormatRequest(8, levels="min-code"))
        assert scale == pytest.approx(float(getattr(layer.layers[0][0].cell, quantizer).scale()), rel=0.03), quantizer


@pytest.mark.few(1)
@every_pair(op=("LSTM", "RNN"), both=(False, True), layers=(1, 2))
def test_the_recipe_has_the_scales_of_every_quantizer(op: str, both: bool, layers: int) -> None:
    """With 24 bits Brevitas collects what the float model holds, so that only the rules of scales could differ."""
    roles = {"RNN": ["gate_acc_quant"], "LSTM": ["gate_acc", "sigmoid", "tanh", "cell_state"]}[op]
    wide = {"bias_quant": None, **{f"{role}_bit_width": 24 for role in ["weight", "io", *roles]}}
    model, statistics, layer = _trained(op, wide, bidirectional=both, num_layers=layers)
    limited = ["*.acc", *(["*.cell_state*"] if op == "LSTM" else [])]
    overrides = [f"{p}.range=ema-percentile" for p in ("*.input", "*.hidden", "*.activation", *limited)]
    overrides += [f"{p}.limit=none" for p in limited]
    points = rnnqc.lower(model, "brevitas-int8", stats=statistics, overrides=overrides).report.points
    for name, direction in zip(statistics.cells, (d for pair in layer.layers for d in pair), strict=True):
        for point, quantizer in _quantizers(op).items():
            steps = (2**24 - 1) / 255 if quantizer.endswith("sigmoid_quant") else 2.0**16
            expected = steps * float(getattr(direction.cell, quantizer).scale())
            # The input of a second layer is no call of Brevitas'.
            loose = layers == 2 and quantizer == "output_quant"
            assert points[f"{name}.{point}"]["scale"] == pytest.approx([expected], rel=0.02 if loose else 1e-4), point


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_an_rnn_computes_as_quant_rnn(nonlinearity: str) -> None:
    model, statistics, layer = _trained("RNN", nonlinearity=nonlinearity)
    cell = layer.layers[0][0].cell
    io, acc = (float(q.scale()) for q in (cell.output_quant, cell.gate_acc_quant))
    scales = [f"*.input.scale={io!r}", f"*.hidden.scale={io!r}", f"*.acc.scale={acc!r}"]
    lowered = rnnqc.lower(model, "brevitas-int8", stats=statistics, overrides=scales)
    x = torch.randn(LENGTH, BATCH, SIZE) * 0.6
    with moved_products(0):
        expected = forward(layer, [x])[0]
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(run_both(lowered.proto, {"x": x.numpy()})["y"], expected)


@pytest.mark.few(1)
@every_pair(op=("LSTM", "RNN"), both=(False, True), layers=(1, 2))
def test_rounded_outputs_are_those_of_return_quant_tensor(op: str, both: bool, layers: int) -> None:
    """Y and its integers, where every scale is Brevitas' own; without `rounded_output` Y of an LSTM is on no grid."""
    model, statistics, layer = _trained(op, bidirectional=both, num_layers=layers)
    tensors = type(layer)(SIZE, HIDDEN, bidirectional=both, num_layers=layers, return_quant_tensor=True)
    tensors.load_state_dict(layer.state_dict())
    tensors.eval()
    scales, names = [], list(statistics.cells)
    for name, direction in zip(names, (d for pair in tensors.layers for d in pair), strict=True):
        cell = direction.cell
        quantizers = {"input": "output_quant", **_quantizers(op)}
        scales += [f"{name}.{p}.scale={float(getattr(cell, q).scale().detach())!r}" for p, q in quantizers.items()]
    x = torch.randn(LENGTH, BATCH, SIZE) * 0.6
    with moved_products(0), torch.no_grad():
        expected = tensors(x)[0]
    scale = float(expected.scale)
    lowered = rnnqc.lower(model, "brevitas-int8", stats=statistics, overrides=scales)
    y = run_both(lowered.proto, {"x": x.numpy()})["y"]
    np.testing.assert_array_equal(y, expected.value.numpy())
    np.testing.assert_array_equal(np.rint(y / scale), expected.int().numpy())
    free = rnnqc.lower(model, "brevitas-int8", stats=statistics, overrides=["*.rounded_output=false", *scales])
    y = run(session(free.proto, NATIVE), {"x": x.numpy()})["y"]
    # The activation of an RNN has the format of the state, and is what leaves the cell then.
    assert op == "RNN" or np.abs(y / scale - np.rint(y / scale)).max() > 0.1
