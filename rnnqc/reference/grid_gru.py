"""The arithmetic "grid" of `ai.rnnqc::QuantGRUCell` and `QuantRNNCell` in numpy, from docs/quant_gru_cell.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.types import GRU, RNN
from rnnqc.reference.grid_cell import Array, GridCell, State, quantizer_names
from rnnqc.reference.integer_cell import LARGEST_MAGNITUDE
from rnnqc.reference.recording import CODES, Recorder

_GATES = ("z", "r", "h")


class GridGru(GridCell):
    """One QuantGRUCell node."""

    TYPE = GRU
    GATES = _GATES
    QUANTIZERS = quantizer_names(_GATES, ("reset", "kept", "added", "hidden_state"))
    OPTIONAL: ClassVar = {"linear_before_reset": 0}

    def __init__(self, inputs: Mapping[str, Array], given: Mapping[str, Any], recorder: Recorder | None = None) -> None:
        super().__init__(inputs, given, recorder)
        if bool(self.attributes["linear_before_reset"]) != ("hidden_bias" in inputs):
            raise ValueError("QuantGRUCell: linear_before_reset and hidden_bias belong together")

    def needed(self) -> tuple[str, ...]:
        """The codes of `r * h`, too."""
        return super().needed() if self.attributes["linear_before_reset"] else (*super().needed(), "reset")

    def initial_state(self) -> State:
        """The hidden state, a binary32 number, and its codes."""
        real = np.zeros((self.batch, self.hidden), np.float32)
        if "initial_h" in self.inputs:
            real = np.clip(self.clean("initial_h"), -LARGEST_MAGNITUDE, LARGEST_MAGNITUDE)
        return {"h": self.quantizers["hidden"].code(self.widened(real)), "real": real}

    def step(self, p: Array, state: State) -> tuple[npt.NDArray[np.float32], State]:
        """One step of all rows."""
        q, linear = self.quantizers, self.attributes["linear_before_reset"]
        h = self.widened(state["real"])
        u = self.recurrent(state["h"], None if linear else 2)
        z = self.gate("z", self.part(u, "z") + self.part(p, "z"))
        r = self.gate("r", self.part(u, "r") + self.part(p, "r"))
        if linear:
            biased = self.part(u, "h") + self.widened(self.inputs["hidden_bias"])
            m = self.on_grid(RESET_PRODUCT, np.asarray(r * biased), "reset")
        else:
            m = self._product_of_reset(np.asarray(r * h))
        n = self.gate("h", m + self.part(p, "h"))
        kept = self.on_grid("hidden_state.kept", np.asarray(z * h), "kept")
        added = self.on_grid("hidden_state.added", np.asarray((1 - z) * n), "added")
        y = self._state_of(np.asarray(kept + added))
        self.note("hidden.value", y)
        return y + np.float32(0), {"h": q["hidden"].code(self.widened(y)), "real": y}

    def _state_of(self, total: Array) -> npt.NDArray[np.float32]:
        """The hidden state, a binary32 number: Q_hidden_state of a sum, within bounds."""
        bound, is_quantized = self.number(LARGEST_MAGNITUDE), bool(self.quantizers["hidden_state"].scale)
        whole = self.on_grid("hidden_state", total, "hidden_state") if is_quantized else total
        y = np.clip(whole, -bound, bound).astype(np.float32)
        if not is_quantized:
            self.note("hidden_state", y)
        return y

    def _product_of_reset(self, reset: Array) -> Array:
        """Q_hidden_product of the product of r * h with R."""
        codes = self.quantizers["reset"].code(reset)
        self.note(f"{RESET_HIDDEN}.value", reset)
        self.note(f"{RESET_HIDDEN}{CODES}", codes)
        sums = self.product(f"{RESET_HIDDEN}.product", codes, "reset", self.part(self.R, "h"))
        units = sums * self.part(self.widened(self.inputs["h_multiplier"]), "h")
        return self.on_grids("hidden_product", units, ("h",))


class GridRnn(GridCell):
    """One QuantRNNCell node."""

    TYPE = RNN
    GATES = ("h",)
    QUANTIZERS = quantizer_names(("h",), ())

    def initial_state(self) -> State:
        """Hidden codes."""
        hidden = self.quantizers["hidden"]
        if "initial_h" in self.inputs:
            return {"h": hidden.code(self.widened(self.clean("initial_h")))}
        return {"h": np.full((self.batch, self.hidden), hidden.zero_point)}

    def step(self, p: Array, state: State) -> tuple[npt.NDArray[np.float32], State]:
        """One step of all rows."""
        y = self.gate("h", p + self.recurrent(state["h"])).astype(np.float32)
        self.note("hidden.value", y)
        return y, {"h": self.quantizers["hidden"].code(self.widened(y))}
