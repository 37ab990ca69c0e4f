"""The arithmetics "grid" and "grid32" of `ai.rnnqc::QuantLSTMCell` in numpy, from docs/quant_lstm_cell.md."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.cells.types import LSTM
from rnnqc.reference.grid_cell import Array, GridCell, State, quantizer_names
from rnnqc.reference.recording import CODES

GATES = ("i", "o", "f", "c")


class GridLstm(GridCell):
    """One node."""

    TYPE = LSTM
    GATES = GATES
    QUANTIZERS = quantizer_names(GATES, ("kept", "added", "cell_state"))
    OPTIONAL: ClassVar = {"input_forget": 0, "one": 1.0, "rounded_output": 0}
    ARITHMETICS = ("grid", "grid32")

    def needed(self) -> tuple[str, ...]:
        """All `acc` but that of a coupled forget gate, and the cell state."""
        coupled = "acc_f" if self.attributes["input_forget"] else None
        return (*(n for n in super().needed() if n != coupled), "cell_state")

    def initial_state(self) -> State:
        """Codes of the hidden and of the cell state."""
        q, shape = self.quantizers, (self.batch, self.hidden)
        names = {"h": ("hidden", "initial_h"), "c": ("cell_state", "initial_c")}
        return {
            k: q[n].code(self.widened(self.clean(given))) if given in self.inputs else np.full(shape, q[n].zero_point)
            for k, (n, given) in names.items()
        }

    def step(self, p: Array, state: State) -> tuple[npt.NDArray[np.float32], State]:
        """One step of all rows."""
        q, c = self.quantizers, self.quantizers["cell_state"].value(state["c"])
        g = np.asarray(p + self.recurrent(state["h"]))
        g = g + self.widened(self.inputs["B"]) if self.attributes["arithmetic"] == "grid32" else g
        i = self._gate("i", g, c)
        f = self._coupled(i) if self.attributes["input_forget"] else self._gate("f", g, c)
        d = self._gate("c", g, None)
        kept = self.on_grid("cell_state.kept", np.asarray(f * c), "kept")
        added = self.on_grid("cell_state.added", np.asarray(i * d), "added")
        code = q["cell_state"].code(np.asarray(kept + added))
        self.note(f"cell_state{CODES}", code)
        o = self._gate("o", g, q["cell_state"].value(code))
        squashed = self.inputs["cell_table"][code - q["cell_state"].low]
        self.note("hidden.activation", squashed)
        y = np.asarray(o * self.widened(squashed))
        if self.attributes["rounded_output"]:
            self.note("hidden.value", y)
            h = q["hidden"].code(y)
            return q["hidden"].value(h).astype(np.float32), {"h": h, "c": code}
        y = y.astype(np.float32)
        self.note("hidden.value", y)
        return y, {"h": q["hidden"].code(self.widened(y)), "c": code}

    def _coupled(self, gate: Array) -> Array:
        value = np.asarray(self.number(self.attributes["one"]) - gate)
        self.note(f"{self.gate_name('f')}.activation", value)
        return value

    def _gate(self, gate: str, g: Array, state: Array | None) -> Array:
        value = self.part(g, gate)
        peephole = self.inputs.get("P")
        if peephole is not None and state is not None:
            value = value + self.part(self.widened(peephole), gate) * state
        return self.gate(gate, value)

    def final(self, outputs: dict[str, Array], state: State) -> None:
        """Without -0 if there are lengths, and with `Y_c`."""
        super().final(outputs, state)
        c = self.quantizers["cell_state"].value(state["c"]).astype(np.float32)
        outputs["Y_c"] = np.where((self.lengths > 0)[:, np.newaxis], c, np.float32(0))
