"""What a recipe and statistics come to at one quantization point of a cell: a format and how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.rounding import Rounding

STATIC, ROWS, CHAINED = "static", "dynamic-row", "codes"
"""Modes: constant scales; one scale for each row, from the data of a run; quantized values of the layer before."""
WIDE_BITS = 8
"""Bits that weights in groups, and those with wide channels, are stored in."""


@dataclass(frozen=True)
class PointFormat:
    """The format of one quantization point. `as_dict` is what files say of it.

    Attributes:
        bits: The width that the recipe asks for; None: the point stays float.
        format: How values become integers: a `Format`, or an `IntegerFormat` where the scale follows from each row of
            the data (mode "dynamic-row") or a file has it in other constants. None: the point stays float, or `bits` is
            the width of something that has no scale of its own (an accumulator, a table's argument).
        mode: One of `STATIC`, `ROWS` and `CHAINED`; None without a format.
        table: Activations: the kind of table.
        bound: Hidden states: the largest magnitude that activations allow, where the scale follows from it.
        chain: Input: whether the cell may take the quantized values of the layer before; None elsewhere.
        rounded_output: Hidden states: whether Y and Y_h are rounded to this format.
        on_grid: Input: whether its values have this format already.
        group_size: Weights: rows that share a multiplier; 0 for none.
        codebook: Weights in groups: which values there are, by name (`rnnqc.formats.codebooks`); None for even ones.
        wide_channels: Weights: share of the output channels that have `WIDE_BITS` bits.
        compensation: Weights: whether their errors cancel on the data of a calibration.
        bias_correction: Weights: whether the bias makes up for the mean of their errors.
        shift_limits: Weights: whether fix positions are lowered until hardware can shift between them.
    """

    bits: int | None = None
    format: IntegerFormat | None = None
    mode: str | None = None
    table: str | None = None
    bound: float | None = None
    chain: bool | None = None
    rounded_output: bool = False
    on_grid: bool = False
    group_size: int = 0
    codebook: str | None = None
    wide_channels: float = 0.0
    compensation: bool = False
    bias_correction: bool = False
    shift_limits: bool = False

    @classmethod
    def of(cls, format_: IntegerFormat, **options: Any) -> PointFormat:
        """The format of a point: static with a scale, else with one for each row."""
        return cls(format_.bits, format_, STATIC if isinstance(format_, Format) else ROWS, **options)

    @property
    def is_float(self) -> bool:
        """Whether values stay as they are."""
        return self.bits is None

    @property
    def is_quantized(self) -> bool:
        """Whether values are rounded to a format; a table alone has none."""
        return self.bits is not None and self.format is not None

    @property
    def static(self) -> Format | None:
        """The format with its scale; None where the point has none, or none that is a constant."""
        return self.format if isinstance(self.format, Format) else None

    @property
    def complete(self) -> Format:
        """The format with its scale, of a point that has one."""
        assert isinstance(self.format, Format), f"{self} has no scale"
        return self.format

    @property
    def integers(self) -> IntegerFormat:
        """The format, whatever its scale, of a point that is quantized."""
        assert self.format is not None, f"{self} has no format"
        return self.format

    @property
    def scale(self) -> tuple[float, ...]:
        """The scales; empty without any that is a constant."""
        return self.format.scale if isinstance(self.format, Format) else ()

    def with_rounding(self, rounding: Rounding) -> PointFormat:
        """The same with another rounding."""
        return replace(self, format=replace(self.integers, rounding=rounding))

    def with_one_scale(self) -> PointFormat:
        """The same with equal scales of all channels as one: formats that quantize alike are equal so."""
        held = self.static
        if held is None or len(set(held.scale)) != 1 or held.zero_points:
            return self
        return replace(self, format=replace(held, scale=held.scale[:1], axis=None))

    def without_channel_scales(self, *, zero_points: bool = True) -> PointFormat:
        """Without scales for each channel, which integer forms have in their multipliers; and without zero points."""
        held = self.static
        if held is None or len(held.scale) < 2:
            return self
        values = {f.name: getattr(held, f.name) for f in fields(IntegerFormat)}
        return replace(self, format=IntegerFormat(**(values if zero_points else {**values, "zero_points": ()})))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values; those at their defaults are left out."""
        made: dict[str, Any] = {"bits": self.bits}
        if self.format is not None:
            made |= {
                "signed": self.format.signed,
                "narrow": self.format.narrow,
                **({} if self.format.zero_points else {"zero_point": self.format.zero_point}),
                "rounding": self.format.rounding.value,
                "mode": self.mode,
            }
            made |= {"axis": self.format.axis} if self.mode != ROWS else {}
            made |= {"scale": list(self.scale)} if self.scale else {}
            made |= {"zero_points": list(self.format.zero_points)} if self.format.zero_points else {}
        made |= {k: getattr(self, k) for k in ("table", "bound", "chain") if getattr(self, k) is not None}
        made |= {k: getattr(self, k) for k in _OPTIONS if getattr(self, k)}
        if self.bits is None and len(made) > 1:  # said of a cell whose points have formats of another kind
            del made["bits"]
        return made

    def described(self) -> dict[str, Any]:
        """As `as_dict`, with the lowest and the highest quantized value: all that it takes to quantize a value."""
        limits = {} if self.format is None else {"minimum": self.format.minimum, "maximum": self.format.maximum}
        return {**self.as_dict(), **limits}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PointFormat:
        """The inverse of `as_dict`.

        Raises:
            FormatError: The values make no format.
        """
        options = {k: data[k] for k in ("table", "bound", "chain", *_OPTIONS) if k in data}
        bits = data.get("bits")
        if bits is None or "mode" not in data:
            return cls(bits, **options)
        wide = data.get("group_size") or data.get("wide_channels")
        made: dict[str, Any] = {
            "bits": WIDE_BITS if wide else bits,
            "signed": data["signed"],
            "zero_point": data.get("zero_point", 0),
            "narrow": data.get("narrow", False),
            "rounding": Rounding(data.get("rounding", Rounding.HALF_EVEN.value)),
            "axis": data.get("axis"),
            "zero_points": tuple(data.get("zero_points", ())),
        }
        scale = tuple(data.get("scale", ()))
        format_ = Format(scale=scale, **made) if scale else IntegerFormat(**made)
        return cls(bits, format_, data["mode"], **options)


_OPTIONS = (
    *("rounded_output", "on_grid", "group_size", "codebook", "wide_channels"),
    *("compensation", "bias_correction", "shift_limits"),
)
FLOAT = PointFormat()
"""A point that stays float."""
