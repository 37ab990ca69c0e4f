"""The operations of programs on every instruction set: the bits of numpy, nothing else touched.

What these would catch: an operation that rounds, limits or converts otherwise, a sign of zero that is lost, one number
that is not repeated, a row that is taken from another one, a read or write beyond the named extents (buffers end at
guard pages).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.native.kernel_calls import AVAILABLE, NATIVE, Guarded

Array = npt.NDArray[Any]
F, D, Z, U = np.float32, np.float64, np.int32, np.uint8
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 8388607.5, -8388609.0, 2.0**31, -(2.0**31), 3e9, np.inf, -np.inf, 1e-45]
WHOLE = [0, 1, -1, 255, 256, -129, 2**31 - 1, -(2**31)]


class Operation(NamedTuple):
    """One of VectorOp, in its order: types of what it reads and makes, and what that is."""

    name: str
    given: tuple[type[Any], ...]
    made: type[Any]
    expected: Callable[..., Array]


def _to_i32(a: Array) -> Array:
    fits = (a >= -(2.0**31)) & (a < 2.0**31)
    return np.where(fits, np.where(fits, a, 0).astype(np.int64), -(2**31)).astype(Z)


def _clip(a: Array, low: Array, high: Array) -> Array:
    above = np.where(a < low, low, a)
    return np.where(above > high, high, above)


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
WHOLE_NUMBERS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip
OPERATIONS = [
    *(Operation(f"{name} f32", (F, F), F, f) for name, f in ARITHMETIC.items()),
    *(Operation(f"{name} f64", (D, D), D, f) for name, f in ARITHMETIC.items()),
    *(Operation(f"{name} i32", (Z, Z), Z, f) for name, f in WHOLE_NUMBERS.items()),
    Operation("neg", (F,), F, np.negative),
    Operation("abs", (F,), F, np.abs),
    Operation("floor", (F,), F, np.floor),
    Operation("ceil", (F,), F, np.ceil),
    Operation("round", (F,), F, np.rint),
    Operation("clip", (F, F, F), F, _clip),
    Operation("largest", (F,), F, lambda a: a.max(axis=1, keepdims=True)),
    Operation("less", (F, F), U, np.less),
    Operation("select", (U, F, F), F, lambda a, b, c: np.where(a != 0, np.where(b == 0, F(0), b), c)),
    Operation("f32 to i32", (F,), Z, _to_i32),
    Operation("f32 to u8", (F,), U, lambda a: (_to_i32(a) & 255).astype(U)),
    Operation("f32 to f64", (F,), D, lambda a: a.astype(D)),
    Operation("f64 to f32", (D,), F, lambda a: a.astype(F)),
    Operation("i32 to f32", (Z,), F, lambda a: a.astype(F)),
    Operation("i32 to f64", (Z,), D, lambda a: a.astype(D)),
    Operation("i32 to u8", (Z,), U, lambda a: (a & 255).astype(U)),
    Operation("u8 to f32", (U,), F, lambda a: a.astype(F)),
    Operation("u8 to i32", (U,), Z, lambda a: a.astype(Z)),
]  # fmt: skip


class _Operand(ctypes.Structure):
    """VectorOperand."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64), ("one", ctypes.c_bool))


class _Call(ctypes.Structure):
    """VectorArgs."""

    _fields_ = (
        ("op", ctypes.c_uint8), ("rows", ctypes.c_int64), ("n", ctypes.c_int64),
        ("a", _Operand), ("b", _Operand), ("c", _Operand), ("y", ctypes.c_void_p), ("y_stride", ctypes.c_int64),
    )  # fmt: skip


def _drawn(dtype: type[Any], shape: tuple[int, int], rng: np.random.Generator, *, flags: bool) -> Array:
    if flags:
        return rng.integers(0, 2, shape).astype(U)
    if dtype is U:
        return rng.integers(0, 256, shape).astype(U)
    if dtype is Z:
        numbers = rng.integers(-(2**31), 2**31, shape)
        return np.where(rng.random(shape) < 0.5, rng.choice(WHOLE, shape), numbers).astype(Z)
    numbers = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 10, shape)
    return np.where(rng.random(shape) < 0.5, rng.choice(EDGES, shape), numbers).astype(dtype)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_operation(isa: str) -> None:
    """Rows of every length up to two vectors, operands of one number and of one row, rows with room behind them."""
    rng = np.random.default_rng(5)
    for op, operation in enumerate(OPERATIONS):
        for n in (1, 2, 7, 16, 31, 33):
            for rows in (1, 3):
                guarded = Guarded()
                _check(guarded, rng, isa, op, operation, n, rows)


def _check(
    guarded: Guarded, rng: np.random.Generator, isa: str, op: int, operation: Operation, n: int, rows: int
) -> None:
    call, held = _Call(op=op, rows=rows, n=n), []
    limits = operation.name == "clip"  # its bounds are one number each
    for position, dtype in enumerate(operation.given):
        drawn = len(operation.given) > 1 and not limits and bool(rng.random() < 0.3)
        one = n == 1 or drawn or (limits and position > 0)
        shared, gap = bool(rng.random() < 0.3), int(rng.integers(0, 3))
        shape = (1 if shared else rows, (1 if one else n) + gap)
        memory = guarded.array(_drawn(dtype, shape, rng, flags=operation.name == "select" and position == 0))
        # The gap stands in front of a row, so that the last row ends at the guard page.
        operand = _Operand(memory.ctypes.data + gap * memory.itemsize, 0 if shared else shape[1], one)
        setattr(call, "abc"[position], operand)
        held.append(np.broadcast_to(memory[:, gap:], (rows, n)))
    with np.errstate(all="ignore"):
        wanted = np.asarray(operation.expected(*held))
    width = 1 if operation.name == "largest" else n
    wanted = np.broadcast_to(wanted, (rows, width)).astype(operation.made)
    y = guarded.empty((rows, width + 2), operation.made)
    before = y.copy()
    call.y, call.y_stride = y.ctypes.data + 2 * y.itemsize, width + 2
    NATIVE.rnnqc_test_vector(isa.encode(), ctypes.byref(call))
    where = f"{operation.name} of {rows} x {n}"
    assert y[:, :2].tobytes() == before[:, :2].tobytes(), f"{where}: wrote in front of a row"
    found, unknown = y[:, 2:].copy(), wanted != wanted
    found[unknown] = wanted[unknown] = 0  # NaN gives no promise
    assert found.tobytes() == wanted.tobytes(), where
