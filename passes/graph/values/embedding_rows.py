"""Rows of embeddings whose tables are int8 with a scale for each row, as `quantize-embeddings` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from rnnqc.ir import Node, Value, attribute, constant_array, maker_of, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.values.layout_ops import stated_axes

VIEWS = ("Identity", "Transpose", "Squeeze", "Unsqueeze", "Reshape")
"""Operators behind an embedding that may move its rows: as they move the indices."""
LARGEST_SCALE = 2.0**52
"""With a larger scale a row could exceed 2**60, to which a cell limits what it reads."""


@dataclass(frozen=True)
class EmbeddingRows:
    """`Mul(Cast(Gather(table, indices)), Gather(scales, indices))`, moved by `views`.

    Attributes:
        rows: The Gather of int8 rows `[...,D]` from a table `[V,D]`.
        scales: The Gather of their scales `[...,1]` from `[V,1]`.
        views: The operators that move the floats, in order.
    """

    rows: Node
    scales: Node
    views: tuple[Node, ...] = ()

    @property
    def width(self) -> int:
        """D."""
        table = constant_array(self.rows.inputs[0])
        assert table is not None
        return int(table.shape[-1])

    def codes(self, b: Builder) -> tuple[Value, Value]:
        """Emits the moved rows and their scales, both from moved indices; returns the present ones if nothing moves.

        Args:
            b: Collects the nodes.
        """
        if not self.views:
            return self.rows.outputs[0], self.scales.outputs[0]
        indices = self.rows.inputs[1]
        for view in self.views:
            indices = _moved(b, view, indices)
        rows = b.op("Gather", [self.rows.inputs[0], indices], "rows", axis=0)
        return rows, b.op("Gather", [self.scales.inputs[0], indices], "rows.scale", axis=0)


def embedding_rows(value: Value, width: int) -> EmbeddingRows | None:
    """Returns the rows of an embedding that a value consists of; None for other values.

    Views may move rows, but must keep the last axis: it is that of the table.

    Args:
        value: The value.
        width: The size of its last axis.
    """
    views: list[Node] = []
    while (node := maker_of(value)) is not None and node.op in VIEWS and not node.domain:
        views.insert(0, node)
        value = node.inputs[0]
    found = _dequantized_rows(node)
    if found is None or found.width != width:
        return None
    last_reshape = max((k for k, v in enumerate(views) if v.op == "Reshape"), default=None)
    if not all(k == last_reshape or _keeps_rows(v, width) for k, v in enumerate(views)):
        return None
    return EmbeddingRows(found.rows, found.scales, tuple(v for v in views if v.op != "Identity"))


def reads_scales_of_rows(node: Node) -> bool:
    """Whether a Gather reads the scales of int8 rows of an embedding: from a column, with the indices of the rows."""
    if node.op != "Gather" or node.domain or attribute(node, "axis", 0) != 0:
        return False
    scales = _stored(node.inputs[0])
    if scales is None or scales.dtype.kind != "f" or scales.ndim < 2 or scales.size != len(scales):
        return False
    others = [n for n in node.inputs[1].outputs if n is not node and n.op == "Gather" and not n.domain]
    tables = [constant_array(n.inputs[0]) for n in others if n.inputs[1] is node.inputs[1]]
    return any(t is not None and t.dtype == np.int8 and len(t) == len(scales) for t in tables)


def reads_int8_rows(node: Node) -> bool:
    """Whether a Gather reads int8 rows of an embedding, whose scales another one reads."""
    readers = node.inputs[1].outputs if node.op == "Gather" and not node.domain else ()
    table = constant_array(node.inputs[0]) if readers else None
    return table is not None and table.dtype == np.int8 and any(map(reads_scales_of_rows, readers))


def _dequantized_rows(product: Node | None) -> EmbeddingRows | None:
    """The rows that a Mul dequantizes."""
    if product is None or product.op != "Mul" or product.domain:
        return None
    cast, scales = map(maker_of, product.inputs)
    if scales is None or cast is None or cast.op != "Cast" or cast.domain or cast.attrs["to"] != TensorProto.FLOAT:
        return None
    rows = maker_of(cast.inputs[0])
    if rows is None or not reads_scales_of_rows(scales) or not _reads_a_table(rows):
        return None
    scale = _stored(scales.inputs[0])
    allowed = scale is not None and 0 < float(scale.min()) <= float(scale.max()) <= LARGEST_SCALE
    return EmbeddingRows(rows, scales) if allowed and rows.inputs[1] is scales.inputs[1] else None


def _reads_a_table(rows: Node) -> bool:
    """Whether a Gather reads rows of an int8 matrix."""
    if rows.op != "Gather" or rows.domain or attribute(rows, "axis", 0) != 0:
        return False
    table = constant_array(rows.inputs[0])
    return table is not None and table.dtype == np.int8 and table.ndim == 2


def _stored(value: Value) -> npt.NDArray[Any] | None:
    """The stored numbers of scales, which may be behind a Cast."""
    cast = maker_of(value)
    return constant_array(cast.inputs[0] if cast is not None and cast.op == "Cast" and not cast.domain else value)


def _keeps_rows(view: Node, width: int) -> bool:
    """Whether a view moves whole rows, and its operands say how to move the indices."""
    rank = len(shape_of(view.inputs[0]) or ())
    if view.op == "Identity":
        return True
    if view.op == "Transpose":
        perm = attribute(view, "perm", None)
        return perm is not None and perm[-1] == len(perm) - 1
    if view.op == "Reshape":
        target = constant_array(view.inputs[1])
        made = shape_of(view.outputs[0]) if target is None else target.ravel().tolist()
        return made is not None and len(made) > 1 and made[-1] == width
    axes = stated_axes(view)
    if axes is None or not rank:
        return False
    top = rank + (len(axes) if view.op == "Unsqueeze" else 0)
    return all(a % top != top - 1 for a in axes)


def _moved(b: Builder, view: Node, indices: Value) -> Value:
    """Emits on the indices what a view does to the rows."""
    name = "rows.indices"
    if view.op == "Transpose":
        return b.op("Transpose", [indices], name, perm=[int(k) for k in attribute(view, "perm", None)[:-1]])
    if view.op == "Reshape":
        target = constant_array(view.inputs[1])
        if target is not None:
            shape: Value = b.i64([int(d) for d in target.ravel()[:-1]])
        else:
            shape = b.op("Slice", [view.inputs[1], b.i64([0]), b.i64([-1]), b.i64([0])], f"{name}.shape")
        return b.op("Reshape", [indices, shape], name, **dict(view.attrs))
    axes = stated_axes(view)
    rank = len(shape_of(view.inputs[0]) or ()) + (len(axes or ()) if view.op == "Unsqueeze" else 0)
    assert axes is not None
    return b.op(view.op, [indices, b.i64([a % rank for a in axes])], name)
