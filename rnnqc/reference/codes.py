"""Quantized values, integer matmuls and exact activations of look-up arithmetic (docs/quant_lstm_cell.md).

Every float operation is one float32 operation; integer matmuls are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.integer[Any]]
WholeArray = npt.NDArray[np.floating[Any]]
"""Integers stored as floats, as from `exact_weights`."""

F32 = np.float32
LARGEST_MAGNITUDE = F32(2.0**60)
_SMALLEST_MAGNITUDE = F32(2.0**-100)


def rne(values: FloatArray) -> FloatArray:
    """Rounds to integers, halves to even."""
    return np.rint(values)


def code(values: FloatArray, scale: FloatArray | np.float32, zero_point: FloatArray | int, bits: int) -> CodeArray:
    """Quantizes values of any shape; `scale` and `zero_point` are broadcast."""
    codes = rne(np.asarray(values / scale)) + F32(zero_point)
    codes = np.minimum(np.maximum(codes, F32(0)), F32(2**bits - 1))
    return np.asarray(codes, dtype=np.uint8 if bits == 8 else np.uint16)


def dynamic_scale(rows: FloatArray, bits: int) -> FloatArray:
    """Returns the scale of every row: [..., n] -> [..., 1]."""
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    top = F32(2 ** (bits - 1) - 1)
    return np.asarray(np.clip(largest, _SMALLEST_MAGNITUDE, LARGEST_MAGNITUDE) / top, dtype=np.float32)


def quantize_rows(x: FloatArray, bits: int = 8) -> tuple[CodeArray, FloatArray, IntArray]:
    """Quantizes inputs of `x_mode = "dynamic_row"`: every row has its own scale and zero point.

    Args:
        x: [..., n] without NaN.
        bits: width of the quantized values, 8 or 16.

    Returns:
        Quantized values [..., n], scales [..., 1] and zero points [..., 1].
    """
    a = np.maximum(np.minimum(x.min(axis=-1, keepdims=True), F32(0)), -LARGEST_MAGNITUDE)
    b = np.minimum(np.maximum(x.max(axis=-1, keepdims=True), F32(0)), LARGEST_MAGNITUDE)
    top = F32(2**bits - 1)
    scale = np.asarray(np.maximum(b - a, _SMALLEST_MAGNITUDE) / top, dtype=np.float32)
    zero_point = np.minimum(rne(np.asarray((F32(0) - a) / scale)), top)
    return code(x, scale, zero_point, bits), scale, zero_point.astype(np.int32)


def limited(values: FloatArray) -> FloatArray:
    """Clips to the range of dynamic rows."""
    return np.clip(values, -LARGEST_MAGNITUDE, LARGEST_MAGNITUDE)


def without_nan(values: npt.NDArray[Any]) -> FloatArray:
    """Replaces NaN and -0 by 0."""
    return np.where(np.isnan(values), F32(0), values + F32(0)).astype(np.float32)


def products(codes: CodeArray, zero_point: IntArray | int, weights: WholeArray) -> list[WholeArray]:
    """Returns the exact integer matmul; for 16-bit values two of them, of the high and of the low bytes."""
    if codes.dtype.itemsize == 1:
        return [_integer_product(codes, zero_point, weights)]
    halves = ((codes >> 8, zero_point >> 8), (codes & 255, zero_point & 255))
    return [_integer_product(half, zero, weights) for half, zero in halves]


def combined(parts: Sequence[WholeArray]) -> FloatArray:
    """Converts the result of `products` to float32; for two bytes their weighted sum, in two operations."""
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
    bits: int = 4,
    operator: str = "QuantLSTMCell",
    codebook: int = 0,
    wide_columns: int = 0,
) -> npt.NDArray[np.int8]:
    """Unpacks quantized W or R.

    Args:
        stored: int8 (or int16) `[K, columns]`, or packed uint8 `[K, ceil(columns / 2)]`, for 5 and 6 bits followed by
            the plane of the upper bits.
        multipliers: uint8 `[groups, columns]`, or None.
        group_size: Rows that share a multiplier; 0 without multipliers.
        columns: Columns of a packed matrix; by default, an even number.
        bits: Bits of packed numbers, 4 to 6.
        operator: Name of the operator in messages.
        codebook: 1 if the upper bits of multipliers select codebooks.
        wide_columns: Number of columns with multipliers of 0 and 8 bits, the upper ones in nibbles at the end.

    Raises:
        ValueError: other bits, a plane of another width, multipliers without packed weights or the other way round,
            other groups than `group_size` makes, a multiplier outside 1 .. 18, an unknown codebook, another number of
            wide columns, or a product that is not int8.
    """
    if (multipliers is not None) != (group_size > 0) or (multipliers is not None and stored.dtype != np.uint8):
        raise ValueError(f"{operator}: group multipliers need packed weights and a group size, and the reverse")
    if stored.dtype != np.uint8:
        return stored
    upper = -(-wide_columns // 2)
    codes = _numbers(stored[:, : stored.shape[1] - upper], columns, bits, operator)
    if wide_columns and multipliers is None:
        raise ValueError(f"{operator}: wide columns without groups")
    if multipliers is not None:
        groups = -(-len(codes) // group_size)
        if group_size % 32 or multipliers.shape != (groups, codes.shape[1]):
            raise ValueError(f"{operator}: multipliers {multipliers.shape} for groups of {group_size}")
        wide = (multipliers == 0).all(axis=0)
        if wide.sum() != wide_columns:
            raise ValueError(f"{operator}: {wide.sum()} columns of multipliers 0, {wide_columns} wide ones")
        each = np.where(wide, 1, multipliers)[np.arange(len(codes)) // group_size].astype(np.int64)
        low = codes[:, wide] + (1 << bits - 1)
        if codebook:
            sets = each >> 5
            if codebook != 1 or bits != 4 or sets.max() >= len(_SETS):
                raise ValueError(f"{operator}: codebook {codebook} of {bits} bits, set {sets.max()}")
            codes, each = _SETS[sets, codes + 8], each & 31
        codes = codes * each
        high = stored[:, stored.shape[1] - upper :].astype(np.int64)
        codes[:, wide] = (np.concatenate([high & 15, high >> 4], axis=1)[:, :wide_columns] << bits) + low - 128
        if each.min() < 1 or each.max() > 18 or codes.min() < -128 or codes.max() > 127:
            raise ValueError(f"{operator}: a multiplier is outside 1 .. 18, or a product is no int8")
    return codes.astype(np.int8)


def _numbers(stored: npt.NDArray[np.uint8], columns: int | None, bits: int, operator: str) -> npt.NDArray[np.int64]:
    """Unpacks numbers of `bits`, `[K, columns]`."""
    columns = 2 * stored.shape[1] if columns is None and bits == 4 else columns
    if bits not in (4, 5, 6) or columns is None:
        raise ValueError(f"{operator}: packed numbers of {bits} bits")
    half, upper = (columns + 1) // 2, -(-columns * (bits - 4) // 8)
    if stored.shape[1] != half + upper:
        raise ValueError(f"{operator}: packed weights {stored.shape} of {bits} bits for {columns} columns")
    nibbles, rest = stored[:, :half].astype(np.int64), stored[:, half:].astype(np.int64)
    numbers: npt.NDArray[np.int64] = np.concatenate([nibbles & 15, nibbles >> 4], axis=1)[:, :columns]
    numbers = numbers - np.int64(2 ** (bits - 1))
    for column in range(columns if upper else 0):
        place, byte = divmod(column, upper)
        numbers[:, column] += (rest[:, byte] >> place * (bits - 4)) % 2 ** (bits - 4) * 16
    return numbers


_SETS = np.array(
    [
        range(-8, 8),
        [-15, -10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 4, 6, 8, 11, 15],
        [-10, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10],
        [-9, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8],
        [-8, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 9],
    ]
)
"""The values of the nibbles 0 .. 15 for each codebook."""


def relu(v: FloatArray) -> FloatArray:
    """Returns `v`, or 0 where it is not positive."""
    return np.where(v > 0, v, F32(0))


@dataclass(frozen=True)
class Activation:
    """An activation without a table."""

    kind: str
    alpha: np.float32
    beta: np.float32

    def __call__(self, v: FloatArray) -> FloatArray:
        """Returns values of the same shape; raises ValueError for an unknown kind."""
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


def exact_weights(codes: npt.NDArray[Any], largest: int) -> npt.NDArray[Any]:
    """Returns weights `[K,N]` as floats whose products with integers up to `largest` add up exactly, in any order."""
    bound = largest * float(np.abs(codes.astype(np.float64)).sum(axis=0).max(initial=0))
    return codes.astype(np.float32 if bound < 2**24 else np.float64, order="F")


def exact_product(whole: npt.NDArray[Any], weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Multiplies integers `[...,K]` by weights of `exact_weights` `[K,N]`, without -0.

    With few rows, BLAS computes the transposed matmul, with the weights in its memory order, in half the time.
    """
    rows = whole.reshape(-1, whole.shape[-1]).astype(weights.dtype)
    sums = rows @ weights if len(rows) == 1 else np.ascontiguousarray((weights.T @ rows.T).T)
    sums += weights.dtype.type(0)
    return np.asarray(sums.reshape(*whole.shape[:-1], -1))
