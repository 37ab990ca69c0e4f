"""Replaces operators of a custom cell by ones with kernels in onnxruntime and instructions in step programs."""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.ir import Graph, Model, Node, Value
from rnnqc.ir.builder import Builder


def write_out(model: Model, graph: Graph, inside: set[int]) -> list[Node]:
    """Expands operators without a kernel in onnxruntime as it would, and rewrites comparisons with Less or Greater.

    A Where with a negated condition swaps its operands, so it selects the other operand for NaN.

    Args:
        model: The model.
        graph: The graph of the cell.
        inside: The nodes of the cell, by id.

    Returns:
        The new nodes; the old ones are removed.
    """
    nodes = [n for n in graph.nodes if id(n) in inside and not n.domain]
    made: list[Node] = []
    for node in [n for n in nodes if n.op in _WRITTEN]:
        builder = Builder(model, prefix=node.name)
        _WRITTEN[node.op](builder, node.inputs[0])
        value = node.outputs[0]
        node.outputs.clear()
        builder.nodes[-1].outputs.clear()
        builder.nodes[-1].outputs.append(value)
        graph.nodes.extend(builder.nodes)
        made += builder.nodes
        model.remove_nodes(graph, [node])
    for node in nodes:
        if node.op in _TURNED and _only_chooses(node, graph):
            node.op = _TURNED[node.op]
            _turn(node.outputs[0], node.outputs[0])
    for node in [n for n in nodes if n.op == "Not" and _only_chooses(n, graph)]:
        _turn(node.outputs[0], node.inputs[0])
        model.remove_nodes(graph, [node])
    return made


def _hard_swish(b: Builder, x: Value) -> None:
    b.op("Mul", [x, b.op("HardSigmoid", [x], "limited", alpha=1.0 / 6.0, beta=0.5)], "product")


def _mish(b: Builder, x: Value) -> None:
    b.op("Mul", [x, b.op("Tanh", [b.op("Softplus", [x], "softplus")], "tanh")], "product")


_WRITTEN: dict[str, Callable[[Builder, Value], None]] = {"HardSwish": _hard_swish, "Mish": _mish}
_TURNED = {"GreaterOrEqual": "Less", "LessOrEqual": "Greater"}


def _only_chooses(node: Node, graph: Graph) -> bool:
    """Whether the output of a node is only read as the condition of Where nodes."""
    value = node.outputs[0]
    users = list(value.outputs)
    return (
        bool(users)
        and all(n.op == "Where" and n.inputs[0] is value for n in users)
        and not any(v is value for v in graph.outputs)
    )


def _turn(condition: Value, opposite: Value) -> None:
    """Makes every Where that reads `condition` select by `opposite`."""
    for user in list(condition.outputs):
        for position, value in enumerate([opposite, user.inputs[2], user.inputs[1]]):
            user.inputs[position] = value
