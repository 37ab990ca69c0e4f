"""Removes nodes, and what nothing uses."""

from __future__ import annotations

from collections.abc import Iterable

from rnnqc.ir.objects import Graph, Node, graph_info, graphs_below, subgraphs


def remove_nodes(graph: Graph, nodes: Iterable[Node]) -> None:
    """Removes `nodes` from `graph` and cuts their edges."""
    doomed = {id(n) for n in nodes}
    for node in [n for n in graph.nodes if id(n) in doomed]:
        _cut(node)
    graph.nodes[:] = [n for n in graph.nodes if id(n) not in doomed]


def remove_dead_nodes(root: Graph) -> int:
    """Removes the nodes that nothing uses from a graph and its subgraphs; returns how many."""
    removed = 0
    while dead := _remove_dead_nodes_once(root):
        removed += dead
    return removed


def remove_dead_constants(root: Graph) -> int:
    """Removes the initializers that nothing uses, but for those that nothing used in the file; returns how many."""
    removed = 0
    for graph in graphs_below(root):
        record = graph_info(graph)
        outputs = {id(v) for v in graph.outputs}
        orphans = {i.name for i in record.proto.initializer} if record.proto is not None else set()
        for name, constant in list(record.initializers.items()):
            unused_before = name in orphans and constant.__dict__.get("_unused")
            if not constant.outputs and id(constant) not in outputs and not unused_before:
                del record.initializers[name]
                removed += 1
    return removed


def _remove_dead_nodes_once(root: Graph) -> int:
    """How many were removed: all, where nodes are sorted, for then consumers go before it is asked who consumes.

    What a removed body hands on of the graphs around it is dead the next time only.
    """
    graphs = list(graphs_below(root))
    kept = {id(v) for g in graphs for v in g.outputs}
    removed = 0
    for graph in reversed(graphs):
        dead: list[Node] = []
        for node in reversed(graph.nodes):
            if not any(v.outputs or id(v) in kept for v in node.outputs):
                dead.append(node)
                _cut(node)
        if dead:
            removed += len(dead)
            gone = set(map(id, dead))
            graph.nodes[:] = [n for n in graph.nodes if id(n) not in gone]
    return removed


def _cut(node: Node) -> None:
    """Makes a node, and those of its subgraphs, a user and producer of nothing."""
    for _, inner in subgraphs(node) if node.attrs else ():
        for below in inner.nodes:
            _cut(below)
        inner.nodes.clear()
    node.inputs.clear()
    node.outputs.clear()
