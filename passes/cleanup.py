"""Tidies up behind the other passes."""

from __future__ import annotations

import hashlib

import numpy as np

from rnnqc.ir import Constant, Graph, Model, Node, constant_array, graph_info, info
from rnnqc.numerics import Bitwise
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.check_kept import KeptConstantsCheck
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.unused_states import drop_unused_states

SHARED_FROM = 64  # bytes; smaller constants are shared when they are made


class Cleanup(Pass):
    """Removes what nothing uses and joins what is equal.

    1. Dead nodes and initializers go, and what loops carry, read and return in vain.
    2. `Identity(x)` of rnnqc's own making goes; its consumers use `x`. An Identity that makes a graph output stays
       where `x` is an input, a constant or made outside the graph, and otherwise gives its name to `x`.
    3. `Squeeze(Unsqueeze(x, a), a)` becomes `x`.
    4. Initializers with equal contents made by rnnqc become one.
    5. Nodes are sorted topologically.
    """

    info = PassInfo(name="cleanup", summary="remove dead nodes, join equal constants, sort", numerics=Bitwise())

    def constant_check(self, model: Model) -> ConstantCheck:
        """What integer cells hold stays as it is."""
        return KeptConstantsCheck(model)

    def run(self, model: Model) -> PassResult:
        """Applies the five steps until the graph is tidy."""
        statistics = {"dead": 0, "states": 0, "identities": 0, "squeezes": 0, "shared": 0}
        statistics["dead"] += model.remove_dead()
        statistics["states"] += drop_unused_states(model)
        statistics["dead"] += model.remove_dead()
        graphs = list(model.graphs())
        # Each of the two can make room for the other.
        while True:
            squeezes = sum(cancel_squeezes(model, g, graphs) for g in graphs)
            identities = sum(drop_identities(model, g, graphs) for g in graphs)
            statistics["squeezes"] += squeezes
            statistics["identities"] += identities
            if not squeezes + identities:
                break
        statistics["shared"] = _share_initializers(model)
        statistics["dead"] += model.remove_dead()
        before = [n for g in model.graphs() for n in g.nodes]
        model.sort()
        moved = any(a is not b for a, b in zip(before, (n for g in model.graphs() for n in g.nodes), strict=True))
        return PassResult(moved or any(statistics.values()), (), statistics)


def _own(node: Node) -> bool:
    return info(node).proto is None


def drop_identities(model: Model, graph: Graph, graphs: list[Graph]) -> int:
    """Removes what it can of rnnqc's own Identity nodes in `graph`, one of `graphs`; returns how many."""
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
            position = next(k for k, v in enumerate(producer.outputs) if v is source)
            producer.outputs[position] = target
            _rename_in_cells(model, source.name, target.name)
            model.replace_all_uses(source, target, graphs)
            local.add(id(target))
        else:
            _rename_in_cells(model, target.name, source.name)
            model.replace_all_uses(target, source, graphs)
        doomed.append(node)
    model.remove_nodes(graph, doomed)
    return len(doomed)


def cancel_squeezes(model: Model, graph: Graph, graphs: list[Graph]) -> int:
    """Skips Squeeze after an equal Unsqueeze in `graph`, one of `graphs`; returns how many."""
    count = 0
    outputs = {id(v) for v in graph.outputs}
    for node in graph.nodes:
        if node.op != "Squeeze" or node.domain or len(node.inputs) != 2 or len(node.inputs[0].inputs) != 1:
            continue
        before = node.inputs[0].inputs[0]
        if before.op != "Unsqueeze" or before.domain or not _own(before):
            continue
        axes, added = constant_array(node.inputs[1]), constant_array(before.inputs[1])
        if axes is None or added is None or not np.array_equal(axes, added) or id(node.outputs[0]) in outputs:
            continue
        if not any(v is before.inputs[0] for n in graph.nodes for v in n.outputs):
            continue
        if not node.outputs[0].outputs:
            continue
        _rename_in_cells(model, node.outputs[0].name, before.inputs[0].name)
        model.replace_all_uses(node.outputs[0], before.inputs[0], graphs)
        count += 1
    return count


def _share_initializers(model: Model) -> int:
    seen: dict[tuple[str, tuple[int, ...], bytes], Constant] = {}
    shared = 0
    originals = {t.name for g in model.graphs() if (p := graph_info(g).proto) is not None for t in p.initializer}
    held = graph_info(model.graph).initializers
    for name, constant in list(held.items()):
        if name in originals:
            continue
        array = constant_array(constant)
        if array is None or array.nbytes < SHARED_FROM:
            continue
        key = (array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest())
        first = seen.setdefault(key, constant)
        if first is not constant:
            _rename_in_cells(model, constant.name, first.name)
            model.replace_all_uses(constant, first)
            shared += 1
    return shared


def _rename_in_cells(model: Model, old: str, new: str) -> None:
    for name, cell in model.cells.items():
        model.cells[name] = cell.renamed(old, new)
