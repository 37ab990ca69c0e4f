"""Emits sigmoid and tanh of a custom cell as the tables of Vitis' hardware, in standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.vitis_tables import ENTRIES, STEP_BITS, UNIT, vitis_ends, vitis_table
from rnnqc.formats.format import Format
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.render.operands.table_step import take

Array = npt.NDArray[Any]
FIRST, LAST = "steps", "entries"
"""Suffixes of a point's name for the first and the last value of a table."""


def vitis_entries(activation: str, format_: Format) -> Array:
    """Returns float32 `[2050]`, rounded: the value below the table of "Sigmoid" or "Tanh", its entries, that above."""
    below, above = vitis_ends(activation)
    values = np.concatenate([[below], vitis_table(activation), [above]]) * UNIT
    return np.asarray(format_.fake_quantize(values.astype(np.float32)))


def emit_vitis_table(b: Builder, name: str, argument: Value, activation: str, format_: Format) -> Value:
    """Returns the entry at or below each value of `argument`, float32 of any shape.

    Args:
        b: Collects the nodes.
        name: The name of the values.
        argument: The argument of the activation.
        activation: "Sigmoid" or "Tanh".
        format_: The format of the entries.
    """
    table = b.model.constant(vitis_entries(activation, format_), np.float32)
    units = b.op("Mul", [argument, b.f32(2.0 ** STEP_BITS[activation])], f"{name}.{FIRST}")
    index = b.op("Add", [b.op("Floor", [units], f"{name}.floor"), b.f32(ENTRIES // 2 + 1)], f"{name}.index")
    inside = b.op("Clip", [index, b.f32(0.0), b.f32(ENTRIES + 1)], f"{name}.inside")
    whole = b.cast(inside, np.int32, f"{name}.int32")
    # NaN converts to an arbitrary integer. Bounding it selects the value below the table.
    bounded = b.op("Min", [b.op("Max", [whole, b.i32(0)], f"{name}.above"), b.i32(ENTRIES + 1)], f"{name}.bounded")
    return b.op(
        "Reshape", [take(b, table, bounded, name), b.op("Shape", [argument], f"{name}.shape")], f"{name}.{LAST}"
    )
