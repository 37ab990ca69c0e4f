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
_ATTRIBUTES = {DYNAMIC_ROW: (), "static": ("x_scale", "x_zero_point"), "codes": ("x_zero_point",)}


@dataclass(frozen=True)
class LinearKind:
    """What the operators differ in. Each has a function of its own.

    Attributes:
        x_mode: As the node's attribute.
        bits: Of W: 8 for int8, or 4 to 6 for packed numbers with multipliers of groups.
    """

    x_mode: str = DYNAMIC_ROW
    bits: int = BYTE_BITS

    @property
    def packed(self) -> bool:
        """Whether W is packed."""
        return self.bits < BYTE_BITS

    @property
    def name(self) -> str:
        """Of the operator."""
        return OPERATOR + _SUFFIXES[self.x_mode] + (f"Int{self.bits}" if self.packed else "")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Of the node and of its function."""
        return LINEAR_INPUTS if self.packed else LINEAR_INPUTS[:-1]

    @property
    def attributes(self) -> tuple[str, ...]:
        """Those of the function; its nodes have all of them."""
        own = () if not self.packed else ("group_size",) if self.bits == NIBBLE_BITS else ("group_size", "bits")
        return (*_ATTRIBUTES[self.x_mode], *own)

    @property
    def width(self) -> dict[str, int]:
        """The attribute that says it, of nodes that have it."""
        return {"bits": self.bits} if "bits" in self.attributes else {}


KINDS = tuple(LinearKind(mode, bits) for mode, bits in product(_SUFFIXES, (BYTE_BITS, 4, 5, 6)))
_BY_NAME = {kind.name: kind for kind in KINDS}
_NAME = re.compile(rf"{OPERATOR}(Static|Codes)?(Int[456])?$")


def linear_kind(op: str) -> LinearKind | None:
    """The kind of an operator with this name; None for any other."""
    return _BY_NAME.get(op)


def kind_behind_prefix(op: str) -> LinearKind | None:
    """The kind of an operator with any prefix, as tools put it before the names of functions."""
    found = _NAME.search(op)
    return _BY_NAME[found[0]] if found is not None else None
