"""The operands of the integer cell: combined multipliers, effective bias, limits and tables (no graph here).

With `s_g` the real value of one LSB of a pre-activation (1 for a gate evaluated in float):

    x_multiplier = s_W * s_x / s_g        (s_x = 1 for per-row dynamic scales, which are multiplied separately)
    h_multiplier = s_R * s_h / s_g
    B = b / s_g + n + 0.5                 (n + 0.5 for a table gate: zero point and rounding)
    P = p * s_c / s_g
    hidden_bias = Rb_h / s_g

In a GRU with linear_before_reset = 0 the columns of the hidden gate have the scale of `r * h` for s_h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE, Activation
from rnnqc.cells.base import CELL, FORGET, INPUT
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.tables import PIECEWISE_LINEAR
from rnnqc.passes.fold.lut_formats import LutFormats, gate_format, state_bound
from rnnqc.passes.formats.point_format import INDEX_BITS, stored_multiplier

FloatArray = npt.NDArray[np.float32]
GATE_LIMIT = 2.0**40
RESIDUAL_BITS = 13


@dataclass(frozen=True)
class TableSpec:
    """One activation table.

    Attributes:
        activation: The tabulated function (the residual above `max(x, 0)` for kind "relu_table").
        bits: Width of the quantized values that index it.
        step: Real value of one LSB of the index.
        unit: Real value of one LSB of the entries.
        piecewise_linear: Whether entries are interpolated from the shared knots.
    """

    activation: Activation
    bits: int
    step: float
    unit: float = 1.0
    piecewise_linear: bool = False

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(2**self.bits)


@dataclass(frozen=True)
class FoldedLut:
    """The integer form of one cell.

    Attributes:
        numbers: Its scalars.
        x_multiplier: `[GH]`.
        h_multiplier: `[GH]`.
        B: `[GH]`.
        P: `[3H]` or None.
        hidden_bias: `[H]` or None.
        gate_tables: The distinct tables in the order of `gate_table`.
        cell_table: The table of the output activation, or None.
    """

    numbers: LutNumbers
    x_multiplier: FloatArray
    h_multiplier: FloatArray
    B: FloatArray
    P: FloatArray | None
    hidden_bias: FloatArray | None
    gate_tables: tuple[TableSpec, ...]
    cell_table: TableSpec | None


def fold_lut(cell: QuantizedCell, w: npt.NDArray[np.int8], parameters: Mapping[str, FloatArray]) -> FoldedLut:
    """Folds the scales of a quantized cell.

    Args:
        cell: The cell, with resolved points.
        w: Quantized W `[I,GH]`.
        parameters: B `[GH]`, and P `[3H]` and hidden_bias `[H]` if the cell has them.

    Raises:
        NotHandled: The formats of the cell have no integer form.
    """
    f = LutFormats.of(cell)
    h, columns = cell.hidden_size, len(cell.type.gates) * cell.hidden_size
    gates = _fold_gates(cell, f.cell_scale or 1.0)
    table = _cell_table(cell, f.cell_scale)
    s_g = np.repeat(gates.step, h)
    w_scale, r_scale = (np.broadcast_to(np.asarray(e.scale, np.float64), (columns,)) for e in (f.W, f.R))
    s_h = np.full(columns, f.h.scale or 1.0)
    if cell.resets_state:
        s_h[cell.candidate_columns] = f.reset.scale or 1.0
    b, p, inner = (parameters.get(k) for k in ("B", "P", "hidden_bias"))
    assert b is not None
    if p is not None:
        unit = f.cell_scale or 1.0
        parts = [p[k * h : (k + 1) * h] * unit / gates.step[k] for k in cell.type.peephole_gates]
        p = np.concatenate(parts).astype(np.float32)
    return FoldedLut(
        numbers=_numbers(cell, f, gates, table, zero_point_rows_needed(w) if f.x.mode == "dynamic_row" else 0),
        x_multiplier=stored_multiplier(w_scale * (f.x.scale or 1.0) / s_g),
        h_multiplier=stored_multiplier(r_scale * s_h / s_g),
        B=(b.astype(np.float64) / s_g + np.repeat(gates.zero, h)).astype(np.float32),
        P=p,
        hidden_bias=None if inner is None else (inner / gates.step[-1]).astype(np.float32),
        gate_tables=tuple(gates.tables),
        cell_table=table[0],
    )


def _numbers(
    cell: QuantizedCell, f: LutFormats, gates: _Gates, table: tuple[TableSpec | None, float], zero_point_rows: int
) -> LutNumbers:
    """The scalars of a cell.

    Args:
        cell: The cell.
        f: Its formats.
        gates: The evaluation of its gates.
        table: The table of the output activation, and for a float cell state its index steps per unit.
        zero_point_rows: Number of rows that hold the column sums of W.
    """
    cell_table, cell_index_scale = table
    sizes = {t.size for t in gates.tables}
    return LutNumbers(
        x_mode=f.x.mode,
        x_scale=f.x.scale if f.x.mode == "static" else 0.0,
        x_zero_point=f.x.zero_point,
        h_mode=f.h.mode,
        h_scale=f.h.scale,
        h_zero_point=f.h.zero_point,
        cell_scale=f.cell_scale,
        cell_max=f.cell_max,
        cell_index_scale=cell_index_scale,
        gate_kinds=gates.kinds,
        gate_min=gates.low,
        gate_max=gates.high,
        gate_table_offset=gates.offsets,
        gate_table_size=sizes.pop() if all(k == TABLE for k in gates.kinds) and len(sizes) == 1 else 0,
        gate_index_scale=gates.index_scale,
        gate_index_size=[2**RESIDUAL_BITS if k == RELU_TABLE else 0 for k in gates.kinds],
        cell_table_size=cell_table.size if cell_table is not None else 0,
        zero_point_rows=zero_point_rows,
        x_bits=f.x.bits,
        h_bits=f.h.bits,
        reset_scale=f.reset.scale,
        reset_zero_point=f.reset.zero_point,
        h_bound=state_bound(cell),
    )


@dataclass
class _Gates:
    """The evaluation of each gate: lists by gate, and the distinct tables in order."""

    step: list[float] = field(default_factory=list)
    zero: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    index_scale: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    tables: list[TableSpec] = field(default_factory=list)


def _fold_gates(cell: QuantizedCell, c_unit: float) -> _Gates:
    made = _Gates()
    for k in range(len(cell.type.gates)):
        source = INPUT if cell.input_forget and k == FORGET else k  # the coupled gate's own value is unused
        activation = cell.gate_activation(source)
        step, bits = gate_format(cell, source)
        clip = cell.clip if cell.clip is not None else GATE_LIMIT
        kind, zero, offset = activation.kind, 0.0, 0
        if kind == TABLE:
            n = 2 ** (bits - 1)
            zero = n + 0.5
            made.low.append(max(0.0, n + 0.5 - clip / step))
            made.high.append(min(2 * n - 0.5, n + 0.5 + clip / step))
            unit = c_unit if cell.type.cell_state and k == CELL else 1.0
            offset = _place(made.tables, _table(cell, cell.type.gates[source], activation, bits, step, unit))
        else:
            made.low.append(-min(clip, GATE_LIMIT))
            made.high.append(min(clip, GATE_LIMIT))
            if kind == RELU_TABLE:
                spec = TableSpec(activation, RESIDUAL_BITS, activation.limit / 2 ** (RESIDUAL_BITS - 1))
                offset = _place(made.tables, spec)
        made.step.append(step)
        made.zero.append(zero)
        made.index_scale.append(2 ** (RESIDUAL_BITS - 1) / activation.limit if kind == RELU_TABLE else 0.0)
        made.kinds.append(kind)
        made.offsets.append(offset)
    return made


def _cell_table(cell: QuantizedCell, cell_scale: float) -> tuple[TableSpec | None, float]:
    """The table of the output activation and, for a float cell state, its index steps per unit."""
    output = cell.output_activation
    if output is None or output.kind not in (TABLE, RELU_TABLE):
        return None, 0.0
    if output.kind == RELU_TABLE:
        step = output.limit / 2 ** (INDEX_BITS - 1)
        return TableSpec(output, INDEX_BITS, step), 1.0 / step
    step = cell_scale or output.limit / 2 ** (INDEX_BITS - 1)
    return _table(cell, "hidden", output, INDEX_BITS, step, 1.0), 0.0 if cell_scale else 1.0 / step


def with_zero_point_rows(codes: npt.NDArray[np.int8], count: int) -> npt.NDArray[np.int8]:
    """Returns `codes` `[I,GH]` with `count` rows that add up to minus its column sums, as the function body does."""
    sums = codes.sum(axis=0, dtype=np.int64)
    taken = np.clip(np.abs(sums) - 127 * np.arange(count)[:, np.newaxis], 0, 127)
    return np.concatenate([codes, (-np.sign(sums) * taken).astype(np.int8)])


def zero_point_rows_needed(codes: npt.NDArray[np.int8]) -> int:
    """Returns the number of rows for the column sums of `codes`: a power of two, so that equal sizes share it."""
    needed = -(-int(np.abs(codes.sum(axis=0, dtype=np.int64)).max()) // 127)
    return int(2 ** max(2, (needed - 1).bit_length()))


def _table(cell: QuantizedCell, name: str, activation: Activation, bits: int, step: float, unit: float) -> TableSpec:
    linear = (
        cell.points[f"{name}.activation"].table == PIECEWISE_LINEAR
        and activation.name in ("Sigmoid", "Tanh")
        and linear_length(activation, bits, step) is not None
    )
    return TableSpec(activation, bits, step, unit, linear)


def linear_length(activation: Activation, bits: int, step: float) -> int | None:
    """Returns the steps `n` on the activation's interval if the knots fit: a multiple of 64 that `step` divides."""
    n = activation.limit / step
    return int(n) if n == int(n) and int(n) % 64 == 0 and n <= 2 ** (bits - 1) else None


def _place(tables: list[TableSpec], table: TableSpec) -> int:
    if table not in tables:
        tables.append(table)
    return sum(t.size for t in tables[: tables.index(table)])
