"""The numbers of the integer cell: combined multipliers, effective bias, limits and tables (no graph here).

With `s_g` the real value of one pre-activation code (1 for a gate evaluated in float):

    x_multiplier = s_W * s_x / s_g        (s_x = 1 for one scale per row, which is multiplied separately)
    h_multiplier = s_R * s_h / s_g
    B = b / s_g + n + 0.5                 (n + 0.5 for a table gate: zero point and rounding)
    P = p * s_c / s_g
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE, Activation
from rnnqc.cells.base import CELL, FORGET, GATES, INPUT, PEEPHOLE_GATES, PRODUCT_POINTS, Cell
from rnnqc.encoding import Encoding, Rounding
from rnnqc.passes.lstm_node import NotHandled
from rnnqc.passes.quantization import INDEX_BITS, cell_is_bounded, encoding_of, stored_multiplier

FloatArray = npt.NDArray[np.float32]
GATE_LIMIT = 2.0**40
STATE_LIMIT = 2.0**60
RESIDUAL_BITS = 13
WIDE_CELL_BITS = 24
EXACT_POINTS = frozenset({*PRODUCT_POINTS, "accumulator", "cell_state.kept", "cell_state.added"})


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


_BODY_ONLY = ("gate_table_size", "cell_table_size", "zero_point_rows")
# Attributes that are left out at their default: a library that does not know them runs files without them.
_OPTIONAL = {"w_group_size": 0, "r_group_size": 0, "x_bits": 8, "h_bits": 8}


@dataclass(frozen=True)
class LstmNumbers:
    """The scalars of the integer form of one cell; JSON-ready.

    Attributes:
        x_mode: "dynamic_row", "static" or "codes".
        x_scale: Scale of a static input.
        x_zero_point: Zero point of the input's codes.
        h_mode: "static" or "dynamic_row".
        h_scale: Scale of static hidden codes.
        h_zero_point: Zero point of the hidden codes.
        cell_scale: Real value of one cell unit; 0 for a float cell.
        cell_max: Largest cell code.
        cell_index_scale: Float cell: codes of the output table per unit.
        gate_kinds: How each gate is evaluated.
        gate_min: Lower limit of each gate's pre-activation.
        gate_max: Upper limit.
        gate_table_offset: Entry at which each gate's table starts.
        gate_table_size: Size of the gates' tables if all gates are look-ups in tables of one size, else 0.
        gate_index_scale: Kind "relu_table": codes per unit.
        gate_index_size: Kind "relu_table": number of codes.
        cell_table_size: Entries of the output table, or 0.
        zero_point_rows: Mode "dynamic_row": rows that the function body appends to W for the rows' zero points; else 0.
        w_group_size: Rows of W that share a multiplier, if it is packed in groups; else 0.
        r_group_size: The same of R.
        x_bits: Width of the input's codes, 8 or 16.
        h_bits: Width of the hidden codes, 8 or 16.
    """

    x_mode: str
    x_scale: float
    x_zero_point: int
    h_mode: str
    h_scale: float
    h_zero_point: int
    cell_scale: float
    cell_max: float
    cell_index_scale: float
    gate_kinds: list[str]
    gate_min: list[float]
    gate_max: list[float]
    gate_table_offset: list[int]
    gate_table_size: int
    gate_index_scale: list[float]
    gate_index_size: list[int]
    cell_table_size: int
    zero_point_rows: int
    w_group_size: int = 0
    r_group_size: int = 0
    x_bits: int = 8
    h_bits: int = 8

    @property
    def cell_is_wide(self) -> bool:
        """Whether the limit of a quantized cell cannot be reached."""
        return self.cell_max >= STATE_LIMIT

    def attributes(self, cell: Cell) -> dict[str, Any]:
        """The attributes of the `QuantLSTMCell` node."""
        output = cell.activations[2]
        gates = [cell.gate_activation(k) for k in range(len(GATES))]
        numbers = {k: v for k, v in asdict(self).items() if k not in _BODY_ONLY and _OPTIONAL.get(k) != v}
        return {
            "hidden_size": cell.hidden_size,
            "direction": "reverse" if cell.reverse else "forward",
            **numbers,
            "gate_kinds": ",".join(self.gate_kinds),  # custom operators of onnxruntime cannot read lists of strings
            "gate_alpha": [float(a.alpha) for a in gates],
            "gate_beta": [float(a.beta) for a in gates],
            "output_kind": output.kind,
            "output_alpha": float(output.alpha),
            "output_beta": float(output.beta),
            "input_forget": int(cell.input_forget),
            "one": 1.0,
        }


@dataclass(frozen=True)
class FoldedLstm:
    """The integer form of one cell.

    Attributes:
        numbers: Its scalars.
        x_multiplier: `[4H]`.
        h_multiplier: `[4H]`.
        B: `[4H]`.
        P: `[3H]` or None.
        gate_tables: The distinct tables in the order they stand in `gate_table`.
        cell_table: The table of the output activation, or None.
    """

    numbers: LstmNumbers
    x_multiplier: FloatArray
    h_multiplier: FloatArray
    B: FloatArray
    P: FloatArray | None
    gate_tables: tuple[TableSpec, ...]
    cell_table: TableSpec | None


def fold_lstm(cell: Cell, w: npt.NDArray[np.int8], b: FloatArray, p: FloatArray | None) -> FoldedLstm:
    """Folds the scales of a quantized cell.

    Args:
        cell: With its points resolved.
        w: Codes of W `[I,4H]`.
        b: Bias `[4H]`.
        p: Peephole weights `[3H]`, or None.

    Raises:
        NotHandled: The formats of the cell have no integer form.
    """
    _check_only_known_grids(cell)
    h = cell.hidden_size
    w_encoding, r_encoding = (_weight_encoding(cell, k) for k in ("W", "R"))
    x_mode, x_scale, x_zero = _activation_format(cell, "input")
    h_mode, h_scale, h_zero = _activation_format(cell, "hidden")
    cell_scale, cell_max = _cell_format(cell)
    c_unit = cell_scale or 1.0
    s_g = np.empty(4 * h)
    zero = np.zeros(4 * h)
    kinds: list[str] = []
    low: list[float] = []
    high: list[float] = []
    index_scale: list[float] = []
    offsets: list[int] = []
    tables: list[TableSpec] = []
    for k in range(len(GATES)):
        source = INPUT if cell.input_forget and k == FORGET else k  # the coupled gate's own value is never used
        activation = cell.gate_activation(source)
        step, bits = _gate_format(cell, source)
        clip = cell.clip if cell.clip is not None else GATE_LIMIT
        s_g[k * h : (k + 1) * h] = step
        offset = 0
        kind = activation.kind
        if kind == TABLE:
            n = 2 ** (bits - 1)
            zero[k * h : (k + 1) * h] = n + 0.5
            low.append(max(0.0, n + 0.5 - clip / step))
            high.append(min(2 * n - 0.5, n + 0.5 + clip / step))
            offset = _place(tables, _table(cell, GATES[source], activation, bits, step, c_unit if k == CELL else 1.0))
        else:
            low.append(-min(clip, GATE_LIMIT))
            high.append(min(clip, GATE_LIMIT))
            if kind == RELU_TABLE:
                offset = _place(
                    tables, TableSpec(activation, RESIDUAL_BITS, activation.limit / 2 ** (RESIDUAL_BITS - 1))
                )
        index_scale.append(2 ** (RESIDUAL_BITS - 1) / activation.limit if kind == RELU_TABLE else 0.0)
        kinds.append(kind)
        offsets.append(offset)
    w_scale, r_scale = (np.broadcast_to(np.asarray(e.scale, np.float64), (4 * h,)) for e in (w_encoding, r_encoding))
    output = cell.activations[2]
    cell_table, cell_index_scale = None, 0.0
    if output.kind == TABLE:
        bits = INDEX_BITS
        step = cell_scale or output.limit / 2 ** (INDEX_BITS - 1)
        cell_table = _table(cell, "hidden", output, bits, step, 1.0)
        cell_index_scale = 0.0 if cell_scale else 1.0 / step
    elif output.kind == RELU_TABLE:
        step = output.limit / 2 ** (INDEX_BITS - 1)
        cell_table = TableSpec(output, INDEX_BITS, step)
        cell_index_scale = 1.0 / step
    sizes = {t.size for t in tables}
    numbers = LstmNumbers(
        x_mode=x_mode,
        x_scale=x_scale if x_mode == "static" else 0.0,
        x_zero_point=x_zero,
        h_mode=h_mode,
        h_scale=h_scale,
        h_zero_point=h_zero,
        cell_scale=cell_scale,
        cell_max=cell_max,
        cell_index_scale=cell_index_scale,
        gate_kinds=kinds,
        gate_min=low,
        gate_max=high,
        gate_table_offset=offsets,
        gate_table_size=sizes.pop() if all(k == TABLE for k in kinds) and len(sizes) == 1 else 0,
        gate_index_scale=index_scale,
        gate_index_size=[2**RESIDUAL_BITS if k == RELU_TABLE else 0 for k in kinds],
        cell_table_size=cell_table.size if cell_table is not None else 0,
        zero_point_rows=zero_point_rows_needed(w) if x_mode == "dynamic_row" else 0,
        x_bits=cell.points["input"]["bits"],
        h_bits=cell.points["hidden"]["bits"],
    )
    return FoldedLstm(
        numbers=numbers,
        x_multiplier=stored_multiplier(w_scale * (x_scale or 1.0) / s_g),
        h_multiplier=stored_multiplier(r_scale * (h_scale or 1.0) / s_g),
        B=(b.astype(np.float64) / s_g + zero).astype(np.float32),
        P=None
        if p is None
        else np.concatenate([p[k * h : (k + 1) * h] * c_unit / s_g[k * h] for k in PEEPHOLE_GATES]).astype(np.float32),
        gate_tables=tuple(tables),
        cell_table=cell_table,
    )


def with_zero_point_rows(codes: npt.NDArray[np.int8], count: int) -> npt.NDArray[np.int8]:
    """`codes` `[I,4H]` and `count` rows that add up to minus its column sums; what the function body computes."""
    sums = codes.sum(axis=0, dtype=np.int64)
    taken = np.clip(np.abs(sums) - 127 * np.arange(count)[:, np.newaxis], 0, 127)
    return np.concatenate([codes, (-np.sign(sums) * taken).astype(np.int8)])


def zero_point_rows_needed(codes: npt.NDArray[np.int8]) -> int:
    """How many rows hold the column sums of `codes`: a power of two, so that cells of one size share a function."""
    needed = -(-int(np.abs(codes.sum(axis=0, dtype=np.int64)).max()) // 127)
    return int(2 ** max(2, (needed - 1).bit_length()))


def _check_only_known_grids(cell: Cell) -> None:
    """Raises NotHandled for a quantized value that this form keeps exact."""
    for name, point in cell.points.items():
        exact = name in EXACT_POINTS or (name.endswith(".activation") and "scale" in point)
        if point["bits"] is not None and exact:
            raise NotHandled(
                f"{name} is quantized.", f"{name}.bits = {point['bits']}", "leave it float, or use --form qcdq"
            )
    if cell.points["hidden"].get("rounded_output"):
        raise NotHandled("its output is rounded.", "hidden.rounded_output = true", "leave it out, or use --form qcdq")


def _weight_encoding(cell: Cell, name: str) -> Encoding:
    point = cell.points[f"{name}.weight"]
    if point["bits"] is None:
        raise NotHandled(
            f"{name} stays float in this recipe.",
            f"{name}.weight.bits = none",
            "quantize the weights, or use --form qcdq",
        )
    if point["bits"] == 1 or not point["signed"] or point["zero_point"] or point.get("zero_points"):
        raise NotHandled(
            f"{name} is not symmetric, or binary.",
            f"{name}.weight: {point['bits']} bits, signed = {point['signed']}, zero_point = {point['zero_point']}",
            "signed codes around 0 have an integer form; use --form qcdq",
        )
    if point["bits"] > 8:
        raise NotHandled(
            f"{name} has {point['bits']} bits.",
            f"{name}.weight.bits = {point['bits']}",
            "up to 8 bits have an integer form; use --form qcdq",
        )
    return encoding_of(point)


def _activation_format(cell: Cell, name: str) -> tuple[str, float, int]:
    point = cell.points[name]
    if point["bits"] not in (8, 16) or point["signed"] or point["rounding"] != Rounding.HALF_EVEN.value:
        raise NotHandled(
            f"the {name} has a format without integer form.",
            f"{name}: "
            + (
                "float"
                if point["bits"] is None
                else f"{point['bits']} bits, signed = {point['signed']}, {point['rounding']}"
            ),
            "unsigned codes of 8 or 16 bits, rounded half to even, have one; use --form qcdq",
        )
    if point["mode"] == "dynamic-row":
        return "dynamic_row", 0.0, int(point["zero_point"])
    mode = "codes" if point["mode"] == "codes" else "static"
    return mode, float(point["scale"][0]), int(point["zero_point"])


def _gate_format(cell: Cell, k: int) -> tuple[float, int]:
    activation = cell.gate_activation(k)
    if activation.kind != TABLE:
        return 1.0, 0
    point, value = cell.points[f"{GATES[k]}.acc"], cell.points[f"{GATES[k]}.activation"]
    if point["bits"] is None or value["bits"] is None or point["rounding"] != Rounding.HALF_UP.value:
        raise NotHandled(
            f"the {GATES[k].replace('_', ' ')} is not tabulated.",
            f"{GATES[k]}: acc.bits = {point['bits']}, activation.bits = {value['bits']}, {point.get('rounding')}",
            "quantize pre-activation (rounding half_up) and activation, or use --form qcdq",
        )
    if point["bits"] > INDEX_BITS:
        raise NotHandled(
            f"the {GATES[k].replace('_', ' ')} has too large a table.",
            f"{GATES[k]}.acc.bits = {point['bits']}",
            f"pre-activations of up to {INDEX_BITS} bits have an integer form; use --form qcdq",
        )
    return float(point["scale"][0]), int(point["bits"])


def _cell_format(cell: Cell) -> tuple[float, float]:
    point = cell.points["cell_state"]
    output = cell.activations[2]
    if output.kind in (TABLE, RELU_TABLE) and cell.points["hidden.activation"]["bits"] is None:
        raise NotHandled(
            "the output activation is not tabulated.",
            "hidden.activation.bits = none",
            "tabulate it, or use --form qcdq",
        )
    if point["bits"] is None:
        return 0.0, 0.0
    gate = cell.gate_activation(CELL)
    if point["rounding"] != Rounding.HALF_EVEN.value or output.kind == RELU_TABLE or gate.kind != TABLE:
        raise NotHandled(
            "the cell state has a format without integer form.",
            f"cell_state: {point['bits']} bits, {point['rounding']}, gate {gate.name}, output {output.name}",
            "whole numbers rounded half to even, with tabulated activations, have one; use --form qcdq",
        )
    # float32 holds whole numbers of 24 bits: such a cell needs no limit but the one that keeps it finite.
    wide = point["bits"] == WIDE_CELL_BITS and cell_is_bounded(cell, math.inf)
    limit = STATE_LIMIT if wide else 2.0 ** (point["bits"] - 1) - 1
    return float(point["scale"][0]), limit


def _table(cell: Cell, name: str, activation: Activation, bits: int, step: float, unit: float) -> TableSpec:
    linear = (
        cell.points[f"{name}.activation"]["table"] == "piecewise-linear"
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
