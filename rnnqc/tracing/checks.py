"""Compares the outputs of a cell in a run with those that its specification computes from the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, Cell
from rnnqc.cells.fixed_point_numbers import FixedPointNumbers
from rnnqc.cells.stages import IntegerCell, QuantizedCell, points_of
from rnnqc.errors import CompileError, InternalError
from rnnqc.evaluation.numerics import same_bits

Array = npt.NDArray[Any]


class DeviationError(InternalError):
    """The outputs of a cell differ from its specification."""


def check_outputs(cell: Cell, outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Compares the outputs of a run with those of the specification.

    Raises:
        DeviationError: They differ.
    """
    for name, value in outputs.items():
        if not same_bits(value, expected[name]):
            same_shape = value.shape == expected[name].shape
            where = np.argwhere(value != expected[name]).tolist() if same_shape else []
            place = f" at {where[0]}" if where else ""
            raise DeviationError(
                f"Cell {cell.name!r}: output {name!r} of the run differs from the specification"
                f"{place}. Resolution: report it, with the model and the data."
            )


def check_constants(cell: Cell, made: Mapping[str, Array], first: Mapping[str, Array]) -> None:
    """Checks that the computed constants of a cell have the same values as in the first run.

    Raises:
        CompileError: A value differs.
    """
    for name, array in made.items():
        if not same_bits(array, first[name]):
            raise CompileError(
                f"Cell {cell.name!r}: its input {name!r} depends on the data.",
                supported="cells whose constants are constant",
                action="dump one call at a time",
            )


def description_of(cell: Cell) -> dict[str, Any]:
    """Returns the description of a cell for an index."""
    coupled = [FORGET * cell.hidden_size, (FORGET + 1) * cell.hidden_size] if cell.input_forget else None
    return {
        "op": cell.op,
        "form": Cell.form if isinstance(cell, QuantizedCell) and cell.is_float else cell.form,
        "direction": "reverse" if cell.reverse else "forward",
        "arithmetic": _arithmetic(cell),
        "hidden_size": cell.hidden_size,
        "input_size": cell.input_size,
        **({"unused_columns": coupled} if coupled else {}),
        **({"attributes": cell.numbers.attributes(cell)} if isinstance(cell, IntegerCell) else {}),
        "points": {name: point.described() for name, point in points_of(cell).items() if not point.is_float},
    }


def _arithmetic(cell: Cell) -> str:
    """Returns the name of a cell's arithmetic in an index."""
    if not isinstance(cell, IntegerCell):
        return "float"
    return cell.numbers.arithmetic if isinstance(cell.numbers, FixedPointNumbers) else "tables"
