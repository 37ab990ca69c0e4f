"""Nodes that rearrange elements: the names of their operators, inputs, outputs and attributes (docs/rearrange.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rnnqc.cells.fused_nodes import OperatorNames

OPERATOR = "Rearrange"
ALIASES = 32
"""How many further operators the native library has, one for each function body."""
MOST = 32
"""Inputs, or outputs, of one node."""
MOST_DIMENSIONS = 8
"""Of one input or output."""
INPUT_SHAPES = "input_shapes"
OUTPUT_SHAPES = "output_shapes"
COPIES = "copies"
_NAME = re.compile(rf"{OPERATOR}(_\w+)?$")


NAMES = OperatorNames(OPERATOR, ALIASES)
OPERATORS = (OPERATOR, *map(NAMES.fused_name, range(ALIASES)))
"""All of the native library."""


def input_name(number: int) -> str:
    """Of the function."""
    return f"X_{number}"


def output_name(number: int) -> str:
    """Of the function."""
    return f"Y_{number}"


def is_rearrange_node(op: str) -> bool:
    """Whether an operator of rnnqc's domain rearranges, whatever prefix tools have put before its name."""
    return _NAME.search(op) is not None


def is_rearrange_function(name: str, inputs: Iterable[str], outputs: Iterable[str]) -> bool:
    """Whether a function has the name and the signature of one behind such an operator."""
    return (
        _NAME.match(name) is not None
        and all(n == input_name(k) for k, n in enumerate(inputs))
        and all(n == output_name(k) for k, n in enumerate(outputs))
    )
