"""`rnnqc lower`: quantizes the recurrent layers of a model."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rnnqc.commands.lower_summary import print_entries, print_summary
from rnnqc.commands.report import add_bounds, bounds_of, check_page, measured, tell_unmeasured
from rnnqc.commands.shared.arguments import (
    BAD_INPUT,
    CHECK_FAILED,
    OK,
    STRICT,
    Commands,
    add_bindings,
    add_command,
    add_state,
    decibels,
    document,
    pairs,
    values,
)
from rnnqc.commands.shared.terminal import err, escape, progress_bar, tell
from rnnqc.errors import CompileError, UsageError

if TYPE_CHECKING:
    from rnnqc.lowering.failures import Failure
    from rnnqc.lowering.reports.report import Lowered, Report
    from rnnqc.reporting.evidence import Evidence
    from rnnqc.search.trials import Bounds

PATIENCE = 4.0
"""Measuring the SQNR may take this many times as long as the lowering, unless --min-sqnr requests it."""
EXIT_CODES = {"--strict": STRICT, "--strict-rest": STRICT, "--form qonnx": BAD_INPUT}
"""Exit codes by the option whose check fails; other options have CHECK_FAILED."""
MODELS = 60
"""The report of a lowering measures sensitivities with at most this many models; `rnnqc report` has an option."""


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "lower",
        "lower a float model to a quantized one",
        "rnnqc lower model.onnx -o model.int8.onnx",
        "rnnqc lower model.onnx -o model.int8.onnx --recipe int8-static --calibration samples.npz",
        "rnnqc lower model.onnx -o small.onnx --rest int8 --set '*.W.weight.bits=4' --min-sqnr 25",
        "rnnqc lower model.onnx -o unrolled.onnx --unroll --dim T=100 --report report.html",
    )
    parser.add_argument("model", metavar="IN.onnx", help="the float model")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx", help="the quantized model")
    parser.add_argument(
        "--recipe", metavar="NAME|FILE.toml",
        help="default int8, or none for a model that brings its own quantization; `rnnqc recipes` lists them",
    )  # fmt: skip
    _add_calibration(parser)
    parser.add_argument(
        "--form",
        choices=("fused", "integer", "qcdq", "qonnx", "ort"),
        default=None,
        help="default fused, but recipes of weights alone have a form of their own; qonnx: Brevitas' cells; ort: "
        "onnxruntime's own quantized LSTM, for programs that cannot load the native library",
    )
    parser.add_argument(
        "--rest", choices=("float", "int8"), default="float",
        help="embeddings, linear layers and convolutions around the recurrent layers: float (default) or int8",
    )  # fmt: skip
    parser.add_argument(
        "--unroll", action="store_true", help="unroll loops; needs static sequence lengths, implies --form integer"
    )
    _add_changes(parser)
    _add_checks(parser)
    parser.set_defaults(command=run)


def _add_calibration(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the source of ranges."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--calibration", metavar="DATA", help="calibrate with an .npz, a directory of .npz, or module:function"
    )
    source.add_argument("--stats", metavar="STATS.json", help="statistics of `rnnqc calibrate`")
    add_state(parser, "the calibration data is the calls of a stream: output OUT of one is input IN of the next")
    parser.add_argument(
        "--batch", type=int, metavar="N", help="calibrate in batches of N rows; of --stats: they must be of this batch"
    )


def _add_changes(parser: argparse.ArgumentParser) -> None:
    """Adds the options that change the model or the recipe."""
    add_bindings(parser)
    parser.add_argument(
        "--remove-sorting", action="store_true",
        help="take out sorts of a batch by length around recurrent layers (pack_padded_sequence, enforce_sorted=False)",
    )  # fmt: skip
    parser.add_argument(
        "--quantized-outputs", nargs="+", action="extend", default=[], metavar="NAME",
        help="outputs that become quantized values of the format that their hidden or cell states have",
    )  # fmt: skip
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="PATH=VALUE",
        help="override a recipe entry, the first match wins; several may follow",
    )
    parser.add_argument(
        "--save-formats", metavar="FILE.toml", dest="formats_path",
        help="write every number format as a recipe file; --recipe FILE.toml lowers from it without data",
    )  # fmt: skip


def _add_checks(parser: argparse.ArgumentParser) -> None:
    """Adds the options for checks of the result and for reports."""
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
    parser.add_argument(
        "--min-sqnr",
        type=decibels,
        metavar="DB",
        help="fail if an output has less, on the calibration data or on generated data",
    )
    parser.add_argument(
        "--report", metavar="OUT.html", dest="report_path",
        help="write a page that says where errors come from: on the calibration data, or on generated data",
    )  # fmt: skip
    add_bounds(parser, MODELS, "for --report: measure the sensitivity")
    parser.add_argument("--json", metavar="OUT.json", dest="json_path", help="write the report")


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.lowering.failures import first_failure

    _check_paths(a)
    bounds = bounds_of(a, MODELS) if a.report_path else None
    start = time.perf_counter()
    lowered = _lowered(a)
    evidence = None if bounds is None else _evidence(a, lowered, bounds)
    report = lowered.report
    _print_warnings(a, report)
    failure = first_failure(
        report, strict=a.strict, strict_rest=a.strict_rest, form=a.form, verify=a.verify, min_sqnr=a.min_sqnr
    )
    if failure is None:
        if a.formats_path:
            from rnnqc.lowering.saved_formats import save_formats

            save_formats(lowered, a.formats_path)
        lowered.save(Path(a.output))
    else:
        _print_failure(failure)
    _write_reports(a, report, evidence)
    print_entries(report)
    if failure is None:
        print_summary(lowered, a, time.perf_counter() - start)
    if a.verbose:
        _print_details(report)
    return OK if failure is None else EXIT_CODES.get(failure.option, CHECK_FAILED)


def _check_paths(a: argparse.Namespace) -> None:
    """Checks that the results can be written and do not overwrite an input.

    Raises:
        UsageError: One would, or bounds are given without a page.
    """
    from rnnqc.proto.files import check_writable

    output = Path(a.output)
    read = [a.stats, a.calibration, a.recipe]
    check_writable(output, [a.model, *read])
    if a.formats_path:
        check_writable(Path(a.formats_path), [a.model, a.output, *read])
    if a.json_path:
        check_writable(Path(a.json_path), read)
    if a.json_path and os.path.realpath(a.json_path) in (os.path.realpath(output), os.path.realpath(a.model)):
        raise UsageError(f"--json {a.json_path}: is the model.", action="choose another file for the report")
    if a.report_path:
        check_page(a.report_path, [a.model, a.output, a.json_path, *read])
    elif a.models is not None or a.seconds is not None:
        raise UsageError("--models or --seconds without --report OUT.html.", action="name the page, or leave them out")


def _lowered(a: argparse.Namespace) -> Lowered:
    from rnnqc.lowering.lower import lower_to_report
    from rnnqc.lowering.options import LowerOptions
    from rnnqc.recipes.recipe import override_texts

    with progress_bar("loading the model", spinner=True, counted=False, quiet=a.quiet) as update:

        def tell(name: str) -> None:
            update(description=name)

        options = LowerOptions(
            a.recipe, a.form, a.unroll, calibration=a.calibration, statistics=a.stats, state=a.state, batch=a.batch,
            overrides=override_texts(a.overrides), verify=a.verify, remove_sorting=a.remove_sorting,
            reproducer=Path(f"{a.output}.reproducer") if a.verify else None,
            measure=a.min_sqnr is not None or a.json_path is not None or not a.quiet,
            patience=PATIENCE if a.min_sqnr is None else math.inf, rest=a.rest,
            quantized_outputs=a.quantized_outputs,
            dims=pairs(a.dim, "--dim"), bind=values(a.bind, "--bind"),
        )  # fmt: skip
        return lower_to_report(a.model, options, progress=tell)


def _evidence(a: argparse.Namespace, lowered: Lowered, bounds: Bounds) -> Evidence:
    """Measures the contents of the page, on the calibration data or on generated data."""
    from rnnqc.reporting.subject import Options, subject_of_lowering

    subject = subject_of_lowering(lowered, a.model, a.output, a.calibration, a.stats, a.state, a.batch)
    try:
        return measured(subject, Options(bounds=bounds), a.quiet)
    except CompileError as error:
        if not a.calibration:
            error.action = "lower without --report, and use `rnnqc report FLOAT LOWERED --data DATA`"
            error.args = (str(error),)
        raise


def _print_warnings(a: argparse.Namespace, report: Report) -> None:
    for option, text in report.told(is_bounded=a.min_sqnr is not None):
        tell(text, option)


def _print_failure(failure: Failure) -> None:
    for text in failure.texts:
        err(f"[red]rnnqc: {failure.option}:[/red] {escape(text)}")


def _write_reports(a: argparse.Namespace, report: Report, evidence: Evidence | None) -> None:
    """Writes the JSON and the page, if requested."""
    from rnnqc.proto.files import write_atomically

    if a.json_path:
        data = {k: v for k, v in report.to_dict().items() if k != "seconds"}  # so that two runs write the same bytes
        if evidence is not None:
            data["evidence"] = evidence.to_dict()
        write_atomically(Path(a.json_path), (document(data) + "\n").encode())
    if evidence is not None:
        from rnnqc.reporting.page import page

        write_atomically(Path(a.report_path), page(evidence).encode())
        tell_unmeasured(evidence)


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
