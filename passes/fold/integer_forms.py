"""Which integer arithmetic a quantized cell gets, and which of them lose parts of initial hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.stages import QuantizedCell
from rnnqc.formats.point_format import CHAINED, STATIC
from rnnqc.ir import Model, Value
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint, fold_fixed_point, needs_fixed_point
from rnnqc.passes.fold.fold_lut import FloatArray, FoldedLut, fold_lut
from rnnqc.passes.fold.fold_quant_lstm import fold_quant_lstm, grid_of
from rnnqc.passes.fold.lut_formats import state_bound
from rnnqc.passes.formats.brevitas_contract import misfits, quant_lstm_of
from rnnqc.passes.graph.nodes.lstm_node import NotHandled
from rnnqc.passes.graph.values.constant_expressions import Constants

Folded = FoldedLut | FoldedFixedPoint
SHORT_BITS = 8
"""Widest quantized values that pass from layer to layer."""


def integer_form(
    cell: QuantizedCell, w: npt.NDArray[Any], r: npt.NDArray[Any], parameters: Mapping[str, FloatArray]
) -> Folded:
    """The integer form in the first arithmetic that has the formats of the cell.

    Args:
        cell: With its points resolved.
        w: Quantized W `[I,GH]`, in the format of its point.
        r: Quantized R `[H,GH]`.
        parameters: B `[GH]`, and P `[3H]` and hidden_bias `[H]` where the cell has them.

    Raises:
        NotHandled: No arithmetic has them.
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
        # A cell that is no case of the second arithmetic hears what it misses of the first.
        if refusal is not None:
            raise refusal from None
        raise


def _fold_as_brevitas(cell: QuantizedCell, w: npt.NDArray[Any], r: npt.NDArray[Any], b: FloatArray) -> FoldedFixedPoint:
    """The arithmetic that reading the cell gives, once it was written as Brevitas exports it."""
    lstm, point = quant_lstm_of(cell, w, r, b), cell.points["input"]
    chained = point.mode == CHAINED
    x = grid_of("input", lstm.quantizers["output"], unsigned=True, on_grid=chained or point.on_grid)
    folded = fold_quant_lstm(lstm, x)
    return replace(folded, numbers=replace(folded.numbers, x_mode="codes")) if chained else folded


def with_own_codes(cell: QuantizedCell) -> QuantizedCell:
    """The cell, whose input has the format of the layer before: the same quantized values, made of float states."""
    return cell.with_point("input", replace(cell.points["input"], mode=STATIC, on_grid=True))


def without_long_codes(cell: QuantizedCell) -> QuantizedCell:
    """The cell with quantized values of its own, where those of the layer before are too wide to pass."""
    point = cell.points["input"]
    return with_own_codes(cell) if point.mode == CHAINED and point.integers.bits > SHORT_BITS else cell


def loses_states(cell: QuantizedCell, parameters: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether the arithmetic that the cell's formats have holds no hidden states beyond its quantized values.

    Args:
        cell: With its formats.
        parameters: Quantized W and R, and B, P and hidden_bias where the cell has them.
    """
    others = {k: a for k, a in parameters.items() if k in ("B", "P", "hidden_bias")}
    try:
        return isinstance(integer_form(cell, parameters["W"], parameters["R"], others), FoldedFixedPoint)
    except NotHandled:
        return False


def is_within(model: Model, state: Value, bound: float) -> bool:
    """Whether an initial state is known to lie within the bound: a constant that does."""
    held = Constants(model).array(state)
    return held is not None and bool(np.all(np.abs(held) <= bound))


def bound_to_exceed(model: Model, cell: QuantizedCell, state: Value | None) -> float:
    """The bound of some quantized hidden states, if an initial state may lie beyond it; else 0."""
    bound = state_bound(cell, some=True)
    return bound if bound and state is not None and not is_within(model, state, bound) else 0.0
