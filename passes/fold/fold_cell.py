"""The numbers of the integer cell: combined multipliers, effective bias, limits and tables (no graph here).

With `s_g` the real value of one pre-activation code (1 for a gate evaluated in float):

    x_multiplier = s_W * s_x / s_g        (s_x = 1 for one scale per row, which is multiplied separately)
    h_multiplier = s_R * s_h / s_g
    B = b / s_g + n + 0.5                 (n + 0.5 for a table gate: zero point and rounding)
    P = p * s_c / s_g
    hidden_bias = Rb_h / s_g

In a GRU with linear_before_reset = 0 the columns of the hidden gate have the scale of `r * h` for s_h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE, Activation
from rnnqc.cells.base import CELL, FORGET, INPUT
from rnnqc.cells.equations import CANDIDATE, RESET_HIDDEN
from rnnqc.cells.lut_numbers import STATE_LIMIT, CellNumbers
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.vitis_tables import VITIS
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import CHAINED, ROWS
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.formats.point_format import INDEX_BITS, cell_is_bounded, stored_multiplier
from rnnqc.passes.graph.lstm_node import NotHandled

FloatArray = npt.NDArray[np.float32]
GATE_LIMIT = 2.0**40
RESIDUAL_BITS = 13
WIDE_CELL_BITS = 24
EXACT_POINTS = frozenset(
    ("accumulator", "cell_state.kept", "cell_state.added", "hidden_state.kept", "hidden_state.added", "hidden_state")
)


@dataclass(frozen=True)
class TableSpec:
    """One activation table.

    Attributes:
        activation: What it tabulates (the residual above `max(x, 0)` for kind "relu_table").
        bits: Width of the code that indexes it.
        step: Real value of one code.
        unit: Real value of one unit of the entries.
        piecewise_linear: Whether entries come from the shared knots.
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
class FoldedCell:
    """The integer form of one cell.

    Attributes:
        numbers: Its scalars.
        x_multiplier: `[GH]`.
        h_multiplier: `[GH]`.
        B: `[GH]`.
        P: `[3H]` or None.
        hidden_bias: `[H]` or None.
        gate_tables: The distinct tables in the order they stand in `gate_table`.
        cell_table: The table of the output activation, or None.
    """

    numbers: CellNumbers
    x_multiplier: FloatArray
    h_multiplier: FloatArray
    B: FloatArray
    P: FloatArray | None
    hidden_bias: FloatArray | None
    gate_tables: tuple[TableSpec, ...]
    cell_table: TableSpec | None


def fold_cell(cell: QuantizedCell, w: npt.NDArray[np.int8], parameters: Mapping[str, FloatArray]) -> FoldedCell:
    """Folds the scales of a quantized cell.

    Args:
        cell: With its points resolved.
        w: Codes of W `[I,GH]`.
        parameters: B `[GH]`, and P `[3H]` and hidden_bias `[H]` where the cell has them.

    Raises:
        NotHandled: The formats of the cell have no integer form.
    """
    _check_only_known_grids(cell)
    h, names = cell.hidden_size, cell.type.gates
    w_format, r_format = (_weight_format(cell, k) for k in ("W", "R"))
    x_mode, x_scale, x_zero = _activation_format(cell, "input")
    h_mode, h_scale, h_zero = _activation_format(cell, "hidden")
    reset_scale, reset_zero = _reset_format(cell, h_mode)
    cell_scale, cell_max = _cell_format(cell) if cell.type.cell_state else (0.0, 0.0)
    gates = _fold_gates(cell, cell_scale or 1.0)
    s_g = np.repeat(gates.step, h)
    columns = len(names) * h
    w_scale, r_scale = (np.broadcast_to(np.asarray(e.scale, np.float64), (columns,)) for e in (w_format, r_format))
    code_scale = np.full(columns, h_scale or 1.0)
    if RESET_HIDDEN in cell.points and not cell.linear_before_reset:
        code_scale[CANDIDATE * h :] = reset_scale or 1.0
    cell_table, cell_index_scale = _cell_table(cell, cell_scale)
    sizes = {t.size for t in gates.tables}
    numbers = CellNumbers(
        x_mode=x_mode,
        x_scale=x_scale if x_mode == "static" else 0.0,
        x_zero_point=x_zero,
        h_mode=h_mode,
        h_scale=h_scale,
        h_zero_point=h_zero,
        cell_scale=cell_scale,
        cell_max=cell_max,
        cell_index_scale=cell_index_scale,
        gate_kinds=gates.kinds,
        gate_min=gates.low,
        gate_max=gates.high,
        gate_table_offset=gates.offsets,
        gate_table_size=sizes.pop() if all(k == TABLE for k in gates.kinds) and len(sizes) == 1 else 0,
        gate_index_scale=gates.index_scale,
        gate_index_size=[2**RESIDUAL_BITS if k == RELU_TABLE else 0 for k in gates.kinds],
        cell_table_size=cell_table.size if cell_table is not None else 0,
        zero_point_rows=zero_point_rows_needed(w) if x_mode == "dynamic_row" else 0,
        x_bits=cell.points["input"].integers.bits,
        h_bits=cell.points["hidden"].integers.bits,
        reset_scale=reset_scale,
        reset_zero_point=reset_zero,
        h_bound=state_bound(cell),
    )
    b, p, inner = (parameters.get(k) for k in ("B", "P", "hidden_bias"))
    assert b is not None
    c_unit, peepholes = cell_scale or 1.0, cell.type.peephole_gates
    return FoldedCell(
        numbers=numbers,
        x_multiplier=stored_multiplier(w_scale * (x_scale or 1.0) / s_g),
        h_multiplier=stored_multiplier(r_scale * code_scale / s_g),
        B=(b.astype(np.float64) / s_g + np.repeat(gates.zero, h)).astype(np.float32),
        P=None
        if p is None
        else np.concatenate([p[k * h : (k + 1) * h] * c_unit / gates.step[k] for k in peepholes]).astype(np.float32),
        hidden_bias=None if inner is None else (inner / gates.step[CANDIDATE]).astype(np.float32),
        gate_tables=tuple(gates.tables),
        cell_table=cell_table,
    )


@dataclass
class _Gates:
    """How each gate is evaluated: lists by gate, and the distinct tables in the order they stand."""

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
        source = INPUT if cell.input_forget and k == FORGET else k  # the coupled gate's own value is never used
        activation = cell.gate_activation(source)
        step, bits = _gate_format(cell, source)
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
    """The table of the output activation and, for a float cell, its codes per unit."""
    output = cell.output_activation
    if output is None or output.kind not in (TABLE, RELU_TABLE):
        return None, 0.0
    if output.kind == RELU_TABLE:
        step = output.limit / 2 ** (INDEX_BITS - 1)
        return TableSpec(output, INDEX_BITS, step), 1.0 / step
    step = cell_scale or output.limit / 2 ** (INDEX_BITS - 1)
    return _table(cell, "hidden", output, INDEX_BITS, step, 1.0), 0.0 if cell_scale else 1.0 / step


def _reset_format(cell: QuantizedCell, h_mode: str) -> tuple[float, int]:
    """Scale and zero point of the codes of `r * h` in a GRU with linear_before_reset = 0."""
    point = cell.points.get(RESET_HIDDEN)
    if point is None or cell.linear_before_reset:
        return 0.0, 128
    mode, scale, zero = _activation_format(cell, RESET_HIDDEN)
    hidden = cell.points["hidden"]
    if mode != h_mode or point.bits != hidden.bits:
        raise NotHandled(
            "the hidden state and r * h have different formats.",
            f"hidden: {hidden.bits} bits, {h_mode}; {RESET_HIDDEN}: {point.bits} bits, {mode}",
            "give both the same bits and mode, or use --form qcdq",
        )
    return scale, zero


def state_bound(cell: QuantizedCell, *, some: bool = False) -> float:
    """Magnitude up to which the hidden codes hold every state that steps make; 0 where no initial one is given.

    Also 0 where the range of the codes does not follow from the activations alone: of all codes of hidden states, or,
    with `some`, of all or some of those of a GRU.
    """
    points = [cell.points["hidden"]]
    if cell.type.reads_hidden and not cell.linear_before_reset:
        points.append(cell.points[RESET_HIDDEN])
    bounds = [p.bound or 0.0 for p in points]
    if cell.initial_h is None or not (any if some else all)(bounds):
        return 0.0
    bound = float(np.float32(max(bounds)))
    if cell.type.reads_hidden and not is_power_of_two(bound):
        # Roundings of (1 - z) * n + z * h add up to a little more than the largest n.
        return float(np.float32(bound * (1.0 + 2.0**-8)))
    return bound


def with_zero_point_rows(codes: npt.NDArray[np.int8], count: int) -> npt.NDArray[np.int8]:
    """`codes` `[I,GH]` and `count` rows that add up to minus its column sums; what the function body computes."""
    sums = codes.sum(axis=0, dtype=np.int64)
    taken = np.clip(np.abs(sums) - 127 * np.arange(count)[:, np.newaxis], 0, 127)
    return np.concatenate([codes, (-np.sign(sums) * taken).astype(np.int8)])


def zero_point_rows_needed(codes: npt.NDArray[np.int8]) -> int:
    """How many rows hold the column sums of `codes`: a power of two, so that cells of one size share a function."""
    needed = -(-int(np.abs(codes.sum(axis=0, dtype=np.int64)).max()) // 127)
    return int(2 ** max(2, (needed - 1).bit_length()))


def _check_only_known_grids(cell: QuantizedCell) -> None:
    """Raises NotHandled for a quantized value that this form keeps exact."""
    for name, point in cell.points.items():
        on_grid = name.endswith(".activation") and (point.static is not None or point.table == VITIS)
        exact = name in EXACT_POINTS or name in cell.type.product_points or on_grid
        if not point.is_float and exact:
            action = "leave it float, or use --form qcdq"
            raise NotHandled(f"{name} is quantized.", f"{name}.bits = {point.bits}", action)
    if cell.points["hidden"].rounded_output:
        raise NotHandled("its output is rounded.", "hidden.rounded_output = true", "leave it out, or use --form qcdq")


def _weight_format(cell: QuantizedCell, name: str) -> Format:
    point = cell.points[f"{name}.weight"]
    held = point.static
    if held is None:
        raise NotHandled(
            f"{name} stays float in this recipe.",
            f"{name}.weight.bits = none",
            "quantize the weights, or use --form qcdq",
        )
    if held.binary or not held.is_symmetric:
        raise NotHandled(
            f"{name} is not symmetric, or binary.",
            f"{name}.weight: {point.bits} bits, signed = {held.signed}, zero_point = {held.zero_point}",
            "signed codes around 0 have an integer form; use --form qcdq",
        )
    if held.bits > 8:
        raise NotHandled(
            f"{name} has {held.bits} bits.",
            f"{name}.weight.bits = {held.bits}",
            "up to 8 bits have an integer form; use --form qcdq",
        )
    return held


def _activation_format(cell: QuantizedCell, name: str) -> tuple[str, float, int]:
    """How `name` becomes integers: the mode, the scale (0 for one of each row) and the zero point."""
    point, held = cell.points[name], cell.points[name].format
    if held is None or held.bits not in (8, 16) or held.signed or held.rounding is not Rounding.HALF_EVEN:
        found = "float" if held is None else f"{point.bits} bits, signed = {held.signed}, {held.rounding.value}"
        raise NotHandled(
            f"the {name} has a format without integer form.",
            f"{name}: {found}",
            "unsigned codes of 8 or 16 bits, rounded half to even, have one; use --form qcdq",
        )
    if point.mode == ROWS:
        return "dynamic_row", 0.0, held.zero_point
    return "codes" if point.mode == CHAINED else "static", float(point.complete.scale[0]), held.zero_point


def _gate_format(cell: QuantizedCell, k: int) -> tuple[float, int]:
    """Scale and bits of the pre-activation of a gate that is tabulated; 1 and 0 of another one."""
    activation = cell.gate_activation(k)
    if activation.kind != TABLE:
        return 1.0, 0
    name = cell.type.gates[k]
    point, value = cell.points[f"{name}.acc"], cell.points[f"{name}.activation"]
    held = point.static
    if held is None or value.is_float or held.rounding is not Rounding.HALF_UP:
        rounding = None if held is None else held.rounding.value
        raise NotHandled(
            f"the {name.replace('_', ' ')} is not tabulated.",
            f"{name}: acc.bits = {point.bits}, activation.bits = {value.bits}, {rounding}",
            "quantize pre-activation (rounding half_up) and activation, or use --form qcdq",
        )
    if not held.is_symmetric:
        raise NotHandled(
            f"the {name.replace('_', ' ')} has codes that are not around 0.",
            f"{name}.acc: signed = {held.signed}, zero_point = {held.zero_point}",
            "symmetric pre-activations have an integer form; use --form qcdq",
        )
    if held.bits > INDEX_BITS:
        raise NotHandled(
            f"the {name.replace('_', ' ')} has too large a table.",
            f"{name}.acc.bits = {held.bits}",
            f"pre-activations of up to {INDEX_BITS} bits have an integer form; use --form qcdq",
        )
    return held.scale[0], held.bits


def _cell_format(cell: QuantizedCell) -> tuple[float, float]:
    """Scale and largest multiple of the cell state; zeros for a float one."""
    held, output = cell.points["cell_state"].static, cell.activations[2]
    if output.kind in (TABLE, RELU_TABLE) and cell.points["hidden.activation"].is_float:
        raise NotHandled(
            "the output activation is not tabulated.",
            "hidden.activation.bits = none",
            "tabulate it, or use --form qcdq",
        )
    if held is None:
        return 0.0, 0.0
    gate = cell.gate_activation(CELL)
    if held.rounding is not Rounding.HALF_EVEN or output.kind == RELU_TABLE or gate.kind != TABLE:
        raise NotHandled(
            "the cell state has a format without integer form.",
            f"cell_state: {held.bits} bits, {held.rounding.value}, gate {gate.name}, output {output.name}",
            "whole numbers rounded half to even, with tabulated activations, have one; use --form qcdq",
        )
    # float32 holds whole numbers of 24 bits: such a cell needs no limit but the one that keeps it finite.
    wide = held.bits == WIDE_CELL_BITS and cell_is_bounded(cell, math.inf)
    return held.scale[0], STATE_LIMIT if wide else 2.0 ** (held.bits - 1) - 1


def _table(cell: QuantizedCell, name: str, activation: Activation, bits: int, step: float, unit: float) -> TableSpec:
    linear = (
        cell.points[f"{name}.activation"].table == "piecewise-linear"
        and activation.name in ("Sigmoid", "Tanh")
        and linear_length(activation, bits, step) is not None
    )
    return TableSpec(activation, bits, step, unit, linear)


def linear_length(activation: Activation, bits: int, step: float) -> int | None:
    """Codes `n` on the activation's interval where the knots fit: a multiple of 64 that `step` divides evenly."""
    n = activation.limit / step
    return int(n) if n == int(n) and int(n) % 64 == 0 and n <= 2 ** (bits - 1) else None


def _place(tables: list[TableSpec], table: TableSpec) -> int:
    if table not in tables:
        tables.append(table)
    return sum(t.size for t in tables[: tables.index(table)])
