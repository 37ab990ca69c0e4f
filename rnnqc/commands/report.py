"""`rnnqc report`: a page that shows where the errors of a lowered model come from, and which overrides reduce them."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rnnqc.codes import Code, told
from rnnqc.commands.shared.arguments import OK, Commands, add_command, add_data, add_state, byte_count, document, number
from rnnqc.commands.shared.terminal import colored, err, escape, inform, out, progress_bar, tell
from rnnqc.errors import UsageError

if TYPE_CHECKING:
    from rnnqc.reporting.evidence import Evidence
    from rnnqc.reporting.subject import Options, Subject, Tell
    from rnnqc.search.trials import Bounds

MODELS = 150


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "report",
        "write a page on where a lowered model's errors come from",
        "rnnqc report model.onnx model.int8.onnx -o report.html",
        "rnnqc report model.onnx model.int8.onnx -o report.html --data samples.npz --models 50 --json",
    )
    parser.add_argument("float_model", metavar="FLOAT.onnx", help="the float model")
    parser.add_argument("quantized_model", metavar="QUANT.onnx", help="the model that it was lowered to")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html", help="the page")
    add_data(parser, required=False)
    add_state(parser)
    parser.add_argument(
        "--stats", metavar="STATS.json", help="the statistics that QUANT.onnx was lowered with, if it was calibrated"
    )
    parser.add_argument("--num-samples", type=int, metavar="N", help="use N feeds, the first ones")
    parser.add_argument(
        "--metric", metavar="NAME",
        help="judge the task, too: accuracy, perplexity, or module:function, as `rnnqc evaluate` takes it, with --data",
    )  # fmt: skip
    add_bounds(parser, MODELS)
    parser.add_argument(
        "--time", action="store_true", help="measure times of layers, too; without, two runs write the same bytes"
    )
    parser.add_argument("--json", action="store_true", help="write the same numbers next to the page, as OUT.json")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.proto.files import check_writable, write_atomically
    from rnnqc.reporting.report import report

    read = [a.float_model, a.quantized_model, a.data, a.stats]
    check_page(a.output, read)
    json_path = Path(a.output).with_suffix(".json")
    if a.json:
        check_writable(json_path, read)
    check_positive("--num-samples", a.num_samples)
    bounds = bounds_of(a, MODELS)
    start = time.perf_counter()
    with _progress() as update:
        made = report(
            a.float_model, a.quantized_model, a.data, state=a.state, stats=a.stats, samples=a.num_samples,
            models=bounds.models, seconds=bounds.seconds, times=a.time, metric=a.metric, progress=update,
            notify=inform,
        )  # fmt: skip
    evidence = made.evidence
    text = made.html.encode()
    write_atomically(Path(a.output), text)
    if a.json:
        write_atomically(json_path, (document(evidence.to_dict()) + "\n").encode())
    if evidence.mismatch:
        err(f"[red]rnnqc:[/red] {escape(told(Code.OTHER_MODEL, evidence.mismatch))}")
    for warning in evidence.warnings:
        tell(warning)
    tell_unmeasured(evidence)
    if evidence.verdict is not None:
        out(colored(evidence.verdict))
    if evidence.rest is not None:
        out(escape(evidence.rest.text))
    for suggestion in evidence.suggestions:
        out(escape(suggestion))
    out(f"{escape(a.output)}: {byte_count(len(text))}, {time.perf_counter() - start:.1f} s")
    return OK


def check_page(path: str, others: Sequence[str | None]) -> None:
    """Refuses a name for the page that cannot be written or belongs to another file of the command.

    Raises:
        UsageError: The name cannot be used.
    """
    from rnnqc.proto.files import check_writable

    if not path.lower().endswith((".html", ".htm")):
        raise UsageError(f"{path}: is no name of a page.", supported="a name that ends in .html")
    if any(o is not None and os.path.realpath(o) == os.path.realpath(path) for o in others):
        raise UsageError(f"{path}: is another file of this command, too.", action="choose another name for the page")
    check_writable(Path(path), others)


def add_bounds(parser: argparse.ArgumentParser, models: int, what: str = "measure the sensitivity") -> None:
    """Adds the options that bound the measurements."""
    parser.add_argument("--models", type=int, metavar="N", help=f"{what} with at most N models, default {models}")
    parser.add_argument(
        "--seconds", type=number, metavar="S",
        help=f"{what} for at most S seconds; how much that is depends on the machine",
    )  # fmt: skip


def bounds_of(a: argparse.Namespace, models: int) -> Bounds:
    """Returns the bounds given by the options of `add_bounds`.

    Raises:
        UsageError: No model may be measured.
    """
    from rnnqc.search.trials import Bounds

    check_positive("--models", a.models)
    return Bounds(models if a.models is None else a.models, math.inf if a.seconds is None else a.seconds)


def check_positive(option: str, value: int | None) -> None:
    """Raises UsageError for a number below 1."""
    if value is not None and value < 1:
        raise UsageError(f"{option} {value}.", supported="1 or more", action="choose a larger number")


def tell_unmeasured(evidence: Evidence) -> None:
    """Prints which measurements the bounds left out."""
    for text in evidence.left_out:
        tell(text)


def measured(subject: Subject, options: Options, quiet: bool = False) -> Evidence:
    """Measures the contents of the page behind a progress bar."""
    from rnnqc.reporting.gather import gather

    with _progress(quiet) as tell:
        return gather(subject, replace(options, progress=tell))


@contextmanager
def _progress(quiet: bool = False) -> Iterator[Tell]:
    """Shows a bar, and yields the function that moves it."""
    with progress_bar("loading the models", spinner=True, quiet=quiet) as update:

        def tell(stage: str, done: int, total: int | None) -> None:
            update(description=stage, completed=done, total=total)

        yield tell
