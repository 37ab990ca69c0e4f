"""Masks that keep the state of rows whose sequence has ended."""

from __future__ import annotations

from rnnqc.ir import Value, attribute, shape_of
from rnnqc.passes.index_expressions import Index, unknown
from rnnqc.passes.step_weights import NoNode
from rnnqc.passes.trip_counts import TRIP
from rnnqc.passes.vectorize import Vectorizer

_VIEWS = ("Unsqueeze", "Squeeze", "Expand", "Identity", "Reshape", "Tile")


def mask_lengths(mask: Value, vectorizer: Vectorizer) -> Value:
    """The lengths `[B]` where `mask` is `trip < lengths`, as the graph around the loop has them.

    Raises:
        NoNode: The mask is something else.
    """
    value = mask
    while len(value.inputs) == 1 and not value.inputs[0].domain:
        node = value.inputs[0]
        if node.op in _VIEWS or (node.op == "Cast" and attribute(node, "to", 0) == 9):
            value = node.inputs[0]
            continue
        pair = {"Less": node.inputs, "Greater": node.inputs[::-1]}.get(node.op)
        if pair is None:
            break
        counter = vectorizer.trips.indices.scalar(_plain(pair[0]))
        lengths = vectorizer.outer(_plain(pair[1]))
        shape = shape_of(_plain(pair[1]))
        if counter == unknown(TRIP).plus(Index()) and lengths is not None and shape is not None and len(shape) == 1:
            return lengths
        break
    raise NoNode("a mask is none of lengths.", f"{mask.name!r}")


def _plain(value: Value) -> Value:
    """What stands behind views and changes of type."""
    while len(value.inputs) == 1 and value.inputs[0].op in (*_VIEWS, "Cast") and not value.inputs[0].domain:
        value = value.inputs[0].inputs[0]
    return value
