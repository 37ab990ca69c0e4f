"""The shapes that inputs and outputs of a model are declared with."""

from __future__ import annotations

from collections.abc import Sequence

import onnx


def fixed_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """The size that a dimension is declared to have; None for names and for -1, which some tools write for any size."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def declared_sizes(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """The sizes that a value is declared with, None where one is open; None of a value of unknown rank."""
    tensor = value.type.tensor_type
    return [fixed_size(d) for d in tensor.shape.dim] if tensor.HasField("shape") else None


def shapes_fit(before: Sequence[int | None] | None, after: Sequence[int | None] | None) -> bool:
    """Whether two declared shapes can be equal."""
    if before is None or after is None:
        return True
    return len(before) == len(after) and all(None in (a, b) or a == b for a, b in zip(before, after, strict=True))
