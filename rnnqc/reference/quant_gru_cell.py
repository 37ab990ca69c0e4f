"""`ai.rnnqc::QuantGRUCell` and `ai.rnnqc::QuantRNNCell` in numpy, from docs/quant_gru_cell.md sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.types import GRU, RNN, CellType
from rnnqc.reference import grid_cell
from rnnqc.reference.grid_gru import GridGru, GridRnn
from rnnqc.reference.integer_cell import (
    F32,
    FloatArray,
    IntegerCell,
    limited,
)
from rnnqc.reference.loop import ReferenceCell, State
from rnnqc.reference.recording import CODES, ROW_SCALE, Recorder


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
    return reference_gru_or_rnn(GRU, inputs, attributes).run()


def run_rnn(inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Computes all outputs of a QuantRNNCell node, as `run_gru` does."""
    return reference_gru_or_rnn(RNN, inputs, attributes).run()


def reference_gru_or_rnn(
    type_: CellType,
    inputs: Mapping[str, npt.NDArray[Any]],
    attributes: Mapping[str, Any],
    recorder: Recorder | None = None,
) -> ReferenceCell:
    """A node of either type, to be run step by step, with its values noted; arguments and errors as of `run_gru`."""
    if attributes.get("arithmetic") == "grid":
        return (GridGru if type_ is GRU else GridRnn)(inputs, attributes, recorder)
    return (_Gru if type_ is GRU else _Rnn)(inputs, attributes, recorder)


class _Gru(IntegerCell):
    TYPE = GRU
    GATES = ("z", "r", "h")
    KEEPS_STATE = True
    OPTIONAL: ClassVar = {"linear_before_reset": 0, "reset_scale": 0.0, "reset_zero_point": 128}
    IGNORED = grid_cell.attributes_of(GridGru)

    def __init__(
        self,
        inputs: Mapping[str, npt.NDArray[Any]],
        attributes: Mapping[str, Any],
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(inputs, attributes, recorder)
        self.linear_before_reset = bool(self.attributes["linear_before_reset"])
        if self.linear_before_reset != ("hidden_bias" in inputs):
            raise ValueError("QuantGRUCell: linear_before_reset and hidden_bias belong together")

    def initial_state(self) -> State:
        h = limited(self.initial("initial_h"))
        return {**self.hidden_codes(h), "real": h}

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        h = state["real"]
        both = slice(None) if self.linear_before_reset else slice(2 * self.hidden)
        u = self.recurrent("hidden.product", state, both)
        if self.loses:
            u = self.without_loss(u, h, both)
        z = self.gate("z", np.asarray(self.part(u, "z") + self.part(p, "z")))
        r = self.gate("r", np.asarray(self.part(u, "r") + self.part(p, "r")))
        u_h = self._linear_product(r, u) if self.linear_before_reset else self._product_of_reset(np.asarray(r * h))
        n = self.gate("h", np.asarray(u_h + self.part(p, "h")))
        added, kept = np.asarray((F32(1) - z) * n), np.asarray(z * h)
        y = limited(np.asarray(added + kept))
        for name, value in (("kept", kept), ("added", added)):
            self.note(f"hidden_state.{name}", value)
        self.note("hidden_state", y)
        self.note("hidden.value", y)
        return y, {**self.hidden_codes(y), "real": y}

    def _linear_product(self, r: FloatArray, u: FloatArray) -> FloatArray:
        """The reset gate times the product of its gate with R."""
        value = np.asarray(r * np.asarray(self.part(u, "h") + self.inputs["hidden_bias"]))
        self.note(RESET_PRODUCT, value)
        return value

    def _product_of_reset(self, reset: FloatArray) -> FloatArray:
        """The product of r * h with R."""
        last, state = slice(2 * self.hidden, None), self.hidden_codes(reset, "reset")
        self.note(f"{RESET_HIDDEN}.value", reset)
        self.note(f"{RESET_HIDDEN}{CODES}", state["h"])
        if "h_scale" in state:
            self.note(f"{RESET_HIDDEN}{ROW_SCALE}", state["h_scale"])
        u = self.recurrent(f"{RESET_HIDDEN}.product", state, last, "reset")
        return self.without_loss(u, reset, last, "reset") if self.loses else u


class _Rnn(IntegerCell):
    TYPE = RNN
    GATES = ("h",)
    IGNORED = grid_cell.attributes_of(GridRnn)

    def initial_state(self) -> State:
        h = self.initial("initial_h")
        return self.hidden_codes(limited(h) if self.attributes["h_mode"] == "dynamic_row" else h)

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        y = self.gate("h", np.asarray(self.recurrent("hidden.product", state) + p))
        self.note("hidden.value", y)
        return y, self.hidden_codes(y)
