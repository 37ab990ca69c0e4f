"""Folds a matmul with an input into the weights of a layer whose own W only assigns columns to gates."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from rnnqc.ir import Constant, Graph, Model, Node, Value, attribute, constant_array, dtype_of, input_or_none, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.nodes.lstm_node import B, R, W, X, is_recurrent
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import changed_axes, slice_bounds

Floats = npt.NDArray[np.float32]
_ONE_DIRECTION = ("forward", "reverse")


@dataclass
class _Product:
    """The operators between a matmul and the input of a layer.

    Attributes:
        factor: `[I,M]`, the constant factor; its source values are in `values`.
        source: The other operand of the matmul.
        added: `[M]`, the sum of the constants added to the result.
        views: Operators between matmul and layer that keep each row intact, the last one first.
        values: The source constants of `factor` and `added`.
    """

    factor: Floats
    source: Value
    added: Floats
    views: list[Node]
    values: list[Value]


@dataclass
class _Stored:
    """Weights stored for several steps of one layer.

    Attributes:
        held: W and B by the ids of their sources, with the source values, which must live as long as their ids count.
    """

    held: dict[Hashable, tuple[Constant, Constant | None, list[Value]]] = field(default_factory=dict)


def take_projections(model: Model, graph: Graph, indices: Indices) -> int:
    """Folds a matmul by a constant `V` in front of a layer into its W, where W only selects columns of the result.

    Exporters of torch write one input matmul in front of a loop or of all steps; layers recovered from these have this
    form. At most the summation order changes: each row of W has a single nonzero element, 1 or -1.

    Returns:
        The number of changed layers.
    """
    count, stored = 0, _Stored()
    for node in list(graph.nodes):
        if not is_recurrent(node) or attribute(node, "direction", "forward") not in _ONE_DIRECTION:
            continue
        weights, bias = constant_array(input_or_none(node, W)), constant_array(input_or_none(node, B))
        if weights is None or not _chooses(weights) or (bias is None and input_or_none(node, B) is not None):
            continue
        found = _product(node.inputs[X], weights.shape[2], indices)
        if found is None:
            continue
        _take(model, graph, node, weights[0], bias, found, stored)
        count += 1
    return count


def _chooses(weights: npt.NDArray[np.generic]) -> bool:
    """Whether each row of a W `[1,GH,M]` has a single nonzero element, 1 or -1."""
    if weights.ndim != 3 or weights.shape[0] != 1 or weights.dtype != np.float32:
        return False
    return bool(np.all((weights != 0).sum(axis=2) == 1) and np.all(np.abs(weights.sum(axis=2)) == 1))


def _take(
    model: Model,
    graph: Graph,
    node: Node,
    weights: Floats,
    bias: npt.NDArray[np.generic] | None,
    found: _Product,
    stored: _Stored,
) -> None:
    """Replaces W and B of a layer by those of the matmul in front, and X by the source of the matmul."""
    given = [node.inputs[W], *([node.inputs[B]] if bias is not None else []), *found.values]
    key = (node.op, *map(id, given))
    if key not in stored.held:
        order, signs = np.abs(weights).argmax(axis=1), weights.sum(axis=1, keepdims=True)
        w = model.add_initializer(f"{node.name}/W", np.ascontiguousarray((found.factor.T[order] * signs)[np.newaxis]))
        total = np.zeros((1, 2 * len(order)), np.float32) if bias is None else bias.astype(np.float32)
        total[0, : len(order)] += found.added[order] * signs[:, 0]
        b = model.add_initializer(f"{node.name}/B", total) if total.any() or bias is not None else None
        stored.held[key] = (w, b, given)
    node.inputs[W], added, _ = stored.held[key]
    if added is not None:
        while len(node.inputs) <= R + 1:
            node.inputs.append(added)
        node.inputs[B] = added
    b_ = Builder(model, prefix=node.name)
    value = found.source
    for view in reversed(found.views):
        operands = list(view.inputs[1:])
        if view.op == "Reshape":
            target = constant_array(view.inputs[1])
            assert target is not None
            operands = [b_.i64([*target[:-1].tolist(), found.factor.shape[0]])]
        value = b_.op(view.op, [value, *operands], f"X.{view.op.lower()}", **view.attrs)
    model.insert_nodes(graph, node, b_.nodes)
    node.inputs[X] = value


def _product(value: Value, width: int, indices: Indices) -> _Product | None:
    """The matmul with a constant behind `value`, of `width` columns, through additions and views."""
    added, views, values = np.zeros(width, np.float32), list[Node](), list[Value]()
    while len(value.inputs) == 1 and not value.inputs[0].domain:
        node = value.inputs[0]
        if node.op in ("MatMul", "Gemm"):
            return _of_product(node, width, indices, _Product(added, value, added, views, values))
        if node.op == "Add":
            arrays = [indices.constants.array(v) for v in node.inputs]
            at = next((k for k, a in enumerate(arrays) if a is not None and _is_row(a, width)), None)
            if at is None:
                return None
            added = added + np.broadcast_to(np.asarray(arrays[at], np.float32).reshape(-1), (width,))
            values.append(node.inputs[at])
            value = node.inputs[1 - at]
            continue
        if not _keeps_rows(node, width, indices):
            return None
        if not _is_idle(node):
            views.append(node)
        value = node.inputs[0]
    return None


def _of_product(node: Node, width: int, indices: Indices, found: _Product) -> _Product | None:
    """Adds the operands of a MatMul or Gemm to `found`; None unless it multiplies rows by a constant matrix."""
    factor, shape = indices.constants.array(node.inputs[1]), shape_of(node.inputs[0])
    if factor is None or factor.ndim != 2 or factor.dtype != np.float32 or shape is None or len(shape) < 2:
        return None
    if node.op == "Gemm":
        added = indices.constants.array(node.inputs[2]) if input_or_none(node, 2) is not None else np.zeros(1, "f4")
        numbers = [attribute(node, "transA", 0), attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)]
        if added is None or not _is_row(added, width) or numbers != [0, 1.0, 1.0]:
            return None
        factor = factor.T if attribute(node, "transB", 0) else factor
        found.added = found.added + np.broadcast_to(np.asarray(added, np.float32).reshape(-1), (width,))
        found.values.extend(v for v in node.inputs[2:] if v.name)
    if factor.shape[1] != width or (not found.views and len(shape) != 3):
        return None
    found.values.append(node.inputs[1])
    found.factor, found.source = np.asarray(factor, np.float32), node.inputs[0]
    return found


def _is_row(array: npt.NDArray[np.generic], width: int) -> bool:
    """Whether an array adds the same to each row of a value with `width` columns."""
    return array.dtype == np.float32 and array.ndim > 0 and array.size == array.shape[-1] and array.size in (1, width)


def _is_idle(node: Node) -> bool:
    """Whether a node returns its input unchanged."""
    return node.op in ("Identity", "Cast") or (node.op == "Concat" and len(node.inputs) == 1)


def _keeps_rows(node: Node, width: int, indices: Indices) -> bool:
    """Whether a node moves rows of `width` columns and leaves each intact."""
    shape, made = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if shape is None or len(shape) < 2:
        return False
    last = len(shape) - 1
    if node.op == "Cast":
        return bool(attribute(node, "to", 0) == TensorProto.FLOAT) and dtype_of(node.inputs[0]) == np.float32
    if node.op == "Concat":
        return len(node.inputs) == 1
    if node.op == "Transpose":
        return bool(attribute(node, "perm", [*range(last + 1)][::-1])[-1] == last)
    if node.op == "Gather":
        return bool(attribute(node, "axis", 0) % (last + 1) != last)
    if node.op == "Slice":
        bounds = slice_bounds(node, indices)
        return bounds is not None and last not in bounds
    if node.op in ("Squeeze", "Unsqueeze"):
        axes, rank = changed_axes(node, indices), len(made or shape)
        total = rank if node.op == "Unsqueeze" else last + 1
        return made is not None and axes is not None and all(a % total != total - 1 for a in axes)
    if node.op == "Reshape":
        target = constant_array(node.inputs[1])
        if target is None or target.size < 2 or (target.size > last and target[last] == 0):  # 0 would copy the width
            return False
        return [int(target[-1]), shape[-1]] == [width, width]
    return bool(node.op == "Identity")
