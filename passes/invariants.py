"""Facts about a model that passes require, establish or destroy; a function checks each one."""

from __future__ import annotations

import enum
from collections.abc import Callable

from rnnqc.cells.types import type_of
from rnnqc.ir import FLOAT_TAG, Model, info


class Property(enum.Enum):
    """A fact about a model."""

    CANONICAL = "canonical"
    CELLS_DECOMPOSED = "cells-decomposed"
    CELLS_QUANTIZED = "cells-quantized"
    SCALES_FOLDED = "scales-folded"
    CELLS_FUSED = "cells-fused"
    UNROLLED = "unrolled"


def _canonical(model: Model) -> str:
    if not model.opset >= 13:
        return f"operator set {model.opset} is below 13"
    if not 10 <= model.ir_version <= 13:
        return f"IR version {model.ir_version} is not 10 to 13"
    for graph in model.graphs():
        for node in graph.nodes:
            if not node.name:
                return f"a node of type {node.op} has no name"
            if type_of(node.op, node.domain) is not None and node.attrs.get("layout", 0):
                return f"node {node.name!r} has layout 1"
    return ""


def _decomposed(model: Model) -> str:
    for graph in model.graphs():
        for node in graph.nodes:
            if type_of(node.op, node.domain) is not None and FLOAT_TAG not in info(node).metadata:
                return f"{node.op} node {node.name!r} has no reason to stay float"
    return ""


def _forms(*allowed: str) -> Callable[[Model], str]:
    def check(model: Model) -> str:
        wrong = [c.name for c in model.cells.values() if c.form not in allowed and c.name not in model.kept]
        return f"cell {wrong[0]!r} is {model.cells[wrong[0]].form}" if wrong else ""

    return check


def _unrolled(model: Model) -> str:
    for graph in model.graphs():
        for node in graph.nodes:
            if node.op in ("Scan", "Loop") and not node.domain:
                return f"node {node.name!r} is a {node.op}"
    return ""


CHECKS: dict[Property, Callable[[Model], str]] = {
    Property.CANONICAL: _canonical,
    Property.CELLS_DECOMPOSED: _decomposed,
    Property.CELLS_QUANTIZED: _forms("qcdq", "qonnx", "integer", "fused"),
    Property.SCALES_FOLDED: _forms("integer", "fused"),
    Property.CELLS_FUSED: _forms("fused"),
    Property.UNROLLED: _unrolled,
}


def violated(model: Model, property_: Property) -> str:
    """Returns why `property_` does not hold for `model`; empty if it holds."""
    return CHECKS[property_](model)
