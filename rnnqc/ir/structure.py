"""What holds of the graphs of a model after every pass."""

from __future__ import annotations

from rnnqc.errors import StructureError
from rnnqc.ir.objects import Graph, captured_values, captures, display_name, graph_info, subgraphs


def check_structure(root: Graph) -> None:
    """Checks a graph and its subgraphs.

    Unique names, one producer per value, no dangling use, topological order.

    Raises:
        StructureError: One does not hold.
    """
    captured = captures(root)
    work: list[tuple[Graph, dict[str, int]]] = [(root, {})]
    while work:
        graph, around = work.pop()
        seen = dict(around)  # names to identities
        available = set(seen.values())
        for value in [*graph.inputs, *graph_info(graph).initializers.values()]:
            if seen.setdefault(value.name, id(value)) != id(value):
                where = "of a graph and of one around it" if value.name in around else "of one graph"
                raise StructureError(f"Two values {where} are called {value.name!r}.")
            available.add(id(value))
        for node in graph.nodes:
            inner = subgraphs(node) if node.attrs else ()
            for value in [*node.inputs, *captured_values(node, captured)] if inner else node.inputs:
                if id(value) not in available and value.name:
                    where = f"Node {display_name(node)!r} ({node.op})"
                    raise StructureError(f"{where} uses {value.name!r} before it exists.")
            for value in node.outputs:
                name = value.name
                if not name:
                    continue
                if len(value.inputs) != 1 or name in seen:
                    raise StructureError(f"Value {name!r} has more than one producer.")
                seen[name] = id(value)
                available.add(id(value))
            for _, body in inner:
                work.append((body, seen))
        for value in graph.outputs:
            if id(value) not in available:
                raise StructureError(f"Graph output {value.name!r} is made by no node.")
