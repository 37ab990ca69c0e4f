"""`rnnqc lower`: quantizes the recurrent layers of a model."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import SpinnerColumn
from rich.table import Table

from rnnqc.commands.common import (
    BAD_INPUT,
    CHECK_FAILED,
    OK,
    STRICT,
    Commands,
    add_repeated,
    add_state,
    byte_count,
    decibels,
    json_text,
    pairs,
    values,
    verbosity,
)
from rnnqc.commands.report import add_bounds, bounds_of, check_page, measured, tell_unmeasured
from rnnqc.commands.terminal import err, escape, out, progress_bar
from rnnqc.errors import CompileError, UsageError

if TYPE_CHECKING:
    from rnnqc.lowering.failures import Failure
    from rnnqc.lowering.report import Lowered, Report
    from rnnqc.reporting.evidence import Evidence
    from rnnqc.search.trials import Bounds

PATIENCE = 4.0
"""The SQNR is measured for at most so many times the time of the lowering, unless --min-sqnr asks for it."""
EXIT_CODES = {"--strict": STRICT, "--strict-rest": STRICT, "--form qonnx": BAD_INPUT}
"""By the option whose check fails; those of other options are CHECK_FAILED."""
MODELS = 60
"""The report of a lowering measures sensitivities with at most so many models; `rnnqc report` has an option."""


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("lower", help="lower a float model to a quantized one")
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    parser.add_argument(
        "--recipe", metavar="NAME|FILE.toml",
        help="default int8, or none for a model that brings its own quantization; `rnnqc recipes` lists them",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--calibration", metavar="DATA", help="calibrate with an .npz, a directory of .npz, or module:function"
    )
    source.add_argument("--stats", metavar="STATS.json", help="statistics of `rnnqc calibrate`")
    add_state(parser, "the calibration data is the calls of a stream: output OUT of one is input IN of the next")
    parser.add_argument(
        "--form",
        choices=("fused", "integer", "qcdq", "qonnx"),
        default=None,
        help="default fused; qonnx: Brevitas' cells",
    )
    parser.add_argument(
        "--rest", choices=("float", "int8"), default="float",
        help="embeddings, linear layers and convolutions around the recurrent layers: float (default) or int8",
    )  # fmt: skip
    parser.add_argument(
        "--unroll", action="store_true", help="unroll loops; needs static sequence lengths, implies --form integer"
    )
    add_repeated(parser, "--dim", "NAME=N", "bind symbolic dimensions; several may follow")
    add_repeated(parser, "--bind", "NAME=VALUE", "make an input a constant: a number, true, false, or [1,2]")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="PATH=VALUE",
        help="override a recipe entry, the first match wins; several may follow",
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail (exit code 3) if a recurrent node, or a part of it, is not lowered"
    )
    parser.add_argument(
        "--strict-rest", action="store_true",
        help="fail (exit code 3) if a weight around the recurrent layers stays float that int8 would make smaller",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true", help="compare the numerics after every pass with what it declares"
    )
    parser.add_argument("--min-sqnr", type=decibels, metavar="DB", help="fail if an output has less, on generated data")
    parser.add_argument(
        "--report", metavar="OUT.html", dest="report_path",
        help="write a page that says where errors come from: on the calibration data, or on generated data",
    )  # fmt: skip
    add_bounds(parser, MODELS, "for --report: measure the sensitivity")
    parser.add_argument("--json", metavar="OUT.json", dest="json_path", help="write the report")
    verbosity(parser)
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.lowering.failures import first_failure

    _check_paths(a)
    bounds = bounds_of(a, MODELS)
    start = time.perf_counter()
    lowered = _lowered(a)
    evidence = _evidence(a, lowered, bounds) if a.report_path else None
    report = lowered.report
    _print_warnings(a, report)
    failure = first_failure(
        report, strict=a.strict, strict_rest=a.strict_rest, form=a.form, verify=a.verify, min_sqnr=a.min_sqnr
    )
    if failure is None:
        lowered.save(Path(a.output))
    else:
        _print_failure(failure)
    _write_reports(a, report, evidence)
    if not a.quiet:
        _print_result(a, report, failure is None, time.perf_counter() - start)
    if a.verbose:
        _print_details(report)
    return OK if failure is None else EXIT_CODES.get(failure.option, CHECK_FAILED)


def _check_paths(a: argparse.Namespace) -> None:
    """Checks that the results can be written, and that none of them takes the place of what is read.

    Raises:
        UsageError: One would, or bounds are given without a page.
    """
    from rnnqc.proto.files import check_writable

    output = Path(a.output)
    read = [a.stats, a.calibration, a.recipe]
    check_writable(output, [a.model, *read])
    if a.json_path:
        check_writable(Path(a.json_path), read)
    if a.json_path and os.path.realpath(a.json_path) in (os.path.realpath(output), os.path.realpath(a.model)):
        raise UsageError(f"--json {a.json_path}: is the model.", action="choose another file for the report")
    if a.report_path:
        check_page(a.report_path, [a.model, a.output, a.json_path, *read])
    elif a.models is not None or a.seconds is not None:
        raise UsageError("--models or --seconds without --report OUT.html.", action="name the page, or leave them out")


def _lowered(a: argparse.Namespace) -> Lowered:
    from rnnqc.lowering.lower import lower

    with progress_bar("load", SpinnerColumn(), counted=False, quiet=a.quiet) as update:

        def tell(name: str) -> None:
            update(description=name)

        return lower(
            a.model, a.recipe, a.form, calibration=a.calibration, stats=a.stats, state=a.state,
            unroll=a.unroll, dims=pairs(a.dim, "--dim"), bind=values(a.bind, "--bind"), overrides=a.overrides,
            verify=a.verify,
            reproducer=f"{a.output}.reproducer" if a.verify else None,
            measure=a.min_sqnr is not None or a.json_path is not None or not a.quiet,
            patience=PATIENCE if a.min_sqnr is None else math.inf, rest=a.rest, progress=tell,
        )  # fmt: skip


def _evidence(a: argparse.Namespace, lowered: Lowered, bounds: Bounds) -> Evidence:
    """Measures what the page says, on the calibration data or on generated data."""
    from rnnqc.reporting.subject import Options, subject_of_lowering

    subject = subject_of_lowering(lowered, a.model, a.output, a.calibration, a.stats, a.state)
    try:
        return measured(subject, Options(bounds=bounds), a.quiet)
    except CompileError as error:
        if not a.calibration:
            error.action = "lower without --report, and use `rnnqc report FLOAT LOWERED --data DATA`"
            error.args = (str(error),)
        raise


def _print_warnings(a: argparse.Namespace, report: Report) -> None:
    from rnnqc.lowering.warnings import told

    for option, text in told(report, is_bounded=a.min_sqnr is not None):
        err(f"[yellow]rnnqc:{' ' + option + ':' if option else ''}[/yellow] {escape(text)}")


def _print_failure(failure: Failure) -> None:
    for text in failure.texts:
        err(f"[red]rnnqc: {failure.option}:[/red] {escape(text)}")


def _write_reports(a: argparse.Namespace, report: Report, evidence: Evidence | None) -> None:
    """Writes the JSON and the page that were asked for."""
    from rnnqc.proto.files import write_atomically
    from rnnqc.reporting.page import page

    if a.json_path:
        data = {k: v for k, v in report.as_dict().items() if k != "seconds"}  # two runs write the same bytes
        if evidence is not None:
            data["evidence"] = evidence.as_dict()
        write_atomically(Path(a.json_path), (json_text(data) + "\n").encode())
    if evidence is not None:
        write_atomically(Path(a.report_path), page(evidence).encode())
        tell_unmeasured(evidence)


def _print_result(a: argparse.Namespace, report: Report, is_written: bool, seconds: float) -> None:
    """Prints the nodes, and of a model that was written its sizes, the verification and the SQNR."""
    if report.entries:
        _print_entries(report)
    if not is_written:
        return
    if report.entries or report.rest.is_changed:
        out(f"{escape(a.output)}: {_sizes(report)}, {seconds:.1f} s")
    if report.rest.entries:
        out(report.rest.summary(report.bytes))
    if report.entries and report.contents:
        out(f"the file has grown; it holds: {escape(report.contents)}")
    if a.verify:
        out(_verified(report))
    if report.sqnr_summary:
        out(f"SQNR on generated data: at least {report.sqnr_summary}")


def _print_entries(report: Report) -> None:
    table = Table("node", "op", "status", "weights", box=None, pad_edge=False)
    for e in report.entries:
        status = f"{e.status}{' already' if e.earlier else ''}" + (f" ({e.summary or e.form})" if e.form else "")
        weights = (
            f"{byte_count(e.float_bytes)} -> {byte_count(e.bytes)}"
            if e.status == "lowered"
            else byte_count(e.float_bytes)
        )
        table.add_row(
            escape(e.node),
            e.op,
            status + (f": {escape(e.reason)}" if e.reason and e.status == "lowered" else ""),
            weights,
        )
    out(table)


def _sizes(report: Report) -> str:
    """The file before and after, and the weights of its recurrent layers."""
    before, after = report.weight_bytes
    files = f"file {byte_count(report.float_bytes)} -> {byte_count(report.bytes)}"
    if not report.entries:
        return files
    return f"{files}, recurrent weights {byte_count(before)} -> {byte_count(after)}"


def _verified(report: Report) -> str:
    """The result of the comparison of all passes, which did not fail."""
    count = len(report.verified)
    passes = f"{count} pass{'' if count == 1 else 'es'}"
    if report.unverified:
        return f"verified: {passes} compared, {len(report.unverified)} not compared (said above)"
    return f"verified: {passes} changed no more than declared"


def _print_details(report: Report) -> None:
    for note in report.notes:
        err(escape(note))
    for e in report.rest.entries:
        shape = "x".join(map(str, e.shape))
        err(escape(f"{e.node} ({e.op} {shape}): {e.form or e.status}{': ' + e.reason if e.reason else ''}"))
    for name, seconds in report.seconds:
        err(f"{seconds:8.3f} s  {name}")
    for name, text in report.checks:
        err(f"verified {escape(name)}: {escape(text)}")
