"""What insert-qcdq has to write, from the float model, the recipe and the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.stages import QuantizedCell
from rnnqc.data.statistics import Statistics
from rnnqc.ir import Model, constant_array
from rnnqc.passes.cells.cell_graphs import chain_input, graphs_of_cells, parameters_of
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.formats.equalize_inputs import channel_scales, divided
from rnnqc.passes.formats.formats import resolve_formats
from rnnqc.passes.formats.limit_shifts import limit_shifts
from rnnqc.passes.formats.quantized_parameters import MULTIPLIED
from rnnqc.passes.qcdq.check_quantizers import FLOAT, WEIGHTS, check_quantizers
from rnnqc.passes.qcdq.check_weights import check_biases, check_codes, check_reach, check_weight
from rnnqc.passes.qcdq.without_quantizers import bypassed
from rnnqc.passes.qcdq.written_quantizers import written_quantizers
from rnnqc.recipes.recipe import Recipe

Arrays = dict[str, npt.NDArray[np.float32]]
FACTOR = "input.equalized"


class InsertQcdqCheck(ConstantCheck):
    """The formats of all points are resolved again, and every constant of the graph is compared with them.

    Args:
        model: Before the pass.
        recipe: Of the pass.
        statistics: Of the pass.
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
        statistics = self._statistics
        for cell in cells.values():
            statistics = self._equalized(found, after, cell, arrays[cell.name], statistics)
        formats = resolve_formats(list(cells.values()), self._recipe, arrays, statistics)
        graphs = graphs_of_cells(after)
        for name, cell in cells.items():
            made, points = after.cells[name], formats[name]
            if type(made) is QuantizedCell:
                expected = QuantizedCell.of(cell, points or {})
                if points and name in graphs:
                    expected, _ = limit_shifts(chain_input(after, graphs[name], expected, {}))
                _check_points(found, expected, made)
                self._check_cell(found, after, made, expected.points, arrays[name], statistics)
        return found

    def without_loss(self, after: Model, *, keep_weights: bool = False) -> onnx.ModelProto | None:
        """Every quantizer lets its values pass, and weights and biases are the floats, unless they are kept."""
        passed: dict[str, str] = {}
        constants: dict[str, npt.NDArray[Any]] = {}
        for name, cell in after.cells.items():
            if cell.form != "qcdq" or name not in self._cells:
                continue
            arrays = dict(self._arrays[name])
            self._equalized(Findings(), after, cell, arrays, None)
            for point, quantizers in written_quantizers(after, cell).items():
                for quantizer in quantizers:
                    made = quantizer.last.outputs[0].name
                    if point not in WEIGHTS:
                        passed[made] = quantizer.source.name
                    elif not keep_weights:
                        constants[made] = arrays[WEIGHTS[point]]
            if not keep_weights:
                biases = (("B", cell.B), ("hidden_bias", cell.hidden_bias))
                constants |= {n: arrays[k] for k, n in biases if n is not None}
        return bypassed(after.proto, passed, constants) if passed or constants else None

    def _equalized(
        self, found: Findings, after: Model, cell: Cell, arrays: Arrays, statistics: Statistics | None
    ) -> Statistics | None:
        """Scales W as the pass did if it divides the input; statistics of what the cell gets then."""
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

    def _check_cell(
        self, found: Findings, after: Model, cell: Cell, points: Mapping[str, Any], arrays: Arrays,
        statistics: Statistics | None,
    ) -> None:  # fmt: skip
        written = check_quantizers(found, after, cell, points)
        seen = statistics.points if statistics is not None else {}
        codes: dict[str, npt.NDArray[Any]] = {}
        for name, key in WEIGHTS.items():
            what, point = f"{cell.name}.{name}", points.get(name, FLOAT)
            if point["bits"] is None or name not in written:
                continue
            held = check_weight(found, what, written[name][0], point, arrays[key])
            check_reach(found, what, self._recipe.settings(what), point, arrays[key], len(cell.type.gates))
            if held is None:
                continue
            codes[key] = held
            other = f"{cell.name}.{RESET_HIDDEN}"
            apart = cell.candidate_columns.start if key == "R" and other in seen else held.shape[1]
            for columns, source in (
                (slice(0, apart), f"{cell.name}.{MULTIPLIED[key]}"), (slice(apart, held.shape[1]), other),
            ):  # fmt: skip
                if columns.start < columns.stop:
                    moment = seen[source].second_moment if source in seen else None
                    check_codes(found, what, held, point, arrays[key], moment, columns)
        biases = {k: _initializer(after, n) for k, n in (("B", cell.B), ("hidden_bias", cell.hidden_bias))}
        check_biases(found, cell, points, arrays, biases, codes, seen)


def _initializer(model: Model, name: str | None) -> npt.NDArray[Any] | None:
    return constant_array(model.find(name)) if name is not None else None


def _check_points(found: Findings, expected: QuantizedCell, made: QuantizedCell) -> None:
    """Compares the formats that the cell says it has with the ones it should have."""
    for name in dict.fromkeys((*expected.points, *made.points)):
        a, b = made.points.get(name, FLOAT), expected.points.get(name, FLOAT)
        for key in dict.fromkeys((*b, *a)):
            what = f"{key} of {expected.name}.{name}"
            if key == "scale" and "scale" in a and "scale" in b:
                found.array(what, np.asarray(a[key]), np.asarray(b[key]), node=expected.name)
            else:
                found.word(what, a.get(key), b.get(key), node=expected.name)
