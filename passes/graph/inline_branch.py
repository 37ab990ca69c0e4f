"""Replaces an If node by the nodes of one of its branches."""

from __future__ import annotations

from collections import Counter

from rnnqc.ir import Graph, Model, Node, Value, display_name, graph_info, output_number
from rnnqc.ir.builder import Builder


def inline_branch(model: Model, graph: Graph, node: Node, name: str) -> None:
    """Replaces If node `node` in `graph` by the nodes of its branch `name`.

    Nodes and values keep their names, which identify cells, unless another graph has the same ones: then they get the
    path of the branch as a prefix.
    """
    branch: Graph = node.attrs[name]
    del node.attrs[name]
    path = f"{display_name(node)}/{name}"
    taken = Counter(n for other in model.graphs() for n in _defined(other))  # no longer includes the branch
    for value in _defined(branch).values():
        if taken[value.name]:
            value.name = model.fresh_name(f"{path}/{value.name}")
    graph_info(graph).initializers.update({c.name: c for c in graph_info(branch).initializers.values()})
    named = {n.name for other in model.graphs() for n in other.nodes}
    for inner in branch.nodes:
        if inner.name in named:
            inner.name = model.fresh_name(f"{path}/{inner.name}")
    targets, outputs = list(node.outputs), {id(v) for v in graph.outputs}
    position = next(k for k, n in enumerate(graph.nodes) if n is node)
    model.remove_nodes(graph, [node])
    made = {id(v) for n in branch.nodes for v in n.outputs}
    passed = Builder(model, prefix=path)
    instead: dict[int, Value] = {}
    for returned, target in zip(branch.outputs, targets, strict=True):
        result = instead.get(id(returned), returned)
        if id(target) not in outputs:
            model.replace_all_uses(target, result)
        elif id(result) in made and id(result) not in outputs:
            instead[id(result)] = target
            _take_place(model, result, target)
        else:  # a constant, a value from around the branch, or one that makes another output
            passed.add("Identity", [result], [target], f"{target.name}.copied")
    graph.nodes[position:position] = [*branch.nodes, *passed.nodes]


def _take_place(model: Model, value: Value, target: Value) -> None:
    """Makes what makes `value` make `target`."""
    maker = value.inputs[0]
    position = output_number(maker, value)
    maker.outputs[position] = target
    model.replace_all_uses(value, target)


def _defined(graph: Graph) -> dict[str, Value]:
    """The values that a graph defines, by name; without those of its subgraphs."""
    defined: dict[str, Value] = {v.name: v for v in graph.inputs}
    defined.update(graph_info(graph).initializers)
    defined.update({v.name: v for n in graph.nodes for v in n.outputs if v.name})
    return defined
