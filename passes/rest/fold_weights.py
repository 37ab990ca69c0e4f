"""Folds weights outside the recurrent layers that a model computes from constants."""

from __future__ import annotations

from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Model
from rnnqc.passes.analysis.rest_weights import rest_weights
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.invariants import Property


class FoldWeights(Pass):
    """Turns weights that operators compute from constants into initializers, so that they can be stored as int8.

    Before: `MatMul(x, Split(W float32 [K,3N])[1])`, `Gemm(x, Cast(W float16))`

    After: `MatMul(x, W' float32 [K,N])`, `Gemm(x, W' float32)`

    Weights that are only views of a constant stay, because they are stored with it. So do weights computed by rounding,
    which are quantized values, and weights that need more bytes as int8 than their sources.
    """

    info = PassInfo(
        name="fold-weights",
        summary="fold weights outside the recurrent layers that are computed from constants",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Folds weights in every graph."""
        found = [w for w in rest_weights(model) if w.computed is not None and not w.refusal[0]]
        for weight in found:
            assert weight.computed is not None
            kept = model.add_initializer(weight.value.name, weight.computed)
            for use in weight.uses:
                use.node.inputs[use.operand] = kept
        return PassResult(bool(found), (), {"folded": len(found)})
