"""Names of the tensors of a cell (docs/dump.md, *Files*), and the interface that receives them from a reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy.typing as npt

from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.types import CellType

CODES, ROW_SCALE, ZERO_POINT = ".codes", ".row_scale", ".zero_point"
"""Suffixes of names: a tensor's integers, and the scale and zero point of each row where they differ by row."""


class Recorder(Protocol):
    """Receives the values of a cell."""

    def record(self, name: str, step: int | None, values: npt.NDArray[Any]) -> None:
        """Receives a value.

        Args:
            name: The tensor for real values; with `.codes` its integers, with `.row_scale` and `.zero_point` those of
                each row.
            step: Number of the step in the order of the loop, `values` are `[B,K]`; None for the whole sequence
                `[T,B,K]`, in the order of time.
            values: The array; it does not change later.
        """


def tensor_names(type_: CellType, linear_before_reset: bool) -> Iterator[str]:
    """Yields the tensors that an integer cell may have, in the order in which a step computes them.

    Args:
        type_: LSTM, GRU or RNN.
        linear_before_reset: GRU: whether the reset gate multiplies the matmul with R.
    """
    yield from ("input", "x.product", *(f"{g}.input_product" for g in type_.gates))
    yield from ("hidden.previous", "hidden.product")
    for k, gate in enumerate(type_.gates):
        candidate = k == type_.candidate
        if candidate and not linear_before_reset:
            yield from (f"{RESET_HIDDEN}.value", RESET_HIDDEN, f"{RESET_HIDDEN}.product")
        yield f"{gate}.hidden_product"
        if candidate and linear_before_reset:
            yield RESET_PRODUCT
        yield from (f"{gate}.{part}" for part in ("preactivation", "acc", "activation"))
    yield from type_.state_points
    yield from ("hidden.activation",) if type_.cell_state else ()
    yield from ("hidden.value", "hidden")
