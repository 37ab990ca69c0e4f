"""Nodes of quantized linear layers: the names of their operators, inputs and attributes (docs/quant_linear.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from rnnqc.formats.packing import BYTE_BITS, NIBBLE_BITS

OPERATOR = "QuantLinear"
LINEAR_INPUTS = ("X", "W", "multiplier", "B", "W_group_multiplier")
DYNAMIC_ROW = "dynamic_row"
_SUFFIXES = {DYNAMIC_ROW: "", "static": "Static", "codes": "Codes"}
_VALUES = ("", "Uneven")
_ATTRIBUTES = {DYNAMIC_ROW: (), "static": ("x_scale", "x_zero_point"), "codes": ("x_zero_point",)}


@dataclass(frozen=True)
class LinearKind:
    """The properties that distinguish the operators. Each has a function of its own.

    Attributes:
        x_mode: As the node's attribute.
        bits: Bits of W: 8 for int8, or 4 to 6 for packed numbers with group multipliers.
        codebook: 1 if the groups of packed 4-bit numbers have codebooks; else 0.
    """

    x_mode: str = DYNAMIC_ROW
    bits: int = BYTE_BITS
    codebook: int = 0

    @property
    def packed(self) -> bool:
        """Whether W is packed."""
        return self.bits < BYTE_BITS

    @property
    def name(self) -> str:
        """The name of the operator."""
        return OPERATOR + _SUFFIXES[self.x_mode] + (f"Int{self.bits}" if self.packed else "") + _VALUES[self.codebook]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the node and of its function."""
        return LINEAR_INPUTS if self.packed else LINEAR_INPUTS[:-1]

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes of the function; its nodes have all of them."""
        groups = ("group_size",) if self.packed else ()
        return (*_ATTRIBUTES[self.x_mode], *groups, *self.packing)

    @property
    def packing(self) -> dict[str, int]:
        """The attributes that describe the packing of W."""
        bits = {} if self.bits in (BYTE_BITS, NIBBLE_BITS) else {"bits": self.bits}
        return bits | ({"codebook": self.codebook} if self.codebook else {})


_WEIGHTS = ((BYTE_BITS, 0), (4, 0), (4, 1), (5, 0), (6, 0))
KINDS = tuple(LinearKind(mode, *weights) for mode, weights in product(_SUFFIXES, _WEIGHTS))
_BY_NAME = {kind.name: kind for kind in KINDS}
_NAME = re.compile(rf"{OPERATOR}(Static|Codes)?(Int4Uneven|Int[456])?$")


def linear_kind(op: str) -> LinearKind | None:
    """Returns the kind of an operator with this name; None for any other."""
    return _BY_NAME.get(op)


def kind_behind_prefix(op: str) -> LinearKind | None:
    """Returns the kind of an operator with any prefix, such as tools add to names of functions; None for any other."""
    found = _NAME.search(op)
    return _BY_NAME[found[0]] if found is not None else None
