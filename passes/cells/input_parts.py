"""The values of which a Concat makes a cell's input."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.cells.fused_nodes import MORE_X
from rnnqc.ir import CELL_TAG, Graph, Node, Value, attribute, info, maker_of
from rnnqc.passes.graph.values.layout_ops import MOVERS

MOST_PARTS = 1 + len(MORE_X)
_RANK = 3


def parts_before(graph: Graph, cell: str, value: Value) -> Sequence[Value] | None:
    """Returns the inputs of the Concat along the last axis that produces `value`, at most `MOST_PARTS`; else None.

    The Concat must stand in the cell's graph, and nothing else may read it. Its inputs are different values, and none
    is the result of another operator that only moves elements: such operators become one node (pass `fuse-views`).

    Args:
        graph: The graph that contains the cell.
        cell: The name of the cell.
        value: Its input `[T,B,I]`.
    """
    node = maker_of(value)
    if node is None or node.op != "Concat" or not _moves(node) or len(node.inputs) > MOST_PARTS:
        return None
    if attribute(node, "axis", None) not in (_RANK - 1, -1) or not any(n is node for n in graph.nodes):
        return None
    if any(v is value for v in graph.outputs) or any(info(n).metadata.get(CELL_TAG) != cell for n in value.outputs):
        return None
    makers = [maker_of(v) for v in node.inputs]
    if any(m is not None and _moves(m) for m in makers) or len({id(v) for v in node.inputs}) != len(node.inputs):
        return None
    return list(node.inputs)


def _moves(node: Node) -> bool:
    return node.op in MOVERS and CELL_TAG not in info(node).metadata
