"""What holds of the graphs of a model after every pass."""

from __future__ import annotations

from collections import ChainMap

from rnnqc.errors import StructureError
from rnnqc.ir.objects import Graph, captured_values, captures, display_name, graph_info, subgraphs


def check_structure(root: Graph) -> None:
    """Checks a graph and its subgraphs.

    Unique names, one producer per value, no dangling use, topological order.

    Raises:
        StructureError: One does not hold.
    """
    captured = captures(root)
    work: list[tuple[Graph, ChainMap[str, int]]] = [(root, ChainMap())]
    while work:
        graph, around = work.pop()
        outside = set(around.values())
        seen = around.new_child()  # names to identities
        for value in [*graph.inputs, *graph_info(graph).initializers.values()]:
            if seen.setdefault(value.name, id(value)) != id(value):
                where = "of one graph" if value.name in seen.maps[0] else "of a graph and of one around it"
                raise StructureError(f"Two values {where} are called {value.name!r}.")
        available = outside | set(seen.maps[0].values())
        for node in graph.nodes:
            for value in [*node.inputs, *captured_values(node, captured)]:
                if value.name and id(value) not in available:
                    where = f"Node {display_name(node)!r} ({node.op})"
                    raise StructureError(f"{where} uses {value.name!r} before it exists.")
            for value in node.outputs:
                if not value.name:
                    continue
                if len(value.inputs) != 1 or value.name in seen:
                    raise StructureError(f"Value {value.name!r} has more than one producer.")
                seen[value.name] = id(value)
                available.add(id(value))
            work.extend((inner, seen) for _, inner in subgraphs(node))
        for value in graph.outputs:
            if id(value) not in available:
                raise StructureError(f"Graph output {value.name!r} is made by no node.")
