"""Float16 matmuls that crash onnxruntime, and Casts that do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rnnqc.errors import and_more
from rnnqc.ir import (
    Constant,
    Graph,
    Model,
    Node,
    Value,
    constant_array,
    display_name,
    dtype_of,
    input_or_none,
    maker_of,
    shape_of,
)
from rnnqc.ir.builder import Builder, onnx_type


def transposed_float16_products(model: Model) -> list[str]:
    """Returns the paths of float16 MatMul nodes behind a Transpose.

    onnxruntime from 1.24 (tested to 1.32) fuses the two and crashes when the model runs on a CPU.
    """
    return [f"{path}{display_name(node)}" for path, _, node in products_behind_transposes(model)]


def products_behind_transposes(model: Model) -> Iterator[tuple[str, Graph, Node]]:
    """Yields the float16 MatMul nodes behind a Transpose, with the path of their graph and the graph.

    Transposed constants do not count: onnxruntime computes them before.
    """
    for path, graph in list(model.paths()):
        for node in list(graph.nodes):
            if node.op != "MatMul" or node.domain or all(dtype_of(v) != np.float16 for v in node.inputs):
                continue
            behind = [found[0] for v in node.inputs if (found := casts_behind_transpose(v)) is not None]
            if any(constant_array(transpose.inputs[0]) is None for transpose in behind):
                yield path, graph, node


def float16_warning(nodes: Sequence[str]) -> str:
    """Returns the warning about a model with these nodes."""
    return (
        f'Operator "MatMul" (node {nodes[0]!r}){and_more(nodes)}: of float16, behind a Transpose; onnxruntime '
        "1.24 and newer may end the process when such a model runs on a CPU as it is. The lowered one computes it in "
        "float32 and runs. Resolution: for the float model, export it in float32 (PyTorch: model.float())."
    )


def widen(
    model: Model, graph: Graph, node: Node, inputs: Iterable[int], converted: dict[int, Constant] | None = None
) -> None:
    """Makes an operator of one float16 output compute in float32, with Casts around it.

    Args:
        model: The model.
        graph: The graph of the operator.
        node: The operator.
        inputs: Numbers of its inputs that are to be float32; those that are already stay.
        converted: Float32 constants by the id of the float16 one, for operators that share them; without it, constants
            stay float16, with a Cast, which onnxruntime folds when it creates a session.
    """
    b = Builder(model, prefix=display_name(node))
    for k in inputs:
        value = input_or_none(node, k)
        array = constant_array(value)
        if value is None or (dtype_of(value) if array is None else array.dtype) == np.float32:
            continue
        if array is None or converted is None:
            node.inputs[k] = float32_of(b, value, f"input_{k}")
            continue
        if id(value) not in converted:
            converted[id(value)] = model.add_initializer(f"{value.name}.float32", array.astype(np.float32))
        node.inputs[k] = converted[id(value)]
    before, b.nodes = b.nodes, []
    made = node.outputs[0]
    node.outputs[0] = b.value("float32", np.float32, shape_of(made))
    b.add("Cast", [node.outputs[0]], [made], "float16", to=onnx_type(np.float16))
    model.insert_nodes(graph, node, before)
    model.insert_nodes_after(graph, node, b.nodes)


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
