"""`rnnqc calibrate`: measures the values at quantization points."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rnnqc.commands.shared.arguments import (
    OK,
    Commands,
    add_bindings,
    add_command,
    add_data,
    add_repeated,
    add_state,
    pairs,
    values,
)
from rnnqc.commands.shared.terminal import escape, out, progress_bar, tell
from rnnqc.errors import UsageError

OTHER_FILES = (".npz", ".npy", ".onnx", ".toml")
"""Suffixes of files that are not statistics."""


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "calibrate",
        "measure the values at quantization points on data",
        "rnnqc calibrate model.onnx --data samples.npz -o stats.json",
        "rnnqc calibrate vad.onnx --data calls.npz -o stats.json --state h:hn --state c:cn",
    )
    parser.add_argument("model", metavar="IN.onnx", help="the float model")
    add_data(parser, required=True)
    parser.add_argument(
        "-o", "--output", required=True, metavar="STATS.json", help="the statistics, for `rnnqc lower --stats`"
    )
    add_state(parser)
    add_bindings(parser)
    parser.add_argument("--num-samples", type=int, metavar="N", help="use N samples, the first ones")
    parser.add_argument("--seed", type=int, metavar="S", help="draw the N samples at random")
    parser.add_argument(
        "--batch", type=int, metavar="N",
        help="cut and join the samples to batches of N rows; by default up to 32 rows of one feed run at once",
    )  # fmt: skip
    add_repeated(parser, "--layers", "PATTERN", "only measure cells that this glob matches; several may follow")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes to use, default 1; the file is the same"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="work on the machines of this dask scheduler; the file is the same"
    )
    parser.add_argument(
        "--no-moments", action="store_false", dest="moments",
        help="leave out second moments, which error-compensated rounding needs",
    )  # fmt: skip
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.calibration.calibrate import calibrate
    from rnnqc.proto.files import check_writable

    output = Path(a.output)
    check_writable(output, [a.model, a.data])
    if output.suffix in OTHER_FILES:
        raise UsageError(
            f"-o {output}: statistics are JSON.", supported="names such as stats.json", action="choose another name"
        )
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
            batch=a.batch,
            layers=a.layers,
            dims=pairs(a.dim, "--dim"),
            bind=values(a.bind, "--bind"),
            progress=lambda done, total: update(completed=done, total=total),
        )
    statistics.save(a.output)
    for text in statistics.messages:
        tell(text)
    samples, points = statistics.settings["samples"], len(statistics.points)
    shapes = ", ".join(f"{name} {sizes}" for name, sizes in statistics.settings["shapes"].items())
    seconds = time.perf_counter() - start
    counted = f"{points} quantization points, {samples} {'sample' if samples == 1 else 'samples'}"
    out(escape(f"{a.output}: {counted}, at most {shapes} at once, {seconds:.1f} s"))
    return OK
