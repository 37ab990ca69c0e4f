"""Figures of merit of the trained models, measured on their committed test arrays with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

FOLDER = Path(__file__).resolve().parent


def digits_accuracy(session: ort.InferenceSession) -> float:
    """Percentage of test images that are classified correctly."""
    with np.load(FOLDER / "digits_test.npz") as data:
        (logits,) = session.run(["logits"], {"x": data["x"]})
        return 100.0 * float(np.mean(np.argmax(logits, axis=1) == data["label"]))


def pydoc_bits(session: ort.InferenceSession, *, batch: int = 8, steps: int = 64) -> float:
    """Bits per character on the test text, read as ``batch`` columns with carried states."""
    with np.load(FOLDER / "pydoc_test.npz") as data:
        codes = data["codes"].astype(np.int64)
    columns = codes[: len(codes) // batch * batch].reshape(batch, -1).T
    shapes = {value.name: value.shape for value in session.get_inputs()}
    layers, _, hidden = shapes["h0"]
    h = c = np.zeros((layers, batch, hidden), np.float32)
    total = 0.0
    for start in range(0, len(columns) - 1, steps):
        stop = min(start + steps, len(columns) - 1)
        feed = {"tokens": columns[start:stop], "h0": h, "c0": c}
        logits, h, c = session.run(["logits", "hn", "cn"], feed)
        logits = logits.astype(np.float64)
        chosen = np.take_along_axis(logits, columns[start + 1 : stop + 1, :, None], axis=2)[..., 0]
        peak = logits.max(axis=2)
        total += float(np.sum(np.log(np.exp(logits - peak[..., None]).sum(axis=2)) + peak - chosen))
    return total / (batch * (len(columns) - 1)) / float(np.log(2.0))


SCORES: dict[str, tuple[Callable[[ort.InferenceSession], float], str]] = {
    "digits_lstm.onnx": (digits_accuracy, "{:.2f} % accuracy"),
    "pydoc_lstm.onnx": (pydoc_bits, "{:.3f} bits per character"),
}
"""Model file -> (what measures it, how the figure is written)."""
