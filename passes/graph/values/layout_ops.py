"""Operators that only move elements, the sources of moved values, and where their axes go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from rnnqc.ir import CELL_TAG, Node, Value, attribute, constant_array, info, input_or_none

Source = TypeVar("Source")
Label = TypeVar("Label")
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


def stated_axes(node: Node) -> list[int] | None:
    """Returns the axes that a Squeeze or Unsqueeze has as an attribute or a constant; None if it has none."""
    given = constant_array(input_or_none(node, 1))
    axes = attribute(node, "axes", None) if given is None else given.ravel().tolist()
    return None if axes is None else [int(a) for a in axes]


def axes_after(node: Node, axes: Sequence[Label], changed: Sequence[int] | None, new: Label) -> list[Label] | None:
    """Returns what stands on each axis behind a Transpose, Squeeze or Unsqueeze; None if unknown.

    Args:
        node: The node.
        axes: What stands on each axis of its input.
        changed: The axes that a Squeeze removes or an Unsqueeze adds; None if unknown.
        new: What stands on added axes.
    """
    if node.op == "Transpose":
        return [axes[k] for k in attribute(node, "perm", None) or range(len(axes))[::-1]]
    if changed is None:
        return None
    if node.op == "Squeeze":
        gone = {k % len(axes) for k in changed}
        return [label for k, label in enumerate(axes) if k not in gone]
    rank = len(axes) + len(changed)
    added, rest = {k % rank for k in changed}, iter(axes)
    return [new if k in added else next(rest) for k in range(rank)]
