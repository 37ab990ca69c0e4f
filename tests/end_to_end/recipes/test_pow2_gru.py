"""Recipes of powers of two on GRU and RNN: every code is that of a model in whole numbers and shifts.

What these would catch: what test_vitis_arithmetic.py would of a code; a scale, a rounding or a place of a quantizer
that no arithmetic with shifts has, which a reference in floating point would share with the function body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.rounding import Rounding
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.runs.lowered import run_both
from tests.subjects.vitis_reference import table_sigmoid, table_tanh

Codes = npt.NDArray[np.int64]
OPS: dict[str, dict[str, Any]] = {
    "GRU": {"op": "GRU"},
    "GRU_linear": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}
GATES = {"GRU": ("update_gate", "reset_gate", "hidden_gate"), "RNN": ("hidden_gate",)}
ONE = 2**15


@dataclass(frozen=True)
class Fixed:
    """Whole numbers in units of `2**-position`."""

    codes: Codes
    position: int

    def __add__(self, other: Fixed) -> Fixed:
        position = max(self.position, other.position)
        return Fixed(
            (self.codes << (position - self.position)) + (other.codes << (position - other.position)), position
        )

    def __mul__(self, other: Fixed) -> Fixed:
        return Fixed(self.codes * other.codes, self.position + other.position)

    def __matmul__(self, other: Fixed) -> Fixed:
        return Fixed(self.codes @ other.codes, self.position + other.position)


def position_of(scale: float) -> int:
    """p of a scale `2**-p`."""
    mantissa, exponent = np.frexp(scale)
    assert mantissa == 0.5
    return int(1 - exponent)


def requantized(value: Fixed, point: PointFormat) -> Fixed:
    """Shifted to the position of a point, rounded and limited as it says."""
    held = point.complete
    position, bits = position_of(held.scale[0]), held.bits
    shift = value.position - position
    if shift <= 0:
        codes = value.codes << -shift
    else:
        codes = value.codes >> shift
        if held.rounding is Rounding.HALF_EVEN:
            rest, half = value.codes - (codes << shift), 1 << (shift - 1)
            codes = codes + ((rest > half) | ((rest == half) & (codes & 1 == 1)))
        else:
            assert held.rounding is Rounding.FLOOR
    return Fixed(np.clip(codes, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), position)


def parameter(values: npt.NDArray[Any], scale: float, bits: int) -> Fixed:
    """Codes of weights or biases, rounded half away from zero."""
    units = values.astype(np.float64) * 2.0 ** position_of(scale)
    whole = np.copysign(np.floor(np.abs(units) + 0.5), units).astype(np.int64)
    return Fixed(np.clip(whole, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), position_of(scale))


class WholeNumbers:
    """The layer of a case with the formats of `points`."""

    def __init__(self, case: RecurrentCase, points: Mapping[str, PointFormat]) -> None:
        self.case, self.points, self.gates = case, points, GATES[case.op]
        arrays, h = case.parameters(), case.H
        given, recurrent = arrays["B"].reshape(2, case.gates, h)

        def of_gate(name: str, values: npt.NDArray[Any], k: int) -> Fixed:
            held = points[name].complete
            return parameter(values, held.scale[k * h if len(held.scale) > 1 else 0], held.bits)

        rows = [slice(k * h, (k + 1) * h) for k in range(case.gates)]
        self.W = [of_gate("W.weight", arrays["W"][0][r].T, k) for k, r in enumerate(rows)]
        self.R = [of_gate("R.weight", arrays["R"][0][r].T, k) for k, r in enumerate(rows)]
        biases = given + recurrent
        if case.linear_before_reset:
            biases[2] = given[2]
            self.hidden_bias = of_gate("bias", recurrent[2], 2)
        self.B = [of_gate("bias", b, k) for k, b in enumerate(biases)]

    def _at(self, value: Fixed, point: str) -> Fixed:
        return requantized(value, self.points[point])

    def _activated(self, k: int, value: Fixed) -> Fixed:
        """The entry of Vitis' table, 15 bits behind the point."""
        argument = self._at(value, f"{self.gates[k]}.acc")
        table = table_tanh if k == len(self.gates) - 1 else table_sigmoid
        return Fixed(table(argument.codes * 2.0**-argument.position), 15)

    def _of_h(self, k: int, codes: Fixed) -> Fixed:
        return self._at(codes @ self.R[k], f"{self.gates[k]}.hidden_product")

    def run(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Y `[T,B,H]`."""
        point = self.points["input"]
        units = x.astype(np.float64) * 2.0 ** position_of(point.scale[0])
        whole = np.rint(units * 16).astype(np.int64)
        assert np.array_equal(whole, units * 16), "in sixteenths of a step"
        codes = requantized(Fixed(whole, position_of(point.scale[0]) + 4), point)
        state = "hidden_state" if self.case.op == "GRU" else "hidden_gate.activation"
        h = Fixed(np.zeros((x.shape[1], self.case.H), np.int64), position_of(self.points[state].scale[0]))
        made = []
        for t in range(len(x)):
            x_t = Fixed(codes.codes[t], codes.position)
            names = self.gates
            p = [self._at(x_t @ self.W[k] + self.B[k], f"{n}.input_product") for k, n in enumerate(names)]
            h_q = self._at(h, "hidden")
            h = self._gru(p, h, h_q) if self.case.op == "GRU" else self._activated(0, p[0] + self._of_h(0, h_q))
            made.append(h.codes * 2.0**-h.position)
        return np.stack(made)

    def _gru(self, p: list[Fixed], h: Fixed, h_q: Fixed) -> Fixed:
        z, r = (self._activated(k, p[k] + self._of_h(k, h_q)) for k in (0, 1))
        if self.case.linear_before_reset:
            part = self._at(r * (self._of_h(2, h_q) + self.hidden_bias), "hidden_gate.reset_product")
        else:
            part = self._of_h(2, self._at(r * h, "reset.hidden"))
        n = self._activated(2, part + p[2])
        kept = self._at(z * h, "hidden_state.kept")
        added = self._at(Fixed(ONE - z.codes, 15) * n, "hidden_state.added")
        return self._at(kept + added, "hidden_state")


@pytest.mark.few(1)
@in_turn(recipe=["pow2-int16", "pow2-w8a16", "pow2-int8-floor", "pow2-int8"], op=OPS)
def test_every_code(op: str, recipe: str) -> None:
    case = RecurrentCase(T=30, B=6, I=10, H=16, dynamic_batch=True, gain=1.5, seed=4, **OPS[op])
    rng = np.random.default_rng(5)
    data = [{"X": rng.laplace(0, 0.6, (case.T, case.B, case.I)).astype(np.float32)} for _ in range(3)]
    lowered = rnnqc.lower(case.model(), recipe, stats=calibrate(case.model(), data))
    (cell,) = lowered.model.cells.values()
    # Sixteenths of a step, ties among them, and values beyond the largest code.
    step = cell.points["input"].scale[0] / 16
    x = rng.laplace(0, 1.0, (case.T, case.B, case.I)) + np.linspace(-5, 5, case.B)[:, None]
    x = (np.rint(x / step) * step).astype(np.float32)
    expected = WholeNumbers(case, cell.points).run(x)
    assert len(np.unique(expected)) > 30
    assert np.array_equal(run_both(lowered.proto, {"X": x})["Y"][:, 0], expected.astype(np.float32))
