"""File size, time to create a session and peak memory: float, stock and native.

    python benchmarks/startup.py [--shapes TxBxIxH:LAYERS ...] [--rounds N] [--json OUT.json]

Sessions are created in turns in one process, from the path of a file as programs do; the minimum counts. Memory is
measured in a fresh process for each: VmHWM after creating the session and after one run, minus that before ("before":
Python, its imports, the library).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from scale import MEGABYTE, peak_bytes
from support.layers import Layer
from support.reporting import report

import rnnqc
from rnnqc import runtime_ops
from rnnqc.timing import FLOAT, NATIVE, STOCK, session_options

SHAPES = ("100x1x256x256:1", "35x1x1500x1500:4")


def options(way: str) -> ort.SessionOptions:
    """Returns session options; without rnnqc's compiler, which a process that only runs a model does not load."""
    result = session_options()
    if way == NATIVE:
        runtime_ops.register(result)
    return result


def create(way: str, path: Path) -> ort.InferenceSession:
    """Creates a session."""
    return ort.InferenceSession(path, options(way), providers=["CPUExecutionProvider"])


def peaks(way: str, path: Path | None, layer: Layer) -> list[float]:
    """Returns the megabytes at the three points, measured by this script in a separate process."""
    arguments = ["--child", way, str(path), f"{layer.name}:{layer.count}"]
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return [float(n) for n in done.stdout.split()]


def child(way: str, path: Path, layer: Layer) -> None:
    """Prints the peak before, after creation, after one run."""
    feeds = layer.feeds()
    options(way)
    before = peak_bytes()
    session = create(way, path)
    created = peak_bytes()
    session.run(None, feeds)
    print(before / MEGABYTE, created / MEGABYTE, peak_bytes() / MEGABYTE)


def measure(layer: Layer, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each way."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {FLOAT: Path(folder) / "float.onnx", STOCK: Path(folder) / "lowered.onnx"}
        paths[NATIVE] = paths[STOCK]
        onnx.save(layer.model(), paths[FLOAT])
        rnnqc.lower(paths[FLOAT]).save(paths[STOCK])
        seconds: dict[str, list[float]] = {way: [] for way in paths}
        for _ in range(rounds):
            for way, path in paths.items():
                start = time.perf_counter()
                create(way, path)
                seconds[way].append(time.perf_counter() - start)
        rows = []
        for way, path in paths.items():
            before, created, run = peaks(way, path, layer)
            rows.append(
                {
                    "layers": layer.count, "T x B x I x H": layer.name, "way": way,
                    "file MB": path.stat().st_size / MEGABYTE, "create ms": 1e3 * min(seconds[way]),
                    "peak after creation MB": created - before, "after a run MB": run - before, "before MB": before,
                }
            )  # fmt: skip
    return rows


def parse(text: str) -> Layer:
    """Returns a layer from TxBxIxH:LAYERS."""
    shape, _, count = text.partition(":")
    return Layer.parse(shape, count=int(count or 1))


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="TxBxIxH:LAYERS")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        way, path, layer = a.child
        child(way, Path(path), parse(layer))
        return
    rows = [row for shape in a.shapes for row in measure(parse(shape), a.rounds)]
    report(f"Size, session creation (minimum of {a.rounds}) and peak memory", rows, a.json)


if __name__ == "__main__":
    main()
