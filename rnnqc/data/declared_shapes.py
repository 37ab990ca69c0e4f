"""Inputs and outputs as a model declares them: names, types and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx


@dataclass(frozen=True)
class Declared:
    """An input or an output of a model, as the model declares it.

    Attributes:
        name: Its name.
        type: The type of its elements, as numpy calls it; of a value that is no tensor, the kind of value.
        shape: Sizes, the names of open dimensions, None for nameless ones; None as a whole where the rank is unknown.
    """

    name: str
    type: str
    shape: Sequence[int | str | None] | None

    @classmethod
    def of(cls, value: onnx.ValueInfoProto) -> Declared:
        """Returns what is declared of a value."""
        kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
        if kind != "tensor_type":
            return cls(value.name, (kind or "unknown").removesuffix("_type"), None)
        dims = [fixed_size(d) for d in tensor.shape.dim]
        shape = tuple(d.dim_param or None if s is None else s for s, d in zip(dims, tensor.shape.dim, strict=True))
        element = onnx.TensorProto.DataType.Name(tensor.elem_type).lower() if tensor.elem_type else "unknown"
        return cls(value.name, _NUMPY.get(element, element), shape if tensor.HasField("shape") else None)

    @property
    def shape_text(self) -> str:
        """The shape in words, `[2, batch, 128]`; `?` for a size without a name, and for an unknown rank."""
        return "?" if self.shape is None else f"[{', '.join('?' if s is None else str(s) for s in self.shape)}]"


_NUMPY = {"float": "float32", "double": "float64"}
"""Types of elements that ONNX calls otherwise than numpy does."""


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
