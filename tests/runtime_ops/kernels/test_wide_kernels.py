"""The kernels of 16-bit codes on every instruction set: the bits of the scalar reference, nothing else touched.

What these would catch: another rounding or limit of a code, bytes in the wrong order, a wrong order of float
operations, a read or write beyond the named extents (buffers end at guard pages).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.native.bundles import bundled
from tests.native.kernel_calls import NATIVE, SENTINEL, STEP_ISAS, Guarded

Array = npt.NDArray[Any]


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


def _quantize(isa: str, guarded: Guarded, x: Array, scale: float, zero_point: int) -> Array:
    """The codes [n]."""
    values = guarded.array(x)
    high, low = guarded.empty(x.shape, np.uint8), guarded.empty(x.shape, np.uint8)
    NATIVE.rnnqc_test_quantize_row_16(
        isa.encode(),
        ctypes.c_void_p(values.ctypes.data),
        ctypes.c_int64(x.size),
        ctypes.c_float(scale),
        ctypes.c_int32(zero_point),
        ctypes.c_void_p(high.ctypes.data),
        ctypes.c_void_p(low.ctypes.data),
    )
    return high.astype(np.int64) * 256 + low


@pytest.mark.parametrize("isa", STEP_ISAS)
@bundled("zero_point", [0, 1, 255, 256, 32768, 65535])
@bundled("n", [1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 131])
def test_codes(isa: str, n: int, zero_point: int, guarded: Guarded) -> None:
    rng = np.random.default_rng([n, zero_point])
    for scale in (1 / 32767, 0.5, 1e-30):
        x = (rng.normal(0, 40000, n) * scale).astype(np.float32)
        x[::5] = (np.round(x[::5] / scale) + 0.5) * np.float32(scale)
        for k, value in enumerate(np.float32([np.nan, np.inf, -np.inf, -0.0, 3e38, -3e38, 1e-42])):
            x[k + 1 :: 11] = value
        found = _quantize(isa, guarded, x, scale, zero_point)
        np.testing.assert_array_equal(found, _quantize("reference", guarded, x, scale, zero_point))
        # DynamicQuantizeLinear's arithmetic, for the reference.
        with np.errstate(over="ignore"):
            units = np.rint(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf) / np.float32(scale))
        np.testing.assert_array_equal(found, np.clip(units + zero_point, 0, 65535).astype(np.int64))


class _Join(ctypes.Structure):
    """rnnqc_test_join_rows."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "columns", "block_begin", "block_end")),
        *((name, ctypes.c_void_p) for name in ("acc", "start", "zero_point", "row_scale", "multiplier", "bias")),
        ("bias_stride", ctypes.c_int64),
        ("p", ctypes.c_void_p),
    )


def _join(
    isa: str, guarded: Guarded, arrays: dict[str, Array], blocks: tuple[int, int], shared_bias: bool, in_place: bool
) -> Array:
    """p, of which columns outside `blocks` keep what they had."""
    rows, columns = arrays["acc"].shape[0] // 2, arrays["acc"].shape[1]
    held = {name: guarded.array(value, 4) for name, value in arrays.items()}
    p = held["bias"] if in_place else guarded.empty((rows, columns), np.float32, 4)
    call = _Join(
        rows=rows,
        columns=columns,
        block_begin=blocks[0],
        block_end=blocks[1],
        bias_stride=0 if shared_bias else columns,
        p=p.ctypes.data,
        **{name: value.ctypes.data for name, value in held.items()},
    )
    NATIVE.rnnqc_test_join(isa.encode(), ctypes.byref(call))
    return p.copy()


@pytest.mark.parametrize("isa", STEP_ISAS)
@bundled("row_scales", [False, True])
@bundled("bias", ["shared", "rows", "in place"])
@bundled("rows, blocks", [(1, (0, 1)), (1, (0, 4)), (3, (1, 3)), (5, (0, 2)), (2, (2, 2))])
def test_joined_products(
    isa: str, rows: int, blocks: tuple[int, int], bias: str, row_scales: bool, guarded: Guarded
) -> None:
    rng = np.random.default_rng([rows, *blocks])
    columns = 256
    arrays: dict[str, Array] = {
        "acc": rng.integers(-(2**24), 2**24, (2 * rows, columns), dtype=np.int32),
        "start": rng.integers(-(2**22), 2**22, columns, dtype=np.int32),
        "zero_point": rng.integers(0, 256, 2 * rows, dtype=np.int32),
        "multiplier": rng.normal(0, 1e-4, columns).astype(np.float32),
        "bias": rng.normal(0, 10, columns if bias == "shared" else (rows, columns)).astype(np.float32),
    }
    if row_scales:
        arrays["row_scale"] = rng.uniform(0.01, 2, rows).astype(np.float32)
    found, wanted = (
        _join(name, guarded, arrays, blocks, bias == "shared", bias == "in place") for name in (isa, "reference")
    )
    assert found.tobytes() == wanted.tobytes()
    outside = np.ones(columns, bool)
    outside[blocks[0] * 64 : blocks[1] * 64] = False
    if bias == "in place":
        np.testing.assert_array_equal(found[:, outside], arrays["bias"][:, outside])
    else:
        assert (found[:, outside].copy().view(np.uint8) == SENTINEL).all()
    assert outside.all() or np.unique(found[:, ~outside]).size > 50
