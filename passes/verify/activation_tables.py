"""The expected entries of activation tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE, Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.fixed_point_numbers import FIXED_POINT32
from rnnqc.cells.stages import points_of
from rnnqc.cells.tables import KNOT_UNIT, PIECEWISE_LINEAR, piecewise_linear_tanh
from rnnqc.cells.vitis_tables import STEP_BITS, VITIS, vitis_values
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import FLOAT
from rnnqc.passes.fold.fold_lut import RESIDUAL_BITS, linear_length
from rnnqc.passes.formats.point_format import INDEX_BITS

Array = npt.NDArray[Any]
LINEAR_ERROR = {"Tanh": 1.02e-3, "Sigmoid": 5.2e-4}
"""Largest difference between the piecewise-linear tables and the functions, with a small margin."""
_VITIS_BITS = 16


def table_values(activation: Activation, kind: str, codes: Array, step: float, bits: int) -> Array:
    """Returns the values of a table in float64, before rounding to a format of their own.

    Args:
        activation: The activation.
        kind: "piecewise-linear", "exact" or "vitis", as in recipes.
        codes: The quantized values of the argument.
        step: Real value of one quantization step.
        bits: Bits of a quantized value.
    """
    if kind == VITIS and activation.name in STEP_BITS:
        values = vitis_values(activation.name, -round(float(np.log2(step))), _VITIS_BITS)
        return np.asarray(values[codes + 2 ** (_VITIS_BITS - 1)], np.float64)
    n = linear_length(activation, bits, step) if activation.name in STEP_BITS else None
    if kind == PIECEWISE_LINEAR and n is not None:
        tanh = piecewise_linear_tanh(codes.astype(np.int64), n) * KNOT_UNIT
        return np.asarray(tanh if activation.name == "Tanh" else 0.5 + 0.5 * tanh)
    return np.asarray(activation(codes * step), np.float64)


def activated(cell: Cell, name: str, argument: Array, own: Format | None, arithmetic: str) -> Array | None:
    """Returns the activation of real arguments according to the tables of a cell; None if there is no table.

    Args:
        cell: The cell with its formats.
        name: A gate, or "hidden" for the output activation.
        argument: Real values.
        own: The format of the argument, or None.
        arithmetic: `FIXED_POINT`, `FIXED_POINT32` or "" for the lut arithmetic.
    """
    gates, activation = cell.type.gates, cell.activation_of(name)
    assert activation is not None
    kind = points_of(cell).get(f"{name}.activation", FLOAT).table or "exact"
    if activation.kind == RELU_TABLE and not arithmetic:
        bits = RESIDUAL_BITS if name in gates else INDEX_BITS
        step = activation.limit / 2 ** (bits - 1)
        codes = np.clip(np.floor(argument / step + 0.5), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return np.asarray(np.maximum(argument, 0.0) + activation.residual(codes * step))
    if own is None and activation.kind == TABLE and name not in gates:
        step, bits = activation.limit / 2 ** (INDEX_BITS - 1), INDEX_BITS
        codes = np.clip(np.rint(argument / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    elif own is not None:
        step = float(own.scale[0])
        codes = own.quantize(argument.astype(np.float32)).astype(np.int64) - own.zero_point
        bits = max(2, max(own.zero_point - own.minimum, own.maximum - own.zero_point + 1, 1).bit_length())
    else:
        return None
    if name == "hidden" and activation.kind == TABLE and bits > INDEX_BITS:
        codes, bits = np.clip(codes, -(2 ** (INDEX_BITS - 1)), 2 ** (INDEX_BITS - 1) - 1), INDEX_BITS
    if arithmetic == FIXED_POINT32:
        values = activation((codes.astype(np.float32) * np.float32(step)).astype(np.float64))
    else:
        values = table_values(activation, kind, codes.astype(np.int64), step, bits)
    return np.asarray(values, np.float64)
