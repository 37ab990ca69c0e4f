"""Makes operators with float16 weights compute in float32, so that int8 can store the weights."""

from __future__ import annotations

import numpy as np

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Float16Close
from rnnqc.ir import Constant, Model, constant_array, display_name, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.rest_weights import EMBEDDING, RestWeight, WeightUse
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.float16_products import widen
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
            inputs = range(len(use.node.inputs)) if use.kind != EMBEDDING else ()
            widen(model, homes[id(use.node)], use.node, inputs, converted)
            remarks.append(self.remark(Outcome.NOTE, use.path, use.node.op, "of float16, computes in float32."))
        return PassResult(bool(remarks), tuple(remarks), {"operators": len(remarks)}, None if remarks else Bitwise())


def _widen_weight(model: Model, weight: RestWeight) -> None:
    """Replaces a weight by its float32 values, behind the same views."""
    array = constant_array(weight.value)
    assert array is not None
    wide = model.add_initializer(f"{weight.value.name}.float32", array.astype(np.float32), weight.graph)
    model.replace_all_uses(weight.value, wide)
    for view in {id(v): v for use in weight.uses for v in use.views}.values():
        made = view.outputs[0]
        inner = Builder(model, prefix=display_name(view)).value("float32", np.float32, shape_of(made))
        model.replace_all_uses(made, inner)
        view.outputs[0] = inner
