"""The numpy references of the quantized cells with every intermediate value of every step recorded.

What is recorded is what the references compute on their way; nothing is computed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.reference import quant_gru_cell, quant_lstm_cell
from rnnqc.reference.grid_cell import Quantizer
from rnnqc.reference.grid_gru import GridGru, GridRnn
from rnnqc.reference.grid_lstm import GridLstm

Array = npt.NDArray[Any]
GATES = {
    "LSTM": {"i": "input_gate", "o": "output_gate", "f": "forget_gate", "c": "cell_gate"},
    "GRU": {"z": "update_gate", "r": "reset_gate", "h": "hidden_gate"},
    "RNN": {"h": "hidden_gate"},
}
_CELLS: dict[str, Any] = {
    "LSTM": quant_lstm_cell._Lstm,
    "GRU": quant_gru_cell._Gru,
    "RNN": quant_gru_cell._Rnn,
}
_GRIDS: dict[str, Any] = {"LSTM": GridLstm, "GRU": GridGru, "RNN": GridRnn}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes of a node, texts decoded."""
    made = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in made.items()}


def record_tables(op: str, inputs: Mapping[str, Array], attributes: Mapping[str, Any]) -> dict[str, Array]:
    """Values `[T,B,H]` by the names of a dump, in time order; of gates `<gate>.preactivation` and `<gate>.raw`.

    `<gate>.raw` is in the units of the gate, `cell_state.units` in those of the cell state; `hidden.codes` and
    `hidden.previous.codes` are codes. No sequence lengths.
    """
    axes = ("y_direction_axis", "state_direction_axis")
    cell = _CELLS[op](inputs, {k: v for k, v in attributes.items() if k not in axes})
    seen: dict[str, list[Array]] = defaultdict(list)
    gate, step = cell.gate, cell.step

    def recorded_gate(name: str, g: Array) -> Array:
        value: Array = gate(name, g)
        seen[f"{GATES[op][name]}.preactivation"].append(g)
        seen[f"{GATES[op][name]}.raw"].append(value)
        return value

    def recorded_step(p: Array, state: Mapping[str, Array]) -> Any:
        seen["hidden.previous.codes"].append(state["h"])
        y, new = step(p, state)
        seen["hidden.value"].append(y)
        seen["hidden.codes"].append(new["h"])
        if "c" in new:
            seen["cell_state.units"].append(new["c"])
        return y, new

    cell.gate, cell.step = recorded_gate, recorded_step
    with np.errstate(all="ignore"):
        cell.run()
    return _in_time(seen, attributes)


class _Recorded:
    """A quantizer that notes its codes."""

    def __init__(self, quantizer: Quantizer, sink: list[Array]) -> None:
        self._quantizer, self._sink = quantizer, sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quantizer, name)

    def code(self, values: Array) -> Array:
        codes = self._quantizer.code(values)
        self._sink.append(codes - self._quantizer.zero_point)
        return codes

    def __call__(self, values: Array) -> Array:
        return self._quantizer.value(self.code(values)) if self._quantizer.scale else values


def record_grid(op: str, inputs: Mapping[str, Array], attributes: Mapping[str, Any]) -> dict[str, Array]:
    """Multiples of the scales `[T,B,H]` of all quantizers of a loop, by the names of a dump, in time order.

    `hidden.value` and `<gate>.activation` are values. No sequence lengths.
    """
    axes = ("y_direction_axis", "state_direction_axis", "configuration")
    cell = _GRIDS[op](inputs, {k: v for k, v in attributes.items() if k not in axes})
    names = {f"{kind}_{g}": f"{n}.{kind}" for g, n in GATES[op].items() for kind in ("acc", "hidden_product")}
    state = "cell_state" if op == "LSTM" else "hidden_state"
    names |= {"hidden": "hidden", "kept": f"{state}.kept", "added": f"{state}.added", state: state}
    names |= {"reset": "hidden_gate.reset_product" if attributes.get("linear_before_reset") else "reset.hidden"}
    seen: dict[str, list[Array]] = defaultdict(list)
    gate, step = cell.gate, cell.step
    for key in names.keys() & cell.quantizers.keys():
        cell.quantizers[key] = _Recorded(cell.quantizers[key], seen[names[key]])

    def recorded_gate(name: str, value: Array) -> Array:
        made: Array = gate(name, value)
        seen[f"{GATES[op][name]}.activation"].append(made)
        return made

    def recorded_step(p: Array, before: Mapping[str, Array]) -> Any:
        y, new = step(p, before)
        seen["hidden.value"].append(y)
        return y, new

    initial_state = cell.initial_state

    def forgotten() -> Any:
        made = initial_state()
        for values in seen.values():
            values.clear()
        return made

    cell.gate, cell.step, cell.initial_state = recorded_gate, recorded_step, forgotten
    with np.errstate(all="ignore"):
        cell.run()
    return _in_time({n: v for n, v in seen.items() if v}, attributes)


def _in_time(seen: Mapping[str, list[Array]], attributes: Mapping[str, Any]) -> dict[str, Array]:
    backwards = attributes.get("direction") == "reverse"
    return {n: np.stack(v[::-1] if backwards else v) for n, v in seen.items()}
