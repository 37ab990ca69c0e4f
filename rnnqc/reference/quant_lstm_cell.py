"""`ai.rnnqc::QuantLSTMCell` in numpy.

Follows docs/quant_lstm_cell.md sentence by sentence: every float operation is one float32 operation, integer products
are exact. Rows of the batch are computed together; time is a loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.reference import grid_lstm

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.integer[Any]]

GATES = ("i", "o", "f", "c")
_DEFAULTS: dict[str, Any] = {
    "direction": "forward",
    "x_mode": "dynamic_row",
    "x_scale": 0.0,
    "x_zero_point": 128,
    "h_mode": "static",
    "h_scale": 0.0,
    "h_zero_point": 128,
    "cell_scale": 0.0,
    "cell_max": 32767.0,
    "gate_kinds": "table,table,table,table",
    "gate_alpha": (0.0,) * 4,
    "gate_beta": (0.0,) * 4,
    "gate_table_offset": (0,) * 4,
    "gate_index_scale": (0.0,) * 4,
    "gate_index_size": (0,) * 4,
    "output_kind": "table",
    "output_alpha": 0.0,
    "output_beta": 0.0,
    "cell_index_scale": 0.0,
    "input_forget": 0,
    "one": 1.0,
    "w_group_size": 0,
    "r_group_size": 0,
    "x_bits": 8,
    "h_bits": 8,
    "y_direction_axis": 0,
    "state_direction_axis": 0,
    "arithmetic": "tables",
}
_REQUIRED = ("hidden_size", "gate_min", "gate_max")

_F32 = np.float32
_LARGEST_MAGNITUDE = np.float32(2.0**60)
_SMALLEST_MAGNITUDE = _F32(2.0**-100)
_FLOAT_CELL_LIMIT = _F32(2.0**60)


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
    states = ("initial_h", "initial_c") if attributes.get("state_direction_axis") else ()
    inner = {name: value[0] if name in states else value for name, value in inputs.items()}
    arithmetic = attributes.get("arithmetic", "tables")
    if arithmetic in ("grid", "grid32"):
        weights = {
            key: weight_codes(
                inputs[key], inputs.get(f"{key}_group_multiplier"), int(attributes.get(f"{key.lower()}_group_size", 0))
            )
            for key in ("W", "R")
        }
        results = grid_lstm.run(inner, weights, attributes, np.float64 if arithmetic == "grid" else np.float32)
    elif arithmetic == "tables":
        with np.errstate(all="ignore"):
            results = _Node(inner, attributes).run()
    else:
        raise ValueError(f"QuantLSTMCell: unknown arithmetic {arithmetic!r}")
    if attributes.get("y_direction_axis"):
        results["Y"] = results["Y"][:, np.newaxis]
    if attributes.get("state_direction_axis"):
        results.update({name: results[name][np.newaxis] for name in ("Y_h", "Y_c")})
    return results


def _rne(values: FloatArray) -> FloatArray:
    return np.rint(values)


def _code(values: FloatArray, scale: FloatArray | np.float32, zero_point: FloatArray | int, bits: int) -> CodeArray:
    codes = np.clip(_rne(np.asarray(values / scale)) + _F32(zero_point), _F32(0), _F32(2**bits - 1))
    return np.asarray(codes, dtype=np.uint8 if bits == 8 else np.uint16)


def _dynamic_scale(rows: FloatArray, bits: int) -> FloatArray:
    """Scale of every row [..., n] -> [..., 1]."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    top = _F32(2 ** (bits - 1) - 1)
    return np.asarray(np.clip(largest, _SMALLEST_MAGNITUDE, _LARGEST_MAGNITUDE) / top, dtype=np.float32)


def quantize_rows(x: FloatArray, bits: int = 8) -> tuple[CodeArray, FloatArray, IntArray]:
    """Input codes of `x_mode = "dynamic_row"`: every row has a grid of its own.

    Args:
        x: [..., n] without NaN.
        bits: width of the codes, 8 or 16.

    Returns:
        Codes [..., n], scales [..., 1] and zero points [..., 1].
    """
    a = np.maximum(np.minimum(x.min(axis=-1, keepdims=True), _F32(0)), -_LARGEST_MAGNITUDE)
    b = np.minimum(np.maximum(x.max(axis=-1, keepdims=True), _F32(0)), _LARGEST_MAGNITUDE)
    top = _F32(2**bits - 1)
    scale = np.asarray(np.maximum(b - a, _SMALLEST_MAGNITUDE) / top, dtype=np.float32)
    zero_point = np.minimum(_rne(np.asarray((_F32(0) - a) / scale)), top)
    return _code(x, scale, zero_point, bits), scale, zero_point.astype(np.int32)


def _without_nan(values: npt.NDArray[Any]) -> FloatArray:
    return np.where(np.isnan(values), _F32(0), values + _F32(0)).astype(np.float32)


def _product(codes: CodeArray, zero_point: IntArray | int, weights: npt.NDArray[np.int8]) -> FloatArray:
    """Integer product as float32; of 16-bit codes the sum of those of their two bytes."""
    if codes.dtype == np.uint8:
        return _integer_product(codes, zero_point, weights)
    high = _integer_product(codes >> 8, zero_point >> 8, weights)
    low = _integer_product(codes & 255, zero_point & 255, weights)
    return np.asarray(high * _F32(256) + low)


def _integer_product(codes: CodeArray, zero_point: IntArray | int, weights: npt.NDArray[np.int8]) -> FloatArray:
    # Whole numbers far below 2**53: exact in float64, in any order of summation.
    product = (codes.astype(np.float64) - zero_point) @ weights.astype(np.float64)
    if np.abs(product).max() >= 2**31:
        raise ValueError("an integer product leaves int32")
    return product.astype(np.int32).astype(np.float32)


def weight_codes(
    stored: npt.NDArray[Any], multipliers: npt.NDArray[np.uint8] | None, group_size: int
) -> npt.NDArray[np.int8]:
    """Codes of W or R.

    Args:
        stored: int8 (or int16) `[K, 4H]`, or packed int4 uint8 `[K, 2H]`.
        multipliers: uint8 `[G, 4H]`, or None.
        group_size: Rows that share a multiplier; 0 without multipliers.

    Raises:
        ValueError: multipliers without packed codes or the other way round, other groups than `group_size` makes, a
            multiplier outside 1 .. 18, or a product that is no int8.
    """
    if (multipliers is not None) != (group_size > 0) or (multipliers is not None and stored.dtype != np.uint8):
        raise ValueError("QuantLSTMCell: group multipliers need packed weights and a group size, and the reverse")
    if stored.dtype != np.uint8:
        return stored
    codes = np.concatenate([stored & 15, stored >> 4], axis=1).astype(np.int64) - 8
    if multipliers is not None:
        groups = -(-len(codes) // group_size)
        if group_size % 32 or multipliers.shape != (groups, codes.shape[1]):
            raise ValueError(f"QuantLSTMCell: multipliers {multipliers.shape} for groups of {group_size}")
        codes = codes * multipliers[np.arange(len(codes)) // group_size]
        if multipliers.min() < 1 or multipliers.max() > 18 or codes.min() < -128 or codes.max() > 127:
            raise ValueError("QuantLSTMCell: a multiplier is outside 1 .. 18, or a product is no int8")
    return codes.astype(np.int8)


def _relu(v: FloatArray) -> FloatArray:
    return np.where(v > 0, v, _F32(0))


@dataclass(frozen=True)
class _Activation:
    """A kind without a table."""

    kind: str
    alpha: np.float32
    beta: np.float32

    def __call__(self, v: FloatArray) -> FloatArray:
        if self.kind == "Relu":
            return _relu(v)
        if self.kind == "LeakyRelu":
            return np.where(v < 0, self.alpha * v, v) + _F32(0)
        if self.kind == "ThresholdedRelu":
            return np.where(v > self.alpha, v, _F32(0)) + _F32(0)
        if self.kind == "Affine":
            return np.asarray(self.alpha * v + self.beta)
        if self.kind == "HardSigmoid":
            w = _relu(np.asarray(self.alpha * v + self.beta))
            return np.where(w < 1, w, _F32(1))
        if self.kind == "Softsign":
            return np.asarray(v / (_F32(1) + np.abs(v)))
        raise ValueError(f"unknown activation kind {self.kind!r}")


class _Node:
    def __init__(self, inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> None:
        others = {*grid_lstm.ATTRIBUTES, *grid_lstm.REQUIRED}
        unknown = set(attributes) - set(_DEFAULTS) - set(_REQUIRED) - others
        missing = set(_REQUIRED) - set(attributes)
        if unknown or missing:
            raise ValueError(f"QuantLSTMCell: unknown attributes {sorted(unknown)}, missing ones {sorted(missing)}")
        self.attributes = {**_DEFAULTS, **attributes}
        self.kinds = tuple(self.attributes["gate_kinds"].split(","))
        self.inputs = inputs
        self.W, self.R = (
            weight_codes(
                inputs[key], inputs.get(f"{key}_group_multiplier"), int(self.attributes[f"{key.lower()}_group_size"])
            )
            for key in ("W", "R")
        )
        self.hidden = int(self.attributes["hidden_size"])
        self.x_bits, self.h_bits = int(self.attributes["x_bits"]), int(self.attributes["h_bits"])
        if not {self.x_bits, self.h_bits} <= {8, 16} or (self.x_bits == 16 and self.attributes["x_mode"] == "codes"):
            raise ValueError(f"QuantLSTMCell: x_bits = {self.x_bits}, h_bits = {self.h_bits}, or 16-bit input codes")
        self.quantized_cell = self.attributes["cell_scale"] > 0
        self.time, self.batch = inputs["X"].shape[:2]
        if self.time == 0 or self.batch == 0:
            raise ValueError("QuantLSTMCell: T = 0 and B = 0 are errors")
        self.lengths = inputs.get("sequence_lens", np.full(self.batch, self.time, np.int32))
        if self.lengths.min() < 0 or self.lengths.max() > self.time:
            raise ValueError(f"QuantLSTMCell: sequence_lens {self.lengths.tolist()} outside 0 .. {self.time}")

    def _float(self, name: str) -> np.float32:
        return _F32(self.attributes[name])

    def _input_pre_activations(self) -> FloatArray:
        """Steps 2 to 4 before the loop: p [T, B, 4H]."""
        x = self.inputs["X"]
        mode = self.attributes["x_mode"]
        if mode == "dynamic_row":
            codes, scale, zero_points = quantize_rows(_without_nan(x), self.x_bits)
            product = np.asarray(_product(codes, zero_points, self.W) * scale)
        else:
            zero_point = int(self.attributes["x_zero_point"])
            codes = x if mode == "codes" else _code(_without_nan(x), self._float("x_scale"), zero_point, self.x_bits)
            product = _product(codes, zero_point, self.W)
        return np.asarray(product * self.inputs["x_multiplier"] + self.inputs["B"], dtype=np.float32)

    def _hidden_codes(self, y: FloatArray) -> tuple[CodeArray, FloatArray | None]:
        """Codes of [B, H], and for dynamic_row the scale of each row."""
        zero_point = int(self.attributes["h_zero_point"])
        if self.attributes["h_mode"] == "static":
            return _code(y, self._float("h_scale"), zero_point, self.h_bits), None
        scale = _dynamic_scale(y, self.h_bits)
        return _code(y, scale, zero_point, self.h_bits), scale

    def _initial_states(self) -> tuple[CodeArray, FloatArray | None, FloatArray]:
        zeros = np.zeros((self.batch, self.hidden), np.float32)
        h = _without_nan(self.inputs.get("initial_h", zeros))
        c = _without_nan(self.inputs.get("initial_c", zeros))
        if self.attributes["h_mode"] == "dynamic_row":
            h = np.clip(h, -_LARGEST_MAGNITUDE, _LARGEST_MAGNITUDE)
        codes, scale = self._hidden_codes(h)
        return codes, scale, self._limit_cell(np.asarray(c / self._float("cell_scale")) if self.quantized_cell else c)

    def _limit_cell(self, u: FloatArray) -> FloatArray:
        if self.quantized_cell:
            limit = self._float("cell_max")
            return np.clip(_rne(u), -limit, limit)
        return np.clip(u, -_FLOAT_CELL_LIMIT, _FLOAT_CELL_LIMIT)

    def _gate(self, gate: str, g: FloatArray) -> FloatArray:
        index = GATES.index(gate)
        kind = self.kinds[index]

        def value(name: str) -> np.float32:
            return _F32(self.attributes[name][index])

        v = np.maximum(np.minimum(g, value("gate_max")), value("gate_min"))
        offset = int(self.attributes["gate_table_offset"][index])
        if kind == "table":
            return np.asarray(self.inputs["gate_table"][offset + np.trunc(v).astype(np.int64)])
        if kind == "relu_table":
            size = int(self.attributes["gate_index_size"][index])
            k = v * value("gate_index_scale") + _F32(size // 2 + 0.5)
            codes = np.trunc(np.clip(k, _F32(0), _F32(size - 0.5))).astype(np.int64)
            return np.asarray(_relu(v) + self.inputs["gate_table"][offset + codes])
        return _Activation(kind, value("gate_alpha"), value("gate_beta"))(v)

    def _output(self, c: FloatArray) -> FloatArray:
        kind = self.attributes["output_kind"]
        if kind in ("table", "relu_table"):
            table = self.inputs["cell_table"]
            half = table.size // 2
            scaled = c if self.quantized_cell else _rne(np.asarray(c * self._float("cell_index_scale")))
            codes = np.clip(scaled, _F32(-half), _F32(half - 1))
            values = np.asarray(table[codes.astype(np.int64) % table.size])
            return values if kind == "table" else np.asarray(_relu(c) + values)
        real = np.asarray(c * self._float("cell_scale")) if self.quantized_cell else c
        return _Activation(kind, self._float("output_alpha"), self._float("output_beta"))(real)

    def _step(
        self, p: FloatArray, h: CodeArray, h_scale: FloatArray | None, c: FloatArray
    ) -> tuple[FloatArray, CodeArray, FloatArray | None, FloatArray]:
        """One step of all rows: p [B, 4H], codes, their scales and cell state in; y, codes, scales and cell out."""
        product = _product(h, int(self.attributes["h_zero_point"]), self.R)
        if h_scale is not None:
            product = product * h_scale
        g = np.asarray(product * self.inputs["h_multiplier"] + p)
        g_i, g_o, g_f, g_c = (g[:, k * self.hidden : (k + 1) * self.hidden] for k in range(4))
        peephole = self.inputs.get("P")
        if peephole is not None:
            p_i, p_o, p_f = (peephole[k * self.hidden : (k + 1) * self.hidden] for k in range(3))
            g_i = g_i + p_i * c
            g_f = g_f + p_f * c
        i = self._gate("i", g_i)
        f = np.asarray(self._float("one") - i) if self.attributes["input_forget"] else self._gate("f", g_f)
        d = self._gate("c", g_c)
        c = self._limit_cell(np.asarray(f * c + i * d))
        if peephole is not None:
            g_o = g_o + p_o * c
        y = np.asarray(self._gate("o", g_o) * self._output(c))
        codes, scale = self._hidden_codes(y)
        return y, codes, scale, c

    def run(self) -> dict[str, npt.NDArray[Any]]:
        p = self._input_pre_activations()
        h, h_scale, c = self._initial_states()
        shape = (self.time, self.batch, self.hidden)
        Y = np.zeros(shape, np.float32)
        Y_codes = np.full(shape, self.attributes["h_zero_point"], h.dtype)
        Y_h = np.zeros(shape[1:], np.float32)
        rows = np.arange(self.batch)
        for step in range(self.time):
            running = step < self.lengths
            t = np.full(self.batch, step) if self.attributes["direction"] == "forward" else self.lengths - 1 - step
            t = np.where(running, t, 0)
            y, new_h, new_scale, new_c = self._step(p[t, rows], h, h_scale, c)
            Y[t[running], rows[running]] = y[running]
            Y_codes[t[running], rows[running]] = new_h[running]
            mask = running[:, np.newaxis]
            Y_h = np.where(mask, y, Y_h)
            h = np.where(mask, new_h, h)
            c = np.where(mask, new_c, c)
            if h_scale is not None and new_scale is not None:
                h_scale = np.where(mask, new_scale, h_scale)
        if "sequence_lens" in self.inputs:
            Y, Y_h, c = Y + _F32(0), Y_h + _F32(0), c + _F32(0)
        Y_c = np.asarray(c * self._float("cell_scale")) if self.quantized_cell else c
        Y_c = np.where((self.lengths > 0)[:, np.newaxis], Y_c, _F32(0))
        outputs: dict[str, npt.NDArray[Any]] = {"Y": Y, "Y_h": Y_h, "Y_c": Y_c}
        if self.attributes["h_mode"] == "static" and self.h_bits == 8:
            outputs["Y_codes"] = Y_codes
        return outputs
