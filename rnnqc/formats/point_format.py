"""The outcome of recipe and statistics at one quantization point of a cell: a format and how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.rounding import Rounding

STATIC, ROWS, CHAINED, EMBEDDED = "static", "dynamic-row", "codes", "row-codes"
"""Modes: constant scales; one scale for each row, computed at run time; quantized values of the layer before; quantized
rows of an embedding, with the scales that they are stored with.
"""
WIDE_BITS = 8
"""Width in which weights in groups, and those with wide channels, are stored."""


@dataclass(frozen=True)
class PointFormat:
    """The format of one quantization point. `as_dict` is its form in files.

    Attributes:
        bits: The width that the recipe requests; None: the point stays float.
        format: How values become integers: a `Format`, or an `IntegerFormat` where the scale is computed for each row
            (mode "dynamic-row"), comes with each row (mode "row-codes") or is stored in other constants of a file.
            None: the point stays float, or `bits` is the width of something that has no scale of its own (an
            accumulator, a table's argument).
        mode: One of `STATIC`, `ROWS`, `CHAINED` and `EMBEDDED`; None without a format.
        table: Activations: the kind of table.
        bound: Hidden states: the largest magnitude that activations allow, where the scale follows from it.
        chain: Input: whether the cell may read the quantized values of the layer before; None elsewhere.
        rounded_output: Hidden states: whether Y and Y_h are rounded to this format.
        on_grid: Input: whether its values have this format already.
        group_size: Weights: rows that share a multiplier; 0 for none.
        codebook: Weights in groups: name of the codebook (`rnnqc.formats.codebooks`); None for evenly spaced values.
        wide_channels: Weights: share of the output channels that have `WIDE_BITS` bits.
        compensation: Weights: whether rounding errors are compensated on calibration data.
        bias_correction: Weights: whether the bias corrects the mean effect of rounding errors.
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
        """Makes the format of a point: static if `format_` has a scale, else with one scale for each row."""
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
        """The format with its scale; None where the point has no constant scale."""
        return self.format if isinstance(self.format, Format) else None

    @property
    def complete(self) -> Format:
        """The format with its scale, for a point that has one."""
        assert isinstance(self.format, Format), f"{self} has no scale"
        return self.format

    @property
    def integers(self) -> IntegerFormat:
        """The integers of the format, for a quantized point."""
        assert self.format is not None, f"{self} has no format"
        return self.format

    @property
    def scale(self) -> tuple[float, ...]:
        """The constant scales; empty if there are none."""
        return self.format.scale if isinstance(self.format, Format) else ()

    def with_rounding(self, rounding: Rounding) -> PointFormat:
        """Returns a copy with another rounding."""
        return replace(self, format=replace(self.integers, rounding=rounding))

    def with_one_scale(self) -> PointFormat:
        """Returns a copy with one scale if all channels have equal scales, so that equivalent formats compare equal."""
        held = self.static
        if held is None or len(set(held.scale)) != 1 or held.zero_points:
            return self
        return replace(self, format=replace(held, scale=held.scale[:1], axis=None))

    def without_channel_scales(self, *, zero_points: bool = True) -> PointFormat:
        """Drops per-channel scales, which integer forms have in multipliers, and optionally per-channel zero points."""
        held = self.static
        if held is None or len(held.scale) < 2:
            return self
        values = {f.name: getattr(held, f.name) for f in fields(IntegerFormat)}
        return replace(self, format=IntegerFormat(**(values if zero_points else {**values, "zero_points": ()})))

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values; defaults are left out."""
        made: dict[str, Any] = {"bits": self.bits}
        if self.format is not None:
            made |= {
                "signed": self.format.signed,
                "narrow": self.format.narrow,
                **({} if self.format.zero_points else {"zero_point": self.format.zero_point}),
                "rounding": self.format.rounding.value,
                "mode": self.mode,
            }
            made |= {"axis": self.format.axis} if self.mode not in (ROWS, EMBEDDED) else {}
            made |= {"scale": list(self.scale)} if self.scale else {}
            made |= {"zero_points": list(self.format.zero_points)} if self.format.zero_points else {}
        made |= {k: getattr(self, k) for k in ("table", "bound", "chain") if getattr(self, k) is not None}
        made |= {k: getattr(self, k) for k in _OPTIONS if getattr(self, k)}
        if self.bits is None and len(made) > 1:  # a point of a cell whose other points have the formats
            del made["bits"]
        return made

    def described(self) -> dict[str, Any]:
        """Returns `as_dict` with the lowest and the highest quantized value: enough to quantize a value."""
        limits = {} if self.format is None else {"minimum": self.format.minimum, "maximum": self.format.maximum}
        return {**self.as_dict(), **limits}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PointFormat:
        """Parses the result of `as_dict`.

        Raises:
            FormatError: The values are not a valid format.
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
