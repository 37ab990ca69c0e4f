"""Computes what is known before a run: shapes, indices, conditions; and takes the branches that these choose."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from rnnqc.evaluation.evaluate import evaluate_nodes
from rnnqc.evaluation.numerics import Bitwise, Close
from rnnqc.ir import Graph, Model, Node, Value, constant_array, subgraphs
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.constant_expressions import constant_expression
from rnnqc.passes.graph.inline_branch import inline_branch
from rnnqc.passes.graph.known_values import known_array, store_array
from rnnqc.passes.invariants import Property

LARGEST = 4096
"""Bytes of a value that is stored in place of the node that makes it."""
_KEPT = ("Constant", "DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear")
"""Constants already, or stored integers, which stay integers."""


class FoldConstants(Pass):
    """Stores what follows from constants and from known sizes, and takes branches whose condition is known.

    Before: `Shape(x [1,576]) -> Gather(0) -> Equal(1) -> If(...)`

    After: the nodes of the branch that is taken

    1. `Shape` and `Size` of values of known shape become initializers, and what `Gather` and `Slice` take of a
       `Shape`, where those sizes are known.
    2. So do nodes all of whose inputs are constant: what they make, up to 4096 bytes, is computed in onnxruntime.
       Weights that are computed stay computed, because several operators may share what they are computed from.
    3. The nodes of the branch that a known condition chooses take the place of the If node.
    4. Then more shapes are known, and so on.

    A model with cells of an earlier lowering stays as it is: what they consist of is known by name.
    """

    info = PassInfo(
        name="fold-constants",
        summary="compute shapes, indices and conditions that are known before a run",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Applies the steps until nothing changes."""
        statistics = {"folded": 0, "branches": 0}
        floats = False
        while not model.cells:
            before = sum(statistics.values())
            model.infer_shapes()
            for graph in list(model.graphs()):
                kinds = _fold(model, graph)
                statistics["folded"] += len(kinds)
                floats |= "f" in kinds
            while any(_take_branch(model, graph) for graph in model.graphs()):
                statistics["branches"] += 1
            if sum(statistics.values()) == before:
                break
            model.remove_dead()
            model.sort()
        return PassResult(any(statistics.values()), (), statistics, None if floats else Bitwise())


def _fold(model: Model, graph: Graph) -> list[str]:
    """Stores what is known in one graph; the kinds of the types that were stored."""
    kinds: list[str] = []
    outputs = {id(v) for v in graph.outputs}
    for node in list(graph.nodes):
        if subgraphs(node) or any(id(v) in outputs for v in node.outputs):
            continue
        for value in node.outputs:
            array = _array(model, node, value) if value.name and value.outputs else None
            if array is not None and array.nbytes <= LARGEST and array.dtype.kind in "fiub":
                store_array(model, graph, value, array)
                kinds.append(array.dtype.kind)
    return kinds


def _array(model: Model, node: Node, value: Value) -> npt.NDArray[Any] | None:
    """What is known of an output of a node."""
    found = known_array(node)
    if found is not None:
        return found
    if node.op in _KEPT or not all(constant_array(v) is not None for v in node.inputs if v.name):
        return None
    if not node.inputs or constant_expression(value) is None:
        return None
    held = [n for v in node.inputs for n in v.inputs]  # Constant nodes
    return evaluate_nodes(model, [*dict.fromkeys(held), node], value)


def _take_branch(model: Model, graph: Graph) -> bool:
    """Puts a branch in the place of an If node of one graph whose condition is known; whether there was one."""
    for node in graph.nodes:
        condition = constant_array(node.inputs[0]) if node.op == "If" and not node.domain else None
        if condition is not None and condition.size == 1:
            inline_branch(model, graph, node, "then_branch" if condition.ravel()[0] else "else_branch")
            return True
    return False
