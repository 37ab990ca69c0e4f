"""Analysis: products of float16 on which onnxruntime dies. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.errors import and_more
from rnnqc.ir import Model, Value, display_name, dtype_of


def transposed_float16_products(model: Model) -> list[str]:
    """Paths of MatMul nodes of float16 behind a Transpose.

    onnxruntime from 1.24 (tried to 1.32) fuses the two, and the process ends when the model runs on a CPU.
    """
    return [
        f"{path}{display_name(node)}"
        for path, graph in model.paths()
        for node in graph.nodes
        if node.op == "MatMul"
        and any(dtype_of(v) == np.float16 for v in node.inputs)
        and any(_is_transposed(v) for v in node.inputs)
    ]


def float16_warning(nodes: Sequence[str]) -> str:
    """What is said of a model with such nodes."""
    return (
        f'Operator "MatMul" (node {nodes[0]!r}){and_more(nodes)}: of float16, behind a Transpose; onnxruntime '
        "1.24 and newer may end the process when such a model runs on a CPU, as it is and lowered. Resolution: "
        "export the model in float32 (PyTorch: model.float()), or switch onnxruntime's graph "
        "optimizations of level ORT_ENABLE_ALL off."
    )


def _is_transposed(value: Value) -> bool:
    return bool(value.inputs) and value.inputs[0].op == "Transpose"
