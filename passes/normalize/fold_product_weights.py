"""Stores recurrent weights that a model computes from constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rnnqc.evaluation.numerics import Close
from rnnqc.ir import CELL_TAG, Graph, Model, Node, info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop
from rnnqc.passes.graph.nodes.products import factors
from rnnqc.passes.graph.values.constant_expressions import Constants, StoredFloats
from rnnqc.passes.invariants import Property

_STEPS = 3
"""How often weights are used by unrolled steps."""


class FoldProductWeights(Pass):
    """Makes initializers of constant expressions that steps of recurrences multiply by or add.

    Before: `Loop(...; x_t MatMul Transpose(V))`

    After: `Loop(...; x_t MatMul V')`, with V' = Transpose(V) an initializer

    This applies to every float operand in bodies of loops with a matmul, and to weights of unrolled steps that three or
    more matmuls share. Recurrent nodes have initializers already. Weights that are stored as integers stay quantized.
    """

    info = PassInfo(
        name="fold-product-weights",
        summary="fold recurrent weights that are computed from constants",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        stored = StoredFloats(Constants(model))
        operands = [place for graph, owner, _ in bodies(model) for place in _operands(graph, owner)]
        for node, k in operands:
            made = stored.of(node.inputs[k])
            if made is not None:
                node.inputs[k] = made
        return PassResult(len(stored) > 0, (), {"folded": len(stored)})


def _operands(graph: Graph, owner: Node | None) -> Iterator[tuple[Node, int]]:
    """Yields nodes and the positions of their inputs that may be recurrent weights."""
    nodes = [n for n in graph.nodes if CELL_TAG not in info(n).metadata]
    products = [n for n in nodes if factors(n)]
    if owner is not None and is_loop(owner) and products:
        yield from ((n, k) for n in nodes if not n.domain for k in range(len(n.inputs)))
        return
    uses = Counter(id(v) for n in products for v in factors(n))
    for node in products:
        shared = {id(v) for v in factors(node) if uses[id(v)] >= _STEPS}
        added = node.inputs[len(factors(node)) :] if shared else []
        yield from ((node, k) for k, v in enumerate(node.inputs) if id(v) in shared or any(v is a for a in added))
