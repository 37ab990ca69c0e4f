"""Rounding to integers in standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnqc.formats.rounding import QONNX_ONLY, Rounding
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder


def emit_rounding(b: Builder, units: Value, rounding: Rounding, name: str, real: Any = np.float32) -> Value:
    """Rounds `units` to integers; the sign of zeros is undefined.

    Args:
        b: Collects the nodes.
        units: Of type `real`, float32 or float64.
        rounding: The rounding mode.
        name: Prefix of the nodes' names.
        real: The type.
    """
    if rounding is Rounding.HALF_EVEN:
        return b.op("Round", [units], f"{name}.rounded")
    if rounding is Rounding.CEIL:
        return b.op("Ceil", [units], f"{name}.rounded")
    if rounding is Rounding.FLOOR:
        return b.op("Floor", [units], f"{name}.rounded")
    if rounding in (Rounding.HALF_UP, Rounding.HALF_EVEN_UP):
        raised = b.op("Add", [units, b.model.constant(0.5, real)], f"{name}.raised")
        if rounding is Rounding.HALF_UP:
            return b.op("Floor", [raised], f"{name}.rounded")
        up = b.op("Floor", [raised], f"{name}.up")
        negative = b.op("Less", [units, b.model.constant(0.0, real)], f"{name}.negative")
        return b.op("Where", [negative, up, b.op("Round", [units], f"{name}.even")], f"{name}.rounded")
    if rounding in QONNX_ONLY:
        size: Value = b.op("Abs", [units], f"{name}.size")
        if rounding is Rounding.HALF_TOWARD_ZERO:
            size = b.op("Sub", [size, b.model.constant(0.5, real)], f"{name}.size.lowered")
        sign = b.op("Sign", [units], f"{name}.sign")
        return b.op("Mul", [sign, b.op("Ceil", [size], f"{name}.size.rounded")], f"{name}.rounded")
    sign = b.op("Sign", [units], f"{name}.sign")
    size = b.op("Mul", [units, sign], f"{name}.size")  # OpenVINO drops an Abs of values computed from constants
    if rounding is Rounding.HALF_AWAY:
        size = b.op("Add", [size, b.model.constant(0.5, real)], f"{name}.size.raised")
    else:
        assert rounding is Rounding.TOWARD_ZERO
    return b.op("Mul", [sign, b.op("Floor", [size], f"{name}.size.rounded")], f"{name}.rounded")
