"""The tensors of a cell in the arithmetics "grid" and "grid32" (docs/quant_lstm_cell.md, docs/quant_gru_cell.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.equations import CANDIDATE, FORGET, RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.grid_numbers import RESET, Grid, GridNumbers
from rnnqc.cells.stages import IntegerCell
from rnnqc.passes.cells.loop_driver import joint_gates
from rnnqc.tracing.tables import first_of, moved
from rnnqc.tracing.tensors import Tensor, dequantized

Array = npt.NDArray[Any]
F32 = np.float32


class GridReader:
    """Reads the values of a program; see `rnnqc.tracing.tables.TablesReader`.

    Codes are in the format that the quantization point has: where a node stores signed codes raised, they are signed.
    """

    def __init__(self, cell: IntegerCell, numbers: GridNumbers, constants: Mapping[str, Array]) -> None:
        self.cell, self.numbers, self.constants = cell, numbers, constants
        self.before = (
            "x.codes", "x.multiples", "x.product", "x.product.saturated", "x.product.scaled", "x.projection.exact",
            "input_product.multiples", *(f"{g}.input_product.multiples" for g in cell.type.gates),
        )  # fmt: skip
        self._real = numbers.real

    def in_front(self, values: Mapping[str, Array], x: Array) -> Iterator[Tensor]:
        """What is computed before the loop."""
        grid = self.numbers.grid("input")
        if "x.multiples" in values:
            multiples = values["x.multiples"]
        else:
            codes = x if self.numbers.x_mode == "codes" else values["x.codes"]
            multiples = codes.astype(np.int64) - grid.zero_point
        yield self._on_grid("input", multiples, grid)
        yield self._sums("x.product", values, self.constants["x_multiplier"])
        exact = values["x.product.scaled"] if self.numbers.bias_last else values["x.projection.exact"]
        for k in range(len(self.cell.type.gates)):
            if not (self.cell.input_forget and k == FORGET):
                yield self._product("input_product", k, values, exact, "input_product")

    def steps(self, values: Mapping[str, Array], after: Mapping[str, Array], backwards: bool) -> Iterator[Tensor]:
        """What is computed in the loop."""
        cell, n, multiplier = self.cell, self.numbers, self.constants["h_multiplier"]
        entering, following = self._entering(values), self._entering(after)
        grid = n.grid("hidden")
        yield self._on_grid("hidden.previous", entering, grid, "hidden")
        yield self._sums("hidden.product", values, multiplier)
        for k, name in enumerate(cell.type.gates):
            if cell.input_forget and k == FORGET:
                yield Tensor(f"{name}.activation", values["forget_gate.coupled"])
                continue
            if cell.type.reads_hidden and k == CANDIDATE:
                yield from self._reset(values, multiplier)
            else:
                yield self._product("hidden_product", k, values, values["hidden.product.scaled"], "hidden_product")
            yield from self._gate(k, values)
        yield from self._state(values)
        yield self._on_grid("hidden", moved(entering, following, backwards), grid)

    def _entering(self, values: Mapping[str, Array]) -> Array:
        """The multiples that the product of a step takes."""
        if self.cell.type.reads_hidden:
            return values["hidden.previous.multiples"]
        previous = values["hidden.previous"]
        if previous.dtype == np.uint8:
            return previous.astype(np.int64) - self.numbers.grid("hidden").zero_point
        return previous

    def _gate(self, k: int, values: Mapping[str, Array]) -> Iterator[Tensor]:
        """Pre-activation and value of one gate."""
        name = self.cell.type.gates[k]
        part = self._part(k)
        raw = first_of(values, f"{name}.sum", f"{name}.product")
        yield Tensor(f"{name}.preactivation", values["preactivation"][..., part] if raw is None else raw)
        multiples = values.get(f"{name}.acc.multiples")
        if multiples is None:
            multiples = values["preactivation.multiples"][..., part]
        yield self._on_grid(f"{name}.acc", multiples, self.numbers.grid(f"{name}.acc"))
        value = first_of(values, name, f"{name}.values")
        yield self._entry(f"{name}.activation", values["gates.values"][..., part] if value is None else value)

    def _reset(self, values: Mapping[str, Array], multiplier: Array) -> Iterator[Tensor]:
        """GRU: what the reset gate multiplies, and the candidate's product with R."""
        grid = self.numbers.grid(RESET)
        if self.cell.linear_before_reset:
            exact = values["hidden.product.scaled"]
            yield self._product("hidden_product", CANDIDATE, values, exact, "hidden_product")
            yield self._quantized(RESET_PRODUCT, values, grid)
            return
        yield Tensor(f"{RESET_HIDDEN}.value", values[RESET_HIDDEN])
        yield self._on_grid(RESET_HIDDEN, values[f"{RESET}.multiples"], grid)
        columns = multiplier[joint_gates(self.cell) * self.cell.hidden_size :]
        yield self._sums(f"{RESET_HIDDEN}.product", values, columns, f"{RESET}.product")
        yield self._product("hidden_product", CANDIDATE, values, values[f"{RESET}.product.scaled"], f"{RESET}_product")

    def _state(self, values: Mapping[str, Array]) -> Iterator[Tensor]:
        """The states after the step; the hidden state before it is rounded."""
        cell, n = self.cell, self.numbers
        state = "cell_state" if cell.type.cell_state else "hidden_state"
        if cell.type.cell_state or cell.type.reads_hidden:
            for name in (f"{state}.kept", f"{state}.added", state):
                yield self._quantized(name, values, n.grid(name))
        if cell.type.cell_state:
            yield self._entry("hidden.activation", values["hidden.squashed.values"])
        if cell.type.reads_hidden:
            yield Tensor("hidden.value", values[state])
        elif not n.rounded_output:
            yield Tensor("hidden.value", values["hidden"])
        else:
            made = first_of(values, "hidden.value", "hidden.exact", "gates.values", "hidden_gate.values")
            assert made is not None
            yield Tensor("hidden.value", made)

    def _quantized(self, name: str, values: Mapping[str, Array], grid: Grid) -> Tensor:
        """A value of the loop, on its grid if it has one."""
        return self._on_grid(name, values[f"{name}.multiples"], grid) if grid.scale else Tensor(name, values[name])

    def _on_grid(self, name: str, multiples: Array, grid: Grid, point: str = "") -> Tensor:
        """Values that are multiples of a scale, with codes as the quantization point has them."""
        held = self.cell.point(point or name).format
        zero = grid.zero_point if held is None else held.zero_point
        codes = np.asarray(multiples, np.int64) + zero
        return dequantized(name, codes, scale=F32(grid.scale), zero_point=zero, real=self._real)

    def _sums(self, name: str, values: Mapping[str, Array], multiplier: Array, held: str = "") -> Tensor:
        """Sums of products, after their limits."""
        sums = first_of(values, f"{held or name}.saturated", held or name)
        assert sums is not None
        scale = np.asarray(multiplier, F32)[: sums.shape[-1]]
        return dequantized(name, np.asarray(sums, np.int64), scale=scale, real=self._real)

    def _product(self, point: str, k: int, values: Mapping[str, Array], exact: Array, held: str) -> Tensor:
        """The part of gate k of a product, on its grid if it has one; `held` is the prefix of all gates together."""
        name = f"{self.cell.type.gates[k]}.{point}"
        part = self._part(k) if exact.shape[-1] > self.cell.hidden_size else slice(None)
        grid = self.numbers.grid(name)
        if not grid.scale:
            return Tensor(name, exact[..., part])
        multiples = values.get(f"{name}.multiples")
        if multiples is None:
            multiples = values[f"{held}.multiples"][..., part]
        return self._on_grid(name, multiples, grid)

    def _part(self, k: int) -> slice:
        return slice(k * self.cell.hidden_size, (k + 1) * self.cell.hidden_size)

    def _entry(self, name: str, value: Array) -> Tensor:
        """An entry of a table, float32, with codes where its format says so."""
        real = value.astype(F32)
        held = self.cell.point(name).static
        if held is None or len(held.scale) != 1:
            return Tensor(name, real)
        zero = held.zero_point
        codes = np.rint(real / F32(held.scale[0])).astype(np.int64) + zero
        made = dequantized(name, codes, scale=F32(held.scale[0]), zero_point=zero)
        return made if np.array_equal(made.values, real) else Tensor(name, real)
