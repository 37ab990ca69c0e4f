"""Every warning of a lowering: a sentence about the finding and, after "Resolution:", one about what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.cells.forms import CUSTOM, FUSED, INTEGER, QCDQ, QONNX
from rnnqc.cells.stages import IntegerCell, QuantizedCell
from rnnqc.cells.types import CELL_TYPES
from rnnqc.cells.vitis_tables import VITIS
from rnnqc.codes import Code, Told, all_told, told
from rnnqc.errors import LOWER_THE_FLOAT_MODEL, Outcome, and_more, explained
from rnnqc.formats.packing import BYTE_BITS, stored_bits
from rnnqc.ir import safe_name
from rnnqc.layers.layer_hints import layer_hints
from rnnqc.lowering.plan import Plan
from rnnqc.lowering.record import earlier_record
from rnnqc.lowering.reports.report import Entry, Report
from rnnqc.lowering.reports.stock_speed import STOCK_WEIGHTS, slow_custom_cells
from rnnqc.lowering.run import Passed
from rnnqc.measure.verdict import GOOD_DB, WATCH_DB
from rnnqc.passes import LowerQuantOperators, ReadDynamicProducts, RemoveSorting
from rnnqc.passes.analysis.custom_points import points_of_recurrences
from rnnqc.passes.analysis.custom_products import cells_with_kernels
from rnnqc.passes.analysis.rest_weights import points_of_weights
from rnnqc.passes.formats.override_effects import idle_overrides, points_of_types
from rnnqc.passes.graph.constant_outputs import warning_of
from rnnqc.passes.graph.float16_products import float16_warning
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.passes.graph.training_mode import training_warning
from rnnqc.passes.qcdq.saturating_products import saturating_products, saturation_warning
from rnnqc.recipes.clipping import clipping_warnings
from rnnqc.recipes.recipe import is_builtin
from rnnqc.recipes.recipe_record import not_applied
from rnnqc.recipes.rules import override_text

OWN_DATA = "Resolution: compare on your own data (rnnqc verify FLOAT LOWERED --data DATA); "
CALIBRATE = "--calibration DATA fits ranges to it, and "
_TOLD = (LowerQuantOperators.info.name, ReadDynamicProducts.info.name)
"""Passes whose remarks on what becomes of a quantization are told."""
REPORT = "--report OUT.html says where the loss is made."


def suspected_steps(passed: Passed, entries: Sequence[Entry]) -> list[str]:
    """Advice for a model that may be a step of a recurrent layer, if no layer of it is lowered."""
    return [] if any(e.status != "float" for e in entries) else layer_hints(passed.model.proto)


def warnings_of(plan: Plan, passed: Passed, entries: Sequence[Entry], steps: Sequence[str] = ()) -> list[Told]:
    """Returns warnings about the model, the data, the passes, and parts of the recipe without effect, in this order.

    Args:
        plan: The plan of the lowering.
        passed: The result of its passes.
        entries: The entries of its report.
        steps: The result of `suspected_steps`.
    """
    return [
        *all_told(Code.CONSTANT_OUTPUT, (warning_of([name]) for name in plan.constant_outputs)),
        *([told(Code.TRAINING_DROPOUT, training_warning(plan.dropouts))] if plan.dropouts else ()),
        *([told(Code.FLOAT16_MATMUL, float16_warning(plan.fatal))] if plan.fatal else ()),
        *all_told(Code.FIXED_LENGTH, plan.fixed_lengths),
        *(r.told for r in (plan.statistics.remarks if plan.statistics is not None else ())),
        *all_told(Code.NOT_RECOVERED, passed.recovery_warnings),
        *all_told(Code.STEP, steps),
        *all_told(Code.NO_STATISTICS, _missing_statistics(plan)),
        *all_told(Code.IDLE_RULE, _idle_rules(plan, passed, entries)),
        *all_told(Code.NOT_SORTED, _kept_sorting(plan, passed)),
        *(r.told for r in passed.remarks_of(Outcome.WARNING)),
        *(r.told for r in passed.remarks if r.pass_name in _TOLD and r.action),
        *all_told(Code.IDLE_OVERRIDE, idle_overrides(plan.recipe, [r.effects for r in passed.results])),
        *all_told(Code.CLIPPED, clipping_warnings(c for r in passed.results for c in r.clipped)),
        *all_told(Code.EXPORTED_CELL, _exported_cells(plan, entries)),
        *all_told(Code.LOWERED_BEFORE, _lowered_cells(plan, passed, entries)),
        *all_told(Code.LEFT_OUT_TABLE, _left_out_tables(passed)),
        *all_told(Code.WIDE_STORAGE, _bytes_of_few_bits(plan, passed)),
        *all_told(Code.SLOW_CELL, _slow_everywhere(plan, passed, entries)),
        *([told(Code.SATURATION, saturation_warning(found))] if (found := saturating_products(passed.model)) else ()),
    ]


def _missing_statistics(plan: Plan) -> list[str]:
    """Warns of user rules, such as those of `tune`, that need statistics when there are none."""
    own = 0 if is_builtin(plan.recipe) or plan.recipe.origin else plan.recipe.own  # a formats file needs no statistics
    asking = [r.points for r in plan.recipe.rules[:own] if r.settings.get("compensation") is True]
    if plan.statistics is not None or not asking:
        return []
    text = (
        f"recipe {plan.recipe.name!r}: {len(asking)} rule(s) with compensation, the first for {asking[0]!r}, and no "
        "statistics: weights are rounded one by one. Resolution: give the statistics of the calibration (--stats)."
    )
    return [text]


def _kept_sorting(plan: Plan, passed: Passed) -> list[str]:
    """Warns if a sort was to be removed and none was."""
    name = RemoveSorting.info.name
    if not plan.options.remove_sorting or any(r.pass_name == name for r in passed.remarks):
        return []
    reason = "no TopK sorts the batch of recurrent layers by length, or something else reads the sorted batch"
    return [f"{name} changes nothing: {reason}."]


def _idle_rules(plan: Plan, passed: Passed, entries: Sequence[Entry]) -> list[str]:
    """Warns of rules of the recipe that match no point of the model."""
    cells, recipe = passed.model.cells, plan.recipe
    names = [c for e in entries for c in e.cells]
    others = points_of_recurrences(passed.model) if recipe.own else {}
    if not names and not others:
        return []
    known = [cells[n] for n in names if n in cells]
    rest = points_of_weights(passed.rest) if recipe.rest else ()
    left = _points_left_float(passed, entries)
    idle = recipe.idle(points_of_types(known) | others | left if len(known) == len(names) else [*names, *left], rest)
    return [f"recipe {recipe.name!r}: {text}." for text in idle]


def _points_left_float(passed: Passed, entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Returns the points of layers that stay float, by cell: a rule that leaves them float is not without effect."""
    floats = {e.node for e in entries if e.status == "float"}
    return {
        f"{safe_name(node.name)}.{word}": [p.name for p in CELL_TYPES[node.op].points]
        for node in passed.nodes
        if node.path in floats and node.op in CELL_TYPES
        for word in ("forward", "reverse")
    }


def _slow_everywhere(plan: Plan, passed: Passed, entries: Sequence[Entry]) -> list[str]:
    """Warns of custom cells without a kernel that are slower than in float."""
    if plan.form != FUSED:
        return []
    made = {e.node for e in entries if e.form == CUSTOM and not e.earlier}
    fast = cells_with_kernels(passed.model)
    return [
        f"custom cell {node.path!r} runs in standard operators, with the native library, too, and is slower there "
        f"than in float: its matmuls have {weights} weights in the mean, and {STOCK_WEIGHTS} break even. Resolution: a "
        "model of one step and `rnnqc layer` make a loop with a kernel; "
        f"--set '{node.attributes['name']}.*.bits=none' leaves the cell float."
        for node, weights in slow_custom_cells(n for n in passed.nodes if n.path in made)
        if node.attributes["name"] not in fast
    ]


def _exported_cells(plan: Plan, entries: Sequence[Entry]) -> list[str]:
    """Warns of Brevitas cells that the recipe does not apply to."""
    exported = [e.node for e in entries if e.op == CELL_OP]
    if not exported or plan.keeps_own or plan.form == QONNX:
        return []
    rules = plan.recipe.rules[: plan.recipe.overrides]
    texts = [repr(override_text(r.points, k, v)) for r in rules for k, v in r.settings.items()]
    # With overrides alone, the recipe is the default one, which the user did not name.
    given = f"--set {' '.join(texts)}" if texts else f"recipe {plan.recipe.name!r}"
    text = (
        f"{given} does not apply to {len(exported)} cell(s), the first {exported[0]!r}: "
        "they keep the quantization that they were exported with."
    )
    return [text]


def _lowered_cells(plan: Plan, passed: Passed, entries: Sequence[Entry]) -> list[str]:
    """Warns of nodes that an earlier lowering lowered with other settings."""
    text = lowered_otherwise(plan, passed, entries)
    return [] if text is None else [explained(text, action=LOWER_THE_FLOAT_MODEL)]


def lowered_otherwise(plan: Plan, passed: Passed, entries: Sequence[Entry]) -> str | None:
    """A sentence if an earlier lowering used other settings than the requested ones; None otherwise."""
    done = [e.node for e in entries if e.earlier]
    if not done or not plan.is_asked_for:
        return None
    return not_applied(plan.record, earlier_record(passed.model, entries), done)


def _left_out_tables(passed: Passed) -> list[str]:
    """Warns of cells whose recipe requests the tables of Vitis, in a form that has none."""
    cells = [c for c in passed.model.cells.values() if isinstance(c, QuantizedCell) and c.form == QCDQ]
    asking = [c.name for c in cells if any(p.table == VITIS for p in c.points.values())]
    if not asking:
        return []
    text = (
        f"cell {asking[0]!r}{and_more(asking)}: form {QCDQ} has Sigmoid and Tanh in place of the recipe's tables, "
        "so its outputs are not those of the other forms."
    )
    return [explained(text, action=f"--form {INTEGER} for tables in standard operators")]


def _bytes_of_few_bits(plan: Plan, passed: Passed) -> list[str]:
    """Warns of cells whose recipe requests weights of fewer bits than the form stores them in."""
    cells = [c for c in passed.model.cells.values() if isinstance(c, IntegerCell) and plan.form == INTEGER]
    few = {
        c.name: point.bits
        for c in cells
        for point in (c.point(f"{k}.weight") for k in ("R", "W"))
        if stored_bits(point.bits) < BYTE_BITS and (point.group_size or not point.wide_channels)
    }
    if not few:
        return []
    name, bits = next(iter(few.items()))
    text = (
        f"cell {name!r}{and_more([*few])}: form {INTEGER} stores weights of {bits} bits as int8, a byte each, for "
        "MatMulInteger takes no narrower ones: the file is no smaller than with 8 bits."
    )
    return [explained(text, action=f"--form {FUSED}, which packs them and runs in stock onnxruntime, too")]


def warnings_of_measurement(report: Report, *, calibrated: bool) -> list[str]:
    """Warns of a poor SQNR, and of values that are NaN or infinite in only one of the models.

    Args:
        report: The report with the measurements.
        calibrated: Whether ranges already fit the user's data.
    """
    advice = f"{OWN_DATA}{'' if calibrated else CALIBRATE}{REPORT}"
    if report.is_measured_on_calibration:
        advice = f"Resolution: {REPORT}"
    if report.unlike:
        return [f"{report.unlike[0]} Measured on {report.measured_on}. {advice}"]
    # Below what `verify` calls bad; with --rest int8, which can be left out, below what it calls good.
    least = GOOD_DB if report.rest.is_changed else WATCH_DB
    poor = {name: db for name, db in report.sqnr_db.items() if db < least and name not in report.negligible}
    if not poor:
        return [
            f"output {output!r} has an SQNR of {db:.1f} dB in what varies on {report.measured_on}, less than "
            f"{WATCH_DB:g} dB: nearly all of it is its mean, which hides the error. {advice}"
            for output, db in report.varying_db.items() if db < WATCH_DB
        ]  # fmt: skip
    beyond = calibrated and not report.is_measured_on_calibration
    data = f"{report.measured_on}{', which the calibrated ranges need not fit' if beyond else ''}"
    bound = f"{least:g} dB{f' (with --rest int8; without, {WATCH_DB:g})' if report.rest.is_changed else ''}"
    name = min(poor, key=lambda output: poor[output])
    found = report.sqnr_summary if name == report.worst_output else f"{poor[name]:.1f} dB"
    return [f"output {name!r} has an SQNR of {found} on {data}, less than {bound}. {advice}"]
