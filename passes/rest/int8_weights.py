"""Float weights stored as int8, with a scale for each channel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import Outcome, Remark
from rnnqc.formats.format import Format
from rnnqc.formats.scales import symmetric_scale
from rnnqc.formats.weights import blocks
from rnnqc.ir import Constant, Graph, Model, Value, constant_array, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.rest_weights import RestWeight, WeightUse, rest_weights
from rnnqc.passes.base import Pass, StoredWeight
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.rules import Rule, override_text

BITS = 8
HALF, LARGEST_HALF = "float16", 65504.0
_LEAST_WHOLE_HALF = 2.0**-14
"""From here on float16 has all its 11 bits."""
_ANY_CELL = "cell.W.weight"
"""A point of a recurrent layer: a rule that matches it is not meant for operators outside recurrent layers alone."""


@dataclass
class Int8Weight:
    """One float weight as int8 values.

    Attributes:
        source: The float weight.
        graph: The graph of the weight, and of its int8 values.
        values: int8, with the shape of the weight, from -127 to 127.
        scale: float32 or float16, `[1,...,n,...,1]`: the largest magnitude of each channel is 127 times its scale, or
            up to a thousandth less.
        axis: The axis of the channels.
    """

    source: Value
    graph: Graph
    values: Constant
    scale: Constant
    axis: int
    _scales_of_rows: Value | None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        """Returns the bytes of both constants by name."""
        return {c.name: int(np.prod(c.shape)) * np.dtype(c.dtype).itemsize for c in (self.values, self.scale)}

    def stored(self, form: str) -> StoredWeight:
        """Returns the record for the result of a pass."""
        return StoredWeight(form, self.sizes)

    def as_floats(self, model: Model) -> Value:
        """Returns a value with the dequantized weight, computed in the graph of the weight.

        It uses Cast and Mul, which onnxruntime folds when it creates a session. It would repeat a DequantizeLinear in
        every run, and may fuse it and a MatMul into an operator that quantizes the other operand, too: the bits would
        then depend on its optimization level.
        """
        b = Builder(model, prefix=safe_name(self.source.name))
        floats = b.op("Mul", [b.cast(self.values, np.float32, "int8.cast"), self.scale], "floats")
        self.graph.nodes[:0] = b.nodes
        return floats

    def scales_of_rows(self, model: Model) -> Value:
        """Returns the scales as float32 for a Gather, computed in the graph of the weight.

        Uses a Cast, even from float32: onnxruntime folds it when it creates a session, and its `quantize_dynamic` would
        quantize a constant that a Gather reads.
        """
        if self._scales_of_rows is None:
            b = Builder(model, prefix=safe_name(self.source.name))
            self._scales_of_rows = b.cast(self.scale, np.float32, "scale.cast")
            self.graph.nodes[:0] = b.nodes
        return self._scales_of_rows


class Int8Weights:
    """The weights of one model that passes store as int8. Passes that share this object store a tied weight once.

    Attributes:
        recipe: Its rules for `<node>.weight` may leave weights float.
    """

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = recipe
        self._known: dict[tuple[int, int], Int8Weight] = {}

    def candidates(self, model: Model) -> list[RestWeight]:
        """Returns the float weights outside the recurrent layers; those that the recipe leaves float have a refusal.

        So have float16 weights: `WidenOperators` makes those that int8 stores float32.
        """
        reason, action = "its weight is not float32.", "run the pass widen-operators before"
        return [
            replace(w, refusal=(reason, f"{w.value.name!r} is float16", action))
            if w.is_narrow and not w.refusal[0]
            else w
            for w in chosen_weights(model, self.recipe)
        ]

    def is_half(self, weight: RestWeight) -> bool:
        """Whether user rules for an operator of the weight ask for float16 (`store = "float16"`)."""
        return is_half(weight, self.recipe)

    def unheard(self, speaker: Pass, uses: Iterable[WeightUse], heard: Collection[str] = ()) -> list[Remark]:
        """Returns a warning for each operator whose weight has 8 bits although the user asks for another format.

        Args:
            speaker: The pass that warns.
            uses: The operators.
            heard: Keys that count, apart from `bits`.
        """
        remarks: list[Remark] = []
        for use in uses:
            settings = [
                (r.points, key, value)
                for r in _own_rules(use, self.recipe)
                for key, value in r.settings.items()
                if key not in heard
            ]
            asked = [override_text(*setting) for setting in settings if setting[1:] != ("bits", BITS)]
            if asked:
                reason = "its weight is stored in 8 bits; a rule of the recipe or an override has no effect."
                why = (reason, ", ".join(asked))
                action = "leave it out, or leave the weight float with bits = none"
                remarks.append(speaker.remark(Outcome.WARNING, use.path, use.node.op, *why, action))
        return remarks

    def known(self, weight: RestWeight) -> Int8Weight | None:
        """Returns the weight as int8, with scales along `weight.axis`, if a pass has stored it; None otherwise."""
        known = self._known.get((id(weight.value), weight.axis))
        return known if known is not None and known.source is weight.value else None

    def of(self, model: Model, weight: RestWeight) -> Int8Weight:
        """Returns the weight as int8, with scales along `weight.axis`; the same object for the same weight and axis.

        Scales of rows that are only gathered are float16 if all of them are normal numbers of it.
        """
        known = self.known(weight)
        if known is None:
            array = constant_array(weight.value)
            assert array is not None
            values, scale = quantized(array, weight.axis, may_be_half=all(u.reads_rows for u in weight.uses))
            name = safe_name(weight.value.name)
            known = Int8Weight(
                weight.value,
                weight.graph,
                model.add_initializer(f"{name}.int8", values, weight.graph),
                model.add_initializer(f"{name}.scale", scale, weight.graph),
                weight.axis,
            )
            self._known[id(weight.value), weight.axis] = known
        return known


def is_half(weight: RestWeight, recipe: Recipe | None) -> bool:
    """Whether user rules for an operator of the weight ask for float16; the first rule with `store` decides."""
    said = ([r.settings["store"] for r in _own_rules(u, recipe) if "store" in r.settings] for u in weight.uses)
    return any(stores[0] == HALF for stores in said if stores)


def _own_rules(use: WeightUse, recipe: Recipe | None) -> list[Rule]:
    """Returns the user's rules for the weight of an operator, without those that also match recurrent layers."""
    rules = () if recipe is None else recipe.rules[: recipe.of_user]
    return [r for r in rules if r.matches(f"{use.point}.weight") and not r.matches(_ANY_CELL)]


def half(model: Model, weight: RestWeight) -> tuple[Value, Mapping[str, int]]:
    """Stores the weight as float16; returns the value with its floats, and bytes of constants by name."""
    array = constant_array(weight.value)
    assert array is not None
    name = safe_name(weight.value.name)
    stored = model.add_initializer(f"{name}.float16", array.astype(np.float16), weight.graph)
    b = Builder(model, prefix=name)
    floats = b.cast(stored, np.float32, "floats")
    weight.graph.nodes[:0] = b.nodes
    return floats, {stored.name: 2 * array.size}


def chosen_weights(model: Model, recipe: Recipe | None) -> list[RestWeight]:
    """Returns the float weights outside the recurrent layers; rules with bits = none for `<node>.weight` refuse one.

    A weight that several operators read has one form: it stays float if a rule leaves it float for one of them.
    """
    weights = rest_weights(model)
    if recipe is None:
        return weights
    return [w if w.refusal[0] else _judged(w, recipe) for w in weights]


def _judged(weight: RestWeight, recipe: Recipe) -> RestWeight:
    for use in weight.uses:
        path = f"{use.point}.weight"
        if recipe.settings(path).get("bits", BITS) is None:
            why = ("the recipe leaves its weight float.", f"bits = none for {path!r}", "give it bits = 8 with --set")
            return replace(weight, refusal=why)
    array = constant_array(weight.value) if is_half(weight, recipe) else None
    if array is not None and weight.is_narrow:
        return replace(weight, refusal=("its weight is float16 as it is.", f"store = {HALF!r}", "leave it out"))
    if array is not None and np.abs(array).max() > LARGEST_HALF:
        why = ("it has weights that float16 does not hold.", f"store = {HALF!r}", "leave it out")
        return replace(weight, refusal=why)
    return weight


def quantized(
    array: npt.NDArray[np.float32], axis: int, *, may_be_half: bool = False
) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """Quantizes a weight to int8, symmetric, with a scale for each channel along `axis`.

    Returns:
        int8 values of the same shape, and scales `[1,...,n,...,1]`: float32, or float16 if allowed and all of them are
        normal numbers of it.
    """
    channels = np.moveaxis(array, axis, 0)
    rows = channels.reshape(len(channels), -1)
    values = np.empty(rows.shape, np.int8)
    largest = [np.abs(rows[block]).max(axis=1, initial=0.0) for block in blocks(len(rows))]
    exact = symmetric_scale(np.concatenate([np.empty(0), *largest]), BITS)
    is_half = may_be_half and exact.min(initial=1.0) >= _LEAST_WHOLE_HALF and exact.max(initial=0.0) <= LARGEST_HALF
    scale = not_below(exact, np.float16 if is_half else np.float32)
    for block in blocks(len(rows)):
        part = rows[block]
        format_ = Format(BITS, True, narrow=True, axis=0, scale=tuple(map(float, scale[block])))
        values[block] = format_.quantize(part)
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.ascontiguousarray(np.moveaxis(values.reshape(channels.shape), 0, axis)), scale.reshape(shape)


def not_below(exact: npt.NDArray[np.float64], dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """Rounds scales: to float16 upwards, so that int8 reaches the largest magnitudes, or to the nearest float32."""
    made = exact.astype(dtype)
    if dtype == np.float16:
        up = (made == 0) | (made.astype(np.float64) < exact)
        made = np.where(up, np.nextafter(made, np.float16(np.inf)), made)
    return made
