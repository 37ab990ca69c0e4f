"""`ai.rnnqc::QuantLSTMCell` in numpy, from docs/quant_lstm_cell.md sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.reference import grid_cell
from rnnqc.reference.grid_lstm import GridLstm
from rnnqc.reference.integer_cell import (
    F32,
    LARGEST_MAGNITUDE,
    Activation,
    FloatArray,
    IntegerCell,
    State,
    limited,
    quantize_rows,
    relu,
    rne,
    weight_codes,
    with_direction_axes,
    without_direction_axis,
)

__all__ = ["GATES", "quantize_rows", "run", "weight_codes"]

GATES = ("i", "o", "f", "c")
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
    inner = without_direction_axis(inputs, attributes, ("initial_h", "initial_c"))
    arithmetic = attributes.get("arithmetic", "tables")
    node = GridLstm if arithmetic in grid_cell.GRIDS else _Lstm
    with np.errstate(all="ignore"):
        results = node(inner, attributes).run()
    with_direction_axes(results, attributes)
    return results


class _Lstm(IntegerCell):
    OPERATOR = "QuantLSTMCell"
    GATES = GATES

    def __init__(self, inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> None:
        super().__init__(inputs, attributes, _OPTIONAL, ignored=grid_cell.attributes_of(GridLstm))
        self.quantized_cell = self.attributes["cell_scale"] > 0

    def initial_state(self) -> State:
        h, c = self.initial("initial_h"), self.initial("initial_c")
        if self.attributes["h_mode"] == "dynamic_row":
            h = limited(h)
        in_units = np.asarray(c / self.number("cell_scale")) if self.quantized_cell else c
        return {**self.hidden_codes(h), "c": self._limit_cell(in_units)}

    def _limit_cell(self, u: FloatArray) -> FloatArray:
        if self.quantized_cell:
            limit = self.number("cell_max")
            return np.clip(rne(u), -limit, limit)
        return np.clip(u, -LARGEST_MAGNITUDE, LARGEST_MAGNITUDE)

    def _output(self, c: FloatArray) -> FloatArray:
        kind = self.attributes["output_kind"]
        if kind in ("table", "relu_table"):
            table = self.inputs["cell_table"]
            half = table.size // 2
            scaled = c if self.quantized_cell else rne(np.asarray(c * self.number("cell_index_scale")))
            codes = np.clip(scaled, F32(-half), F32(half - 1))
            values = np.asarray(table[codes.astype(np.int64) % table.size])
            return values if kind == "table" else np.asarray(relu(c) + values)
        real = np.asarray(c * self.number("cell_scale")) if self.quantized_cell else c
        return Activation(kind, self.number("output_alpha"), self.number("output_beta"))(real)

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        g = np.asarray(self.recurrent(state) + p)
        g_i, g_o, g_f, g_c = (self.part(g, gate) for gate in GATES)
        c = state["c"]
        peephole = self.inputs.get("P")
        if peephole is not None:
            p_i, p_o, p_f = (peephole[k * self.hidden : (k + 1) * self.hidden] for k in range(3))
            g_i = g_i + p_i * c
            g_f = g_f + p_f * c
        i = self.gate("i", g_i)
        f = np.asarray(self.number("one") - i) if self.attributes["input_forget"] else self.gate("f", g_f)
        d = self.gate("c", g_c)
        c = self._limit_cell(np.asarray(f * c + i * d))
        if peephole is not None:
            g_o = g_o + p_o * c
        y = np.asarray(self.gate("o", g_o) * self._output(c))
        return y, {**self.hidden_codes(y), "c": c}

    def run(self) -> dict[str, npt.NDArray[Any]]:
        outputs, state = self.loop()
        c = self.selected(state["c"])
        Y_c = np.asarray(c * self.number("cell_scale")) if self.quantized_cell else c
        outputs["Y_c"] = np.where((self.lengths > 0)[:, np.newaxis], Y_c, F32(0))
        return outputs
