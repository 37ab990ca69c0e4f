"""Analysis: matmuls of dequantized values that onnxruntime may compute in saturating integers. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.errors import and_more
from rnnqc.ir import Model, Node, Value, display_name, dtype_of
from rnnqc.passes.graph.values.constant_expressions import Constants

EXACT_MAGNITUDE = 64
"""Of int8 weights: 255 * (64 + 64) is an int16."""


def saturating_products(model: Model) -> list[str]:
    """Returns the paths of 8-bit x int8 matmuls that onnxruntime fuses, and that saturate on x86 without VNNI.

    It fuses DequantizeLinear and MatMul to an integer matmul that adds pairs in a saturating int16.
    """
    constants = Constants(model)
    return [
        f"{path}{display_name(node)}"
        for path, graph in model.paths()
        for node in graph.nodes
        if node.op in ("MatMul", "Gemm") and not node.domain and _saturates(node, constants)
    ]


def saturation_warning(nodes: Sequence[str]) -> str:
    """Returns the warning about a lowered model with these nodes."""
    return (
        f"product {nodes[0]!r}{and_more(nodes)}: on x86 processors without VNNI onnxruntime fuses it with its "
        "quantizers and adds products in a saturating int16. Resolution: session option "
        "session.disable_quant_qdq = 1 there, as rnnqc's own sessions have it."
    )


def _saturates(node: Node, constants: Constants) -> bool:
    values, weights = (_dequantized(v) for v in node.inputs[:2])
    if values is None or weights is None or dtype_of(values) not in (np.uint8, np.int8):
        return False
    codes = constants.array(weights)
    return codes is not None and codes.dtype == np.int8 and bool(np.abs(codes.astype(np.int16)).max() > EXACT_MAGNITUDE)


def _dequantized(value: Value) -> Value | None:
    """The quantized value behind a DequantizeLinear."""
    maker = value.inputs[0] if value.inputs else None
    return maker.inputs[0] if maker is not None and maker.op == "DequantizeLinear" else None
