"""The scalars of the lut arithmetic, and the attributes of a fused node."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rnnqc.cells.base import Cell
from rnnqc.cells.operator_version import ROW_CODES, version_of

STATE_LIMIT = 2.0**60
"""The largest magnitude of a state: every intermediate value stays finite."""
_CELL_STATE_ONLY = ("cell_scale", "cell_max", "cell_index_scale")
_RESET_ONLY = ("reset_scale", "reset_zero_point")
_BODY_ONLY = ("gate_table_size", "cell_table_size", "zero_point_rows", "h_is_data")


@dataclass(frozen=True)
class LutNumbers:
    """The scalars of the integer form of one cell; JSON-ready.

    Attributes:
        x_mode: "dynamic_row", "static", "codes" or "row_codes".
        x_scale: Scale of a static input.
        x_zero_point: Zero point of the input's quantized values, as the matmul reads them.
        h_mode: "static" or "dynamic_row".
        h_scale: Scale of static quantized hidden states.
        h_zero_point: Zero point of the quantized hidden states.
        cell_scale: Scale of the quantized cell state; 0 for a float cell state.
        cell_max: Largest quantized cell state.
        cell_index_scale: Float cell state: quantized values of the output table per unit.
        gate_kinds: How each gate is evaluated.
        gate_min: Lower limit of each gate's pre-activation.
        gate_max: Upper limit.
        gate_table_offset: Entry at which each gate's table starts.
        gate_table_size: Size of the gates' tables if all gates are look-ups in tables of one size, else 0.
        gate_index_scale: Kind "relu_table": steps per unit.
        gate_index_size: Kind "relu_table": number of quantized values.
        cell_table_size: Entries of the output table, or 0.
        zero_point_rows: Mode "dynamic_row": rows that the function body appends to W for the rows' zero points; else 0.
        w_group_size: Rows of W that share a multiplier, if it is packed in groups; else 0.
        r_group_size: The same for R.
        w_bits: Width of the numbers of a packed W, 4 to 6.
        r_bits: The same for R.
        w_codebook: 1 if the groups of a packed W have codebooks; else 0.
        r_codebook: The same for R.
        w_wide_columns: Number of columns with 8 bits in a W that is packed in groups.
        r_wide_columns: The same for R.
        x_bits: Width of the input's quantized values, 8 or 16.
        h_bits: Width of the quantized hidden states, 8 or 16.
        reset_scale: Where a gate multiplies the hidden state before R: scale of static quantized values of `r * h`.
        reset_zero_point: Their zero point.
        h_bound: Largest magnitude of computed hidden states that static quantized values hold, in a cell with an
            initial state, which may be larger; 0 if unknown.
        h_is_data: Whether no tool can take the initial hidden state for a constant.
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
    w_bits: int = 4
    r_bits: int = 4
    w_codebook: int = 0
    r_codebook: int = 0
    w_wide_columns: int = 0
    r_wide_columns: int = 0
    x_bits: int = 8
    h_bits: int = 8
    reset_scale: float = 0.0
    reset_zero_point: int = 128
    h_bound: float = 0.0
    h_is_data: bool = True

    @property
    def takes_row_codes(self) -> bool:
        """Whether the input is int8 rows of an embedding, with a scale each."""
        return self.x_mode == ROW_CODES

    @property
    def cell_is_wide(self) -> bool:
        """Whether the limit of a quantized cell state cannot be reached."""
        return self.cell_max >= STATE_LIMIT

    def attributes(self, cell: Cell) -> dict[str, Any]:
        """Returns the attributes of the fused node, including defaults."""
        gates = [cell.gate_activation(k) for k in range(len(cell.type.gates))]
        left_out = {*_BODY_ONLY, *(() if cell.type.cell_state else _CELL_STATE_ONLY), *_RESET_ONLY}
        numbers = {k: v for k, v in asdict(self).items() if k not in left_out}
        common = {
            "hidden_size": cell.hidden_size,
            "direction": "reverse" if cell.reverse else "forward",
            **numbers,
            **version_of(self),
            "gate_kinds": ",".join(self.gate_kinds),  # custom operators of onnxruntime cannot read lists of strings
            "gate_alpha": [float(a.alpha) for a in gates],
            "gate_beta": [float(a.beta) for a in gates],
        }
        output = cell.output_activation
        if output is not None:
            names = {"output_kind": output.kind, "output_alpha": float(output.alpha), "output_beta": float(output.beta)}
            return {**common, **names, **cell.flags, "one": 1.0}
        reset = {k: getattr(self, k) for k in _RESET_ONLY} if cell.resets_state else {}
        return {**common, **cell.flags, **reset}
