"""The formats that the lut arithmetic supports, and the scales and limits of their values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rnnqc.cells.activations import RELU_TABLE, TABLE
from rnnqc.cells.base import CELL
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.lut_numbers import STATE_LIMIT
from rnnqc.cells.operator_version import ROW_CODES
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.vitis_tables import VITIS
from rnnqc.errors import NotHandled
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import CHAINED, EMBEDDED, ROWS
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.formats.point_format import INDEX_BITS, cell_is_bounded

WIDE_CELL_BITS = 24
EXACT_POINTS = frozenset(
    ("accumulator", "cell_state.kept", "cell_state.added", "hidden_state.kept", "hidden_state.added", "hidden_state")
)
"""Points that this arithmetic keeps exact."""


@dataclass(frozen=True)
class ValueFormat:
    """Conversion of a value that weights multiply to unsigned integers.

    Attributes:
        mode: "static", "codes" (another cell supplies quantized values), "dynamic_row" or `ROW_CODES`.
        scale: Real value of one LSB; 0 for scales of rows, and for an absent value.
        zero_point: The quantized value of 0.
        bits: 8 or 16.
    """

    mode: str
    scale: float
    zero_point: int
    bits: int


@dataclass(frozen=True)
class LutFormats:
    """The formats of one cell.

    Attributes:
        W: Format of W, symmetric, up to 8 bits.
        R: Format of R.
        x: Format of the input.
        h: Format of the hidden state.
        reset: Format of `r * h` in a GRU with linear_before_reset = 0.
        cell_scale: Real value of one LSB of the cell state; 0 for a float one.
        cell_max: Its largest magnitude in LSB.
    """

    W: Format
    R: Format
    x: ValueFormat
    h: ValueFormat
    reset: ValueFormat
    cell_scale: float
    cell_max: float

    @classmethod
    def of(cls, cell: QuantizedCell) -> LutFormats:
        """Returns the formats of a cell; raises NotHandled for unsupported ones."""
        _check_exact_points(cell)
        w, r = _weight_format(cell, "W"), _weight_format(cell, "R")
        x, h = _value_format(cell, "input"), _value_format(cell, "hidden")
        reset = _reset_format(cell, h)
        cell_scale, cell_max = _cell_format(cell) if cell.type.cell_state else (0.0, 0.0)
        return cls(w, r, x, h, reset, cell_scale, cell_max)


def _reset_format(cell: QuantizedCell, hidden: ValueFormat) -> ValueFormat:
    """The format of `r * h` in a GRU with linear_before_reset = 0; without a scale for other cells."""
    if not cell.resets_state:
        return ValueFormat(hidden.mode, 0.0, 128, hidden.bits)
    reset = _value_format(cell, RESET_HIDDEN)
    if (reset.mode, reset.bits) != (hidden.mode, hidden.bits):
        raise NotHandled(
            "the hidden state and r * h have different formats.",
            f"hidden: {hidden.bits} bits, {hidden.mode}; {RESET_HIDDEN}: {reset.bits} bits, {reset.mode}",
            "give both the same bits and mode, or use --form qcdq",
        )
    return reset


def _check_exact_points(cell: QuantizedCell) -> None:
    """Raises NotHandled for a quantized point that this form computes exactly."""
    for name, point in cell.points.items():
        on_grid = name.endswith(".activation") and (point.static is not None or point.table == VITIS)
        exact = name in EXACT_POINTS or name in cell.type.product_points or on_grid
        if not point.is_float and exact:
            action = "leave it float, or use --form qcdq"
            raise NotHandled(f"{name} is quantized.", f"{name}.bits = {point.bits}", action)


def _weight_format(cell: QuantizedCell, name: str) -> Format:
    point = cell.points[f"{name}.weight"]
    held = point.static
    if held is None:
        raise NotHandled(
            f"{name} stays float in this recipe.",
            f"{name}.weight.bits = none",
            "quantize the weights, or use --form qcdq",
        )
    if held.binary or not held.is_symmetric:
        raise NotHandled(
            f"{name} is not symmetric, or binary.",
            f"{name}.weight: {point.bits} bits, signed = {held.signed}, zero_point = {held.zero_point}",
            "signed values with zero_point = 0 have an integer form; use --form qcdq",
        )
    if held.bits > 8:
        raise NotHandled(
            f"{name} has {held.bits} bits.",
            f"{name}.weight.bits = {held.bits}",
            "up to 8 bits have an integer form; use --form qcdq",
        )
    return held


def _value_format(cell: QuantizedCell, name: str) -> ValueFormat:
    """The conversion of `name`, which weights multiply, to integers."""
    point, held = cell.points[name], cell.points[name].format
    if point.mode == EMBEDDED:
        return ValueFormat(ROW_CODES, 0.0, 2 ** (point.integers.bits - 1), point.integers.bits)
    if held is None or held.bits not in (8, 16) or held.signed or held.rounding is not Rounding.HALF_EVEN:
        found = "float" if held is None else f"{point.bits} bits, signed = {held.signed}, {held.rounding.value}"
        raise NotHandled(
            f"the {name} has a format without integer form.",
            f"{name}: {found}",
            "unsigned values of 8 or 16 bits, rounded half to even, have one; use --form qcdq",
        )
    if point.mode == ROWS:
        return ValueFormat("dynamic_row", 0.0, held.zero_point, held.bits)
    mode = "codes" if point.mode == CHAINED else "static"
    return ValueFormat(mode, point.complete.scale[0], held.zero_point, held.bits)


def gate_format(cell: QuantizedCell, k: int) -> tuple[float, int]:
    """Returns scale and bits of the pre-activation of a tabulated gate; 1 and 0 for other gates."""
    activation = cell.gate_activation(k)
    if activation.kind != TABLE:
        return 1.0, 0
    name = cell.type.gates[k]
    point, value = cell.points[f"{name}.acc"], cell.points[f"{name}.activation"]
    held = point.static
    if held is None or value.is_float or held.rounding is not Rounding.HALF_UP:
        rounding = None if held is None else held.rounding.value
        raise NotHandled(
            f"the {name.replace('_', ' ')} is not tabulated.",
            f"{name}: acc.bits = {point.bits}, activation.bits = {value.bits}, {rounding}",
            "quantize pre-activation (rounding half_up) and activation, or use --form qcdq",
        )
    if not held.is_symmetric:
        raise NotHandled(
            f"the {name.replace('_', ' ')} has a range that is not symmetric around 0.",
            f"{name}.acc: signed = {held.signed}, zero_point = {held.zero_point}",
            "symmetric pre-activations have an integer form; use --form qcdq",
        )
    if held.bits > INDEX_BITS:
        raise NotHandled(
            f"the {name.replace('_', ' ')} has too large a table.",
            f"{name}.acc.bits = {held.bits}",
            f"pre-activations of up to {INDEX_BITS} bits have an integer form; use --form qcdq",
        )
    return held.scale[0], held.bits


def _cell_format(cell: QuantizedCell) -> tuple[float, float]:
    """Scale and largest multiple of the cell state; zeros for a float one."""
    held, output = cell.points["cell_state"].static, cell.activations[2]
    if output.kind in (TABLE, RELU_TABLE) and cell.points["hidden.activation"].is_float:
        raise NotHandled(
            "the output activation is not tabulated.",
            "hidden.activation.bits = none",
            "tabulate it, or use --form qcdq",
        )
    if held is None:
        return 0.0, 0.0
    gate = cell.gate_activation(CELL)
    if held.rounding is not Rounding.HALF_EVEN or output.kind == RELU_TABLE or gate.kind != TABLE:
        raise NotHandled(
            "the cell state has a format without integer form.",
            f"cell_state: {held.bits} bits, {held.rounding.value}, gate {gate.name}, output {output.name}",
            "whole numbers rounded half to even, with tabulated activations, have one; use --form qcdq",
        )
    # float32 is exact for 24-bit integers: this cell only needs the limit that keeps it finite.
    wide = held.bits == WIDE_CELL_BITS and cell_is_bounded(cell, math.inf)
    return held.scale[0], STATE_LIMIT if wide else 2.0 ** (held.bits - 1) - 1


def state_bound(cell: QuantizedCell, *, some: bool = False) -> float:
    """Returns the magnitude up to which the hidden format holds all computed states; 0 without an initial state.

    Also 0 if the range of the quantized values does not follow from the activations alone: for all quantized hidden
    states, or, with `some`, for all or some of those of a GRU.
    """
    points = [cell.points["hidden"]]
    if cell.resets_state:
        points.append(cell.points[RESET_HIDDEN])
    bounds = [p.bound or 0.0 for p in points]
    if cell.initial_h is None or not (any if some else all)(bounds):
        return 0.0
    bound = float(np.float32(max(bounds)))
    if cell.type.reads_hidden and not is_power_of_two(bound):
        # Rounding (1 - z) * n + z * h may slightly exceed the largest n.
        return float(np.float32(bound * (1.0 + 2.0**-8)))
    return bound
