"""Nodes of custom cells: the names of their operators, inputs and outputs (docs/quant_custom_cell.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rnnqc.cells.fused_nodes import OperatorNames

OPERATOR = "QuantCustomCell"
ALIASES = 12
"""The number of further operators in the native library, one for each function body."""
PROGRAM = "program"
REVERSE = "reverse"
SIZES = "sizes"
"""Key under which a function stores the sizes of its custom cell's loop."""
_NAME = re.compile(rf"{OPERATOR}(_\w+)?$")
_INPUT = re.compile(r"(state|x|constant)_\d+$")
_OUTPUT = re.compile(r"(final|Y)_\d+$")


NAMES = OperatorNames(OPERATOR, ALIASES)


def is_custom_node(op: str) -> bool:
    """Whether an operator of rnnqc's domain runs a custom cell, even if tools added a prefix to its name."""
    return _NAME.search(op) is not None


def is_custom_function(name: str, inputs: Iterable[str], outputs: Iterable[str]) -> bool:
    """Whether a function has the name and the signature of the function behind such an operator."""
    return (
        _NAME.match(name) is not None
        and all(_INPUT.match(n) for n in inputs)
        and all(_OUTPUT.match(n) for n in outputs)
    )
