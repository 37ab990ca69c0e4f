"""Resolves a recipe for each cell, as far as it determines the file: so overrides without effect can be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.stages import QuantizedCell
from rnnqc.errors import NotHandled
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint
from rnnqc.passes.fold.integer_forms import integer_form, without_long_codes
from rnnqc.passes.formats.override_effects import scales_alone
from rnnqc.passes.formats.quantized_parameters import QuantizedParameters
from rnnqc.passes.qcdq.emit_qcdq import WIDEST, emit_flags, is_usual

Arrays = Mapping[str, npt.NDArray[np.float32]]
WEIGHTS = {"W": "W.weight", "R": "R.weight"}
PARAMETERS = (*WEIGHTS.values(), "bias")


def written_of(
    cell: QuantizedCell,
    arrays: Arrays,
    parameters: Callable[[QuantizedCell], QuantizedParameters],
    *,
    integer: bool,
    exceeds: bool,
) -> Iterator[Any]:
    """Yields everything that determines a cell's nodes and constants in the file, cheapest first.

    Args:
        cell: The cell with its formats.
        arrays: W, R, B and hidden_bias as floats.
        parameters: Quantizes the parameters.
        integer: Whether the cell gets integer arithmetic, if its formats support it.
        exceeds: Whether a state may exceed the bounds of its format, which a float cell then splits.
    """
    scales = {p: scales_alone(cell.points[p]) for p in WEIGHTS.values()}
    yield {p: f.with_one_scale() for p, f in scales.items()} if integer else scales
    for part in (_with_plain_weights(cell), cell):
        made = parameters(part)
        as_floats = made.codes, made.biases, _quantizers(part, exceeds)
        yield _numbers(part, arrays, made, as_floats) if integer else as_floats


def _with_plain_weights(cell: QuantizedCell) -> QuantizedCell:
    """The cell with the same weight scales, but with weights that are rounded separately, which is fast."""
    for name in WEIGHTS.values():
        cell = cell.with_point(name, scales_alone(cell.points[name]))
    return cell


def _numbers(cell: QuantizedCell, arrays: Arrays, made: QuantizedParameters, as_floats: tuple[Any, ...]) -> Any:
    """The operands of the integer form; `as_floats` for a cell without one."""
    parameters = {**arrays, **made.codes, **made.biases}
    try:
        folded = integer_form(without_long_codes(cell), parameters["W"], parameters["R"], parameters)
    except NotHandled:
        return as_floats
    return folded if isinstance(folded, FoldedFixedPoint) else (folded, made.codes)


def _quantizers(cell: QuantizedCell, exceeds: bool) -> Any:
    """The quantizers of a float cell, and its options."""
    made = {p: _of_weights(f) if p in WEIGHTS.values() else _of_values(p, f) for p, f in cell.points.items()}
    bounds = {p: f.bound for p, f in cell.points.items() if exceeds}
    return {p: f for p, f in made.items() if p != "bias"}, bounds, cell.rounds_output, emit_flags(cell)


def _of_weights(point: PointFormat) -> PointFormat:
    """The settings of the operators after quantized weights: their limits if they have a DequantizeLinear."""
    plain: PointFormat = scales_alone(point)
    if point.static is None or point.static.bits > WIDEST:
        return plain
    return replace(plain, format=replace(point.static, rounding=Rounding.HALF_EVEN))


def _of_values(name: str, point: PointFormat) -> Any:
    """The settings of a quantizer's operators: Div, Round, Clip and Mul only have limits."""
    held = point.static
    if point.format is None and name != "accumulator":
        return FLOAT
    if held is not None and not is_usual(held):
        return held.scale, held.axis, held.low, held.high, held.rounding
    return point.bits, point.format
