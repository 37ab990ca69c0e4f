"""Quantizers of fixed-point arithmetic in standard operators, with all operations in one real type.

A quantizer returns "multiples": the value in units of its scale, an integer of real type; the sign of 0 is undefined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.fixed_point_numbers import FixedPointQuantizer
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.qcdq.emit_rounding import emit_rounding


class GridEmitter:
    """Emits quantizers.

    Args:
        b: Collects the nodes.
        real: The type of all real values, float64 or float32.
        hidden: H.
    """

    def __init__(self, b: Builder, real: npt.DTypeLike, hidden: int) -> None:
        self.b, self.real, self.hidden = b, np.dtype(real), hidden

    def constant(self, value: Any) -> Value:
        """Returns a constant of the real type."""
        return self.b.model.constant(value, self.real)

    def cast(self, value: Value, name: str) -> Value:
        """Casts `value` to the real type."""
        return self.b.cast(value, self.real, name)

    def multiples(self, value: Value, grid: FixedPointQuantizer, name: str) -> Value:
        """Quantizes `value` to multiples of the scale."""
        whole = self._rounded(value, self.constant(grid.scale), grid, name)
        return self.b.op("Clip", [whole, self.constant(grid.low), self.constant(grid.high)], f"{name}.multiples")

    def quantized(self, value: Value, grid: FixedPointQuantizer, name: str) -> Value:
        """Rounds `value` to its format; without a quantizer returns it unchanged."""
        if not grid.scale:
            return value
        return self.b.op("Mul", [self.multiples(value, grid, name), self.constant(grid.scale)], f"{name}.quantized")

    def quantized_gates(self, value: Value, of_gates: Mapping[str, FixedPointQuantizer], name: str) -> Value:
        """Rounds gates side by side `[...,n*H]`, each to its format."""
        grids = list(of_gates.values())
        if all(g == grids[0] for g in grids):
            return self.quantized(value, grids[0], name)
        if all(g.scale for g in grids) and is_uniform(grids):
            scale = self._columns([g.scale for g in grids])
            return self.b.op("Mul", [self.multiples_of_gates(value, grids, name), scale], f"{name}.quantized")
        axes = self.b.i64([self.hidden] * len(grids))
        parts = self.b.ops("Split", [value, axes], [f"{g}.{name}.exact" for g in of_gates], axis=-1)
        made = [self.quantized(p, g, f"{n}.{name}") for p, (n, g) in zip(parts, of_gates.items(), strict=True)]
        return self.b.op("Concat", made, f"{name}.quantized", axis=-1)

    def multiples_of_gates(self, value: Value, grids: Sequence[FixedPointQuantizer], name: str) -> Value:
        """Quantizes gates side by side to multiples; all of them have quantizers with the same rounding."""
        if all(g == grids[0] for g in grids):
            return self.multiples(value, grids[0], name)
        whole = self._rounded(value, self._columns([g.scale for g in grids]), grids[0], name)
        if len({(g.low, g.high) for g in grids}) == 1:
            limits = [self.constant(grids[0].low), self.constant(grids[0].high)]
            return self.b.op("Clip", [whole, *limits], f"{name}.multiples")
        below = self.b.op("Min", [whole, self._columns([g.high for g in grids])], f"{name}.below")
        return self.b.op("Max", [below, self._columns([g.low for g in grids])], f"{name}.multiples")

    def _rounded(self, value: Value, scale: Value, grid: FixedPointQuantizer, name: str) -> Value:
        """Returns multiples of `scale`, rounded with the rounding of `grid`."""
        rounding = Rounding(grid.rounding)
        units = self.b.op("Div", [value, scale], f"{name}.units")
        if not grid.offset:
            return emit_rounding(self.b, units, rounding, name, self.real)
        units = self.b.op("Add", [units, self.constant(grid.offset)], f"{name}.units.offset")
        whole = emit_rounding(self.b, units, rounding, name, self.real)
        return self.b.op("Sub", [whole, self.constant(grid.offset)], f"{name}.whole")

    def _columns(self, values: Sequence[float]) -> Value:
        """Returns a constant with one value for each gate, as `[n*H]`."""
        if len(set(values)) == 1:
            return self.constant(values[0])
        return self.constant(np.repeat(np.asarray(values), self.hidden))


def is_uniform(grids: Iterable[FixedPointQuantizer]) -> bool:
    """Whether all have the same rounding."""
    return len({(g.rounding, g.offset) for g in grids}) == 1
