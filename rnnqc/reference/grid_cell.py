"""What operators have in common in fixed-point arithmetic: quantizers, sums, gates, the loop over time.

Follows docs/quant_lstm_cell.md sentence by sentence: integer sums are exact in int64, every other operation is one
operation in the real type. Rows of the batch are computed together; time is a loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.reference.integer_cell import checked_lengths, weight_codes

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
State = dict[str, Array]
"""What a step passes to the next one, arrays [B, H]: hidden codes `h`, and more."""

REQUIRED = ("hidden_size", "grid_scale", "grid_zero_point", "grid_min", "grid_max")
GRIDS = ("grid", "grid32")

_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "half_even": np.rint,
    "half_away": lambda u: np.sign(u) * np.floor(np.abs(u) + u.dtype.type(0.5)),
    "half_up": lambda u: np.floor(u + u.dtype.type(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
    "half_even_up": lambda u: np.where(u < 0, np.floor(u + u.dtype.type(0.5)), np.rint(u)),
    "toward_zero": np.trunc,
}


def defaults(gates: int, quantizers: int) -> dict[str, Any]:
    """Attributes of a cell with so many gates and quantizers, but for those that are required."""
    return {
        "direction": "forward",
        "x_mode": "dynamic_row",
        "grid_rounding": "half_even",
        "gate_table_offset": (0,) * gates,
        "gate_min": (-np.inf,) * gates,
        "gate_max": (np.inf,) * gates,
        "accumulator_bits": 0,
        "w_group_size": 0,
        "r_group_size": 0,
        "grid_offset": (0,) * quantizers,
        "arithmetic": "grid",
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


class GridCell(ABC):
    """One node with states without an axis for the direction: a subclass has the equations of its cell."""

    OPERATOR: ClassVar[str]
    GATES: ClassVar[tuple[str, ...]]
    QUANTIZERS: ClassVar[tuple[str, ...]]
    OPTIONAL: ClassVar[Mapping[str, Any]] = {}
    ARITHMETICS: ClassVar[tuple[str, ...]] = ("grid",)

    def __init__(self, inputs: Mapping[str, Array], given: Mapping[str, Any]) -> None:
        """Attributes that count for other arithmetics only are ignored."""
        missing = set(REQUIRED) - set(given)
        if missing:
            raise ValueError(f"{self.OPERATOR}: missing attributes {sorted(missing)}")
        known = {**defaults(len(self.GATES), len(self.QUANTIZERS)), **self.OPTIONAL}
        self.attributes = {**known, **{k: v for k, v in given.items() if k in (*known, *REQUIRED)}}
        if self.attributes["arithmetic"] not in self.ARITHMETICS:
            raise ValueError(f"{self.OPERATOR}: unknown arithmetic {self.attributes['arithmetic']!r}")
        self.real = np.dtype(np.float32 if self.attributes["arithmetic"] == "grid32" else np.float64)
        self.inputs = inputs
        self.hidden = int(self.attributes["hidden_size"])
        self.quantizers = self._quantizers()
        absent = [n for n in self.needed() if not self.quantizers[n].scale]
        if absent:
            raise ValueError(f"{self.OPERATOR}: quantizers {absent} are needed")
        self.W, self.R = (self._weights(key) for key in ("W", "R"))
        self.time, self.batch = inputs["X"].shape[:2]
        self.lengths = checked_lengths(inputs, self.OPERATOR)

    def needed(self) -> tuple[str, ...]:
        """The quantizers that must be there."""
        return ("input", "hidden", *(f"acc_{g}" for g in self.GATES))

    @abstractmethod
    def initial_state(self) -> State:
        """What the first step gets."""

    @abstractmethod
    def step(self, p: Array, state: State) -> tuple[npt.NDArray[np.float32], State]:
        """One step of all rows: p [B, GH] and state in; y [B, H] and state out."""

    def _quantizers(self) -> dict[str, Quantizer]:
        names = self.attributes["grid_rounding"].split(",")
        columns = [
            self.attributes["grid_scale"],
            *(self.attributes[k] for k in ("grid_zero_point", "grid_min", "grid_max")),
            names if len(names) > 1 else names * len(self.QUANTIZERS),
            self.attributes["grid_offset"],
        ]
        return {
            n: Quantizer(
                self.real.type(np.float32(scale)), int(zero), int(low), int(high), rounding, self.real, int(offset)
            )
            for n, scale, zero, low, high, rounding, offset in zip(self.QUANTIZERS, *columns, strict=True)
        }

    def _weights(self, key: str) -> IntArray:
        """Codes of W or R less their zero points."""
        codes = weight_codes(
            self.inputs[key],
            self.inputs.get(f"{key}_group_multiplier"),
            int(self.attributes[f"{key.lower()}_group_size"]),
            len(self.GATES) * self.hidden,
            self.OPERATOR,
        )
        return np.asarray(codes.astype(np.int64) - self.inputs.get(f"{key}_zero_point", np.int64(0)))

    def widened(self, values: Array) -> Array:
        """Values in the real type."""
        return np.asarray(values).astype(self.real)

    def number(self, value: Any) -> Any:
        """An attribute, which is a binary32 number, in the real type."""
        return self.real.type(np.float32(value))

    def clean(self, name: str) -> npt.NDArray[np.float32]:
        """An input with 0 for NaN."""
        values = self.inputs[name]
        return np.where(np.isnan(values), np.float32(0), values)

    def product(self, codes: IntArray, name: str, weights: IntArray) -> Array:
        """Exact sums of the codes of a quantizer times weights, limited to the width of the accumulator."""
        sums = (codes - self.quantizers[name].zero_point) @ weights
        bits = int(self.attributes["accumulator_bits"])
        if bits:
            sums = np.clip(sums, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self.widened(sums)

    def part(self, values: Array, gate: str) -> Array:
        """The columns [..., H] of a gate in [..., GH]."""
        first = self.GATES.index(gate) * self.hidden
        return values[..., first : first + self.hidden]

    def on_grids(self, kind: str, values: Array) -> Array:
        """Values [..., nH] of the first gates, each on the grid `<kind>_<gate>`."""
        gates = self.GATES[: values.shape[-1] // self.hidden]
        return np.concatenate([self.quantizers[f"{kind}_{g}"](self.part(values, g)) for g in gates], axis=-1)

    def recurrent(self, codes: IntArray, gates: int | None = None) -> Array:
        """Q_hidden_product of the products of hidden codes with R, of all gates or the first ones."""
        columns = slice(None if gates is None else gates * self.hidden)
        sums = self.product(codes, "hidden", self.R[:, columns])
        return self.on_grids("hidden_product", sums * self.widened(self.inputs["h_multiplier"][columns]))

    def of_input(self) -> Array:
        """The input's share of the pre-activations `[T,B,GH]`."""
        x = self.inputs["X"]
        if self.attributes["x_mode"] == "codes":
            codes = x.astype(np.int64)
        else:
            codes = self.quantizers["input"].code(self.widened(self.clean("X")))
        units = self.product(codes, "input", self.W) * self.widened(self.inputs["x_multiplier"])
        bias_last = self.attributes["arithmetic"] == "grid32"
        return self.on_grids("input_product", units if bias_last else units + self.widened(self.inputs["B"]))

    def gate(self, gate: str, value: Array) -> Array:
        """Table values of a gate's pre-activations `[B,H]`."""
        k = self.GATES.index(gate)
        high, low = self.number(self.attributes["gate_max"][k]), self.number(self.attributes["gate_min"][k])
        quantizer = self.quantizers[f"acc_{gate}"]
        code = quantizer.code(np.maximum(np.minimum(value, high), low))
        index = int(self.attributes["gate_table_offset"][k]) + code - quantizer.low
        return self.widened(self.inputs["gate_table"][index])

    def loop(self) -> tuple[dict[str, Array], State]:
        """All steps: `Y`, `Y_h` and, if there are any, `Y_codes`; and the last state, of ended rows too."""
        hidden, p, state = self.quantizers["hidden"], self.of_input(), self.initial_state()
        shape = (self.time, self.batch, self.hidden)
        Y, Y_h = np.zeros(shape, np.float32), np.zeros(shape[1:], np.float32)
        Y_codes = np.full(shape, hidden.zero_point)
        rows = np.arange(self.batch)
        for step in range(self.time):
            running = step < self.lengths
            t = np.full(self.batch, step) if self.attributes["direction"] == "forward" else self.lengths - 1 - step
            t = np.where(running, t, 0)
            y, new = self.step(p[t, rows], state)
            mask = running[:, np.newaxis]
            Y[t[running], rows[running]] = y[running]
            Y_codes[t[running], rows[running]] = new["h"][running]
            Y_h = np.where(mask, y, Y_h)
            state = {name: np.where(mask, new[name], state[name]) for name in state}
        if "sequence_lens" in self.inputs:
            Y, Y_h = Y + np.float32(0), Y_h + np.float32(0)
        outputs: dict[str, Array] = {"Y": Y, "Y_h": Y_h}
        if hidden.high <= 255:
            outputs["Y_codes"] = Y_codes.astype(np.uint8)
        return outputs, state


def attributes_of(cell: type[GridCell]) -> frozenset[str]:
    """The attributes that this arithmetic of an operator uses."""
    return frozenset((*defaults(0, 0), *REQUIRED, *cell.OPTIONAL))


def quantizer_names(gates: tuple[str, ...], state: tuple[str, ...]) -> tuple[str, ...]:
    """The quantizers in order: those that every cell has, and those of its `state`."""
    kinds = ("input_product", "hidden_product", "acc")
    return ("input", "hidden", *(f"{kind}_{g}" for kind in kinds for g in gates), *state)
