"""Values of a custom cell's step while its program is written: types, shapes and known integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import NotHandled
from rnnqc.ir import Node, attribute
from rnnqc.passes.graph.values.sequence_elements import TO_THE_END

Array = npt.NDArray[Any]
BATCH = 2**40 + 15485863
"""Represents the batch size in shapes and in integers that are computed from them."""
MOST_COLUMNS = 2**20
TYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "uint8": "u8", "bool": "bool"}
Dims = tuple[int, ...]


@dataclass(frozen=True)
class StepValue:
    """A value of the step.

    Attributes:
        type: The type of its elements, as programs name it.
        dims: Its shape.
        index: Its number in the program; None for constants that no instruction has read yet.
        array: Its elements, if it is constant.
        flat: Whether it is flattened to one dimension, row after row.
    """

    type: str
    dims: Dims
    index: int | None = None
    array: Array | None = None
    flat: bool = False

    @property
    def per_row(self) -> bool:
        """Whether each row of the batch has its own numbers."""
        return bool(self.dims) and self.dims[0] == BATCH

    @property
    def columns(self) -> int:
        """The number of elements of a row."""
        return int(np.prod(self.dims[1:] if self.per_row else self.dims, dtype=np.int64))


STAYS = "it stays a loop of standard operators, with the native library, too."
WRITTEN_OTHERWISE = (
    "none is needed; where its speed counts, write the step in the operators of docs/quant_custom_cell.md"
)


def refusal(node: Node, reason: str) -> NotHandled:
    """Returns the reason why the step has no program; `reason` is a sentence."""
    return NotHandled(STAYS, f"{node.op} node {node.name!r}: {reason.removesuffix('.')}", WRITTEN_OTHERWISE)


def joined_dims(node: Node, values: list[StepValue]) -> Dims:
    """Returns the shape of an elementwise operator's output if an instruction can broadcast its operands.

    Raises:
        NotHandled: No instruction can.
    """
    ranked = [v for v in values if v.per_row]
    if any(v.flat != ranked[0].flat for v in ranked) or len({len(v.dims) for v in ranked}) > 1:
        raise refusal(node, "it joins rows and columns.")
    if not ranked:
        shape = np.broadcast_shapes(*(v.dims for v in values))
        if int(np.prod(shape[:-1], dtype=np.int64)) != 1:
            raise refusal(node, f"a constant has the shape {list(shape)}.")
        return tuple(shape)
    rank = len(ranked[0].dims)
    for value in values:
        if not value.per_row and (value.columns > 1 and (rank == 1 or value.dims[-1] != value.columns)):
            raise refusal(node, f"a constant has the shape {list(value.dims)}.")
        if len(value.dims) > rank:
            raise refusal(node, "an operand has more dimensions than the rows.")
    columns = {v.columns for v in values} - {1}
    if len(columns) > 1:
        raise refusal(node, f"its operands have {sorted(columns)} columns.")
    return (BATCH, *([max(columns, default=1)] if rank == 2 else []))


def whole_numbers(node: Node, given: list[Array]) -> Array | None:
    """Returns the output of an operator on known integers; None if the operator is not supported."""
    first = given[0]
    if node.op in ("Identity", "Cast"):
        return first
    if node.op in ("Add", "Sub", "Mul", "Max", "Min"):
        function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}[
            node.op
        ]
        return np.asarray(function(first, given[1])) if len(given) == 2 else None
    if node.op == "Div" and np.all(given[1] > 0) and np.all(first >= 0):
        return np.asarray(first // given[1])
    if node.op == "Gather" and attribute(node, "axis", 0) == 0:
        return np.asarray(np.take(first, given[1], axis=0))
    if node.op == "Concat":
        return np.concatenate(given)
    if node.op == "Unsqueeze" and len(given) == 2:
        return np.asarray(np.expand_dims(first, tuple(int(k) for k in given[1])))
    if node.op == "Squeeze":
        return np.asarray(first.reshape(()) if first.size == 1 else np.squeeze(first))
    if node.op == "Slice" and len(given) >= 3 and first.ndim == 1:
        step = int(given[4].item()) if len(given) > 4 else 1
        return np.asarray(first[int(given[1].item()) : int(given[2].item()) : step]) if step > 0 else None
    if node.op == "Reshape":
        return np.asarray(first.reshape([int(d) for d in given[1]]))
    return None


def depends_on_batch(value: int) -> bool:
    """Whether an integer was computed from the batch size, and is not a sentinel for the end."""
    return BATCH // 1024 < abs(value) < BATCH * 1024 and abs(value) not in (TO_THE_END, TO_THE_END + 1)


def small(node: Node, value: int, what: str) -> int:
    """Returns an integer that does not depend on the batch size; very large ones mean the end.

    Raises:
        NotHandled: It depends on the batch size, or is not known.
    """
    if abs(value) > MOST_COLUMNS and abs(value) < TO_THE_END:
        raise refusal(node, f"{what} is not known.")
    if depends_on_batch(value):
        raise refusal(node, f"{what} depends on the size of the batch.")
    return value
