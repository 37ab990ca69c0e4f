"""Brevitas' QuantLSTM in numpy, one float32 operation at a time: the oracle for cells exported by Brevitas.

Uses nothing of rnnqc. Matrix products are sums in an order nobody specifies, so that a code next to a tie may fall
either way: `run` also says how far from the ties of its accumulators a case is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
F32 = np.float32


@dataclass(frozen=True)
class Quant:
    """A quantizer; its values are those of the inputs and attributes of the exported node."""

    scale: Any
    bits: int = 8
    signed: int = 1
    zero_point: Any = 0.0
    narrow: int = 0
    mode: str = "ROUND"

    def limits(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        if self.signed:
            return -(2 ** (self.bits - 1)) + self.narrow, 2 ** (self.bits - 1) - 1
        return 0, 2**self.bits - 1 - self.narrow

    def units(self, x: Array) -> Array:
        """The values before rounding."""
        y = np.asarray(np.asarray(x, F32) / np.asarray(self.scale, F32), F32)
        return np.asarray(y + np.asarray(self.zero_point, F32), F32)

    def codes(self, x: Any) -> Array:
        """Codes: whole numbers of float32, as Brevitas holds them."""
        if self.bits == 1 and self.signed:
            return np.asarray(np.where(np.asarray(x) >= 0, F32(1), F32(-1)), F32)
        y = self.units(x)
        if self.mode == "ROUND":
            q = np.rint(y)
        elif self.mode == "DPU":
            q = np.where((y < 0) & (y - np.floor(y) == F32(0.5)), np.ceil(y), np.rint(y))
        else:
            q = {"FLOOR": np.floor, "CEIL": np.ceil, "ROUND_TO_ZERO": np.trunc}[self.mode](y)
        low, high = self.limits()
        return np.asarray(np.clip(q, F32(low), F32(high)), F32)

    def __call__(self, x: Any) -> Array:
        """Values on the grid."""
        scale, zero = np.asarray(self.scale, F32), np.asarray(self.zero_point, F32)
        zero = F32(0) if self.bits == 1 and self.signed else zero
        return np.asarray(np.asarray(self.codes(x) - zero, F32) * scale, F32)

    def margin(self, x: Array) -> float:
        """Distance of the values inside the range from the nearest point where the code changes, in codes."""
        y = self.units(x).astype(np.float64)
        nearest = self.mode in ("ROUND", "DPU")
        distance = np.abs(y - np.floor(y) - 0.5) if nearest else np.abs(y - np.rint(y))
        low, high = self.limits()
        inside = (y > low - 1) & (y < high + 1)
        return float(distance[inside].min(initial=0.5))


@dataclass
class Lstm:
    """One cell: one direction of one layer.

    Attributes:
        W: Of the gates i, f, c, o, `[H,I]`, not quantized.
        R: Of the gates, `[H,H]`.
        bias: Of the gates, `[H]`; None for none.
        weight: The quantizer of each gate's weights, W and R alike.
        bias_quant: Of each gate, or None.
        quantizers: By Brevitas' names, of which there are 11.
        margins: Of the last run: how far accumulators were from ties.
        steps: Of the last run: real values and codes `[T,B,K]` of every intermediate value, by the names of rnnqc's
            quantization points, and `hidden.previous`; codes are None where Brevitas has no quantizer.
    """

    W: list[Array]
    R: list[Array]
    bias: list[Array] | None
    weight: list[Quant]
    bias_quant: list[Quant] | None
    quantizers: Mapping[str, Quant]
    cifg: bool = False
    reverse: bool = False
    batch_first: bool = False
    margins: list[float] = field(default_factory=list)
    steps: dict[str, tuple[Array, Array | None]] = field(default_factory=dict)

    def run(self, x: Array, h0: Array | None = None, c0: Array | None = None, dtype: Any = np.float32) -> list[Array]:
        """Outputs, last hidden state and last cell state; `dtype` is that of the sums of products.

        Args:
            x: `[T,B,I]` or `[B,T,I]`, on the grid already.
            h0: `[B,H]`, not quantized.
            c0: `[B,H]`, not quantized.
            dtype: Of the sums of products.
        """
        q = self.quantizers
        if self.batch_first:
            x = x.transpose(1, 0, 2)
        w = [quant(v) for quant, v in zip(self.weight, self.W, strict=True)]
        r = [quant(v) for quant, v in zip(self.weight, self.R, strict=True)]
        hidden = w[0].shape[0]
        b = self.bias or [np.zeros((), F32)] * 4
        if self.bias is not None and self.bias_quant is not None:
            b = [quant(v) for quant, v in zip(self.bias_quant, b, strict=True)]
        h = np.zeros((x.shape[1], hidden), F32) if h0 is None else q["output"](h0)
        c = np.zeros_like(h) if c0 is None else q["cell_state"](c0)
        outputs = np.zeros((*x.shape[:2], hidden), F32)
        self.margins = []
        seen: dict[str, dict[int, tuple[Array, Array | None]]] = {}
        for t in range(x.shape[0])[:: -1 if self.reverse else 1]:

            def noted(name: str, quantizer: str, value: Array, step: int = t) -> Array:
                rounded = q[quantizer](value)
                seen.setdefault(name, {})[step] = rounded, q[quantizer].codes(value)
                return rounded

            def acc(k: int, name: str, step: int = t, state: Array = h) -> Array:
                products = [
                    np.asarray(v.astype(dtype) @ m.astype(dtype).T, F32) for v, m in ((x[step], w[k]), (state, r[k]))
                ]
                total = np.asarray(np.asarray(products[0] + products[1], F32) + b[k], F32)
                self.margins.append(q[name].margin(total))
                return noted(f"{name.removesuffix('_acc')}_gate.acc", name, total)

            seen.setdefault("input", {})[t] = x[t], q["output"].codes(x[t])
            seen.setdefault("hidden.previous", {})[t] = h, q["output"].codes(h)
            i = noted("input_gate.activation", "input_sigmoid", _sigmoid(acc(0, "input_acc")))
            if self.cifg:
                f = np.asarray(q["input_sigmoid"](F32(1)) - i, F32)
                seen.setdefault("forget_gate.activation", {})[t] = f, None
            else:
                f = noted("forget_gate.activation", "forget_sigmoid", _sigmoid(acc(1, "forget_acc")))
            g = noted("cell_gate.activation", "cell_tanh", _tanh(acc(2, "cell_acc")))
            o = noted("output_gate.activation", "output_sigmoid", _sigmoid(acc(3, "output_acc")))
            kept = noted("cell_state.kept", "cell_state", np.asarray(f * c, F32))
            added = noted("cell_state.added", "cell_state", np.asarray(i * g, F32))
            c = noted("cell_state", "cell_state", np.asarray(kept + added, F32))
            squashed = noted("hidden.activation", "hidden_state_tanh", _tanh(c))
            h = noted("hidden", "output", np.asarray(o * squashed, F32))
            outputs[t] = h
        self.steps = {name: _in_time(steps) for name, steps in seen.items()}
        return [outputs.transpose(1, 0, 2) if self.batch_first else outputs, h, c]


def _in_time(steps: Mapping[int, tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
    """Values and codes of all steps in order."""
    ordered = [steps[t] for t in sorted(steps)]
    codes = [c for _, c in ordered if c is not None]
    return np.stack([v for v, _ in ordered]), np.stack(codes) if codes else None


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))), F32)


def _tanh(x: Array) -> Array:
    return np.asarray(np.tanh(x.astype(np.float64)), F32)
