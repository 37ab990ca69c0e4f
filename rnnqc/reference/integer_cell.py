"""What the operators with arithmetic "tables" have in common: codes, integer products, activations, the loop over time.

Every float operation is one float32 operation, integer products are exact. Rows of the batch are computed together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.cells.fused_nodes import CONFIGURATION, PLACES

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.integer[Any]]
State = dict[str, npt.NDArray[Any]]
"""What a step passes to the next one, arrays [B, ...]: `h` codes, `h_scale` [B, 1] for dynamic rows, and more."""

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
    codes = np.clip(rne(np.asarray(values / scale)) + F32(zero_point), F32(0), F32(2**bits - 1))
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


def product(codes: CodeArray, zero_point: IntArray | int, weights: npt.NDArray[np.int8]) -> FloatArray:
    """Integer product as float32; of 16-bit codes the sum of those of their two bytes."""
    if codes.dtype == np.uint8:
        return _integer_product(codes, zero_point, weights)
    high = _integer_product(codes >> 8, zero_point >> 8, weights)
    low = _integer_product(codes & 255, zero_point & 255, weights)
    return np.asarray(high * F32(256) + low)


def _integer_product(codes: CodeArray, zero_point: IntArray | int, weights: npt.NDArray[np.int8]) -> FloatArray:
    # Whole numbers far below 2**53: exact in float64, in any order of summation.
    sums = (codes.astype(np.float64) - zero_point) @ weights.astype(np.float64)
    if np.abs(sums).max() >= 2**31:
        raise ValueError("an integer product leaves int32")
    return sums.astype(np.int32).astype(np.float32)


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


def checked_lengths(inputs: Mapping[str, npt.NDArray[Any]], operator: str) -> npt.NDArray[Any]:
    """`sequence_lens`, or T for each row; ValueError for lengths or sizes that the operator refuses."""
    time, batch = inputs["X"].shape[:2]
    if time == 0 or batch == 0:
        raise ValueError(f"{operator}: T = 0 and B = 0 are errors")
    lengths = inputs.get("sequence_lens", np.full(batch, time, np.int32))
    if lengths.min() < 0 or lengths.max() > time:
        raise ValueError(f"{operator}: sequence_lens {lengths.tolist()} outside 0 .. {time}")
    return lengths


class IntegerCell(ABC):
    """One node: a subclass has the equations of its cell."""

    OPERATOR: ClassVar[str]
    GATES: ClassVar[tuple[str, ...]]
    KEEPS_STATE: ClassVar[bool] = False
    """Whether a hidden state beyond the bound may stay there for more than a step."""

    def __init__(
        self,
        inputs: Mapping[str, npt.NDArray[Any]],
        attributes: Mapping[str, Any],
        optional: Mapping[str, Any],
        ignored: Collection[str] = (),
    ) -> None:
        """`optional`: attributes of this operator alone, with their defaults; `ignored`: those of other arithmetics."""
        missing = set(REQUIRED) - set(attributes)
        known = {**defaults(len(self.GATES)), **optional}
        others = set(ignored) - set(known) - set(REQUIRED)
        attributes = {k: v for k, v in attributes.items() if k not in others}
        unknown = set(attributes) - set(known) - set(REQUIRED) - {CONFIGURATION, PLACES}
        if unknown or missing:
            raise ValueError(f"{self.OPERATOR}: unknown attributes {sorted(unknown)}, missing ones {sorted(missing)}")
        self.attributes = {**known, **attributes}
        if self.attributes["arithmetic"] != "tables":
            raise ValueError(f"{self.OPERATOR}: unknown arithmetic {self.attributes['arithmetic']!r}")
        self.kinds = tuple(self.attributes["gate_kinds"].split(","))
        self.inputs = inputs
        self.hidden = int(self.attributes["hidden_size"])
        self.W, self.R = (
            weight_codes(
                inputs[key],
                inputs.get(f"{key}_group_multiplier"),
                int(self.attributes[f"{key.lower()}_group_size"]),
                len(self.GATES) * self.hidden,
                self.OPERATOR,
            )
            for key in ("W", "R")
        )
        self.x_bits, self.h_bits = int(self.attributes["x_bits"]), int(self.attributes["h_bits"])
        if not {self.x_bits, self.h_bits} <= {8, 16} or (self.x_bits == 16 and self.attributes["x_mode"] == "codes"):
            raise ValueError(f"{self.OPERATOR}: x_bits = {self.x_bits}, h_bits = {self.h_bits}, or 16-bit input codes")
        self.time, self.batch = inputs["X"].shape[:2]
        self.lengths = checked_lengths(inputs, self.OPERATOR)

    @abstractmethod
    def initial_state(self) -> State:
        """What the first step gets."""

    @abstractmethod
    def step(self, p: FloatArray, state: State) -> tuple[FloatArray, State]:
        """One step of all rows: p [B, GH] and state in; y [B, H] and state out."""

    def number(self, name: str) -> np.float32:
        """An attribute as float32."""
        return F32(self.attributes[name])

    def initial(self, name: str) -> FloatArray:
        """An initial state [B, H] without NaN, zeros if absent."""
        return without_nan(self.inputs.get(name, np.zeros((self.batch, self.hidden), np.float32)))

    def part(self, values: npt.NDArray[Any], gate: str) -> npt.NDArray[Any]:
        """The columns [..., H] of a gate in [..., GH]."""
        first = self.GATES.index(gate) * self.hidden
        return values[..., first : first + self.hidden]

    def _input_pre_activations(self) -> FloatArray:
        """Steps 2 to 4 before the loop: p [T, B, GH]."""
        x = self.inputs["X"]
        mode = self.attributes["x_mode"]
        if mode == "dynamic_row":
            codes, scale, zero_points = quantize_rows(without_nan(x), self.x_bits)
            sums = np.asarray(product(codes, zero_points, self.W) * scale)
        else:
            zero_point = int(self.attributes["x_zero_point"])
            codes = x if mode == "codes" else code(without_nan(x), self.number("x_scale"), zero_point, self.x_bits)
            sums = product(codes, zero_point, self.W)
        return np.asarray(sums * self.inputs["x_multiplier"] + self.inputs["B"], dtype=np.float32)

    def hidden_codes(self, y: FloatArray, grid: str = "h") -> State:
        """`h` of [B, H] and, for dynamic rows, `h_scale`; with another grid than "h" its scale and zero point."""
        zero_point = int(self.attributes[f"{grid}_zero_point"])
        if self.attributes["h_mode"] == "static":
            return {"h": code(y, self.number(f"{grid}_scale"), zero_point, self.h_bits)}
        scale = dynamic_scale(y, self.h_bits)
        return {"h": code(y, scale, zero_point, self.h_bits), "h_scale": scale}

    def recurrent(self, state: State, columns: slice = slice(None), grid: str = "h") -> FloatArray:
        """Products of hidden codes and columns of R in pre-activation units."""
        sums = product(state["h"], int(self.attributes[f"{grid}_zero_point"]), self.R[:, columns])
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
            sums = np.asarray(product(codes, zero_point, self.R[:, columns]) * scale)
            u = np.asarray(u - sums * self.inputs["h_multiplier"][columns])
            rest = np.asarray(rest - (codes.astype(np.float32) - F32(zero_point)) * scale)
        return u

    def gate(self, gate: str, g: FloatArray) -> FloatArray:
        """Activation of a gate's pre-activations."""
        index = self.GATES.index(gate)
        kind = self.kinds[index]

        def value(name: str) -> np.float32:
            return F32(self.attributes[name][index])

        v = np.maximum(np.minimum(g, value("gate_max")), value("gate_min"))
        offset = int(self.attributes["gate_table_offset"][index])
        if kind == "table":
            return np.asarray(self.inputs["gate_table"][offset + np.trunc(v).astype(np.int64)])
        if kind == "relu_table":
            size = int(self.attributes["gate_index_size"][index])
            k = v * value("gate_index_scale") + F32(size // 2 + 0.5)
            codes = np.trunc(np.clip(k, F32(0), F32(size - 0.5))).astype(np.int64)
            return np.asarray(relu(v) + self.inputs["gate_table"][offset + codes])
        return Activation(kind, value("gate_alpha"), value("gate_beta"))(v)

    @property
    def loses(self) -> bool:
        """Whether hidden states may come from outside that lie beyond what their codes hold."""
        bounded = self.attributes["h_mode"] == "static" and bool(self.number("h_bound") > 0)
        return bounded and "initial_h" in self.inputs

    def loop(self) -> tuple[dict[str, npt.NDArray[Any]], State]:
        """All steps: `Y`, `Y_h` and, if there are any, `Y_codes`; and the last state, of ended rows too."""
        p = self._input_pre_activations()
        if self.loses and not self.KEEPS_STATE:
            forward = self.attributes["direction"] == "forward"
            first = np.zeros_like(self.lengths) if forward else np.maximum(self.lengths - 1, 0)
            rows = np.arange(self.batch)
            p[first, rows] = self.without_loss(p[first, rows], limited(self.initial("initial_h")))
        state = self.initial_state()
        shape = (self.time, self.batch, self.hidden)
        Y = np.zeros(shape, np.float32)
        Y_codes = np.full(shape, self.attributes["h_zero_point"], state["h"].dtype)
        Y_h = np.zeros(shape[1:], np.float32)
        rows = np.arange(self.batch)
        for step in range(self.time):
            running = step < self.lengths
            t = np.full(self.batch, step) if self.attributes["direction"] == "forward" else self.lengths - 1 - step
            t = np.where(running, t, 0)
            y, new = self.step(p[t, rows], state)
            Y[t[running], rows[running]] = y[running]
            Y_codes[t[running], rows[running]] = new["h"][running]
            mask = running[:, np.newaxis]
            Y_h = np.where(mask, y, Y_h)
            state = {name: np.where(mask, new[name], state[name]) for name in state}
        outputs: dict[str, npt.NDArray[Any]] = {"Y": self.selected(Y), "Y_h": self.selected(Y_h)}
        if self.attributes["h_mode"] == "static" and self.h_bits == 8:
            outputs["Y_codes"] = Y_codes
        return outputs, state

    def selected(self, values: FloatArray) -> FloatArray:
        """Without -0 if there are lengths."""
        return values + F32(0) if "sequence_lens" in self.inputs else values


def without_direction_axis(
    inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any], states: tuple[str, ...]
) -> dict[str, npt.NDArray[Any]]:
    """Inputs whose states are [B, H]."""
    removed = states if attributes.get("state_direction_axis") else ()
    return {name: value[0] if name in removed else value for name, value in inputs.items()}


def with_direction_axes(results: dict[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> None:
    """Puts the axes of the attributes into `Y` and the last states."""
    if attributes.get("y_direction_axis"):
        results["Y"] = results["Y"][:, np.newaxis]
    if attributes.get("state_direction_axis"):
        results.update({name: results[name][np.newaxis] for name in ("Y_h", "Y_c") if name in results})
