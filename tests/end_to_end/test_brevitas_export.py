"""Models that Brevitas itself exports, against Brevitas' own PyTorch outputs.

Needs the packages brevitas, onnxoptimizer and torch; skipped without them. Inputs are drawn from one seed for each
case: with scales that are no powers of two a code next to a tie may fall otherwise, and none of these does.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from running import run
from running_lowered import NATIVE, STOCK, assert_all_lowered, session

import rnnqc

pytest.importorskip("brevitas", reason="needs brevitas")
torch = pytest.importorskip("torch", reason="needs torch")

BOTH = {"bidirectional": True}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "untrained": {"steps": 0},
    "two layers": {"num_layers": 2},
    "bidirectional": BOTH,
    "bidirectional, two layers": {**BOTH, "num_layers": 2},
    "bidirectional, shared input weights": {**BOTH, "shared_input_hidden_weights": True},
    "cifg": {"coupled_input_forget_gates": True},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "shared weight quantizer": {"shared_intra_layer_weight_quant": True},
    "shared accumulator quantizer": {"shared_intra_layer_gate_acc_quant": True},
    "4-bit weights": {"weight_bit_width": 4},
    "2-bit weights": {"weight_bit_width": 2},
    "per channel": {"weight_quant": "per channel"},
    "6-bit state": {"io_bit_width": 6},
    "4-bit accumulators": {"gate_acc_bit_width": 4},
    "16-bit accumulators": {"gate_acc_bit_width": 16},
    "16-bit cells": {"cell_state_bit_width": 16},
    "floor": {"cell_state_float_to_int_impl_type": "FLOOR", "gate_acc_float_to_int_impl_type": "FLOOR"},
    "ceil": {"io_float_to_int_impl_type": "CEIL", "tanh_float_to_int_impl_type": "CEIL"},
    "narrow": {"io_narrow_range": True, "cell_state_narrow_range": True, "sigmoid_narrow_range": True},
}

# What the file says if the arguments arrived.
TEXTS = {"floor": b"FLOOR", "ceil": b"CEIL"}
SHAPES = {"per channel": (9, 1)}
BITS = {
    "4-bit weights": 4,
    "2-bit weights": 2,
    "6-bit state": 6,
    "4-bit accumulators": 4,
    "16-bit accumulators": 16,
    "16-bit cells": 16,
}


def constants(model: onnx.ModelProto) -> list[Any]:
    """Arrays of initializers and of Constant nodes."""
    nodes = [a.t for n in model.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    return [onnx.numpy_helper.to_array(t) for t in (*model.graph.initializer, *nodes)]


@pytest.mark.parametrize("name", CASES)
def test_export(name: str) -> None:
    from brevitas.export import export_qonnx
    from brevitas.nn import QuantLSTM

    arguments = dict(CASES[name])
    steps = arguments.pop("steps", 5)
    if "weight_quant" in arguments:
        from brevitas.quant import Int8WeightPerChannelFloat

        arguments["weight_quant"] = Int8WeightPerChannelFloat
    torch.manual_seed(len(name))
    layer = QuantLSTM(7, 9, **arguments)
    shape = (2, 6, 7) if arguments.get("batch_first") else (6, 2, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer.train()
        for _ in range(steps):
            layer(torch.randn(shape) * 0.6)
        layer.eval()
        x = torch.randn(shape) * 0.6
        with torch.no_grad():
            outputs, (h, c) = layer(x)
        held = io.BytesIO()
        export_qonnx(layer, args=x, export_path=held, dynamo=False)
    model = onnx.load_from_string(held.getvalue())
    assert TEXTS.get(name, b"QuantLSTMCell") in held.getvalue(), "Brevitas ignores an argument"
    held_arrays = constants(model)
    assert name not in SHAPES or any(a.shape == SHAPES[name] for a in held_arrays), "Brevitas ignores an argument"
    assert name not in BITS or any(a.size == 1 and a == BITS[name] for a in held_arrays), "Brevitas ignores an argument"
    expected = [v.numpy() for v in (outputs, h, c)]
    assert any(len(np.unique(v)) > 2 for v in expected)
    lowered, qcdq = rnnqc.lower(model), rnnqc.lower(model, form="qcdq")
    feeds = {model.graph.input[0].name: x.numpy()}
    for way, made in ((STOCK, lowered), (NATIVE, lowered), ("form qcdq", qcdq)):
        assert_all_lowered(made, name)
        for got, wanted in zip(run(session(made.proto, way), feeds).values(), expected, strict=True):
            assert got.shape == wanted.shape
            assert int((got != wanted).sum()) == 0, f"{way}: {int((got != wanted).sum())} of {wanted.size} codes differ"
