"""Nodes of quantized linear layers: the names of their operators, inputs and attributes (docs/quant_linear.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

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
        packed: Whether W is packed int4 with multipliers of groups, or int8.
    """

    x_mode: str = DYNAMIC_ROW
    packed: bool = False

    @property
    def name(self) -> str:
        """Of the operator."""
        return OPERATOR + _SUFFIXES[self.x_mode] + ("Int4" if self.packed else "")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Of the node and of its function."""
        return LINEAR_INPUTS if self.packed else LINEAR_INPUTS[:-1]

    @property
    def attributes(self) -> tuple[str, ...]:
        """Those that the function reads; its nodes have all of them."""
        return (*_ATTRIBUTES[self.x_mode], *(("group_size",) if self.packed else ()))


KINDS = tuple(LinearKind(mode, packed) for mode, packed in product(_SUFFIXES, (False, True)))
_BY_NAME = {kind.name: kind for kind in KINDS}
_NAME = re.compile(rf"{OPERATOR}(Static|Codes)?(Int4)?$")


def linear_kind(op: str) -> LinearKind | None:
    """The kind of an operator with this name; None for any other."""
    return _BY_NAME.get(op)


def kind_behind_prefix(op: str) -> LinearKind | None:
    """The kind of an operator with any prefix, as tools put it before the names of functions."""
    found = _NAME.search(op)
    return _BY_NAME[found[0]] if found is not None else None
