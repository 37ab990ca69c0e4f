"""Lowers linear layers with constant weights to integer arithmetic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rnnqc.cells.linear_nodes import LinearKind
from rnnqc.data.statistics import Statistics
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import DOMAIN, Graph, Model, Node, Value, display_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import LinearSite, input_moment, is_matmul, linear_site, linear_uses
from rnnqc.passes.analysis.rest_weights import RestWeight, WeightUse, rest_weights
from rnnqc.passes.base import Pass, PassInfo, PassResult, StoredWeight
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.invariants import Property
from rnnqc.passes.linear.check_linear import LinearCheck
from rnnqc.passes.linear.linear_function import emit_linear, linear_function
from rnnqc.passes.linear.linear_weights import LinearWeight, linear_settings, shared_weight, stored_weight
from rnnqc.passes.rest.int8_weights import Int8Weights
from rnnqc.recipes.recipe import Recipe

LEAST_WEIGHTS = 2**18
"""Below so many weights a function body takes longer than a float matmul of one row."""
FORM = "int8 matmul"


class QuantizeLinear(Pass):
    """Replaces matmuls with constant weights by one node each, backed by a function, with int8 weights.

    Before: `MatMul(x, W float32 [K,N]) -> Add(b)`, `Gemm(x, W, b)`, or `Conv(x, W float32 [N,K,1], b)`

    After: `ai.rnnqc::QuantLinear(x, W int8 [K,N], multiplier float32 [N], b)`, between two Transpose for a Conv

    Each row of x gets a dynamic scale and zero point; matmuls are exact. The recipe's rules for `<node>.weight` set the
    rounding of weights: 8 bits, or up to 6 bits in packed groups. Rules without bits leave a matmul unchanged.

    * A weight that several nodes read is stored once. One that is an embedding, too, stays the int8 table whose rows
      are read, behind a Transpose if necessary.
    * With second moments of the inputs, weights are rounded jointly, so that errors cancel
      (`rnnqc.formats.compensation`). Moments from few rows are shrunk first.
    * An unsupported matmul stays, with a remark.
    """

    info = PassInfo(
        name="quantize-linear",
        summary="lower linear layers to integer matmuls with a scale for each row of the input",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(
        self,
        recipe: Recipe | None = None,
        weights: Int8Weights | None = None,
        statistics: Statistics | None = None,
        least_weights: int = LEAST_WEIGHTS,
        *,
        functions: bool = True,
    ) -> None:
        """Creates a pass with the rules of `recipe`.

        Args:
            recipe: Without one all weights get 8 bits.
            weights: Weights that other passes store as int8.
            statistics: Statistics of a calibration: second moments of inputs are used.
            least_weights: Smaller matrices stay unchanged.
            functions: Whether a layer becomes one node instead of the nodes of its function.
        """
        self._functions = functions
        self._recipe, self._statistics, self._least = recipe, statistics, least_weights
        self._weights = weights or Int8Weights(recipe)

    def constant_check(self, model: Model) -> ConstantCheck:
        """Derives weights and their scales from the original float weights."""
        return LinearCheck(model, () if self._statistics is None else self._statistics.second_moments.keys())

    def run(self, model: Model) -> PassResult:
        """Processes the matmuls of every graph."""
        homes = {id(n): g for g in model.graphs() for n in g.nodes}
        remarks: list[Remark] = []
        found: list[tuple[RestWeight, list[LinearSite]]] = []
        constants = Constants(model)
        for weight in rest_weights(model):
            skipped = weight.refusal[0] or self._weights.is_half(weight)
            uses = () if skipped else [u for u in linear_uses(weight) if is_matmul(u)]
            read = {u.path: (u, self._site(weight, u, homes[id(u.node)], constants)) for u in uses}
            found.append((weight, [site for _, site in read.values() if isinstance(site, LinearSite)]))
            remarks += [
                self.refused(Outcome.NOTE, path, use.node.op, why)
                for path, (use, why) in read.items()
                if isinstance(why, NotHandled)
            ]
        stored: dict[str, StoredWeight] = {}
        for weight, sites in found:
            stored |= self._replace_all(model, homes, weight, sites, constants)
            if self._weights.known(weight) is not None:
                remarks += self._weights.unheard(self, [site.use for site in sites])
        return PassResult(bool(stored), tuple(remarks), {"layers": len(stored)}, stored=stored)

    def _site(self, weight: RestWeight, use: WeightUse, graph: Graph, constants: Constants) -> LinearSite | NotHandled:
        """The site of a matmul, or why it stays: because of the operator, its size or the recipe."""
        count = int(np.prod(weight.shape))
        try:
            site = linear_site(weight, use, graph, constants)
            if count >= self._least:
                linear_settings(self._recipe, site.point)
                return site
        except NotHandled as why:
            return why
        found = f"{count} weights, shape {list(weight.shape)}"
        return NotHandled(
            "it is too small to gain in standard operators.", found, "none; its weights can be stored as int8"
        )

    def _replace_all(
        self,
        model: Model,
        homes: Mapping[int, Graph],
        weight: RestWeight,
        sites: Sequence[LinearSite],
        constants: Constants,
    ) -> dict[str, StoredWeight]:
        """Replaces the matmuls of one weight; returns the constants that replace it, by path."""
        shares = self._weights.known(weight) is not None or len(sites) < len(weight.uses)
        made: dict[Any, LinearWeight] = {}
        stored: dict[str, StoredWeight] = {}
        for site in sites:
            settings = linear_settings(self._recipe, site.point)
            key = (site.transposed, tuple(id(v) for v in site.use.views), json.dumps(settings, sort_keys=True))
            if key not in made:
                held = shared_weight(model, site, self._weights, constants) if shares else None
                moment = input_moment(self._statistics, site, constants)
                made[key] = held or stored_weight(model, site, settings, moment, constants)
            stored[site.use.path] = StoredWeight(FORM, made[key].sizes)
            self._replace(model, homes[id(site.use.node)], site, made[key])
        return stored

    def _replace(self, model: Model, graph: Graph, site: LinearSite, weight: LinearWeight) -> None:
        """Replaces a matmul and the addition of its bias by one node, or by the nodes of its function."""
        old, output, name = site.use.node, site.output, display_name(site.use.node)
        kind = LinearKind(bits=weight.bits, codebook=weight.codebook)
        given = _inputs(model, site, weight)
        attributes = {"group_size": weight.group_size, **kind.packing} if kind.packed else {}
        gone = [old, *([] if site.add is None else [site.add])]
        position = next(k for k, n in enumerate(graph.nodes) if n is old)
        for node in gone:
            node.outputs.clear()
        b = Builder(model, prefix=site.point)
        rank = len(site.weight.shape)
        if site.is_convolution:
            given["X"] = b.op("Transpose", [given["X"]], "X.channels_last", perm=[0, *range(2, rank), 1])
        if self._functions:
            made: Value = b.value("Y", np.float32)
            b.nodes.append(Node(kind.name, name, attributes, [given[n] for n in kind.inputs], [made], DOMAIN))
            if all((f.domain, f.name) != (DOMAIN, kind.name) for f in model.functions):
                model.functions.append(linear_function(kind, model.opset, model.ir_version))
        else:
            made = emit_linear(b, kind, given, attributes)
        if site.is_convolution:
            made = b.op("Transpose", [made], "Y.channels_first", perm=[0, rank - 1, *range(1, rank - 1)])
        made.inputs[0].outputs[0] = output
        graph.nodes[position:position] = b.nodes
        model.remove_nodes(graph, gone)


def _inputs(model: Model, site: LinearSite, weight: LinearWeight) -> dict[str, Value]:
    """Returns the operator's inputs by name."""
    point = site.point
    given = {"X": site.use.node.inputs[0], "W": weight.values, "multiplier": weight.multiplier}
    if site.alpha != 1.0:
        scaled = np.float32(site.alpha) * np.asarray(weight.scale, np.float32)
        given["multiplier"] = model.add_initializer(f"{point}.multiplier", scaled, weight.graph)
    if site.bias.any():
        given["B"] = model.add_initializer(f"{point}.B", site.bias, weight.graph)
    else:
        given["B"] = model.constant([0.0], np.float32)
    if weight.group_multiplier is not None:
        given["W_group_multiplier"] = weight.group_multiplier
    return given
