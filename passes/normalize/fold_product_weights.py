"""Stores recurrent weights that a model computes from constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from rnnqc.evaluation.numerics import Close
from rnnqc.ir import CELL_TAG, Constant, Graph, Model, Node, Value, constant_array, dtype_of, info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop
from rnnqc.passes.graph.values.constant_expressions import Constants, constant_expression
from rnnqc.passes.invariants import Property

_PRODUCTS = ("MatMul", "Gemm")
_STEPS = 3
"""How often weights are used by unrolled steps."""
_CODES = ("DequantizeLinear",)


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
        constants = Constants(model)
        operands = [place for graph, owner, _ in bodies(model) for place in _operands(graph, owner)]
        stored: dict[int, tuple[Value, Constant]] = {}
        for node, k in operands:
            value = node.inputs[k]
            if id(value) not in stored:
                array = constants.array(value) if _may_be_stored(value) else None
                if array is None or array.dtype.kind != "f":
                    continue
                kept = model.add_initializer(f"{value.name}.constant", np.asarray(array))
                stored[id(value)] = (value, kept)  # holds the value: ids are reused
            node.inputs[k] = stored[id(value)][1]
        return PassResult(bool(stored), (), {"folded": len(stored)})


def _operands(graph: Graph, owner: Node | None) -> Iterator[tuple[Node, int]]:
    """Yields nodes and the positions of their inputs that may be recurrent weights."""
    nodes = [n for n in graph.nodes if CELL_TAG not in info(n).metadata]
    products = [n for n in nodes if n.op in _PRODUCTS and not n.domain]
    if owner is not None and is_loop(owner) and products:
        yield from ((n, k) for n in nodes if not n.domain for k in range(len(n.inputs)))
        return
    uses = Counter(id(n.inputs[1]) for n in products if len(n.inputs) > 1)
    steps = [n for n in products if len(n.inputs) > 1 and uses[id(n.inputs[1])] >= _STEPS]
    yield from ((n, k) for n in steps for k in range(1, len(n.inputs)))


def _may_be_stored(value: Value) -> bool:
    """Whether `value` is computed from constants, and not from quantized values."""
    if not value.name or constant_array(value) is not None or (dtype_of(value) or np.dtype("f4")).kind != "f":
        return False
    nodes = constant_expression(value)
    return nodes is not None and not any(n.op in _CODES for n in nodes)
