"""Quantize a trained LSTM and compare it with the float model: size, error, accuracy and time."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

import rnnqc

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "digits_lstm.onnx"
REPEATS = 50


def milliseconds(session: ort.InferenceSession, feed: dict[str, np.ndarray]) -> float:
    """Median time of one run."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def sqnr(reference: np.ndarray, value: np.ndarray) -> float:
    """Signal to quantization noise ratio in dB."""
    noise = np.sum((reference.astype(np.float64) - value) ** 2)
    return float(10 * np.log10(np.sum(reference.astype(np.float64) ** 2) / noise)) if noise else float("inf")


def main() -> None:
    """Lower the model, run it three ways and print a table."""
    quantized = ROOT / "demo" / "digits_lstm.int8.onnx"
    quantized.parent.mkdir(exist_ok=True)
    rnnqc.lower(MODEL).save(quantized)

    with np.load(ROOT / "models" / "digits_test.npz") as data:
        images, labels = data["x"], data["label"]
    variants = {
        "float": (MODEL, ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])),
        "int8, stock": (quantized, rnnqc.session(quantized, native=False)),
        "int8, native": (quantized, rnnqc.session(quantized, native=True)),
    }
    (reference,) = variants["float"][1].run(None, {"x": images})

    table = Table("model", "file", "SQNR", "accuracy", "one image", f"{len(images)} images")
    for name, (path, session) in variants.items():
        (logits,) = session.run(None, {"x": images})
        table.add_row(
            name,
            f"{path.stat().st_size / 1000:.1f} kB",
            "-" if path == MODEL else f"{sqnr(reference, logits):.1f} dB",
            f"{100 * np.mean(logits.argmax(axis=1) == labels):.2f} %",
            f"{milliseconds(session, {'x': images[:1]}):.3f} ms",
            f"{milliseconds(session, {'x': images}):.2f} ms",
        )
    console = Console()
    console.print(table)
    console.print(f"The quantized model is {quantized.relative_to(ROOT)}; it needs no library besides onnxruntime.")


if __name__ == "__main__":
    main()
