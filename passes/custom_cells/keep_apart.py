"""Separates operators of a custom cell that onnxruntime would otherwise fuse into one with different bits."""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.ir import Graph, Model, Node, Value, constant_array, shape_of
from rnnqc.ir.builder import Builder


def keep_apart(model: Model, graph: Graph, inside: set[int]) -> list[Node]:
    """Inserts copies between operators of onnxruntime's fusion patterns, and replaces sums with zero by copies.

    A Max of one operand copies it, and no version of onnxruntime from 1.19 to 1.32 removes it or looks past it. So
    onnxruntime computes the step operator by operator at every optimization level, as the native library does.

    Args:
        model: The model.
        graph: The graph of the cell.
        inside: The nodes of the cell, by id.

    Returns:
        The copies.
    """
    copies: list[Node] = []
    for node in [n for n in graph.nodes if id(n) in inside]:
        value = _sum_with_zero(node)
        if value is not None:
            node.op, node.inputs = "Max", [value]
            continue
        for position, value in enumerate(node.inputs):
            maker = value.inputs[0] if value.inputs else None
            if maker is None or id(maker) not in inside:
                continue
            fused = _FUSED.get((maker.op, node.op))
            if fused is not None and fused(maker, node):
                builder = Builder(model, prefix=node.name)
                node.inputs[position] = builder.op("Max", [value], "apart")
                copies += builder.nodes
    graph.nodes.extend(copies)
    return copies


def _always(_maker: Node, _user: Node) -> bool:
    return True


def _with_number(_maker: Node, user: Node) -> bool:
    return any(_is_number(v) for v in user.inputs)


def _of_number(maker: Node, _user: Node) -> bool:
    return _is_number(maker.inputs[0])


def _of_its_operand(maker: Node, user: Node) -> bool:
    """Whether a Sigmoid and the other factor of its Mul come from one value."""
    source = maker.inputs[0]
    sources = [source, *(source.inputs[0].inputs if source.inputs and source.inputs[0].op == "Mul" else ())]
    return any(v is s for v in user.inputs for s in sources)


_FUSED: dict[tuple[str, str], Callable[[Node, Node], bool]] = {
    ("Erf", "Add"): _always,  # GeluFusion, BiasGeluFusion: x / sqrt(2), Erf, + 1, times x and 0.5
    ("Tanh", "Add"): _with_number,  # FastGeluFusion: the same with tanh
    ("Sigmoid", "Mul"): _of_its_operand,  # QuickGeluFusion: x sigmoid(a x)
    ("Div", "Mul"): _of_number,  # DivMulFusion: (1 / a) b becomes b / a
    ("ReduceMean", "Sub"): _always,  # LayerNormFusion
    ("ReduceMean", "Add"): _always,  # LayerNormFusion, SimplifiedLayerNormFusion
    ("Add", "Gelu"): _always,  # BiasGeluFusion
}
"""The fusions of onnxruntime's optimizer: two consecutive operators, and a test that recognizes the fusion."""


def _is_number(value: Value) -> bool:
    array = constant_array(value)
    return array is not None and array.size == 1


def _sum_with_zero(node: Node) -> Value | None:
    """The other operand of an Add of zero. onnxruntime removes the Add, although -0 + 0 is +0."""
    if node.op != "Add":
        return None
    for zero, value in zip(node.inputs, reversed(node.inputs), strict=True):
        array = constant_array(zero)
        if array is not None and array.size == 1 and not array.any() and array.ndim <= len(shape_of(value) or [0]):
            return value
    return None
