"""A model in numpy of how Vitis AI's RNN quantizer computes an LSTM; nothing of rnnqc is imported.

Every tensor of the cell has a fix position fp: its values are codes * 2**-fp, codes of `bits` bits in two's complement.

* Rounding: parameters half away from zero, activations floor (`rounding` "floor") or half up ("half_up").
* Fix position of a tensor: of five candidates from the largest that holds the extremes on, the one with the smallest
  squared error, at most 12. Activations: searched at every time step of every batch; the most frequent one counts, the
  smaller one of two.
* Gates: W x + b (b: the sum of both biases) and R h are quantized each, then their sum.
* Sigmoid and tanh: tables of 2048 entries in steps of 1/128 over [-8, 8) and 1/256 over [-4, 4), 15 fractional bits.
* `aligned`: after calibration all tensors of the cell but its input, sigmoid and tanh take the fix position of h.
* The bias takes width and fix position of the output of its product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rounder = Callable[[Array], Array]

GATES = "iofc"
SEARCH_RANGE = 5
MAX_FIX_POSITION = 12
ACTIVATION_FIX_POSITION = 15
LARGEST_BELOW_ONE = 32767
INDEX_BITS_SIGMOID, INDEX_BITS_TANH = 7, 8


def floor(x: Array) -> Array:
    """Truncation of RNN features."""
    return np.floor(x)


def half_up(x: Array) -> Array:
    """To nearest; halves go up."""
    return np.floor(x + 0.5)


def half_away(x: Array) -> Array:
    """To nearest; halves go away from zero (C's round)."""
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


ROUNDERS: dict[str, Rounder] = {"floor": floor, "half_up": half_up}


def codes(x: Array, bits: int, fp: int, rounder: Rounder) -> Array:
    """Codes of `x`, as float64."""
    top = 2 ** (bits - 1)
    return np.clip(rounder(np.asarray(x, np.float64) * 2.0**fp), -top, top - 1)


def quantize(x: Array, bits: int, fp: int, rounder: Rounder) -> Array:
    """The values of the codes of `x`."""
    return codes(x, bits, fp, rounder) * 2.0**-fp


def fix_position(x: Array, bits: int, rounder: Rounder, search: int = SEARCH_RANGE, cap: int = MAX_FIX_POSITION) -> int:
    """The fix position with the smallest squared error, of `search` candidates; the first of equals; at most `cap`."""
    lower, upper = -(2 ** (bits - 1)) - 0.5, 2 ** (bits - 1) - 0.5
    step = max(float(np.min(x)) / lower, float(np.max(x)) / upper)
    start = 0 if step == 0 else int(np.floor(np.log2(1 / step)))
    best, least = start, np.inf
    for fp in range(start, start + search):
        noise = float(np.sum(np.square(x - quantize(x, bits, fp, rounder))))
        if noise < least:
            best, least = fp, noise
    return min(best, cap)


def most_frequent(history: list[int]) -> int:
    """The mode; the smallest of several."""
    counts = Counter(history)
    return min(counts, key=lambda fp: (-counts[fp], fp))


def sigmoid_table() -> Array:
    """`[2048]` int16: entry k is the sigmoid of -8 + k/128 in units of 2**-15."""
    return np.round(32768 / (1 + np.exp(-(np.arange(2048) / 128 - 8)))).astype(np.int64)


def tanh_table() -> Array:
    """`[2048]` int16: entry k is tanh(-4 + k/256) in units of 2**-15."""
    return np.round(32768 * np.tanh(np.arange(2048) / 256 - 4)).astype(np.int64)


def table_sigmoid(x: Array) -> Array:
    """Codes (15 fractional bits) of the sigmoid: the entry of the step that holds the value."""
    table, value = sigmoid_table(), np.asarray(x, np.float64)
    index = np.floor(value * 2.0**INDEX_BITS_SIGMOID)
    result = table[(np.clip(index, -1024, 1023) + 1024).astype(np.int64)]
    result = np.where(value >= 8, LARGEST_BELOW_ONE, result)
    return np.where(value < -8, 0, result)


def table_tanh(x: Array) -> Array:
    """Codes (15 fractional bits) of tanh: the entry of the step that holds the value."""
    table, value = tanh_table(), np.asarray(x, np.float64)
    index = np.floor(value * 2.0**INDEX_BITS_TANH)
    result = table[(np.clip(index, -1024, 1023) + 1024).astype(np.int64)]
    result = np.where(value >= 4, LARGEST_BELOW_ONE, result)
    return np.where(value < -4, -32768, result)


@dataclass(frozen=True)
class Format:
    """One row of the table of formats.

    Attributes:
        weight_bits: Of W, R and the bias.
        bits: Of everything else.
        aligned: Whether the tensors of the cell share the fix position of h.
        rounding: Of activations, "floor" or "half_up".
        exact: Sigmoid and tanh in float, on the grid of 15 fractional bits, instead of tables.
        scan_quantized: Whether calibration goes on with quantized values, as Vitis does, or with those of the float
            model.
        state_inputs: Whether the states are quantized again when they enter the cell, as Vitis does, in formats that
            differ from those they left it with where tensors are not aligned.
    """

    weight_bits: int = 16
    bits: int = 16
    aligned: bool = True
    rounding: str = "floor"
    exact: bool = False
    scan_quantized: bool = True
    state_inputs: bool = True


@dataclass
class VitisLstm:
    """One forward LSTM layer without peepholes.

    Attributes:
        W: `[4H,I]`, gates i, o, f, c.
        R: `[4H,H]`.
        B: `[4H]`, the sum of both biases.
        format: Widths and roundings.
        positions: Fix position by tensor, after `calibrate`: W_i .. R_c, b_i .. b_c, input, h, c (the states as
            inputs), wx_i .., rh_i .., acc_i .., act_i .., kept, added, cell, tanh, hidden.
    """

    W: Array
    R: Array
    B: Array
    format: Format = field(default_factory=Format)
    positions: dict[str, int] = field(default_factory=dict)

    def _gate(self, matrix: Array, k: int) -> Array:
        size = len(matrix) // 4
        return np.asarray(matrix[k * size : (k + 1) * size], np.float64)

    def calibrate(self, batches: list[Array]) -> None:
        """Finds every fix position; `batches` are `[T,B,I]`."""
        bits = self.format.weight_bits
        for k, g in enumerate(GATES):
            for name, matrix in (("W", self.W), ("R", self.R), ("b", self.B)):
                self.positions[f"{name}_{g}"] = fix_position(self._gate(matrix, k), bits, half_away)
        history: dict[str, list[int]] = {}
        for x in batches:
            self._run(x, history)
        self.positions |= {name: most_frequent(seen) for name, seen in history.items()}
        for g in GATES:
            self.positions[f"act_{g}"] = ACTIVATION_FIX_POSITION
            # The bias is added at the scale of the output of its product.
            self.positions[f"b_{g}"] = self.positions[f"wx_{g}"]
        self.positions["tanh"] = ACTIVATION_FIX_POSITION
        if self.format.aligned:
            kept = {f"{name}_{g}" for g in GATES for name in ("W", "R", "act")} | {"tanh", "input"}
            last = self.positions["hidden"]
            self.positions |= {name: last for name in self.positions if name not in kept}

    def run(self, x: Array) -> Array:
        """Hidden states `[T,B,H]` of `[T,B,I]`, from zero states, quantized."""
        return self.states(x)[0]

    def states(self, x: Array) -> tuple[Array, Array]:
        """Hidden and cell states `[T,B,H]` of all steps."""
        return self._run(x, None)

    def _run(self, x: Array, history: dict[str, list[int]] | None) -> tuple[Array, Array]:
        f = self.format
        rounder = ROUNDERS[f.rounding]
        scanning = history is not None
        as_float = scanning and not f.scan_quantized

        def parameter(name: str, value: Array) -> Array:
            if as_float:
                return value
            # After calibration the bias has the format of the output of its product, not that of weights.
            bits = f.bits if name.startswith("b_") and not scanning else f.weight_bits
            return quantize(value, bits, self.positions[name], half_away)

        def feature(name: str, value: Array, search: int = SEARCH_RANGE) -> Array:
            if history is None:
                fp = self.positions[name]
            else:
                seen = history.setdefault(name, [])
                seen.append(fix_position(value, f.bits, rounder, search))
                if as_float:
                    return value
                fp = most_frequent(seen)
            return quantize(value, f.bits, fp, rounder)

        def activation(name: str, value: Array, tabulated: Callable[[Array], Array], exact: Any) -> Array:
            if as_float:
                return np.asarray(exact(value))
            if f.exact:
                return np.clip(half_up(exact(value) * 32768), -32768, LARGEST_BELOW_ONE) / 32768
            return tabulated(value) / 32768

        W = [parameter(f"W_{g}", self._gate(self.W, k)) for k, g in enumerate(GATES)]
        R = [parameter(f"R_{g}", self._gate(self.R, k)) for k, g in enumerate(GATES)]
        b = [parameter(f"b_{g}", self._gate(self.B, k)) for k, g in enumerate(GATES)]
        hidden = np.zeros((x.shape[1], R[0].shape[1]))
        cell = np.zeros_like(hidden)
        steps, cells = [], []
        for step in np.asarray(x, np.float64):
            step = feature("input", step, 1)
            # The states are inputs of the cell, too; a state that was quantized is on the grid already.
            if f.state_inputs:
                hidden, cell = feature("h", hidden, 1), feature("c", cell, 1)
            gates: dict[str, Array] = {}
            for k, g in enumerate(GATES):
                wx = feature(f"wx_{g}", step @ W[k].T + b[k])
                rh = feature(f"rh_{g}", hidden @ R[k].T)
                acc = feature(f"acc_{g}", wx + rh)
                if g == "c":
                    gates[g] = activation(f"act_{g}", acc, table_tanh, np.tanh)
                else:
                    gates[g] = activation(f"act_{g}", acc, table_sigmoid, lambda v: 1 / (1 + np.exp(-v)))
            kept = feature("kept", gates["f"] * cell)
            added = feature("added", gates["i"] * gates["c"])
            cell = feature("cell", kept + added)
            tanh = activation("tanh", cell, table_tanh, np.tanh)
            hidden = feature("hidden", gates["o"] * tanh)
            steps.append(hidden)
            cells.append(cell)
        return np.stack(steps), np.stack(cells)


def parameters(model: Mapping[str, Array], names: tuple[str, str, str]) -> tuple[Array, Array, Array]:
    """W `[4H,I]`, R `[4H,H]`, B `[4H]` from ONNX's initializers `[1,...]`."""
    W, R, B = (model[name][0] for name in names)
    half = len(B) // 2
    return W, R, B[:half].astype(np.float64) + B[half:]
