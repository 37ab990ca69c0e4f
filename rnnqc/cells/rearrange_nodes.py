"""Nodes that rearrange elements: the names of their operators, inputs, outputs and attributes (docs/rearrange.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rnnqc.cells.fused_nodes import OperatorNames

OPERATOR = "Rearrange"
ALIASES = 32
"""The number of further operators in the native library, one for each function body."""
MOST = 32
"""The largest number of inputs, or of outputs, of one node."""
MOST_DIMENSIONS = 8
"""The largest rank of an input or output."""
INPUT_SHAPES = "input_shapes"
OUTPUT_SHAPES = "output_shapes"
COPIES = "copies"
_NAME = re.compile(rf"{OPERATOR}(_\w+)?$")


NAMES = OperatorNames(OPERATOR, ALIASES)
OPERATORS = (OPERATOR, *map(NAMES.fused_name, range(ALIASES)))
"""All operators in the native library."""


def input_name(number: int) -> str:
    """Returns the name of an input of the function."""
    return f"X_{number}"


def output_name(number: int) -> str:
    """Returns the name of an output of the function."""
    return f"Y_{number}"


def is_rearrange_node(op: str) -> bool:
    """Whether an operator of rnnqc's domain rearranges, even if tools added a prefix to its name."""
    return _NAME.search(op) is not None


def is_rearrange_function(name: str, inputs: Iterable[str], outputs: Iterable[str]) -> bool:
    """Whether a function has the name and the signature of the function behind such an operator."""
    return (
        _NAME.match(name) is not None
        and all(n == input_name(k) for k, n in enumerate(inputs))
        and all(n == output_name(k) for k, n in enumerate(outputs))
    )
