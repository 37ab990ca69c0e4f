"""The output of `rnnqc lower`: the recurrent nodes, and a summary in labelled lines."""

from __future__ import annotations

import itertools
import shlex
from typing import TYPE_CHECKING

from rnnqc.commands.shared.arguments import byte_count
from rnnqc.commands.shared.terminal import escape, new_table, out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from rnnqc.lowering.reports.report import Entry, Lowered, Report

LABEL = 10
"""Width of the labels in columns."""
MOST_ALIKE = 8
"""The most equal rows that are printed one by one; there may be hundreds of steps."""


def print_entries(report: Report) -> None:
    """Prints a line for each recurrent node."""
    if not report.entries:
        return
    table = new_table("node", "op", "status", "weights")
    for (op, status, sizes), alike in itertools.groupby(report.entries, _cells):
        entries = list(alike)
        shown = entries if len(entries) <= MOST_ALIKE else entries[:1]
        for e in shown:
            table.add_row(escape(e.node), op, status, sizes)
        if len(shown) < len(entries):
            table.add_row(f"  and {len(entries) - 1} more", op, status, sizes)
    out(table)


def _cells(e: Entry) -> tuple[str, str, str]:
    """Returns the table cells of an entry after its name."""
    status = f"{e.status}{' already' if e.earlier else ''}" + (f" ({e.summary or e.form})" if e.form else "")
    status += f": {escape(e.reason)}" if e.reason and e.status == "lowered" else ""
    return e.op, status, _sizes(e)


def print_summary(lowered: Lowered, a: argparse.Namespace, seconds: float) -> None:
    """Prints the summary of a lowering.

    Args:
        lowered: The lowered model.
        a: The arguments of the command.
        seconds: The time it took.
    """
    report, output = lowered.report, a.output
    is_changed = bool(report.entries) or report.rest.is_changed
    lines = [
        ("bound", _bound(report.dims)),
        ("layers", _layers(report) if report.entries else ""),
        ("rest", report.rest.summary(report.bytes) if report.rest.entries else ""),
        ("size", f"{output}: {_files(report)}, {seconds:.1f} s" if is_changed else ""),
        ("" if is_changed else "size", _growth(report)),
        ("outputs", _outputs(lowered)),
        ("verified", _verified(report) if a.verify else ""),
        ("accuracy", report.accuracy),
        ("speed", report.slow_stock),
        ("branches", _branches(lowered) if is_changed else ""),
        ("next", _next(lowered, a) if report.is_changed or report.rest.is_changed else ""),
    ]
    for label, text in lines:
        if text:
            out(f"{label:{LABEL}}{escape(text)}")


def _next(lowered: Lowered, a: argparse.Namespace) -> str:
    """Returns the command that compares the two models, with the known data and states; "" if none can."""
    from rnnqc.data.state_hints import hinted_states
    from rnnqc.proto.files import LARGEST_FILE, word_for

    if lowered.report.float_bytes > LARGEST_FILE:
        return ""

    known = [] if lowered.statistics is None else lowered.statistics.settings.get("states", [])
    states = dict.fromkeys([*a.state, *known] or [f"{i}:{o}" for i, o in hinted_states(lowered.proto).items()])
    models = [word_for(a.model, "MODEL"), word_for(a.output, "LOWERED")]
    words = ["rnnqc", "verify", *models, *(["--data", a.calibration] if a.calibration else [])]
    return shlex.join([*words, *(word for text in states for word in ("--state", text))])


def _outputs(lowered: Lowered) -> str:
    """Describes the quantized outputs and how to read them."""
    from rnnqc.formats.quantized_outputs import described_outputs, read_outputs

    return "; ".join(described_outputs(read_outputs(lowered.model.metadata)))


def _branches(lowered: Lowered) -> str:
    """Says which inputs decide which branches run, and how to keep one of them."""
    from rnnqc.passes.analysis.deciding_inputs import deciding_inputs, told_of_deciding

    return "; ".join(told_of_deciding(deciding_inputs(lowered.model)))


def _bound(dims: Mapping[str, int]) -> str:
    """Describes dimensions that were bound in addition to those requested."""
    text = ", ".join(f"{n}={size}" for n, size in dims.items())
    return f"{text}, too: the rows of a layer's input and states are as many" if dims else ""


def _growth(report: Report) -> str:
    """Describes the contents of a file that has grown; "" for others."""
    grown = report.bytes - report.float_bytes
    return f"the file has grown by {byte_count(grown)}; it holds: {report.contents}" if grown > 0 else ""


def _layers(report: Report) -> str:
    """Describes how many nodes were lowered, and how; sizes of weights that came quantized are those of floats."""
    before, after = report.weight_bytes
    counted = "recurrent weights, in float before," if before > report.float_bytes else "recurrent weights"
    return f"{report.how_many}, {counted} {byte_count(before)} -> {byte_count(after)}"


def _sizes(entry: Entry) -> str:
    if entry.status == "lowered" and not entry.float_bytes:
        return "shared" + (f" + {byte_count(entry.bytes)}" if entry.bytes else "")
    before = byte_count(entry.float_bytes)
    return f"{before} -> {byte_count(entry.bytes)}" if entry.status == "lowered" else before


def _files(report: Report) -> str:
    """Describes the file size before and after."""
    share = f" ({100 * report.bytes / report.float_bytes:.0f} %)" if report.float_bytes else ""
    return f"file {byte_count(report.float_bytes)} -> {byte_count(report.bytes)}{share}"


def _verified(report: Report) -> str:
    """Describes the comparison of the passes, none of which failed."""
    count = len(report.verified)
    passes = f"{count} pass{'' if count == 1 else 'es'}"
    if report.unverified:
        return f"{passes} compared, {len(report.unverified)} not compared (said above)"
    return f"{passes} changed no more than declared"
