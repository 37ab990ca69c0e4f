"""The invariants of a model's graphs after every pass."""

from __future__ import annotations

from rnnqc.errors import StructureError
from rnnqc.ir.objects import Graph, display_name, graph_info, subgraphs


def check_structure(root: Graph) -> None:
    """Checks a graph and its subgraphs.

    Unique names, one producer per value, no dangling use, topological order.

    Raises:
        StructureError: A check fails.
    """
    _check(root, {})


def _check(graph: Graph, seen: dict[str, int]) -> set[str]:
    """Checks a graph and its subgraphs; returns the names that they define.

    Args:
        graph: The graph.
        seen: Identities of the outer values by name; during the check, also of the graph's own values.
    """
    own: list[str] = []
    below: set[str] = set()
    for value in [*graph.inputs, *graph_info(graph).initializers.values()]:
        name = value.name
        if name not in seen:
            seen[name] = id(value)
            own.append(name)
        elif seen[name] != id(value):
            where = "of one graph" if name in own else "of a graph and of one around it"
            raise StructureError(f"Two values {where} are called {name!r}.")
    for node in graph.nodes:
        for value in node.inputs:
            if seen.get(value.name) != id(value) and value.name:
                where = f"Node {display_name(node)!r} ({node.op})"
                raise StructureError(f"{where} uses {value.name!r} before it exists.")
        if node.attrs:
            for _, inner in subgraphs(node):
                below |= _check(inner, seen)
        for value in node.outputs:
            name = value.name
            if not name:
                continue
            if len(value.inputs) != 1 or name in seen:
                raise StructureError(f"Value {name!r} has more than one producer.")
            if name in below:
                raise StructureError(f"Two values of a graph and of one around it are called {name!r}.")
            seen[name] = id(value)
            own.append(name)
    for value in graph.outputs:
        if seen.get(value.name) != id(value):
            raise StructureError(f"Graph output {value.name!r} is made by no node.")
    for name in own:
        del seen[name]
    below.update(own)
    return below
