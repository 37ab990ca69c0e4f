"""Which values of a quantized cell its integer form has in other units: what passes that fold scales declare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rnnqc.cells.base import FORGET
from rnnqc.cells.fixed_point_numbers import FIXED_POINT32, RESET, FixedPointNumbers
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.vitis_tables import VITIS
from rnnqc.formats.point_format import ROWS
from rnnqc.formats.rounding import Rounding
from rnnqc.passes.base import MOVED, Equivalent
from rnnqc.passes.cells.float_step import ACCUMULATORS

STATES = (float("inf"), 0.25)
"""Tolerance of what makes up a state: tables round small values, and states drift apart; another gate is far off."""


def products_in_steps(cell: QuantizedCell) -> Iterator[Equivalent]:
    """Products in real values, and in steps of the gates' quantizers from their lowest code on ("tables")."""
    points = [f for gate in cell.type.gates if (f := cell.points[f"{gate}.acc"].static) is not None]
    if len(points) < len(cell.type.gates) or any(len(f.scale) != 1 for f in points):
        return
    steps = np.repeat([f.scale[0] for f in points], cell.hidden_size)
    factor = tuple((1.0 / steps).tolist())
    offset = None
    if all(f.rounding is Rounding.HALF_UP and f.signed and not f.narrow for f in points):
        offset = tuple(np.repeat([2.0 ** (f.bits - 1) + 0.5 for f in points], cell.hidden_size).tolist())
    size = cell.hidden_size
    after = "x.projection.steps" if cell.points["input"].mode == ROWS else "x.projection"
    yield Equivalent(f"{cell.name}/x.projection", f"{cell.name}/{after}", factor, offset, size, source=cell.x)
    if cell.resets_state:
        first, last = factor[:-size], factor[-size:]
        yield Equivalent(f"{cell.name}/hidden.product", f"{cell.name}/hidden.units", first, None, size)
        yield Equivalent(
            f"{cell.name}/{cell.type.gates[-1]}.hidden_product", f"{cell.name}/reset.hidden.units", last, None, size
        )
    else:
        yield Equivalent(f"{cell.name}/hidden.product", f"{cell.name}/hidden.units", factor, None, size)


def real_products(cell: QuantizedCell, numbers: FixedPointNumbers) -> Iterator[Equivalent]:
    """Products and their sums with the bias, which stay real values ("grid" and "grid32")."""
    gates, size = cell.type.gates, cell.hidden_size
    # A coupled forget gate has no products of its own; in Brevitas' arithmetic those of the input gate stand there.
    unused = FORGET if cell.input_forget and numbers.arithmetic == FIXED_POINT32 else None
    limited = not cell.point("accumulator").is_float
    steps = [numbers.quantizer(cell.type, f"{gate}.acc").scale for gate in gates]

    vitis = VITIS in {p.table for p in cell.points.values()}

    def product(before: str, accumulator: str, after: str, count: int) -> Equivalent:
        name = f"{accumulator}.limited" if limited else before
        ones = tuple(np.repeat([float(k != unused) for k in range(count)], size).tolist())
        made = Equivalent(f"{cell.name}/{name}", f"{cell.name}/{after}.product.scaled", ones, None, size, source=cell.x)
        return replace(made, tolerance=MOVED) if vitis and after != "x" else made

    def biased(before: str, after: str, units: list[float]) -> Equivalent:
        used = [k != unused for k in range(len(units))]
        columns = tuple(np.repeat([u if k else np.inf for u, k in zip(units, used, strict=True)], size).tolist())
        ones, zeros = tuple(np.repeat(used, size).astype(float).tolist()), (0.0,) * len(columns)
        names = f"{cell.name}/{before}", f"{cell.name}/{after}"
        return Equivalent(*names, ones, zeros, size, columns, source=cell.x)

    yield product("x.product", ACCUMULATORS[0], "x", len(gates))
    if not numbers.bias_last:
        yield biased("x.projection", "x.projection.exact", steps)
    split = cell.resets_state
    yield product("hidden.product", ACCUMULATORS[1], "hidden", cell.type.joint if split else len(gates))
    if split:  # the last product is of the hidden state after reset
        yield product(f"{gates[-1]}.hidden_product", ACCUMULATORS[2], RESET, 1)
    if numbers.bias_last:
        yield biased("preactivation", "preactivation", steps)
    if cell.hidden_bias is not None and not vitis:
        name = f"{gates[-1]}.hidden_product.biased"
        yield biased(name, name, steps[-1:])


def states_in_units(cell: QuantizedCell, unit: float) -> Iterator[Equivalent]:
    """What a step makes of the gates: the two parts of the state after it and, of an LSTM, the hidden state.

    Args:
        cell: The cell; the only state of an RNN is its gate.
        unit: Of an LSTM's state after the pass.
    """
    size, factor = cell.hidden_size, 1.0 / unit if cell.type.cell_state else 1.0
    values = dict.fromkeys(cell.type.state_points[:-1], factor)
    if cell.type.cell_state:
        values["hidden.value"] = 1.0
    for name, times in values.items():
        value = f"{cell.name}/{name}"
        yield Equivalent(value, value, (times,) * size, None, size, tolerance=STATES)
