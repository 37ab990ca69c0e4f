"""A quantized cell in fixed-point arithmetic in numpy, from docs/quant_lstm_cell.md and docs/quant_gru_cell.md.

The cell type has the equations of a step; this module has the arithmetic: integer sums are exact in int64, every other
operation is one operation in the real type. Rows of the batch are computed together; time is a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.attributes import FIXED_POINT_ARITHMETICS, FIXED_POINT_REQUIRED, fixed_point_defaults
from rnnqc.cells.base import FORGET
from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.fixed_point_numbers import FIXED_POINT32, RESET, quantizers_of
from rnnqc.cells.types import CellType
from rnnqc.reference.codes import LARGEST_MAGNITUDE, exact_product, exact_weights
from rnnqc.reference.loop import Array, ReferenceCell, ReferenceStep, State
from rnnqc.reference.quantizer import Quantizer
from rnnqc.reference.recording import CODES, Recorder

IntArray = npt.NDArray[np.int64]


class FixedPointCell(ReferenceCell):
    """One node in fixed-point arithmetic.

    Args:
        type_: The type of cell.
        inputs: Arrays by the operator's input names; absent optional inputs are left out.
        given: Values by the operator's attribute names; defaults may be left out, and attributes of other arithmetics
            are ignored.
        recorder: Receives every value of every step.

    Raises:
        ValueError: A missing attribute or quantizer, packed weights whose groups do not fit together, another
            arithmetic, or the errors of `ReferenceCell`.
    """

    def __init__(
        self, type_: CellType, inputs: Mapping[str, Array], given: Mapping[str, Any], recorder: Recorder | None = None
    ) -> None:
        operator, missing, known = type_.fused, set(FIXED_POINT_REQUIRED) - set(given), fixed_point_defaults(type_)
        if missing:
            raise ValueError(f"{operator}: missing attributes {sorted(missing)}")
        self.attributes = {**known, **{k: v for k, v in given.items() if k in (*known, *FIXED_POINT_REQUIRED)}}
        arithmetics = FIXED_POINT_ARITHMETICS if type_.cell_state else FIXED_POINT_ARITHMETICS[:1]
        if self.attributes["arithmetic"] not in arithmetics:
            raise ValueError(f"{operator}: unknown arithmetic {self.attributes['arithmetic']!r}")
        self.bias_last = self.attributes["arithmetic"] == FIXED_POINT32
        self.real = np.dtype(np.float32 if self.bias_last else np.float64)
        super().__init__(type_, inputs, given, recorder)
        self.quantizers = self._quantizers()
        absent = [n for n in self._needed() if not self.quantizers[n].scale]
        if absent:
            raise ValueError(f"{operator}: quantizers {absent} are needed")
        self.W, self.R = (self._weights(key) for key in ("W", "R"))

    @property
    def blank_code(self) -> int | None:
        """The quantized hidden state 0; None where there are no `Y_codes`."""
        hidden = self.quantizers["hidden"]
        return hidden.zero_point if hidden.high <= 255 else None

    def _needed(self) -> Iterator[str]:
        """Yields the required quantizers; a coupled forget gate has none."""
        coupled = FORGET if self.input_forget else None
        yield from ("input", "hidden", *(f"{g}.acc" for k, g in enumerate(self.type.gates) if k != coupled))
        yield from ("cell_state",) if self.type.cell_state else ()
        yield from (RESET,) if self.resets_state else ()

    def _quantizers(self) -> dict[str, Quantizer]:
        of_type, names = quantizers_of(self.type), self.attributes["grid_rounding"].split(",")
        columns = [
            self.attributes["grid_scale"],
            *(self.attributes[k] for k in ("grid_zero_point", "grid_min", "grid_max")),
            names if len(names) > 1 else names * len(of_type),
            self.attributes["grid_offset"],
        ]
        return {
            n: Quantizer(
                self.real.type(np.float32(scale)), int(zero), int(low), int(high), rounding, self.real, int(offset)
            )
            for n, scale, zero, low, high, rounding, offset in zip(of_type, *columns, strict=True)
        }

    def _weights(self, key: str) -> Array:
        """Returns quantized W or R minus their zero points."""
        multiplied = ("input",) if key == "W" else ("hidden", RESET)
        quantizers = [self.quantizers[n] for n in multiplied if n in self.quantizers]
        largest = max(max(abs(q.low - q.zero_point), abs(q.high - q.zero_point)) for q in quantizers)
        return exact_weights(
            self.weight_codes(key).astype(np.int64) - self.inputs.get(f"{key}_zero_point", np.int64(0)), largest
        )

    def number(self, value: Any) -> Any:
        """Converts an attribute, which is a binary32 number, to the real type."""
        return self.real.type(np.float32(value))

    def clean(self, name: str) -> npt.NDArray[np.float32]:
        """Returns an input with 0 for NaN."""
        values = self.inputs[name]
        return np.where(np.isnan(values), np.float32(0), values)

    def product(self, point: str, codes: IntArray, name: str, weights: Array) -> Array:
        """Returns the exact integer matmul, limited to the width of the accumulator; records it."""
        sums = exact_product(codes - self.quantizers[name].zero_point, weights).astype(np.int64)
        bits = int(self.attributes["accumulator_bits"])
        if bits:
            sums = np.clip(sums, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        self.note(point + CODES, sums)
        return self.widened(sums)

    def on_grid(self, point: str, values: Array, name: str) -> Array:
        """Quantizes and dequantizes values, and records the result under the name of the quantization point."""
        quantizer = self.quantizers[name]
        if not quantizer.scale:
            self.note(point, values)
            return values
        multiples = quantizer.multiples(values)
        self.note(point + CODES, multiples.astype(np.int64) + quantizer.zero_point)
        return np.asarray(multiples * quantizer.scale)

    def on_grids(self, kind: str, values: Array, gates: Sequence[str]) -> Array:
        """Quantizes and dequantizes values [..., nH] of some gates, each with the quantizer `<gate>.<kind>`."""
        names, parts = [f"{g}.{kind}" for g in gates], np.split(values, len(gates), axis=-1)
        return np.concatenate([self.on_grid(n, v, n) for n, v in zip(names, parts, strict=True)], axis=-1)

    def recurrent(self, point: str, codes: IntArray, name: str, gates: range) -> Array:
        """Returns Q_hidden_product of the matmul of a quantizer's quantized values with R, for some gates."""
        columns = slice(gates.start * self.hidden, gates.stop * self.hidden)
        sums = self.product(point, codes, name, self.R[:, columns])
        units = sums * self.widened(self.inputs["h_multiplier"][columns])
        return self.on_grids("hidden_product", units, [self.type.gates[k] for k in gates])

    def pre_activations(self) -> Array:
        """Returns the input's share of the pre-activations `[T,B,GH]`."""
        x = self.inputs["X"]
        if self.attributes["x_mode"] == "codes":
            codes = x.astype(np.int64)
        else:
            codes = self.quantizers["input"].code(self.widened(self.clean("X")))
        self.note(f"input{CODES}", codes)
        units = self.product("x.product", codes, "input", self.W) * self.widened(self.inputs["x_multiplier"])
        if not self.bias_last:
            units = units + self.widened(self.inputs["B"])
        return self.on_grids("input_product", units, self.type.gates)

    def initial_state(self) -> State:
        """Returns quantized hidden states, and the quantized cell state or the binary32 hidden state."""
        if self.type.cell_state:
            return {"h": self._initial("initial_h", "hidden"), "state": self._initial("initial_c", "cell_state")}
        if not self.type.reads_hidden:
            return {"h": self._initial("initial_h", "hidden")}
        real = np.zeros((self.batch, self.hidden), np.float32)
        if "initial_h" in self.inputs:
            real = np.clip(self.clean("initial_h"), -LARGEST_MAGNITUDE, LARGEST_MAGNITUDE)
        return {"h": self.quantizers["hidden"].code(self.widened(real)), "state": real}

    def _initial(self, given: str, quantizer: str) -> IntArray:
        """Returns the quantized values of an initial state; those of zeros if it is absent."""
        held = self.quantizers[quantizer]
        if given in self.inputs:
            return held.code(self.widened(self.clean(given)))
        return np.full((self.batch, self.hidden), held.zero_point)

    def step(self, p: Array, state: State) -> tuple[npt.NDArray[np.float32], State]:
        """Computes one step of all rows by the equations of the type."""
        step, hidden = _FixedPointStep(self, p, state), self.quantizers["hidden"]
        value, after = self.type.step(step)
        if self.attributes.get("rounded_output"):
            self.note("hidden.value", value)
            codes = hidden.code(value)
            y = hidden.value(codes).astype(np.float32)
        else:
            y = value.astype(np.float32)
            self.note("hidden.value", y)
            codes = hidden.code(self.widened(y))
        if self.type.cell_state:
            return y, {"h": codes, "state": step.code}
        if self.type.reads_hidden:
            return y + np.float32(0), {"h": codes, "state": after}
        return y, {"h": codes}

    def gate(self, k: int, value: Array) -> Array:
        """Returns the table values for a gate's pre-activations `[B,H]`."""
        name = self.type.gates[k]
        self.note(f"{name}.preactivation", value)
        high, low = self.number(self.attributes["gate_max"][k]), self.number(self.attributes["gate_min"][k])
        quantizer = self.quantizers[f"{name}.acc"]
        code = quantizer.code(np.maximum(np.minimum(value, high), low))
        self.note(f"{name}.acc{CODES}", code)
        index = int(self.attributes["gate_table_offset"][k]) + code - quantizer.low
        entries = self.inputs["gate_table"][index]
        self.note(f"{name}.activation", entries)
        return self.widened(entries)

    def final(self, outputs: dict[str, Array], state: State) -> None:
        """Removes -0 from `Y` and `Y_h` if there are lengths, and adds `Y_c`."""
        if "sequence_lens" in self.inputs:
            outputs.update({name: outputs[name] + np.float32(0) for name in ("Y", "Y_h")})
        if self.type.cell_state:
            c = self.quantizers["cell_state"].value(state["state"]).astype(np.float32)
            outputs["Y_c"] = np.where((self.lengths > 0)[:, np.newaxis], c, np.float32(0))


class _FixedPointStep(ReferenceStep):
    """`rnnqc.cells.equations.Step` on arrays `[B,H]` of the real type; the hidden state after a step is float32.

    Args:
        cell: The cell.
        p: The input's share of the pre-activations `[B,GH]`.
        state: The state after the step before.

    Attributes:
        code: The quantized values of the cell state after the step, once it is computed.
    """

    def __init__(self, cell: FixedPointCell, p: Array, state: State) -> None:
        self._cell = cell
        self.code: IntArray = np.zeros(0, np.int64)
        before: Array = np.zeros(0)
        if cell.type.cell_state:
            before = cell.quantizers["cell_state"].value(state["state"])
        elif cell.type.reads_hidden:
            before = cell.widened(state["state"])
        gates = range(cell.type.joint if cell.resets_state else len(cell.type.gates))
        super().__init__(cell, p, cell.recurrent("hidden.product", state["h"], "hidden", gates), before)

    def recurrent_of(self, k: int, value: Array) -> Array:
        """Returns value R of gate k."""
        cell = self._cell
        codes = cell.quantizers[RESET].code(value)
        cell.note(f"{RESET_HIDDEN}.value", value)
        cell.note(f"{RESET_HIDDEN}{CODES}", codes)
        return cell.recurrent(f"{RESET_HIDDEN}.product", codes, RESET, range(k, k + 1))

    def product(self, a: Array, b: Array, point: str) -> Array:
        """Returns a * b, quantized at its point; the exact product if it is quantized later."""
        value = np.asarray(a * b)
        if point in (RESET_HIDDEN, "hidden.value"):
            return value
        return self._cell.on_grid(point, value, RESET if point == RESET_PRODUCT else point)

    def total(self, kept: Array, added: Array, point: str) -> Array:
        """Returns kept + added, the state after the step; a hidden state is a float32 number within bounds."""
        cell, held = self._cell, self._cell.quantizers[point]
        whole = np.asarray(kept + added)
        if cell.type.cell_state:
            self.code = held.code(whole)
            cell.note(point + CODES, self.code)
            return held.value(self.code)
        bound = cell.number(LARGEST_MAGNITUDE)
        y = np.clip(cell.on_grid(point, whole, point) if held.scale else whole, -bound, bound).astype(np.float32)
        if not held.scale:
            cell.note(point, y)
        return y

    def squashed(self, state: Array) -> Array:
        """Returns the output activation of the cell state that `total` computed."""
        entries = self._cell.inputs["cell_table"][self.code - self._cell.quantizers["cell_state"].low]
        self._cell.note("hidden.activation", entries)
        return self._cell.widened(entries)
