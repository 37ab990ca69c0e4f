"""Analysis: uses of the padding in the output of a recurrent node with `sequence_lens`. Reads only.

Beyond a sequence's length Y is 0, also after lowering. A consumer that removes the padding by the lengths, or reads its
zeros as data, gets the same as in the float model. One that finds the padding by testing Y for zeros does not: a step
of the lowered layer may be 0, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from rnnqc.errors import NotHandled
from rnnqc.ir import Node, Value, attribute, constant_array, display_name, input_or_none, output_or_none
from rnnqc.passes.graph.nodes.lstm_node import SEQUENCE_LENS
from rnnqc.passes.graph.values.layout_ops import axes_after

TIME, DIRECTION, BATCH, UNIT = "T", "D", "B", "H"
BOOL = int(onnx.TensorProto.BOOL)
Axes = tuple[str, ...] | None
MOVED = frozenset(
    ("Identity", "Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Cast", "Concat", "Slice", "Gather")
)
COMPACTING = frozenset(("Compress", "GatherND", "NonZero", "Unique"))
"""Operators whose number of results depends on the data of their first input."""
MEASURING = frozenset(("Abs", "Neg", "Sign", *(f"Reduce{n}" for n in ("Sum", "Max", "Min", "L1", "L2", "SumSquare"))))
COMPARING = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
LOGICAL = frozenset(("Not", "And", "Or", "Cast", "ReduceSum", "ReduceMax", "ReduceMin"))
SMALLEST = 1e-3
"""A comparison with a smaller constant looks for zeros."""
DECIDING = {"NonZero": 0, "Compress": 1, "Where": 0}
"""By operator, the input that selects the elements of the result."""
RAW, MEASURED, COMPARED = range(3)
READING = frozenset(("ReduceMax", "ReduceMin", "ReduceMean", "ArgMax", "ArgMin"))
"""Reductions whose result depends on the zeros of the padding."""


@dataclass(frozen=True)
class PaddedUse:
    """A use of the padded output that relies on its zeros.

    Attributes:
        node: The operator.
        kind: "chosen" (steps, by testing for zeros), "masked" (elements, likewise), "compacted" or "read".
    """

    node: Node
    kind: str


def check_padded_output(node: Node) -> None:
    """Raises NotHandled if a node tests the output of `node` for zeros to find the padding."""
    for use in _uses(node):
        if use.kind == "chosen":
            raise NotHandled(
                "which steps of its output Y are padding is decided by looking for zeros in it.",
                f"sequence_lens, and usage of Y by {_called(use.node)}",
                "compute the mask from the lengths, or keep Y padded",
            )


def padded_output_notes(node: Node) -> list[tuple[str, str, str]]:
    """Returns reason, found and action for uses of the padded output that keep their meaning but deserve a note."""
    uses = list(_uses(node))
    notes = []
    for kind, reason, action in (
        (
            "masked",
            "zeros in its output Y are taken for padding; a step of the lowered layer may hold zeros, too.",
            "compute the mask from the lengths",
        ),
        (
            "compacted",
            "its padded output Y is compacted: how many steps there are depends on the data.",
            "nothing, unless shapes have to be fixed: then keep Y padded",
        ),
        (
            "read",
            "the zeros in the padding of its output Y are read as data, as in the float model.",
            "mask the padding first, if that is not meant",
        ),
    ):
        found = list(dict.fromkeys(_called(u.node) for u in uses if u.kind == kind))
        if found:
            notes.append((reason, f"sequence_lens, and usage of Y by {', '.join(found)}", action))
    return notes


def _called(node: Node) -> str:
    return f'"{node.op}" (node {display_name(node)!r})'


def _uses(node: Node) -> Iterator[PaddedUse]:
    y = output_or_none(node, 0)
    if y is None or input_or_none(node, SEQUENCE_LENS) is None:
        return
    stack: list[tuple[Value, Axes, int]] = [(y, (TIME, DIRECTION, BATCH, UNIT), RAW)]
    seen: set[tuple[int, int]] = set()
    while stack:
        value, axes, stage = stack.pop()
        if (id(value), stage) in seen:
            continue
        seen.add((id(value), stage))
        for user in value.outputs:
            if user.domain or not user.outputs:
                continue
            places = [k for k, v in enumerate(user.inputs) if v is value]
            if user.op == "NonZero" or (stage == COMPARED and DECIDING.get(user.op) in places):
                yield PaddedUse(user, "masked" if user.op == "Where" else "chosen")
            elif stage == RAW and 0 in places and (user.op in COMPACTING or _gathers_what_the_data_wants(user)):
                yield PaddedUse(user, "compacted")
            else:
                if stage == RAW and axes is not None and user.op in READING and TIME in _reduced(user, axes):
                    yield PaddedUse(user, "read")
                following = _stage(user, places, stage)
                if following is not None:
                    known = axes is not None and stage == following == RAW
                    stack.append((user.outputs[0], _moved(user, axes) if known and axes else None, following))


def _stage(node: Node, places: Sequence[int], stage: int) -> int | None:
    """The stage of a test for zeros after `node`; None if the value is used otherwise."""
    if node.op == "Cast" and stage != COMPARED and attribute(node, "to", 0) == BOOL:
        return COMPARED
    if node.op in MOVED and (0 in places or node.op == "Concat"):
        return stage
    if stage == COMPARED:
        return COMPARED if node.op in LOGICAL else None
    if node.op in MEASURING or (node.op == "Mul" and len(places) == 2):
        return MEASURED
    if node.op in COMPARING and len(places) == 1:
        limit = constant_array(node.inputs[1 - places[0]])
        if limit is not None and limit.dtype.kind in "fiu" and float(np.abs(limit).max(initial=0)) < SMALLEST:
            return COMPARED
    return None


def _gathers_what_the_data_wants(node: Node) -> bool:
    """Whether a Gather's indices are positions found by NonZero or a similar operator."""
    if node.op not in ("Gather", "GatherElements") or len(node.inputs) < 2:
        return False
    stack, seen = [node.inputs[1]], set()
    while stack:
        value = stack.pop()
        maker = value.inputs[0] if value.inputs else None
        if maker is None or id(maker) in seen or maker.domain:
            continue
        seen.add(id(maker))
        if maker.op in COMPACTING:
            return True
        if maker.op in MOVED:
            stack.extend(maker.inputs[: None if maker.op == "Concat" else 1])
    return False


def _numbers(node: Node, name: str, place: int) -> list[int] | None:
    """An attribute that is an input in later operator sets."""
    held = attribute(node, name, None)
    array = constant_array(input_or_none(node, place)) if held is None else held
    return None if array is None else [int(v) for v in array]


def _reduced(node: Node, axes: tuple[str, ...]) -> Sequence[str]:
    """The axes that a reduction removes."""
    if node.op in ("ArgMax", "ArgMin"):
        return (axes[attribute(node, "axis", 0)],)
    numbers = _numbers(node, "axes", 1)
    if numbers is None:
        return axes if input_or_none(node, 1) is None else ()
    return [axes[k] for k in numbers if -len(axes) <= k < len(axes)]


def _moved(node: Node, axes: tuple[str, ...]) -> Axes:
    """The positions of the axes after a moving operator; None if unknown."""
    if node.op in ("Transpose", "Squeeze", "Unsqueeze"):
        moved = axes_after(node, axes, _numbers(node, "axes", 1), "")
        return None if moved is None else tuple(moved)
    if node.op == "Reshape":
        shape = constant_array(input_or_none(node, 1))
        kept = 0 if shape is None else next((k for k, n in enumerate(shape.tolist()) if n != 0), shape.size)
        return None if shape is None or kept > len(axes) else (*axes[:kept], *[""] * (shape.size - kept))
    if node.op == "Gather":
        indices = constant_array(node.inputs[1])
        rank = 1 if indices is None else indices.ndim  # a permutation of a batch has one axis
        axis = attribute(node, "axis", 0) % len(axes)
        return (*axes[:axis], *([axes[axis]] * rank), *axes[axis + 1 :])
    return None if node.op == "Flatten" else axes
