"""Record: writes into a lowered model how it was made, as metadata `rnnqc.recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rnnqc.ir import Model
from rnnqc.lowering.file_contents import contents
from rnnqc.lowering.plan import Plan
from rnnqc.lowering.report import Entry, Lowered, Report
from rnnqc.lowering.run import Passed
from rnnqc.proto.files import proto_size
from rnnqc.recipes.recipe_record import RECIPE_KEY, RecipeRecord, read_record


def record(plan: Plan, passed: Passed, report: Report) -> Lowered:
    """Writes into the model how it was lowered, and into the report how large it is as one file.

    Raises:
        CompileError: It is too large for one file.
    """
    model = passed.model
    made = _record(plan, model, report)
    if made is not None:
        model.metadata[RECIPE_KEY] = made.text
    formats = {path: point for r in passed.results for path, point in r.formats.items()}
    report.points = {path: point.as_dict() for path, point in formats.items()}
    lowered = Lowered(model, report, plan.statistics, formats)
    report.bytes = proto_size(lowered.proto, "The lowered model")
    if report.bytes > report.float_bytes:
        report.contents = contents(lowered.proto)
    return lowered


def earlier_record(model: Model, entries: Sequence[Entry]) -> RecipeRecord | None:
    """The record of an earlier lowering; None if no node was lowered earlier, or the model has no record.

    Raises:
        UsageError: The metadata is damaged.
    """
    return read_record(model.metadata, model.source) if any(e.earlier for e in entries) else None


def _record(plan: Plan, model: Model, report: Report) -> RecipeRecord | None:
    """The plan if it lowered something; otherwise the earlier record, with the form that its cells have now."""
    earlier = earlier_record(model, report.entries)
    if not plan.keeps_own and report.is_changed:
        return plan.record
    if earlier is None or not any(e.cells for e in report.entries if e.earlier):
        return None
    dims = {**earlier.dims, **plan.options.dims}
    rest = plan.options.rest if report.rest.is_changed else earlier.rest
    return replace(earlier, form=plan.form, unroll=plan.options.unroll, dims=dims, rest=rest)
