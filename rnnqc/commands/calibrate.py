"""`rnnqc calibrate`: measures the values at quantization points."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rnnqc.commands.common import OK, Commands, add_data, add_state
from rnnqc.commands.terminal import err, escape, out, progress_bar


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("calibrate", help="measure the values at quantization points on data")
    parser.add_argument("model", metavar="IN.onnx")
    add_data(parser, required=True)
    parser.add_argument("-o", "--output", required=True, metavar="STATS.json")
    add_state(parser)
    parser.add_argument("--num-samples", type=int, metavar="N", help="use N samples, the first ones")
    parser.add_argument("--seed", type=int, metavar="S", help="draw the N samples at random")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="default 1; the file is the same")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="work on the machines of this dask scheduler; the file is the same"
    )
    parser.add_argument(
        "--no-moments", action="store_false", dest="moments",
        help="leave out second moments, which error-compensated rounding needs",
    )  # fmt: skip
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.calibration.calibrate import calibrate
    from rnnqc.proto.files import check_writable

    check_writable(Path(a.output), [a.model, a.data])
    start = time.perf_counter()
    with progress_bar("calibrating") as update:
        statistics = calibrate(
            a.model,
            a.data,
            state=a.state,
            limit=a.num_samples,
            seed=a.seed,
            processes=a.processes,
            scheduler=a.scheduler,
            moments=a.moments,
            progress=lambda done, total: update(completed=done, total=total),
        )
    statistics.save(a.output)
    for remark in statistics.remarks:
        err(f"[yellow]rnnqc:[/yellow] {escape(str(remark))}")
    for cell in statistics.silent_cells:
        err(f"[yellow]rnnqc:[/yellow] cell {escape(repr(cell))} never ran on this data; nothing is known of it.")
    samples, points = statistics.settings["samples"], len(statistics.points)
    seconds = time.perf_counter() - start
    out(f"{escape(a.output)}: {points} quantization points, {samples} sample(s), {seconds:.1f} s")
    return OK
