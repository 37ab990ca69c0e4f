"""Attributes of the fused operators, with their defaults, by type of cell and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnqc.cells.fixed_point_numbers import FIXED_POINT, FIXED_POINT32, quantizers_of
from rnnqc.cells.operator_version import VERSION
from rnnqc.cells.packed_weights import PACKED_DEFAULTS
from rnnqc.cells.types import CellType

FIXED_POINT_ARITHMETICS = (FIXED_POINT, FIXED_POINT32)
LUT_REQUIRED = ("hidden_size", "gate_min", "gate_max")
FIXED_POINT_REQUIRED = ("hidden_size", "grid_scale", "grid_zero_point", "grid_min", "grid_max")


def without_defaults(type_: CellType, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a node without those that have their default values."""
    arithmetic = attributes.get("arithmetic")
    known = lut_defaults(type_) if arithmetic is None else fixed_point_defaults(type_)
    # Compared as text: 0.0 and -0.0 differ.
    defaults = {k: repr(list(v) if isinstance(v, tuple) else v) for k, v in known.items() if k != "arithmetic"}
    return {k: v for k, v in attributes.items() if repr(v) != defaults.get(k)}


def lut_defaults(type_: CellType) -> dict[str, Any]:
    """Returns the attributes of look-up arithmetic with their defaults, except the required ones."""
    gates = len(type_.gates)
    cell_state = {
        "cell_scale": 0.0,
        "cell_max": 32767.0,
        "output_kind": "table",
        "output_alpha": 0.0,
        "output_beta": 0.0,
        "cell_index_scale": 0.0,
        "one": 1.0,
    }
    return {
        "direction": "forward",
        "x_mode": "dynamic_row",
        "x_scale": 0.0,
        "x_zero_point": 128,
        "h_mode": "static",
        "h_scale": 0.0,
        "h_zero_point": 128,
        "h_bound": 0.0,
        "gate_kinds": ",".join(["table"] * gates),
        "gate_alpha": (0.0,) * gates,
        "gate_beta": (0.0,) * gates,
        "gate_table_offset": (0,) * gates,
        "gate_index_scale": (0.0,) * gates,
        "gate_index_size": (0,) * gates,
        **PACKED_DEFAULTS,
        VERSION: 1,
        "x_bits": 8,
        "h_bits": 8,
        "y_direction_axis": 0,
        "state_direction_axis": 0,
        "arithmetic": "tables",
        **({} if type_.flag is None else {type_.flag: 0}),
        **(cell_state if type_.cell_state else {}),
        **({} if type_.candidate is None else {"reset_scale": 0.0, "reset_zero_point": 128}),
    }


def fixed_point_defaults(type_: CellType) -> dict[str, Any]:
    """Returns the attributes of fixed-point arithmetic with their defaults, except the required ones."""
    gates = len(type_.gates)
    return {
        "direction": "forward",
        "x_mode": "dynamic_row",
        "grid_rounding": "half_even",
        "gate_table_offset": (0,) * gates,
        "gate_min": (-np.inf,) * gates,
        "gate_max": (np.inf,) * gates,
        "accumulator_bits": 0,
        **PACKED_DEFAULTS,
        VERSION: 1,
        "grid_offset": (0,) * len(quantizers_of(type_)),
        "arithmetic": FIXED_POINT,
        **({} if type_.flag is None else {type_.flag: 0}),
        **({"one": 1.0, "rounded_output": 0} if type_.cell_state else {}),
    }
