"""Sorts nodes topologically, stably and without recursion."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from rnnqc.errors import CompileError
from rnnqc.ir.objects import Graph, Node, Value, captured_values, display_name


def sorted_nodes(graph: Graph, captured: Mapping[int, list[Value]], source: str) -> list[Node]:
    """Returns the nodes of one graph, producers first; among ready nodes the original order counts.

    Args:
        graph: The graph.
        captured: The result of `captures` for the graph or an outer one.
        source: The file, for messages.

    Raises:
        CompileError: The graph has a cycle.
    """
    index = {id(n): k for k, n in enumerate(graph.nodes)}
    if _is_sorted(graph, index, captured):
        return list(graph.nodes)
    consumers: list[list[int]] = [[] for _ in graph.nodes]
    missing = [0] * len(graph.nodes)
    for k, node in enumerate(graph.nodes):
        values = [*node.inputs, *captured_values(node, captured)] if node.attrs else node.inputs
        sources = {index[id(p)] for v in values for p in v.inputs if id(p) in index}
        if k in sources:
            raise _cyclic(source, node)
        missing[k] = len(sources)
        for p in sources:
            consumers[p].append(k)
    ready = [k for k, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(graph.nodes[k])
        for c in consumers[k]:
            missing[c] -= 1
            if missing[c] == 0:
                heapq.heappush(ready, c)
    if len(order) != len(graph.nodes):
        k = next(k for k, count in enumerate(missing) if count > 0)
        raise _cyclic(source, graph.nodes[k])
    return order


def _is_sorted(graph: Graph, index: Mapping[int, int], captured: Mapping[int, list[Value]]) -> bool:
    """Whether every node comes after the producers of the values it reads; `index`: positions by identity."""
    for k, node in enumerate(graph.nodes):
        for value in [*node.inputs, *captured_values(node, captured)] if node.attrs else node.inputs:
            for producer in value.inputs:
                if index.get(id(producer), -1) >= k:
                    return False
    return True


def _cyclic(source: str, node: Node) -> CompileError:
    return CompileError(
        f"{source}: the graph has a cycle through node {display_name(node)!r} ({node.op}).",
        supported="graphs without cycles; loops are Loop or Scan nodes",
        action="export the model again",
    )
