"""Makes the inputs of linear layers observable: calibration of these inputs determines the rounding of weights."""

from __future__ import annotations

from typing import Any

from rnnqc.ir import Model, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import INPUT, LinearSite, every_linear_site, linear_identity
from rnnqc.passes.analysis.rest_weights import LINEAR
from rnnqc.passes.cells.observe import ANY_RANK, Observed
from rnnqc.passes.graph.values.constant_expressions import Constants


def observe_linear_layers(model: Model) -> list[tuple[Observed, dict[str, Any]]]:
    """Adds copies of the inputs of linear layers to the model, in place.

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
    """Copies the input of a layer, with channels last."""
    x, rank = site.use.node.inputs[0], len(site.weight.shape)
    if site.is_convolution:
        return b.op("Transpose", [x], "observed", perm=[0, *range(2, rank), 1])
    return b.op("Identity", [x], "observed")
