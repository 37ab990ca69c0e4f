"""Makes the inputs of linear layers observable: calibration of these inputs determines the rounding of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rnnqc.ir import Model, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import INPUT, LinearSite, every_linear_site, has_windows, linear_identity
from rnnqc.passes.analysis.rest_weights import LINEAR
from rnnqc.passes.cells.observe import ANY_RANK, Observed
from rnnqc.passes.graph.values.constant_expressions import Constants

MOST_WINDOWS = 64
"""Observed for each sample and convolution."""


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
        copy = _copied(b, site)
        homes[id(site.use.node)].nodes.extend(b.nodes)
        found.append(
            (Observed(site.point, INPUT, copy.name, False, ANY_RANK, identity["products"]["weight"][0]), identity)
        )
    model.sort()
    return found


def _is_alone(site: LinearSite) -> bool:
    """Whether only linear layers read the weight."""
    return all(u.kind == LINEAR or u.node is site.use.node for u in site.weight.uses)


def _copied(b: Builder, site: LinearSite) -> Value:
    """Copies the input of a layer, `[..,K]`; of a convolution some of its windows, `[N,P,K]`."""
    node = site.use.node
    return _windows(b, site) if site.is_convolution else b.op("Identity", [node.inputs[0]], "observed")


def _windows(b: Builder, site: LinearSite) -> Value:
    """Up to `MOST_WINDOWS` windows of each sample, evenly spaced: neighbours tell little that is new."""
    node, (_, channels, *kernel) = site.use.node, site.weight.shape
    windows, depth = node.inputs[0], channels * math.prod(kernel)
    if has_windows(site.use):
        taps = np.tile(np.eye(depth // channels), (channels, 1)).reshape(depth, 1, *kernel)
        windows = b.op("Conv", [windows, b.f32(taps)], "windows", **{**node.attrs, "group": channels})
    last = b.op("Transpose", [windows], "channels_last", perm=[0, *range(2, len(kernel) + 2), 1])
    rows = b.op("Reshape", [last, b.i64([0, -1, depth])], "rows")
    count = b.op("Gather", [b.op("Shape", [rows], "shape"), b.i64(1)], "count", axis=0)
    most = b.op("Min", [count, b.i64(MOST_WINDOWS)], "most")
    numbers = b.op("Range", [b.i64(0), most, b.i64(1)], "numbers")
    spaced = b.op("Div", [b.op("Mul", [numbers, count], "products"), most], "spaced")
    return b.op("Gather", [rows, spaced], "observed", axis=1)
