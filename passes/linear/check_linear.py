"""What the pass of this family has to store: worked out from the float weights anew."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from rnnqc.cells.linear_nodes import linear_kind
from rnnqc.ir import DOMAIN, Model, display_name
from rnnqc.passes.analysis.rest_weights import rest_weights
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.graph.constant_expressions import Constants
from rnnqc.passes.graph.lstm_node import NotHandled
from rnnqc.passes.linear.linear_sites import LinearSite, linear_site, linear_uses
from rnnqc.passes.linear.linear_weights import point_of

_HALF_A_STEP = 0.5 + 1e-3
_LARGEST = 127
"""What weights beyond a range saturate at."""


class LinearCheck(ConstantCheck):
    """Biases, and what the stored weights stand for: at most half a step beside the float weights.

    Compensated weights and those in groups, which may be further off, are passed over.
    """

    def __init__(self, model: Model, compensated: Collection[str]) -> None:
        """The weights of `model`; `compensated` are points of inputs."""
        self._compensated = compensated
        self._before: list[tuple[LinearSite, npt.NDArray[np.float32]]] = []
        homes = {id(n): g for g in model.graphs() for n in g.nodes}
        constants = Constants(model)
        for weight in rest_weights(model):
            for use in linear_uses(weight) if not weight.refusal[0] else ():
                try:
                    site = linear_site(weight, use, homes[id(use.node)], constants)
                except NotHandled:
                    continue
                self._before.append((site, site.matrix(constants)))

    def findings(self, after: Model) -> Findings:
        """Compares every entry."""
        found, constants = Findings(), Constants(after)
        nodes = {f"{path}{display_name(n)}": n for path, graph in after.paths() for n in graph.nodes}
        for site, array in self._before:
            path = site.use.path
            node = nodes.get(path)
            kind = linear_kind(node.op) if node is not None and node.domain == DOMAIN else None
            if node is None or kind is None:
                continue
            found.input(f"bias of {path}", node, 3, site.bias if site.bias.any() else np.zeros(1, np.float32))
            if kind.packed or f"{point_of(site)}.input" in self._compensated:
                found.passed_over.append(f"weight of {path}, in groups or compensated")
                continue
            values, multiplier = (constants.array(node.inputs[k]) for k in (1, 2))
            assert values is not None
            assert multiplier is not None
            wanted = np.float64(site.alpha) * array
            steps = np.divide(wanted, multiplier, out=np.zeros_like(wanted), where=multiplier != 0)
            is_near = (np.abs(values - steps) <= _HALF_A_STEP) | ((np.abs(values) >= _LARGEST) & (values * steps > 0))
            expected = np.where(is_near, values, np.rint(steps))
            found.array(f"weight of {path}", values, expected, node=path, constant=node.inputs[1].name)
        return found
