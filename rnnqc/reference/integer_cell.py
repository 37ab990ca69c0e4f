"""What the operators with arithmetic "tables" have in common: codes, integer products, activations, the loop over time.

Every float operation is one float32 operation, integer products are exact. Rows of the batch are computed together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.cells.fused_nodes import CONFIGURATION, PLACES
from rnnqc.reference.loop import ReferenceCell, State, exact_product, exact_weights
from rnnqc.reference.recording import CODES, ROW_SCALE, ZERO_POINT, Recorder

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.integer[Any]]
WholeArray = npt.NDArray[np.floating[Any]]
"""Whole numbers, of `exact_weights`."""

F32 = np.float32
LARGEST_MAGNITUDE = F32(2.0**60)
_SMALLEST_MAGNITUDE = F32(2.0**-100)


def defaults(gates: int) -> dict[str, Any]:
    """Attributes that every cell of so many gates has, but for those that are required."""
    return {
        "direction": "forward",
        "x_mode": "dynamic_row",
        "x_scale": 0.0,
        "x_zero_point": 128,
        "h_mode": "static",
        "h_scale": 0.0,
        "h_zero_point": 128,
        "h_bound": 0.0,
        "gate_kinds": ",".join(["table"] * gates),
        "gate_alpha": (0.0,) * gates,
        "gate_beta": (0.0,) * gates,
        "gate_table_offset": (0,) * gates,
        "gate_index_scale": (0.0,) * gates,
        "gate_index_size": (0,) * gates,
        "w_group_size": 0,
        "r_group_size": 0,
        "x_bits": 8,
        "h_bits": 8,
        "y_direction_axis": 0,
        "state_direction_axis": 0,
        "arithmetic": "tables",
    }


REQUIRED = ("hidden_size", "gate_min", "gate_max")


def rne(values: FloatArray) -> FloatArray:
    """Rounded to whole numbers, halves to even."""
    return np.rint(values)


def code(values: FloatArray, scale: FloatArray | np.float32, zero_point: FloatArray | int, bits: int) -> CodeArray:
    """Codes of values of the same shape; `scale` and `zero_point` are broadcast to it."""
    codes = rne(np.asarray(values / scale)) + F32(zero_point)
    codes = np.minimum(np.maximum(codes, F32(0)), F32(2**bits - 1))
    return np.asarray(codes, dtype=np.uint8 if bits == 8 else np.uint16)


def dynamic_scale(rows: FloatArray, bits: int) -> FloatArray:
    """Scale of every row [..., n] -> [..., 1]."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    top = F32(2 ** (bits - 1) - 1)
    return np.asarray(np.clip(largest, _SMALLEST_MAGNITUDE, LARGEST_MAGNITUDE) / top, dtype=np.float32)


def quantize_rows(x: FloatArray, bits: int = 8) -> tuple[CodeArray, FloatArray, IntArray]:
    """Input codes of `x_mode = "dynamic_row"`: every row has a grid of its own.

    Args:
        x: [..., n] without NaN.
        bits: width of the codes, 8 or 16.

    Returns:
        Codes [..., n], scales [..., 1] and zero points [..., 1].
    """
    a = np.maximum(np.minimum(x.min(axis=-1, keepdims=True), F32(0)), -LARGEST_MAGNITUDE)
    b = np.minimum(np.maximum(x.max(axis=-1, keepdims=True), F32(0)), LARGEST_MAGNITUDE)
    top = F32(2**bits - 1)
    scale = np.asarray(np.maximum(b - a, _SMALLEST_MAGNITUDE) / top, dtype=np.float32)
    zero_point = np.minimum(rne(np.asarray((F32(0) - a) / scale)), top)
    return code(x, scale, zero_point, bits), scale, zero_point.astype(np.int32)


def limited(values: FloatArray) -> FloatArray:
    """Within what dynamic rows hold."""
    return np.clip(values, -LARGEST_MAGNITUDE, LARGEST_MAGNITUDE)


def without_nan(values: npt.NDArray[Any]) -> FloatArray:
    """0 for NaN and for -0."""
    return np.where(np.isnan(values), F32(0), values + F32(0)).astype(np.float32)


def products(codes: CodeArray, zero_point: IntArray | int, weights: WholeArray) -> list[WholeArray]:
    """Integer product, exact; of 16-bit codes those of their high and of their low bytes."""
    if codes.dtype == np.uint8:
        return [_integer_product(codes, zero_point, weights)]
    halves = ((codes >> 8, zero_point >> 8), (codes & 255, zero_point & 255))
    return [_integer_product(half, zero, weights) for half, zero in halves]


def combined(parts: Sequence[WholeArray]) -> FloatArray:
    """What `products` made as float32 numbers: of two bytes their weighted sum, in two operations."""
    first, *rest = (p.astype(np.float32, copy=False) for p in parts)
    return np.asarray(first * F32(256) + rest[0]) if rest else first


def _integer_product(codes: CodeArray, zero_point: IntArray | int, weights: WholeArray) -> WholeArray:
    sums = exact_product(codes.astype(np.int32) - zero_point, weights)
    if weights.dtype == np.float64 and np.abs(sums).max() >= 2**31:  # sums in float32 stay below 2**24
        raise ValueError("an integer product leaves int32")
    return sums


def weight_codes(
    stored: npt.NDArray[Any],
    multipliers: npt.NDArray[np.uint8] | None,
    group_size: int,
    columns: int | None = None,
    operator: str = "QuantLSTMCell",
) -> npt.NDArray[np.int8]:
    """Codes of W or R.

    Args:
        stored: int8 (or int16) `[K, columns]`, or packed int4 uint8 `[K, ceil(columns / 2)]`.
        multipliers: uint8 `[groups, columns]`, or None.
        group_size: Rows that share a multiplier; 0 without multipliers.
        columns: Columns of a packed matrix; by default, an even number.
        operator: For messages.

    Raises:
        ValueError: multipliers without packed codes or the other way round, other groups than `group_size` makes, a
            multiplier outside 1 .. 18, or a product that is no int8.
    """
    if (multipliers is not None) != (group_size > 0) or (multipliers is not None and stored.dtype != np.uint8):
        raise ValueError(f"{operator}: group multipliers need packed weights and a group size, and the reverse")
    if stored.dtype != np.uint8:
        return stored
    codes = np.concatenate([stored & 15, stored >> 4], axis=1).astype(np.int64)[:, :columns] - 8
    if multipliers is not None:
        groups = -(-len(codes) // group_size)
        if group_size % 32 or multipliers.shape != (groups, codes.shape[1]):
            raise ValueError(f"{operator}: multipliers {multipliers.shape} for groups of {group_size}")
        codes = codes * multipliers[np.arange(len(codes)) // group_size]
        if multipliers.min() < 1 or multipliers.max() > 18 or codes.min() < -128 or codes.max() > 127:
            raise ValueError(f"{operator}: a multiplier is outside 1 .. 18, or a product is no int8")
    return codes.astype(np.int8)


def relu(v: FloatArray) -> FloatArray:
    """`v`, or 0 where it is not positive."""
    return np.where(v > 0, v, F32(0))


@dataclass(frozen=True)
class Activation:
    """A kind without a table."""

    kind: str
    alpha: np.float32
    beta: np.float32

    def __call__(self, v: FloatArray) -> FloatArray:
        """Values of the same shape; ValueError for another kind."""
        if self.kind == "Relu":
            return relu(v)
        if self.kind == "LeakyRelu":
            return np.where(v < 0, self.alpha * v, v) + F32(0)
        if self.kind == "ThresholdedRelu":
            return np.where(v > self.alpha, v, F32(0)) + F32(0)
        if self.kind == "Affine":
            return np.asarray(self.alpha * v + self.beta)
        if self.kind == "HardSigmoid":
            w = relu(np.asarray(self.alpha * v + self.beta))
            return np.where(w < 1, w, F32(1))
        if self.kind == "Softsign":
            return np.asarray(v / (F32(1) + np.abs(v)))
        raise ValueError(f"unknown activation kind {self.kind!r}")


@dataclass(frozen=True)
class _Gate:
    """One entry of each of the attributes `gate_*`; `name` is the gate's in tensors."""

    name: str
    kind: str
    low: np.float32
    high: np.float32
    alpha: np.float32
    beta: np.float32
    offset: int
    index_scale: np.float32
    index_size: int


class IntegerCell(ReferenceCell):
    """One node in look-up arithmetic: a subclass has the equations of its cell."""

    KEEPS_STATE: ClassVar[bool] = False
    """Whether a hidden state beyond the bound may stay there for more than a step."""
    OPTIONAL: ClassVar[Mapping[str, Any]] = {}
    """Attributes of this operator alone, with their defaults."""
    IGNORED: ClassVar[Collection[str]] = ()
    """Attributes of other arithmetics."""

    def __init__(
        self,
        inputs: Mapping[str, npt.NDArray[Any]],
        attributes: Mapping[str, Any],
        recorder: Recorder | None = None,
    ) -> None:
        operator = self.TYPE.fused
        missing = set(REQUIRED) - set(attributes)
        known = {**defaults(len(self.GATES)), **self.OPTIONAL}
        others = set(self.IGNORED) - set(known) - set(REQUIRED)
        attributes = {k: v for k, v in attributes.items() if k not in others}
        unknown = set(attributes) - set(known) - set(REQUIRED) - {CONFIGURATION, PLACES}
        if unknown or missing:
            raise ValueError(f"{operator}: unknown attributes {sorted(unknown)}, missing ones {sorted(missing)}")
        self.attributes = {**known, **attributes}
        if self.attributes["arithmetic"] != "tables":
            raise ValueError(f"{operator}: unknown arithmetic {self.attributes['arithmetic']!r}")
        super().__init__(inputs, self.attributes, recorder)
        self._gates = self._gate_settings()
        self.W, self.R = (self._weights(key) for key in ("W", "R"))
        self.x_bits, self.h_bits = int(self.attributes["x_bits"]), int(self.attributes["h_bits"])
        if not {self.x_bits, self.h_bits} <= {8, 16} or (self.x_bits == 16 and self.attributes["x_mode"] == "codes"):
            raise ValueError(f"{operator}: x_bits = {self.x_bits}, h_bits = {self.h_bits}, or 16-bit input codes")

    @property
    def blank_code(self) -> int | None:
        """The hidden code of 0; None where there are no `Y_codes`."""
        has_codes = self.attributes["h_mode"] == "static" and self.h_bits == 8
        return int(self.attributes["h_zero_point"]) if has_codes else None

    def _weights(self, key: str) -> WholeArray:
        """Codes of W or R."""
        size = int(self.attributes[f"{key.lower()}_group_size"])
        multipliers = self.inputs.get(f"{key}_group_multiplier")
        columns = len(self.GATES) * self.hidden
        return exact_weights(weight_codes(self.inputs[key], multipliers, size, columns, self.TYPE.fused), 255)

    def _gate_settings(self) -> dict[str, _Gate]:
        """The entries of the attributes `gate_*`, by gate; converted once, and not in each step."""
        a, kinds = self.attributes, self.attributes["gate_kinds"].split(",")
        return {
            gate: _Gate(
                name=self.gate_name(gate),
                kind=kinds[k],
                low=F32(a["gate_min"][k]),
                high=F32(a["gate_max"][k]),
                alpha=F32(a["gate_alpha"][k]),
                beta=F32(a["gate_beta"][k]),
                offset=int(a["gate_table_offset"][k]),
                index_scale=F32(a["gate_index_scale"][k]),
                index_size=int(a["gate_index_size"][k]),
            )
            for k, gate in enumerate(self.GATES)
        }

    def number(self, name: str) -> np.float32:
        """An attribute as float32."""
        return F32(self.attributes[name])

    def initial(self, name: str) -> FloatArray:
        """An initial state [B, H] without NaN, zeros if absent."""
        return without_nan(self.inputs.get(name, np.zeros((self.batch, self.hidden), np.float32)))

    def product(self, name: str, codes: CodeArray, zero_point: IntArray | int, weights: WholeArray) -> FloatArray:
        """Integer product as float32, noted as whole numbers."""
        parts = products(codes, zero_point, weights)
        whole = parts[0] if len(parts) == 1 else parts[0].astype(np.float64) * 256 + parts[1]
        self.note(name + CODES, whole)
        return combined(parts)

    def pre_activations(self) -> FloatArray:
        """Steps 2 to 4 before the loop: p [T, B, GH]; in the first step with what the codes of `initial_h` lose."""
        x = self.inputs["X"]
        mode = self.attributes["x_mode"]
        if mode == "dynamic_row":
            codes, scale, zero_points = quantize_rows(without_nan(x), self.x_bits)
            self.note(f"input{ROW_SCALE}", scale)
            self.note(f"input{ZERO_POINT}", zero_points)
            sums = np.asarray(self.product("x.product", codes, zero_points, self.W) * scale)
        else:
            zero_point = int(self.attributes["x_zero_point"])
            codes = x if mode == "codes" else code(without_nan(x), self.number("x_scale"), zero_point, self.x_bits)
            sums = self.product("x.product", codes, zero_point, self.W)
        self.note(f"input{CODES}", codes)
        p = np.asarray(sums * self.inputs["x_multiplier"] + self.inputs["B"], dtype=np.float32)
        if self.loses and not self.KEEPS_STATE:
            first = self.element(0)
            p[first] = self.without_loss(p[first], limited(self.initial("initial_h")))
        return p

    def hidden_codes(self, y: FloatArray, grid: str = "h") -> State:
        """`h` of [B, H] and, for dynamic rows, `h_scale`; with another grid than "h" its scale and zero point."""
        zero_point = int(self.attributes[f"{grid}_zero_point"])
        if self.attributes["h_mode"] == "static":
            return {"h": code(y, self.number(f"{grid}_scale"), zero_point, self.h_bits)}
        scale = dynamic_scale(y, self.h_bits)
        return {"h": code(y, scale, zero_point, self.h_bits), "h_scale": scale}

    def recurrent(self, name: str, state: State, columns: slice = slice(None), grid: str = "h") -> FloatArray:
        """Products of hidden codes and columns of R in pre-activation units; their sums are noted."""
        sums = self.product(name, state["h"], int(self.attributes[f"{grid}_zero_point"]), self.R[:, columns])
        if "h_scale" in state:
            sums = np.asarray(sums * state["h_scale"])
        return np.asarray(sums * self.inputs["h_multiplier"][columns])

    def without_loss(self, u: FloatArray, h: FloatArray, columns: slice = slice(None), grid: str = "h") -> FloatArray:
        """`u` and the product of some columns of R with what the codes of states h [B, H] lose beyond `h_bound`."""
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

    def gate(self, gate: str, g: FloatArray) -> FloatArray:
        """Activation of a gate's pre-activations."""
        s = self._gates[gate]
        self.note(f"{s.name}.preactivation", g)
        v = np.maximum(np.minimum(g, s.high), s.low)
        if s.kind == "table":
            codes = v.astype(np.int64)
            self.note(f"{s.name}.acc{CODES}", codes)
            value = np.asarray(self.inputs["gate_table"][s.offset + codes])
        elif s.kind == "relu_table":
            k = v * s.index_scale + F32(s.index_size // 2 + 0.5)
            codes = np.clip(k, F32(0), F32(s.index_size - 0.5)).astype(np.int64)
            value = np.asarray(relu(v) + self.inputs["gate_table"][s.offset + codes])
        else:
            value = Activation(s.kind, s.alpha, s.beta)(v)
        self.note(f"{s.name}.activation", value)
        return value

    @property
    def loses(self) -> bool:
        """Whether hidden states may come from outside that lie beyond what their codes hold."""
        bounded = self.attributes["h_mode"] == "static" and bool(self.number("h_bound") > 0)
        return bounded and "initial_h" in self.inputs

    def final(self, outputs: dict[str, npt.NDArray[Any]], state: State) -> None:
        """Without -0 in `Y` and `Y_h` if there are lengths."""
        outputs.update({name: self.selected(outputs[name]) for name in ("Y", "Y_h")})

    def selected(self, values: FloatArray) -> FloatArray:
        """Without -0 if there are lengths."""
        return values + F32(0) if "sequence_lens" in self.inputs else values
