"""Values that are made from constants alone."""

from __future__ import annotations

from rnnqc.ir import Constant, Node, Value, info, subgraphs

NOT_FOLDED = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)


def constant_expression(value: Value) -> list[Node] | None:
    """The nodes that make `value` from constants alone, in order; None if it depends on anything else."""
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        current, expanded = stack.pop()
        if isinstance(current, Constant) or not current.name:
            continue
        if not current.inputs:
            return None
        node = current.inputs[0]
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            order.append(node)
            continue
        if subgraphs(node) or node.op in NOT_FOLDED or node.domain not in (None, "", "ai.onnx") or info(node).overload:
            return None
        stack.append((current, True))
        stack.extend((v, False) for v in node.inputs)
    return order
