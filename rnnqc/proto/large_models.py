"""Models with more weights than protobuf takes in one file."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.files import LARGEST_FILE, proto_size
from rnnqc.proto.tensor_checks import tensor_bytes

MOST_BYTES = LARGEST_FILE // 2
"""With more bytes of weights the large ones leave the model; half of a file is for everything else."""
LEAST_ELEMENTS = 2**20
"""Weights with fewer elements stay."""
_TYPES = (
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.INT16,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.INT32,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT64,
)
"""Element types of weights that leave the model; those of other types stay, too."""


def loaded_size(proto: onnx.ModelProto, name: str) -> int:
    """Returns the size of a model in bytes, as one file if it fits in one, else that of its large weights.

    Raises:
        CompileError: It is too deep for protobuf, or too large for other reasons than its weights.
    """
    try:
        return proto_size(proto, name)
    except CompileError:
        size = _bytes_of(large_weights(proto))
        if size <= MOST_BYTES:
            raise
        return size


def large_weights(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Returns the weights of the main graph that can leave the model."""
    return [t for t in proto.graph.initializer if math.prod(t.dims) >= LEAST_ELEMENTS and t.data_type in _TYPES]


def without_large_weights(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[np.generic]]]:
    """Returns a model that fits into one file, and its large weights by name.

    That is the model itself, and none, unless it has more than `MOST_BYTES` of them. In the other one they are declared
    as external data.
    """
    large = large_weights(proto)
    if _bytes_of(large) <= MOST_BYTES:
        return proto, {}
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in large}
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    for tensor in (t for t in rest.graph.initializer if t.name in arrays):
        declared = onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
        declared.data_location = onnx.TensorProto.EXTERNAL
        declared.external_data.add(key="location", value="memory")
        tensor.CopyFrom(declared)
    return rest, arrays


def _bytes_of(weights: Iterable[onnx.TensorProto]) -> int:
    return sum(tensor_bytes(t, f"initializer {t.name!r}") for t in weights)
