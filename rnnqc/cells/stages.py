"""The stages of a cell, one type for each: formats, integer operands, the fused node.

    Cell -> QuantizedCell -> IntegerCell -> FusedCell
                          -> QonnxCell

Each stage has all fields of the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

from rnnqc.cells.base import PARAMETERS, Cell
from rnnqc.cells.fixed_point_numbers import FixedPointNumbers
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.formats.point_format import FLOAT, PointFormat

T = TypeVar("T")
Q = TypeVar("Q", bound="QuantizedCell")
N = TypeVar("N", bound="IntegerCell")
Numbers = LutNumbers | FixedPointNumbers
"""The scalars of an integer cell; their type tells the arithmetic."""
Points = Mapping[str, PointFormat]
"""The format of each quantization point."""


@dataclass(frozen=True)
class QuantizedCell(Cell):
    """A cell whose quantization points have formats; its graph is float with quantizers.

    W and R are initializers of quantized values, where they have a format.

    Attributes:
        points: The formats.
    """

    form: ClassVar[str] = "qcdq"

    points: Points = field(kw_only=True)

    @classmethod
    def of(cls, cell: Cell, points: Points) -> QuantizedCell:
        """Returns the cell with formats."""
        return QuantizedCell(**_fields(cell, Cell), points=points)

    @property
    def rounds_output(self) -> bool:
        """Whether hidden states are rounded when they are computed, not when they are read."""
        return self.type.cell_state and self.point("hidden").rounded_output

    @property
    def is_float(self) -> bool:
        """Whether nothing is quantized."""
        return all(p.is_float for p in self.points.values())

    def point(self, name: str) -> PointFormat:
        """Returns the format of a quantization point; float if none is known."""
        return self.points.get(name, FLOAT)

    def with_point(self: Q, name: str, point: PointFormat) -> Q:
        """Returns the cell with another format at one point."""
        return replace(self, points={**self.points, name: point})


@dataclass(frozen=True)
class QonnxCell(QuantizedCell):
    """A quantized cell that is one `QuantLSTMCell` node of Brevitas."""

    form: ClassVar[str] = "qonnx"

    @classmethod
    def of_quantized(cls, cell: QuantizedCell) -> QonnxCell:
        """Returns the cell after its nodes were replaced by one of Brevitas."""
        return QonnxCell(**_fields(cell, QuantizedCell))


@dataclass(frozen=True)
class Operands(Generic[T]):
    """The constants of an integer cell by input of its fused operator: values of a graph, or their names.

    None stands for inputs that the cell does not have. Without multipliers of groups W and R may be packed (uint8,
    rnnqc/formats/packing.py), with multipliers they always are. Only fixed-point arithmetic has int16 weights and zero
    points of weights.
    """

    W: T
    R: T
    x_multiplier: T
    h_multiplier: T
    B: T
    gate_table: T | None = None
    cell_table: T | None = None
    P: T | None = None
    hidden_bias: T | None = None
    W_group_multiplier: T | None = None
    R_group_multiplier: T | None = None
    W_zero_point: T | None = None
    R_zero_point: T | None = None

    def as_dict(self) -> dict[str, T]:
        """Returns the operands that the cell has."""
        return {k: v for k, v in vars(self).items() if v is not None}


OperandNames = Operands[str]


@dataclass(frozen=True)
class IntegerCell(QuantizedCell):
    """A cell in integer arithmetic.

    Attributes:
        numbers: Its scalars.
        operands: Its constants.
        y_codes: Output value `[T,B,H]` of quantized hidden states, or None.
        x_scale: The scales `[T,B,1]` of an input of int8 rows of an embedding, or None.
    """

    form: ClassVar[str] = "integer"

    numbers: Numbers = field(kw_only=True)
    operands: OperandNames = field(kw_only=True)
    y_codes: str | None = field(kw_only=True)
    x_scale: str | None = field(default=None, kw_only=True)

    @classmethod
    def of_quantized(
        cls,
        cell: QuantizedCell,
        numbers: Numbers,
        operands: OperandNames,
        y_codes: str | None,
        x_scale: str | None = None,
    ) -> IntegerCell:
        """Returns the cell in integer arithmetic; its parameters are the operands of the same names."""
        held = _fields(cell, QuantizedCell) | {key: getattr(operands, key) for key in PARAMETERS}
        return IntegerCell(**held, numbers=numbers, operands=operands, y_codes=y_codes, x_scale=x_scale)

    @property
    def outputs(self) -> list[str]:
        """Names of the existing output values, quantized ones included."""
        return [*super().outputs, *([self.y_codes] if self.y_codes is not None else [])]

    def with_packed(
        self: N, key: str, codes: str, bits: int, multiplier: str | None, group_size: int, codebook: int, wide: int
    ) -> N:
        """Returns the cell with W or R (`key`) packed.

        Args:
            key: Which one.
            codes: Name of the packed quantized values.
            bits: Their width.
            multiplier: Name of the multipliers of groups, or None.
            group_size: Rows of a group, or 0.
            codebook: 1 if groups have codebooks, else 0.
            wide: Number of columns with 8 bits.
        """
        packing = {"group_size": group_size, "bits": bits, "codebook": codebook, "wide_columns": wide}
        named: dict[str, Any] = {f"{key.lower()}_{name}": value for name, value in packing.items()}
        own: dict[str, Any] = {key: codes}
        groups: dict[str, Any] = {f"{key}_group_multiplier": multiplier}
        operands = replace(self.operands, **own, **groups)
        return replace(self, **own, operands=operands, numbers=replace(self.numbers, **named))

    def without_dead_outputs(self: N, alive: Collection[str]) -> N:
        """Returns the cell without outputs that no node produces; `alive` are the values that nodes produce."""
        made = super().without_dead_outputs(alive)
        return made if made.y_codes in alive else replace(made, y_codes=None)

    def renamed(self: N, old: str, new: str) -> N:
        """Returns the cell after a value or initializer that it names was renamed."""
        made = super().renamed(old, new)
        known: dict[str, Any] = {k: new for k, v in made.operands.as_dict().items() if v == old}
        if known:
            made = replace(made, operands=replace(made.operands, **known))
        own: dict[str, Any] = {k: new for k in ("y_codes", "x_scale") if getattr(made, k) == old}
        return replace(made, **own) if own else made


@dataclass(frozen=True)
class FusedCell(IntegerCell):
    """An integer cell that is one fused node, backed by a function.

    Attributes:
        more_x: The further parts of the input, which follow `x` along the last axis.
    """

    form: ClassVar[str] = "fused"

    more_x: tuple[str, ...] = field(default=(), kw_only=True)

    @classmethod
    def of_integer(cls, cell: IntegerCell, more_x: tuple[str, ...] = ()) -> FusedCell:
        """Returns the cell after its nodes were fused into one."""
        return FusedCell(**_fields(cell, IntegerCell), more_x=more_x)

    def renamed(self, old: str, new: str) -> FusedCell:
        """Returns the cell after a value or initializer that it names was renamed."""
        made = super().renamed(old, new)
        return replace(made, more_x=tuple(new if n == old else n for n in made.more_x))


def points_of(cell: Cell) -> Points:
    """Returns the formats of a cell; empty for a float cell."""
    return cell.points if isinstance(cell, QuantizedCell) else {}


def _fields(cell: Cell, stage: type[Cell]) -> dict[str, Any]:
    """Returns the fields of a stage."""
    return {f.name: getattr(cell, f.name) for f in fields(stage)}
