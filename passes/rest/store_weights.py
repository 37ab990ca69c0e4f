"""Stores weights of linear layers and convolutions as int8; their arithmetic stays float."""

from __future__ import annotations

from collections.abc import Iterable

from rnnqc.data.statistics import Statistics
from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import Model
from rnnqc.passes.analysis.linear_sites import INPUT, every_linear_site, input_moment
from rnnqc.passes.analysis.rest_weights import RestWeight, WeightUse
from rnnqc.passes.base import Pass, PassInfo, PassResult, StoredWeight
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.invariants import Property
from rnnqc.passes.rest.check_int8 import StoredWeightsCheck
from rnnqc.passes.rest.grouped_weights import Multiplied, grouped
from rnnqc.passes.rest.int8_weights import Int8Weights, half
from rnnqc.recipes.recipe import Recipe

FORM, HALF_FORM = "int8 storage", "float16 storage"
COMPENSATION = "compensation"
"""The key of a rule."""


class StoreWeights(Pass):
    """Replaces float weights outside the recurrent layers by int8 constants and operators that dequantize them.

    Before: `Conv(x, W float32 [M,C,k])`

    After: `Conv(x, Reshape(Mul(Cast(W int8 [M,C*k/8,8]), Cast(scale float16 [M,C*k/8,1])), [M,C,k]))`

    Each group of about eight weights of one output channel has a scale: with float arithmetic, groups cost nothing but
    their scales, and suit channels with a few large weights. A table that is also gathered as int8 rows has one scale
    per row.

    With second moments of the input of a linear layer or of the windows of a convolution, and `compensation` in the
    rules for `<node>.weight`, the int8 values of an output channel are rounded together, so that errors cancel
    (`rnnqc.formats.compensation`). Scales stay what they are.

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

    def __init__(
        self, weights: Int8Weights | None = None, recipe: Recipe | None = None, statistics: Statistics | None = None
    ) -> None:
        """A pass that stores a weight once with the passes that share `weights`.

        Args:
            weights: Weights that other passes store as int8.
            recipe: Says whether weights are compensated.
            statistics: Statistics of a calibration: second moments of inputs are used.
        """
        self._weights = weights or Int8Weights()
        self._recipe, self._statistics = recipe, statistics

    def constant_check(self, model: Model) -> ConstantCheck:
        """Checks the dequantized weights against the float weights."""
        weights = self._weights
        candidates = weights.candidates(model)
        multiplied = self._multiplied(model, candidates)
        return StoredWeightsCheck(
            candidates, lambda weight: weights.known(weight) is not None, weights.is_half, multiplied.keys()
        )

    def run(self, model: Model) -> PassResult:
        """Stores the weights of every graph."""
        remarks: list[Remark] = []
        stored: dict[str, StoredWeight] = {}
        candidates = self._weights.candidates(model)
        multiplied = self._multiplied(model, candidates)
        for weight in candidates:
            if weight.refusal[0]:
                remarks += [self.remark(Outcome.FLOAT, u.path, u.node.op, *weight.refusal) for u in weight.uses]
                continue
            form, shared = FORM, self._weights.known(weight)
            if shared is not None:
                floats, sizes = shared.as_floats(model), shared.sizes
            elif self._weights.is_half(weight):
                form, (floats, sizes) = HALF_FORM, half(model, weight)
            else:
                floats, sizes = grouped(model, weight, multiplied.get(id(weight.value)))
            model.replace_all_uses(weight.value, floats)
            stored |= {u.path: StoredWeight(form, sizes) for u in weight.uses}
            heard = (COMPENSATION,) if any(self._seen(use) for use in weight.uses) else ()
            remarks += self._weights.unheard(self, weight.uses, heard) if form == FORM else []
        return PassResult(bool(stored), tuple(remarks), {"weights": len(stored)}, stored=stored)

    def _multiplied(self, model: Model, weights: Iterable[RestWeight]) -> dict[int, Multiplied]:
        """Returns the inputs of the weights that are compensated, by id of the weight's value."""
        if self._recipe is None or self._statistics is None:
            return {}
        constants, found = Constants(model), dict[int, Multiplied]()
        for site in every_linear_site(model, constants, weights):
            use, asked = site.use, self._recipe.settings(f"{site.point}.weight").get(COMPENSATION)
            if asked and len(site.weight.uses) == 1 and not use.views and self._seen(use):
                moment = input_moment(self._statistics, site, constants)
                if moment is not None:
                    found[id(site.weight.value)] = Multiplied(moment, site.layout(site.weight.shape))
        return found

    def _seen(self, use: WeightUse) -> bool:
        """Whether statistics have second moments of the input of an operator."""
        return self._statistics is not None and f"{use.point}.{INPUT}" in self._statistics.second_moments
