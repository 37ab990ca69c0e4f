"""The arithmetic "grid" of `ai.rnnqc::QuantGRUCell` and `QuantRNNCell` in numpy, from docs/quant_gru_cell.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.reference.grid_cell import Array, GridCell, State, quantizer_names
from rnnqc.reference.integer_cell import LARGEST_MAGNITUDE

_GATES = ("z", "r", "h")


class GridGru(GridCell):
    """One QuantGRUCell node."""

    OPERATOR = "QuantGRUCell"
    GATES = _GATES
    QUANTIZERS = quantizer_names(_GATES, ("reset", "kept", "added", "hidden_state"))
    OPTIONAL: ClassVar = {"linear_before_reset": 0}

    def __init__(self, inputs: Mapping[str, Array], given: Mapping[str, Any]) -> None:
        super().__init__(inputs, given)
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
            m = q["reset"](np.asarray(r * (self.part(u, "h") + self.widened(self.inputs["hidden_bias"]))))
        else:
            sums = self.product(q["reset"].code(np.asarray(r * h)), "reset", self.part(self.R, "h"))
            m = q["hidden_product_h"](sums * self.part(self.widened(self.inputs["h_multiplier"]), "h"))
        n = self.gate("h", m + self.part(p, "h"))
        kept, added = q["kept"](np.asarray(z * h)), q["added"](np.asarray((1 - z) * n))
        whole = q["hidden_state"](np.asarray(kept + added))
        limited = np.clip(whole, -self.number(LARGEST_MAGNITUDE), self.number(LARGEST_MAGNITUDE))
        y = limited.astype(np.float32) + np.float32(0)
        return y, {"h": q["hidden"].code(self.widened(y)), "real": y}


class GridRnn(GridCell):
    """One QuantRNNCell node."""

    OPERATOR = "QuantRNNCell"
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
        return y, {"h": self.quantizers["hidden"].code(self.widened(y))}
