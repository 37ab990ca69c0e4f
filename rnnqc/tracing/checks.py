"""Compares what a run made of a cell with what its specification makes of the same inputs."""

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
    """A run whose cells did not do what their specification says."""


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
    """Checks that what nodes make of a cell's constants is what it was in the first run.

    Raises:
        CompileError: Something differs.
    """
    for name, array in made.items():
        if not same_bits(array, first[name]):
            raise CompileError(
                f"Cell {cell.name!r}: its input {name!r} depends on the data.",
                supported="cells whose constants are constant",
                action="dump one call at a time",
            )


def description_of(cell: Cell) -> dict[str, Any]:
    """What an index says of a cell."""
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
    """What an index calls the arithmetic of a cell."""
    if not isinstance(cell, IntegerCell):
        return "float"
    return cell.numbers.arithmetic if isinstance(cell.numbers, FixedPointNumbers) else "tables"
