"""`ai.rnnqc::QuantGRUCell` and `ai.rnnqc::QuantRNNCell` in numpy, from docs/quant_gru_cell.md sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.reference import grid_cell
from rnnqc.reference.grid_gru import GridGru, GridRnn
from rnnqc.reference.integer_cell import (
    F32,
    FloatArray,
    IntegerCell,
    State,
    limited,
    with_direction_axes,
    without_direction_axis,
)

_GRU_OPTIONAL: dict[str, Any] = {"linear_before_reset": 0, "reset_scale": 0.0, "reset_zero_point": 128}


def run_gru(inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Computes all outputs of a QuantGRUCell node.

    Args:
        inputs: arrays by the operator's input names; absent optional inputs are left out.
        attributes: values by the operator's attribute names; defaults may be left out.

    Returns:
        `Y` float32 [T, B, H], `Y_h` float32 [B, H] and, for static hidden codes of 8 bits, `Y_codes` uint8 [T, B, H].
        With the attributes `y_direction_axis` and `state_direction_axis` Y is [T, 1, B, H] and Y_h [1, B, H].

    Raises:
        ValueError: an unknown or missing attribute or input, `hidden_bias` without `linear_before_reset` or the other
            way round, T = 0, B = 0, a sequence length outside 0 .. T, or packed weights whose groups do not fit
            together.
    """
    return _run(_Gru, GridGru, inputs, attributes)


def run_rnn(inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Computes all outputs of a QuantRNNCell node, as `run_gru` does."""
    return _run(_Rnn, GridRnn, inputs, attributes)


def _run(
    tables: type[_Gru | _Rnn],
    grid: type[GridGru | GridRnn],
    inputs: Mapping[str, npt.NDArray[Any]],
    attributes: Mapping[str, Any],
) -> dict[str, npt.NDArray[Any]]:
    cell = grid if attributes.get("arithmetic") == "grid" else tables
    with np.errstate(all="ignore"):
        results, _ = cell(without_direction_axis(inputs, attributes, ("initial_h",)), attributes).loop()
    with_direction_axes(results, attributes)
    return results


class _Gru(IntegerCell):
    OPERATOR = "QuantGRUCell"
    GATES = ("z", "r", "h")
    KEEPS_STATE = True

    def __init__(self, inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> None:
        super().__init__(inputs, attributes, _GRU_OPTIONAL, ignored=grid_cell.attributes_of(GridGru))
        self.linear_before_reset = bool(self.attributes["linear_before_reset"])
        if self.linear_before_reset != ("hidden_bias" in inputs):
            raise ValueError("QuantGRUCell: linear_before_reset and hidden_bias belong together")

    def initial_state(self) -> State:
        h = limited(self.initial("initial_h"))
        return {**self.hidden_codes(h), "real": h}

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        h = state["real"]
        both = slice(None) if self.linear_before_reset else slice(2 * self.hidden)
        u = self.recurrent(state, both)
        if self.loses:
            u = self.without_loss(u, h, both)
        z = self.gate("z", np.asarray(self.part(u, "z") + self.part(p, "z")))
        r = self.gate("r", np.asarray(self.part(u, "r") + self.part(p, "r")))
        if self.linear_before_reset:
            u_h = np.asarray(self.part(u, "h") + self.inputs["hidden_bias"])
            g = np.asarray(r * u_h + self.part(p, "h"))
        else:
            last, product = slice(2 * self.hidden, None), np.asarray(r * h)
            u_h = self.recurrent(self.hidden_codes(product, "reset"), last, "reset")
            if self.loses:
                u_h = self.without_loss(u_h, product, last, "reset")
            g = np.asarray(u_h + self.part(p, "h"))
        n = self.gate("h", g)
        y = limited(np.asarray((F32(1) - z) * n + z * h))
        return y, {**self.hidden_codes(y), "real": y}


class _Rnn(IntegerCell):
    OPERATOR = "QuantRNNCell"
    GATES = ("h",)

    def __init__(self, inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> None:
        super().__init__(inputs, attributes, {}, ignored=grid_cell.attributes_of(GridRnn))

    def initial_state(self) -> State:
        h = self.initial("initial_h")
        return self.hidden_codes(limited(h) if self.attributes["h_mode"] == "dynamic_row" else h)

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        y = self.gate("h", np.asarray(self.recurrent(state) + p))
        return y, self.hidden_codes(y)
