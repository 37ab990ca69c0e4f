"""Selects the integer arithmetic of a quantized cell, and finds those that lose parts of initial hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.stages import QuantizedCell
from rnnqc.errors import NotHandled
from rnnqc.formats.point_format import CHAINED, STATIC
from rnnqc.ir import Model, Value
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint, fold_fixed_point, needs_fixed_point
from rnnqc.passes.fold.fold_lut import FloatArray, FoldedLut, fold_lut
from rnnqc.passes.fold.fold_quant_lstm import fold_quant_lstm, grid_of
from rnnqc.passes.fold.lut_formats import state_bound
from rnnqc.passes.formats.brevitas_contract import misfits, quant_lstm_of
from rnnqc.passes.graph.values.constant_expressions import Constants

Folded = FoldedLut | FoldedFixedPoint
SHORT_BITS = 8
"""Widest quantized values that pass from layer to layer."""


def integer_form(
    cell: QuantizedCell, w: npt.NDArray[Any], r: npt.NDArray[Any], parameters: Mapping[str, FloatArray]
) -> Folded:
    """Returns the integer form in the first arithmetic that supports the formats of the cell.

    Args:
        cell: The cell, with resolved points.
        w: Quantized W `[I,GH]`, in the format of its point.
        r: Quantized R `[H,GH]`.
        parameters: B `[GH]`, and P `[3H]` and hidden_bias `[H]` if the cell has them.

    Raises:
        NotHandled: No arithmetic supports them.
    """
    refusal: NotHandled | None = None
    if not needs_fixed_point(cell):
        try:
            return fold_lut(cell, w, parameters)
        except NotHandled as refused:
            refusal = refused
    if not misfits(cell):
        return _fold_as_brevitas(cell, w, r, parameters["B"])
    try:
        return fold_fixed_point(cell, w, r, parameters)
    except NotHandled:
        # A cell that does not need the second arithmetic gets the refusal of the first.
        if refusal is not None:
            raise refusal from None
        raise


def _fold_as_brevitas(cell: QuantizedCell, w: npt.NDArray[Any], r: npt.NDArray[Any], b: FloatArray) -> FoldedFixedPoint:
    """The arithmetic of the cell after writing it as Brevitas exports it, and reading it."""
    lstm, point = quant_lstm_of(cell, w, r, b), cell.points["input"]
    chained = point.mode == CHAINED
    x = grid_of("input", lstm.quantizers["output"], unsigned=True, on_grid=chained or point.on_grid)
    folded = fold_quant_lstm(lstm, x)
    return replace(folded, numbers=replace(folded.numbers, x_mode="codes")) if chained else folded


def with_own_codes(cell: QuantizedCell) -> QuantizedCell:
    """Returns a chained cell that quantizes the float states itself: to the same quantized values."""
    return cell.with_point("input", replace(cell.points["input"], mode=STATIC, on_grid=True))


def without_long_codes(cell: QuantizedCell) -> QuantizedCell:
    """Returns the cell with its own quantization if the chained quantized values are too wide."""
    point = cell.points["input"]
    return with_own_codes(cell) if point.mode == CHAINED and point.integers.bits > SHORT_BITS else cell


def loses_states(cell: QuantizedCell, parameters: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether the arithmetic of the cell's formats loses hidden states beyond the range of their quantized values.

    Args:
        cell: The cell, with its formats.
        parameters: Quantized W and R, and B, P and hidden_bias if the cell has them.
    """
    others = {k: a for k, a in parameters.items() if k in ("B", "P", "hidden_bias")}
    try:
        return isinstance(integer_form(cell, parameters["W"], parameters["R"], others), FoldedFixedPoint)
    except NotHandled:
        return False


def is_within(model: Model, state: Value, bound: float) -> bool:
    """Whether an initial state is known to be within the bound: it is a constant within it."""
    held = Constants(model).array(state)
    return held is not None and bool(np.all(np.abs(held) <= bound))


def bound_to_exceed(model: Model, cell: QuantizedCell, state: Value | None) -> float:
    """Returns the bound of some quantized hidden states if an initial state may exceed it; else 0."""
    bound = state_bound(cell, some=True)
    return bound if bound and state is not None and not is_within(model, state, bound) else 0.0
