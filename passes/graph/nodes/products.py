"""Operators that multiply matrices, and what they multiply."""

from __future__ import annotations

from rnnqc.ir import Node, Value, constant_array

PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""Operators with two factors, their first two inputs."""
_OF_ONNXRUNTIME = ("com.microsoft", "FusedMatMul")


def factors(node: Node) -> list[Value]:
    """Returns the values whose products a node adds up; none for other operators."""
    if (node.domain, node.op) == _OF_ONNXRUNTIME or (not node.domain and node.op in PRODUCTS):
        return list(node.inputs[:2])
    return list(node.inputs) if node.op == "Einsum" and not node.domain else []


def constant_factor(node: Node) -> Value | None:
    """Returns the constant that a node multiplies by, on either side; the larger one of two, the last one of equals.

    Both are constant in a step from a state of zeros, for example.
    """
    sizes = [(a.size, k, v) for k, v in enumerate(factors(node)) if (a := constant_array(v)) is not None]
    return max(sizes, key=lambda s: s[:2])[2] if sizes else None


def is_product(node: Node) -> bool:
    """Returns whether a node multiplies by a constant matrix."""
    return constant_factor(node) is not None
