"""Models of another floating-point type than float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper


def retyped(model: onnx.ModelProto, dtype: npt.DTypeLike, source: npt.DTypeLike = np.float32) -> onnx.ModelProto:
    """A copy whose initializers, constants, inputs, outputs and value infos of type `source` are `dtype`.

    Those of subgraphs are, too.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    before, after = (helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (source, dtype))
    graphs = [changed.graph]
    while graphs:
        graph = graphs.pop()
        for tensor in graph.initializer:
            _retype(tensor, before, dtype)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == before:
                value.type.tensor_type.elem_type = after
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    _retype(attribute.t, before, dtype)
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
    return changed


def _retype(tensor: onnx.TensorProto, before: int, dtype: npt.DTypeLike) -> None:
    if tensor.data_type == before:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))


def retyped_arrays(arrays: dict[str, npt.NDArray[Any]], dtype: npt.DTypeLike) -> dict[str, npt.NDArray[Any]]:
    """The float arrays as `dtype`, the others as they are."""
    return {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in arrays.items()}
