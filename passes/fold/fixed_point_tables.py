"""Activation tables of fixed-point arithmetic: one value for each quantized value of the argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import Activation
from rnnqc.cells.fixed_point_numbers import FixedPointQuantizer
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.tables import KNOT_UNIT, PIECEWISE_LINEAR, piecewise_linear_tanh
from rnnqc.cells.vitis_tables import ENTRIES, STEP_BITS, VITIS, vitis_values
from rnnqc.errors import NotHandled
from rnnqc.formats.fix_position import position_of
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.fold.fold_lut import FloatArray, linear_length
from rnnqc.passes.formats.point_format import INDEX_BITS

EXACT = "exact"
"""A kind of tables, beside `PIECEWISE_LINEAR` and `VITIS`."""


@dataclass(frozen=True)
class VitisSteps:
    """The parameters of a Vitis table.

    Attributes:
        activation: "Sigmoid" or "Tanh".
        fix_position: Of the argument: a quantized value q represents `q * 2**-fix_position`.
        low: The smallest quantized value.
        high: The largest quantized value.
    """

    activation: str
    fix_position: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class FixedPointTable:
    """An activation table.

    Attributes:
        values: float32, one for each quantized value of the argument in ascending order.
        vitis: Parameters that describe the same table in fewer bytes; None if there are none.
    """

    values: FloatArray
    vitis: VitisSteps | None = None


def place(tables: list[FixedPointTable], table: FixedPointTable) -> int:
    """Returns the first entry of the table in the concatenation of `tables`, adding it if missing."""
    start = 0
    for other in tables:
        if np.array_equal(other.values, table.values):
            return start
        start += len(other.values)
    tables.append(table)
    return start


def fixed_point_table(
    cell: QuantizedCell, name: str, activation: Activation, argument: FixedPointQuantizer
) -> FixedPointTable:
    """Returns the table of an activation, with values rounded to the format of `<name>.activation` if there is one.

    Raises:
        NotHandled: No Vitis table exists for this argument.
    """
    point = cell.points[f"{name}.activation"]
    codes = np.arange(argument.low, argument.high + 1)
    bits = max(2, max(-argument.low, argument.high + 1, 1).bit_length())
    kind = point.table or EXACT
    n = linear_length(activation, bits, argument.scale) if activation.name in STEP_BITS else None
    if kind == VITIS and activation.name in STEP_BITS:
        values, steps = _vitis_values(name, activation, argument, codes)
        quantized = on_activation_grid(point, values)
        pays = len(values) > 2 * ENTRIES and np.array_equal(values, quantized)
        return FixedPointTable(quantized, steps if pays else None)
    if kind == PIECEWISE_LINEAR and n is not None:
        tanh = piecewise_linear_tanh(codes.astype(np.int64), n) * KNOT_UNIT
        values = (tanh if activation.name == "Tanh" else 0.5 + 0.5 * tanh).astype(np.float32)
    else:
        values = np.asarray(activation(codes * argument.scale), np.float64).astype(np.float32)
    return FixedPointTable(on_activation_grid(point, values))


def _vitis_values(
    name: str, activation: Activation, argument: FixedPointQuantizer, codes: npt.NDArray[Any]
) -> tuple[FloatArray, VitisSteps]:
    half = 2 ** (INDEX_BITS - 1)
    if not is_power_of_two(argument.scale) or codes[0] < -half or codes[-1] >= half:
        raise NotHandled(
            f"{activation.name} has no Vitis table with this argument.",
            f"{name}.activation.table = {VITIS}, codes {codes[0]} to {codes[-1]} of {argument.scale:.9g}",
            "arguments that are signed powers of two have one; choose another table",
        )
    position = position_of(argument.scale)
    values = vitis_values(activation.name, position, INDEX_BITS)[codes + half]
    return np.asarray(values), VitisSteps(activation.name, position, int(codes[0]), int(codes[-1]))


def on_activation_grid(point: PointFormat, values: FloatArray) -> FloatArray:
    """Returns `values` in the format of an activation's point; unchanged without one."""
    return values if point.static is None else point.static.fake_quantize(values)
