"""The default sequence of passes, and `lower`, which runs it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.types import CELL_TYPES, LSTM
from rnnqc.data.feeds import Feeds
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, Outcome, Remark, UsageError, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.formats.qonnx import DOMAINS
from rnnqc.ir import FLOAT_TAG, Model, Node, attribute, dtype_of, info, input_or_none
from rnnqc.lowering.lone_steps import hint, states_of_lone_step
from rnnqc.lowering.lowering_report import QONNX, WEIGHT_ONLY, outcomes
from rnnqc.lowering.recovery import in_normal_form
from rnnqc.lowering.report import Entry, Report
from rnnqc.lowering.sizes import contents
from rnnqc.measure.comparison_feeds import (
    CALIBRATION_DATA,
    GENERATED_DATA,
    FeedGenerator,
    Remembered,
    verification_feeds,
)
from rnnqc.measure.measurement import measure as measure_levels
from rnnqc.passes import (
    Cleanup,
    DecomposeLstm,
    FoldScales,
    FuseQuantLstmCell,
    InsertQcdq,
    Instrument,
    LowerQuantOperators,
    Pass,
    PassManager,
    PassResult,
    QuantizeCustomCells,
    QuantizeWeights,
    ReadQuantLstmCell,
    Timing,
    Unroll,
    VerifyNumerics,
    WriteQonnx,
)
from rnnqc.passes.analysis.custom_points import points_of_recurrences
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode, recurrent_nodes
from rnnqc.passes.custom_cells.quantize_custom_cells import CALIBRATE
from rnnqc.passes.formats.override_effects import idle_overrides
from rnnqc.passes.graph.constant_outputs import ACTION as LOST_LAYERS
from rnnqc.passes.graph.constant_outputs import independent_outputs, lost_everything, warning_of
from rnnqc.passes.graph.lstm_node import RECURRENT_OPS, W
from rnnqc.passes.graph.quant_operators import CELL_OP, QUANT_OPS, TRUNC_OP, is_quant, is_quant_lstm, is_trunc
from rnnqc.passes.invariants import Property
from rnnqc.passes.normal_form import normal_form
from rnnqc.passes.normalize.read_weight_codes import has_weight_codes
from rnnqc.passes.normalize.repair_lstm_export import squeezes_wrong_axis
from rnnqc.passes.qcdq.insert_qcdq import points_of_types
from rnnqc.passes.render.unroll import bind_dimensions
from rnnqc.passes.verify.pass_comparison import NOT_COMPARED
from rnnqc.passes.verify.reproducer import check_reproducer
from rnnqc.proto.files import proto_size, serialized, write_atomically
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.recipes.clipping import clipping_warnings
from rnnqc.recipes.recipe import Recipe, load_recipe
from rnnqc.recipes.recipe_record import RECIPE_KEY, RecipeRecord, digest, not_applied, read_record

FORMS = ("fused", "integer", "qcdq")
"""The forms that every recipe has."""
EVERY_FORM = (*FORMS, QONNX)
DEFAULT_RECIPE = "int8"
AS_EXPORTED = "as exported"


@dataclass(frozen=True)
class LowerOptions:
    """What `lower` is asked to do.

    Attributes:
        recipe: Name of a recipe, or a `.toml` file, or a recipe.
        form: "fused" (one node per cell), "integer" (the same arithmetic, inlined), "qcdq" (before folding) or "qonnx"
            (Brevitas' cells, for other tools).
        unroll: Write loops out; the form is "integer" then, unless "qcdq" is asked for.
        dims: Symbolic dimensions to bind.
        overrides: `PATH.KEY=VALUE` in front of the recipe's rules.
        verify: Compare the numerics after every pass.
        reproducer: Folder for the reproducer of a failed comparison.
        measure: Measure the SQNR of every output on generated data of several magnitudes.
        statistics: Of a calibration.
    """

    recipe: str | Recipe = "int8"
    form: str | None = None
    unroll: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    verify: bool = False
    reproducer: Path | None = None
    measure: bool = False
    statistics: Statistics | None = None

    @property
    def resolved_form(self) -> str:
        """The form to produce.

        Raises:
            UsageError: The form is unknown, or contradicts `unroll`.
        """
        if self.form is None:
            return "integer" if self.unroll else "fused"
        if self.form not in EVERY_FORM:
            raise UsageError(f"form {self.form!r}.", supported=", ".join(EVERY_FORM))
        if self.unroll and self.form in ("fused", QONNX):
            raise UsageError(
                f"A cell of form {self.form} holds its loop; it cannot be unrolled.",
                action="use --form integer or --form qcdq",
            )
        return self.form


@dataclass
class Lowered:
    """A lowered model.

    Attributes:
        model: The model.
        report: What was done.
        statistics: Of the calibration, if there was one.
    """

    model: Model
    report: Report
    statistics: Statistics | None = None
    _proto: onnx.ModelProto | None = None

    @property
    def proto(self) -> onnx.ModelProto:
        """The lowered ModelProto."""
        if self._proto is None:
            self._proto = self.model.proto
        return self._proto

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to `path`, atomically."""
        write_atomically(Path(path), serialized(self.proto, os.fspath(path)))


def default_passes(recipe: Recipe, form: str, unroll: bool, statistics: Statistics | None = None) -> list[Pass]:
    """The passes of a lowering, in order."""
    if form == QONNX:
        return [*normal_form(), DecomposeLstm((LSTM.op,)), InsertQcdq(recipe, statistics), WriteQonnx(), Cleanup()]
    given = [*normal_form(), _read(form), LowerQuantOperators()]
    if recipe.kind == WEIGHT_ONLY:
        seen = statistics.points if statistics is not None else {}
        moments = {name: p.second_moment for name, p in seen.items() if p.second_moment is not None}
        return [*given, QuantizeWeights(recipe, moments), Cleanup()]
    custom = QuantizeCustomCells(recipe, statistics, integer=form != "qcdq")
    passes: list[Pass] = [*given, custom, DecomposeLstm(), InsertQcdq(recipe, statistics)]
    if form != "qcdq":
        passes.append(FoldScales(dispatch=not unroll, functions=form == "fused"))
    passes.append(Cleanup())
    if unroll:
        passes += [Unroll(), Cleanup()]
    if form == "fused":
        passes += [FuseQuantLstmCell(), Cleanup()]
    return passes


def _read(form: str) -> ReadQuantLstmCell:
    return ReadQuantLstmCell(integer=form != "qcdq", functions=form == "fused")


def exported_passes(form: str, unroll: bool) -> list[Pass]:
    """The passes for a model that brings its own quantization and gets no other."""
    if form == QONNX:
        return [*normal_form(keep_codes=True), Cleanup()]
    passes: list[Pass] = [
        *normal_form(keep_codes=True),
        _read(form),
        LowerQuantOperators(),
        Cleanup(),
    ]
    if unroll:
        passes += [Unroll(), Cleanup()]
    if form == "fused":
        passes += [FuseQuantLstmCell(), Cleanup()]
    return passes


def brings_its_own(model: Model) -> bool:
    """Whether the model has quantizers, or recurrent layers with weights of few bits, and no cells of rnnqc."""
    nodes = (n for g in model.graphs() for n in g.nodes)
    return not model.cells and any(is_quant_lstm(n) or is_quant(n) or is_trunc(n) or has_weight_codes(n) for n in nodes)


def runnable(model: str | os.PathLike[str] | onnx.ModelProto) -> onnx.ModelProto | None:
    """A model that does not run as Brevitas exports it, with its own quantization, as one that does; else None."""
    try:
        loaded = Model.load(model)
        if brings_its_own(loaded):
            return lower(model).proto
        repair, *others = normal_form(keep_codes=True)
        if not repair(loaded).statistics["squeezes"]:
            return None
        PassManager(others).run(loaded)
    except CompileError:
        return None
    return loaded.proto


@refusing_invalid_models
def executable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model as onnxruntime can run it: what only exports of Brevitas have, if it has any of it, in form qcdq.

    That is the first form in which its cells run, and nearest to what Brevitas does: the reference of comparisons.
    A model with recurrent nodes that onnxruntime refuses for their layout or for float64 is in normal form.
    """
    nodes = [n for block in blocks_of([proto.graph, *proto.functions]) for n in block.node]
    exported = any(n.domain in DOMAINS and n.op_type in (CELL_OP, *QUANT_OPS, TRUNC_OP) for n in nodes)
    if not exported and not any(n.op_type in RECURRENT_OPS for n in nodes):
        return proto
    read = Model.load(proto)
    if any(n.op in RECURRENT_OPS and dtype_of(input_or_none(n, W)) is None for g in read.graphs() for n in g.nodes):
        read.infer_shapes()  # weights that are computed
    in_functions = any(n.op_type in RECURRENT_OPS for b in blocks_of(proto.functions) for n in b.node)
    if not exported and not in_functions and not any(_does_not_run(n) for g in read.graphs() for n in g.nodes):
        return proto
    given = frozenset({Property.CANONICAL, Property.SCALES_FOLDED})
    PassManager(exported_passes("qcdq", unroll=False), given=given).run(read)
    return read.proto


def _does_not_run(node: Node) -> bool:
    """Whether the node is a recurrent one that onnxruntime refuses, and the normal form of which it runs."""
    if node.op not in RECURRENT_OPS or node.domain:
        return False
    refused = attribute(node, "layout", 0) or dtype_of(input_or_none(node, W)) == np.float64
    return bool(refused or (node.op == LSTM.op and squeezes_wrong_axis(node)))


@refusing_invalid_models
def lower(
    model: str | os.PathLike[str] | onnx.ModelProto,
    recipe: str | Recipe | None = None,
    form: str | None = None,
    *,
    calibration: Iterable[Feeds] | str | os.PathLike[str] | None = None,
    stats: Statistics | str | os.PathLike[str] | None = None,
    state: Mapping[str, str] | Iterable[str] | None = None,
    unroll: bool = False,
    dims: Mapping[str, int] | None = None,
    overrides: Iterable[str] = (),
    strict: bool = False,
    verify: bool = False,
    reproducer: str | os.PathLike[str] | None = None,
    measure: bool = False,
    patience: float = math.inf,
    instruments: Sequence[Instrument] = (),
    progress: Callable[[str], None] | None = None,
) -> Lowered:
    """Lowers the recurrent layers of a float model to quantized ones.

    Args:
        model: A path or a ModelProto.
        recipe: Name of a recipe, or a `.toml` file, or a recipe. By default "int8"; but a model with cells that bring
            their own quantization gets no other.
        form: "fused" (default), "integer", "qcdq" or "qonnx".
        calibration: Data to calibrate with: feeds, or the name of an `.npz`, of a directory of `.npz`, or
            `module:function`.
        stats: The statistics of an earlier calibration instead, or their file.
        state: Of calibration data that is the calls of a stream: outputs by the input they become in the next call.
        unroll: Write loops out (needs static sequence lengths).
        dims: Symbolic dimensions to bind, by name.
        overrides: `PATH.KEY=VALUE` in front of the recipe's rules.
        strict: Refuse a model with a recurrent node that stays float, or that another tool has quantized.
        verify: Compare the numerics after every pass with what the pass declares, on generated feeds and some of the
            calibration data.
        reproducer: Folder for the files that reproduce a failed comparison; those of an earlier run are removed.
        measure: Measure the SQNR of every output against the float model, on generated data of several magnitudes
            (`report.sqnr_db` and what follows it). Not by default: who lowers in a program may do so a hundred times,
            and has data to compare on (`compare_models`).
        patience: Measure for so many times as long as the lowering takes, at most; and only what was lowered now.
        instruments: More observers of the passes.
        progress: Called with the name of each pass before it runs.

    Raises:
        CompileError: The model or the options cannot be handled; with `strict`: a recurrent node stays as it is.
        NumericsError: With `verify`: a pass changed more than it declares.
    """
    start = time.perf_counter()
    options = LowerOptions(
        DEFAULT_RECIPE if recipe is None else recipe,
        form,
        unroll,
        dims or {},
        tuple(overrides),
        verify,
        Path(reproducer) if reproducer is not None else None,
        measure,
    )
    chosen, resolved = _recipe_and_form(options)
    if verify and options.reproducer is not None:
        read = (model, calibration, stats)
        check_reproducer(options.reproducer, [os.fspath(p) for p in read if isinstance(p, str | os.PathLike)])
    if verify and isinstance(calibration, Iterable) and not isinstance(calibration, str | os.PathLike | Sequence):
        calibration = Remembered(calibration)
    options = replace(options, statistics=_statistics(model, calibration, stats, state))
    lowering = _Lowering(model, options, chosen, resolved, recipe is not None)
    timing = Timing()
    observers: list[Instrument] = [timing, *instruments, *([_Progress(progress)] if progress is not None else [])]
    report = lowering.report
    with located(report.source):
        lowering.check()
        float_proto = executable(lowering.model.proto) if verify or measure else None
        generator = FeedGenerator(float_proto) if verify and float_proto is not None else None
        verifier = VerifyNumerics([])
        if float_proto is not None and generator is not None:
            verifier = _verifier(float_proto, generator, calibration, state, options.reproducer)
            observers.append(verifier)
        lowering.normalize(observers)
        readable = lowering.model.proto if measure and generator is None and not lowering.own else None
        lowering.quantize(observers)
        lowering.judge()
        lowering.warn()
        report.seconds = timing.seconds
        report.checks, report.verified, report.unverified = verifier.checks, verifier.verified, verifier.unverified
        if strict:
            _refuse_float_nodes(report)
        lowering.record()
        lowered = Lowered(lowering.model, report, options.statistics)
        report.bytes = proto_size(lowered.proto, "The lowered model")
        if report.bytes > report.float_bytes:
            report.contents = contents(lowered.proto)
        if float_proto is not None and measure and (lowering.is_changed or patience == math.inf):
            generator = generator or FeedGenerator(float_proto, readable)
            seconds = patience * (time.perf_counter() - start)
            calibrated = options.statistics is not None
            made = partial(executable, lowered.proto)
            report.take(measure_levels(float_proto, made, generator, seconds, calibrated=calibrated))
    return lowered


class _Lowering:
    """One lowering, step by step: `check`, `normalize`, `quantize`, `judge`, `warn`, `record`.

    Args:
        source: A path or a ModelProto.
        options: What is asked for.
        recipe: With its overrides.
        form: The form to produce, or WEIGHT_ONLY.
        is_named: Whether the recipe was asked for by name; otherwise it is the default.

    Attributes:
        model: The model as it is after the steps so far.
        report: What was done.
        own: Whether the model brings its own quantization and gets no other.
    """

    def __init__(
        self, source: str | os.PathLike[str] | onnx.ModelProto, options: LowerOptions, recipe: Recipe, form: str,
        is_named: bool,
    ) -> None:  # fmt: skip
        self.source, self.options, self.recipe, self.form, self.is_named = source, options, recipe, form, is_named
        self.model = Model.load(source)
        asked = is_named or options.overrides or options.statistics is not None
        self.own = not asked and brings_its_own(self.model)
        name = AS_EXPORTED if self.own else recipe.name
        self.report = Report(self.model.source, name, form, float_bytes=self.model.size)
        self.passes, self._given = self._planned()
        self._nodes: list[RecurrentNode] = []
        self._results: list[PassResult] = []

    def _planned(self) -> tuple[list[Pass], frozenset[Property]]:
        """All passes, and the properties of the model after those of the normal form."""
        if self.own:
            passes = exported_passes(self.form, self.options.unroll)
            return passes, frozenset({Property.CANONICAL, Property.SCALES_FOLDED})
        passes = default_passes(self.recipe, self.form, self.options.unroll, self.options.statistics)
        return passes, frozenset({Property.CANONICAL})

    @property
    def _remarks(self) -> list[Remark]:
        return [r for result in self._results for r in result.remarks]

    @property
    def is_changed(self) -> bool:
        """Whether something was lowered now, and not by an earlier lowering."""
        return any(e.status == "lowered" and not e.earlier for e in self.report.entries)

    def check(self) -> None:
        """Checks the model, and binds its dimensions.

        Raises:
            CompileError: The model cannot be lowered, or not to this form.
        """
        self.report.warnings = _check_outputs(self.model)
        if self.options.statistics is not None:
            self.report.warnings += map(str, self.options.statistics.remarks)
        if self.form != WEIGHT_ONLY:
            _check_forms(self.model, self.form, self.options.unroll)
        if self.options.dims:
            bind_dimensions(self.model, dict(self.options.dims))

    def normalize(self, observers: Sequence[Instrument]) -> None:
        """Runs the passes of the normal form, and compares what they recover with the original."""
        again = partial(_read_bound, self.source, self.options)
        passes = self.passes[: len(normal_form())]
        self.model, self._results, taken_back = in_normal_form(self.model, passes, observers, again, executable)
        self.report.warnings += taken_back
        self._nodes = recurrent_nodes(self.model)

    def quantize(self, observers: Sequence[Instrument]) -> None:
        """Runs the other passes."""
        passes = self.passes[len(normal_form()) :]
        self._results += PassManager(passes, observers, given=self._given).run(self.model)

    def judge(self) -> None:
        """Says what became of every recurrent node, and releases cells that rnnqc does not lower further.

        Raises:
            CompileError: Nothing was lowered for want of calibration data.
        """
        report, model, remarks = self.report, self.model, self._remarks
        report.entries = outcomes(model, self._nodes, remarks, self.form)
        report.notes = [str(r) for r in remarks if r.outcome is Outcome.NOTE]
        if self.options.statistics is None:
            _check_calibrated(report.entries, remarks)
        for entry in report.float_entries if self.own else ():
            if not entry.reason:
                entry.reason = "other layers bring their own quantization, and no recipe was asked for."
                entry.found, entry.action = "no recipe", "--recipe int8 quantizes it"
        if self.form == QONNX:
            for node in (n for g in model.graphs() for n in g.nodes if n.op in CELL_TYPES):
                info(node).metadata.pop(FLOAT_TAG, None)  # another form has cells of it
        # Nothing that rnnqc could lower further: zero points are added before rounding there.
        written = [n for n, c in model.cells.items() if c.op == CELL_OP and c.form == "qcdq"]
        model.release_cells([*written, *(n for n, c in model.cells.items() if c.form == QONNX)], written)

    def warn(self) -> None:
        """Adds the warnings about the result, and about parts of the recipe that have no effect."""
        report, recipe = self.report, self.recipe
        states = {} if report.entries else states_of_lone_step(self.model.proto)
        report.warnings += [hint(states)] if states else []
        report.warnings += [f"recipe {recipe.name!r}: {text}." for text in self._idle_rules()]
        report.warnings += [str(r) for r in self._remarks if r.outcome is Outcome.WARNING]
        report.warnings += [str(r) for r in _unlowered_quantizers(self._remarks)]
        report.warnings += idle_overrides(recipe, [r.effects for r in self._results])
        report.warnings += clipping_warnings(c for r in self._results for c in r.clipped)
        exported = [e.node for e in report.entries if e.op == CELL_OP]
        if exported and not self.own and self.form != QONNX:
            report.warnings.append(
                f"recipe {recipe.name!r} does not apply to {len(exported)} cell(s), the first {exported[0]!r}: "
                "they keep the quantization that they were exported with."
            )

    def _idle_rules(self) -> list[str]:
        """Rules of the recipe that match no point of the model."""
        names = [c for e in self.report.entries for c in e.cells]
        others = points_of_recurrences(self.model) if self.recipe.own else {}
        if not names and not others:
            return []
        known = [self.model.cells[n] for n in names if n in self.model.cells]
        return self.recipe.idle(points_of_types(known) | others if len(known) == len(names) else names)

    def record(self) -> None:
        """Writes into the model how it was lowered; a warning where an earlier lowering was another one."""
        model, options, entries = self.model, self.options, self.report.entries
        seen = digest(options.statistics) if options.statistics is not None else ""
        record = RecipeRecord(self.recipe, self.form, options.unroll, dict(options.dims), seen)
        done = [e for e in entries if e.earlier]
        earlier = read_record(model.metadata, model.source) if done else None
        if done and (self.is_named or options.overrides or seen):
            text = not_applied(record, earlier, [e.node for e in done])
            self.report.warnings += [] if text is None else [text]
        if not self.own and self.is_changed:
            model.metadata[RECIPE_KEY] = record.text
        elif earlier is not None and any(e.cells for e in done):
            dims = {**earlier.dims, **options.dims}
            model.metadata[RECIPE_KEY] = replace(earlier, form=self.form, unroll=options.unroll, dims=dims).text


def _recipe_and_form(options: LowerOptions) -> tuple[Recipe, str]:
    """The recipe with its overrides, and the form to produce.

    Raises:
        CompileError: There is no such recipe.
        UsageError: The recipe has no cells, and a form or `unroll` is given.
    """
    named = options.recipe if isinstance(options.recipe, Recipe) else load_recipe(options.recipe)
    chosen = named.with_overrides(options.overrides)
    if chosen.kind != WEIGHT_ONLY:
        return chosen, options.resolved_form
    if options.form is not None or options.unroll:
        raise UsageError(
            f"Recipe {chosen.name!r} keeps ONNX's recurrent operators; there is no cell to give a form or to unroll.",
            supported="recipes of cells, such as int8",
            action="leave the form out, or choose another recipe",
        )
    return chosen, WEIGHT_ONLY


def _verifier(
    float_proto: onnx.ModelProto,
    generator: FeedGenerator,
    calibration: Iterable[Feeds] | str | os.PathLike[str] | None,
    state: Mapping[str, str] | Iterable[str] | None,
    reproducer: Path | None,
) -> VerifyNumerics:
    """Compares every pass; says which data it cannot compare on."""
    usual, extreme, left_out = verification_feeds(float_proto, generator, calibration, state)
    verifier = VerifyNumerics(usual, reproducer, executable, extreme)
    if generator.refusal is not None:
        verifier.checks.append((GENERATED_DATA, f"{NOT_COMPARED}: {generator.refusal}"))
    if left_out:
        verifier.checks.append((CALIBRATION_DATA, f"{NOT_COMPARED}: {left_out}"))
    return verifier


def _refuse_float_nodes(report: Report) -> None:
    """Raises CompileError where a recurrent node was not lowered."""
    if report.entries_not_lowered:
        raise CompileError(
            f"recurrent nodes {report.how_they_stay}: " + " ".join(e.explanation for e in report.entries_not_lowered),
            supported="models whose recurrent nodes can all be lowered, where strict = True",
            action="see each node's, or leave strict out",
        )


def _read_bound(model: str | os.PathLike[str] | onnx.ModelProto, options: LowerOptions) -> Model:
    """The model that is lowered, as it was given, with its dimensions bound."""
    read = Model.load(model)
    if options.dims:
        bind_dimensions(read, dict(options.dims))
    return read


def _statistics(
    model: str | os.PathLike[str] | onnx.ModelProto,
    calibration: Iterable[Feeds] | str | os.PathLike[str] | None,
    stats: Statistics | str | os.PathLike[str] | None,
    state: Mapping[str, str] | Iterable[str] | None,
) -> Statistics | None:
    if calibration is not None and stats is not None:
        raise UsageError(
            "Both calibration data and statistics are given.", supported="one of the two", action="leave one out"
        )
    if state and calibration is None:
        raise UsageError(
            "States (--state) without calibration data.",
            supported="--state together with --calibration DATA",
            action="leave the states out, or give the data instead of statistics",
        )
    if calibration is not None:
        return calibrate(model, calibration, state=state)
    return stats if stats is None or isinstance(stats, Statistics) else Statistics.load(stats)


def _check_forms(model: Model, form: str, unroll: bool) -> None:
    """Refuses a model whose cells are past the form asked for: passes only go forward."""
    order = ("float", *reversed(EVERY_FORM))
    for cell in model.cells.values():
        if order.index(cell.form) > order.index(form) or (unroll and cell.form == "fused"):
            raise UsageError(
                f"cell {cell.name!r} is lowered already, to form {cell.form}.",
                supported=f"--form {' or '.join(order[order.index(cell.form) :])}",
                action="lower the float model",
            )


def _check_outputs(model: Model) -> list[str]:
    """Refuses a model of which nothing is left but constants; a warning where that concerns some outputs.

    Raises:
        CompileError: No output depends on an input.
    """
    lost = lost_everything(model)
    if lost is not None:
        raise CompileError(
            f"nothing in the model depends on its inputs: the outputs are {lost[1]} ({lost[0]}).",
            supported="models that compute something",
            action=LOST_LAYERS,
        )
    return [warning_of([n]) for n in independent_outputs(model)]


def _unlowered_quantizers(remarks: Sequence[Remark]) -> list[Remark]:
    """What keeps the model from running: quantizers that no pass knows."""
    return [r for r in remarks if r.pass_name == LowerQuantOperators.info.name and r.action]


def _check_calibrated(entries: Sequence[Entry], remarks: Sequence[Remark]) -> None:
    """Refuses a recipe that needs data, without any, if nothing but that keeps a model from being quantized.

    Raises:
        CompileError: With the first point that lacks a scale.
    """
    lacking = [r for r in remarks if r.outcome is Outcome.FLOAT and r.action == CALIBRATE]
    if lacking and all(e.status == "float" for e in entries):
        raise CompileError(
            f'Operator "{lacking[0].op}" (node {lacking[0].node!r}): {lacking[0].reason} Found: {lacking[0].found}.',
            supported="a scale for every point, or calibration data",
            action=lacking[0].action,
        )


class _Progress(Instrument):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def before_pass(self, pass_: Pass, model: Model) -> None:
        self._tell(pass_.info.name)
