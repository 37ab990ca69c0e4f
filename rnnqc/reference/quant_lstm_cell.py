"""`ai.rnnqc::QuantLSTMCell` in numpy, from docs/quant_lstm_cell.md sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.types import LSTM
from rnnqc.reference import grid_cell
from rnnqc.reference.grid_lstm import GATES, GridLstm
from rnnqc.reference.integer_cell import (
    F32,
    LARGEST_MAGNITUDE,
    Activation,
    FloatArray,
    IntegerCell,
    limited,
    quantize_rows,
    relu,
    rne,
    weight_codes,
)
from rnnqc.reference.loop import ReferenceCell, State
from rnnqc.reference.recording import CODES, Recorder

__all__ = ["GATES", "quantize_rows", "reference_lstm", "run", "weight_codes"]

_OPTIONAL: dict[str, Any] = {
    "cell_scale": 0.0,
    "cell_max": 32767.0,
    "output_kind": "table",
    "output_alpha": 0.0,
    "output_beta": 0.0,
    "cell_index_scale": 0.0,
    "input_forget": 0,
    "one": 1.0,
}


def run(inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Computes all outputs of one node.

    Args:
        inputs: arrays by the operator's input names; absent optional inputs are left out.
        attributes: values by the operator's attribute names; defaults may be left out.

    Returns:
        `Y` float32 [T, B, H], `Y_h` and `Y_c` float32 [B, H] and, for `h_mode = "static"` with 8 bits, `Y_codes` uint8
        [T, B, H]. With the attributes `y_direction_axis` and `state_direction_axis` Y is [T, 1, B, H], Y_h and Y_c are
        [1, B, H].

    Raises:
        ValueError: an unknown or missing attribute or input, T = 0, B = 0, a sequence length outside 0 .. T, or packed
            weights whose groups do not fit together.
    """
    return reference_lstm(inputs, attributes).run()


def reference_lstm(
    inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any], recorder: Recorder | None = None
) -> ReferenceCell:
    """The same node, to be run step by step, with its values noted; arguments and errors as of `run`."""
    if attributes.get("arithmetic", "tables") in grid_cell.GRIDS:
        return GridLstm(inputs, attributes, recorder)
    return _Lstm(inputs, attributes, recorder)


class _Lstm(IntegerCell):
    TYPE = LSTM
    GATES = GATES
    OPTIONAL = _OPTIONAL
    IGNORED = grid_cell.attributes_of(GridLstm)

    @property
    def quantized_cell(self) -> bool:
        """Whether the cell state is a whole number of units."""
        return bool(self.attributes["cell_scale"] > 0)

    def initial_state(self) -> State:
        h, c = self.initial("initial_h"), self.initial("initial_c")
        if self.attributes["h_mode"] == "dynamic_row":
            h = limited(h)
        in_units = np.asarray(c / self.number("cell_scale")) if self.quantized_cell else c
        return {**self.hidden_codes(h), "c": self._limit_cell(in_units)}

    def _limit_cell(self, u: FloatArray) -> FloatArray:
        if self.quantized_cell:
            limit = self.number("cell_max")
            return np.minimum(np.maximum(rne(u), -limit), limit)
        return np.clip(u, -LARGEST_MAGNITUDE, LARGEST_MAGNITUDE)

    def _output(self, c: FloatArray) -> FloatArray:
        kind = self.attributes["output_kind"]
        if kind in ("table", "relu_table"):
            table = self.inputs["cell_table"]
            half = table.size // 2
            scaled = c if self.quantized_cell else rne(np.asarray(c * self.number("cell_index_scale")))
            codes = np.minimum(np.maximum(scaled, F32(-half)), F32(half - 1))
            values = np.asarray(table[codes.astype(np.int64)])  # negative ones count from the end
            return values if kind == "table" else np.asarray(relu(c) + values)
        real = np.asarray(c * self.number("cell_scale")) if self.quantized_cell else c
        return Activation(kind, self.number("output_alpha"), self.number("output_beta"))(real)

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        g = np.asarray(self.recurrent("hidden.product", state) + p)
        g_i, g_o, g_f, g_c = (self.part(g, gate) for gate in GATES)
        c = state["c"]
        peephole = self.inputs.get("P")
        if peephole is not None:
            p_i, p_o, p_f = (peephole[k * self.hidden : (k + 1) * self.hidden] for k in range(3))
            g_i = g_i + p_i * c
            g_f = g_f + p_f * c
        i = self.gate("i", g_i)
        f = self._coupled(i) if self.attributes["input_forget"] else self.gate("f", g_f)
        d = self.gate("c", g_c)
        kept, added = f * c, i * d
        self.note("cell_state.kept", kept)
        self.note("cell_state.added", added)
        c = self._limit_cell(np.asarray(kept + added))
        self.note("cell_state" + (CODES if self.quantized_cell else ""), c)
        if peephole is not None:
            g_o = g_o + p_o * c
        o, squashed = self.gate("o", g_o), self._output(c)
        self.note("hidden.activation", squashed)
        y = np.asarray(o * squashed)
        self.note("hidden.value", y)
        return y, {**self.hidden_codes(y), "c": c}

    def _coupled(self, gate: FloatArray) -> FloatArray:
        value = np.asarray(self.number("one") - gate)
        self.note(f"{self.gate_name('f')}.activation", value)
        return value

    def final(self, outputs: dict[str, npt.NDArray[Any]], state: State) -> None:
        super().final(outputs, state)
        c = self.selected(state["c"])
        Y_c = np.asarray(c * self.number("cell_scale")) if self.quantized_cell else c
        outputs["Y_c"] = np.where((self.lengths > 0)[:, np.newaxis], Y_c, F32(0))
