"""The elementwise kernels of fixed-point arithmetic in binary64 against numpy, on buffers that end at a guard page.

What these would catch: an operation contracted, left out or in another order on one instruction set, a sum that loses
bits, lanes, blocks or gates that are mixed up, look-ups beyond a table, reads and writes beyond buffers.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.reference.quantizer import Quantizer
from tests.native.grid_cases import ROUNDINGS
from tests.native.kernel_calls import AVAILABLE, BLOCK, NATIVE, Guarded

Array = npt.NDArray[Any]
DOUBLE = np.dtype(np.float64)
LARGEST = 2.0**60
MOST_GATES = 4


class _Point(ctypes.Structure):
    """rnnqc_test_point."""

    _fields_ = (
        ("scale", ctypes.c_float),
        ("rounding", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("zero_point", "min", "max", "offset")),
    )


class _Join(ctypes.Structure):
    """rnnqc_test_join."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("blocks", "gates", "planes")),
        ("acc", ctypes.c_void_p * 4),
        ("factor", ctypes.c_double * 4),
        ("start", ctypes.c_void_p),
        ("zero_point", ctypes.c_void_p),
        ("row_sum", ctypes.c_double),
        ("saturates", ctypes.c_int32),
        ("saturation_low", ctypes.c_double),
        ("saturation_high", ctypes.c_double),
        ("multiplier", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("quantizer", _Point * MOST_GATES),
        ("out", ctypes.c_void_p),
    )


class _Cell(ctypes.Structure):
    """rnnqc_test_grid_cell."""

    _fields_ = (
        ("units", ctypes.c_int64),
        ("gates", ctypes.c_int64),
        ("p", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("gate_min", ctypes.c_double * MOST_GATES),
        ("gate_max", ctypes.c_double * MOST_GATES),
        ("acc", _Point * MOST_GATES),
        ("gate_table", ctypes.c_void_p * MOST_GATES),
        ("hidden", _Point),
        *((name, ctypes.c_void_p) for name in ("scratch", "y", "high", "low", "hidden_bias")),
        ("reset", _Point),
        ("reset_high", ctypes.c_void_p),
        ("reset_low", ctypes.c_void_p),
        ("kept", _Point),
        ("added", _Point),
        ("state", _Point),
        ("largest_state", ctypes.c_double),
    )


def point(quantizer: Quantizer | None) -> _Point:
    if quantizer is None:
        return _Point()
    q = quantizer
    return _Point(float(q.scale), ROUNDINGS.index(q.rounding), q.zero_point, q.low, q.high, q.offset)


def quantized(quantizer: Quantizer | None, values: Array) -> Array:
    return np.asarray(values) if quantizer is None else quantizer.value(quantizer.code(values))


def a_quantizer(
    rng: np.random.Generator, span: float, bits: int, rounding: str, *, codes: bool = False, pow2: bool = False
) -> Quantizer:
    """Returns a quantizer of about -span .. span, with random zero point and offset."""
    low = 0 if codes else -(2 ** (bits - 1))
    high = low + 2**bits - 1
    zero = int(rng.integers(low, high + 1)) if codes else int(rng.integers(-3, 4))
    scale = 2 * span / 2**bits * (1 if pow2 else rng.uniform(0.6, 1.0))
    return Quantizer(
        DOUBLE.type(np.float32(scale)), zero, low, high, rounding, DOUBLE, int(rng.choice([0, 0, 5, -2, zero]))
    )


def wild(rng: np.random.Generator, values: Array) -> Array:
    """Replaces some values by ones far outside, zeros of both signs, ties of quarters, and neighbours of ties."""
    special = np.array([0.0, -0.0, 1e300, -1e300, 5e-324, 0.25, -0.75, np.nextafter(0.5, 1), np.nextafter(-0.5, 0)])
    kind = rng.random(values.shape)
    values = np.where(kind < 0.3, np.rint(values * 64) / 64, values)
    return np.where(kind > 0.9, rng.choice(special, values.shape), values)


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


@pytest.mark.few(12)
@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("gates", [1, 2, 3, 4])
@pytest.mark.parametrize("planes", [1, 2, 4])
def test_join(isa: str, gates: int, planes: int, guarded: Guarded) -> None:
    for blocks in (1, 2, 5, 21):
        for variant in range(6):
            rng = np.random.default_rng([gates, planes, blocks, variant])
            units = blocks * BLOCK
            shape = (gates, units)
            quantizers = [
                None
                if (variant + gate) % 3 == 0
                else a_quantizer(rng, 4.0, (8, 16, 32)[variant % 3], ROUNDINGS[(variant + gate) % 7], pow2=variant > 2)
                for gate in range(gates)
            ]
            sums = rng.integers(-(2**31), 2**31, (planes, *shape), dtype=np.int32)
            factors = [65536.0, 256.0, 256.0, 1.0] if planes == 4 else [256.0, 1.0][2 - planes :]
            start = rng.integers(-(2**30), 2**30, shape).astype(np.float64) * factors[0] if variant % 2 else None
            zero_point = rng.integers(-(2**7), 2**7, shape).astype(np.float64) if variant in (1, 4) else None
            bias = rng.normal(0, 1, shape) if variant in (0, 1, 5) else None
            row_sum = float(rng.integers(-(2**23), 2**23) * factors[0])
            bits = int(np.log2(factors[0])) + 31 if variant in (2, 5) else 0
            multiplier = rng.uniform(0.5, 1, shape) * 4 / 2.0**31 / factors[0]
            wanted = (sums.astype(np.float64) * np.reshape(factors, (-1, 1, 1))).sum(axis=0)
            wanted = wanted - zero_point * row_sum if zero_point is not None else wanted
            wanted = wanted + start if start is not None else wanted
            wanted = np.clip(wanted, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if bits else wanted
            wanted = wanted * multiplier if bias is None else wanted * multiplier + bias
            wanted = np.array([quantized(q, row) for q, row in zip(quantizers, wanted, strict=True)])
            planar = [None if v is None else guarded.array(v, 64) for v in (start, zero_point, multiplier, bias)]
            acc = [guarded.array(in_blocks(plane), 64) for plane in sums]
            out = guarded.empty(shape, np.float64, 64)
            addresses = [None if v is None else v.ctypes.data for v in planar]
            call = _Join(
                *(blocks, gates, planes),
                (ctypes.c_void_p * 4)(*(plane.ctypes.data for plane in acc)),
                (ctypes.c_double * 4)(*factors),
                *addresses[:2],
                *(row_sum, bits > 0, -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1),
                *addresses[2:],
                (_Point * MOST_GATES)(*(point(q) for q in quantizers)),
                out.ctypes.data,
            )
            NATIVE.rnnqc_test_grid_join(isa.encode(), ctypes.byref(call))
            # Quantizers here may give zeros a sign: what follows counts both as one.
            np.testing.assert_array_equal(bits_of(out + 0), bits_of(wanted + 0))
            assert len(np.unique(wanted)) > 8


def in_blocks(plane: Array) -> Array:
    """[gates, units] in block order, padded to 64 columns."""
    values = plane.reshape(len(plane), -1, BLOCK).swapaxes(0, 1).reshape(-1)
    return np.concatenate([values, np.zeros(-values.size % 64, plane.dtype)])


def bits_of(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)


class Step:
    """Arguments of one step of one row in guarded memory, and what numpy makes of them."""

    def __init__(self, guarded: Guarded, gates: int, units: int, variant: int) -> None:
        rng = self.rng = np.random.default_rng([gates, units, variant])
        pow2, bits = variant % 2 == 1, (8, 16, 5)[variant % 3]
        rounding = [ROUNDINGS[(variant + k) % 7] for k in range(8)]
        self.gates, self.units = gates, units
        self.acc = [a_quantizer(rng, 6.0, bits, rounding[k], pow2=pow2) for k in range(gates)]
        self.hidden = a_quantizer(rng, 1.0, bits, rounding[3], codes=True, pow2=pow2)
        self.reset_codes = a_quantizer(rng, 1.0, (16, 8)[variant % 2], rounding[4], codes=True, pow2=not pow2)
        optional = [a_quantizer(rng, 2.0, n, rounding[5 + k % 3], pow2=pow2) for k, n in enumerate((8, 12, 16, 32))]
        present = [(variant >> k) % 2 == 0 for k in range(4)]
        self.reset, self.kept, self.added, self.state = (
            q if there else None for q, there in zip(optional, present, strict=True)
        )
        limited = variant % 4 == 3
        self.low, self.high = (-1.5, 2.25) if limited else (-np.inf, np.inf)
        self.tables = [rng.uniform(-0.5, 1.5, q.high - q.low + 1).astype(np.float32) for q in self.acc]
        self.p, self.g = (wild(rng, rng.normal(0, 2, (gates, units))) for _ in range(2))
        self.bias = wild(rng, rng.normal(0, 1, units))
        self.h = wild(rng, rng.normal(0, 1, units)).clip(-LARGEST, LARGEST).astype(np.float32)
        self._guarded = guarded
        self._kept_alive: list[Any] = []

    def run(self, isa: str, kernel: str, linear: bool = True) -> dict[str, Array]:
        guarded, units = self._guarded, self.units
        p, g, bias = (guarded.array(v, 64) for v in (self.p, self.g, self.bias))
        tables = [guarded.array(table) for table in self.tables]
        y, scratch = guarded.array(self.h, 64), guarded.empty((units,), np.float64, 64)
        high, low, reset_high, reset_low = (guarded.empty((units,), np.uint8, 16) for _ in range(4))
        reset = self.reset if linear else self.reset_codes
        call = _Cell(
            *(units, self.gates, p.ctypes.data, g.ctypes.data),
            (ctypes.c_double * MOST_GATES)(*[self.low] * self.gates),
            (ctypes.c_double * MOST_GATES)(*[self.high] * self.gates),
            (_Point * MOST_GATES)(*(point(q) for q in self.acc)),
            (ctypes.c_void_p * MOST_GATES)(*(table.ctypes.data for table in tables)),
            point(self.hidden),
            *(scratch.ctypes.data, y.ctypes.data),
            *(high.ctypes.data if self.hidden.high > 255 else None, low.ctypes.data),
            bias.ctypes.data if linear else None,
            point(reset),
            *(reset_high.ctypes.data if self.reset_codes.high > 255 else None, reset_low.ctypes.data),
            *(point(q) for q in (self.kept, self.added, self.state)),
            LARGEST,
        )
        NATIVE.rnnqc_test_grid_step(isa.encode(), kernel.encode(), ctypes.byref(call))
        return {
            "g": g.copy(),
            "y": y.copy(),
            "codes": joined(high, low, self.hidden),
            "reset_codes": joined(reset_high, reset_low, self.reset_codes),
        }

    def gate(self, k: int) -> Array:
        """Table values of gate k."""
        value = np.maximum(np.minimum(self.p[k] + self.g[k], self.high), self.low)
        return self.tables[k][self.acc[k].code(value) - self.acc[k].low].astype(np.float64)


def joined(high: Array, low: Array, quantizer: Quantizer) -> Array:
    return high.astype(np.int64) * 256 + low if quantizer.high > 255 else low.astype(np.int64)


STEPS = pytest.mark.parametrize("units", [16, 32, 48, 128, 336])
VARIANTS = range(16)


@pytest.mark.few(9)
@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("linear", [False, True])
@STEPS
def test_gru_gates(isa: str, units: int, linear: bool, guarded: Guarded) -> None:
    for variant in VARIANTS:
        step = Step(guarded, 3, units, variant)
        found = step.run(isa, "gru_gates", linear)
        with np.errstate(all="ignore"):
            z, r = step.gate(0), step.gate(1)
            m = quantized(step.reset, r * (step.g[2] + step.bias))
            codes = step.reset_codes.code(r * step.h.astype(np.float64))
        np.testing.assert_array_equal(bits_of(found["g"][0]), bits_of(z))
        np.testing.assert_array_equal(bits_of(found["y"]), bits_of(step.h))
        if linear:
            np.testing.assert_array_equal(bits_of(found["g"][2] + 0), bits_of(m + 0))
        else:
            np.testing.assert_array_equal(found["reset_codes"], codes)
            assert len(np.unique(codes)) > 5


@pytest.mark.few(8)
@pytest.mark.parametrize("isa", AVAILABLE)
@STEPS
def test_gru_output(isa: str, units: int, guarded: Guarded) -> None:
    for variant in VARIANTS:
        step = Step(guarded, 3, units, variant)
        # What gru_gates leaves: values of the update gate.
        step.g[0] = step.rng.choice(step.tables[0], units)
        found = step.run(isa, "gru_output")
        z, h, n = step.g[0], step.h.astype(np.float64), step.gate(2)
        total = quantized(step.kept, z * h) + quantized(step.added, (1 - z) * n)
        wanted = np.clip(quantized(step.state, total), -LARGEST, LARGEST).astype(np.float32) + np.float32(0)
        np.testing.assert_array_equal(bits_of(found["y"]), bits_of(wanted))
        np.testing.assert_array_equal(found["codes"], step.hidden.code(wanted.astype(np.float64)))
        assert len(np.unique(wanted)) > 5


@pytest.mark.few(8)
@pytest.mark.parametrize("isa", AVAILABLE)
@STEPS
def test_rnn_step(isa: str, units: int, guarded: Guarded) -> None:
    for variant in VARIANTS:
        step = Step(guarded, 1, units, variant)
        found = step.run(isa, "rnn_step")
        wanted = step.gate(0).astype(np.float32)
        np.testing.assert_array_equal(bits_of(found["y"]), bits_of(wanted))
        np.testing.assert_array_equal(found["codes"], step.hidden.code(wanted.astype(np.float64)))
        assert len(np.unique(wanted)) > 5


@pytest.mark.parametrize("isa", AVAILABLE)
def test_instruction_sets_keep_the_steps_of_those_they_extend(isa: str) -> None:
    # The portable kernels have the same bits, and take longer.
    extended = {"avxvnni": "avx2", "avx512vbmi": "avx512vnni", "amxint8": "avx512vnni"}.get(isa, isa)
    same = NATIVE.rnnqc_test_same_grid_kernels
    assert same(isa.encode(), extended.encode())
    assert bool(same(isa.encode(), b"portable")) == (isa in ("reference", "portable") or isa.startswith("neon"))
