"""Products with constant weights in custom cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.fused_nodes import has_kernel
from rnnqc.ir import (
    CUSTOM_TAG,
    DOMAIN,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    info,
    input_or_none,
)
from rnnqc.passes.graph.nodes.lstm_node import NotHandled

LARGEST_DEPTH = 65024  # |acc| <= 65024 * 255 * 127 < 2**31


@dataclass(frozen=True)
class CustomProduct:
    """`x W + bias`.

    Attributes:
        node: The MatMul or Gemm.
        name: How messages call it.
        x: `[..., K]`.
        source: The constant that holds the weights.
        turned: Whether it holds them as `[N,K]`.
        weights: `[K,N]` float32.
        bias: What is added, or None.
    """

    node: Node
    name: str
    x: Value
    source: Value
    turned: bool
    weights: npt.NDArray[np.float32]
    bias: Value | None


def read_product(node: Node) -> CustomProduct:
    """A MatMul or Gemm as a product of rows with a constant matrix.

    Raises:
        NotHandled: It is none.
    """
    name = display_name(node)
    if node.op not in ("MatMul", "Gemm"):
        raise NotHandled(
            "its state is multiplied by an operator other than MatMul and Gemm.",
            f"node {name!r} is a {node.op}",
            "none",
        )
    source = node.inputs[1]
    array = constant_array(source)
    if array is None or array.ndim != 2:
        raise NotHandled(
            "the right operand of a matmul is not a constant matrix.",
            f"node {name!r} multiplies {node.inputs[0].name!r} by {source.name!r}",
            "make the weights initializers [K, N]",
        )
    if array.dtype != np.float32 or dtype_of(node.inputs[0]) not in (None, np.dtype(np.float32)):
        raise NotHandled(
            "a matmul is not float32.", f"node {name!r} multiplies by {array.dtype}", "convert the model to float32"
        )
    if not np.isfinite(array).all() or 0 in array.shape or array.shape[0] > LARGEST_DEPTH:
        raise NotHandled(
            "the weights of a matmul are empty, not finite, or have too many rows for 32-bit accumulators.",
            f"weights {list(array.shape)} of node {name!r}",
            f"finite weights with up to {LARGEST_DEPTH} rows are supported",
        )
    bias: Value | None = None
    transposed = False
    if node.op == "Gemm":
        alpha, beta, turned = (attribute(node, k, d) for k, d in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)))
        bias = input_or_none(node, 2) if beta else None
        if alpha != 1.0 or (bias is not None and beta != 1.0) or turned:
            raise NotHandled(
                "a Gemm scales or transposes its operands.",
                f"node {name!r}: alpha = {alpha}, beta = {beta}, transA = {turned}",
                "alpha = 1, beta = 1 (or 0) and transA = 0 are supported",
            )
        transposed = bool(attribute(node, "transB", 0))
        array = array.T if transposed else array
    return CustomProduct(node, name, node.inputs[0], source, transposed, np.ascontiguousarray(array), bias)


def custom_cells(model: Model) -> dict[str, dict[str, Any]]:
    """What quantize-custom-cells did with each recurrence, by its name, which the names of its points begin with.

    `path`, `op`, and `name`; `bytes` and `float_bytes` of its weights now and before; `products`, how many are
    quantized; `points`, the bits of each point, None where it is float; `formats`, the number formats of those that
    quantize something.
    """
    held = (info(n).metadata.get(CUSTOM_TAG) for g in model.graphs() for n in g.nodes)
    return {r["name"]: r for r in (json.loads(text) for text in held if text)}


def fused_cells(model: Model) -> dict[str, Node]:
    """The nodes of those that are one node, by their names."""
    nodes = (n for g in model.graphs() for n in g.nodes if n.domain == DOMAIN)
    return {json.loads(text)["name"]: n for n in nodes if (text := info(n).metadata.get(CUSTOM_TAG))}


def cells_with_kernels(model: Model) -> set[str]:
    """The names of those that the native library runs."""
    return {name for name, node in fused_cells(model).items() if has_kernel(node.op)}


def matrices_of_cells(model: Model) -> dict[str, dict[str, int]]:
    """Sizes of the matrices of quantized weights that these nodes read, by name of the cell and of the initializer."""
    found: dict[str, dict[str, int]] = {}
    for name, node in fused_cells(model).items():
        arrays = {v.name: a for v in node.inputs if (a := constant_array(v)) is not None}
        found[name] = {n: a.nbytes for n, a in arrays.items() if a.ndim == 2 and a.dtype == np.uint8}
    return found


def described(record: Mapping[str, Any]) -> str:
    """What became of a recurrence, in a few words."""
    values = [bits for point, bits in record["points"].items() if point.endswith(".value")]
    return f"{record['products']} products, {sum(b is not None for b in values)} of {len(values)} values"
