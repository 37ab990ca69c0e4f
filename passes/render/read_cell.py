"""What the graph of a cell in form qcdq says: scales and limits of its quantizers, codes of its weights, biases."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.ir import Model, constant_array, graph_info
from rnnqc.passes.qcdq.check_quantizers import WEIGHTS
from rnnqc.passes.qcdq.written_quantizers import Steps, WrittenQuantizer, steps_of, written_quantizers

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CellBefore:
    """A cell in form qcdq, as its graph has it.

    Attributes:
        cell: The cell, a copy.
        steps: Of its static quantizers, by point.
        weight_scales: Of W and R, float64 `[n]` or `[1]`.
        weight_zero_points: Of W and R, int64 `[n]` or `[1]`.
        codes: Of W `[I,GH]` and R `[H,GH]`.
        floats: B `[GH]`, and P and hidden_bias where it has them, float64.
    """

    cell: Cell
    steps: Mapping[str, Steps]
    weight_scales: Mapping[str, Array]
    weight_zero_points: Mapping[str, Array]
    codes: Mapping[str, Array]
    floats: Mapping[str, Array]

    def scale(self, point: str) -> float:
        """The one scale of a point; 0 for one without."""
        return self.steps[point].step if point in self.steps else 0.0

    def zero_point(self, point: str) -> int:
        """The unsigned code of 0 of a point."""
        settings = self.cell.points.get(point, {"bits": None})
        if settings["bits"] is None:
            return 128
        if point not in self.steps:
            return int(settings["zero_point"])
        return int(settings["signed"] and settings["narrow"]) - int(self.steps[point].low)


def read_cell(model: Model, cell: Cell) -> CellBefore | None:
    """Reads a cell in form qcdq; None where its weights are not codes."""
    written = written_quantizers(model, cell)
    weights = {key: _weight(written[name][0]) for name, key in WEIGHTS.items() if name in written}
    found = {key: w for key, w in weights.items() if w is not None}
    if len(found) < len(WEIGHTS):
        return None
    steps = {p: s for p, q in written.items() if p not in WEIGHTS and (s := steps_of(q[0])) is not None}
    names = {"B": cell.B, "P": cell.P, "hidden_bias": cell.hidden_bias}
    floats = {k: a.astype(np.float64) for k, n in names.items() if n and (a := _constant(model, n)) is not None}
    scales, zeros, codes = ({k: w[i] for k, w in found.items()} for i in range(3))
    return CellBefore(copy.deepcopy(cell), steps, scales, zeros, codes, floats)


def _weight(quantizer: WrittenQuantizer) -> tuple[Array, Array, Array] | None:
    """Scales, zero points and codes of a weight matrix; None where it is float."""
    last = quantizer.last
    scale = constant_array(last.inputs[1])
    codes, zero = last.inputs[0], None
    if last.op == "DequantizeLinear":
        zero = constant_array(last.inputs[2])
    elif codes.inputs and codes.inputs[0].op == "Sub":
        cast = codes.inputs[0].inputs[1].inputs
        zero = constant_array(cast[0].inputs[0]) if cast else constant_array(codes.inputs[0].inputs[1])
    while constant_array(codes) is None and codes.inputs and codes.inputs[0].inputs:
        codes = codes.inputs[0].inputs[0]
    held = constant_array(codes)
    if scale is None or held is None:
        return None
    zeros = np.zeros(1, np.int64) if zero is None else np.atleast_1d(zero).astype(np.int64)
    return np.atleast_1d(scale).astype(np.float64), zeros, held


def _constant(model: Model, name: str) -> Array | None:
    for graph in model.graphs():
        held = graph_info(graph).initializers.get(name)
        if held is not None:
            return constant_array(held)
    return None


def constants_of(model: Model, names: Mapping[str, str]) -> dict[str, Array]:
    """The initializers so called, in whatever graph, by what they are called for."""
    held = {n: v for g in model.graphs() for n, v in graph_info(g).initializers.items()}
    found = {key: constant_array(held[name]) for key, name in names.items() if name in held}
    return {key: array for key, array in found.items() if array is not None}
