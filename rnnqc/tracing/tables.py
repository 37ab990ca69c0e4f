"""The tensors of a cell in the arithmetic "tables" (docs/quant_lstm_cell.md, docs/quant_gru_cell.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import TABLE
from rnnqc.cells.equations import CANDIDATE, FORGET, RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.lut_numbers import CellNumbers
from rnnqc.cells.stages import IntegerCell
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.cells.loop_driver import joint_gates
from rnnqc.passes.formats.point_format import encoding_of
from rnnqc.passes.render.emit_wide_codes import WIDE_BITS
from rnnqc.tracing.tensors import Tensor, dequantized

Array = npt.NDArray[Any]
F32 = np.float32
PIECEWISE_LINEAR = {"Sigmoid": 2.0**-15, "Tanh": 2.0**-14}
"""Grids of the default tables."""
BEFORE = (
    "x.codes", "x.zero_point", "x.zero_point.column", "x.scale", "x.product", "x.product.high", "x.product.low",
    "x.codes.high", "x.codes.low",
)  # fmt: skip


class TablesReader:
    """Reads the values of a program.

    Args:
        cell: The cell.
        numbers: Its scalars.
        constants: The arrays of its operands, by the names of the operator's inputs.
    """

    before = BEFORE

    def __init__(self, cell: IntegerCell, numbers: CellNumbers, constants: Mapping[str, Array]) -> None:
        self.cell, self.numbers, self.constants = cell, numbers, constants
        hidden = cell.hidden_size
        self._steps = [self._step_of(k) for k in range(len(cell.type.gates))]
        self._columns = np.repeat(np.asarray(self._steps, np.float64), hidden)

    def in_front(self, values: Mapping[str, Array], x: Array) -> Iterator[Tensor]:
        """What is computed before the loop: the input and its product, of the whole sequence.

        Args:
            values: Those in front of the loop, by plain names.
            x: The operator's input, in the order of the loop's sequences.
        """
        n = self.numbers
        time, batch = x.shape[:2]
        scale: Any = None
        rows: Array | None = None
        zero: Any = n.x_zero_point
        if n.x_mode == "codes":
            codes = x
            scale = F32((self.cell.points["input"].get("scale") or [0.0])[0])
        else:
            codes = _whole(values, "x.codes", n.x_bits).reshape(time, batch, -1)
            if n.x_mode == "static":
                scale = F32(n.x_scale)
            else:
                points = values["x.zero_point"] if n.x_bits != WIDE_BITS else values["x.zero_point.column"]
                zero = points.reshape(time, batch, 1)
                rows = values["x.scale"].reshape(time, batch, 1)
                codes = codes[:, :, : self.cell.input_size]
        yield dequantized("input", codes, scale=scale, row_scale=rows, zero_point=zero)
        sums = _sums(values, "x.product")
        unit = np.asarray(self.constants["x_multiplier"], np.float64) * self._columns
        yield dequantized("x.product", sums.reshape(time, batch, -1), scale=unit, row_scale=rows, real=np.float64)

    def steps(self, values: Mapping[str, Array], after: Mapping[str, Array], backwards: bool) -> Iterator[Tensor]:
        """What is computed in the loop.

        Args:
            values: Those of its body `[n,...]`, by plain names.
            after: Those of the step that would follow.
            backwards: Whether the loop goes from the last step to the first.
        """
        cell = self.cell
        names = cell.type.gates
        codes, scale = self._entering(values)
        last_codes, last_scale = self._entering(after)
        yield self._hidden("hidden.previous", codes, scale)
        product = _sums(values, "hidden.product")
        unit = np.asarray(self.constants["h_multiplier"], np.float64) * self._columns
        yield dequantized("hidden.product", product, scale=unit[: product.shape[-1]], row_scale=scale, real=np.float64)
        gates = [self._gate(k, values) for k in range(len(names))]
        for k in range(len(names)):
            yield from gates[k]
            if cell.type.reads_hidden and k == CANDIDATE - 1:
                yield from self._reset(values)
        yield from self._state(values, gates[-1][-1] if len(names) == 1 else None)
        yield self._hidden("hidden", *(moved(a, b, backwards) for a, b in ((codes, last_codes), (scale, last_scale))))

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _step_of(self, k: int) -> float:
        """The real value of one unit of gate k's pre-activation."""
        if self.numbers.gate_kinds[k] != TABLE:
            return 1.0
        scale = self.cell.points[f"{self.cell.type.gates[k]}.acc"].get("scale")
        return float(scale[0]) if scale else 1.0  # gate f of a cell with f = 1 - i has none

    def _entering(self, values: Mapping[str, Array]) -> tuple[Array, Array | None]:
        """The hidden codes that the products of a step take, and the scales of their rows."""
        n, previous = self.numbers, values["hidden.previous"]
        if previous.dtype == np.uint8:
            if n.h_bits != WIDE_BITS:
                return previous, None
            high, low = np.split(previous.astype(np.int32), 2, axis=-2)
            return high * 256 + low, None
        codes = np.asarray(values["hidden.codes"])
        codes = codes if codes.dtype == np.uint8 else codes.astype(np.int32)
        return codes, values["hidden.scale"][..., None] if n.h_mode != "static" else None

    def _hidden(self, name: str, codes: Array, rows: Array | None) -> Tensor:
        n = self.numbers
        scale = F32(n.h_scale) if rows is None else None
        return dequantized(name, codes, scale=scale, row_scale=rows, zero_point=n.h_zero_point)

    def _gate(self, k: int, values: Mapping[str, Array]) -> list[Tensor]:
        """Pre-activation and value of one gate."""
        cell, n = self.cell, self.numbers
        name, hidden = cell.type.gates[k], cell.hidden_size
        if cell.input_forget and cell.type.cell_state and k == FORGET:
            return [Tensor(f"{name}.activation", values["forget_gate.coupled"])]
        joint = slice(k * hidden, (k + 1) * hidden)
        tensors = []
        raw = first_of(values, f"{name}.sum", f"{name}.product")
        raw = values["preactivation"][..., joint] if raw is None else raw
        tensors.append(Tensor(f"{name}.preactivation", raw))
        if n.gate_kinds[k] == TABLE:
            codes = values.get(f"{name}.codes")
            codes = values["codes"][..., joint] if codes is None else codes
            encoding = encoding_of(cell.points[f"{name}.acc"])
            signed = codes + np.int32(encoding.minimum)
            tensors.append(
                dequantized(f"{name}.acc", signed, scale=F32(encoding.scale[0]), zero_point=encoding.zero_point)
            )
        value = first_of(values, name, f"{name}.values")
        if value is None:
            value = values["gates.values"][..., joint]
        unit = F32(n.cell_scale) if cell.type.cell_state and name == "cell_gate" and n.cell_scale else None
        tensors.append(self._activation(f"{name}.activation", value, cell.gate_activation(k).name, unit))
        return tensors

    def _activation(self, name: str, value: Array, activation: str, unit: np.float32 | None) -> Tensor:
        """The value of an activation, with codes where it stands on a grid."""
        real = value if unit is None else np.asarray(value * unit)
        point = self.cell.point(name)
        step = PIECEWISE_LINEAR.get(activation) if point.get("table") == "piecewise-linear" else None
        divided = unit is not None and not is_power_of_two(unit)
        if step is None or divided:
            return Tensor(name, real)
        codes = np.rint(real / F32(step)).astype(np.int32)
        made = dequantized(name, codes, scale=F32(step))
        return made if np.array_equal(made.values, real) else Tensor(name, real)

    def _reset(self, values: Mapping[str, Array]) -> Iterator[Tensor]:
        """GRU: what the reset gate multiplies."""
        n, hidden = self.numbers, self.cell.hidden_size
        if self.cell.linear_before_reset:
            yield Tensor(RESET_PRODUCT, np.asarray(values[RESET_PRODUCT] * F32(self._steps[CANDIDATE])))
            return
        yield Tensor(f"{RESET_HIDDEN}.value", values[RESET_HIDDEN])
        codes = values[f"{RESET_HIDDEN}.codes"]
        codes = codes if codes.dtype == np.uint8 else codes.astype(np.int32)
        rows = values[f"{RESET_HIDDEN}.scale"][..., None] if n.h_mode != "static" else None
        scale = F32(n.reset_scale) if rows is None else None
        yield dequantized(RESET_HIDDEN, codes, scale=scale, row_scale=rows, zero_point=n.reset_zero_point)
        unit = (np.asarray(self.constants["h_multiplier"], np.float64) * self._columns)[
            joint_gates(self.cell) * hidden :
        ]
        yield dequantized(
            f"{RESET_HIDDEN}.product",
            _sums(values, f"{RESET_HIDDEN}.product"),
            scale=unit,
            row_scale=rows,
            real=np.float64,
        )

    def _state(self, values: Mapping[str, Array], only_gate: Tensor | None) -> Iterator[Tensor]:
        """The states after the step; the hidden state before it is rounded."""
        cell, n = self.cell, self.numbers
        if only_gate is not None:
            yield Tensor("hidden.value", only_gate.values)
            return
        if cell.type.reads_hidden:
            for name in ("hidden_state.kept", "hidden_state.added"):
                yield Tensor(name, values[name])
            state = values.get("hidden_state", values["hidden_state.sum"])
            yield Tensor("hidden_state", state)
            yield Tensor("hidden.value", state)
            return
        unit = F32(n.cell_scale) if n.cell_scale else None
        for name in ("cell_state.kept", "cell_state.added"):
            yield Tensor(name, values[name] if unit is None else np.asarray(values[name] * unit))
        cell_state = first_of(values, "cell_state", "cell_state.rounded")
        assert cell_state is not None
        if unit is None:
            yield Tensor("cell_state", cell_state)
        else:
            yield dequantized("cell_state", cell_state.astype(np.int64), scale=unit)
        squashed = first_of(values, "hidden.squashed", "hidden.squashed.value", "hidden.squashed.values")
        output = cell.output_activation
        assert output is not None and squashed is not None
        yield self._activation("hidden.activation", squashed, output.name, None)
        yield Tensor("hidden.value", values["hidden.value"])


def first_of(values: Mapping[str, Array], *names: str) -> Array | None:
    """The first of `names` that is there."""
    return next((values[n] for n in names if n in values), None)


def _whole(values: Mapping[str, Array], name: str, bits: int) -> Array:
    """Codes, of 16 bits from their bytes."""
    if bits != WIDE_BITS:
        return values[name]
    return values[f"{name}.high"].astype(np.int32) * 256 + values[f"{name}.low"]


def _sums(values: Mapping[str, Array], name: str) -> Array:
    """Sums of products, of 16-bit codes from those of their bytes."""
    high = values.get(f"{name}.high")
    if high is None:
        return values[name]
    low = first_of(values, f"{name}.low.corrected", f"{name}.low")
    assert low is not None
    return high.astype(np.int64) * 256 + low


def moved(values: Array | None, after: Array | None, backwards: bool) -> Any:
    """What stands after each step, from what stands in front of each and in front of the one that would follow."""
    if values is None or after is None:
        return None
    return np.concatenate([after, values[:-1]] if backwards else [values[1:], after])
