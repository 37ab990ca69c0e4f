"""Measures the SQNR of a lowered model against the float one, on calibration data or on generated data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import onnx

from rnnqc.data.given_data import Data
from rnnqc.data.state_pairs import state_pairs
from rnnqc.errors import CompileError
from rnnqc.lowering.reports.report import Report
from rnnqc.lowering.verification_feeds import CALIBRATION_DATA, first_calls, spread
from rnnqc.measure.compare import LevelComparison, compare_levels, worst_level
from rnnqc.measure.differences import unlike_texts
from rnnqc.measure.feeds import FeedGenerator, Level, generated_levels
from rnnqc.measure.runs import State
from rnnqc.measure.verdict import Judged

LEAST_SECONDS = 1.0
"""The minimum time for measuring."""
MEASURED_SAMPLES = 16
"""The number of calibration samples to measure on."""


def measure(
    report: Report,
    reference: onnx.ModelProto,
    candidate: Callable[[], onnx.ModelProto],
    levels: Iterable[Level],
    seconds: float = math.inf,
    *,
    state: State = None,
) -> None:
    """Measures the SQNR of every output and stores it in the report, or the reason why it cannot be measured.

    Args:
        report: Gets the results.
        reference: The float model, as onnxruntime runs it.
        candidate: Makes the lowered one.
        levels: The feeds.
        seconds: No further level starts after this time.
        state: Outputs by the input they become in the next call, if the feeds of a level are the calls of a stream.
    """
    start = time.perf_counter()
    done: list[LevelComparison] = []
    try:
        for level in compare_levels(reference, candidate(), levels, state=state, timed=False, optimize=False):
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
    own = [level for level in done if level.name == CALIBRATION_DATA]
    report.negligible = {o.name: o.max_abs for level in own for o in level.outputs if Judged.of(o).is_negligible}
    report.sqnr_summary = _summary(report)
    report.varying_db = {o.name: o.varying_db for level in own for o in level.outputs if o.varying_db < math.inf}
    report.constant = bool(done) and all(o.constant for level in done for o in level.outputs)
    report.unlike = list(dict.fromkeys(text for level in done for text in unlike_texts(level.outputs)))


def generated(generator: FeedGenerator, *, calibrated: bool) -> Iterator[Level]:
    """Yields feeds of several magnitudes; only the usual one if ranges are calibrated, as others lie beyond them.

    Raises:
        CompileError: The model runs on none of the generated data.
    """
    yield from islice(generated_levels(generator.checked(), 1), 1 if calibrated else None)


def given(proto: onnx.ModelProto, data: Data, state: State) -> Level:
    """Returns the first calls of a stream, or some of the first independent samples.

    Raises:
        CompileError: The data does not fit the model, for example because dimensions were bound to other sizes.
    """
    carried = state_pairs(state, proto)
    calls = [call.feed for call in first_calls(proto, data, carried)]
    return Level(CALIBRATION_DATA, calls if carried else spread(calls, MEASURED_SAMPLES), is_given=True)


def _summary(report: Report) -> str:
    """Words for the lowest SQNR, its level, and the value on usual data; "" if nothing was measured."""
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
