"""The scalars of fixed-point arithmetic: a list of quantizers, and the attributes of a fused node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.operator_version import version_of
from rnnqc.cells.types import LSTM, CellType
from rnnqc.formats.format import Format
from rnnqc.formats.rounding import Rounding

FIXED_POINT = "grid"
FIXED_POINT32 = "grid32"
EXACT_BITS = 31
BYTE = 255

GATE_KINDS = ("input_product", "hidden_product", "acc")
RESET = "reset"
"""The quantizer at `RESET_PRODUCT` or `RESET_HIDDEN`, whichever a cell with a candidate has."""


def quantizers_of(type_: CellType) -> tuple[str, ...]:
    """Returns the quantizers in the order of the attributes `grid_*`: names of quantization points, and `RESET`."""
    of_gates = (f"{g}.{kind}" for kind in GATE_KINDS for g in type_.gates)
    reset = () if type_.candidate is None else (RESET,)
    return ("input", "hidden", *of_gates, *reset, *type_.state_points)


def point_of(cell: Cell, quantizer: str) -> str:
    """Returns the quantization point of a quantizer."""
    if quantizer != RESET:
        return quantizer
    return RESET_PRODUCT if cell.linear_before_reset else RESET_HIDDEN


QUANTIZERS = quantizers_of(LSTM)


@dataclass(frozen=True)
class FixedPointQuantizer:
    """One quantizer: `scale * (clip(round(v / scale + offset) - offset + zero_point, minimum, maximum) - zero_point)`.

    Attributes:
        scale: Real value of 1 LSB, a float32 number; 0 for a quantizer that passes values on unchanged.
        zero_point: Quantized 0.
        minimum: Lowest quantized value.
        maximum: Highest quantized value.
        rounding: A value of `Rounding`.
        offset: Integer that is added before rounding.
    """

    scale: float = 0.0
    zero_point: int = 0
    minimum: int = 0
    maximum: int = 0
    rounding: str = Rounding.HALF_EVEN.value
    offset: int = 0

    @classmethod
    def of(cls, encoding: Format, shift: int = 0) -> FixedPointQuantizer:
        """Makes the quantizer of a format with one scale; `shift` is added to its quantized values."""
        return cls(
            float(encoding.scale[0]),
            encoding.zero_point + shift,
            encoding.minimum + shift,
            encoding.maximum + shift,
            encoding.rounding.value,
        )

    @property
    def low(self) -> int:
        """The least multiple of the scale."""
        return self.minimum - self.zero_point

    @property
    def high(self) -> int:
        """The largest multiple of the scale."""
        return self.maximum - self.zero_point

    @property
    def size(self) -> int:
        """Number of quantized values."""
        return self.maximum - self.minimum + 1


@dataclass(frozen=True)
class FixedPointNumbers:
    """The scalars of a cell in fixed-point arithmetic; JSON-ready.

    Attributes:
        x_mode: "static" or "codes".
        grid_scale: Scale of each quantizer of the type of cell (`quantizers_of`); 0 for those that pass values on.
        grid_zero_point: Zero point of each quantizer.
        grid_min: Lowest quantized value of each quantizer.
        grid_max: Highest quantized value of each quantizer.
        grid_rounding: Rounding of each quantizer.
        gate_table_offset: Entry at which each gate's table starts.
        one: The quantized 1 of `input_forget`.
        accumulator_bits: Width at which accumulators saturate; 0 for exact sums.
        rounded_output: Whether Y and Y_h are rounded to the hidden format.
        w_group_size: Rows of W that share a multiplier, if it is packed in groups; else 0.
        r_group_size: The same for R.
        w_bits: Width of the numbers of a packed W, 4 to 6.
        r_bits: The same for R.
        w_codebook: 1 if the groups of a packed W have codebooks; else 0.
        r_codebook: The same for R.
        w_wide_columns: Number of columns with 8 bits in a W that is packed in groups.
        r_wide_columns: The same for R.
        arithmetic: `FIXED_POINT`, or `FIXED_POINT32`: in float32, with the bias added to the sum of both matmuls.
        grid_offset: Offset of each quantizer.
    """

    x_mode: str
    grid_scale: list[float]
    grid_zero_point: list[int]
    grid_min: list[int]
    grid_max: list[int]
    grid_rounding: list[str]
    gate_table_offset: list[int]
    one: float = 1.0
    accumulator_bits: int = 0
    rounded_output: bool = False
    w_group_size: int = 0
    r_group_size: int = 0
    w_bits: int = 4
    r_bits: int = 4
    w_codebook: int = 0
    r_codebook: int = 0
    w_wide_columns: int = 0
    r_wide_columns: int = 0
    arithmetic: str = FIXED_POINT
    grid_offset: list[int] = field(kw_only=True)

    @classmethod
    def of(
        cls, x_mode: str, grids: Sequence[FixedPointQuantizer], gate_table_offset: list[int], **others: Any
    ) -> FixedPointNumbers:
        """Makes the numbers of a cell with quantizers `grids`, in the order of `quantizers_of`."""
        return cls(
            x_mode,
            [g.scale for g in grids],
            [g.zero_point for g in grids],
            [g.minimum for g in grids],
            [g.maximum for g in grids],
            [g.rounding for g in grids],
            gate_table_offset,
            grid_offset=[g.offset for g in grids],
            **others,
        )

    def quantizer(self, type_: CellType, name: str) -> FixedPointQuantizer:
        """Returns the quantizer with this name in a cell of a type."""
        return self._at(quantizers_of(type_).index(name))

    @property
    def input(self) -> FixedPointQuantizer:
        """The quantizer of the input."""
        return self._at(0)

    @property
    def hidden(self) -> FixedPointQuantizer:
        """The quantizer of the hidden state."""
        return self._at(1)

    def _at(self, k: int) -> FixedPointQuantizer:
        return FixedPointQuantizer(
            self.grid_scale[k],
            self.grid_zero_point[k],
            self.grid_min[k],
            self.grid_max[k],
            self.grid_rounding[k],
            self.grid_offset[k],
        )

    def gate_quantizers(self, type_: CellType, kind: str) -> dict[str, FixedPointQuantizer]:
        """Returns the quantizers `<gate>.<kind>` by gate."""
        return {g: self.quantizer(type_, f"{g}.{kind}") for g in type_.gates}

    @property
    def real(self) -> np.dtype[Any]:
        """The dtype of real values."""
        return np.dtype(np.float32 if self.arithmetic == FIXED_POINT32 else np.float64)

    @property
    def bias_last(self) -> bool:
        """Whether the bias is added to the sum of both matmuls, and not to the input's."""
        return self.arithmetic == FIXED_POINT32

    @property
    def x_bits(self) -> int:
        """Width of the input's quantized values."""
        return 8 if self.input.maximum <= BYTE else 16

    @property
    def h_bits(self) -> int:
        """Width of the quantized hidden states."""
        return 8 if self.hidden.maximum <= BYTE else 16

    def attributes(self, cell: Cell) -> dict[str, Any]:
        """Returns the attributes of the fused node, including defaults."""
        left_out = {"one", *(() if cell.type.cell_state else ("rounded_output",))}
        kept = {k: v for k, v in asdict(self).items() if k not in left_out}
        kept["grid_rounding"] = ",".join(self.grid_rounding)  # custom operators cannot read lists of strings
        if cell.clip is not None:
            gates = len(cell.type.gates)
            kept |= {"gate_min": [-cell.clip] * gates, "gate_max": [cell.clip] * gates}
        if cell.input_forget:
            kept |= {"input_forget": 1, "one": self.one}
        if cell.type.candidate is not None:
            kept |= cell.flags
        return {
            "hidden_size": cell.hidden_size,
            "direction": "reverse" if cell.reverse else "forward",
            **{k: int(v) if isinstance(v, bool) else v for k, v in kept.items()},
            **version_of(self),
        }


def is_exact_in_int32(codes: FixedPointQuantizer, largest_weight: int, depth: int) -> bool:
    """Whether a sum of `depth` products of 8-bit values with weights of this magnitude fits into int32."""
    largest = max(abs(codes.low), abs(codes.high), 1)
    return codes.maximum <= BYTE and largest * largest_weight * depth < 2**EXACT_BITS
