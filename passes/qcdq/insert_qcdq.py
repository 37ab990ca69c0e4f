"""Puts the quantizers of a recipe into decomposed cells."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.vitis_tables import STEP_BITS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import Outcome, Remark, UsageError
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import Graph, Model
from rnnqc.passes.analysis.custom_points import points_of_recurrences
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.cell_graphs import chain_input, chain_sources, graphs_of_cells, parameters_of, replace_cell
from rnnqc.passes.cells.emit_cell import boundary_of, emit_cell
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.fold.fold_cell import linear_length
from rnnqc.passes.fold.fold_grid import FoldedGrid
from rnnqc.passes.fold.integer_forms import bound_to_exceed, integer_form
from rnnqc.passes.formats.brevitas_contract import misfits
from rnnqc.passes.formats.derived_formats import Points as FormatsOfCell
from rnnqc.passes.formats.derived_formats import targets_of
from rnnqc.passes.formats.equalize_inputs import channel_scales, equalize_input, wanted
from rnnqc.passes.formats.formats import resolve_formats
from rnnqc.passes.formats.limit_shifts import ShiftRemark, limit_shifts
from rnnqc.passes.formats.override_effects import Resolution, effects_of_overrides
from rnnqc.passes.formats.point_format import encoding_of
from rnnqc.passes.formats.quantized_parameters import MULTIPLIED, QuantizedParameters, quantize_parameters
from rnnqc.passes.graph.lstm_node import NotHandled
from rnnqc.passes.invariants import Property
from rnnqc.passes.qcdq.check_insert_qcdq import InsertQcdqCheck
from rnnqc.passes.qcdq.emit_qcdq import QuantizedWeight, hidden_splitter, qcdq_quantizer, whole_quantizer
from rnnqc.recipes.clipping import find_clipping
from rnnqc.recipes.recipe import Points, Recipe, Settings, keys_of

EXACT, LINEAR = "exact", "piecewise-linear"
USUAL_BITS = 6  # a recipe with fewer at some point promises no SQNR


class InsertQcdq(Pass):
    """Quantizes every quantization point of every cell as the recipe says.

    Before: `MatMul(h, R)`; after: `MatMul(h -> QuantizeLinear -> DequantizeLinear, codes of R -> DequantizeLinear)`,
    and so on for the input, W, pre-activations and cell state.

    * A point whose `bits` are none stays float; a cell with no quantized point is not touched.
    * A layer's input that consists of hidden states of other cells alone, moved about by Squeeze, Transpose, Reshape,
      Concat and the like, takes their number format: the codes can pass as they are (recipe key `chain`).
    * Fix positions between which hardware cannot shift are lowered, with a note (recipe key `shift_limits`).
    """

    info = PassInfo(
        name="insert-qcdq",
        summary="insert the recipe's quantizers at every quantization point",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CELLS_DECOMPOSED}),
        sets=frozenset({Property.CELLS_QUANTIZED}),
    )

    def __init__(self, recipe: Recipe, statistics: Statistics | None = None) -> None:
        self.recipe = recipe
        self.statistics = statistics

    def run(self, model: Model) -> PassResult:
        """Resolves the recipe for every float cell and rewrites the cell."""
        cells = [c for c in model.cells.values() if c.form == "float" and not c.kept]
        if self.recipe.overrides:
            known = points_of_types(cells) | points_of_recurrences(model)
            if known:
                check_overrides(self.recipe, known)
        remarks: list[Remark] = []
        if cells and self.statistics is not None:
            self.statistics.check_fits(cells)
        graphs = graphs_of_cells(model)
        effects = effects_of_overrides(
            self.recipe, lambda recipe: self._resolution(model, graphs, cells, recipe), self.statistics is not None
        )
        statistics = self._equalized(model, graphs, cells)
        arrays = {c.name: parameters_of(model, c) for c in cells}
        formats = resolve_formats(cells, self.recipe, arrays, statistics)
        for cell, note in _give_formats(model, graphs, cells, formats):
            action = f"--set '{cell.name}.*.weight.shift_limits=false' keeps the fix positions that were found"
            remarks.append(self.remark(Outcome.NOTE, cell.node, cell.op, note.reason, note.found, action))
        clipped = find_clipping(
            self.recipe,
            _by_path(formats),
            statistics,
            activations_of(cells),
            lambda recipe: _by_path(resolve_formats(cells, recipe, arrays, statistics)),
        )
        count = 0
        for cell in cells:
            if not cell.points:
                cell.kept = "the recipe needs calibration data, and none reached it."
                action = "calibrate with data that runs it, or choose a recipe that needs none"
                remarks.append(self.remark(Outcome.FLOAT, cell.node, cell.op, cell.kept, "no statistics", action))
                continue
            if all(p["bits"] is None for p in cell.points.values()):
                cell.points, cell.kept = {}, "the recipe quantizes nothing in it."
                found = "bits = none at every quantization point"
                action = "choose another recipe, or give points bits with --set"
                remarks.append(self.remark(Outcome.FLOAT, cell.node, cell.op, cell.kept, found, action))
                continue
            graph = graphs[cell.name]
            at = boundary_of(model, graph, cell)
            parameters = quantize_parameters(cell, arrays[cell.name], statistics)
            weights = _stored_weights(model, graph, cell, parameters)
            for key, array in parameters.biases.items():
                if array is not arrays[cell.name][key]:
                    name = model.add_initializer(f"{cell.name}/{key}.quantized", array).name
                    setattr(cell, key, name)
            quantizer, split = qcdq_quantizer(cell.points, weights), None
            bound = bound_to_exceed(model, cell, at.initial_h)
            if bound and _saturates(cell, parameters, arrays[cell.name]):
                remarks.append(self._of_saturating_states(cell, bound))
            elif bound:
                split = hidden_splitter(cell.points, bound)
                quantizer = whole_quantizer(quantizer, cell.points, split) if cell.type.reads_hidden else quantizer
            made = emit_cell(model, cell, at, quantizer, split=split, **emit_flags(cell))
            replace_cell(model, graph, cell, made.nodes)
            cell.W, cell.R = (
                weights[p].codes.name if p in weights else n for p, n in (("W.weight", cell.W), ("R.weight", cell.R))
            )
            cell.form = "qcdq"
            count += 1
        if count:
            model.remove_dead()
            model.sort()
        widths = [p["bits"] for c in cells for p in c.points.values() if p["bits"] is not None]
        saturating = any(c.points.get("accumulator", {"bits": None})["bits"] is not None for c in cells)
        # Nothing is promised of data that calibrated ranges were not made for.
        usual = all(bits >= USUAL_BITS for bits in widths) and not saturating and self.statistics is None
        numerics = Lossy(10.0) if usual else None
        counts = {"cells": count}
        return PassResult(count > 0, tuple(remarks), counts, numerics, clipped=tuple(clipped), effects=effects)

    def constant_check(self, model: Model) -> ConstantCheck:
        """Formats from the recipe, the weights and the statistics; constants of the graph from these."""
        return InsertQcdqCheck(model, self.recipe, self.statistics)

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

    def _equalized(self, model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell]) -> Statistics | None:
        """Equalizes the inputs that gain from it; statistics of what the cells get then."""
        statistics = self.statistics
        found = self._channel_scales(model, graphs, cells, self.recipe)
        for cell in cells:
            if cell.name in found and statistics is not None:
                statistics = equalize_input(model, graphs[cell.name], cell, statistics, found[cell.name])
        return statistics

    def _channel_scales(
        self, model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell], recipe: Recipe
    ) -> dict[str, npt.NDArray[np.float64]]:
        """For each cell whose input gains from equalization by what to divide its channels."""
        found: dict[str, npt.NDArray[np.float64]] = {}
        points = self.statistics.points if self.statistics is not None else {}
        for cell in cells:
            settings, seen = recipe.settings(f"{cell.name}.input"), points.get(f"{cell.name}.input")
            if not wanted(settings) or seen is None or "W" not in (arrays := parameters_of(model, cell)):
                continue
            if settings.get("chain") and chain_sources(model, boundary_of(model, graphs[cell.name], cell).x):
                continue
            widths = settings["bits"], recipe.settings(f"{cell.name}.W.weight").get("bits")
            scales = channel_scales(seen, arrays["W"], widths)
            if scales is not None:
                found[cell.name] = scales
        return found

    def _resolution(
        self, model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell], recipe: Recipe
    ) -> Resolution:
        """What a recipe comes to; gives the cells its formats."""
        arrays = {c.name: parameters_of(model, c) for c in cells}
        formats = resolve_formats(cells, recipe, arrays, self.statistics)
        for _ in _give_formats(model, graphs, cells, formats):
            pass
        settings: dict[str, Settings] = {}
        made: dict[str, Any] = {}
        for cell in cells:
            names = [p.name for p in cell.type.points]
            found = recipe.settings_of_points(cell.name, names, functools.partial(targets_of, cell))
            settings |= {f"{cell.name}.{p}": s for p, s in found.items()}
            made |= {f"{cell.name}.{p}": self._effective(cell, p, point) for p, point in cell.points.items()}
        scales = self._channel_scales(model, graphs, cells, recipe)
        return Resolution(settings, made, {name: s.tolist() for name, s in scales.items()})

    def _effective(self, cell: Cell, name: str, point: Mapping[str, Any]) -> dict[str, Any]:
        """A format without what has had its effect on others, and without what needs data that there is not."""
        idle = {"chain", "shift_limits"}
        if name in ("W.weight", "R.weight"):
            points = self.statistics.points if self.statistics is not None else {}
            source = f"{cell.name}.{MULTIPLIED[name[0]]}"
            seen = [points[p] for p in (source, f"{cell.name}.{RESET_HIDDEN}") if p in points]
            idle |= set() if any(s.second_moment is not None for s in seen) else {"compensation"}
            idle |= set() if any(s.channel_mean is not None for s in seen) else {"bias_correction"}
        made = {k: v for k, v in point.items() if k not in idle}
        if "table" in made:
            if "scale" not in made and made["bits"] is not None:
                made["bits"] = 0  # values of the table itself
            made["table"] = _table(cell, name, made["table"])
        return made


def _saturates(cell: Cell, parameters: QuantizedParameters, arrays: Mapping[str, npt.NDArray[np.float32]]) -> bool:
    """Whether the arithmetic that the cell's formats have holds no hidden states beyond their codes."""
    w, r = (parameters.codes.get(k, arrays[k]) for k in ("W", "R"))
    others = {k: arrays[k] for k in ("P",) if k in arrays}
    try:
        return isinstance(integer_form(cell, w, r, {**others, **parameters.biases}), FoldedGrid)
    except NotHandled:
        return False


def _table(cell: Cell, name: str, kind: str) -> str:
    """How an activation is tabulated: exactly where the table of that name does not exist."""
    gate, gates = name.rpartition(".")[0], cell.type.gates
    activation = cell.gate_activation(gates.index(gate)) if gate in gates else cell.output_activation
    if activation is None or activation.name not in STEP_BITS:
        return EXACT
    argument = cell.points[f"{gate}.acc" if gate in gates else "cell_state"]
    if kind != LINEAR or len(argument.get("scale") or ()) != 1:
        return kind
    codes = encoding_of(argument)
    bits = max(2, max(-codes.minimum, codes.maximum + 1, 1).bit_length())
    return kind if linear_length(activation, bits, codes.scale[0]) is not None else EXACT


def _give_formats(
    model: Model, graphs: Mapping[str, Graph], cells: Sequence[Cell], formats: Mapping[str, FormatsOfCell | None]
) -> Iterator[tuple[Cell, ShiftRemark]]:
    """Gives the cells their formats, and the codes of the layer before; yields what hardware could not shift."""
    for cell in cells:
        cell.points = formats[cell.name] or {}
    for cell in cells:
        if cell.points:
            chain_input(model, graphs[cell.name], cell)
            yield from ((cell, note) for note in limit_shifts(cell))


def check_overrides(recipe: Recipe, cells: Points) -> None:
    """Raises UsageError for an override that says nothing of any quantization point of the cells so called."""
    missed = recipe.unmatched(cells)
    if missed:
        first = next(iter(cells))
        points = list(cells[first])[:3] if isinstance(cells, Mapping) else ["W.weight", "R.weight"]
        if not points:
            raise UsageError(
                f"No quantization point matches {missed[0]!r}: nothing in {first!r} can be quantized.",
                supported="overrides of what is quantized",
                action="leave the override out; `rnnqc inspect` says why the layer stays float",
            )
        raise UsageError(
            f"No quantization point matches {missed[0]!r}.",
            supported="points such as " + ", ".join(f"{first}.{p}" for p in points),
            action="`rnnqc inspect` lists the cells, `rnnqc recipes` the points",
        )
    for glob, key, kind in recipe.without_effect(cells):
        raise UsageError(
            f"{glob}.{key}: no quantization point that matches understands {key!r}.",
            supported=f"{', '.join(keys_of(kind))} for {kind!r}",
            action="leave the override out",
        )


def points_of_types(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """For each cell's name the names of the quantization points that its type has."""
    return {c.name: [p.name for p in c.type.points] for c in cells}


def activations_of(cells: Iterable[Cell]) -> dict[str, Activation]:
    """The activations of all gates, by the paths of their pre-activations."""
    return {f"{c.name}.{gate}.acc": c.gate_activation(k) for c in cells for k, gate in enumerate(c.type.gates)}


def _by_path(formats: Mapping[str, FormatsOfCell | None]) -> dict[str, Mapping[str, Any]]:
    return {f"{cell}.{p}": made for cell, points in formats.items() for p, made in (points or {}).items()}


def emit_flags(cell: Cell) -> dict[str, Any]:
    """How `emit_cell` puts together a cell of a recipe, whose points are resolved."""
    products = any(cell.points[p]["bits"] is not None for p in cell.type.product_points)
    return {"products": products, "bias_last": not misfits(cell)}


def _stored_weights(
    model: Model, graph: Graph, cell: Cell, parameters: QuantizedParameters
) -> dict[str, QuantizedWeight]:
    """Codes of W and R as initializers of the cell's own graph.

    onnxruntime 1.31 fails on a DequantizeLinear in a subgraph whose constants stand in an outer graph.
    """
    weights: dict[str, QuantizedWeight] = {}
    for key, codes in parameters.codes.items():
        encoding = encoding_of(cell.points[f"{key}.weight"])
        channels = () if encoding.axis is None else (len(encoding.scale),)
        zero_points = np.asarray(encoding.zero_points or encoding.zero_point)
        arrays = {
            "codes": codes,
            "scale": np.asarray(encoding.scale, np.float32).reshape(channels),
            "zero_point": np.broadcast_to(zero_points, channels).astype(encoding.dtype),
        }
        stored = {k: model.add_initializer(f"{cell.name}/{key}.{k}", a, graph) for k, a in arrays.items()}
        weights[f"{key}.weight"] = QuantizedWeight(**stored)
    return weights
