"""Plan: chooses recipe, form and passes, and checks that the model can be lowered, before any pass runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.forms import EVERY_FORM, FLOAT, FUSED, ON_STORED_WEIGHTS
from rnnqc.data.binding import bound_model, bound_values
from rnnqc.data.given_data import is_array
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, UsageError, located
from rnnqc.ir import Model
from rnnqc.lowering.executable import brings_its_own
from rnnqc.lowering.options import REST_INT8, LowerOptions
from rnnqc.lowering.verification_feeds import Remembered
from rnnqc.measure.time_axes import fixed_lengths
from rnnqc.passes import Pass
from rnnqc.passes.analysis.rows_of_layers import dimensions_to_bind
from rnnqc.passes.graph.constant_outputs import ACTION, independent_outputs, lost_everything
from rnnqc.passes.graph.float16_products import transposed_float16_products
from rnnqc.passes.graph.training_mode import training_dropouts
from rnnqc.passes.invariants import Property
from rnnqc.passes.pipeline import (
    EXPORTED,
    NORMAL_FORM,
    last_passes,
    normal_form,
    output_passes,
    own_passes,
    quantizes_custom_cells,
    recipe_passes,
    rest_passes,
    rest_weight_passes,
)
from rnnqc.passes.rest.int8_weights import Int8Weights
from rnnqc.passes.verify.reproducer import check_reproducer
from rnnqc.proto.files import LARGEST_FILE
from rnnqc.proto.given import Given
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.recipe_record import RECIPE_KEY, RecipeRecord, read_record

AS_EXPORTED = "as exported"
"""Stands in place of a recipe name."""


@dataclass(frozen=True)
class Plan:
    """The decisions of a lowering.

    Attributes:
        source: The model as it was given.
        options: The arguments of `lower`; calibration data can be read again if passes are verified on it.
        recipe: The recipe with its overrides.
        form: The form to produce, or WEIGHT_ONLY.
        statistics: The statistics of the calibration, if there is one.
        model: The model with its dimensions bound. Running the plan changes it.
        is_asked_for: Whether a recipe, overrides or calibration data request a quantization.
        keeps_own: Whether the model brings its own quantization and keeps it.
        normal_form: The passes to the normal form.
        passes: The passes after it, with those for embeddings.
        rest_passes: After those, the passes for the other weights around the recurrent layers.
        output_passes: After those, the passes for outputs that become quantized.
        last_passes: After those, the passes for operators that only move elements.
        given: Properties that hold after the normal form.
        constant_outputs: Names of outputs that no input influences.
        dropouts: Paths of Dropout nodes in training mode.
        fatal: Paths of nodes that crash onnxruntime.
        fixed_lengths: A sentence for each output whose declared length is fixed although it is dynamic.
        asked_dims: The dimensions that the caller binds; `options` also has those that their layers need equal.
    """

    source: Given
    options: LowerOptions
    recipe: Recipe
    form: str
    statistics: Statistics | None
    model: Model
    is_asked_for: bool
    keeps_own: bool
    normal_form: Sequence[Pass]
    passes: Sequence[Pass]
    rest_passes: Sequence[Pass]
    output_passes: Sequence[Pass]
    last_passes: Sequence[Pass]
    given: frozenset[Property]
    constant_outputs: Sequence[str]
    dropouts: Sequence[str]
    fatal: Sequence[str]
    fixed_lengths: Sequence[str]
    asked_dims: Collection[str] = ()

    @property
    def is_too_large(self) -> bool:
        """Whether the model with its external data has more bytes than a session takes in memory."""
        return self.model.size > LARGEST_FILE

    @cached_property
    def record(self) -> RecipeRecord:
        """The metadata of a model that is lowered as planned."""
        seen = self.statistics.digest if self.statistics is not None else ""
        options = self.options
        origin = read_record({RECIPE_KEY: self.recipe.origin}, self.recipe.name) if self.recipe.origin else None
        if origin is not None and origin.statistics == seen:
            return replace(origin, form=self.form, unroll=options.unroll, dims=dict(options.dims), rest=options.rest)
        return RecipeRecord(self.recipe, self.form, options.unroll, dict(options.dims), seen, options.rest)

    def read(self) -> Model:
        """Loads the model again, as it was before any pass."""
        return bound_model(self.source, self.options.dims, self.options.bind)


def make_plan(source: Given, options: LowerOptions, tell: Callable[[str], None] | None = None) -> Plan:
    """Chooses recipe, form and passes, and calibrates.

    Args:
        source: The model.
        options: How to lower it.
        tell: Called with the progress of a calibration.

    Raises:
        CompileError: The model cannot be lowered, or not to this form.
        UsageError: The options contradict each other.
    """
    recipe, form = options.recipe_and_form()
    options.check_rest(form)
    options.check_outputs(form)
    unroll = options.unroll
    asked = frozenset(options.dims)
    options = _with_checked_data(source, options)
    options = replace(options, dims=dimensions_to_bind(source, options.dims, options.bind, normal_form()))
    model = bound_model(source, options.dims, options.bind)
    with located(model.source):  # before a calibration, which may take minutes
        _refuse_constants(model)
        if form not in ON_STORED_WEIGHTS:
            _refuse_later_forms(model, form, unroll)
        constant_outputs, dropouts = independent_outputs(model), training_dropouts(model)
        lengths = fixed_lengths(model)
    statistics = _statistics(source, options, recipe, model.source, tell)
    is_asked_for = options.recipe is not None or bool(options.overrides) or statistics is not None
    keeps_own = not is_asked_for and brings_its_own(model)
    recipe = replace(recipe, rest=options.rest == REST_INT8)
    fold, scans = bool(options.dims or bound_values(model.metadata)), quantizes_custom_cells(recipe, form)
    weights = Int8Weights(recipe) if recipe.rest else None
    passes = (
        own_passes(form, unroll, weights) if keeps_own else recipe_passes(recipe, form, unroll, statistics, weights)
    )
    return Plan(
        source, options, recipe, form, statistics, model, is_asked_for, keeps_own,
        normal_form=normal_form(
            keep_codes=keeps_own, fold=fold, remove_sorting=options.remove_sorting, scans=scans
        ),
        passes=[*passes, *(rest_weight_passes(recipe) if recipe.rest else [])],
        rest_passes=rest_passes(weights, recipe, form, statistics) if weights is not None else (),
        output_passes=output_passes(options.quantized_outputs) if options.quantized_outputs else (),
        last_passes=last_passes(form),
        given=EXPORTED if keeps_own else NORMAL_FORM,
        constant_outputs=constant_outputs,
        dropouts=dropouts,
        fatal=transposed_float16_products(model),
        fixed_lengths=lengths,
        asked_dims=asked,
    )  # fmt: skip


def _with_checked_data(source: Given, options: LowerOptions) -> LowerOptions:
    """Makes calibration data readable again for comparisons, and checks that the reproducer overwrites no input.

    Raises:
        UsageError: It would.
    """
    if not (options.verify or options.measure):
        return options
    if options.reproducer is not None:
        read = (source, options.calibration, options.statistics)
        check_reproducer(options.reproducer, [os.fspath(p) for p in read if isinstance(p, str | os.PathLike)])
    data = options.calibration
    if isinstance(data, Iterable) and not (is_array(data) or isinstance(data, str | os.PathLike | Sequence | Mapping)):
        return replace(options, calibration=Remembered(data))
    return options


def _statistics(
    source: Given, options: LowerOptions, recipe: Recipe, name: str, tell: Callable[[str], None] | None
) -> Statistics | None:
    """Returns the statistics to lower with: given ones, those of a calibration, or those of a formats file.

    Messages about a calibration call the model `name`.

    Raises:
        UsageError: Both are given, states without data, or a batch that is not that of the statistics.
        CompileError: The data does not fit the model.
    """
    given = options.statistics
    if given is None and options.calibration is None:
        given = recipe.statistics or None
    if options.calibration is not None and given is not None:
        raise UsageError(
            "Both calibration data and statistics are given.", supported="one of the two", action="leave one out"
        )
    if options.state and options.calibration is None:
        raise UsageError(
            "States (--state) without calibration data.",
            supported="--state together with --calibration DATA",
            action="leave the states out, or give the data instead of statistics",
        )
    if options.calibration is not None:
        start = time.monotonic()

        def told(done: int, total: int | None) -> None:
            if tell is not None:
                seconds = (time.monotonic() - start) / max(1, done) * ((total or 0) - done)
                left = f", about {seconds:.0f} s left" if seconds > 0 else ""
                tell(f"calibrating, {done}{f' of {total}' if total else ''} samples done{left}")

        with located(name):
            return calibrate(
                source, options.calibration, state=options.state, batch=options.batch, progress=told,
                dims=options.dims, bind=options.bind,
            )  # fmt: skip
    statistics = Statistics.of(given)
    if options.batch is not None:
        if options.statistics is None or statistics is None:
            raise UsageError(
                f"A batch (--batch {options.batch}) without calibration.",
                supported="a batch together with calibration data or statistics",
                action="leave the batch out, or add --calibration DATA",
            )
        statistics.check_batch(options.batch)
    return statistics


def _refuse_constants(model: Model) -> None:
    """Raises CompileError for a model in which no output depends on an input."""
    lost = lost_everything(model)
    if lost is not None:
        raise CompileError(
            f"nothing in the model depends on its inputs: the outputs are {lost[1]} ({lost[0]}).",
            supported="models that compute something",
            action=ACTION,
        )


def _refuse_later_forms(model: Model, form: str, unroll: bool) -> None:
    """Raises UsageError for a cell that is past the requested form: passes only go forward."""
    order = (FLOAT, *reversed(EVERY_FORM))
    for cell in model.cells.values():
        if order.index(cell.form) > order.index(form) or (unroll and cell.form == FUSED):
            raise UsageError(
                f"cell {cell.name!r} is lowered already, to form {cell.form}.",
                supported=f"--form {' or '.join(order[order.index(cell.form) :])}",
                action="lower the float model",
            )
