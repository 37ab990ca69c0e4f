"""The arithmetics "grid" and "grid32" of `ai.rnnqc::QuantLSTMCell` in numpy, from docs/quant_lstm_cell.md."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.reference.grid_cell import Array, GridCell, State, quantizer_names

_GATES = ("i", "o", "f", "c")


class GridLstm(GridCell):
    """One node."""

    OPERATOR = "QuantLSTMCell"
    GATES = _GATES
    QUANTIZERS = quantizer_names(_GATES, ("kept", "added", "cell_state"))
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
        coupled = self.attributes["input_forget"]
        f = self.number(self.attributes["one"]) - i if coupled else self._gate("f", g, c)
        d = self._gate("c", g, None)
        code = q["cell_state"].code(np.asarray(q["kept"](np.asarray(f * c)) + q["added"](np.asarray(i * d))))
        o = self._gate("o", g, q["cell_state"].value(code))
        y = np.asarray(o * self.widened(self.inputs["cell_table"][code - q["cell_state"].low]))
        if self.attributes["rounded_output"]:
            h = q["hidden"].code(y)
            return q["hidden"].value(h).astype(np.float32), {"h": h, "c": code}
        y = y.astype(np.float32)
        return y, {"h": q["hidden"].code(self.widened(y)), "c": code}

    def _gate(self, gate: str, g: Array, state: Array | None) -> Array:
        value = self.part(g, gate)
        peephole = self.inputs.get("P")
        if peephole is not None and state is not None:
            value = value + self.part(self.widened(peephole), gate) * state
        return self.gate(gate, value)

    def run(self) -> dict[str, Array]:
        """All outputs."""
        outputs, state = self.loop()
        c = self.quantizers["cell_state"].value(state["c"]).astype(np.float32)
        outputs["Y_c"] = np.where((self.lengths > 0)[:, np.newaxis], c, np.float32(0))
        return outputs
