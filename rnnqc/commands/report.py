"""`rnnqc report`: a page that says where the errors of a lowered model come from, and which override mends them."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import SpinnerColumn

from rnnqc.commands.common import OK, Commands, add_data, add_state, byte_count, json_text, number
from rnnqc.commands.terminal import err, escape, out, progress_bar
from rnnqc.diagnostics import UsageError, located

MODELS = 150


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("report", help="write a page on where a lowered model's errors come from")
    parser.add_argument("float_model", metavar="FLOAT.onnx")
    parser.add_argument("quantized_model", metavar="QUANT.onnx")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html")
    add_data(parser, required=False)
    add_state(parser)
    parser.add_argument(
        "--stats", metavar="STATS.json", help="the statistics that QUANT.onnx was lowered with, if it was calibrated"
    )
    parser.add_argument("--num-samples", type=int, metavar="N", help="use N feeds, the first ones")
    parser.add_argument(
        "--models", type=int, default=MODELS, metavar="N",
        help=f"measure the sensitivity with at most N models, default {MODELS}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=number, default=math.inf, metavar="S",
        help="and for at most S seconds; what is measured then depends on the machine",
    )  # fmt: skip
    parser.add_argument(
        "--time", action="store_true", help="measure times of layers, too; without, two runs write the same bytes"
    )
    parser.add_argument("--json", action="store_true", help="write the same numbers next to the page, as OUT.json")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.files import check_writable, load_proto_and_size, write_atomically
    from rnnqc.reporting.gather import gather
    from rnnqc.reporting.page import page
    from rnnqc.reporting.sensitivity import Bounds
    from rnnqc.reporting.subject import Options, Subject
    from rnnqc.statistics import Statistics

    read = [a.float_model, a.quantized_model, a.data, a.stats]
    check_page(a.output, read)
    json_path = Path(a.output).with_suffix(".json")
    if a.json:
        check_writable(json_path, read)
    for option, value in (("--num-samples", a.num_samples), ("--models", a.models)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}.", supported="1 or more", action="choose a larger number")
    start = time.perf_counter()
    protos = []
    for path in (a.float_model, a.quantized_model):
        with located(path):
            protos.append(load_proto_and_size(Path(path)))
    (float_proto, float_bytes), (quant_proto, quant_bytes) = protos
    with progress_bar("load", SpinnerColumn()) as update:
        subject = Subject(
            float_proto, quant_proto, a.float_model, a.quantized_model, float_bytes, quant_bytes,
            statistics=Statistics.load(a.stats) if a.stats else None, data=a.data, state=a.state,
            calibrated_by=["--stats", a.stats] if a.stats else [],
        )  # fmt: skip
        options = Options(
            a.num_samples,
            Bounds(a.models, a.seconds),
            a.time,
            lambda stage, done, total: update(description=stage, completed=done, total=total),
        )
        evidence = gather(subject, options)
    text = page(evidence).encode()
    write_atomically(Path(a.output), text)
    if a.json:
        write_atomically(json_path, (json_text(evidence.as_dict()) + "\n").encode())
    if evidence.mismatch:
        err(f"[red]rnnqc:[/red] {escape(evidence.mismatch)}")
    for warning in evidence.warnings:
        err(f"[yellow]rnnqc:[/yellow] {escape(warning)}")
    if evidence.unmeasured:
        left = len(evidence.unmeasured)
        err(f"[yellow]rnnqc:[/yellow] {left} points or groups were not measured (--models, --seconds).")
    for repair in evidence.repairs[:1]:
        sets = " ".join(repair.overrides)
        out(f"{repair.sqnr_before:.1f} -> {repair.sqnr_after:.1f} dB with --set {escape(sets)}")
    out(f"{escape(a.output)}: {byte_count(len(text))}, {time.perf_counter() - start:.1f} s")
    return OK


def check_page(path: str, others: Sequence[str | None]) -> None:
    """Refuses a name for the page that cannot be written, or is that of another file.

    Raises:
        UsageError: As said.
    """
    from rnnqc.files import check_writable

    if not path.lower().endswith((".html", ".htm")):
        raise UsageError(f"{path}: is no name of a page.", supported="a name that ends in .html")
    if any(o is not None and os.path.realpath(o) == os.path.realpath(path) for o in others):
        raise UsageError(f"{path}: is another file of this command, too.", action="choose another name for the page")
    check_writable(Path(path), others)


def stage_text(stage: str, done: int, total: int | None) -> str:
    """Progress as one text."""
    return f"{stage} {done}/{total}" if total else stage
