"""Analysis: float16 matmuls that crash onnxruntime. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.errors import and_more
from rnnqc.ir import Model, Value, display_name, dtype_of


def transposed_float16_products(model: Model) -> list[str]:
    """Returns the paths of float16 MatMul nodes behind a Transpose.

    onnxruntime from 1.24 (tested to 1.32) fuses the two and crashes when the model runs on a CPU.
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
    """Returns the warning about a model with these nodes."""
    return (
        f'Operator "MatMul" (node {nodes[0]!r}){and_more(nodes)}: of float16, behind a Transpose; onnxruntime '
        "1.24 and newer may end the process when such a model runs on a CPU, as it is and lowered. Resolution: "
        "export the model in float32 (PyTorch: model.float()), or switch onnxruntime's graph "
        "optimizations of level ORT_ENABLE_ALL off."
    )


def _is_transposed(value: Value) -> bool:
    return bool(value.inputs) and value.inputs[0].op == "Transpose"
