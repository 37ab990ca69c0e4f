"""A node of a fused operator in numpy, for every type of cell and every arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.attributes import FIXED_POINT_ARITHMETICS
from rnnqc.cells.fused_nodes import MORE_X, X_FACTOR
from rnnqc.cells.types import CellType
from rnnqc.reference.fixed_point_cell import FixedPointCell
from rnnqc.reference.loop import ReferenceCell
from rnnqc.reference.lut_cell import LutCell
from rnnqc.reference.recording import Recorder


def run(
    type_: CellType, inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]
) -> dict[str, npt.NDArray[Any]]:
    """Computes all outputs of one node.

    Args:
        type_: The type of cell.
        inputs: Arrays by the operator's input names; absent optional inputs are left out.
        attributes: Values by the operator's attribute names; defaults may be left out.

    Returns:
        `Y` float32 [T, B, H]; `Y_h` and, for a type with a cell state, `Y_c` float32 [B, H]; for static quantized
        hidden states of 8 bits `Y_codes` uint8 [T, B, H]. With the attributes `y_direction_axis` and
        `state_direction_axis` Y is [T, 1, B, H], Y_h and Y_c are [1, B, H].

    Raises:
        ValueError: An unknown or missing attribute or input, `hidden_bias` without `linear_before_reset` or the other
            way round, T = 0, B = 0, a sequence length outside 0 .. T, or packed weights whose groups do not fit
            together.
    """
    return reference(type_, inputs, attributes).run()


def reference(
    type_: CellType,
    inputs: Mapping[str, npt.NDArray[Any]],
    attributes: Mapping[str, Any],
    recorder: Recorder | None = None,
) -> ReferenceCell:
    """Returns the node as an object that runs step by step and records its values; arguments and errors as `run`."""
    fixed_point = attributes.get("arithmetic") in FIXED_POINT_ARITHMETICS
    return (FixedPointCell if fixed_point else LutCell)(type_, with_whole_x(inputs), attributes, recorder)


def with_whole_x(inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Returns the inputs of a node with the further parts of its input and the factors in `X`."""
    made = {n: v for n, v in inputs.items() if n not in (*MORE_X, X_FACTOR)}
    parts = [inputs[n] for n in ("X", *MORE_X) if n in inputs]
    if len(parts) > 1:
        made["X"] = np.concatenate(parts, axis=-1)
    if X_FACTOR in inputs:
        with np.errstate(all="ignore"):
            made["X"] = made["X"] * inputs[X_FACTOR]
    return made
