"""Record: writes how a model was lowered into it, as metadata `rnnqc.recipe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rnnqc.cells.stages import points_of
from rnnqc.errors import CompileError
from rnnqc.formats.quantized_outputs import as_dicts, read_outputs
from rnnqc.ir import Model
from rnnqc.lowering.file_contents import contents
from rnnqc.lowering.plan import AS_EXPORTED, Plan
from rnnqc.lowering.reports.report import Entry, Lowered, Report
from rnnqc.lowering.run import Passed
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.proto.files import proto_size
from rnnqc.recipes.recipe_record import RECIPE_KEY, RecipeRecord, read_record


def record(plan: Plan, passed: Passed, report: Report) -> Lowered:
    """Writes the lowering's settings into the model, and the model's size as one file into the report.

    Raises:
        CompileError: It is too large for one file.
    """
    model = passed.model
    made = _record(plan, model, report)
    if made is not None:
        model.metadata[RECIPE_KEY] = made.text
    formats = {path: point for r in passed.results for path, point in r.formats.items()}
    report.points = _exported_points(passed, report) | {path: point.as_dict() for path, point in formats.items()}
    report.quantized_outputs = as_dicts(read_outputs(model.metadata))
    lowered = Lowered(model, report, plan.statistics, formats)
    try:
        report.bytes = proto_size(lowered.proto, "The lowered model")
    except CompileError as error:
        if not plan.recipe.rest:
            error.action = f"--rest int8 stores the weights around the recurrent layers as int8; or {error.action}"
        raise
    if report.bytes > report.float_bytes:
        report.contents = contents(lowered.proto)
    return lowered


def _exported_points(passed: Passed, report: Report) -> dict[str, Mapping[str, Any]]:
    """Returns the formats of Brevitas cells read now, with the per-channel scales that the lowered file lacks."""
    earlier = {cell for e in report.entries if e.earlier for cell in e.cells}
    cells = [c for c in passed.cells.values() if c.op == CELL_OP and c.name not in earlier]
    return {
        f"{c.name}.{name}": {**point.as_dict(), "source": AS_EXPORTED}
        for c in cells
        for name, point in points_of(c).items()
    }


def earlier_record(model: Model, entries: Sequence[Entry]) -> RecipeRecord | None:
    """Returns the record of an earlier lowering; None if no node was lowered earlier, or the model has no record.

    Raises:
        UsageError: The metadata is damaged.
    """
    return read_record(model.metadata, model.source) if any(e.earlier for e in entries) else None


def _record(plan: Plan, model: Model, report: Report) -> RecipeRecord | None:
    """Returns the plan's record if something was lowered; otherwise the earlier record with the current form."""
    earlier = earlier_record(model, report.entries)
    if not plan.keeps_own and report.is_changed:
        return plan.record
    if earlier is None or not any(e.cells for e in report.entries if e.earlier):
        return None
    dims = {**earlier.dims, **plan.options.dims}
    rest = plan.options.rest if report.rest.is_changed else earlier.rest
    return replace(earlier, form=plan.form, unroll=plan.options.unroll, dims=dims, rest=rest)
