"""Makes the inputs of linear layers observable: calibration of these inputs determines the rounding of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rnnqc.ir import Model, Value, attribute
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import INPUT, LinearSite, every_linear_site, has_windows, linear_identity
from rnnqc.passes.analysis.rest_weights import LINEAR
from rnnqc.passes.cells.observe import ANY_RANK, Observed
from rnnqc.passes.graph.values.constant_expressions import Constants

MOST_WINDOWS = 64
"""Observed for each sample and convolution."""
PIECE = 2**20
PLACES = np.arange(MOST_WINDOWS) * PIECE + np.arange(MOST_WINDOWS) * 648055 % PIECE
"""Where they are: one in each of `MOST_WINDOWS` equal pieces of `PIECE` parts, behind multiples of the golden ratio."""


def observe_linear_layers(model: Model) -> list[tuple[Observed, dict[str, Any]]]:
    """Adds copies of the inputs of linear layers to the model, in place, and the windows that convolutions multiply.

    Layers whose weights stay float, and those that share their weight with other operators, are skipped: their inputs
    have no effect.

    Returns:
        Each copy, `[.., K]`, and what distinguishes its layer from another one of the same name.
    """
    constants = Constants(model)
    homes = {id(n): g for g in model.graphs() for n in g.nodes}
    found = []
    for site in list(every_linear_site(model, constants)):
        if not _is_alone(site):
            continue
        identity = linear_identity(site, constants)
        b = Builder(model, prefix=f"{site.point}.{INPUT}")
        x = site.use.node.inputs[0]
        copy = _windows(b, site, constants) if site.is_convolution else b.op("Identity", [x], "observed")
        homes[id(site.use.node)].nodes.extend(b.nodes)
        found.append(
            (Observed(site.point, INPUT, copy.name, False, ANY_RANK, identity["products"]["weight"][0]), identity)
        )
    model.sort()
    return found


def _is_alone(site: LinearSite) -> bool:
    """Whether only linear layers read the weight."""
    return all(u.kind == LINEAR or u.node is site.use.node for u in site.weight.uses)


def _windows(b: Builder, site: LinearSite, constants: Constants) -> Value:
    """Up to `MOST_WINDOWS` windows of each sample, in every group of channels, `[N,P,K]`.

    They are spread, as neighbours tell little that is new, but not evenly: all of them might be of one column of an
    image, or of one phase of a transposed convolution.
    """
    node = site.use.node
    array = constants.array(node.inputs[1])
    assert array is not None
    groups, (first, second, *kernel) = attribute(node, "group", 1), array.shape
    is_transposed, taps = node.op == "ConvTranspose", math.prod(kernel)
    windows, channels = node.inputs[0], first if is_transposed else second * groups
    if has_windows(node):
        shape = (channels, taps) if is_transposed else (channels * taps, 1)
        one_hot = b.f32(np.tile(np.eye(taps), (channels, 1)).reshape(*shape, *kernel))
        windows = b.op(node.op, [windows, one_hot], "windows", **{**node.attrs, "group": channels})
    last = b.op("Transpose", [windows], "channels_last", perm=[0, *range(2, len(kernel) + 2), 1])
    rows = b.op("Reshape", [last, b.i64([0, -1, channels * taps])], "rows")
    count = b.op("Gather", [b.op("Shape", [rows], "shape"), b.i64([1])], "count", axis=0)
    most = b.op("Min", [count, b.i64([MOST_WINDOWS])], "most")
    places = b.op("Slice", [b.i64(PLACES), b.i64([0]), most], "places")
    parts = b.op("Mul", [most, b.i64([PIECE])], "parts")
    spread = b.op("Div", [b.op("Mul", [places, count], "products"), parts], "spread")
    made = b.op("Gather", [rows, spread], "observed", axis=1)
    return made if groups == 1 else b.op("Reshape", [made, b.i64([0, -1, channels // groups * taps])], "of_groups")
