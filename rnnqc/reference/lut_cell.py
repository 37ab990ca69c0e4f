"""A quantized cell in look-up arithmetic ("tables") in numpy, from docs/quant_lstm_cell.md and docs/quant_gru_cell.md.

The cell type has the equations of a step; this module has the arithmetic: quantized values, integer matmuls, look-ups.
Rows of the batch are computed together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.attributes import FIXED_POINT_REQUIRED, LUT_REQUIRED, fixed_point_defaults, lut_defaults
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.fused_nodes import CONFIGURATION, PLACES
from rnnqc.cells.operator_version import ROW_CODES
from rnnqc.cells.types import CellType
from rnnqc.reference.codes import (
    F32,
    Activation,
    CodeArray,
    FloatArray,
    IntArray,
    WholeArray,
    code,
    combined,
    dynamic_scale,
    exact_weights,
    limited,
    products,
    quantize_rows,
    relu,
    rne,
    without_nan,
)
from rnnqc.reference.loop import ReferenceCell, ReferenceStep, State
from rnnqc.reference.lut_gates import lut_gates
from rnnqc.reference.recording import CODES, ROW_SCALE, ZERO_POINT, Recorder


class LutCell(ReferenceCell):
    """One node in look-up arithmetic.

    Args:
        type_: The type of cell.
        inputs: Arrays by the operator's input names; absent optional inputs are left out.
        attributes: Values by the operator's attribute names; defaults may be left out.
        recorder: Receives every value of every step.

    Raises:
        ValueError: An unknown or missing attribute, packed weights whose groups do not fit together, 16-bit values
            where they are not allowed, or the errors of `ReferenceCell`.
    """

    def __init__(
        self,
        type_: CellType,
        inputs: Mapping[str, npt.NDArray[Any]],
        attributes: Mapping[str, Any],
        recorder: Recorder | None = None,
    ) -> None:
        operator, known, missing = type_.fused, lut_defaults(type_), set(LUT_REQUIRED) - set(attributes)
        others = {*fixed_point_defaults(type_), *FIXED_POINT_REQUIRED} - {*known, *LUT_REQUIRED}
        attributes = {k: v for k, v in attributes.items() if k not in others}  # of the other arithmetic
        unknown = set(attributes) - set(known) - set(LUT_REQUIRED) - {CONFIGURATION, PLACES}
        if unknown or missing:
            raise ValueError(f"{operator}: unknown attributes {sorted(unknown)}, missing ones {sorted(missing)}")
        self.attributes = {**known, **attributes}
        if self.attributes["arithmetic"] != "tables":
            raise ValueError(f"{operator}: unknown arithmetic {self.attributes['arithmetic']!r}")
        super().__init__(type_, inputs, self.attributes, recorder)
        self._gates = lut_gates(type_.gates, self.attributes)
        self.W, self.R = (self._weights(key) for key in ("W", "R"))
        self.x_bits, self.h_bits = int(self.attributes["x_bits"]), int(self.attributes["h_bits"])
        mode = self.attributes["x_mode"]
        if not {self.x_bits, self.h_bits} <= {8, 16} or (self.x_bits == 16 and mode in ("codes", ROW_CODES)):
            raise ValueError(f"{operator}: x_bits = {self.x_bits}, h_bits = {self.h_bits}, or a 16-bit input")
        if (mode == ROW_CODES) != ("X_scale" in inputs):
            raise ValueError(f"{operator}: X_scale belongs to x_mode = {ROW_CODES!r}")

    @property
    def blank_code(self) -> int | None:
        """The quantized hidden state 0; None where there are no `Y_codes`."""
        has_codes = self.attributes["h_mode"] == "static" and self.h_bits == 8
        return int(self.attributes["h_zero_point"]) if has_codes else None

    @property
    def cell_unit(self) -> np.float32 | None:
        """Scale of an integer cell state; None for a float state."""
        return self.number("cell_scale") if self.attributes.get("cell_scale", 0.0) > 0 else None

    @property
    def loses(self) -> bool:
        """Whether an initial hidden state may exceed the range of its quantized values."""
        bounded = self.attributes["h_mode"] == "static" and bool(self.number("h_bound") > 0)
        return bounded and "initial_h" in self.inputs

    def _weights(self, key: str) -> WholeArray:
        """Returns quantized W or R."""
        return exact_weights(self.weight_codes(key), 255)

    def number(self, name: str) -> np.float32:
        """Returns an attribute as float32."""
        return F32(self.attributes[name])

    def initial(self, name: str) -> FloatArray:
        """Returns an initial state [B, H] without NaN; zeros if it is absent."""
        return without_nan(self.inputs.get(name, np.zeros((self.batch, self.hidden), np.float32)))

    def product(self, name: str, codes: CodeArray, zero_point: IntArray | int, weights: WholeArray) -> FloatArray:
        """Returns the integer matmul as float32; records it as integers."""
        parts = products(codes, zero_point, weights)
        whole = parts[0] if len(parts) == 1 else parts[0].astype(np.float64) * 256 + parts[1]
        self.note(name + CODES, whole)
        return combined(parts)

    def pre_activations(self) -> FloatArray:
        """Computes steps 2 to 4 before the loop: p [T, B, GH].

        The first step includes the quantization loss of `initial_h`, unless the type reads the state itself.
        """
        x = self.inputs["X"]
        mode = self.attributes["x_mode"]
        if mode == "dynamic_row":
            codes, scale, zero_points = quantize_rows(without_nan(x), self.x_bits)
            self.note(f"input{ROW_SCALE}", scale)
            self.note(f"input{ZERO_POINT}", zero_points)
            sums = np.asarray(self.product("x.product", codes, zero_points, self.W) * scale)
        elif mode == ROW_CODES:
            codes, scale = x, self.inputs["X_scale"]
            self.note(f"input{ROW_SCALE}", scale)
            sums = np.asarray(self.product("x.product", codes, 0, self.W) * scale)
        else:
            zero_point = int(self.attributes["x_zero_point"])
            codes = x if mode == "codes" else code(without_nan(x), self.number("x_scale"), zero_point, self.x_bits)
            sums = self.product("x.product", codes, zero_point, self.W)
        self.note(f"input{CODES}", codes)
        p = np.asarray(sums * self.inputs["x_multiplier"] + self.inputs["B"], dtype=np.float32)
        if self.loses and not self.type.reads_hidden:
            first = self.element(0)
            p[first] = self.without_loss(p[first], limited(self.initial("initial_h")))
        return p

    def initial_state(self) -> State:
        """Returns quantized hidden states and, for a type that has one, the float state."""
        h = self.initial("initial_h")
        if self.type.reads_hidden or self.attributes["h_mode"] == "dynamic_row":
            h = limited(h)
        state = self.hidden_codes(h)
        if self.type.cell_state:
            c = self.initial("initial_c")
            state["state"] = self.limit_cell(c if self.cell_unit is None else np.asarray(c / self.cell_unit))
        elif self.type.reads_hidden:
            state["state"] = h
        return state

    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        """Computes one step of all rows by the equations of the type."""
        y, after = self.type.step(_LutStep(self, p, state))
        self.note("hidden.value", y)
        return y, {**self.hidden_codes(y), **({"state": after} if "state" in state else {})}

    def limit_cell(self, u: FloatArray) -> FloatArray:
        """Limits a cell state, in its units."""
        if self.cell_unit is None:
            return limited(u)
        limit = self.number("cell_max")
        return np.minimum(np.maximum(rne(u), -limit), limit)

    def output(self, c: FloatArray) -> FloatArray:
        """Returns the output activation of a cell state in its units."""
        kind, unit = self.attributes["output_kind"], self.cell_unit
        if kind in ("table", "relu_table"):
            table = self.inputs["cell_table"]
            half = table.size // 2
            scaled = c if unit is not None else rne(np.asarray(c * self.number("cell_index_scale")))
            codes = np.minimum(np.maximum(scaled, F32(-half)), F32(half - 1))
            values = np.asarray(table[codes.astype(np.int64)])  # negative indices count from the end
            return values if kind == "table" else np.asarray(relu(c) + values)
        real = c if unit is None else np.asarray(c * unit)
        return Activation(kind, self.number("output_alpha"), self.number("output_beta"))(real)

    def hidden_codes(self, y: FloatArray, grid: str = "h") -> State:
        """Quantizes [B, H] to `h`, with `h_scale` for dynamic rows; `grid` selects scale and zero point."""
        zero_point = int(self.attributes[f"{grid}_zero_point"])
        if self.attributes["h_mode"] == "static":
            return {"h": code(y, self.number(f"{grid}_scale"), zero_point, self.h_bits)}
        scale = dynamic_scale(y, self.h_bits)
        return {"h": code(y, scale, zero_point, self.h_bits), "h_scale": scale}

    def recurrent(self, name: str, state: State, columns: slice, grid: str = "h") -> FloatArray:
        """Returns the matmul of quantized hidden states and columns of R in pre-activation units; records the sums."""
        sums = self.product(name, state["h"], int(self.attributes[f"{grid}_zero_point"]), self.R[:, columns])
        if "h_scale" in state:
            sums = np.asarray(sums * state["h_scale"])
        return np.asarray(sums * self.inputs["h_multiplier"][columns])

    def without_loss(self, u: FloatArray, h: FloatArray, columns: slice = slice(None), grid: str = "h") -> FloatArray:
        """Adds to `u` the matmul of columns of R with the part of states h [B, H] that is lost beyond `h_bound`."""
        zero_point, unit = int(self.attributes[f"{grid}_zero_point"]), self.number(f"{grid}_scale")
        bound = self.number("h_bound")
        low = min(F32(F32(-zero_point) * unit), F32(-bound))
        rest = np.asarray((np.clip(h, low, bound) - h) / unit)
        for _ in range(16 // self.h_bits):
            scale = dynamic_scale(rest, self.h_bits)
            codes = code(rest, scale, zero_point, self.h_bits)
            sums = np.asarray(combined(products(codes, zero_point, self.R[:, columns])) * scale)
            u = np.asarray(u - sums * self.inputs["h_multiplier"][columns])
            rest = np.asarray(rest - (codes.astype(np.float32) - F32(zero_point)) * scale)
        return u

    def gate(self, k: int, g: FloatArray) -> FloatArray:
        """Returns the activation of a gate's pre-activations."""
        gate = self._gates[k]
        self.note(f"{gate.name}.preactivation", g)
        value, codes = gate.activated(g, self.inputs.get("gate_table"))
        if codes is not None:
            self.note(f"{gate.name}.acc{CODES}", codes)
        self.note(f"{gate.name}.activation", value)
        return value

    def final(self, outputs: dict[str, npt.NDArray[Any]], state: State) -> None:
        """Removes -0 from `Y` and `Y_h` if there are lengths, and adds `Y_c`."""
        outputs.update({name: self._selected(outputs[name]) for name in ("Y", "Y_h")})
        if self.type.cell_state:
            c = self._selected(state["state"])
            real = c if self.cell_unit is None else np.asarray(c * self.cell_unit)
            outputs["Y_c"] = np.where((self.lengths > 0)[:, np.newaxis], real, F32(0))

    def _selected(self, values: FloatArray) -> FloatArray:
        """Removes -0 if there are lengths."""
        return values + F32(0) if "sequence_lens" in self.inputs else values


class _LutStep(ReferenceStep):
    """`rnnqc.cells.equations.Step` on float32 arrays `[B,H]`.

    Args:
        cell: The cell.
        p: The input's share of the pre-activations `[B,GH]`.
        state: The state after the step before.
    """

    def __init__(self, cell: LutCell, p: FloatArray, state: State) -> None:
        self._cell = cell
        before: FloatArray = state.get("state", np.zeros(0, np.float32))
        columns = slice(cell.type.joint * cell.hidden) if cell.resets_state else slice(None)
        u = cell.recurrent("hidden.product", state, columns)
        if cell.loses and cell.type.reads_hidden:
            u = cell.without_loss(u, before, columns)
        super().__init__(cell, p, u, before)

    def recurrent_of(self, k: int, value: FloatArray) -> FloatArray:
        """Returns value R of gate k."""
        cell, columns = self._cell, slice(k * self._cell.hidden, (k + 1) * self._cell.hidden)
        state = cell.hidden_codes(value, "reset")
        cell.note(f"{RESET_HIDDEN}.value", value)
        cell.note(f"{RESET_HIDDEN}{CODES}", state["h"])
        if "h_scale" in state:
            cell.note(f"{RESET_HIDDEN}{ROW_SCALE}", state["h_scale"])
        u = cell.recurrent(f"{RESET_HIDDEN}.product", state, columns, "reset")
        return cell.without_loss(u, value, columns, "reset") if cell.loses else u

    def product(self, a: FloatArray, b: FloatArray, point: str) -> FloatArray:
        """Returns a * b."""
        value = np.asarray(a * b)
        if point not in (RESET_HIDDEN, "hidden.value"):  # recorded where they are quantized
            self._cell.note(point, value)
        return value

    def total(self, kept: FloatArray, added: FloatArray, point: str) -> FloatArray:
        """Returns kept + added, the state after the step."""
        state = self._cell.limit_cell(np.asarray(kept + added))
        self._cell.note(point if self._cell.cell_unit is None else point + CODES, state)
        return state

    def squashed(self, state: FloatArray) -> FloatArray:
        """Returns the output activation of the cell state."""
        value = self._cell.output(state)
        self._cell.note("hidden.activation", value)
        return value
