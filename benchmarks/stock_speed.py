"""Time of one layer: onnxruntime's float operator, the fused form in stock onnxruntime, and with the native library.

    python benchmarks/stock_speed.py [--op LSTM|GRU|RNN] [--shapes 100x1x256x256 ...] [--static] [--rounds N]
        [--threads N] [--json OUT.json]

A shape is TxBxIxH. The sessions take turns, round by round, so that a change of the machine's speed affects all of
them; ratios are float time over the other's time of the same run: above 1 is faster than float.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from support.layers import GATES, Layer
from support.reporting import report

import rnnqc
from rnnqc.timing import FLOAT, NATIVE, STOCK, bound_run, session_options, take_turns, timings

SHAPES = ("100x1x256x256", "35x1x650x650", "100x8x256x256", "100x1x64x128")


def measure(layer: Layer, rounds: int, threads: int) -> dict[str, Any]:
    """Measures minimum and median of every execution method, and ratios of the minima."""
    lowered = rnnqc.lower(layer.model()).proto
    models = {FLOAT: layer.model(), STOCK: lowered, NATIVE: lowered}
    runs = {
        name: bound_run(rnnqc.session(m, native=name == NATIVE, options=session_options(threads)), layer.feeds())
        for name, m in models.items()
    }
    row: dict[str, Any] = {
        "layer": layer.op,
        "T x B x I x H": layer.name,
        "batch": "symbolic" if layer.symbolic_batch else "static",
    }
    measured = timings(take_turns(runs, rounds))
    for timing in measured:
        row[f"{timing.name} min ms"], row[f"{timing.name} median ms"] = timing.min_us / 1e3, timing.median_us / 1e3
    for timing in measured[1:]:
        row[f"{timing.name} x (min)"] = timing.speedup
    return row


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="TxBxIxH")
    parser.add_argument("--op", choices=GATES, default="LSTM")
    parser.add_argument("--static", action="store_true", help="leave out batches that are known as a symbol only")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for shape in arguments.shapes:
        for symbolic in (False,) if arguments.static else (False, True):
            layer = Layer.parse(shape, symbolic_batch=symbolic, op=arguments.op)
            rows.append(measure(layer, arguments.rounds, arguments.threads))
    report(f"One {arguments.op} layer, {arguments.threads} thread(s), {arguments.rounds} rounds", rows, arguments.json)


if __name__ == "__main__":
    main()
