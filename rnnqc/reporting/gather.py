"""Measures everything that a report contains."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from rnnqc.calibration.as_lowered import model_as_lowered
from rnnqc.calibration.calibrate import calibrate, prepare
from rnnqc.calibration.samples import Selection, batches
from rnnqc.cells.forms import ON_STORED_WEIGHTS
from rnnqc.codes import Code, all_told, told
from rnnqc.data.binding import bound_like
from rnnqc.data.feeds import Feeds, with_dimensions_of
from rnnqc.data.given_data import open_feeds
from rnnqc.data.state_hints import state_warnings
from rnnqc.data.state_pairs import state_pairs
from rnnqc.data.statistics import Statistics
from rnnqc.data.streaming import Outputs, Piece, checked, stream
from rnnqc.errors import CompileError, located
from rnnqc.formats.quantized_outputs import read_outputs
from rnnqc.ir import Model
from rnnqc.lowering.executable import brings_its_own, executable
from rnnqc.lowering.lowered_before import is_lowered
from rnnqc.lowering.options import REST_FLOAT
from rnnqc.lowering.reports.report import Lowered, Report
from rnnqc.measure.compare import unit_outputs
from rnnqc.measure.feeds import STREAM, generated_feeds
from rnnqc.measure.runs import Calls
from rnnqc.measure.time_axes import output_axes
from rnnqc.passes.normalize.remove_sorting import RemoveSorting
from rnnqc.recipes.clipping import CLIPS
from rnnqc.recipes.recipe_record import RecipeRecord, read_record
from rnnqc.recipes.rules import parse_override
from rnnqc.reporting.description import entries_of, recipe_of, shapes_of, versions
from rnnqc.reporting.evidence import CalibrationGain, Evidence, RestCost
from rnnqc.reporting.layer_times import time_layers
from rnnqc.reporting.layers import layer_evidence, watch_layers, why_hidden
from rnnqc.reporting.origin import (
    APART_DB,
    check_float,
    check_same_recurrences,
    differences,
    distance,
    mismatch,
    same_outputs,
)
from rnnqc.reporting.outputs import output_evidence
from rnnqc.reporting.points import observe_activations
from rnnqc.reporting.subject import Options, Subject
from rnnqc.reporting.weights import weights_evidence
from rnnqc.search.call_times import call_seconds
from rnnqc.search.candidates import Candidates
from rnnqc.search.quality import Quality
from rnnqc.search.recurrences import recurrences_of
from rnnqc.search.relowering import QCDQ, Relowering
from rnnqc.search.repairs import Repairs
from rnnqc.search.sensitivity import Sensitivities, find_sensitivities
from rnnqc.search.trials import Budget, Trials
from rnnqc.timing import environment

Array = npt.NDArray[Any]
LAYERS, POINTS, SENSITIVITY, TIMES = "layers", "points", "sensitivity", "times"
GENERATED = 4
"""The number of generated feeds without states."""
SHARE_OF_GROUPS = 5
"""Overrides of groups get at most one in this many of the models that may be measured."""
OLDER = (
    "the model does not say how it was lowered (metadata rnnqc.recipe): it comes from an earlier version, or another "
    "tool dropped the entry. Lower it again."
)
NO_POINTS = "no layer has quantization points: a recipe chooses the formats of weights alone here."
NOTHING = "no layer of the model was lowered by rnnqc."
OTHER_STATISTICS = (
    "The statistics that the model was calibrated with are not at hand: scales are those of the model, but what else "
    "follows from statistics (error-compensated weights) was made from the data of this report."
)
UNKNOWN_STATISTICS = (
    "the model was calibrated on other data, and made again with statistics of the data of this report it is more than "
    "1 dB apart."
)
ANOTHER = "made again, the model is another one (see the top of this page); what is measured on that says nothing here."
OWN = "the model brings its own quantization; no recipe of rnnqc chose its formats."


def gather(subject: Subject, options: Options | None = None) -> Evidence:
    """Measures everything that a report on `subject` contains.

    Raises:
        CompileError: A model or the data cannot be used.
    """
    return _Gathering(subject, options or Options()).run()


class _Gathering:
    def __init__(self, subject: Subject, options: Options) -> None:
        self.budget = Budget(options.bounds)
        bound = bound_like(subject.float_proto, subject.quant_proto)
        self.subject = subject = replace(subject, float_proto=bound)
        self.options = options
        with located(subject.quant_name):
            self.quant = Model.load(subject.quant_proto)
            self.recurrences = recurrences_of(self.quant)
            self.record = read_record(self.quant.metadata, subject.quant_name)
            candidate = executable(subject.quant_proto)
        with located(subject.float_name):
            if subject.report is None:
                check_float(Model.load(subject.float_proto), subject.float_name)
            reference = executable(subject.float_proto)
            self.state = state_pairs(subject.state, reference)
            self.feeds = self._feeds(reference, candidate)
            if self._missing and options.notify is not None:
                options.notify(self._missing)
            options.tell("running the float model")
            try:
                self.quality = self._quality(reference)
            except CompileError as error:
                if subject.data is None:
                    error.action = "check that the model runs in onnxruntime; give data that fits it with --data"
                raise
        self.reference, self.candidate = reference, candidate
        self.evidence = Evidence(
            subject.float_name,
            subject.quant_name,
            {
                "source": subject.data if isinstance(subject.data, str) else "given" if subject.data else "generated",
                "calls": len(self.feeds),
                "states": [f"{i}:{o}" for i, o in sorted(self.state.items())],
                "inputs": shapes_of(self.feeds),
            },
            versions(),
            recipe_of(self.record, self.quant, subject.calibrated_by),
            sizes={"float_file": subject.float_bytes, "quantized_file": subject.quant_bytes},
        )
        if subject.data is not None:
            odd = state_warnings((reference, candidate), self.state, len(self.feeds))
            self.evidence.warnings += all_told(Code.STATES, odd)

    def _feeds(self, reference: onnx.ModelProto, candidate: onnx.ModelProto) -> list[Feeds]:
        data = self.subject.data
        if data is None:
            sized = with_dimensions_of(reference, candidate)
            return generated_feeds(sized, STREAM if self.state else GENERATED, self.state)
        opened = open_feeds(data, reference, self.state)
        taken = itertools.islice(opened, self.options.samples)
        return list(checked(taken, reference, None, self.state, True, filled=True))

    @property
    def _missing(self) -> str:
        """A sentence on statistics that are missing, or on others than those of the lowering; "" if nothing is."""
        made_with = "" if self.record is None else self.record.statistics
        name, statistics = self.subject.quant_name, self.subject.statistics
        end = "layers and points may not be measured in the end"
        if statistics is None and made_with:
            count = f"{len(self.feeds)} call{'' if len(self.feeds) == 1 else 's'}"
            return (
                f"{name} was calibrated, and --stats is not given: the {count} of the data are calibrated first; if "
                f"they are other data than it was calibrated with, {end}"
            )
        if statistics is not None and statistics.digest != made_with:
            return f"--stats is not what {name} was lowered with: {end}"
        return ""

    def _quality(self, reference: onnx.ModelProto) -> Quality:
        """Runs a float model on the data; its outputs are the reference."""
        return Quality(reference, Calls.of(self.feeds, reference, self.state), sequences=True)

    def run(self) -> Evidence:
        evidence = self.evidence
        outputs = self._outputs()
        if not is_lowered(self.quant):
            evidence.warnings.append(told(Code.NO_LAYER, f"{self.subject.quant_name}: {NOTHING}"))
            return self._without_measurements(NOTHING)
        if self.record is None:
            own = brings_its_own(Model.load(self.subject.float_proto))
            return self._without_measurements(OWN if own else OLDER)
        relowering = self._relowering(self.record)
        self.options.tell("lowering the float model again")
        with located(self.subject.float_name):
            made = relowering.lower()
            check_same_recurrences(self.recurrences, recurrences_of(made.model))
        unlike = self._unlike(made, outputs, relowering.exact)
        if not relowering.exact:
            unknown = unlike == UNKNOWN_STATISTICS
            text = f"Layers, points and overrides were not measured: {unlike}" if unknown else OTHER_STATISTICS
            unlike += f" {self._how_to_give_statistics}" if unknown else ""
            evidence.warnings.append(told(Code.NOT_MEASURED, f"{text} {self._how_to_give_statistics}"))
        if unlike:
            return self._without_measurements(unlike)
        self._describe(self.subject.report or made.report)
        relowering = relowering.in_normal_form()
        self._rest(relowering, made)
        self._calibration(relowering, made)
        self.as_lowered = self._as_lowered(self.record)
        self._layers(relowering)
        # Points are made float one by one; an output that is a float state cannot be quantized.
        self.readable = replace(relowering, quantized_outputs=())
        qcdq = self.readable.lower(form=QCDQ) if relowering.record.form not in ON_STORED_WEIGHTS else None
        if qcdq is None or not any(r.quantized for r in recurrences_of(qcdq.model).values()):
            evidence.missing |= {POINTS: NO_POINTS, SENSITIVITY: NO_POINTS}
            return evidence
        self._points(qcdq)
        self._sensitivities(relowering, made, qcdq)
        if self.options.times:
            self._times(relowering)
        else:
            evidence.missing[TIMES] = "times differ from run to run; they were not asked for (rnnqc report --time)."
        return evidence

    def _outputs(self) -> list[Outputs]:
        """Runs the lowered model and compares its outputs with the float model's."""
        evidence, quality, names = self.evidence, self.quality, (self.subject.float_name, self.subject.quant_name)
        self.options.tell("running the quantized model")
        with located(self.subject.quant_name):
            outputs = quality.outputs(self.candidate)
        axes, unit = output_axes(self.reference), unit_outputs(self.reference)
        given = self.subject.data is not None
        evidence.outputs = output_evidence(quality, outputs, axes, names, unit, given=given)
        evidence.sqnr_db = quality.score(outputs).mean_db
        return outputs

    def _without_measurements(self, reason: str) -> Evidence:
        self.evidence.missing |= {LAYERS: reason, POINTS: reason, SENSITIVITY: reason}
        self._describe(self.subject.report)
        return self.evidence

    def _unlike(self, made: Lowered, outputs: Sequence[Mapping[str, Array]], exact: bool) -> str:
        """Why the second lowering, `made`, cannot stand in for the model at hand; "" if it can."""
        evidence, again = self.evidence, self.quality.outputs(made.proto)
        if same_outputs(outputs, again):
            evidence.remade = "Made again from what it says about itself, the model has the same outputs, bit for bit."
            return ""
        assert evidence.sqnr_db is not None
        apart = self.quality.score(again).mean_db
        evidence.mismatch = mismatch(evidence.float_model, evidence.quantized_model, evidence.sqnr_db, apart, exact)
        changed = differences(self.recurrences, recurrences_of(made.model))
        text = f"Made again from what it says about itself, the model has {apart:.2f} dB"
        evidence.remade = f"{text} (formats that differ: {', '.join(changed) or 'none'})."
        if evidence.mismatch:
            return ANOTHER
        return UNKNOWN_STATISTICS if distance(evidence.sqnr_db, apart) > APART_DB else ""

    def _relowering(self, record: RecipeRecord) -> Relowering:
        statistics = self.subject.statistics
        exact = statistics.digest == record.statistics if statistics is not None else not record.statistics
        sorts = RemoveSorting.info.name in self.quant.provenance
        relowering = Relowering(
            self.subject.float_proto, record, statistics, exact, remove_sorting=sorts,
            quantized_outputs=[*read_outputs(self.quant.metadata)],
        )  # fmt: skip
        if record.statistics and statistics is None:
            made = relowering.statistics = self._statistics(record)
            relowering.exact = made.digest == record.statistics
            if relowering.exact and isinstance(self.subject.data, str) and self.options.samples is None:
                self.evidence.recipe["statistics"] = ["--calibration", self.subject.data, *self._state_words]
        relowering.pin(self.recurrences)
        return relowering

    @property
    def _state_words(self) -> list[str]:
        """The options that carry the states."""
        return [word for text in self.evidence.data["states"] for word in ("--state", text)]

    @property
    def _how_to_give_statistics(self) -> str:
        """Advice for a report without the statistics of a calibration: `lower --calibration` leaves no file of them."""
        recipe, given = self.evidence.recipe, self.evidence.float_model
        words = ["rnnqc", "calibrate", given if Path(given).is_file() else "MODEL", "--data", "DATA"]
        words += self._state_words
        words += [word for name, size in recipe["dims"].items() for word in ("--dim", f"{name}={size}")]
        words += [word for name, value in recipe["bind"].items() for word in ("--bind", f"{name}={value}")]
        return (
            "Report on the data that it was calibrated with (--data DATA), or give the statistics of that data with "
            f"--stats STATS.json; {shlex.join([*words, '-o', 'STATS.json'])} makes them."
        )

    def _describe(self, report: Report | None) -> None:
        evidence = self.evidence
        if report is None:
            entries = entries_of(self.subject.quant_proto)
        else:
            entries = report.entries
            evidence.warnings += report.warnings
        evidence.entries = [asdict(e) for e in entries]
        evidence.sizes["quantized_weights"] = sum(e.bytes for e in entries)
        evidence.sizes["float_weights"] = sum(e.float_bytes for e in entries)

    def _rest(self, relowering: Relowering, made: Lowered) -> None:
        """Measures the cost of int8 weights around the recurrent layers: lowers the model again without them."""
        if not made.report.rest.is_changed:
            return
        self.options.tell("measuring the cost of int8 around the layers")
        plain = relowering.lower(rest=REST_FLOAT)
        before, after = (self.quality.score(self.quality.outputs(m.proto)) for m in (plain, made))
        self.evidence.rest = RestCost(
            before.mean_db, after.mean_db, before.worst_db, after.worst_db,
            made.report.rest.float_bytes, made.report.rest.bytes,
        )  # fmt: skip

    def _calibration(self, relowering: Relowering, made: Lowered) -> None:
        """Measures the gain of calibrating on the data of the report, if the model was lowered without calibration."""
        if self.subject.data is None or relowering.statistics is not None or self.budget.is_late:
            return
        try:
            calibrated = replace(relowering, statistics=self._statistics(relowering.record)).lower()
        except CompileError:  # caused by values that are not finite; other sections show them
            return
        before, after = (self.quality.score(self.quality.outputs(m.proto)) for m in (made, calibrated))
        self.evidence.calibration = CalibrationGain(before.mean_db, after.mean_db, before.worst_db, after.worst_db)

    def _statistics(self, record: RecipeRecord) -> Statistics:
        self.options.tell("calibrating")
        with located(self.subject.float_name):
            return calibrate(
                self.subject.float_proto, self.feeds, state=self.state, dims=record.dims,
                progress=lambda done, total: self.options.tell("calibrating, samples", done, total),
            )  # fmt: skip

    def _layers(self, relowering: Relowering) -> None:
        evidence = self.evidence
        self.options.tell("comparing the layers over time")
        proto, fold = self.as_lowered
        watched = watch_layers(proto, fold=fold)
        quality = self._quality(watched.proto)
        lowered = relowering.lower(model=watched.proto)
        made = quality.outputs(lowered.proto)
        recurrences = recurrences_of(lowered.model)
        evidence.layers = layer_evidence(watched, recurrences, quality, made)
        hidden = why_hidden(watched, recurrences, evidence.layers)
        if hidden:
            evidence.missing[LAYERS] = hidden

    def _as_lowered(self, record: RecipeRecord) -> tuple[onnx.ModelProto, bool]:
        """Returns the float model with the same recurrent layers as the lowered one (see `model_as_lowered`)."""
        model, fold = model_as_lowered(self.subject.float_proto, record.dims, {})
        return (model.proto if fold else self.subject.float_proto), fold

    def _points(self, qcdq: Lowered) -> None:
        with located(self.subject.float_name):
            proto, fold = self.as_lowered
            found = weights_evidence(Model.load(proto), qcdq, fold=fold)
            self.options.tell("comparing every quantized value")
            task = prepare(Model.load(proto), self.state, False, fold=fold).task
            pieces: Iterable[Piece] = (
                stream(self.feeds, self.subject.float_proto, self.state, None)
                if self.state
                else batches(self.feeds, task.axes, Selection(), task.rows)
            )
            found += observe_activations(
                task, self._told("comparing every quantized value, calls", pieces), recurrences_of(qcdq.model)
            )
        found.sort(key=lambda p: (-p.clipped if p.clipped > CLIPS else 0.0, p.sqnr_db, p.point))
        self.evidence.points = found

    def _told(self, stage: str, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yields `pieces` and reports progress for each."""
        for count, piece in enumerate(pieces):
            self.options.tell(stage, count)
            yield piece

    def _sensitivities(self, relowering: Relowering, made: Lowered, qcdq: Lowered) -> None:
        evidence, options = self.evidence, self.options

        def told(done: int, total: int) -> None:
            options.tell("measuring what each quantized value costs, models", done, total)

        quality, seen = self.quality, {p.point: p for p in evidence.points}
        own = Trials(lambda rules: relowering.lower(rules, pinned=False), quality)
        float_points = Trials(lambda rules: self.readable.lower(rules, QCDQ), quality, optimize=False)
        calibrated = relowering.statistics is not None
        candidates = Candidates(relowering.record.recipe, recurrences_of(made.model), seen, calibrated)

        def tried(count: int) -> None:
            options.tell("trying overrides, models", count)

        budget = self.budget
        repairs = Repairs(own, own.measured(made), candidates, budget, tried)
        kept = min(repairs.most_of_many, options.bounds.models // SHARE_OF_GROUPS)
        base, points = float_points.measured(qcdq), recurrences_of(qcdq.model)
        self._take(find_sensitivities(float_points, base, points, budget, kept, told))
        options.tell("trying overrides")
        few = repairs.of_few(evidence.sensitivities)
        found = [*few, *repairs.of_many(evidence.sensitivities, few)]
        evidence.untried = repairs.untried
        evidence.repairs = repairs.apart(found)
        evidence.together = repairs.together(found)

    def _take(self, found: Sensitivities) -> None:
        evidence = self.evidence
        evidence.base_sqnr_db = found.base_db
        evidence.sensitivities = found.measured
        evidence.unmeasured = found.left
        for why, refused in itertools.groupby(sorted(found.refused.items(), key=_reason), key=_reason):
            names = ", ".join(sorted(points for points, _ in refused))
            text = f"Not measured, because it cannot be float alone: {names} ({why})."
            evidence.warnings.append(told(Code.NOT_MEASURED, text))

    def _times(self, relowering: Relowering) -> None:
        self.options.tell("measuring times")
        self._times_of_repairs(relowering)
        layers = {r.node for r in self.recurrences.values()}
        self.evidence.times = time_layers(self.subject.float_proto, relowering, layers, self.quality.calls.feeds[0])
        self.evidence.versions |= {"cpu": environment()["cpu"]}
        if not self.evidence.times:
            self.evidence.missing[TIMES] = "no recurrent node or loop of the main graph can be measured alone."

    def _times_of_repairs(self, relowering: Relowering) -> None:
        """Measures the time of a call with each override."""
        evidence = self.evidence
        together = [] if evidence.together is None else [evidence.together]
        tried = [*evidence.repairs, *together]
        rules = [[parse_override(o) for o in r.overrides] for r in tried]
        models = [relowering.lower(r, pinned=False).proto for r in ([], *rules)]
        before, *after = (1e6 * s for s in call_seconds(models, self.quality.calls.feeds[0]))
        timed = [replace(r, call_us=(before, s)) for r, s in zip(tried, after, strict=True)]
        evidence.repairs = timed[: len(evidence.repairs)]
        evidence.together = timed[-1] if together else None


def _reason(refused: tuple[str, str]) -> str:
    """Returns why points cannot be float, without the name of the point."""
    reason = refused[1].rpartition(": ")[2].rstrip(".")
    following = re.match(r"same_as = '[^']*'", reason)
    return f"others take their formats from it by {following[0]}" if following else reason
