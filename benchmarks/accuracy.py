"""SQNR of Y without calibration data: recipe int8 against onnxruntime's quantize_dynamic, per tensor and per channel.

python benchmarks/accuracy.py [--sizes 32 64 ...] [--seeds N] [--set PATH=VALUE ... [--set ...]] [--json OUT.json]

Every --set adds a column: the recipe with these overrides.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic
from support.layers import Array, Layer
from support.reporting import report

import rnnqc
from rnnqc.timing import session_options

STEPS = 50


def sqnr(reference: Array, value: Array) -> float:
    """Signal to quantization noise ratio in dB."""
    wanted = reference.astype(np.float64).ravel()
    noise = wanted - value.astype(np.float64).ravel()
    return 10.0 * float(np.log10(float(wanted @ wanted) / float(noise @ noise)))


def measure(layer: Layer, folder: Path, formats: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns the SQNR by method; `formats` are lists of overrides."""
    source = folder / "float.onnx"
    onnx.save(layer.model(), source)

    def output(model: str | bytes) -> Array:
        session = ort.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["Y"], layer.feeds())[0])

    reference = output(str(source))
    results = {}
    for name, per_channel in (("ort per tensor", False), ("ort per channel", True)):
        target = folder / "dynamic.onnx"
        quantize_dynamic(
            source, target, op_types_to_quantize=["LSTM"], per_channel=per_channel, weight_type=QuantType.QInt8
        )
        results[name] = sqnr(reference, output(str(target)))
    for overrides in ((), *formats):
        lowered = rnnqc.lower(layer.model(), overrides=overrides)
        session = rnnqc.session(lowered.proto, native=False, options=session_options())
        value = np.asarray(session.run(["Y"], layer.feeds())[0])
        results[" ".join(overrides) or "rnnqc int8"] = sqnr(reference, value)
    return results


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", nargs="+", default=[], metavar="PATH=VALUE", dest="formats")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            layers = (Layer(STEPS, 1, size, size, seed) for seed in range(arguments.seeds))
            runs = [measure(layer, Path(folder), arguments.formats) for layer in layers]
        means = {name: float(np.mean([r[name] for r in runs])) for name in runs[0]}
        worst = min(r["rnnqc int8"] - r["ort per channel"] for r in runs)
        ahead = {"mean ahead": means["rnnqc int8"] - means["ort per channel"], "worst ahead": worst}
        rows.append({"I = H": size, **means, **ahead})
    report(f"SQNR of Y in dB, T = {STEPS}, mean of {arguments.seeds} seeds", rows, arguments.json)


if __name__ == "__main__":
    main()
