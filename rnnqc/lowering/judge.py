"""Judge: reports the outcome of every recurrent node, warns, and measures the result against the float model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from rnnqc.cells.forms import CUSTOM, FUSED, INTEGER, QCDQ, QONNX
from rnnqc.codes import Code, all_told, told
from rnnqc.errors import LOWER_THE_FLOAT_MODEL, CompileError, Outcome, Remark, UsageError, byte_count, explained
from rnnqc.lowering.executable import NOT_KEPT, executable
from rnnqc.lowering.measurement import generated, given, measure
from rnnqc.lowering.plan import AS_EXPORTED, Plan
from rnnqc.lowering.reports.entries import make_entries
from rnnqc.lowering.reports.report import Entry, Report
from rnnqc.lowering.reports.rest_report import rest_report, stored_weights, told_of_rest
from rnnqc.lowering.reports.stock_speed import slower_without_library
from rnnqc.lowering.reports.warnings import lowered_otherwise, suspected_steps, warnings_of, warnings_of_measurement
from rnnqc.lowering.run import Passed
from rnnqc.lowering.stages import MEASURE, Tell, nothing
from rnnqc.measure.feeds import Level
from rnnqc.passes.analysis.elementwise_recurrences import ACTION, ElementwiseRecurrence
from rnnqc.passes.analysis.released_cells import WRITTEN_OUT
from rnnqc.passes.custom_cells.quantize_custom_cells import CALIBRATE
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.proto.random_values import random_values


def judge(plan: Plan, passed: Passed, start: float | None = None, tell: Tell = nothing) -> Report:
    """Makes the report of a lowering, without the size of its file.

    Args:
        plan: The plan of the lowering.
        passed: The result of its passes.
        start: When the lowering began (`time.perf_counter`), for `patience`; now by default.
        tell: Called with the data on which the models are compared.

    Raises:
        CompileError: Nothing was lowered because calibration data is missing, or because an earlier lowering used other
            settings; with `strict`: a recurrent node, or a possible step of one, was not lowered.
        UsageError: Its cells are already lowered and cannot take the requested form.
    """
    start = time.perf_counter() if start is None else start
    entries = _entries(plan, passed)
    steps = suspected_steps(passed, entries)
    own = plan.keeps_own or (plan.form != QONNX and bool(entries) and all(e.op == CELL_OP for e in entries))
    name = AS_EXPORTED if own else plan.recipe.name
    report = Report(
        plan.model.source, name, plan.form, entries,
        notes=[str(r) for r in (*passed.remarks_of(Outcome.NOTE), *map(_elementwise, passed.elementwise))],
        warnings=warnings_of(plan, passed, entries, steps),
        float_bytes=plan.model.size,
        seconds=passed.seconds,
        checks=passed.verifier.checks,
        verified=passed.verifier.verified,
        unverified=passed.verifier.unverified,
        slow_stock=_slow_stock(plan, passed, entries),
        rest=rest_report(
            passed.rest, passed.rest_left, stored_weights(passed.results), plan.options.rest, passed.exported
        ),
        dims={n: size for n, size in plan.options.dims.items() if n not in plan.asked_dims},
        suspected_steps=steps,
    )  # fmt: skip
    _refuse_idle_recipe(plan, passed, report)
    if plan.options.strict:
        _refuse_float_nodes(report)
    if plan.options.strict_rest:
        _refuse_float_rest(report)
    _measure(plan, passed, report, start, tell)
    return report


def _elementwise(found: ElementwiseRecurrence) -> Remark:
    return Remark("lower", Outcome.FLOAT, found.path, found.op, found.reason, action=ACTION)


def _slow_stock(plan: Plan, passed: Passed, entries: Sequence[Entry]) -> str:
    forms = (FUSED, INTEGER, *((CUSTOM,) if plan.form in (FUSED, INTEGER) else ()))
    made = {e.node for e in entries if e.form in forms}
    return slower_without_library(n for n in passed.nodes if n.path in made)


def _entries(plan: Plan, passed: Passed) -> list[Entry]:
    """Returns one entry for each recurrent node, with a reason where it stays float."""
    entries = make_entries(passed, plan.form)
    if plan.statistics is None:
        _refuse_uncalibrated(entries, passed)
    if plan.options.form not in (None, QCDQ):
        _refuse_written_out(entries)
    for entry in entries if plan.keeps_own else ():
        if entry.status == "float" and not entry.reason:
            entry.reason, entry.found, entry.action = NOT_KEPT
    return entries


def _refuse_uncalibrated(entries: Sequence[Entry], passed: Passed) -> None:
    """Raises CompileError with the first point that lacks a scale, if only missing scales keep the model float."""
    lacking = [r for r in passed.remarks_of(Outcome.FLOAT) if r.action == CALIBRATE]
    if lacking and all(e.status == "float" for e in entries):
        first = lacking[0]
        raise CompileError(
            explained(f'Operator "{first.op}" (node {first.node!r}): {first.reason}', first.found),
            supported="a scale for every point, or calibration data",
            action=first.action,
        )


def _refuse_idle_recipe(plan: Plan, passed: Passed, report: Report) -> None:
    """Raises CompileError if a quantization is requested, but everything was lowered with other settings before."""
    text = lowered_otherwise(plan, passed, report.entries)
    if text is not None and not report.is_changed and not report.rest.is_changed:
        raise CompileError(
            text,
            supported="float models; the recipe that made the nodes",
            action=f"{LOWER_THE_FLOAT_MODEL}; without --recipe, --set and --stats what is lowered stays as it is",
        )


def _refuse_written_out(entries: Sequence[Entry]) -> None:
    """Raises UsageError if the model has only cells of form qcdq that no pass can take to the requested form."""
    reason, found, action = WRITTEN_OUT
    stay = [e for e in entries if e.reason == reason]
    if stay and all(e.earlier for e in entries):
        raise UsageError(
            f"cell {stay[0].cells[0]!r} is lowered already, to form {QCDQ}: {explained(reason, found)}",
            supported=f"--form {QCDQ}",
            action=action,
        )


def refuse_other_forms(report: Report, form: str | None) -> None:
    """Raises CompileError if form qonnx is requested and no layer has a cell of it."""
    if report.lacks(form):
        raise CompileError(
            f"no cell of form {form} was made: " + (" ".join(e.explanation for e in report.entries) or "no layer."),
            supported="LSTM layers with the formats of Brevitas' cell",
            action="see each node's, or choose another form",
        )


def _refuse_float_nodes(report: Report) -> None:
    """Raises CompileError if a recurrent node was not lowered, or the model may be a step of one."""
    if report.entries_not_lowered:
        raise CompileError(
            f"recurrent nodes {report.how_they_stay}: " + " ".join(e.explanation for e in report.entries_not_lowered),
            supported="models whose recurrent nodes can all be lowered, where strict = True",
            action="see each node's, or leave strict out",
        )
    if report.suspected_steps:
        raise CompileError(
            f"{report.suspicion}: {' '.join(report.suspected_steps)}",
            supported="models with recurrent layers that can all be lowered, where strict = True",
            action="make a layer of the step, or leave strict out",
        )


def _refuse_float_rest(report: Report) -> None:
    """Raises CompileError if a weight around the recurrent layers stays float although int8 would make it smaller."""
    left = report.rest.left
    if left:
        raise CompileError(
            f"{report.rest.how_many_stay}: " + " ".join(told_of_rest(left)),
            supported="models all of whose weights are stored as int8, where strict_rest = True",
            action="lower with rest = 'int8', or leave strict_rest out",
        )


def _measure(plan: Plan, passed: Passed, report: Report, start: float, tell: Tell) -> None:
    """Measures the SQNR if requested, and if something was lowered now or patience is infinite."""
    reference, patience = passed.reference, plan.options.patience
    if not (report.is_changed or report.rest.is_changed or patience == math.inf):
        return
    if reference is None:
        if plan.options.measure:
            report.unmeasured = (
                f"the model has {byte_count(plan.model.size)}, of which a measurement holds several copies in memory: "
                "rnnqc verify --data compares the two files."
            )
        return
    seconds = patience * (time.perf_counter() - start)
    candidate, calibrated = partial(executable, passed.model.proto), plan.statistics is not None
    levels: Iterable[Level] = generated(reference.generator, calibrated=calibrated)
    data, state = plan.options.calibration, plan.options.state
    if data is not None:
        try:
            levels = [given(reference.proto, data, state)]
        except CompileError as error:
            state = None
            text = f"the SQNR was measured on generated data, not on the calibration data: {error}"
            report.warnings.append(told(Code.CALIBRATION_DATA, text))
    measure(report, reference.proto, candidate, _told(levels, tell), seconds, state=state)
    report.warnings += all_told(Code.RANDOM_VALUES, random_values(reference.proto))
    report.warnings += all_told(Code.LOW_SQNR, warnings_of_measurement(report, calibrated=calibrated))


def _told(levels: Iterable[Level], tell: Tell) -> Iterator[Level]:
    """Yields the levels, and says for each that it is compared."""
    for level in levels:
        tell(f"{MEASURE}, {level.name}")
        yield level
