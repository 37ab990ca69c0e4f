"""Float16 matmuls that crash onnxruntime, and Casts that do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.errors import and_more
from rnnqc.ir import Model, Node, Value, display_name, dtype_of, maker_of
from rnnqc.ir.builder import Builder


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


def float32_of(b: Builder, value: Value, name: str) -> Value:
    """Emits a value as float32, cast in front of a Transpose if there is one.

    Args:
        b: Collects the nodes.
        value: The value, of any type of floats.
        name: Names the nodes.
    """
    behind = casts_behind_transpose(value)
    if behind is None:
        return b.cast(value, np.float32, f"{name}.float32")
    transpose, casts = behind
    source = transpose.inputs[0]
    for cast in casts:
        source = b.op(cast.op, [source], f"{name}.source.cast", **dict(cast.attrs))
    if dtype_of(value) != np.float32:
        source = b.cast(source, np.float32, f"{name}.source.float32")
    return b.op("Transpose", [source], f"{name}.float32", **dict(transpose.attrs))


def casts_behind_transpose(value: Value) -> tuple[Node, list[Node]] | None:
    """Returns the Transpose that makes a value and the Casts behind it, in order; None if no Transpose does.

    onnxruntime (1.19 to 1.32) crashes on `Transpose -> Cast -> MatMul`, which a decomposed layer would contain, if the
    Transpose is of another type than float32. It removes Identity and Casts to the same type before.
    """
    casts: list[Node] = []
    node = maker_of(value)
    while node is not None and node.op in ("Cast", "Identity"):
        casts.insert(0, node)
        node = maker_of(node.inputs[0])
    return None if node is None or node.op != "Transpose" else (node, casts)
