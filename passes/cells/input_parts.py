"""The values of which a Concat and a Mul make a cell's input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.fused_nodes import MORE_X
from rnnqc.ir import CELL_TAG, Graph, Node, Value, attribute, constant_array, info, maker_of, shape_of
from rnnqc.passes.graph.values.layout_ops import MOVERS

MOST_PARTS = 1 + len(MORE_X)
_RANK = 3


def parts_and_factor(graph: Graph, cell: Cell, value: Value) -> tuple[Sequence[Value], Value | None]:
    """Returns the values of which a Concat along the last axis, and a Mul behind it, make the input of `cell`.

    The operators must stand in the cell's graph, and nothing else may read their results. At most `MOST_PARTS`
    different values are joined, and none is the result of another operator that only moves elements: such operators
    become one node (pass `fuse-views`).

    Args:
        graph: The graph that contains the cell.
        cell: The cell.
        value: Its input `[T,B,I]`.

    Returns:
        The parts, `value` itself where nothing makes it in this way; and the constant `[I]` by which they are
        multiplied, or None.
    """
    product = _only_for_cell(graph, cell.name, value)
    if product is None or not _scales(product, cell.input_size):
        product = None
    x, factor = (value, None) if product is None else product.inputs
    node = _only_for_cell(graph, cell.name, x, product)
    if node is None or not _joins(node):
        return [x], factor
    return list(node.inputs), factor


def _only_for_cell(graph: Graph, cell: str, value: Value, reader: Node | None = None) -> Node | None:
    """Returns the node of `graph` that makes `value`, if nothing but `reader` or else nodes of the cell read it."""
    node = maker_of(value)
    if node is None or not any(n is node for n in graph.nodes) or any(v is value for v in graph.outputs):
        return None
    own = all(info(n).metadata.get(CELL_TAG) == cell if reader is None else n is reader for n in value.outputs)
    return node if own else None


def _scales(node: Node, size: int) -> bool:
    """Whether a node multiplies floats `[..,size]` by a constant `[size]`."""
    if node.op != "Mul":
        return False
    array, shape = constant_array(node.inputs[1]), shape_of(node.inputs[0])
    if array is None or array.shape != (size,) or array.dtype != np.float32:
        return False
    return shape is not None and shape[-1:] == [size]


def _joins(node: Node) -> bool:
    """Whether a node is a Concat of parts that a cell can read."""
    if node.op != "Concat" or attribute(node, "axis", None) not in (_RANK - 1, -1) or not _moves(node):
        return False
    makers = [maker_of(v) for v in node.inputs]
    if any(m is not None and _moves(m) for m in makers):
        return False
    return len({id(v) for v in node.inputs}) == len(node.inputs) <= MOST_PARTS


def _moves(node: Node) -> bool:
    return node.op in MOVERS and CELL_TAG not in info(node).metadata
