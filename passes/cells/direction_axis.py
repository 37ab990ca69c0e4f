"""The direction axis of length 1 of ONNX's recurrent operators, which cells do not have."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.ir import CELL_TAG, Graph, Node, Value, constant_array, info


def with_axis_before(value: Value, axis: int) -> Value | None:
    """Returns the input of the Squeeze of `axis` that produces `value`; None for other producers."""
    node = value.inputs[0] if len(value.inputs) == 1 else None
    if node is None or not _moves(node, "Squeeze", axis):
        return None
    return node.inputs[0]


def with_axis_after(graph: Graph, cell: str, value: Value, axis: int) -> Node | None:
    """Returns the Unsqueeze of `axis` that is the only reader of `value` outside `cell`; None otherwise."""
    users = [n for n in value.outputs if info(n).metadata.get(CELL_TAG) != cell]
    if len(users) != 1 or any(v is value for v in graph.outputs):
        return None
    node = users[0]
    if not _moves(node, "Unsqueeze", axis) or not any(n is node for n in graph.nodes):
        return None
    return node


def _moves(node: Node, op: str, axis: int) -> bool:
    if node.domain or node.op != op or info(node).metadata.get(CELL_TAG) or len(node.inputs) != 2:
        return False
    axes = constant_array(node.inputs[1])
    return axes is not None and _numbers(axes.tolist()) == [axis]


def _numbers(axes: int | Sequence[int]) -> list[int]:
    return [axes] if isinstance(axes, int) else list(axes)
