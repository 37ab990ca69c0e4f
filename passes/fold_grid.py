"""The numbers of a cell in the arithmetic "grid", where every point of the cell has a static format (no graph here).

With `s_p` the real value of one code of point p:

    x_multiplier = s_W * s_x      h_multiplier = s_R * s_h      (real values of one unit of the sums of products)

Tables hold real values for all codes of a pre-activation or of the cell state. Codes of the input and of the hidden
state, and weights, are stored with the offset that makes the former unsigned and the latter signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, GATES, INPUT, PEEPHOLE_GATES, PRODUCT_POINTS, Cell
from rnnqc.cells.types import LSTM
from rnnqc.encoding import Encoding
from rnnqc.passes.fold_cell import FloatArray
from rnnqc.passes.grid_numbers import QUANTIZERS, Grid, GridNumbers
from rnnqc.passes.grid_tables import GridTable, grid_table, on_activation_grid, place
from rnnqc.passes.lstm_node import NotHandled
from rnnqc.passes.quantization import INDEX_BITS, encoding_of, stored_multiplier
from rnnqc.vitis_tables import VITIS

WIDEST = {"input": 16, "hidden": 16, "cell_state": INDEX_BITS} | {f"{g}.acc": INDEX_BITS for g in GATES}
WIDEST_OTHER = 32
WIDEST_WEIGHT = 16
_SUMMANDS = ("cell_state.kept", "cell_state.added")


@dataclass(frozen=True)
class FoldedGrid:
    """The integer form of one cell.

    Attributes:
        numbers: Its scalars.
        W: Codes `[I,4H]`, int8 or int16.
        R: Codes `[H,4H]`, int8 or int16.
        W_zero_point: int32 `[4H]`, or None for zeros.
        R_zero_point: int32 `[4H]`, or None for zeros.
        x_multiplier: `[4H]`.
        h_multiplier: `[4H]`.
        B: `[4H]`.
        P: `[3H]` or None.
        gate_tables: The distinct tables of the gates, in the order they stand in `gate_table`.
        cell_table: The table of the output activation.
    """

    numbers: GridNumbers
    W: npt.NDArray[np.signedinteger[Any]]
    R: npt.NDArray[np.signedinteger[Any]]
    W_zero_point: npt.NDArray[np.int32] | None
    R_zero_point: npt.NDArray[np.int32] | None
    x_multiplier: FloatArray
    h_multiplier: FloatArray
    B: FloatArray
    P: FloatArray | None
    gate_tables: tuple[GridTable, ...]
    cell_table: GridTable


def needs_grid(cell: Cell) -> bool:
    """Whether a format of the cell is one that only the arithmetic "grid" has; LSTM alone has that arithmetic."""
    if cell.type is not LSTM:
        return False
    points = cell.points
    present = [p for p in (*PRODUCT_POINTS, *_SUMMANDS, "accumulator") if points.get(p, {}).get("bits") is not None]
    activations = [points[f"{n}.activation"] for n in (*GATES, "hidden")]
    accs = [points[f"{g}.acc"] for g in GATES]
    weights = [points[f"{n}.weight"] for n in ("W", "R")]
    return bool(
        present
        or points["hidden"].get("rounded_output")
        or any("scale" in a or a.get("table") == VITIS for a in activations)
        or any(a["bits"] is not None and (a["zero_point"] or not a["signed"]) for a in accs)
        or any(_is_asymmetric(w) for w in weights)
        or _is_asymmetric(points["cell_state"])
    )


def _is_asymmetric(point: Mapping[str, Any]) -> bool:
    if point["bits"] is None:
        return False
    return bool(point["zero_point"] or any(point.get("zero_points", ())) or not point["signed"])


def fold_grid(cell: Cell, w: npt.NDArray[Any], r: npt.NDArray[Any], b: FloatArray, p: FloatArray | None) -> FoldedGrid:
    """Folds the scales of a quantized cell.

    Args:
        cell: With its points resolved.
        w: Codes of W `[I,4H]`, in the format of its point.
        r: Codes of R `[H,4H]`.
        b: Bias `[4H]`.
        p: Peephole weights `[3H]`, or None.

    Raises:
        NotHandled: A point that has to lie on a grid does not, or has a format that this arithmetic does not know.
    """
    encodings = {name: _encoding(cell, name) for name in QUANTIZERS}
    weights = {name: _weight(cell, name, codes) for name, codes in (("W", w), ("R", r))}
    grids = {
        n: Grid() if e is None else Grid.of(e, _raise(e) if n in ("input", "hidden") else 0)
        for n, e in encodings.items()
    }
    if cell.input_forget:
        for kind in ("input_product", "hidden_product", "acc"):
            grids[f"{GATES[FORGET]}.{kind}"] = grids[f"{GATES[INPUT]}.{kind}"]
    tables: list[GridTable] = []
    offsets: list[int] = []
    for k, gate in enumerate(GATES):
        source = GATES[INPUT] if cell.input_forget and k == FORGET else gate
        table = grid_table(cell, source, cell.gate_activation(k), grids[f"{gate}.acc"])
        offsets.append(place(tables, table))
    accumulator = cell.points["accumulator"]["bits"]
    one = on_activation_grid(cell.points[f"{GATES[INPUT]}.activation"], np.ones(1, np.float32))
    numbers = GridNumbers.of(
        "codes" if cell.points["input"]["mode"] == "codes" else "static",
        [grids[n] for n in QUANTIZERS],
        gate_table_offset=offsets,
        one=float(one[0]),
        accumulator_bits=0 if accumulator is None else int(accumulator),
        rounded_output=bool(cell.points["hidden"].get("rounded_output", False)),
    )
    return FoldedGrid(
        numbers=numbers,
        W=weights["W"].codes,
        R=weights["R"].codes,
        W_zero_point=weights["W"].zero_point,
        R_zero_point=weights["R"].zero_point,
        x_multiplier=stored_multiplier(weights["W"].scale * grids["input"].scale),
        h_multiplier=stored_multiplier(weights["R"].scale * grids["hidden"].scale),
        B=b.astype(np.float32),
        P=None if p is None else p[: len(PEEPHOLE_GATES) * cell.hidden_size].astype(np.float32),
        gate_tables=tuple(tables),
        cell_table=grid_table(cell, "hidden", cell.activations[2], grids["cell_state"]),
    )


@dataclass(frozen=True)
class _Weight:
    codes: npt.NDArray[np.signedinteger[Any]]
    zero_point: npt.NDArray[np.int32] | None
    scale: npt.NDArray[np.float64]


def _weight(cell: Cell, name: str, codes: npt.NDArray[Any]) -> _Weight:
    point = cell.points[f"{name}.weight"]
    if point["bits"] is None or point["bits"] > WIDEST_WEIGHT:
        raise NotHandled(
            f"{name} stays float in this recipe." if point["bits"] is None else f"{name} has {point['bits']} bits.",
            f"{name}.weight.bits = {'none' if point['bits'] is None else point['bits']}",
            f"weights of up to {WIDEST_WEIGHT} bits have an integer form; use --form qcdq",
        )
    encoding = encoding_of(point)
    columns = 4 * cell.hidden_size
    shift = 0 if encoding.signed else 2 ** (encoding.bits - 1)
    zero_point = np.broadcast_to(np.asarray(encoding.zero_points or encoding.zero_point) - shift, (columns,)).astype(
        np.int32
    )
    return _Weight(
        (codes.astype(np.int32) - shift).astype(np.int8 if encoding.bits <= 8 else np.int16),
        zero_point if zero_point.any() else None,
        np.broadcast_to(np.asarray(encoding.scale, np.float64), (columns,)),
    )


def _raise(encoding: Encoding) -> int:
    """What makes the codes of a format unsigned."""
    return int(2 ** (encoding.bits - 1)) if encoding.signed else 0


def _encoding(cell: Cell, name: str) -> Encoding | None:
    """The format of a point; None for one that passes values on."""
    if cell.input_forget and name.startswith(f"{GATES[FORGET]}."):
        return None
    point = cell.points.get(name, {"bits": None})
    needed = name in WIDEST
    if point["bits"] is None:
        if not needed:
            return None
        raise NotHandled(
            f"{name} stays float in this recipe.",
            f"{name}.bits = none",
            "give it bits and a scale, or use --form qcdq",
        )
    widest = WIDEST.get(name, WIDEST_OTHER)
    if point["mode"] == "dynamic-row" or not 2 <= point["bits"] <= widest:
        raise NotHandled(
            f"{name} has a format without integer form.",
            f"{name}: {point['bits']} bits, {point['mode']}",
            f"static scales and 2 to {widest} bits have one; use --form qcdq",
        )
    return encoding_of(point)
