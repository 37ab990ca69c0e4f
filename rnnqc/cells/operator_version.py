"""The version of the operator that a fused node needs (docs/quant_lstm_cell.md, attribute `operator_version`)."""

from __future__ import annotations

from typing import Protocol

from rnnqc.cells.packed_weights import PackedNumbers
from rnnqc.formats.packing import NIBBLE_BITS

VERSION = "operator_version"
FEW_BITS_VERSION = 2
"""Version of the operators from which packed weights may have 5 and 6 bits."""
CODEBOOK_VERSION = 3
"""Version of the operators from which groups of packed weights may have codebooks."""
WIDE_VERSION = 4
"""Version of the operators from which packed weights in groups may have columns of 8 bits."""
ROW_CODES_VERSION = 5
"""Version of the operators from which cells may read the int8 rows of an embedding with their scales."""
PARTS_VERSION = 6
"""Version of the operators from which cells may read their input in parts, or multiply it by factors."""
ROW_CODES = "row_codes"
"""The `x_mode` of such cells."""


class VersionedNumbers(PackedNumbers, Protocol):
    """The scalars of a cell in any arithmetic."""

    @property
    def x_mode(self) -> str:
        """How the input becomes integers."""


def version_of(numbers: VersionedNumbers) -> dict[str, int]:
    """Returns the attribute that makes older libraries refuse what they cannot compute; empty if they can."""
    if numbers.x_mode == ROW_CODES:
        return {VERSION: ROW_CODES_VERSION}
    if numbers.w_wide_columns or numbers.r_wide_columns:
        return {VERSION: WIDE_VERSION}
    if numbers.w_codebook or numbers.r_codebook:
        return {VERSION: CODEBOOK_VERSION}
    return {} if numbers.w_bits == numbers.r_bits == NIBBLE_BITS else {VERSION: FEW_BITS_VERSION}
