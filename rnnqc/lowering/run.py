"""Run: runs the passes of a plan. Recovered layers are compared with the original, and `verify` compares every pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.forms import QCDQ, QONNX
from rnnqc.cells.types import CELL_TYPES
from rnnqc.errors import Outcome, Remark
from rnnqc.ir import FLOAT_TAG, Model, info
from rnnqc.lowering.executable import executable
from rnnqc.lowering.plan import Plan
from rnnqc.lowering.recovery import in_normal_form
from rnnqc.lowering.stages import FIND, QUANTIZE, REST, WRITE, Stage, Tell, nothing
from rnnqc.lowering.verification_feeds import CALIBRATION_DATA, GENERATED_DATA, verification_feeds
from rnnqc.measure.feeds import FeedGenerator
from rnnqc.passes import Instrument, PassManager, PassResult, Timing, VerifyNumerics
from rnnqc.passes.analysis.elementwise_recurrences import ElementwiseRecurrence, elementwise_recurrences
from rnnqc.passes.analysis.exported_weights import ExportedWeight, exported_weights
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode, recurrent_nodes
from rnnqc.passes.analysis.rest_weights import RestWeight, rest_weights
from rnnqc.passes.base import Pass
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.passes.rest.fold_weights import FoldWeights
from rnnqc.passes.rest.int8_weights import chosen_weights
from rnnqc.passes.rest.quantize_embeddings import QuantizeEmbeddings
from rnnqc.passes.verify.pass_comparison import NOT_COMPARED
from rnnqc.recipes.recipe import Recipe


@dataclass
class Reference:
    """The float model to compare with, and its generator of inputs, which is made once.

    Attributes:
        proto: The model as onnxruntime runs it.
        readable: The model in normal form, if available.
        known: The generator, once there is one.
    """

    proto: onnx.ModelProto
    readable: onnx.ModelProto | None = None
    known: FeedGenerator | None = None

    @property
    def generator(self) -> FeedGenerator:
        """The generator of inputs; free dimensions have sizes that the model runs with."""
        if self.known is None:
            self.known = FeedGenerator(self.proto, self.readable)
        return self.known


@dataclass(frozen=True)
class Passed:
    """The result of the passes of a plan.

    Attributes:
        model: The model after all passes.
        cells: Its cells, including those released because rnnqc lowers them no further.
        nodes: The recurrent nodes of the normal form.
        rest: The float weights outside the recurrent layers, before any of them is quantized.
        rest_left: Those of them that are float after all passes.
        results: The results of the passes, in order.
        recovery_warnings: Layers whose recovery was undone, or could not be compared.
        seconds: Time of each pass.
        verifier: Has compared every pass if `verify` is set; otherwise compared none.
        reference: The float model, if `measure` is set and the model is not too large for a session.
        elementwise: Recurrences of the normal form without matrices, which stay float.
        exported: Operators outside the recurrent layers whose weights were already quantized.
    """

    model: Model
    cells: Mapping[str, Cell]
    nodes: Sequence[RecurrentNode]
    rest: Sequence[RestWeight]
    rest_left: Sequence[RestWeight]
    results: Sequence[PassResult]
    recovery_warnings: Sequence[str]
    seconds: list[tuple[str, float]]
    verifier: VerifyNumerics
    reference: Reference | None = None
    elementwise: Sequence[ElementwiseRecurrence] = ()
    exported: Sequence[ExportedWeight] = ()

    @property
    def remarks(self) -> list[Remark]:
        """The remarks of all passes."""
        return [r for result in self.results for r in result.remarks]

    def remarks_of(self, outcome: Outcome) -> list[Remark]:
        """Returns the remarks of all passes with one outcome."""
        return [r for r in self.remarks if r.outcome is outcome]


def run(plan: Plan, instruments: Sequence[Instrument] = (), tell: Tell = nothing) -> Passed:
    """Runs the passes on the plan's model.

    Args:
        plan: The plan of the lowering.
        instruments: Observers of the passes.
        tell: Called with the stage that begins or goes on.

    Raises:
        CompileError: A pass cannot handle the model.
        NumericsError: With `verify`: a pass changed more than it declares.
    """
    options, timing = plan.options, Timing()
    compares = options.verify or (options.measure and not plan.is_too_large)
    reference = Reference(executable(plan.model.proto)) if compares else None
    verifier = _verifier(plan, reference) if options.verify and reference is not None else None
    observers = [timing, *instruments, *([] if verifier is None else [verifier])]

    def at(stage: str) -> list[Instrument]:
        return [Stage(tell, f"{stage}, checking every pass" if options.verify else stage), *observers]

    exported = exported_weights(plan.model)
    model, results, warnings = _normalize(plan, at(FIND), reference)
    nodes, elementwise = recurrent_nodes(model), elementwise_recurrences(model)
    tables = _FloatTables(plan.recipe)
    results += PassManager(plan.passes, [*at(QUANTIZE), tables], given=plan.given).run(model)
    rest = chosen_weights(model, plan.recipe) if plan.rest_passes else rest_weights(model)
    rest = [*tables.stored, *(w for w in rest if all(w.value is not t.value for t in tables.stored))]
    rest = [tables.as_given(w) for w in rest]
    results += PassManager(plan.rest_passes, at(REST), given=plan.given).run(model)
    rest_left = chosen_weights(model, plan.recipe) if plan.rest_passes else rest
    results += PassManager(plan.output_passes, at(WRITE), given=plan.given).run(model)
    results += PassManager(plan.last_passes, at(WRITE), given=plan.given).run(model)
    cells = model.cells
    _release_finished_cells(model, plan.form)
    measured = reference if options.measure else None
    verified = verifier or VerifyNumerics([])
    return Passed(
        model, cells, nodes, rest, rest_left, results, warnings, timing.seconds, verified, measured,
        elementwise, exported,
    )  # fmt: skip


class _FloatTables(Instrument):
    """Keeps the float weights that `QuantizeEmbeddings` stores as int8 rows, as they were before.

    Args:
        recipe: Its rules may leave weights float.

    Attributes:
        stored: These weights, with all operators that read them.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._before: list[RestWeight] = []
        self._given: dict[tuple[str, ...], RestWeight] = {}
        self.stored: list[RestWeight] = []

    def as_given(self, weight: RestWeight) -> RestWeight:
        """Returns a weight as it was before its operators became float32 ones: its size in the file given."""
        given = self._given.get(_readers(weight))
        return given if given is not None and given.shape == weight.shape else weight

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Keeps the weights."""
        if isinstance(pass_, FoldWeights) and not self._given:
            self._given = {_readers(w): w for w in chosen_weights(model, self._recipe)}
        if isinstance(pass_, QuantizeEmbeddings):
            self._before = chosen_weights(model, self._recipe)

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Keeps those of them that are stored now."""
        self.stored += [w for w in self._before if any(u.path in result.stored for u in w.uses)]
        self._before = []


def _readers(weight: RestWeight) -> tuple[str, ...]:
    """The operators that read a weight, in any order."""
    return tuple(sorted(f"{u.path} {u.operand}" for u in weight.uses))


def _normalize(
    plan: Plan, observers: Sequence[Instrument], reference: Reference | None
) -> tuple[Model, list[PassResult], list[str]]:
    """Returns the model in normal form, the results of the passes, and warnings; completes the reference."""
    made = reference.known if reference is not None else None
    model, results, warnings, generator = in_normal_form(plan, observers, made)
    if reference is not None and made is None and not plan.keeps_own:  # otherwise its weights are still quantized
        reference.known, reference.readable = generator, model.proto if generator is None else None
    return model, results, warnings


def _release_finished_cells(model: Model, form: str) -> None:
    """Turns cells that rnnqc lowers no further into ordinary operators; these add zero points before rounding."""
    if form == QONNX:
        for node in (n for g in model.graphs() for n in g.nodes if n.op in CELL_TYPES):
            info(node).metadata.pop(FLOAT_TAG, None)  # another form has cells of it
    exported = [n for n, c in model.cells.items() if c.op == CELL_OP and c.form == QCDQ]
    model.release_cells([*exported, *(n for n, c in model.cells.items() if c.form == QONNX)], exported)


def _verifier(plan: Plan, reference: Reference) -> VerifyNumerics:
    """Returns the verifier of every pass; its checks name the data on which it cannot compare."""
    options, generator = plan.options, reference.generator
    usual, extreme, left_out = verification_feeds(reference.proto, generator, options.calibration, options.state)
    verifier = VerifyNumerics(usual, options.reproducer, executable, extreme)
    if generator.refusal is not None:
        verifier.checks.append((GENERATED_DATA, f"{NOT_COMPARED}: {generator.refusal}"))
    if left_out:
        verifier.checks.append((CALIBRATION_DATA, f"{NOT_COMPARED}: {left_out}"))
    return verifier
