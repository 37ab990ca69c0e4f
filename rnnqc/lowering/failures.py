"""Checks of a lowering that a caller requests, and the messages of the first one that fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnnqc.lowering.reports.report import Report

STRICT, STRICT_REST, FORM = "--strict", "--strict-rest", "--form qonnx"
VERIFY, MIN_SQNR = "--verify", "--min-sqnr"
NOT_WRITTEN = "the model was not written."


@dataclass(frozen=True)
class Failure:
    """A check that failed.

    Attributes:
        option: The option that requested it: STRICT, STRICT_REST, FORM, VERIFY or MIN_SQNR.
        texts: The findings, and that no model is written.
    """

    option: str
    texts: Sequence[str]


def first_failure(
    report: Report,
    *,
    strict: bool = False,
    strict_rest: bool = False,
    form: str | None = None,
    verify: bool = False,
    min_sqnr: float | None = None,
) -> Failure | None:
    """Returns the first check that a lowering fails; None if it passes all.

    Args:
        report: The report of the lowering.
        strict: Every recurrent node must be lowered, and a model without any must not look like a step of one.
        strict_rest: No weight around the recurrent layers may stay float, except those too small to gain.
        form: The requested form: "qonnx" requires a cell of it.
        verify: At least one pass must be compared.
        min_sqnr: Least SQNR in dB of every output.
    """
    if strict and report.entries_not_lowered:
        count = len(report.entries_not_lowered)
        return Failure(STRICT, [f"{count} recurrent node(s) {report.how_they_stay}; {NOT_WRITTEN}"])
    if strict and report.suspicion:
        return Failure(STRICT, [f"{report.suspicion}; {NOT_WRITTEN}"])
    if strict_rest and report.rest.left:
        return Failure(STRICT_REST, [f"{report.rest.how_many_stay}; {NOT_WRITTEN}"])
    if report.lacks(form):
        return Failure(FORM, [f"no cell of this form was made; {NOT_WRITTEN}"])
    if verify and report.unverified and not report.verified:
        return Failure(VERIFY, [f"not verified: no pass could be compared; {NOT_WRITTEN}"])
    if min_sqnr is None:
        return None
    if report.unmeasured and not report.sqnr_db:
        return Failure(MIN_SQNR, [f"not measured: {report.unmeasured}", NOT_WRITTEN])
    texts = [*report.unlike, *_too_lossy(report, min_sqnr)]
    return Failure(MIN_SQNR, [*texts, NOT_WRITTEN]) if texts else None


def _too_lossy(report: Report, least: float) -> list[str]:
    """A sentence about the worst output if its SQNR is below `least`."""
    below = {n: v for n, v in report.sqnr_db.items() if v < least}
    if not below:
        return []
    name, value = min(below.items(), key=lambda p: p[1])
    where = f" at {report.sqnr_level[name]}" if len(report.sqnr_levels) > 1 else ""
    return [f"output {name!r} has {value:.1f} dB{where}, {least:g} dB asked for."]
