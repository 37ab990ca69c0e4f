"""Constants stored as integers, behind dequantizers and operators that only move elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import NotHandled
from rnnqc.evaluation.evaluate import evaluate_nodes
from rnnqc.ir import Model, Node, Value, attribute, constant_array, input_or_none
from rnnqc.passes.graph.nodes.quant_operators import is_quant, read_quant
from rnnqc.passes.graph.values.constant_expressions import constant_expression
from rnnqc.passes.graph.values.layout_ops import stated_axes

_MOVERS = ("Identity", "Concat", "Unsqueeze", "Squeeze", "Transpose", "Reshape")
_DEEPEST = 64


@dataclass(frozen=True)
class StoredCodes:
    """Quantized values with the scale and the zero point of every element, all of one shape.

    Attributes:
        codes: int64.
        scale: float32.
        zero_point: float32.
    """

    codes: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.float32]

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The dequantized values."""
        return np.asarray((self.codes.astype(np.float32) - self.zero_point) * self.scale, np.float32)


def is_stored_as_codes(value: Value) -> bool:
    """Whether quantizers or dequantizers produce `value`, judged by its nodes alone."""
    stack, seen = [value], 0
    while stack and seen <= _DEEPEST:
        seen += 1
        node = _producer(stack.pop())
        if node is None:
            continue
        if is_quant(node) or (node.op == "DequantizeLinear" and not node.domain):
            return True
        if node.op in _MOVERS and not node.domain:
            stack.extend(node.inputs if node.op == "Concat" else node.inputs[:1])
    return False


def stored_codes(model: Model, value: Value, depth: int = 0) -> StoredCodes | None:
    """Returns the quantized values that `value` derives from; None if it has other sources, or an unknown form."""
    node = _producer(value)
    if node is None or depth > _DEEPEST:
        return None
    if is_quant(node):
        return _quantized(node)
    if node.domain:
        return None
    if node.op == "DequantizeLinear":
        return _dequantized(model, node)
    if node.op not in _MOVERS:
        return None
    sources = node.inputs if node.op == "Concat" else node.inputs[:1]
    parts = [stored_codes(model, v, depth + 1) for v in sources]
    found = [p for p in parts if p is not None]
    if not found or len(found) != len(parts):
        return None
    try:
        codes = _moved(node, [p.codes for p in found])
        scale = _moved(node, [p.scale for p in found])
        zero_point = _moved(node, [p.zero_point for p in found])
    except ValueError:  # shapes that do not match; onnxruntime reports them
        return None
    return None if codes is None or scale is None or zero_point is None else StoredCodes(codes, scale, zero_point)


def byte_codes(stored: StoredCodes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Returns quantized values and zero points as int8 or uint8 if all of them fit, else None."""
    zero = stored.zero_point
    if (zero % 1).any():
        return None
    low = min(stored.codes.min(initial=0), zero.min(initial=0))
    high = max(stored.codes.max(initial=0), zero.max(initial=0))
    for dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return stored.codes.astype(dtype), zero.astype(dtype)
    return None


def channel_axis(*arrays: npt.NDArray[Any]) -> int | None:
    """Returns the only axis along which the arrays, all of one shape, vary; -1 for constants, None for several axes."""
    varying: set[int] = set()
    for array in arrays:
        first = array[tuple(slice(0, 1) for _ in array.shape)]
        if (array == first).all():
            continue
        for axis in range(array.ndim):
            if not (array == array.take([0], axis)).all():
                varying.add(axis)
    return -1 if not varying else varying.pop() if len(varying) == 1 else None


def along(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Returns an array that varies along `axis` only as a vector; for -1 the number of a constant array."""
    if axis < 0:
        return np.asarray(array.ravel()[0])
    return np.ascontiguousarray(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)[:, 0])


def _producer(value: Value) -> Node | None:
    return value.inputs[0] if len(value.inputs) == 1 else None


def _quantized(node: Node) -> StoredCodes | None:
    raw = constant_array(node.inputs[0])
    if raw is None:
        return None
    try:
        quantizer = read_quant(node)
    except NotHandled:
        return None
    codes = quantizer.codes(raw)
    return _spread(codes, quantizer.scale, quantizer.zero_point)


def _dequantized(model: Model, node: Node) -> StoredCodes | None:
    scale = constant_array(input_or_none(node, 1))
    codes = constant_array(node.inputs[0])
    if codes is None:
        nodes = constant_expression(node.inputs[0])
        codes = evaluate_nodes(model, nodes, node.inputs[0]) if nodes else None
    given = input_or_none(node, 2)
    zero = np.zeros((), np.int64) if given is None else constant_array(given)
    if codes is None or scale is None or zero is None or scale.dtype != np.float32 or attribute(node, "block_size", 0):
        return None
    if not np.issubdtype(codes.dtype, np.integer):
        return None
    if scale.size > 1:
        axis = attribute(node, "axis", 1)
        shape = [1] * codes.ndim
        if scale.ndim != 1 or not -codes.ndim <= axis < codes.ndim or zero.size not in (1, scale.size):
            return None
        shape[axis] = -1
        scale, zero = scale.reshape(shape), (zero if zero.size == 1 else zero.reshape(shape))
    return _spread(codes.astype(np.int64), scale, zero)


def _spread(codes: npt.NDArray[np.int64], scale: npt.NDArray[Any], zero_point: npt.NDArray[Any]) -> StoredCodes | None:
    try:
        arrays = [np.broadcast_to(a.reshape(()) if a.size == 1 else a, codes.shape) for a in (scale, zero_point)]
    except ValueError:
        return None
    return StoredCodes(codes, *(np.asarray(a, np.float32) for a in arrays))


def _moved(node: Node, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    first = arrays[0]
    if node.op == "Identity":
        return first
    if node.op == "Concat":
        return np.concatenate(arrays, axis=attribute(node, "axis", 0))
    if node.op == "Transpose":
        return first.transpose(attribute(node, "perm", None))
    given = constant_array(input_or_none(node, 1))
    if node.op == "Reshape":
        if given is None or attribute(node, "allowzero", 0):
            return None
        return first.reshape([first.shape[k] if n == 0 else int(n) for k, n in enumerate(given)])
    axes = stated_axes(node)
    if axes is None:
        return first.squeeze() if node.op == "Squeeze" and input_or_none(node, 1) is None else None
    if node.op == "Squeeze":
        return first.squeeze(tuple(axes))
    return np.expand_dims(first, tuple(axes))
