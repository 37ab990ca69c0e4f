"""Makes operators with float16 weights compute in float32, so that int8 can store the weights."""

from __future__ import annotations

import numpy as np

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Float16Close
from rnnqc.ir import (
    Constant,
    Graph,
    Model,
    Value,
    constant_array,
    display_name,
    dtype_of,
    input_or_none,
    shape_of,
)
from rnnqc.ir.builder import Builder, onnx_type
from rnnqc.passes.analysis.rest_weights import EMBEDDING, RestWeight, WeightUse
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.float16_products import float32_of
from rnnqc.passes.invariants import Property
from rnnqc.passes.rest.int8_weights import chosen_weights
from rnnqc.recipes.recipe import Recipe


class WidenOperators(Pass):
    """Puts Casts around operators with float16 weights that int8 is to store.

    Before: `Gemm(x, W, B)`, `Gather(table, indices)`, all floats float16

    After: `Cast(Gemm(Cast(x), W float32, B float32))`, `Cast(Gather(table float32, indices))`

    onnxruntime's CPU kernels of most of these operators are float32, too: it puts the same Casts around them. Later
    passes store the float32 weights as int8, which takes fewer bytes than float16.

    * A weight that int8 does not store stays float16: it is too small to gain, not finite, also read as floats, or the
      recipe leaves it float or asks for float16.
    * A weight that is computed from constants stays: `FoldWeights` makes a constant of it.
    * An input behind a Transpose is cast before the Transpose.
    """

    info = PassInfo(
        name="widen-operators",
        summary="compute operators with float16 weights outside the recurrent layers in float32",
        numerics=Float16Close(),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def __init__(self, recipe: Recipe | None = None) -> None:
        """A pass that leaves the weights float16 for which the recipe asks for no 8 bits."""
        self._recipe = recipe

    def run(self, model: Model) -> PassResult:
        """Looks at the weights of every graph."""
        homes = {id(n): g for g in model.graphs() for n in g.nodes}
        uses: dict[int, WeightUse] = {}
        for weight in chosen_weights(model, self._recipe):
            if weight.is_narrow and weight.computed is None and not weight.refusal[0]:
                _widen_weight(model, weight)
                uses |= {id(u.node): u for u in weight.uses}
        converted: dict[int, Constant] = {}
        remarks: list[Remark] = []
        for use in uses.values():
            _widen(model, homes[id(use.node)], use, converted)
            remarks.append(self.remark(Outcome.NOTE, use.path, use.node.op, "of float16, computes in float32."))
        return PassResult(bool(remarks), tuple(remarks), {"operators": len(remarks)}, None if remarks else Bitwise())


def _widen_weight(model: Model, weight: RestWeight) -> None:
    """Replaces a weight by its float32 values, behind the same views."""
    model.replace_all_uses(weight.value, _float32(model, weight.value, weight.graph))
    for view in {id(v): v for use in weight.uses for v in use.views}.values():
        inner = _float32_like(Builder(model, prefix=display_name(view)), view.outputs[0])
        model.replace_all_uses(view.outputs[0], inner)
        view.outputs[0] = inner


def _float32(model: Model, value: Value, graph: Graph | None = None) -> Constant:
    array = constant_array(value)
    assert array is not None
    return model.add_initializer(f"{value.name}.float32", array.astype(np.float32), graph)


def _float32_like(b: Builder, value: Value) -> Value:
    return b.value("float32", np.float32, shape_of(value))


def _widen(model: Model, graph: Graph, use: WeightUse, converted: dict[int, Constant]) -> None:
    """Puts Casts around an operator whose weight is float32 already."""
    node = use.node
    b = Builder(model, prefix=display_name(node))
    for k in range(len(node.inputs)) if use.kind != EMBEDDING else ():
        value = input_or_none(node, k)
        array = constant_array(value)
        if value is None or k == use.operand or (array is not None and array.dtype != np.float16):
            continue
        if array is None and dtype_of(value) != np.float32:
            node.inputs[k] = float32_of(b, value, f"input_{k}")
        elif array is not None:  # a bias
            if id(value) not in converted:
                converted[id(value)] = _float32(model, value)
            node.inputs[k] = converted[id(value)]
    before, b.nodes = b.nodes, []
    made = node.outputs[0]
    node.outputs[0] = _float32_like(b, made)
    b.add("Cast", [node.outputs[0]], [made], "float16", to=onnx_type(np.float16))
    model.insert_nodes(graph, node, before)
    model.insert_nodes_after(graph, node, b.nodes)
