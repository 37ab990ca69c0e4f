"""The arithmetics "grid" and "grid32" of `ai.rnnqc::QuantLSTMCell` in numpy.

Follows docs/quant_lstm_cell.md sentence by sentence: integer sums are exact in int64, every other operation is one
operation in the real type. Rows of the batch are computed together; time is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

GATES = ("i", "o", "f", "c")
QUANTIZERS = (
    *("input", "hidden"),
    *(f"input_product_{g}" for g in GATES),
    *(f"hidden_product_{g}" for g in GATES),
    *(f"acc_{g}" for g in GATES),
    *("kept", "added", "cell_state"),
)
ATTRIBUTES: dict[str, Any] = {
    "direction": "forward",
    "x_mode": "dynamic_row",
    "grid_rounding": "half_even",
    "gate_table_offset": (0,) * 4,
    "gate_min": (-np.inf,) * 4,
    "gate_max": (np.inf,) * 4,
    "input_forget": 0,
    "one": 1.0,
    "accumulator_bits": 0,
    "rounded_output": 0,
    "w_group_size": 0,
    "r_group_size": 0,
    "grid_offset": (0,) * len(QUANTIZERS),
    "arithmetic": "grid",
}
REQUIRED = ("hidden_size", "grid_scale", "grid_zero_point", "grid_min", "grid_max")

_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "half_even": np.rint,
    "half_away": lambda u: np.sign(u) * np.floor(np.abs(u) + u.dtype.type(0.5)),
    "half_up": lambda u: np.floor(u + u.dtype.type(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
    "half_even_up": lambda u: np.where(u < 0, np.floor(u + u.dtype.type(0.5)), np.rint(u)),
    "toward_zero": np.trunc,
}


@dataclass(frozen=True)
class Quantizer:
    """One entry of the attributes `grid_*`.

    Attributes:
        scale: Real value of one code; 0 for a quantizer that passes values on.
        zero_point: Code of 0.
        low: Lowest code.
        high: Highest code.
        rounding: Name of the rounding.
        real: The type of real values.
        offset: Whole number added before rounding.
    """

    scale: np.floating[Any]
    zero_point: int
    low: int
    high: int
    rounding: str
    real: np.dtype[Any]
    offset: int

    def code(self, values: Array) -> IntArray:
        """Codes of real values."""
        offset = self.real.type(self.offset)
        whole = _ROUNDINGS[self.rounding](np.asarray(values / self.scale + offset)) - offset
        limited = np.clip(whole, self.low - self.zero_point, self.high - self.zero_point)
        return np.asarray(limited.astype(np.int64) + self.zero_point)

    def value(self, codes: IntArray) -> Array:
        """Real values of codes."""
        return np.asarray((codes - self.zero_point).astype(self.real) * self.scale)

    def __call__(self, values: Array) -> Array:
        """Values on the grid."""
        return self.value(self.code(values)) if self.scale else values


def run(
    inputs: Mapping[str, Array], weights: Mapping[str, Array], given: Mapping[str, Any], real: npt.DTypeLike
) -> dict[str, Array]:
    """Computes all outputs of one node with states without an axis for the direction.

    Args:
        inputs: Arrays by the operator's input names.
        weights: Codes of W and R, unpacked.
        given: Attributes; those of the other arithmetic are ignored.
        real: The type of real values.

    Raises:
        ValueError: A missing or impossible attribute, T = 0, B = 0, or a sequence length outside 0 .. T.
    """
    with np.errstate(all="ignore"):
        return _Node(inputs, weights, given, np.dtype(real)).run()


class _Node:
    def __init__(
        self, inputs: Mapping[str, Array], weights: Mapping[str, Array], given: Mapping[str, Any], real: np.dtype[Any]
    ) -> None:
        missing = set(REQUIRED) - set(given)
        if missing:
            raise ValueError(f"QuantLSTMCell: missing attributes {sorted(missing)}")
        self.attributes = {**ATTRIBUTES, **{k: v for k, v in given.items() if k in (*ATTRIBUTES, *REQUIRED)}}
        self.real = real
        self.inputs = inputs
        self.hidden = int(self.attributes["hidden_size"])
        self.quantizers = self._quantizers()
        self.bias_last = self.attributes["arithmetic"] == "grid32"
        self.bias = self._real(inputs["B"])
        self.W, self.R = (self._centred(key, weights[key]) for key in ("W", "R"))
        self.time, self.batch = inputs["X"].shape[:2]
        if self.time == 0 or self.batch == 0:
            raise ValueError("QuantLSTMCell: T = 0 and B = 0 are errors")
        self.lengths = inputs.get("sequence_lens", np.full(self.batch, self.time, np.int32))
        if self.lengths.min() < 0 or self.lengths.max() > self.time:
            raise ValueError(f"QuantLSTMCell: sequence_lens {self.lengths.tolist()} outside 0 .. {self.time}")

    def _quantizers(self) -> dict[str, Quantizer]:
        names = self.attributes["grid_rounding"].split(",")
        columns = [
            self.attributes["grid_scale"],
            *(self.attributes[k] for k in ("grid_zero_point", "grid_min", "grid_max")),
            names if len(names) > 1 else names * len(QUANTIZERS),
            self.attributes["grid_offset"],
        ]
        made = {
            n: Quantizer(
                self.real.type(np.float32(scale)), int(zero), int(low), int(high), rounding, self.real, int(offset)
            )
            for n, scale, zero, low, high, rounding, offset in zip(QUANTIZERS, *columns, strict=True)
        }
        used = [f"acc_{g}" for g in GATES if not (g == "f" and self.attributes["input_forget"])]
        absent = [n for n in ("input", "hidden", *used, "cell_state") if not made[n].scale]
        if absent:
            raise ValueError(f"QuantLSTMCell: quantizers {absent} are needed")
        return made

    def _centred(self, key: str, codes: Array) -> IntArray:
        return np.asarray(codes.astype(np.int64) - self.inputs.get(f"{key}_zero_point", np.int64(0)))

    def _real(self, values: Array) -> Array:
        return np.asarray(values).astype(self.real)

    def _clean(self, name: str) -> Array:
        values = self.inputs[name]
        return self._real(np.where(np.isnan(values), np.float32(0), values))

    def _product(self, codes: IntArray, name: str, weights: IntArray) -> Array:
        sums = (codes - self.quantizers[name].zero_point) @ weights
        bits = int(self.attributes["accumulator_bits"])
        if bits:
            sums = np.clip(sums, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self._real(sums)

    def _gates(self, name: str, values: Array) -> Array:
        parts = np.split(values, 4, axis=-1)
        return np.concatenate(
            [self.quantizers[f"{name}_{g}"](part) for g, part in zip(GATES, parts, strict=True)], axis=-1
        )

    def _input_part(self) -> Array:
        """The input's share of the pre-activations `[T,B,4H]`."""
        x = self.inputs["X"]
        if self.attributes["x_mode"] == "codes":
            codes = x.astype(np.int64)
        else:
            codes = self.quantizers["input"].code(self._clean("X"))
        sums = self._product(codes, "input", self.W)
        units = np.asarray(sums * self._real(self.inputs["x_multiplier"]))
        return self._gates("input_product", units if self.bias_last else np.asarray(units + self.bias))

    def _gate(self, gate: str, g: Array, state: Array | None) -> Array:
        k = GATES.index(gate)
        value = g[:, k * self.hidden : (k + 1) * self.hidden]
        peephole = self.inputs.get("P")
        if peephole is not None and state is not None:
            value = value + self._real(peephole[k * self.hidden : (k + 1) * self.hidden]) * state
        high = self.real.type(np.float32(self.attributes["gate_max"][k]))
        low = self.real.type(np.float32(self.attributes["gate_min"][k]))
        quantizer = self.quantizers[f"acc_{gate}"]
        code = quantizer.code(np.maximum(np.minimum(value, high), low))
        index = int(self.attributes["gate_table_offset"][k]) + code - quantizer.low
        return self._real(self.inputs["gate_table"][index])

    def _step(self, p: Array, h: IntArray, c: IntArray) -> tuple[npt.NDArray[np.float32], IntArray, IntArray]:
        """One step of all rows: p [B, 4H], hidden and cell codes in; y, hidden and cell codes out."""
        q = self.quantizers
        state = q["cell_state"].value(c)
        sums = self._product(h, "hidden", self.R)
        g = np.asarray(p + self._gates("hidden_product", np.asarray(sums * self._real(self.inputs["h_multiplier"]))))
        g = np.asarray(g + self.bias) if self.bias_last else g
        i = self._gate("i", g, state)
        f = self.real.type(np.float32(self.attributes["one"])) - i if self.attributes["input_forget"] else None
        f = self._gate("f", g, state) if f is None else f
        d = self._gate("c", g, None)
        c = q["cell_state"].code(np.asarray(q["kept"](np.asarray(f * state)) + q["added"](np.asarray(i * d))))
        o = self._gate("o", g, q["cell_state"].value(c))
        squashed = self._real(self.inputs["cell_table"][c - q["cell_state"].low])
        y = np.asarray(o * squashed)
        if self.attributes["rounded_output"]:
            h = q["hidden"].code(y)
            return q["hidden"].value(h).astype(np.float32), h, c
        y = y.astype(np.float32)
        return y, q["hidden"].code(self._real(y)), c

    def run(self) -> dict[str, Array]:
        q = self.quantizers
        p = self._input_part()
        shape = (self.time, self.batch, self.hidden)
        h, c = np.full(shape[1:], q["hidden"].zero_point), np.full(shape[1:], q["cell_state"].zero_point)
        if "initial_h" in self.inputs:
            h = q["hidden"].code(self._clean("initial_h"))
        if "initial_c" in self.inputs:
            c = q["cell_state"].code(self._clean("initial_c"))
        Y, Y_h = np.zeros(shape, np.float32), np.zeros(shape[1:], np.float32)
        Y_codes = np.full(shape, q["hidden"].zero_point)
        rows = np.arange(self.batch)
        for step in range(self.time):
            running = step < self.lengths
            t = np.full(self.batch, step) if self.attributes["direction"] == "forward" else self.lengths - 1 - step
            t = np.where(running, t, 0)
            y, new_h, new_c = self._step(p[t, rows], h, c)
            mask = running[:, np.newaxis]
            Y[t[running], rows[running]] = y[running]
            Y_codes[t[running], rows[running]] = new_h[running]
            Y_h, h, c = np.where(mask, y, Y_h), np.where(mask, new_h, h), np.where(mask, new_c, c)
        if "sequence_lens" in self.inputs:
            Y, Y_h = Y + np.float32(0), Y_h + np.float32(0)
        Y_c = np.where((self.lengths > 0)[:, np.newaxis], q["cell_state"].value(c).astype(np.float32), np.float32(0))
        outputs: dict[str, Array] = {"Y": Y, "Y_h": Y_h, "Y_c": Y_c}
        if q["hidden"].high <= 255:
            outputs["Y_codes"] = Y_codes.astype(np.uint8)
        return outputs
