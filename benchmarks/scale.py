"""Scaling of lowering: unrolling with the sequence length, memory with the size of the model.

    python benchmarks/scale.py [--steps 125 250 500 1000] [--megabytes 100] [--json OUT.json]

Peak memory is measured in a separate process and compared with that of a process that only imports the modules.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
from support.layers import Layer
from support.reporting import report

import rnnqc

HIDDEN = 128
WIDE = 1024
MEGABYTE = 1e6


def unrolling(steps: list[int]) -> list[dict[str, Any]]:
    """Measures seconds, seconds per step, bytes and bytes per step; float weights take 0.5 MB at H = 128."""
    rnnqc.lower(Layer(2, 1, HIDDEN, HIDDEN).model(), form="integer", unroll=True)
    rows = []
    for count in steps:
        model = Layer(count, 1, HIDDEN, HIDDEN).model()
        start = time.perf_counter()
        lowered = rnnqc.lower(model, form="integer", unroll=True)
        seconds = time.perf_counter() - start
        size = lowered.proto.ByteSize()
        rows.append(
            {
                "T": count,
                "nodes": len(lowered.proto.graph.node),
                "seconds": seconds,
                "ms per step": 1e3 * seconds / count,
                "file kB": size / 1e3,
                "file bytes per step": size / count,
            }
        )
    return rows


def peak_megabytes(*arguments: str) -> float:
    """Returns the peak resident memory that this script reports for a run with the arguments."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def memory(megabytes: int) -> list[dict[str, Any]]:
    """Measures the peak memory of lowering a file of about that many megabytes, from path to path."""
    count = max(1, round(megabytes * MEGABYTE / (4 * 8 * WIDE * WIDE)))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "lowered.onnx"
        onnx.save(Layer(10, 1, WIDE, WIDE, count=count).model(), source)
        size = source.stat().st_size / MEGABYTE
        idle = peak_megabytes("--child", "-", "-")
        peak = peak_megabytes("--child", str(source), str(target))
        lowered = target.stat().st_size / MEGABYTE
    return [
        {
            "layers": count,
            "float MB": size,
            "lowered MB": lowered,
            "size ratio": lowered / size,
            "idle MB": idle,
            "peak MB": peak,
            "(peak - idle) / float": (peak - idle) / size,
        }
    ]


def child(source: str, target: str) -> None:
    """Lowers, or does nothing, and prints the peak in megabytes."""
    if source != "-":
        rnnqc.lower(source).save(target)
    print(peak_bytes() / MEGABYTE)


def peak_bytes() -> int:
    """Returns the peak resident memory of this process since its program started."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux a child inherits ru_maxrss of its parent; VmHWM starts anew.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[125, 250, 500, 1000])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", type=Path, help="written with the suffixes .unroll.json and .memory.json")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    path: Path | None = arguments.json
    report(
        f"Unrolling an LSTM with I = H = {HIDDEN}",
        unrolling(arguments.steps),
        path.with_suffix(".unroll.json") if path else None,
    )
    report(
        "Memory of rnnqc.lower on a stack of wide layers",
        memory(arguments.megabytes),
        path.with_suffix(".memory.json") if path else None,
    )


if __name__ == "__main__":
    main()
