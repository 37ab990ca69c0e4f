"""`rnnqc lower`: quantizes the recurrent layers of a model."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Sequence
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
    verbosity,
)
from rnnqc.commands.report import add_bounds, bounds_of, check_page, measured, tell_unmeasured
from rnnqc.commands.terminal import err, escape, out, progress_bar
from rnnqc.errors import CompileError, UsageError

if TYPE_CHECKING:
    from rnnqc.lowering.lower import Lowered
    from rnnqc.lowering.report import Report
    from rnnqc.reporting.budget import Bounds
    from rnnqc.reporting.evidence import Evidence

PATIENCE = 4.0
"""How many times as long as the lowering the SQNR may be measured, where --min-sqnr does not ask for it."""
NOT_WRITTEN = "the model was not written."
MODELS = 60
"""How many models the report of a lowering measures sensitivities with; `rnnqc report` has an option for it."""


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
        "--unroll", action="store_true", help="write loops out; needs static sequence lengths, implies --form integer"
    )
    add_repeated(parser, "--dim", "NAME=N", "bind symbolic dimensions; several may follow")
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
    _check_paths(a)
    bounds = bounds_of(a, MODELS)
    start = time.perf_counter()
    lowered = _lowered(a)
    evidence = _evidence(a, lowered, bounds) if a.report_path else None
    report = lowered.report
    _warn(a, report)
    code, option, texts = _judged(a, report)
    for text in texts:
        err(f"[red]rnnqc: {option}:[/red] {escape(text)}")
    if code == OK:
        lowered.save(Path(a.output))
    _write_reports(a, report, evidence)
    if not a.quiet:
        _print_result(a, report, code, time.perf_counter() - start)
    if a.verbose:
        _print_details(report)
    return code


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
            unroll=a.unroll, dims=pairs(a.dim, "--dim"), overrides=a.overrides, verify=a.verify,
            reproducer=f"{a.output}.reproducer" if a.verify else None,
            measure=a.min_sqnr is not None or a.json_path is not None or not a.quiet,
            patience=PATIENCE if a.min_sqnr is None else math.inf, progress=tell,
        )  # fmt: skip


def _warn(a: argparse.Namespace, report: Report) -> None:
    """Prints what stayed float, the warnings, and what was not verified or measured."""
    from rnnqc.measure.comparison_feeds import CALIBRATION_DATA, GENERATED_DATA
    from rnnqc.passes.verify.pass_comparison import NOT_COMPARED, OWN_LOSS

    texts = [e.explanation for e in report.entries if e.reason]
    if not report.entries:
        texts.append("the model has no recurrent layer; nothing was quantized.")
    for text in [*texts, *report.warnings]:
        err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    for name, text in sorted({c for c in report.checks if c[1].startswith(NOT_COMPARED)}):
        reason = text.removeprefix(f"{NOT_COMPARED}: ")
        if name == CALIBRATION_DATA:
            text = f"the models were not compared on the calibration data, only on generated data: {reason}"
        elif name == GENERATED_DATA:
            text = f"the models were not compared on generated data: {reason}"
        else:
            text = f"pass {name!r} was {text}."
        err(f"[yellow]rnnqc: --verify:[/yellow] {escape(text)}")
    for name, text in dict.fromkeys(c for c in report.checks if c[1].startswith(OWN_LOSS)):
        err(f"[yellow]rnnqc: --verify:[/yellow] {escape(f'pass {name!r}: {text}.')}")
    if report.unmeasured and (report.sqnr_db or a.min_sqnr is None):
        what = "measured on a part of the generated data alone" if report.sqnr_db else "not measured"
        err(f"[yellow]rnnqc:[/yellow] the SQNR was {what}: {escape(report.unmeasured)}")


def _judged(a: argparse.Namespace, report: Report) -> tuple[int, str, list[str]]:
    """The exit code, and of the first check that fails its option and what it found."""
    from rnnqc.lowering.lowering_report import QONNX

    if a.strict and report.entries_not_lowered:
        count = len(report.entries_not_lowered)
        return STRICT, "--strict", [f"{count} recurrent node(s) {report.how_they_stay}; {NOT_WRITTEN}"]
    if a.form == QONNX and not any(e.form == QONNX for e in report.entries):
        return BAD_INPUT, "--form qonnx", [f"no cell of this form was made; {NOT_WRITTEN}"]
    if a.verify and report.unverified and not report.verified:
        return CHECK_FAILED, "--verify", [f"not verified: no pass could be compared; {NOT_WRITTEN}"]
    if report.unmeasured and not report.sqnr_db and a.min_sqnr is not None:
        return CHECK_FAILED, "--min-sqnr", [f"not measured: {report.unmeasured}", NOT_WRITTEN]
    texts = [*report.unlike, *_too_lossy(a.min_sqnr, report)] if a.min_sqnr is not None else []
    return (CHECK_FAILED, "--min-sqnr", [*texts, NOT_WRITTEN]) if texts else (OK, "", [])


def _too_lossy(least: float | None, report: Report) -> list[str]:
    """A sentence about the worst output if that is below the SQNR asked for."""
    below = {n: v for n, v in report.sqnr_db.items() if least is not None and v < least}
    if not below:
        return []
    name, value = min(below.items(), key=lambda p: p[1])
    where = f" at {report.sqnr_level[name]}" if len(report.sqnr_levels) > 1 else ""
    return [f"output {name!r} has {value:.1f} dB{where}, {least:g} dB asked for."]


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


def _print_result(a: argparse.Namespace, report: Report, code: int, seconds: float) -> None:
    """Prints the nodes, and of a model that was written its sizes, the verification and the SQNR."""
    if report.entries:
        _print_entries(report)
    if code != OK:
        return
    if report.entries:
        out(f"{escape(a.output)}: {_sizes(report)}, {seconds:.1f} s")
        if report.contents:
            out(f"the file has grown; it holds: {escape(report.contents)}")
    if a.verify:
        out(_verified(report.verified, report.unverified))
    if report.sqnr_summary:
        out(f"SQNR on generated data: at least {report.sqnr_summary}")


def _print_details(report: Report) -> None:
    for note in report.notes:
        err(escape(note))
    for name, seconds in report.seconds:
        err(f"{seconds:8.3f} s  {name}")
    for name, text in report.checks:
        err(f"verified {escape(name)}: {escape(text)}")


def _sizes(report: Report) -> str:
    """The file before and after, and the weights of its recurrent layers."""
    text = f"file {byte_count(report.float_bytes)} -> {byte_count(report.bytes)}"
    before, after = (sum(sizes) for sizes in zip(*((e.float_bytes, e.bytes) for e in report.entries), strict=True))
    return f"{text}, recurrent weights {byte_count(before)} -> {byte_count(after)}"


def _verified(compared: Sequence[str], others: Sequence[str]) -> str:
    """What the comparison of all passes came to; it did not fail."""
    if others:
        return f"verified: {_passes(compared)} compared, {len(others)} not compared (said above)"
    return f"verified: {_passes(compared)} changed no more than declared"


def _passes(names: Sequence[str]) -> str:
    return f"{len(names)} pass{'' if len(names) == 1 else 'es'}"


def _evidence(a: argparse.Namespace, lowered: Lowered, bounds: Bounds) -> Evidence:
    """Measures what the page says, on the calibration data or on generated data."""
    from rnnqc.proto.files import load_proto_and_size
    from rnnqc.reporting.subject import Options, Subject

    proto, size = load_proto_and_size(Path(a.model))
    states = [word for text in a.state for word in ("--state", text)]
    calibrated_by = (
        ["--stats", a.stats] if a.stats else ["--calibration", a.calibration, *states] if a.calibration else []
    )
    subject = Subject(
        proto, lowered.proto, a.model, a.output, size, lowered.report.bytes, lowered.report, lowered.statistics,
        a.calibration, a.state, calibrated_by,
    )  # fmt: skip
    try:
        return measured(subject, Options(bounds=bounds), a.quiet)
    except CompileError as error:
        if not a.calibration:
            error.action = "lower without --report, and use `rnnqc report FLOAT LOWERED --data DATA`"
            error.args = (str(error),)
        raise


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
