"""Checks the constants of this family's pass against the float weights."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from rnnqc.cells.linear_nodes import linear_kind
from rnnqc.ir import DOMAIN, Model, display_name
from rnnqc.passes.analysis.linear_sites import every_linear_site
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.graph.values.constant_expressions import Constants

_HALF_A_STEP = 0.5 + 1e-3
_LARGEST = 127
"""The quantized value at which weights beyond a range saturate."""


class LinearCheck(ConstantCheck):
    """Compares biases, and the dequantized weights: within half an LSB of the float weights.

    Compensated and grouped weights, which may differ by more, are skipped.
    """

    def __init__(self, model: Model, compensated: Collection[str]) -> None:
        """Records the weights of `model`; `compensated` holds points of inputs."""
        self._compensated = compensated
        constants = Constants(model)
        self._before = [(site, site.matrix(constants)) for site in every_linear_site(model, constants)]

    def findings(self, after: Model) -> Findings:
        """Compares every element."""
        found, constants = Findings(), Constants(after)
        nodes = {f"{path}{display_name(n)}": n for path, graph in after.paths() for n in graph.nodes}
        for site, array in self._before:
            path = site.use.path
            node = nodes.get(path)
            kind = linear_kind(node.op) if node is not None and node.domain == DOMAIN else None
            if node is None or kind is None:
                continue
            found.input(f"bias of {path}", node, 3, site.bias if site.bias.any() else np.zeros(1, np.float32))
            if kind.packed or f"{site.point}.input" in self._compensated:
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
