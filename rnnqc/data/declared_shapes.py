"""The declared shapes of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx


def fixed_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """The declared size of a dimension; None for names and for -1, which some tools write for any size."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def declared_sizes(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """The declared sizes of a value, None where one is open; None for a value of unknown rank."""
    tensor = value.type.tensor_type
    return [fixed_size(d) for d in tensor.shape.dim] if tensor.HasField("shape") else None


def shapes_fit(before: Sequence[int | None] | None, after: Sequence[int | None] | None) -> bool:
    """Whether two declared shapes can be equal."""
    if before is None or after is None:
        return True
    return len(before) == len(after) and all(None in (a, b) or a == b for a, b in zip(before, after, strict=True))
