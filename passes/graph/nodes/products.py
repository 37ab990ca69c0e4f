"""Operators that multiply matrices, and what they multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from rnnqc.ir import Node, Value, constant_array

PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""Operators with two factors, their first two inputs."""
_OF_ONNXRUNTIME = ("com.microsoft", "FusedMatMul")


def factors(node: Node) -> list[Value]:
    """Returns the values whose products a node adds up; none for other operators."""
    if (node.domain, node.op) == _OF_ONNXRUNTIME or (not node.domain and node.op in PRODUCTS):
        return list(node.inputs[:2])
    return list(node.inputs) if node.op == "Einsum" and not node.domain else []


def constant_factor(node: Node, array: Callable[[Value], npt.NDArray[Any] | None] = constant_array) -> Value | None:
    """Returns the constant that a node multiplies by, on either side; of two the last one that is no initial state.

    Args:
        node: The node.
        array: Returns the array of a constant.
    """
    held = [(v, a) for v in factors(node) if (a := array(v)) is not None]
    if len(held) > 1:
        held = [(v, a) for v, a in held if not (a == a.reshape(-1)[:1]).all()] or held
    return held[-1][0] if held else None


def is_product(node: Node) -> bool:
    """Returns whether a node multiplies by a constant matrix."""
    return constant_factor(node) is not None
