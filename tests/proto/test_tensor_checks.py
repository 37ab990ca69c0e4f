"""Tensors of every element type are taken as onnx writes them, and refused with an element more or less.

Versions of onnx have other numpy types for them: a valid bfloat16 was called damaged with onnx 1.18, and a packed type
whose elements are counted as bytes with every version.
"""

from __future__ import annotations

import onnx
import pytest

from rnnqc.errors import CompileError
from rnnqc.proto.tensor_checks import check_tensor

COUNT = 5
BYTES = {
    "FLOAT": 20, "DOUBLE": 40, "FLOAT16": 10, "BFLOAT16": 10, "COMPLEX64": 40, "COMPLEX128": 80, "BOOL": 5,
    "INT8": 5, "UINT8": 5, "INT16": 10, "UINT16": 10, "INT32": 20, "UINT32": 20, "INT64": 40, "UINT64": 40,
    "FLOAT8E4M3FN": 5, "FLOAT8E4M3FNUZ": 5, "FLOAT8E5M2": 5, "FLOAT8E5M2FNUZ": 5, "FLOAT8E8M0": 5,
    "FLOAT6E2M3": 4, "FLOAT6E3M2": 4, "FLOAT4E2M1": 3, "INT4": 3, "UINT4": 3, "INT2": 2, "UINT2": 2,
}  # fmt: skip
KNOWN = [name for name in onnx.TensorProto.DataType.keys() if name not in ("UNDEFINED", "STRING")]  # noqa: SIM118


def test_no_type_is_missing() -> None:
    assert set(KNOWN) <= set(BYTES)


@pytest.mark.parametrize("name", KNOWN)
def test_raw_elements(name: str) -> None:
    kind = onnx.TensorProto.DataType.Value(name)
    for size in range(BYTES[name] - 1, BYTES[name] + 2):
        tensor = onnx.TensorProto(data_type=kind, dims=[COUNT], raw_data=bytes(size))
        if size == BYTES[name]:
            check_tensor(tensor, "the tensor")
        else:
            with pytest.raises(CompileError, match=f"{size} bytes; shape .5. of {name.lower()} needs {BYTES[name]}"):
                check_tensor(tensor, "the tensor")


@pytest.mark.parametrize("name", KNOWN)
def test_elements_one_by_one(name: str) -> None:
    tensor = onnx.helper.make_tensor("t", onnx.TensorProto.DataType.Value(name), [COUNT], [1] * COUNT)
    check_tensor(tensor, "the tensor")
