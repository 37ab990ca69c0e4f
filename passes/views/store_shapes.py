"""Stores shapes whose computation makes onnxruntime lose a value that only branches read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, captured_values, subgraphs
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.values.known_values import known_array, store_array
from rnnqc.passes.views.shapes import infer_shapes_of_values

_ASKING = ("Shape", "Size")


class StoreShapes(Pass):
    """Replaces known shapes of values that a cell reads only in the branches of its Ifs by initializers.

    Before: `c = Gather(states)`, `LSTM cell(x, h, c)`, `Shape(c) -> Expand`

    After: `Expand` takes an initializer

    onnxruntime (1.19 to 1.32) replaces an If with a known condition by its branch. Until the graph is resolved, an If
    in that branch does not count as a reader. If the same optimization computes `Shape(c)`, it removes the producer of
    `c` as unused: the Gather. The run fails with "Missing Input".
    """

    info = PassInfo(
        name="store-shapes", summary="store known shapes of values that only branches of cells read", numerics=Bitwise()
    )

    def run(self, model: Model) -> PassResult:
        """Processes every graph; shapes unknown to onnxruntime before a run are harmless."""
        asking = [g for g in model.graphs() if any(n.op in _ASKING and not n.domain for n in g.nodes)]
        inside = _inputs_of_branches(model) if asking else {}
        found = [(graph, branches) for graph in asking if (branches := _read_in_branches(graph, inside))]
        if not found:
            return PassResult(False)
        infer_shapes_of_values(model)
        stored, returning = 0, list(model.graphs())
        for graph, branches in found:
            freed: list[Node] = []
            for node in graph.nodes:
                array = known_array(node) if node.op in _ASKING else None
                if array is not None and _is_removed_with(node, branches, graph):
                    freed += store_array(model, graph, node.outputs[0], array, returning)
                    stored += 1
            model.remove_nodes(graph, freed)
        return PassResult(stored > 0, (), {"shapes": stored})


def _inputs_of_branches(model: Model) -> dict[tuple[str, str], list[int]]:
    """Maps domain and name of functions to the inputs that their bodies do not read, or read in subgraphs only."""
    read = {(f.domain, f.name): {name for n in f.node for name in n.input} for f in model.functions}
    return {
        (f.domain, f.name): [k for k, name in enumerate(f.input) if name not in read[f.domain, f.name]]
        for f in model.functions
    }


def _read_in_branches(graph: Graph, inside: Mapping[tuple[str, str], Sequence[int]]) -> frozenset[int]:
    """Values that nodes of the graph read only in their subgraphs or those of their function bodies, by `id`."""
    found: list[Value] = []
    for node in graph.nodes:
        found += captured_values(node)
        found += [node.inputs[k] for k in inside.get((node.domain or "", node.op), ()) if k < len(node.inputs)]
    return frozenset(id(v) for v in found if v.name and v.inputs)


def _is_removed_with(shape: Node, branches: frozenset[int], graph: Graph) -> bool:
    """Whether onnxruntime removes the producer of one of these values when it computes the shape: no other readers."""
    outputs = {id(v) for v in graph.outputs}
    if any(id(v) in outputs for v in shape.outputs):
        return False
    pending = list(shape.inputs)
    while pending:
        value = pending.pop()
        if id(value) in branches:
            return True
        maker = value.inputs[0] if value.inputs else None
        if maker is None or subgraphs(maker) or len(value.outputs) > 1 or id(value) in outputs:
            continue
        pending += maker.inputs
    return False
