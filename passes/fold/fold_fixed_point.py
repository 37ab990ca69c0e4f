"""The operands of a cell in fixed-point arithmetic, where every point of the cell has a static format (no graph here).

With `s_p` the real value of one LSB of point p:

    x_multiplier = s_W * s_x      h_multiplier = s_R * s_h      (real values of one LSB of the accumulators)

In a GRU with linear_before_reset = 0 the columns of the hidden gate have the scale of `r * h` for s_h.

Tables hold real values for all quantized values of a pre-activation or of the cell state. Quantized inputs, hidden
states and weights are stored with the offset that makes the former two unsigned and the latter signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, GATES, INPUT
from rnnqc.cells.equations import RESET_PRODUCT
from rnnqc.cells.fixed_point_numbers import (
    GATE_KINDS,
    RESET,
    FixedPointNumbers,
    FixedPointQuantizer,
    point_of,
    quantizers_of,
)
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.vitis_tables import VITIS
from rnnqc.errors import NotHandled
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import CHAINED
from rnnqc.passes.fold.fixed_point_tables import FixedPointTable, fixed_point_table, on_activation_grid, place
from rnnqc.passes.fold.fold_lut import FloatArray
from rnnqc.passes.fold.lut_formats import EXACT_POINTS
from rnnqc.passes.formats.point_format import INDEX_BITS, stored_multiplier

WIDEST_CODES = 16
WIDEST_OTHER = 32
WIDEST_WEIGHT = 16


@dataclass(frozen=True)
class FoldedFixedPoint:
    """The integer form of one cell.

    Attributes:
        numbers: Its scalars.
        W: Quantized values `[I,GH]`, int8 or int16.
        R: Quantized values `[H,GH]`, int8 or int16.
        W_zero_point: int32 `[GH]`, or None for zeros.
        R_zero_point: int32 `[GH]`, or None for zeros.
        x_multiplier: `[GH]`.
        h_multiplier: `[GH]`.
        B: `[GH]`.
        P: `[3H]` or None.
        gate_tables: The distinct tables of the gates, in the order of `gate_table`.
        cell_table: The table of the output activation, or None.
        hidden_bias: `[H]` or None.
    """

    numbers: FixedPointNumbers
    W: npt.NDArray[np.signedinteger[Any]]
    R: npt.NDArray[np.signedinteger[Any]]
    W_zero_point: npt.NDArray[np.int32] | None
    R_zero_point: npt.NDArray[np.int32] | None
    x_multiplier: FloatArray
    h_multiplier: FloatArray
    B: FloatArray
    P: FloatArray | None
    gate_tables: tuple[FixedPointTable, ...]
    cell_table: FixedPointTable | None
    hidden_bias: FloatArray | None = None


def needs_fixed_point(cell: QuantizedCell) -> bool:
    """Whether only fixed-point arithmetic supports a format of the cell."""
    points, gates = cell.points, cell.type.gates
    exact = EXACT_POINTS | {RESET_PRODUCT, *cell.type.product_points}
    present = [n for n in exact & points.keys() if not points[n].is_float]
    activations = [p for n, p in points.items() if n.endswith(".activation")]
    signed = [points[f"{g}.acc"] for g in gates] + [points[n] for n in ("W.weight", "R.weight")]
    signed += [points["cell_state"]] if cell.type.cell_state else []
    return bool(
        present
        or cell.rounds_output
        or any(a.static is not None or a.table == VITIS for a in activations)
        or any(p.format is not None and not p.format.is_symmetric for p in signed)
    )


def fold_fixed_point(
    cell: QuantizedCell, w: npt.NDArray[Any], r: npt.NDArray[Any], parameters: Mapping[str, FloatArray]
) -> FoldedFixedPoint:
    """Folds the scales of a quantized cell.

    Args:
        cell: The cell, with resolved points.
        w: Quantized W `[I,GH]`, in the format of its point.
        r: Quantized R `[H,GH]`.
        parameters: B `[GH]`, and P `[3H]` and hidden_bias `[H]` if the cell has them.

    Raises:
        NotHandled: A point that must be quantized is not, or has a format that this arithmetic does not support.
    """
    gates = cell.type.gates
    grids = _quantizers(cell)
    weights = {name: _weight(cell, name, codes) for name, codes in (("W", w), ("R", r))}
    tables, offsets = _gate_tables(cell, grids)
    accumulator = cell.points["accumulator"].bits
    one = np.ones(1, np.float32)
    if cell.input_forget:
        one = on_activation_grid(cell.points[f"{gates[INPUT]}.activation"], one)
    numbers = FixedPointNumbers.of(
        "codes" if cell.points["input"].mode == CHAINED else "static",
        list(grids.values()),
        gate_table_offset=offsets,
        one=float(one[0]),
        accumulator_bits=0 if accumulator is None else int(accumulator),
        rounded_output=cell.rounds_output,
    )
    s_h = np.full(len(gates) * cell.hidden_size, grids["hidden"].scale)
    if RESET in _codes(cell):
        s_h[cell.candidate_columns] = grids[RESET].scale
    peepholes, hidden_bias = parameters.get("P"), parameters.get("hidden_bias")
    output = cell.output_activation
    return FoldedFixedPoint(
        numbers=numbers,
        W=weights["W"].codes,
        R=weights["R"].codes,
        W_zero_point=weights["W"].zero_point,
        R_zero_point=weights["R"].zero_point,
        x_multiplier=stored_multiplier(weights["W"].scale * grids["input"].scale),
        h_multiplier=stored_multiplier(weights["R"].scale * s_h),
        B=parameters["B"].astype(np.float32),
        P=None if peepholes is None else peepholes.astype(np.float32),
        gate_tables=tuple(tables),
        cell_table=None if output is None else fixed_point_table(cell, "hidden", output, grids["cell_state"]),
        hidden_bias=None if hidden_bias is None else hidden_bias.astype(np.float32),
    )


def _quantizers(cell: QuantizedCell) -> dict[str, FixedPointQuantizer]:
    """The quantizers of the cell by name; a coupled forget gate uses those of the input gate."""
    made = {}
    for name in quantizers_of(cell.type):
        held = _format(cell, name)
        shift = _raise(held) if held is not None and name in _codes(cell) else 0
        made[name] = FixedPointQuantizer() if held is None else FixedPointQuantizer.of(held, shift)
    if cell.input_forget:
        for kind in GATE_KINDS:
            made[f"{GATES[FORGET]}.{kind}"] = made[f"{GATES[INPUT]}.{kind}"]
    return made


def _gate_tables(
    cell: QuantizedCell, grids: Mapping[str, FixedPointQuantizer]
) -> tuple[list[FixedPointTable], list[int]]:
    """The distinct tables of the gates, and the first entry of each gate's table."""
    gates = cell.type.gates
    tables: list[FixedPointTable] = []
    offsets: list[int] = []
    for k, gate in enumerate(gates):
        source = gates[INPUT] if cell.input_forget and k == FORGET else gate
        table = fixed_point_table(cell, source, cell.gate_activation(k), grids[f"{gate}.acc"])
        offsets.append(place(tables, table))
    return tables, offsets


@dataclass(frozen=True)
class _Weight:
    codes: npt.NDArray[np.signedinteger[Any]]
    zero_point: npt.NDArray[np.int32] | None
    scale: npt.NDArray[np.float64]


def _weight(cell: QuantizedCell, name: str, codes: npt.NDArray[Any]) -> _Weight:
    held = cell.points[f"{name}.weight"].static
    if held is None or held.bits > WIDEST_WEIGHT:
        raise NotHandled(
            f"{name} stays float in this recipe." if held is None else f"{name} has {held.bits} bits.",
            f"{name}.weight.bits = {'none' if held is None else held.bits}",
            f"weights of up to {WIDEST_WEIGHT} bits have an integer form; use --form qcdq",
        )
    columns = len(cell.type.gates) * cell.hidden_size
    shift = 0 if held.signed else 2 ** (held.bits - 1)
    zero_point = np.broadcast_to(held.all_zero_points - shift, (columns,)).astype(np.int32)
    return _Weight(
        (codes.astype(np.int32) - shift).astype(np.int8 if held.bits <= 8 else np.int16),
        zero_point if zero_point.any() else None,
        np.broadcast_to(np.asarray(held.scale, np.float64), (columns,)),
    )


def _raise(format_: Format) -> int:
    """The offset that makes the quantized values of a format unsigned."""
    return int(2 ** (format_.bits - 1)) if format_.signed else 0


def _codes(cell: QuantizedCell) -> tuple[str, ...]:
    """The quantizers of the values that weights multiply."""
    return ("input", "hidden", RESET) if cell.resets_state else ("input", "hidden")


def _format(cell: QuantizedCell, quantizer: str) -> Format | None:
    """The format of a quantizer; None for one that returns values unchanged."""
    if cell.input_forget and quantizer.startswith(f"{GATES[FORGET]}."):
        return None
    name = point_of(cell, quantizer)
    point, held = cell.point(name), cell.point(name).static
    code, index = quantizer in _codes(cell), name == "cell_state" or name.endswith(".acc")
    if point.is_float:
        if not (code or index):
            return None
        raise NotHandled(
            f"{name} stays float in this recipe.",
            f"{name}.bits = none",
            "give it bits and a scale, or use --form qcdq",
        )
    widest = WIDEST_CODES if code else INDEX_BITS if index else WIDEST_OTHER
    if held is None or not 2 <= held.bits <= widest:
        raise NotHandled(
            f"{name} has a format without integer form.",
            f"{name}: {point.bits} bits, {point.mode}",
            f"static scales and 2 to {widest} bits have one; use --form qcdq",
        )
    return held
