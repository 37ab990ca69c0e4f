"""Removes nodes, and unused nodes and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rnnqc.ir.objects import Graph, Node, graph_info, graphs_below, subgraphs


def remove_nodes(graph: Graph, nodes: Iterable[Node]) -> None:
    """Removes `nodes` from `graph` and cuts their edges."""
    doomed = {id(n) for n in nodes}
    for node in [n for n in graph.nodes if id(n) in doomed]:
        cut_edges(node)
    graph.nodes[:] = [n for n in graph.nodes if id(n) not in doomed]


def cut_edges(node: Node) -> None:
    """Removes all edges of a node and of the nodes in its subgraphs."""
    for _, inner in subgraphs(node) if node.attrs else ():
        for below in inner.nodes:
            cut_edges(below)
        inner.nodes.clear()
    node.inputs.clear()
    node.outputs.clear()


def remove_dead_nodes(root: Graph, keeps: Callable[[Node], bool] | None = None) -> int:
    """Removes unused nodes from a graph and its subgraphs, except those that `keeps` names; returns how many."""
    removed = 0
    while dead := _remove_dead_nodes_once(root, keeps):
        removed += dead
    return removed


def remove_dead_constants(root: Graph) -> int:
    """Removes unused initializers, except those that were unused in the file; returns how many."""
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


def _remove_dead_nodes_once(root: Graph, keeps: Callable[[Node], bool] | None) -> int:
    """Removes unused nodes in one pass, and returns how many. In sorted graphs it finds all: consumers come first.

    Outer values that only a removed subgraph returned become unused in the next pass.
    """
    graphs = list(graphs_below(root))
    kept = {id(v) for g in graphs for v in g.outputs}
    removed = 0
    for graph in reversed(graphs):
        dead: list[Node] = []
        for node in reversed(graph.nodes):
            if not any(v.outputs or id(v) in kept for v in node.outputs) and not (keeps is not None and keeps(node)):
                dead.append(node)
                cut_edges(node)
        if dead:
            removed += len(dead)
            gone = set(map(id, dead))
            graph.nodes[:] = [n for n in graph.nodes if id(n) not in gone]
    return removed
