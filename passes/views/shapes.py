"""Infers shapes independently of declared ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.helper import make_tensor_type_proto, np_dtype_to_tensor_dtype

from rnnqc.cells.stages import FusedCell
from rnnqc.ir import Model, Value, dtype_of, shape_of

_SWEEPS = 16


def infer_shapes_of_values(model: Model) -> None:
    """Sets the shapes that follow from the inputs of the model, from constants, and from the sizes of cells.

    The first guess for the outputs of fused cells uses the shapes already set. A wrong guess costs time but has no
    effect: the final shapes are a fixed point.
    """
    values = {v.name: v for g in model.graphs() for n in g.nodes for v in [*n.inputs, *n.outputs]}
    known = _outputs_of_cells(model, values)
    for _ in range(_SWEEPS):
        model.infer_shapes(known)
        found = _outputs_of_cells(model, values)
        if found == known:
            break
        known = found


def _outputs_of_cells(model: Model, values: Mapping[str, Value]) -> dict[str, onnx.TypeProto]:
    """The types of the outputs of fused cells, if the shapes of their inputs are set or follow from other cells.

    In a stack of layers the last one's follow from the input of the first.
    """
    found: dict[str, onnx.TypeProto] = {}
    shapes: dict[str, list[int | str | None]] = {}
    for cell in model.cells.values():
        if isinstance(cell, FusedCell):
            x = shapes.get(cell.x) or shape_of(values.get(cell.x))
            for value, dtype, shape in _outputs(cell, x, values):
                shapes[value.name] = shape
                found[value.name] = make_tensor_type_proto(np_dtype_to_tensor_dtype(dtype), shape)
    return found


def _outputs(
    cell: FusedCell, x: Sequence[int | str | None] | None, values: Mapping[str, Value]
) -> Iterator[tuple[Value, np.dtype[Any], list[int | str | None]]]:
    """The types and shapes of a fused cell's outputs, if the shape of its input is known."""
    if x is None or len(x) != 3:
        return
    length, batch, _ = x
    for name, sequence in ((cell.y, True), (cell.y_codes, True), (cell.y_h, False), (cell.y_c, False)):
        value = values.get(name) if name is not None else None
        dtype = dtype_of(value)
        if value is None or dtype is None:
            continue
        shape: list[int | str | None] = [length, batch, cell.hidden_size] if sequence else [batch, cell.hidden_size]
        before = shape if name == cell.y_codes else shape_of(value)  # quantized values have no axis for the direction
        if before is not None and len(before) == len(shape) + 1:
            shape.insert(1 if sequence else 0, 1)
        if before is not None and len(before) == len(shape):
            yield value, dtype, shape
