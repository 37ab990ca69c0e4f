"""Checks the constants of insert-qcdq against the float model, the recipe and the statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import QuantizedCell
from rnnqc.data.statistics import Statistics
from rnnqc.formats.format_request import MAX_CODE
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model, constant_array
from rnnqc.passes.cells.boundary import boundary_of
from rnnqc.passes.cells.cell_graphs import chain_input, graphs_of_cells, parameters_of
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.formats.equalize_inputs import channel_scales, divided
from rnnqc.passes.formats.formats import resolve_formats
from rnnqc.passes.formats.limit_shifts import limit_shifts
from rnnqc.passes.formats.quantized_parameters import QuantizedParameters, quantize_parameters
from rnnqc.passes.formats.shared_weights import merge_for_shared_weights
from rnnqc.passes.graph.flat.flat_model import FlatModel
from rnnqc.passes.qcdq.check_quantizers import QUANTIZED, WEIGHTS, check_quantizers, written_quantizers
from rnnqc.passes.qcdq.without_quantizers import bypassed
from rnnqc.recipes.keys import Settings
from rnnqc.recipes.recipe import Recipe

Arrays = dict[str, npt.NDArray[np.float32]]
FACTOR = "input.equalized"
NEAREST = (Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.HALF_UP, Rounding.HALF_EVEN_UP)
ROUNDINGS = 2.0**-22
"""The rounding error of float32 on top of half a step, as a share of the largest quantized value."""
OWN_STEPS = 2.0**-12
"""How far weights that are multiples of their scale may be from these."""


class InsertQcdqCheck(ConstantCheck):
    """Resolves the formats of all points again, and compares every constant of the graph with them.

    Args:
        model: The model before the pass.
        recipe: The recipe of the pass.
        statistics: The statistics of the pass.
    """

    def __init__(self, model: Model, recipe: Recipe, statistics: Statistics | None) -> None:
        cells = [c for c in model.cells.values() if type(c) is Cell and c.name not in model.kept]
        self._cells = {c.name: c for c in cells}
        self._arrays = {c.name: dict(parameters_of(model, c)) for c in cells}
        self._recipe, self._statistics = recipe, statistics

    def findings(self, after: Model) -> Findings:
        """Compares formats, quantizers, weights and biases of every cell that the pass has quantized."""
        found = Findings()
        cells = {n: c for n, c in self._cells.items() if n in after.cells}
        arrays = {n: dict(a) for n, a in self._arrays.items()}
        statistics = None if self._statistics is None else merge_for_shared_weights(self._statistics, arrays)
        for cell in cells.values():
            statistics = self._equalized(found, after, cell, arrays[cell.name], statistics)
        formats = resolve_formats(list(cells.values()), self._recipe, arrays, statistics)
        graphs = graphs_of_cells(after)
        flat = FlatModel(after.proto, list(cells))
        for name, cell in cells.items():
            made, points = after.cells[name], formats[name]
            if type(made) is QuantizedCell:
                expected = QuantizedCell.of(cell, points or {})
                if points and name in graphs:
                    x = boundary_of(after, graphs[name], expected).x
                    expected, _ = limit_shifts(chain_input(after, graphs[name], expected, x, {}))
                _check_points(found, expected, made)
                check_quantizers(found, flat, expected, expected.points)
                self._check_weights(found, flat, expected, arrays[name])
                parameters = quantize_parameters(expected, arrays[name], statistics)
                _check_parameters(found, flat, made, expected, parameters)
        return found

    def without_loss(self, after: Model) -> onnx.ModelProto | None:
        """Returns the model with every quantizer bypassed, and with float weights and biases."""
        passed: dict[str, str] = {}
        constants: dict[str, npt.NDArray[Any]] = {}
        cells = {n: c for n, c in after.cells.items() if type(c) is QuantizedCell and n in self._cells}
        flat = FlatModel(after.proto, list(cells))
        for name, cell in cells.items():
            arrays = dict(self._arrays[name])
            self._equalized(Findings(), after, cell, arrays, None)
            passed |= {q.made: q.source for q in written_quantizers(flat, name)}
            made = {f"{p}.{QUANTIZED}": k for p, k in WEIGHTS.items()}
            constants |= {full: arrays[k] for short, k in made.items() if (full := flat.name(name, short)) is not None}
            constants |= {n: arrays[k] for k, n in (("B", cell.B), ("hidden_bias", cell.hidden_bias)) if n is not None}
        return bypassed(after.proto, passed, constants) if passed or constants else None

    def _equalized(
        self, found: Findings, after: Model, cell: Cell, arrays: Arrays, statistics: Statistics | None
    ) -> Statistics | None:
        """Scales W like the pass if it divides the input; returns the statistics of the cell's new input."""
        made = f"{cell.name}/{FACTOR}"
        nodes = (n for g in after.graphs() for n in g.nodes if n.outputs and n.outputs[0].name == made)
        node = next(nodes, None)
        factor = constant_array(node.inputs[1]) if node is not None else None
        if node is None or factor is None:
            return statistics
        name = f"{cell.name}.input"
        if statistics is not None:
            s = self._recipe.settings(name)
            widths = s["bits"], self._recipe.settings(f"{cell.name}.W.weight").get("bits")
            scales = channel_scales(statistics.points[name], arrays["W"], widths)
            expected = np.ones(len(factor)) if scales is None else 1 / scales
            found.input(f"factor of {name}", node, 1, expected.astype(np.float32))
            divided_points = {name: divided(statistics.points[name], 1.0 / factor.astype(np.float64))}
            statistics = replace(statistics, points={**statistics.points, **divided_points})
        arrays["W"] = (arrays["W"] / factor[:, None].astype(np.float64)).astype(np.float32)
        return statistics

    def _check_weights(self, found: Findings, flat: FlatModel, cell: QuantizedCell, arrays: Arrays) -> None:
        """Checks that no weight is off by more than half an LSB, and that the largest has the top value."""
        for name, key in WEIGHTS.items():
            what, point = f"{cell.name}.{name}", cell.points.get(name, FLOAT)
            full = flat.name(cell.name, f"{name}.{QUANTIZED}")
            if point.is_float or full is None:
                continue
            check_reach(found, what, self._recipe.settings(what), point, arrays[key], len(cell.type.gates))
            if point.compensation or point.group_size or point.bits == 1:
                continue  # these are compared with the functions that compute them
            e = point.complete
            step, zero = e.scale_array(2).astype(np.float64), e.zero_point_array(2)
            floats = np.clip(arrays[key], (e.minimum - zero) * step, (e.maximum - zero) * step)
            held = flat.constant(full)
            share = (0.5 if e.rounding in NEAREST else 1.0) + ROUNDINGS * (e.maximum - e.minimum)
            if held is not None and held.shape == floats.shape:
                off = np.abs(held - floats) / step
                limited = np.where(off <= share, 0.0, off)
                found.array(f"distance in steps of {what} from its float", limited, 0.0, node=cell.name)


def _check_parameters(
    found: Findings, flat: FlatModel, made: QuantizedCell, cell: QuantizedCell, parameters: QuantizedParameters
) -> None:
    """Compares weights, their scales and quantized values, and biases with those computed from the floats."""
    for name, key in WEIGHTS.items():
        point, full = cell.points.get(name, FLOAT), flat.name(cell.name, f"{name}.{QUANTIZED}")
        if point.is_float:
            continue
        wanted = point.complete.dequantize(parameters.codes[key])
        held = None if full is None else flat.constant(full)
        found.array(f"quantized values of {cell.name}.{name}", held, wanted, node=cell.name, constant=full or "")
    for key, stored in (("B", made.B), ("hidden_bias", made.hidden_bias)):
        if key in parameters.biases and stored is not None:
            what = f"{'bias' if key == 'B' else key} of {cell.name}"
            found.array(what, flat.constant(stored), parameters.biases[key], node=cell.name, constant=stored)


def check_reach(
    findings: Findings, what: str, s: Settings, point: PointFormat, weights: npt.NDArray[Any], gates: int
) -> None:
    """Checks the rule min-max of symmetric signed values: a channel's largest weight has the largest quantized value.

    All weights may also be multiples of its scale already. This checks the rule itself,
    independently of the functions that compute scales.
    """
    special = ("scale", "group_size", "wide_channels", "limit", "share", "pow2", "scale_bits", "max_fix_position")
    usual = s.get("range", "min-max") == "min-max" and s.get("symmetric", True) and s.get("signed", True)
    if not usual or any(s.get(k) for k in special) or s.get("zero_point") or point.shift_limits:
        return
    if s.get("levels", MAX_CODE) != MAX_CODE or point.complete.bits < 2:
        return
    top = 2.0 ** (point.complete.bits - 1) - 1
    largest = np.abs(weights).max(axis=0).astype(np.float64)
    scale = np.asarray(point.scale, np.float64)
    if s.get("granularity") == "per-gate":
        largest = np.repeat(largest.reshape(gates, -1).max(axis=1), len(largest) // gates)
    if len(scale) == 1:
        largest = largest.max(keepdims=True)
    expected = np.where(largest < 2.0**-100, 1.0, largest / top)
    units = weights / scale
    is_own = (np.abs(units - np.rint(units)).max(axis=0) < OWN_STEPS) & (np.abs(units).max(axis=0) < top + 1.5)
    is_own = is_own if len(scale) > 1 else is_own.all(keepdims=True)
    findings.array(f"scale of {what}", scale, np.where(is_own, scale, expected), node=what, ulps=1.0)


def _check_points(found: Findings, expected: QuantizedCell, made: QuantizedCell) -> None:
    """Compares the formats recorded in the cell with the expected ones."""
    for name in dict.fromkeys((*expected.points, *made.points)):
        a, b = (c.points.get(name, FLOAT).as_dict() for c in (made, expected))
        for key in dict.fromkeys((*b, *a)):
            what = f"{key} of {expected.name}.{name}"
            if key == "scale" and "scale" in a and "scale" in b:
                found.array(what, np.asarray(a[key]), np.asarray(b[key]), node=expected.name)
            else:
                found.word(what, a.get(key), b.get(key), node=expected.name)
