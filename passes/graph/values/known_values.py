"""Values that are known before a run, from constants and from known parts of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.ir import Constant, Graph, Model, Node, Value, attribute, constant_array, cut_edges, graph_info, shape_of

Sizes = list[int | None]


def known_array(node: Node) -> npt.NDArray[np.int64] | None:
    """Returns the output of `node` if it follows from known dimensions, even if others are unknown.

    This covers `Shape` and `Size`, and a Gather or Slice of a `Shape`.
    """
    if node.domain:
        return None
    if node.op == "Size":
        shape = shape_of(node.inputs[0])
        sizes = [] if shape is None else [d for d in shape if isinstance(d, int)]
        return np.asarray(np.prod(sizes, dtype=np.int64)) if shape is not None and len(sizes) == len(shape) else None
    if node.op == "Shape":
        return _known(_sizes(node), slice(None))
    source = _shape_node(node.inputs[0]) if node.op in ("Gather", "Slice") and node.inputs else None
    if source is None:
        return None
    sizes_of = _sizes(source)
    arrays = [constant_array(v) for v in node.inputs[1:] if v.name]
    if sizes_of is None or any(a is None for a in arrays):
        return None
    held = [np.asarray(a) for a in arrays]
    if node.op == "Gather":
        indices = held[0]
        if attribute(node, "axis", 0) not in (0, -1) or (np.abs(indices + 0.5) > len(sizes_of)).any():
            return None
        found = [sizes_of[int(k)] for k in indices.ravel()]
        return None if None in found else np.asarray(found, np.int64).reshape(indices.shape)
    if len(held) < 2 or any(a.size != 1 for a in held):
        return None
    start, end, *others = (int(a.ravel()[0]) for a in held)
    step = others[1] if len(others) > 1 else 1
    return _known(sizes_of, slice(start, end, step)) if step > 0 else None


def store_array(
    model: Model, graph: Graph, value: Value, array: npt.NDArray[Any], returning: Sequence[Graph]
) -> list[Node]:
    """Replaces a value by an initializer of `graph` with its name.

    Returns its node if it is otherwise unused: without edges, for the caller to remove together with others.

    Args:
        model: The model.
        graph: The graph of the value.
        value: The value.
        array: Its elements.
        returning: The graphs whose outputs may be the value.
    """
    constant = Constant(value.name, np.ascontiguousarray(array).reshape(array.shape))
    graph_info(graph).initializers[constant.name] = constant
    maker = value.inputs[0]
    model.replace_all_uses(value, constant, returning)
    value.name = model.fresh_name(f"{value.name}.computed")
    if any(v.outputs for v in maker.outputs):
        return []
    cut_edges(maker)
    return [maker]


def _shape_node(value: Value) -> Node | None:
    if isinstance(value, Constant) or len(value.inputs) != 1:
        return None
    node = value.inputs[0]
    return node if node.op == "Shape" and not node.domain else None


def _sizes(node: Node) -> Sizes | None:
    """The output of a Shape node, as far as known; None if the rank is unknown."""
    shape = shape_of(node.inputs[0])
    if shape is None:
        return None
    start, end = attribute(node, "start", 0), attribute(node, "end", len(shape))
    return [d if isinstance(d, int) and d >= 0 else None for d in shape[start:end]]


def _known(sizes: Sizes | None, part: slice) -> npt.NDArray[np.int64] | None:
    found = None if sizes is None else sizes[part]
    return None if found is None or None in found else np.asarray(found, np.int64)
