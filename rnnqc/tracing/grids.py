"""The tensors of a cell in the arithmetics "grid" and "grid32" (docs/quant_lstm_cell.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, GATES, Cell
from rnnqc.passes.grid_numbers import Grid, GridNumbers
from rnnqc.tracing.tables import moved
from rnnqc.tracing.tensors import Tensor, dequantized

Array = npt.NDArray[Any]
F32 = np.float32


class GridReader:
    """Reads the values of a program; see `rnnqc.tracing.tables.TablesReader`.

    Codes are in the format that the quantization point has: where a node stores signed codes raised, they are signed.
    """

    before = (
        "x.codes", "x.multiples", "x.product", "x.product.saturated", "x.product.scaled", "x.projection.exact",
        "input_product.multiples", "input_product.quantized", *(f"{g}.input_product.multiples" for g in GATES),
    )  # fmt: skip

    def __init__(self, cell: Cell, numbers: GridNumbers, constants: Mapping[str, Array]) -> None:
        self.cell, self.numbers, self.constants = cell, numbers, constants
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
        sums = values.get("x.product.saturated", values["x.product"])
        yield self._sums("x.product", sums, "x_multiplier")
        exact = values["x.product.scaled"] if self.numbers.bias_last else values["x.projection.exact"]
        for k in range(len(GATES)):
            yield self._product("input_product", k, values, exact)

    def steps(self, values: Mapping[str, Array], after: Mapping[str, Array], backwards: bool) -> Iterator[Tensor]:
        """What is computed in the loop."""
        cell, n, hidden = self.cell, self.numbers, self.cell.hidden_size
        entering, following = self._entering(values), self._entering(after)
        grid = n.grid("hidden")
        yield self._on_grid("hidden.previous", entering, grid, "hidden")
        sums = values.get("hidden.product.saturated", values["hidden.product"])
        yield self._sums("hidden.product", sums, "h_multiplier")
        for k, name in enumerate(GATES):
            if cell.input_forget and k == FORGET:
                yield Tensor(f"{name}.activation", values["forget_gate.coupled"])
                continue
            part = slice(k * hidden, (k + 1) * hidden)
            yield self._product("hidden_product", k, values, values["hidden.product.scaled"])
            yield Tensor(f"{name}.preactivation", values.get(f"{name}.sum", values["preactivation"][..., part]))
            multiples = values.get(f"{name}.acc.multiples")
            if multiples is None:
                multiples = values["preactivation.multiples"][..., part]
            yield self._on_grid(f"{name}.acc", multiples, n.grid(f"{name}.acc"))
            value = values.get(name)
            yield self._entry(f"{name}.activation", values[f"{name}.values"] if value is None else value)
        for name in ("cell_state.kept", "cell_state.added", "cell_state"):
            grid_of_state = n.grid(name)
            if grid_of_state.scale:
                yield self._on_grid(name, values[f"{name}.multiples"], grid_of_state)
            else:
                yield Tensor(name, values[name])
        yield self._entry("hidden.activation", values["hidden.squashed.values"])
        yield Tensor("hidden.value", values["hidden.exact" if n.rounded_output else "hidden"])
        yield self._on_grid("hidden", moved(entering, following, backwards), grid)

    def _entering(self, values: Mapping[str, Array]) -> Array:
        """The multiples that the product of a step takes."""
        previous = values["hidden.previous"]
        if previous.dtype == np.uint8:
            return previous.astype(np.int64) - self.numbers.grid("hidden").zero_point
        return previous

    def _on_grid(self, name: str, multiples: Array, grid: Grid, point: str = "") -> Tensor:
        """Values that are multiples of a scale, with codes as the quantization point has them."""
        zero = self.cell.points.get(point or name, {}).get("zero_point", grid.zero_point)
        codes = np.asarray(multiples, np.int64) + zero
        return dequantized(name, codes, scale=F32(grid.scale), zero_point=zero, real=self._real)

    def _sums(self, name: str, sums: Array, multiplier: str) -> Tensor:
        return dequantized(
            name, np.asarray(sums, np.int64), scale=np.asarray(self.constants[multiplier], F32), real=self._real
        )

    def _product(self, point: str, k: int, values: Mapping[str, Array], exact: Array) -> Tensor:
        """The part of gate k of a product, on its grid if it has one."""
        hidden, name = self.cell.hidden_size, f"{GATES[k]}.{point}"
        part = slice(k * hidden, (k + 1) * hidden)
        grid = self.numbers.grid(name)
        if not grid.scale:
            return Tensor(name, exact[..., part])
        multiples = values.get(f"{name}.multiples")
        if multiples is None:
            multiples = values[f"{point}.multiples"][..., part]
        return self._on_grid(name, multiples, grid)

    def _entry(self, name: str, value: Array) -> Tensor:
        """An entry of a table, float32, with codes where its format says so."""
        real = value.astype(F32)
        scales = self.cell.points.get(name, {}).get("scale") or []
        if len(scales) != 1:
            return Tensor(name, real)
        zero = int(self.cell.points[name].get("zero_point", 0))
        codes = np.rint(real / F32(scales[0])).astype(np.int64) + zero
        made = dequantized(name, codes, scale=F32(scales[0]), zero_point=zero)
        return made if np.array_equal(made.values, real) else Tensor(name, real)
