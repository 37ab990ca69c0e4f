"""Time of one layer: onnxruntime's float LSTM, the fused form in stock onnxruntime, and with the native library.

    python benchmarks/stock_speed.py [--shapes 100x1x256x256 ...] [--rounds N] [--threads N] [--json OUT.json]

A shape is TxBxIxH. The sessions take turns, round by round, so that a change of the machine's speed hits all alike;
ratios are float time over the other's time of the same run, above 1 is faster than float.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from layers import Layer
from reporting import report, session_options

import rnnqc

SHAPES = ("100x1x256x256", "35x1x650x650", "100x8x256x256", "100x1x64x128")
WARM_UP = 3


def measure(layer: Layer, rounds: int, threads: int) -> dict[str, list[float]]:
    """Milliseconds of every round by way of execution."""
    lowered = rnnqc.lower(layer.model())
    sessions: Mapping[str, ort.InferenceSession] = {
        "float": ort.InferenceSession(
            layer.model().SerializeToString(), session_options(threads), providers=["CPUExecutionProvider"]
        ),
        "stock": rnnqc.session(lowered.proto, native=False, options=session_options(threads)),
        "native": rnnqc.session(lowered.proto, native=True, options=session_options(threads)),
    }
    feeds = layer.feeds()
    for session in sessions.values():
        for _ in range(WARM_UP):
            session.run(None, feeds)
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, feeds)
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def row(layer: Layer, times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Minimum and median of each, ratios of the minima and of the medians."""
    result: dict[str, Any] = {"T x B x I x H": layer.name, "batch": "symbolic" if layer.symbolic_batch else "static"}
    lowest = {name: min(values) for name, values in times.items()}
    median = {name: statistics.median(values) for name, values in times.items()}
    for name in times:
        result[f"{name} min ms"], result[f"{name} median ms"] = lowest[name], median[name]
    for name in ("stock", "native"):
        result[f"{name} x (min)"] = lowest["float"] / lowest[name]
        result[f"{name} x (median)"] = median["float"] / median[name]
    return result


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="TxBxIxH")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for shape in arguments.shapes:
        steps, batch, inputs, hidden = (int(n) for n in shape.split("x"))
        for symbolic in (False, True):
            layer = Layer(steps, batch, inputs, hidden, symbolic_batch=symbolic)
            rows.append(row(layer, measure(layer, arguments.rounds, arguments.threads)))
    report(f"One LSTM layer, {arguments.threads} thread(s), {arguments.rounds} rounds", rows, arguments.json)


if __name__ == "__main__":
    main()
