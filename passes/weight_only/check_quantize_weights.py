"""Checks the constants of quantize-weights against the float weights, the recipe and the calibration's moments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.types import CELL_TYPES
from rnnqc.evaluation.evaluate import evaluate_nodes
from rnnqc.ir import Constant, Model, Node, Value, constant_array, display_name
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.formats.quantized_parameters import weight_codes
from rnnqc.passes.formats.weight_formats import weight_format
from rnnqc.passes.graph.nodes.lstm_node import R, W, is_recurrent
from rnnqc.passes.weight_only.emit_weights import is_float16
from rnnqc.recipes.recipe import Recipe

Array = npt.NDArray[Any]
_STORED = re.compile(r"(.+\.([WR])\.weight)\.(codes|packed|half)(_\d+)?$")
_SOURCES = {"W": "input", "R": "hidden"}


class QuantizeWeightsCheck(ConstantCheck):
    """Compares the dequantized weights of every node, element by element.

    Args:
        model: The model before the pass.
        recipe: The recipe of the pass.
        moments: The moments of the pass.
    """

    def __init__(self, model: Model, recipe: Recipe, moments: Mapping[str, Array]) -> None:
        self._recipe, self._moments = recipe, moments
        self._before: dict[tuple[str, int], Array] = {}
        for path, graph in model.paths():
            for node in graph.nodes:
                if is_recurrent(node):
                    for k in (W, R):
                        array = constant_array(node.inputs[k]) if k < len(node.inputs) else None
                        if array is not None:
                            self._before[f"{path}{display_name(node)}", k] = array

    def findings(self, after: Model) -> Findings:
        """Compares W and R of every node whose weights are now computed from constants."""
        found = Findings()
        nodes = [(f"{p}{display_name(n)}", n) for p, g in after.paths() for n in g.nodes]
        uses: dict[str, int] = {}
        sites = []
        for path, node in nodes:
            for k in (W, R):
                before = self._before.get((path, k))
                if before is None or constant_array(node.inputs[k]) is not None:
                    continue
                for direction, value in enumerate(_directions(node.inputs[k])):
                    name = _stored_name(value)
                    if name is not None:
                        uses[name] = uses.get(name, 0) + 1
                        sites.append((path, node, before[direction : direction + 1], value, name))
        for path, node, before, value, name in sites:
            self._check(found, after, path, node, before, value, name, uses[name] > 1)
        return found

    def _check(
        self, found: Findings, model: Model, path: str, node: Node, before: Array, value: Value, name: str, shared: bool
    ) -> None:
        s, what = self._recipe.settings(name), f"{name} of {path}"
        weights = np.ascontiguousarray(before[0].T)
        if is_float16(s):
            wanted = before.astype(np.float16).astype(np.float32)
        else:
            cell, key = name.rsplit(".", 2)[:2]
            moment = self._moments.get(f"{cell}.{_SOURCES[key]}") if s.get("compensation") else None
            if moment is not None and shared:
                found.passed_over.append(f"{what} (compensated for several nodes)")
                return
            gates = len(CELL_TYPES[node.op].gates)
            point = weight_format(s, weights, np.ones(weights.shape[1]), name, gates)
            codes = weight_codes(point, weights, None if moment is None else np.mean([moment], axis=0))
            wanted = np.ascontiguousarray(point.complete.dequantize(codes).T)[np.newaxis]
        nodes = _nodes_behind(value)
        held = evaluate_nodes(model, nodes, value) if nodes else constant_array(value)
        found.array(f"weights of {what}", held, wanted, node=display_name(node), constant=value.name, ulps=1.0)


def _directions(value: Value) -> list[Value]:
    """Returns the weights of each direction."""
    maker = value.inputs[0] if value.inputs else None
    joined = maker is not None and maker.op == "Concat" and maker.attrs.get("axis") == 0
    return list(maker.inputs) if maker is not None and joined else [value]


def _nodes_behind(value: Value) -> list[Node]:
    """Returns the producers of a value, in order."""
    found: list[Node] = []
    stack = [(n, False) for n in value.inputs]
    while stack:
        node, ready = stack.pop()
        if any(n is node for n in found):
            continue
        if ready:
            found.append(node)
        else:
            stack.append((node, True))
            stack += [(n, False) for v in node.inputs for n in v.inputs]
    return found


def _stored_name(value: Value) -> str | None:
    """Returns the quantization point whose name the constants behind a value have."""
    for node in _nodes_behind(value):
        for held in node.inputs:
            match = _STORED.match(held.name) if isinstance(held, Constant) else None
            if match:
                return match.group(1)
    return None
