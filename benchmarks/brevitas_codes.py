"""Compares exported QuantLSTM layers with Brevitas on arbitrary inputs: how many quantized values differ, and speed.

    python benchmarks/brevitas_codes.py [--models N] [--size 32] [--steps 40] [--rounds N] [--json OUT.json]

Brevitas multiplies float32 matrices in the order of the BLAS library, rnnqc sums quantized values exactly: a sum next
to a tie may be rounded differently, and the difference propagates through the sequence. Needs brevitas and
onnxoptimizer.
"""

from __future__ import annotations

import argparse
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from brevitas import quant
from brevitas.export import export_qonnx
from brevitas.nn import QuantLSTM
from support.layers import Layer
from support.reporting import report

import rnnqc
from rnnqc.timing import NATIVE, bound_run, session_options, take_turns, timings

BATCH = 5
POWERS_OF_TWO: Mapping[str, Any] = {
    **{f"{part}_quant": quant.Int8ActPerTensorFixedPoint for part in ("io", "gate_acc", "tanh", "cell_state")},
    "sigmoid_quant": quant.Uint8ActPerTensorFixedPoint,
    "weight_quant": quant.Int8WeightPerTensorFixedPoint,
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "8 bits": {},
    "8 bits, per channel": {"weight_quant": quant.Int8WeightPerChannelFloat},
    "4-bit weights": {"weight_bit_width": 4},
    "zero points": {
        f"{part}_quant": quant.ShiftedUint8ActPerTensorFloat for part in ("io", "gate_acc", "tanh", "cell_state")
    },
    "two bidirectional layers": {"num_layers": 2, "bidirectional": True},
    "16-bit accumulators": {"gate_acc_bit_width": 16},
    "16-bit accumulators and cells": {"gate_acc_bit_width": 16, "cell_state_bit_width": 16},
    "powers of two": POWERS_OF_TWO,
}
BREVITAS = "Brevitas, 8 bits"


def exported(
    input_size: int, hidden: int, length: int, batch: int, seed: int, arguments: Mapping[str, Any]
) -> tuple[QuantLSTM, onnx.ModelProto]:
    """Returns a layer with random weights, whose ranges were calibrated on random data, and its file."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = QuantLSTM(input_size, hidden, **arguments)
        layer.train()
        for _ in range(4):
            layer(torch.randn(length, batch, input_size) * 0.6)
        layer.eval()
        held = io.BytesIO()
        export_qonnx(layer, args=torch.zeros(length, batch, input_size), export_path=held, dynamo=False)
    return layer, onnx.load_from_string(held.getvalue())


def compare(kind: str, models: int, size: int, steps: int) -> dict[str, Any]:
    """Compares output quantized values of many models, each on random inputs."""
    codes, differing, touched, largest = 0, 0, 0, 0
    for seed in range(models):
        layer, file = exported(size + seed % 3, size, steps, BATCH, seed, KINDS[kind])
        x = torch.randn(steps, BATCH, size + seed % 3) * 0.6
        with torch.no_grad():
            expected = layer(x)[0].numpy()
        session = rnnqc.session(rnnqc.lower(file).proto, options=session_options())
        name = next(i.name for i in session.get_inputs() if len(i.shape) == 3)
        got = session.run(None, {name: x.numpy()})[0]
        step = float(np.diff(np.unique(expected)).min())
        apart = np.rint(np.abs(got.astype(np.float64) - expected) / step).astype(int)
        codes, differing = codes + expected.size, differing + int((apart > 0).sum())
        touched, largest = touched + bool(apart.any()), max(largest, int(apart.max()))
    return {
        "cells": kind,
        "models": models,
        "output codes": codes,
        "models with a difference": touched,
        "codes that differ": differing,
        "share in ppm": 1e6 * differing / codes,
        "largest, in codes": largest,
    }


def speed(layer: Layer, rounds: int) -> dict[str, Any]:
    """Compares the time of an 8-bit cell of Brevitas with the default recipe's cell of the same size."""
    _, file = exported(layer.I, layer.H, layer.T, layer.B, 0, {})
    brevitas, default = rnnqc.lower(file).proto, rnnqc.lower(layer.model()).proto
    name = next(i.name for i in brevitas.graph.input if len(i.type.tensor_type.shape.dim) == 3)
    x = layer.feeds()["X"]
    stored = {t.name for t in brevitas.graph.initializer}
    del brevitas.graph.input[:]
    brevitas.graph.input.extend(i for i in rnnqc.lower(file).proto.graph.input if i.name not in stored)
    runs = {
        NATIVE: bound_run(rnnqc.session(default, options=session_options()), layer.feeds()),
        BREVITAS: bound_run(rnnqc.session(brevitas, options=session_options()), {name: x}),
    }
    ours, theirs = timings(take_turns(runs, rounds))
    return {
        "T x B x I x H": layer.name,
        "int8 min us": ours.min_us,
        f"{BREVITAS} min us": theirs.min_us,
        "ratio": theirs.min_us / ours.min_us,
    }


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--size", type=int, default=30, help="H; I is that or one or two more")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--shapes", nargs="+", default=["100x1x256x256"], metavar="TxBxIxH")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [compare(kind, arguments.models, arguments.size, arguments.steps) for kind in KINDS]
    report(f"Codes of outputs, T = {arguments.steps}, B = {BATCH}", rows, arguments.json)
    times = [speed(Layer.parse(shape), arguments.rounds) for shape in arguments.shapes]
    second = arguments.json.with_suffix(".speed.json") if arguments.json else None
    report("One layer, one thread, minimum of interleaved turns", times, second)


if __name__ == "__main__":
    main()
