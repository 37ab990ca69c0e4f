"""Measures the SQNR of a lowered model against the float one on generated data of several magnitudes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice

import onnx

from rnnqc.errors import CompileError
from rnnqc.lowering.report import Report
from rnnqc.measure.compare import LevelComparison, compare_levels, worst_level
from rnnqc.measure.differences import unlike_texts
from rnnqc.measure.feeds import FeedGenerator, generated_levels

LEAST_SECONDS = 1.0
"""Measuring does not end before."""


def measure(
    report: Report,
    reference: onnx.ModelProto,
    candidate: Callable[[], onnx.ModelProto],
    generator: FeedGenerator,
    seconds: float = math.inf,
    *,
    calibrated: bool = False,
) -> None:
    """Measures the SQNR of every output into a report, which says so where it cannot be measured.

    Args:
        report: Gets the results.
        reference: The float model, as onnxruntime runs it.
        candidate: Makes the lowered one.
        generator: Of feeds.
        seconds: After this no further level is begun.
        calibrated: Ranges fit the user's data: only usual values are generated, since others lie beyond them.
    """
    start = time.perf_counter()
    done: list[LevelComparison] = []
    try:
        levels = islice(generated_levels(generator.checked(), 1), 1 if calibrated else None)
        for level in compare_levels(reference, candidate(), levels, timed=False, optimize=False):
            done.append(level)
            if time.perf_counter() - start > max(seconds, LEAST_SECONDS):
                report.unmeasured = (
                    f"up to {level.name}; more would take much longer than lowering does (--min-sqnr DB does it)."
                )
                break
    except CompileError as error:
        report.unmeasured = str(error)
    for name, (level_name, output) in worst_level(done).items():
        if not math.isnan(output.sqnr_db):
            report.sqnr_db[name], report.sqnr_level[name] = output.sqnr_db, level_name
    report.sqnr_levels = {level.name: {o.name: o.sqnr_db for o in level.outputs} for level in done}
    report.sqnr_summary = _summary(report)
    report.unlike = list(dict.fromkeys(text for level in done for text in unlike_texts(level.outputs)))


def _summary(report: Report) -> str:
    """The least SQNR, its level, and what it is on usual values; "" if nothing was measured."""
    name = report.worst_output
    if name is None:
        return ""
    value, level = report.sqnr_db[name], report.sqnr_level[name]
    usual, values = next(iter(report.sqnr_levels.items()))
    if len(report.sqnr_levels) == 1:
        return f"{value:.1f} dB"
    if level == usual:
        return f"{value:.1f} dB ({level})"
    return f"{value:.1f} dB ({level}; at {usual} {min(values.values()):.1f} dB)"
