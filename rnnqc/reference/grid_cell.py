"""What operators have in common in fixed-point arithmetic: quantizers, sums, gates, the loop over time.

Follows docs/quant_lstm_cell.md sentence by sentence: integer sums are exact in int64, every other operation is one
operation in the real type. Rows of the batch are computed together; time is a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.reference.integer_cell import weight_codes
from rnnqc.reference.loop import Array, ReferenceCell, State, exact_product, exact_weights
from rnnqc.reference.recording import CODES, Recorder

__all__ = ["Array", "GridCell", "Quantizer", "State", "attributes_of", "quantizer_names"]

IntArray = npt.NDArray[np.int64]

_MULTIPLIED = {"W": ("input",), "R": ("hidden", "reset")}
"""The quantizers whose codes are multiplied by weights."""
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

    def multiples(self, values: Array) -> Array:
        """Codes of real values less the zero point, as real numbers."""
        units = np.asarray(values / self.scale)
        offset = self.real.type(self.offset)
        whole = _ROUNDINGS[self.rounding](units + offset) - offset if offset else _ROUNDINGS[self.rounding](units)
        return np.asarray(np.clip(whole, self.low - self.zero_point, self.high - self.zero_point))

    def code(self, values: Array) -> IntArray:
        """Codes of real values."""
        return np.asarray(self.multiples(values).astype(np.int64) + self.zero_point)

    def value(self, codes: IntArray) -> Array:
        """Real values of codes."""
        return np.asarray((codes - self.zero_point).astype(self.real) * self.scale)


class GridCell(ReferenceCell):
    """One node in fixed-point arithmetic: a subclass has the equations of its cell."""

    QUANTIZERS: ClassVar[tuple[str, ...]]
    OPTIONAL: ClassVar[Mapping[str, Any]] = {}
    ARITHMETICS: ClassVar[tuple[str, ...]] = ("grid",)

    def __init__(self, inputs: Mapping[str, Array], given: Mapping[str, Any], recorder: Recorder | None = None) -> None:
        """Attributes that count for other arithmetics only are ignored."""
        operator, missing = self.TYPE.fused, set(REQUIRED) - set(given)
        if missing:
            raise ValueError(f"{operator}: missing attributes {sorted(missing)}")
        known = {**defaults(len(self.GATES), len(self.QUANTIZERS)), **self.OPTIONAL}
        self.attributes = {**known, **{k: v for k, v in given.items() if k in (*known, *REQUIRED)}}
        if self.attributes["arithmetic"] not in self.ARITHMETICS:
            raise ValueError(f"{operator}: unknown arithmetic {self.attributes['arithmetic']!r}")
        self.real = np.dtype(np.float32 if self.attributes["arithmetic"] == "grid32" else np.float64)
        super().__init__(inputs, given, recorder)
        self.quantizers = self._quantizers()
        absent = [n for n in self.needed() if not self.quantizers[n].scale]
        if absent:
            raise ValueError(f"{operator}: quantizers {absent} are needed")
        self.W, self.R = (self._weights(key) for key in ("W", "R"))

    @property
    def blank_code(self) -> int | None:
        """The hidden code of 0; None where there are no `Y_codes`."""
        hidden = self.quantizers["hidden"]
        return hidden.zero_point if hidden.high <= 255 else None

    def needed(self) -> tuple[str, ...]:
        """The quantizers that must be there."""
        return ("input", "hidden", *(f"acc_{g}" for g in self.GATES))

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

    def _weights(self, key: str) -> Array:
        """Codes of W or R less their zero points."""
        size = int(self.attributes[f"{key.lower()}_group_size"])
        multipliers = self.inputs.get(f"{key}_group_multiplier")
        codes = weight_codes(self.inputs[key], multipliers, size, len(self.GATES) * self.hidden, self.TYPE.fused)
        quantizers = [self.quantizers[n] for n in _MULTIPLIED[key] if n in self.quantizers]
        largest = max(max(abs(q.low - q.zero_point), abs(q.high - q.zero_point)) for q in quantizers)
        return exact_weights(codes.astype(np.int64) - self.inputs.get(f"{key}_zero_point", np.int64(0)), largest)

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

    def product(self, point: str, codes: IntArray, name: str, weights: Array) -> Array:
        """Exact sums of the codes of a quantizer times weights, limited to the width of the accumulator, and noted."""
        sums = exact_product(codes - self.quantizers[name].zero_point, weights).astype(np.int64)
        bits = int(self.attributes["accumulator_bits"])
        if bits:
            sums = np.clip(sums, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        self.note(point + CODES, sums)
        return self.widened(sums)

    def on_grid(self, point: str, values: Array, name: str) -> Array:
        """Values on the grid of a quantizer, noted under the name of their quantization point."""
        quantizer = self.quantizers[name]
        if not quantizer.scale:
            self.note(point, values)
            return values
        multiples = quantizer.multiples(values)
        self.note(point + CODES, multiples.astype(np.int64) + quantizer.zero_point)
        return np.asarray(multiples * quantizer.scale)

    def on_grids(self, kind: str, values: Array, gates: tuple[str, ...]) -> Array:
        """Values [..., nH] of some gates, each on the grid `<kind>_<gate>`."""
        parts = np.split(values, len(gates), axis=-1)
        made = [
            self.on_grid(f"{self.gate_name(g)}.{kind}", v, f"{kind}_{g}") for g, v in zip(gates, parts, strict=True)
        ]
        return np.concatenate(made, axis=-1)

    def recurrent(self, codes: IntArray, gates: int | None = None) -> Array:
        """Q_hidden_product of the products of hidden codes with R, of all gates or the first ones."""
        columns = slice(None if gates is None else gates * self.hidden)
        sums = self.product("hidden.product", codes, "hidden", self.R[:, columns])
        units = sums * self.widened(self.inputs["h_multiplier"][columns])
        return self.on_grids("hidden_product", units, self.GATES[:gates])

    def pre_activations(self) -> Array:
        """The input's share of them `[T,B,GH]`."""
        x = self.inputs["X"]
        if self.attributes["x_mode"] == "codes":
            codes = x.astype(np.int64)
        else:
            codes = self.quantizers["input"].code(self.widened(self.clean("X")))
        self.note(f"input{CODES}", codes)
        units = self.product("x.product", codes, "input", self.W) * self.widened(self.inputs["x_multiplier"])
        if self.attributes["arithmetic"] != "grid32":
            units = units + self.widened(self.inputs["B"])
        return self.on_grids("input_product", units, self.GATES)

    def gate(self, gate: str, value: Array) -> Array:
        """Table values of a gate's pre-activations `[B,H]`."""
        k, name = self.GATES.index(gate), self.gate_name(gate)
        self.note(f"{name}.preactivation", value)
        high, low = self.number(self.attributes["gate_max"][k]), self.number(self.attributes["gate_min"][k])
        quantizer = self.quantizers[f"acc_{gate}"]
        code = quantizer.code(np.maximum(np.minimum(value, high), low))
        self.note(f"{name}.acc{CODES}", code)
        index = int(self.attributes["gate_table_offset"][k]) + code - quantizer.low
        entries = self.inputs["gate_table"][index]
        self.note(f"{name}.activation", entries)
        return self.widened(entries)

    def final(self, outputs: dict[str, Array], state: State) -> None:
        """Without -0 in `Y` and `Y_h` if there are lengths."""
        if "sequence_lens" in self.inputs:
            outputs.update({name: outputs[name] + np.float32(0) for name in ("Y", "Y_h")})


def attributes_of(cell: type[GridCell]) -> frozenset[str]:
    """The attributes that this arithmetic of an operator uses."""
    return frozenset((*defaults(0, 0), *REQUIRED, *cell.OPTIONAL))


def quantizer_names(gates: tuple[str, ...], state: tuple[str, ...]) -> tuple[str, ...]:
    """The quantizers in order: those that every cell has, and those of its `state`."""
    kinds = ("input_product", "hidden_product", "acc")
    return ("input", "hidden", *(f"{kind}_{g}" for kind in kinds for g in gates), *state)
