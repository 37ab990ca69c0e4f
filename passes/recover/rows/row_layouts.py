"""Operators that split rows or change their dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.ir import Node, attribute, input_or_none, shape_of
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.layout_ops import axes_after
from rnnqc.passes.graph.values.sequence_elements import changed_axes, keeps_axis, slice_bounds
from rnnqc.passes.recover.rows.row_algebra import Atoms
from rnnqc.passes.recover.rows.rows import Rows, checked, columns_of


def split_columns(atoms: Atoms, node: Node, rows: Rows, indices: Indices) -> Sequence[Rows | None]:
    """Returns the outputs of a Split of columns; empty if it does not split columns."""
    if attribute(node, "axis", 0) not in (-1, len(rows.lead)):
        return []
    count = len(node.outputs)
    given = indices.numbers(input_or_none(node, 1))
    if input_or_none(node, 1) is not None and given is None:
        return []
    size = -(-rows.width // count)
    sizes = given or [min(size, rows.width - size * k) for k in range(count)]
    if sum(sizes) != rows.width or len(sizes) != count or min(sizes) < 0:
        return []
    ends = np.cumsum(sizes).tolist()
    return [columns_of(atoms, rows, end - n, end) if n else None for n, end in zip(sizes, ends, strict=True)]


def sliced_columns(atoms: Atoms, node: Node, rows: Rows, indices: Indices) -> Rows | None:
    """Returns the output of a Slice of columns, or of whole rows; None for other slices."""
    bounds = slice_bounds(node, indices)
    if bounds is None:
        return None
    last = len(rows.lead)
    if any(not keeps_axis(held, rows.lead[k]) for k, held in bounds.items() if k != last):
        return None
    if last not in bounds:
        return rows
    start, end, step = bounds[last][0].number, bounds[last][1].number, bounds[last][2]
    if start is None or end is None or step != 1:
        return None
    low, high, _ = slice(start, end).indices(rows.width)
    return columns_of(atoms, rows, low, high) if low < high else None


def viewed(node: Node, rows: Rows, indices: Indices) -> Rows | None:
    """Returns the output of an operator that only reshapes the rows; None if it mixes them."""
    lead, rank = rows.lead, len(rows.lead) + 1
    if node.op in ("Transpose", "Squeeze", "Unsqueeze"):
        places: list[int | None] = list(range(rank))
        changed = None if node.op == "Transpose" else changed_axes(node, indices)
        order = axes_after(node, places, changed, None)
        if order is None or order[-1:] != [rank - 1] or any(lead[k] != 1 for k in range(rank - 1) if k not in order):
            return None
        return checked(tuple(1 if k is None else lead[k] for k in order[:-1]), rows.segments)
    shape = shape_of(node.outputs[0]) or _target(node, indices)
    if not shape or shape[-1] != rows.width:
        return None
    batch = [d for d in lead if d != 1]
    made = [d for d in shape[:-1] if d != 1]
    if len(made) > 1:
        return None
    size = batch[0] if batch else 1
    if not made and size != 1:
        return None
    return checked(tuple(size if d != 1 else 1 for d in shape[:-1]), rows.segments)


def _target(node: Node, indices: Indices) -> list[int | str | None] | None:
    """The target shape of a Reshape; None for the dimensions -1 and 0, the batch."""
    target = indices.sizes(input_or_none(node, 1)) if node.op == "Reshape" else None
    return None if target is None else [None if d in (-1, 0) else d for d in target]
