"""Annotations on nodes: which value of a quantized recurrence each of them produces or consumes.

They are in the nodes' metadata, so that names may change and steps may be unrolled: a copy of a node keeps its
annotations and gets the number of its step. `rnnqc dump` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from rnnqc.ir import Node, Value, info

MARKS_TAG = "rnnqc.values"
COPY_TAG = "rnnqc.copy"
"""Numbers of the copy of a loop's body that a node is in, from outside to inside."""
REAL, CODES, SUMS, HIGH, LOW, ROWS, UNIT, CONSTANT, MASK = (
    "real", "codes", "sums", "sums.high", "sums.low", "rows", "unit", "constant", "mask",
)  # fmt: skip
"""Relations of a value to its tensor: itself; its quantized values; integer sums, or one of their two halves; scales of
the rows; the real value of one LSB of the sums; a constant; a mask of the rows of the batch that have not ended.
"""


@dataclass(frozen=True)
class Mark:
    """The annotation of one value.

    Attributes:
        cell: The recurrence.
        tensor: The tensor of the value: a quantization point, or another name.
        part: Its role in that tensor.
        place: Index of the node's output, or, if negative, -1 - the index of its input.
        kind: Element type, of `onnx.TensorProto`.
        raised: Offset that was added to the quantized values.
        zero: The quantized 0, for per-row dynamic scales.
        rank: Its number of axes; None if unknown.
        step: The step in an unrolled recurrence; None in a loop.
    """

    cell: str
    tensor: str
    part: str
    place: int
    kind: int = onnx.TensorProto.FLOAT
    raised: int = 0
    zero: int = 0
    rank: int | None = 2
    step: int | None = None

    def value(self, node: onnx.NodeProto) -> str:
        """Returns the name of the value."""
        name: str = node.output[self.place] if self.place >= 0 else node.input[-1 - self.place]
        return name


def mark_made(value: Value, cell: str, tensor: str, part: str, **facts: Any) -> None:
    """Annotates the node that produces `value`."""
    node = value.inputs[0]
    _add(node, Mark(cell, tensor, part, _place(node.outputs, value), **facts))


def mark_taken(node: Node, value: Value, cell: str, tensor: str, part: str, **facts: Any) -> None:
    """Annotates a node that consumes `value`."""
    _add(node, Mark(cell, tensor, part, -1 - _place(node.inputs, value), **facts))


def _place(values: Sequence[Value], value: Value) -> int:
    return next(k for k, v in enumerate(values) if v is value)


def _add(node: Node, mark: Mark) -> None:
    metadata = info(node).metadata
    held = json.loads(metadata.get(MARKS_TAG, "[]"))
    usual = {f.name: f.default for f in mark.__dataclass_fields__.values()}
    held.append({k: v for k, v in asdict(mark).items() if v != usual[k]})
    metadata[MARKS_TAG] = json.dumps(held, separators=(",", ":"))


def marks_of(metadata: Mapping[str, str]) -> Iterator[Mark]:
    """Yields the annotations of a node."""
    for held in json.loads(metadata.get(MARKS_TAG, "[]")):
        yield Mark(**held)


def copied_marks(metadata: Mapping[str, str], step: int) -> dict[str, str]:
    """Returns the metadata for a copy of a node in an unrolled step."""
    made = dict(metadata)
    if MARKS_TAG in made:
        made[COPY_TAG] = json.dumps([*json.loads(made.get(COPY_TAG, "[]")), step])
    return made


def copy_of(metadata: Mapping[str, str]) -> tuple[int, ...]:
    """Returns the step numbers of the copies that contain a node, outermost first."""
    return tuple(json.loads(metadata.get(COPY_TAG, "[]")))
