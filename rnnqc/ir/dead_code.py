"""Removes nodes, and what nothing uses."""

from __future__ import annotations

from collections.abc import Container, Iterable

from rnnqc.ir.objects import Graph, Node, Value, captured_by, captured_values, graph_info, graphs_below, subgraphs


def remove_nodes(graph: Graph, nodes: Iterable[Node]) -> None:
    """Removes `nodes` from `graph` and cuts their edges."""
    doomed = {id(n) for n in nodes}
    for node in [n for n in graph.nodes if id(n) in doomed]:
        for _, inner in subgraphs(node):
            remove_nodes(inner, inner.nodes)
        node.inputs.clear()
        node.outputs.clear()
    graph.nodes[:] = [n for n in graph.nodes if id(n) not in doomed]


def remove_dead_nodes(root: Graph) -> int:
    """Removes the nodes that nothing uses from a graph and its subgraphs; returns how many."""
    removed, again = _remove_dead_nodes_once(root)
    while again:
        dead, again = _remove_dead_nodes_once(root)
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


def _remove_dead_nodes_once(root: Graph) -> tuple[int, bool]:
    """How many were removed, and whether subgraphs were, too: what those used around them is dead only now."""
    removed, bodies = 0, False
    captured: dict[int, list[Value]] = {}
    for graph in reversed(list(graphs_below(root))):
        # Consumers in subgraphs of dead nodes have been cut already: inner graphs are visited with their node.
        local = {id(n) for n in graph.nodes}
        outside = {id(v) for v in graph.outputs}
        stack = [n for n in graph.nodes if _is_used_outside(n, outside, local)]
        live: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in live:
                continue
            live.add(id(node))
            for value in [*node.inputs, *captured_values(node, captured)] if node.attrs else node.inputs:
                if value.inputs:
                    stack += [p for p in value.inputs if id(p) in local and id(p) not in live]
        dead = [n for n in graph.nodes if id(n) not in live]
        if dead:
            removed += len(dead)
            bodies |= any(subgraphs(n) for n in dead)
            remove_nodes(graph, dead)
        if graph is not root:
            captured[id(graph)] = captured_by(graph, captured)
    return removed, bodies


def _is_used_outside(node: Node, outputs: Container[int], local: Container[int]) -> bool:
    """Whether something that a node makes is among the outputs of its graph, or used by a node that is not in it."""
    for value in node.outputs:
        if id(value) in outputs:
            return True
        for consumer in value.outputs:
            if id(consumer) not in local:
                return True
    return False
