"""Operators that only move elements, and the sources of moved values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from rnnqc.ir import CELL_TAG, Value, info

Source = TypeVar("Source")
MOVERS: dict[str, Sequence[int] | None] = {
    "Identity": (0,), "Squeeze": (0,), "Unsqueeze": (0,), "Transpose": (0,), "Reshape": (0,), "Flatten": (0,),
    "Slice": (0,), "Gather": (0,), "Expand": (0,), "Concat": None,
}  # fmt: skip
"""Operators with the inputs whose elements they move; None for all."""


def sources_of(
    value: Value, known: Callable[[Value], Source | None], movers: Mapping[str, Sequence[int] | None] = MOVERS
) -> Iterator[tuple[Value, Source | None]]:
    """Yields the sources of a value: the values behind operators that only move elements.

    Args:
        value: The value.
        known: Returns the known source of a value; None to follow its producer.
        movers: The operators.

    Yields:
        Each known value, and each that is neither known nor moved, with None. Nodes of cells count as not moving.
    """
    stack, seen = [value], set()
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        found = known(current)
        node = current.inputs[0] if len(current.inputs) == 1 else None
        moves = node is not None and not node.domain and node.op in movers and not info(node).metadata.get(CELL_TAG)
        if found is not None or node is None or not moves:
            yield current, found
            continue
        moved = movers[node.op]
        stack.extend(node.inputs[k] for k in (range(len(node.inputs)) if moved is None else moved))
