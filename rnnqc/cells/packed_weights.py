"""The attributes of a fused node that describe packed W and R (docs/quant_lstm_cell.md, *Packed weights*)."""

from __future__ import annotations

from typing import Any, Protocol

from rnnqc.formats.packing import NIBBLE_BITS

PACKED_WIDTHS: dict[str, Any] = {"w_bits": NIBBLE_BITS, "r_bits": NIBBLE_BITS}
CODEBOOKS: dict[str, Any] = {"w_codebook": 0, "r_codebook": 0}
WIDE_COLUMNS: dict[str, Any] = {"w_wide_columns": 0, "r_wide_columns": 0}
PACKED_DEFAULTS: dict[str, Any] = {"w_group_size": 0, "r_group_size": 0, **PACKED_WIDTHS, **CODEBOOKS, **WIDE_COLUMNS}
"""Attributes that are omitted at their defaults, so that a library that does not know them runs files without them."""


class PackedNumbers(Protocol):
    """The scalars of a cell in any arithmetic."""

    @property
    def w_group_size(self) -> int:
        """Rows of W that share a multiplier, if it is packed in groups; else 0."""

    @property
    def r_group_size(self) -> int:
        """The same for R."""

    @property
    def w_bits(self) -> int:
        """Width of the numbers of a packed W."""

    @property
    def r_bits(self) -> int:
        """The same for R."""

    @property
    def w_codebook(self) -> int:
        """1 if the groups of a packed W have codebooks (`rnnqc.formats.codebooks`); else 0."""

    @property
    def r_codebook(self) -> int:
        """The same for R."""

    @property
    def w_wide_columns(self) -> int:
        """Number of columns with 8 bits in a W that is packed in groups."""

    @property
    def r_wide_columns(self) -> int:
        """The same for R."""
