"""Finds the element of a sequence that a value is, through Gather, Slice and Split, Squeeze and Unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnnqc.ir import Node, Value, attribute, constant_array, input_or_none, maker_of, output_number, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.values.index_expressions import Index, Indices, Shape
from rnnqc.passes.graph.values.layout_ops import axes_after

PICKS = ("Gather", "Slice", "Split")
"""Operators that take elements of a tensor."""
NEW = -1
TO_THE_END = 2**31 - 1  # the end that exporters write for "to the end", in 32 or 64 bits
_SEQUENCE_RANK = 3


@dataclass(frozen=True, eq=False)
class Element:
    """An element of a sequence.

    Attributes:
        sequence: The sequence.
        axis: The axis of the elements.
        index: The index of the element.
        axes: The axes of the value: axes of the sequence, or NEW for an axis of size 1 that was inserted.
    """

    sequence: Value
    axis: int
    index: Index
    axes: tuple[int, ...]

    def stacked_at(self, position: int) -> bool:
        """Whether the value is the element with an axis of size 1 at `position`, otherwise unchanged."""
        axes = list(self.axes)
        if not 0 <= position < len(axes) or axes[position] not in (NEW, self.axis):
            return False
        del axes[position]
        shape = shape_of(self.sequence)
        return shape is not None and axes == [k for k in range(len(shape)) if k != self.axis]


def element_of(value: Value, indices: Indices) -> Element | None:
    """Returns the element that `value` is; None if it is not an element."""
    views: list[Node] = []
    current = value
    while (node := maker_of(current)) is not None and node.op in ("Squeeze", "Unsqueeze", "Identity"):
        views.append(node)
        current = node.inputs[0]
    found = _taken(current, node, indices) if node is not None else None
    if found is None:
        return None
    axes = list(found.axes)
    for view in reversed(views):
        if view.op == "Identity":
            continue
        moved = axes_after(view, axes, changed_axes(view, indices), NEW)
        if moved is None:
            return None
        axes = moved
    return Element(found.sequence, found.axis, found.index, tuple(axes))


def _taken(value: Value, node: Node, indices: Indices) -> Element | None:
    source = node.inputs[0] if node.inputs else None
    shape = shape_of(source)
    if source is None or shape is None:
        return None
    axes = tuple(range(len(shape)))
    if node.op == "Gather":
        axis = attribute(node, "axis", 0) % len(shape)
        at = indices.vector(node.inputs[1])
        if at is None or len(at) != 1:
            return None
        rank = shape_of(node.inputs[1])
        if rank is None or len(rank) > 1:
            return None
        kept = axes if len(rank) == 1 else axes[:axis] + axes[axis + 1 :]
        return Element(source, axis, _from_start(at[0], shape[axis]), kept)
    if node.op == "Slice":
        return _sliced(source, shape, node, indices)
    if node.op == "Split":
        axis = attribute(node, "axis", 0) % len(shape)
        sizes = indices.numbers(input_or_none(node, 1)) if input_or_none(node, 1) is not None else None
        if (sizes is None and shape[axis] != len(node.outputs)) or (sizes is not None and set(sizes) != {1}):
            return None
        position = output_number(node, value)
        return Element(source, axis, Index(position), axes)
    return None


def _sliced(source: Value, shape: Shape, node: Node, indices: Indices) -> Element | None:
    """The element that a Slice selects while it keeps all other axes."""
    bounds = slice_bounds(node, indices)
    if bounds is None:
        return None
    cut = [k for k, held in bounds.items() if not keeps_axis(held, shape[k])]
    if not cut and len(bounds) == 1:
        cut = list(bounds)
    if len(cut) != 1:
        return None
    (axis,) = cut
    start, end, step = bounds[axis]
    start, size = _from_start(start, shape[axis]), shape[axis]
    if end.number is not None and end.number >= TO_THE_END and isinstance(size, int):
        end = Index(size)
    if step != 1 or _from_start(end, size).plus(start, -1) != Index(1):
        return None
    return Element(source, axis, start, tuple(range(len(shape))))


def changed_axes(node: Node, indices: Indices) -> list[int] | None:
    """Returns the axes of a Squeeze or Unsqueeze, also implicit ones of a Squeeze; None if unknown."""
    if input_or_none(node, 1) is not None:
        return indices.numbers(node.inputs[1])
    shape = indices.shape(node.inputs[0]) if node.op == "Squeeze" else None
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return [k for k, d in enumerate(shape) if d == 1]


def slice_bounds(node: Node, indices: Indices) -> dict[int, tuple[Index, Index, int]] | None:
    """Returns start, end and step of each axis that a Slice names, counted from 0; None if unknown."""
    shape = indices.shape(node.inputs[0])
    starts, ends = (indices.vector(input_or_none(node, k)) for k in (1, 2))
    if starts is None or ends is None or len(starts) != len(ends):
        return None
    axes = indices.numbers(input_or_none(node, 3)) if input_or_none(node, 3) is not None else list(range(len(starts)))
    steps = indices.numbers(input_or_none(node, 4)) if input_or_none(node, 4) is not None else [1] * len(starts)
    if axes is None or steps is None or not len(axes) == len(steps) == len(starts):
        return None
    if shape is None or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    return {a % len(shape): bounds for a, bounds in zip(axes, zip(starts, ends, steps, strict=True), strict=True)}


def keeps_axis(bounds: tuple[Index, Index, int], size: int | str | None) -> bool:
    """Whether a Slice with this start, end and step keeps an axis."""
    start, end, step = bounds[0].number, bounds[1].number, bounds[2]
    if start is None or end is None or step != 1:
        return False
    begins = start == 0 or (isinstance(size, int) and start <= -size)
    return begins and (end >= TO_THE_END or (isinstance(size, int) and end >= size))


def _from_start(index: Index, size: int | str | None) -> Index:
    if index.number is not None and index.number < 0 and isinstance(size, int):
        return Index(index.number + size)
    return index


def flipped(b: Builder, value: Value, axis: int, name: str) -> Value:
    """Returns `value` reversed along `axis`."""
    return b.op("Slice", flip_inputs(b, value, axis), name)


def flip_inputs(b: Builder, value: Value, axis: int) -> list[Value]:
    """Returns the inputs of a Slice that reverses `value` along `axis`."""
    return [value, b.i64([-1]), b.i64([-(2**63) + 1]), b.i64([axis]), b.i64([-1])]


def flip_of(value: Value, indices: Indices) -> tuple[Value, int] | None:
    """Returns the value and axis that `value` is the reverse of; None if it is not a reversal."""
    if len(value.inputs) != 1 or value.inputs[0].op != "Slice" or value.inputs[0].domain:
        return None
    node = value.inputs[0]
    shape = shape_of(node.inputs[0])
    if len(node.inputs) < 5 or shape is None:
        return None
    starts, ends, axes, steps = (indices.numbers(input_or_none(node, k)) for k in (1, 2, 3, 4))
    if steps != [-1] or starts is None or ends is None or axes is None or len(axes) != 1:
        return None
    size = shape[axes[0]]
    whole = starts[0] == -1 or (isinstance(size, int) and starts[0] >= size - 1)
    begins = ends[0] <= -(2**31) + 1 or (isinstance(size, int) and ends[0] < -size)
    return (node.inputs[0], axes[0] % len(shape)) if whole and begins else None


def is_unsqueezed_in_front(x: Value) -> bool:
    """Whether an Unsqueeze that adds the time axis produces the sequence `x` of a recurrent node, `[T,B,I]`."""
    node = maker_of(x)
    if node is None or node.op != "Unsqueeze":
        return False
    axes = constant_array(input_or_none(node, 1))
    return axes is not None and any(a in (0, -_SEQUENCE_RANK) for a in axes.reshape(-1).tolist())


def keeps_all(node: Node, indices: Indices) -> bool:
    """Whether `node` is a Slice that keeps everything."""
    if node.op != "Slice" or node.domain:
        return False
    bounds, shape = slice_bounds(node, indices), indices.shape(node.inputs[0])
    return bounds is not None and shape is not None and all(keeps_axis(b, shape[k]) for k, b in bounds.items())


def consecutive(elements: Sequence[Element]) -> tuple[int, int, bool] | None:
    """Returns first index, end, and whether the order is reversed; None unless they are neighbours in one sequence."""
    first = elements[0]
    numbers = [e.index.number for e in elements]
    if any(e.sequence is not first.sequence or e.axis != first.axis for e in elements):
        return None
    known = [n for n in numbers if n is not None and n >= 0]
    if len(known) != len(elements):
        return None
    low, high = min(known), max(known) + 1
    if known == list(range(low, high)):
        return low, high, False
    return (low, high, True) if known == list(range(low, high))[::-1] else None
