"""Checks of the tensors and types of a model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.structure import EXPORT_AGAIN, node_text

# Bits of packed types, and of types without a numpy type in onnx before 1.19.
_BITS = {
    "INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8, "BFLOAT16": 16,
}  # fmt: skip
# Numbers per element in the TensorProto fields that hold values one by one; other types are in int32_data.
_FIELDS = {
    "FLOAT": ("float_data", 1),
    "COMPLEX64": ("float_data", 2),
    "DOUBLE": ("double_data", 1),
    "COMPLEX128": ("double_data", 2),
    "INT64": ("int64_data", 1),
    "UINT32": ("uint64_data", 1),
    "UINT64": ("uint64_data", 1),
    "STRING": ("string_data", 1),
}
_TYPES: dict[int, str] = {v: k for k, v in onnx.TensorProto.DataType.items()}
LARGEST_SPARSE = 2**28
"""The largest number of elements of a sparse tensor, zeros included."""


def tensors_of(proto: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """Yields every tensor of a model with its name for messages: initializers and attributes, functions included."""
    for block in blocks_of([proto.graph, *proto.functions]):
        if isinstance(block, onnx.GraphProto):
            for tensor in block.initializer:
                yield tensor, f"tensor {tensor.name!r}"
            for sparse in block.sparse_initializer:
                yield sparse.values, f"values of the sparse tensor {sparse.values.name!r}"
                yield sparse.indices, f"indices of the sparse tensor {sparse.values.name!r}"
        for node in block.node:
            for attr in node.attribute:
                for tensor in [*([attr.t] if attr.HasField("t") else []), *attr.tensors]:
                    yield tensor, f"attribute {attr.name!r} of {node_text(node)}"


def tensor_bytes(tensor: onnx.TensorProto, where: str) -> int:
    """Returns the size of a tensor's elements according to its dimensions and type.

    Raises:
        CompileError: A dimension is negative, or the type is unknown or has no fixed size.
    """
    return (_elements(tensor, where) * _bits(tensor, where) + 7) // 8


def _elements(tensor: onnx.TensorProto, where: str) -> int:
    count = 1
    for dim in tensor.dims:
        if dim < 0:
            raise CompileError(
                f"{where}: shape {list(tensor.dims)}.", supported="dimensions from 0 on", action=EXPORT_AGAIN
            )
        count *= dim
    return count


def check_type(value: onnx.ValueInfoProto, where: str) -> None:
    """Raises CompileError for an element type that ONNX does not have."""
    described = value.type
    while described.WhichOneof("value") in ("sequence_type", "optional_type"):
        described = getattr(described, described.WhichOneof("value")).elem_type
    kind = described.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type") and getattr(described, kind).elem_type not in _TYPES:
        number = getattr(described, kind).elem_type
        raise CompileError(f"{where}: element type {number}.", supported="the types of ONNX", action=EXPORT_AGAIN)


def _type_name(tensor: onnx.TensorProto, where: str) -> str:
    name = _TYPES.get(tensor.data_type, "UNDEFINED")
    if name == "UNDEFINED":
        raise CompileError(
            f"{where}: element type {tensor.data_type}.", supported="the types of ONNX", action=EXPORT_AGAIN
        )
    return name


def _bits(tensor: onnx.TensorProto, where: str) -> int:
    name = _type_name(tensor, where)
    if name == "STRING":
        raise CompileError(
            f"{where}: strings as raw data.",
            supported="numbers; strings are stored in string_data",
            action=EXPORT_AGAIN,
        )
    return _BITS.get(name) or onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Raises CompileError for a tensor that does not hold exactly its elements, or stores them in an unknown way."""
    count = _elements(tensor, where)
    name = _type_name(tensor, where)
    if tensor.HasField("segment"):
        raise CompileError(f"{where}: a segment of a tensor.", supported="whole tensors", action=EXPORT_AGAIN)
    if tensor.HasField("raw_data"):
        found, wanted, unit = len(tensor.raw_data), tensor_bytes(tensor, where), "bytes"
    else:
        field, numbers = _FIELDS.get(name, ("int32_data", 1))
        per_number = max(8 // _BITS.get(name, 8), 1)
        found, wanted, unit = (
            len(getattr(tensor, field)),
            (count * numbers + per_number - 1) // per_number,
            f"values in {field}",
        )
    if found != wanted:
        raise CompileError(
            f"{where}: {found} {unit}; shape {list(tensor.dims)} of {name.lower()} needs {wanted}.",
            supported="tensors that hold exactly their elements",
            action="export the model again; the file is damaged or was cut",
        )


def check_sparse(sparse: onnx.SparseTensorProto, where: str) -> None:
    """Raises CompileError for a sparse tensor that is too large, or whose indices are outside its shape."""
    shape, count = list(sparse.dims), list(sparse.values.dims)
    form = list(sparse.indices.dims)
    sound = len(count) == 1 and form in (count, [*count, len(shape)]) and all(d >= 0 for d in shape)
    if sound and sparse.indices.data_type == onnx.TensorProto.INT64:
        indices = onnx.numpy_helper.to_array(sparse.indices)
        limit = np.asarray(shape) if len(form) == 2 else np.prod(shape, dtype=object)
        sound = bool(np.all(indices >= 0) and np.all(indices < limit))
    else:
        sound = False
    if sound and int(np.prod(shape, dtype=object)) > LARGEST_SPARSE:
        raise CompileError(
            f"{where}: shape {shape}.",
            supported=f"up to {LARGEST_SPARSE} elements: onnxruntime fills in the zeros",
            action=EXPORT_AGAIN,
        )
    if not sound:
        raise CompileError(
            f"{where}: shape {shape}, values {count}, indices {form}.",
            supported="values [N], int64 indices [N] or [N, rank] inside the shape",
            action=EXPORT_AGAIN,
        )
