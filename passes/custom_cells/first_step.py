"""Gives the first of unrolled steps nodes of its own, where an exporter wrote one node for several of later steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Model, Node, Value, display_name, dtype_of, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.unrolled_steps import SharedNode

_MOST = 8
"""How many nodes of a first step are copied."""
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Copy:
    """A node that computes the same as another, for one of its readers.

    Attributes:
        node: The copy.
        reader: The reader.
        before: What it read, by position.
    """

    node: Node
    reader: Node
    before: dict[int, Value]


def with_copies(model: Model, graph: Graph, find: Callable[[], _Found], most: int = _MOST) -> _Found:
    """Returns what `find` finds; where it meets a shared node, one of the node's readers gets a copy first.

    Before: `f * 0 -> p; p + a -> c_0; p + b -> n_0` in the first step, `f * c -> p; f * n -> q; ...` in later ones

    After: `f * 0 -> p; f * 0 -> q; p + a -> c_0; q + b -> n_0`

    Raises:
        NotHandled: Copies do not help; there are none then.
    """
    try:
        return find()
    except SharedNode as why:
        if not most:
            raise
        copy = _copied(model, graph, why)
    try:
        return with_copies(model, graph, find, most - 1)
    except NotHandled:
        for position, value in copy.before.items():
            copy.reader.inputs[position] = value
        model.remove_nodes(graph, [copy.node])
        raise


def _copied(model: Model, graph: Graph, shared: SharedNode) -> _Copy:
    node, reader = shared.node, shared.reader
    b = Builder(model, prefix=display_name(node))
    outputs: list[Value] = [b.value("copy", dtype_of(v), shape_of(v)) for v in node.outputs]
    made = b.add(node.op, list(node.inputs), outputs, "copy", node.domain, **node.attrs)
    place = next(k for k, n in enumerate(graph.nodes) if n is node)
    graph.nodes.insert(place + 1, made)
    new = {id(v): w for v, w in zip(node.outputs, outputs, strict=True)}
    before = {k: v for k, v in enumerate(reader.inputs) if id(v) in new}
    for position, value in before.items():
        reader.inputs[position] = new[id(value)]
    return _Copy(made, reader, before)
