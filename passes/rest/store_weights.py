"""Stores weights of linear layers and convolutions as int8; their arithmetic stays float."""

from __future__ import annotations

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import Model
from rnnqc.passes.base import Pass, PassInfo, PassResult, StoredWeight
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.invariants import Property
from rnnqc.passes.rest.check_int8 import StoredWeightsCheck
from rnnqc.passes.rest.grouped_weights import grouped
from rnnqc.passes.rest.int8_weights import Int8Weights, half

FORM, HALF_FORM = "int8 storage", "float16 storage"


class StoreWeights(Pass):
    """Replaces float weights outside the recurrent layers by int8 constants and operators that dequantize them.

    Before: `Conv(x, W float32 [M,C,k])`

    After: `Conv(x, Reshape(Mul(Cast(W int8 [M,C*k/16,16]), Cast(scale float16 [M,C*k/16,1])), [M,C,k]))`

    Each group of about 16 weights of one output channel has a scale: with float arithmetic, groups cost nothing but
    their scales, and suit channels with a few large weights. A table that is also gathered as int8 rows has one scale
    per row.

    With `store = "float16"` for `<node>.weight`, in an override or a recipe file, the weight is float16, with a Cast.

    onnxruntime folds these operators when it creates a session, so the model runs as fast as before, with the same
    operators. The result is that of the float model with the dequantized weights.

    A weight stays, with a remark for each operator, if it is not float32, not finite, a default that a run may replace,
    also read as floats, or too small to gain.
    """

    info = PassInfo(
        name="store-weights",
        summary="store weights outside the recurrent layers as int8, compute in float",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, weights: Int8Weights | None = None) -> None:
        """A pass that stores a weight once with the passes that share `weights`."""
        self._weights = weights or Int8Weights()

    def constant_check(self, model: Model) -> ConstantCheck:
        """Checks the dequantized weights against the float weights."""
        weights = self._weights
        candidates = weights.candidates(model)
        return StoredWeightsCheck(candidates, lambda weight: weights.known(weight) is not None, weights.is_half)

    def run(self, model: Model) -> PassResult:
        """Stores the weights of every graph."""
        remarks: list[Remark] = []
        stored: dict[str, StoredWeight] = {}
        for weight in self._weights.candidates(model):
            if weight.refusal[0]:
                remarks += [self.remark(Outcome.FLOAT, u.path, u.node.op, *weight.refusal) for u in weight.uses]
                continue
            form, shared = FORM, self._weights.known(weight)
            if shared is not None:
                floats, sizes = shared.as_floats(model), shared.sizes
            elif self._weights.is_half(weight):
                form, (floats, sizes) = HALF_FORM, half(model, weight)
            else:
                floats, sizes = grouped(model, weight)
            model.replace_all_uses(weight.value, floats)
            stored |= {u.path: StoredWeight(form, sizes) for u in weight.uses}
            remarks += self._weights.unheard(self, weight.uses) if form == FORM else []
        if stored:
            model.remove_dead()
            model.sort()
        return PassResult(bool(stored), tuple(remarks), {"weights": len(stored)}, stored=stored)
