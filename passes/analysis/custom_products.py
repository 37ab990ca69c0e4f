"""Matmuls with constant weights in custom cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.fused_nodes import has_kernel
from rnnqc.errors import NotHandled
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
from rnnqc.passes.graph.nodes.products import constant_factor

LARGEST_DEPTH = 65024  # |acc| <= 65024 * 255 * 127 < 2**31


@dataclass(frozen=True)
class CustomProduct:
    """`x W + bias`.

    Attributes:
        node: The MatMul or Gemm.
        name: Its name in messages.
        x: `[..., K]`.
        source: The constant that holds the weights.
        turned: Whether they are stored as `[N,K]`.
        weights: `[K,N]` float32.
        bias: The added constant, or None.
    """

    node: Node
    name: str
    x: Value
    source: Value
    turned: bool
    weights: npt.NDArray[np.float32]
    bias: Value | None


def read_product(node: Node) -> CustomProduct:
    """Reads a MatMul or Gemm as a matmul of rows with a constant matrix.

    Raises:
        NotHandled: It is not one.
    """
    name = display_name(node)
    if node.op not in ("MatMul", "Gemm"):
        raise NotHandled(
            "its state is multiplied by an operator other than MatMul and Gemm.",
            f"{node.op} {name!r}",
            "none",
        )
    source = node.inputs[1]
    array = constant_array(source)
    left = constant_factor(node)
    if left is not None and left is not source:
        raise NotHandled(
            "the constant matrix of a matmul is its left operand.",
            f"node {name!r} multiplies {left.name!r} by {source.name!r}",
            "multiply rows by it, x W in the place of W x",
        )
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
    """Returns the record of quantize-custom-cells for each recurrence, by its name, the prefix of its points.

    The record holds `path`, `op`, and `name`; `bytes` and `float_bytes`, the size of its weights now and before;
    `products`, the number of quantized matmuls; `points`, the bits of each point, None where it is float; `formats`,
    the number formats of the points that quantize.
    """
    held = (info(n).metadata.get(CUSTOM_TAG) for g in model.graphs() for n in g.nodes)
    return {r["name"]: r for r in (json.loads(text) for text in held if text)}


def fused_cells(model: Model) -> dict[str, Node]:
    """Returns the cells that are a single fused node, by name."""
    nodes = (n for g in model.graphs() for n in g.nodes if n.domain == DOMAIN)
    return {json.loads(text)["name"]: n for n in nodes if (text := info(n).metadata.get(CUSTOM_TAG))}


def cells_with_kernels(model: Model) -> set[str]:
    """Returns the names of the cells that the native library runs."""
    return {name for name, node in fused_cells(model).items() if has_kernel(node.op)}


def matrices_of_cells(model: Model) -> dict[str, dict[str, int]]:
    """Returns the sizes of the quantized weight matrices of fused cells, by name of the cell and of the initializer."""
    found: dict[str, dict[str, int]] = {}
    for name, node in fused_cells(model).items():
        arrays = {v.name: a for v in node.inputs if (a := constant_array(v)) is not None}
        found[name] = {n: a.nbytes for n, a in arrays.items() if a.ndim == 2 and a.dtype == np.uint8}
    return found


def described(record: Mapping[str, Any]) -> str:
    """Returns a short summary of a quantized recurrence."""
    values = [bits for point, bits in record["points"].items() if point.endswith(".value")]
    of_values = f", {sum(b is not None for b in values)} of {len(values)} values" if values else ""
    return f"{record['products']} products{of_values}"
