"""Masks that hold the state of rows whose sequence has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnnqc.errors import NotHandled
from rnnqc.ir import Node, Value, attribute, display_name, dtype_of, input_or_none, maker_of, shape_of
from rnnqc.passes.graph.loops.loop_states import VIEWS
from rnnqc.passes.graph.values.index_expressions import unknown
from rnnqc.passes.graph.values.sequence_elements import element_of, flip_of
from rnnqc.passes.recover.loops.loop_bounds import TRIP
from rnnqc.passes.recover.loops.loop_to_sequence import Vectorizer
from rnnqc.passes.recover.loops.skipped_steps import Skipped

_VIEWS = (*VIEWS, "Expand", "Tile")


@dataclass(frozen=True, eq=False)
class Lengths:
    """Sequence lengths of the rows of a batch.

    Attributes:
        value: `[B]`, in the graph around the loop.
        backwards: Whether the loop starts at each row's last element.
    """

    value: Value
    backwards: bool

    def same(self, other: object) -> bool:
        """Whether both are equal."""
        return isinstance(other, Lengths) and self.value is other.value and self.backwards == other.backwards


def read_mask(mask: Value, scanned: dict[int, tuple[Value, int, bool]], vectorizer: Vectorizer) -> Lengths | Skipped:
    """Returns the lengths if `mask` is `time < lengths`, by row; otherwise the steps that it skips.

    Args:
        mask: The condition of a Where in a loop's body.
        scanned: For a Scan: the sequence behind each input of the body, its axis, and whether it is reversed.
        vectorizer: The vectorizer of the loop.

    Raises:
        NotHandled: The mask is not one truth value per row.
    """
    found = _of_counter(mask, vectorizer) or _of_sequence(mask, scanned, vectorizer)
    return found or skipped(mask, vectorizer, _described(mask, scanned, vectorizer))


def skipped(mask: Value, vectorizer: Vectorizer, described: str = "") -> Skipped:
    """Returns the steps that a mask skips.

    Raises:
        NotHandled: The mask is not one truth value per row, of shape `[B,1]`, or depends on states.
    """
    shape = shape_of(mask)
    if shape is None or len(shape) != 2 or shape[1] != 1:
        action = (
            "compare the number of the step with lengths, which are whole numbers from outside the loop, or give each "
            "row and step one truth value"
        )
        raise NotHandled(
            "a mask is not known to have one truth value for each row.", described or f"{mask.name!r}", action
        )
    return Skipped(mask, vectorizer.sequence(mask).value)


def _described(mask: Value, scanned: dict[int, tuple[Value, int, bool]], vectorizer: Vectorizer) -> str:
    """Describes the mask and its producer, in front of the loop if it is an element of a sequence."""
    value = mask
    while (node := maker_of(value)) is not None and (node.op in _VIEWS or _to_bool(node)):
        value = node.inputs[0]
    element = element_of(value, vectorizer.trips.indices)
    if id(value) in scanned:
        value = scanned[id(value)][0]
    elif element is not None:
        value = element.sequence
    node = maker_of(value)
    made = f" by {node.op} node {display_name(node)!r}" if node is not None else ""
    return f"{mask.name!r}, made of {value.name!r}{made}"


def _of_counter(mask: Value, vectorizer: Vectorizer) -> Lengths | None:
    """Matches `trip < lengths`."""
    value = mask
    views: list[Node] = []
    while (node := maker_of(value)) is not None and (node.op in ("Expand", "Identity", "Unsqueeze") or _to_bool(node)):
        views.append(node)
        value = node.inputs[0]
    axes = ["rows"]
    for node in reversed(views):
        added = vectorizer.trips.indices.numbers(input_or_none(node, 1)) if node.op == "Unsqueeze" else []
        if added is None:
            return None
        for axis in sorted(a % (len(axes) + len(added)) for a in added):
            axes.insert(axis, "one")
    if axes[-2:] != ["rows", "one"]:
        return None
    pair = _less(value)
    if pair is None:
        return None
    counter = vectorizer.trips.indices.scalar(_plain(pair[0]))
    lengths = vectorizer.outer(_plain(pair[1]))
    if counter != unknown(TRIP) or lengths is None or not _whole_numbers(_plain(pair[1])):
        return None
    return Lengths(lengths, False)


def _of_sequence(mask: Value, scanned: dict[int, tuple[Value, int, bool]], vectorizer: Vectorizer) -> Lengths | None:
    """Matches an element of `arange(T)[:, None, None] < lengths[None, :, None]`."""
    value = mask
    while (node := maker_of(value)) is not None and (node.op in ("Expand", "Identity") or _to_bool(node)):
        value = node.inputs[0]
    if id(value) in scanned:
        source, axis, backwards = scanned[id(value)]
        kept = None
    else:
        element = element_of(value, vectorizer.trips.indices)
        if element is None or element.index != unknown(TRIP) or vectorizer.outer(element.sequence) is None:
            return None
        source, axis, backwards = element.sequence, element.axis, False
        kept = element.axes
    turned = flip_of(source, vectorizer.trips.indices)
    if turned is not None and turned[1] == axis:
        source, backwards = turned[0], not backwards
    pair, views = _compared(source)
    shape = shape_of(source)
    if pair is None or shape is None:
        return None
    whole = kept if kept is not None else tuple(k for k in range(len(shape)) if k != axis)
    times, rows = (_viewed(shape_of(v), views, len(shape), vectorizer) for v in pair)
    if times is None or rows is None or len(whole) < 2:
        return None
    # Times along the axis of the loop, rows along the second to last axis of an element, all other axes of size 1.
    if any(d != 1 for k, d in enumerate(times) if k != axis):
        return None
    if any(d != 1 for k, d in enumerate(rows) if k != whole[-2]) or whole[-2] in (axis, -1):
        return None
    counter, lengths = _plain(pair[0]), vectorizer.outer(_plain(pair[1]))
    made = maker_of(counter)
    if made is None or made.op != "Range" or lengths is None or not _whole_numbers(_plain(pair[1])):
        return None
    first, step = (vectorizer.trips.indices.numbers(input_or_none(made, k)) for k in (0, 2))
    return Lengths(lengths, backwards) if (first, step) == ([0], [1]) else None


def _with_rank(shape: list[int | str | None] | None, rank: int) -> list[int | str | None] | None:
    ones: list[int | str | None] = [1]
    return None if shape is None else ones * (rank - len(shape)) + shape


def _compared(value: Value) -> tuple[tuple[Value, Value] | None, list[Node]]:
    """The comparison (see `_less`) that `value` is a view of, and the views, the first one first."""
    views: list[Node] = []
    while (node := maker_of(value)) is not None and node.op in ("Transpose", "Unsqueeze", "Identity"):
        views.insert(0, node)
        value = node.inputs[0]
    return _less(value), views


def _viewed(
    shape: list[int | str | None] | None, views: Sequence[Node], rank: int, vectorizer: Vectorizer
) -> list[int | str | None] | None:
    """The shape of one side of a comparison after the views of its result of rank `rank`."""
    added = [vectorizer.trips.indices.numbers(input_or_none(n, 1)) if n.op == "Unsqueeze" else [] for n in views]
    axes = [a for a in added if a is not None]
    if len(axes) < len(added):
        return None
    shape = _with_rank(shape, rank - sum(map(len, axes)))
    for node, new in zip(views, axes, strict=True):
        if shape is None:
            return None
        if node.op == "Transpose":
            shape = [shape[k] for k in attribute(node, "perm", [*reversed(range(len(shape)))])]
        for axis in sorted(a % (len(shape) + len(new)) for a in new):
            shape.insert(axis, 1)
    return shape


def _to_bool(node: Node) -> bool:
    return bool(node.op == "Cast" and attribute(node, "to", 0) == 9)


def _less(value: Value) -> tuple[Value, Value] | None:
    """The smaller and the larger side of a comparison."""
    node = maker_of(value)
    if node is None or node.op not in ("Less", "Greater"):
        return None
    a, b = node.inputs
    return (a, b) if node.op == "Less" else (b, a)


def _whole_numbers(value: Value) -> bool:
    """Whether `value` is a vector of integers."""
    shape = shape_of(value)
    return shape is not None and len(shape) == 1 and _is_whole(value)


def _is_whole(value: Value) -> bool:
    kind = dtype_of(value)
    return kind is not None and kind.kind in "iu"


def _plain(value: Value) -> Value:
    """The value behind views and type conversions that preserve integers."""
    while (node := maker_of(value)) is not None and (node.op in _VIEWS or _keeps_numbers(node)):
        value = node.inputs[0]
    return value


def _keeps_numbers(node: Node) -> bool:
    """Whether `node` converts integers to int32, int64, float32 or float64."""
    return node.op == "Cast" and attribute(node, "to", 0) in (1, 6, 7, 11) and _is_whole(node.inputs[0])
