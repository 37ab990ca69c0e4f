"""Removes redundant nodes: rnnqc's own Identity nodes, and Squeeze after an equal Unsqueeze."""

from __future__ import annotations

import numpy as np

from rnnqc.ir import Graph, Model, Node, constant_array, info, output_number


def _own(node: Node) -> bool:
    return info(node).proto is None


def drop_identities(model: Model, graph: Graph, graphs: list[Graph]) -> int:
    """Removes rnnqc's own Identity nodes in `graph`, one of `graphs`, where possible; returns how many."""
    doomed: list[Node] = []
    outputs = {id(v) for v in graph.outputs}
    local = {id(v) for n in graph.nodes for v in n.outputs}
    bound = {v for c in model.cells.values() for v in c.outputs}
    for node in graph.nodes:
        if node.op != "Identity" or node.domain or not _own(node):
            continue
        source, target = node.inputs[0], node.outputs[0]
        if id(target) in outputs and (id(source) in outputs or id(source) not in local):
            continue
        keeps_name = id(target) in outputs or (
            target.name in bound and id(source) in local and id(source) not in outputs
        )
        if keeps_name:
            producer = source.inputs[0]
            if source.dtype is not None and target.dtype is None:
                target.dtype, target.shape = source.dtype, source.shape
            node.outputs.clear()
            position = output_number(producer, source)
            producer.outputs[position] = target
            rename_in_cells(model, source.name, target.name)
            model.replace_all_uses(source, target, graphs)
            local.add(id(target))
        else:
            rename_in_cells(model, target.name, source.name)
            model.replace_all_uses(target, source, graphs)
        doomed.append(node)
    model.remove_nodes(graph, doomed)
    return len(doomed)


def cancel_squeezes(model: Model, graph: Graph, graphs: list[Graph]) -> int:
    """Bypasses Squeeze after an equal Unsqueeze in `graph`, one of `graphs`; returns how many."""
    count = 0
    outputs = {id(v) for v in graph.outputs}
    local = {id(v) for n in graph.nodes for v in n.outputs}
    for node in graph.nodes:
        if node.op != "Squeeze" or node.domain or len(node.inputs) != 2 or len(node.inputs[0].inputs) != 1:
            continue
        before = node.inputs[0].inputs[0]
        if before.op != "Unsqueeze" or before.domain or not _own(before):
            continue
        axes, added = constant_array(node.inputs[1]), constant_array(before.inputs[1])
        if axes is None or added is None or not np.array_equal(axes, added) or id(node.outputs[0]) in outputs:
            continue
        if id(before.inputs[0]) not in local or not node.outputs[0].outputs:
            continue
        rename_in_cells(model, node.outputs[0].name, before.inputs[0].name)
        model.replace_all_uses(node.outputs[0], before.inputs[0], graphs)
        count += 1
    return count


def rename_in_cells(model: Model, old: str, new: str) -> None:
    """Replaces the value name `old` by `new` in every cell of the model."""
    for name, cell in model.cells.items():
        model.cells[name] = cell.renamed(old, new)
