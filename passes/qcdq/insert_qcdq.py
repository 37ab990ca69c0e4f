"""Inserts the quantizers of a recipe into decomposed cells."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.stages import QuantizedCell
from rnnqc.data.statistics import Statistics, weights_digest
from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import PointFormat
from rnnqc.ir import Graph, Model
from rnnqc.passes.analysis.custom_points import points_of_recurrences
from rnnqc.passes.analysis.rest_weights import rest_points
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.boundary import Boundary, boundaries_of
from rnnqc.passes.cells.cell_graphs import (
    chain_input,
    chain_sources,
    given_format,
    graphs_of_cells,
    parameters_of,
    replace_cell,
    taken_format,
    taken_rows,
)
from rnnqc.passes.cells.float_arithmetic import FloatArithmetic
from rnnqc.passes.cells.loop_driver import emit_cell
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.fold.integer_forms import bound_to_exceed, loses_states
from rnnqc.passes.formats.cut_weights import cut_weights
from rnnqc.passes.formats.derived_formats import Points as FormatsOfCell
from rnnqc.passes.formats.derived_formats import targets_of
from rnnqc.passes.formats.equalize_inputs import channel_scales, equalize_input, wanted
from rnnqc.passes.formats.formats import resolve_formats
from rnnqc.passes.formats.limit_shifts import ShiftRemark, limit_shifts
from rnnqc.passes.formats.override_effects import Resolution, check_overrides, effects_of_overrides, points_of_types
from rnnqc.passes.formats.quantized_parameters import (
    QuantizedParameters,
    SaturatedBias,
    quantize_parameters,
)
from rnnqc.passes.formats.shared_weights import merge_for_shared_weights
from rnnqc.passes.formats.trained_weights import quantized_again
from rnnqc.passes.invariants import Property
from rnnqc.passes.qcdq.check_insert_qcdq import InsertQcdqCheck
from rnnqc.passes.qcdq.emit_qcdq import QuantizedWeight, emit_flags, hidden_splitter, qcdq_quantizer, whole_quantizer
from rnnqc.passes.qcdq.resolution import PARAMETERS, written_of
from rnnqc.recipes.clipping import find_clipping
from rnnqc.recipes.keys import Settings
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.resolved import ResolvedPoint

Arrays = Mapping[str, npt.NDArray[np.float32]]
USUAL_BITS = 6  # a recipe with fewer at some point guarantees no SQNR


class InsertQcdq(Pass):
    """Quantizes every quantization point of every cell by the recipe.

    Before: `MatMul(h, R)`; after: `MatMul(h -> QuantizeLinear -> DequantizeLinear, quantized R -> DequantizeLinear)`,
    and so on for the input, W, pre-activations and cell state.

    * A point whose `bits` are none stays float; a cell with no quantized point is unchanged.
    * A layer's input that consists only of hidden states of other cells, moved by Squeeze, Transpose, Reshape, Concat
      and the like, gets their number format: the quantized values can pass unchanged (recipe key `chain`). So does one
      that consists of the int8 rows of an embedding, instead of a scale for each row: it needs no quantizer.
    * Fix positions between which hardware cannot shift are lowered, with a note (recipe key `shift_limits`).
    """

    info = PassInfo(
        name="insert-qcdq",
        summary="insert the recipe's quantizers at every quantization point",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CELLS_DECOMPOSED}),
        sets=frozenset({Property.CELLS_QUANTIZED}),
    )

    def __init__(self, recipe: Recipe, statistics: Statistics | None = None, *, integer: bool = True) -> None:
        """Creates a pass with the formats of `recipe`.

        Args:
            recipe: Rules and overrides.
            statistics: Statistics of a calibration.
            integer: Whether the cells later get integer arithmetic: only then the whole format affects the file.
        """
        self.recipe = recipe
        self.statistics = statistics
        self.integer = integer

    def run(self, model: Model) -> PassResult:
        """Resolves the recipe for every float cell and rewrites the cell."""
        cells = [c for c in model.cells.values() if type(c) is Cell and c.name not in model.kept]
        self._check(model, cells)
        graphs = graphs_of_cells(model)
        seen = self.statistics
        if seen is not None:
            seen = merge_for_shared_weights(seen, {c.name: parameters_of(model, c) for c in cells})
        effects = self._effects(model, graphs, cells, seen)
        stale = self._stale(model, cells)
        statistics = self._equalized(model, graphs, cells, seen)
        cells = [model.cells[c.name] for c in cells]
        arrays = {c.name: parameters_of(model, c) for c in cells}
        formats = resolve_formats(cells, self.recipe, arrays, statistics)
        given, notes = with_formats(model, graphs, cells, formats)
        remarks = [*stale, *(self._of_shift(*note) for note in notes)]
        clipped = find_clipping(
            self.recipe,
            _by_path(formats),
            statistics,
            activations_of(cells),
            lambda recipe: _by_path(resolve_formats(cells, recipe, arrays, statistics)),
        )
        boundaries = boundaries_of(model, graphs, cells)
        given_inputs = {name: given_format(at.x) for name, at in boundaries.items()}
        made: list[QuantizedCell] = []
        for cell in cells:
            quantized = given.get(cell.name)
            remark = self._of_kept(model, cell, quantized)
            if quantized is not None and remark is None:
                parameters = quantize_parameters(quantized, arrays[cell.name], statistics)
                at = boundaries[cell.name]
                remark = self._quantize(model, graphs[cell.name], quantized, at, arrays[cell.name], parameters)
                remarks += [self._of_bias(cell, b) for b in parameters.saturated]
                remarks += self._of_given_input(quantized, given_inputs[cell.name])
                remarks += self._of_given_weights(quantized, arrays[cell.name], parameters)
                made.append(quantized)
            remarks += [] if remark is None else [remark]
        widths = [p.bits for c in made for p in c.points.values() if p.bits is not None]
        saturating = any(not c.point("accumulator").is_float for c in made)
        # There is no guarantee for data outside the calibrated ranges.
        usual = all(bits >= USUAL_BITS for bits in widths) and not saturating and self.statistics is None
        numerics = Lossy(10.0) if usual else None
        counts = {"cells": len(made)}
        said = {c.name: self._settings(c, self.recipe) for c in made}
        resolved = {
            f"{c.name}.{p}": ResolvedPoint(said[c.name][p], point) for c in made for p, point in c.points.items()
        }
        return PassResult(
            bool(made), tuple(remarks), counts, numerics, clipped=tuple(clipped), effects=effects, formats=resolved
        )

    def _settings(self, cell: Cell, recipe: Recipe) -> dict[str, Settings]:
        """The settings of a recipe for the points of a cell."""
        return recipe.settings_of_points(
            cell.name, [p.name for p in cell.type.points], functools.partial(targets_of, cell)
        )

    def _check(self, model: Model, cells: Sequence[Cell]) -> None:
        """Raises UsageError for overrides that match nothing, and CompileError for statistics of another model."""
        if self.recipe.overrides:
            known = points_of_types(cells) | points_of_recurrences(model)
            if known:
                check_overrides(self.recipe, known, rest_points(model, self.recipe))
        if cells and self.statistics is not None:
            self.statistics.check_fits(cells)

    def _stale(self, model: Model, cells: Sequence[Cell]) -> list[Remark]:
        """The remark about statistics that were measured with other weights."""
        if self.statistics is None:
            return []
        weights = {c.name: weights_digest(parameters_of(model, c)) for c in cells}
        others = self.statistics.of_other_weights(weights)
        if not others:
            return []
        cell = model.cells[others[0]]
        return [
            self.remark(
                Outcome.WARNING,
                cell.node,
                cell.op,
                f"the statistics were measured with other weights of {len(others)} of {len(cells)} layers: they may be "
                "worse than none.",
                self.statistics.source or "statistics of a model of the same sizes",
                "calibrate this model",
            )
        ]

    def _of_kept(self, model: Model, cell: Cell, quantized: QuantizedCell | None) -> Remark | None:
        """Why the cell stays float, which is also recorded in the model; None if it is quantized."""
        if quantized is None:
            reason, found = "the recipe needs calibration data, and none reached it.", "no statistics"
            action = "calibrate with data that runs it, or choose a recipe that needs none"
        elif quantized.is_float:
            reason, found = "the recipe quantizes nothing in it.", "bits = none at every quantization point"
            action = "choose another recipe, or give points bits with --set"
        else:
            return None
        model.kept[cell.name] = reason
        return self.remark(Outcome.FLOAT, cell.node, cell.op, reason, found, action)

    def _quantize(
        self,
        model: Model,
        graph: Graph,
        cell: QuantizedCell,
        at: Boundary,
        arrays: Arrays,
        parameters: QuantizedParameters,
    ) -> Remark | None:
        """Rewrites one cell with resolved formats; returns a warning if its initial states may saturate."""
        remark = None
        weights = _stored_weights(model, graph, cell, parameters)
        for key, array in parameters.biases.items():
            if array is not arrays[key]:
                name = model.add_initializer(f"{cell.name}/{key}.quantized", array).name
                cell = replace(cell, **{key: name})
        quantizer, split = qcdq_quantizer(cell, weights), None
        bound = bound_to_exceed(model, cell, at.initial_h)
        if bound and loses_states(cell, {**arrays, **parameters.codes, **parameters.biases}):
            remark = self._of_saturating_states(cell, bound)
        elif bound:
            split = hidden_splitter(cell.points, bound)
            quantizer = whole_quantizer(quantizer, cell.points, split) if cell.type.reads_hidden else quantizer
        emitted = emit_cell(model, cell, at, FloatArithmetic(quantizer, split=split, **emit_flags(cell)))
        replace_cell(model, graph, cell, emitted.nodes)
        w, r = (weights[p].codes.name if p in weights else n for p, n in (("W.weight", cell.W), ("R.weight", cell.R)))
        model.cells[cell.name] = replace(cell, W=w, R=r)
        return remark

    def constant_check(self, model: Model) -> ConstantCheck:
        """Derives formats from the recipe, the weights and the statistics, and constants of the graph from these."""
        return InsertQcdqCheck(model, self.recipe, self.statistics)

    def _of_shift(self, cell: Cell, note: ShiftRemark) -> Remark:
        action = f"--set '{cell.name}.*.weight.shift_limits=false' keeps the fix positions that were found"
        return self.remark(Outcome.NOTE, cell.node, cell.op, note.reason, note.found, action)

    def _of_saturating_states(self, cell: Cell, bound: float) -> Remark:
        return self.remark(
            Outcome.WARNING,
            cell.node,
            cell.op,
            f"initial hidden states saturate beyond +-{bound:g}, the bound of its activations: "
            "the arithmetic of its number formats has no whole ones.",
            f"initial_h {cell.initial_h!r}, of which the graph does not say that it lies within",
            f"--set '{cell.name}.*hidden.mode=dynamic-row', or calibrate with these states and "
            f"--set '{cell.name}.*hidden.mode=static'; nothing, if no state lies beyond",
        )

    def _of_given_input(self, cell: QuantizedCell, given: Format | None) -> list[Remark]:
        """The remark about an input whose scale in the recipe differs from that in the model."""
        held = cell.points["input"].static
        if (
            given is None
            or held is None
            or (held.scale == given.scale and held.low <= given.low <= given.high <= held.high)
        ):
            return []
        zero_point = given.zero_point - (2 ** (given.bits - 1) if held.signed else 0)
        overrides = f"'{cell.name}.input.scale={given.scale[0]!r}' '{cell.name}.input.zero_point={zero_point}'"
        return [
            self.remark(
                Outcome.NOTE,
                cell.node,
                cell.op,
                "its input comes quantized, and is quantized again with another scale.",
                f"scale {given.scale[0]:.6g} in front of it, {held.scale[0]:.6g} in the recipe",
                f"--set {overrides}; nothing, where hardware quantizes it again, too",
            )
        ]

    def _of_given_weights(self, cell: QuantizedCell, arrays: Arrays, parameters: QuantizedParameters) -> list[Remark]:
        """The remarks about weights that are quantized again, and about weights that saturate."""
        points = {key: f"{key}.weight" for key in parameters.codes}
        given = [
            (f"{cell.name}.{p}", cell.points[p], arrays[key], functools.partial(parameters.codes.__getitem__, key))
            for key, p in points.items()
        ]
        told = {Outcome.NOTE: quantized_again(given), Outcome.WARNING: cut_weights(given)}
        return [self.remark(kind, cell.node, cell.op, *why) for kind, why in told.items() if why is not None]

    def _of_bias(self, cell: Cell, bias: SaturatedBias) -> Remark:
        return self.remark(
            Outcome.WARNING,
            cell.node,
            cell.op,
            f"its bias saturates: {bias.bits} bits at its scale reach +-{bias.limit:.3g}.",
            f"values up to {bias.greatest:.3g}",
            f"--set '{cell.name}.bias.bits=32', before overrides that reach every point",
        )

    def _equalized(
        self, model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell], statistics: Statistics | None
    ) -> Statistics | None:
        """Equalizes the inputs that gain from it; returns the adapted statistics."""
        found = self._channel_scales(model, graphs, cells, self.recipe, statistics)
        for cell in cells:
            if cell.name in found and statistics is not None:
                statistics = equalize_input(model, graphs[cell.name], cell, statistics, found[cell.name])
        return statistics

    def _channel_scales(
        self,
        model: Model,
        graphs: Mapping[str, Graph],
        cells: Sequence[Cell],
        recipe: Recipe,
        statistics: Statistics | None,
    ) -> dict[str, npt.NDArray[np.float64]]:
        """The divisors of the channels for each cell whose input gains from equalization."""
        found: dict[str, npt.NDArray[np.float64]] = {}
        points = statistics.points if statistics is not None else {}
        boundaries = boundaries_of(model, graphs, cells)
        for cell in cells:
            settings, seen = recipe.settings(f"{cell.name}.input"), points.get(f"{cell.name}.input")
            if not wanted(settings) or seen is None or "W" not in (arrays := parameters_of(model, cell)):
                continue
            x = boundaries[cell.name].x
            asked = settings.get("mode"), settings["bits"]
            taken = taken_format(x, *asked) or taken_rows(graphs[cell.name], cell, x, *asked)
            if settings.get("chain") and (taken is not None or chain_sources(model, x)):
                continue
            widths = settings["bits"], recipe.settings(f"{cell.name}.W.weight").get("bits")
            scales = channel_scales(seen, arrays["W"], widths)
            if scales is not None:
                found[cell.name] = scales
        return found

    def _effects(
        self, model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell], statistics: Statistics | None
    ) -> dict[int, str]:
        """Why each override has no effect, as defined by `effects_of_overrides`."""
        if not self.recipe.overrides:
            return {}
        arrays = {c.name: parameters_of(model, c) for c in cells}
        known: dict[str, PointFormat] = {}

        quantized: dict[tuple[Any, ...], QuantizedParameters] = {}

        def parameters(cell: QuantizedCell) -> QuantizedParameters:
            """Caches the result for equal formats."""
            key = (cell.name, *(cell.points[p] for p in PARAMETERS))
            if key not in quantized:
                quantized[key] = quantize_parameters(cell, arrays[cell.name], statistics)
            return quantized[key]

        def resolve(recipe: Recipe) -> Resolution:
            formats = resolve_formats(cells, recipe, arrays, statistics, known)
            made, _ = with_formats(model, graphs, cells, formats)
            settings = {f"{c.name}.{p}": s for c in cells for p, s in self._settings(c, recipe).items()}
            points = {f"{name}.{p}": point for name, c in made.items() for p, point in c.points.items()}
            scales = self._channel_scales(model, graphs, cells, recipe, statistics)
            written, boundaries = {}, boundaries_of(model, graphs, made.values())
            for name, c in made.items():
                exceeds = bool(bound_to_exceed(model, c, boundaries[name].initial_h))
                written[name] = functools.partial(
                    written_of, c, arrays[name], parameters, integer=self.integer, exceeds=exceeds
                )
            return Resolution(settings, points, {name: s.tolist() for name, s in scales.items()}, written)

        return effects_of_overrides(self.recipe, resolve, statistics is not None)


def with_formats(
    model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell], formats: Mapping[str, FormatsOfCell | None]
) -> tuple[dict[str, QuantizedCell], list[tuple[Cell, ShiftRemark]]]:
    """Returns the cells with their formats, chained to the layer before, and notes about unsupported shifts."""
    given = {c.name: QuantizedCell.of(c, points) for c in cells if (points := formats[c.name])}
    notes: list[tuple[Cell, ShiftRemark]] = []
    boundaries = boundaries_of(model, graphs, given.values())
    for name, cell in given.items():
        given[name], found = limit_shifts(chain_input(model, graphs[name], cell, boundaries[name].x, given))
        notes += ((cell, note) for note in found)
    return given, notes


def activations_of(cells: Iterable[Cell]) -> dict[str, Activation]:
    """Maps the paths of all pre-activations to their activations."""
    return {f"{c.name}.{gate}.acc": c.gate_activation(k) for c in cells for k, gate in enumerate(c.type.gates)}


def _by_path(formats: Mapping[str, FormatsOfCell | None]) -> dict[str, PointFormat]:
    return {f"{cell}.{p}": made for cell, points in formats.items() for p, made in (points or {}).items()}


def _stored_weights(
    model: Model, graph: Graph, cell: QuantizedCell, parameters: QuantizedParameters
) -> dict[str, QuantizedWeight]:
    """Quantized W and R as initializers of the cell's own graph.

    onnxruntime 1.31 fails on a DequantizeLinear in a subgraph with constants of an outer graph.
    """
    weights: dict[str, QuantizedWeight] = {}
    for key, codes in parameters.codes.items():
        scale, zero_point = cell.points[f"{key}.weight"].complete.linear_parameters()
        arrays = {"codes": codes, "scale": scale, "zero_point": zero_point}
        stored = {k: model.add_initializer(f"{cell.name}/{key}.{k}", a, graph) for k, a in arrays.items()}
        weights[f"{key}.weight"] = QuantizedWeight(**stored)
    return weights
