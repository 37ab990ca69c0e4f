"""The weights of linear layers as their nodes read them: separate, or shared with an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import NotHandled
from rnnqc.formats.codebooks import factors_of
from rnnqc.formats.packing import BYTE_BITS, pack, stored_bits
from rnnqc.ir import Graph, Model, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import LinearSite
from rnnqc.passes.formats.quantized_parameters import weight_codes
from rnnqc.passes.formats.weight_formats import weight_format
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.rest.int8_weights import Int8Weights
from rnnqc.recipes.keys import Settings
from rnnqc.recipes.recipe import Recipe

LARGEST_BITS = 8
_DEFAULT: Settings = {"bits": LARGEST_BITS, "signed": True, "narrow": True, "granularity": "per-channel"}


@dataclass(frozen=True)
class LinearWeight:
    """The weight of one or several nodes.

    Attributes:
        values: int8 `[K,N]`, or packed (rnnqc/formats/packing.py).
        scale: Scale of each column, `[N]`.
        multiplier: The scales as a value.
        graph: The graph that holds the constants.
        sizes: Size in bytes of each constant, by name.
        group_multiplier: uint8 `[G,N]` with a packed matrix.
        group_size: Number of rows that share a multiplier.
        bits: Width of its stored numbers.
        codebook: 1 if its groups have their own codebooks, else 0.
    """

    values: Value
    scale: npt.NDArray[np.float32]
    multiplier: Value
    graph: Graph
    sizes: Mapping[str, int]
    group_multiplier: Value | None = None
    group_size: int = 0
    bits: int = BYTE_BITS
    codebook: int = 0


def linear_settings(recipe: Recipe | None, point: str) -> Settings:
    """Returns the recipe's settings for the weight of a linear layer.

    Raises:
        NotHandled: They leave the layer float, or are unsupported by the operator.
    """
    path = f"{point}.weight"
    settings = _DEFAULT if recipe is None else recipe.settings(path)
    bits = settings.get("bits")
    if not bits or (recipe is not None and not recipe.settings(f"{point}.input").get("bits")):
        raise NotHandled(
            "the recipe does not quantize its input and its weight.",
            f"bits = none for {path!r} or {f'{point}.input'!r}",
            "give both points bits with --set",
        )
    found = [f"{k} = {settings[k]}" for k in ("wide_channels", "zero_point") if settings.get(k)]
    found += [] if bits <= LARGEST_BITS else [f"bits = {bits}"]
    found += [] if settings.get("signed", True) and settings.get("symmetric", True) else ["not symmetric"]
    if found:
        raise NotHandled(
            "its weight has a format that integer linear layers have not.",
            f"{', '.join(found)} for {path!r}",
            f"signed, symmetric weights of up to {LARGEST_BITS} bits are supported",
        )
    return settings


def stored_weight(
    model: Model, site: LinearSite, settings: Settings, moment: npt.NDArray[Any] | None, constants: Constants
) -> LinearWeight:
    """Stores the weight of a site for its node.

    Args:
        model: The model.
        site: The first site that reads it.
        settings: Its settings in the recipe.
        moment: Second moments of the site's input, `[K,K]`, or None.
        constants: The constants of the model.
    """
    array, point, home = site.matrix(constants), site.point, site.weight.graph
    format_ = weight_format(settings, array, np.ones(array.shape[1]), f"{point}.weight", 1)
    values = weight_codes(format_, array, moment)
    scale = np.broadcast_to(np.asarray(format_.complete.scale, np.float32), array.shape[1:]).copy()
    arrays: dict[str, npt.NDArray[Any]] = {"W": np.ascontiguousarray(values, np.int8), "multiplier": scale}
    size, bits = format_.group_size or -(-len(array) // 32) * 32, stored_bits(format_.bits)
    codebook = int(format_.codebook is not None)
    factors = factors_of(arrays["W"], size, bits, format_.codebook) if bits < BYTE_BITS else None
    if factors is not None and not factors[1].all():
        factors = None
    if factors is not None:
        arrays |= {"W": pack(factors[0], bits), "W_group_multiplier": factors[1]}
    held = {k: model.add_initializer(f"{point}.{k}", a, home) for k, a in arrays.items()}
    return LinearWeight(
        held["W"], scale, held["multiplier"], home, {c.name: arrays[k].nbytes for k, c in held.items()},
        held.get("W_group_multiplier"), *((size, bits, codebook) if factors is not None else (0, BYTE_BITS, 0)),
    )  # fmt: skip


def shared_weight(model: Model, site: LinearSite, weights: Int8Weights, constants: Constants) -> LinearWeight | None:
    """Returns the int8 weight that other operators read, too, for the node; None if its columns have no scales."""
    if site.is_convolution:
        return None
    held = weights.known(site.weight) or weights.of(model, site.weight)
    array = site.matrix(constants)
    scale = _turned(np.broadcast_to(np.asarray(held.scale.values), site.weight.shape), site, constants)
    if scale.shape != array.shape or not (scale == scale[:1]).all():
        return None
    b = Builder(model, prefix=site.point)
    values: Value = held.values
    for view in site.use.views:
        values = b.op(view.op, [values, *view.inputs[1:]], "W", **view.attrs)
    if site.transposed:
        values = b.op("Transpose", [values], "W", perm=[1, 0])
    multiplier = b.op("Reshape", [held.scale, b.i64([-1])], "multiplier")
    held.graph.nodes[:0] = b.nodes
    return LinearWeight(values, scale[0].copy(), multiplier, held.graph, held.stored("").constants)


def _turned(array: npt.NDArray[Any], site: LinearSite, constants: Constants) -> npt.NDArray[Any]:
    """Applies the views between the weight and the matmul to an array of the weight's shape."""
    shape = site.matrix(constants).shape
    for view in site.use.views:
        if view.op == "Transpose":
            array = array.transpose(view.attrs.get("perm"))
        elif view.op != "Identity":
            made = constants.array(view.outputs[0])
            assert made is not None
            array = array.reshape(made.shape)
    array = array.T if site.transposed else array
    return array if array.shape == shape else np.empty((0, 0))
