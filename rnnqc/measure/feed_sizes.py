"""Sizes of free dimensions that a model may run with: some usual ones, and those that its own constants speak of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx

from rnnqc.data.feeds import GENERATED_BATCH, GENERATED_LENGTH, Sizes, fixed_size
from rnnqc.proto.graph_walks import blocks_of, stored_tensors

LONG_LENGTH = 512
"""Of generated sequences where the model does not run on short ones: of samples of sound, say, a step needs many."""
MOST_LENGTHS = 16
"""Lengths of the model's own that are tried."""
LONGEST = 2**16
_FEW = 64
_LENGTHS_OF = ("Reshape", "Slice", "Split", "Pad", "Expand", "Range")
"""Operators whose constant whole numbers are sizes or places along an axis."""


def candidate_sizes(proto: onnx.ModelProto) -> Iterator[Sizes]:
    """Sizes to try, the usual ones first."""
    lengths = [GENERATED_LENGTH, LONG_LENGTH, *lengths_of(proto)]
    for length, batch in itertools.product(lengths[:2], (GENERATED_BATCH, 1)):
        yield Sizes(length, batch)
    yield Sizes(GENERATED_LENGTH, GENERATED_BATCH, named_time=True)
    yield Sizes(GENERATED_LENGTH, 1, named_time=True)
    for size in (GENERATED_BATCH, 1):  # batch and time cannot be told apart
        yield Sizes(size, size)
    for length, batch in itertools.product(lengths[2:], (GENERATED_BATCH, 1, 2)):
        yield Sizes(length, batch)


def lengths_of(proto: onnx.ModelProto) -> list[int]:
    """Lengths that a model's declarations, convolutions, slices and reshapes speak of; the likeliest first."""
    declared = [fixed_size(d) for v in (*proto.graph.output, *proto.graph.input) for d in v.type.tensor_type.shape.dim]
    blocks = list(blocks_of([proto.graph, *proto.functions]))
    small = {t.name: t for b in blocks for t in stored_tensors(b) if t.name and _count(t) <= _FEW}
    for block in blocks:
        for node in block.node:
            if node.op_type == "Constant":
                small.update((node.output[0], a.t) for a in node.attribute if a.HasField("t") and _count(a.t) <= _FEW)
    found: list[int] = []
    windows = 0
    for node in (n for b in blocks for n in b.node):
        if node.op_type in _LENGTHS_OF:
            found += [abs(n) for name in node.input for n in _whole(small.get(name))]
        window = next((a.ints for a in node.attribute if a.name == "kernel_shape"), ())
        windows += max(window, default=0)
    found += [n for n in declared if n is not None]
    sizes = sorted({*found, windows, 2 * windows})
    usual = (GENERATED_LENGTH, LONG_LENGTH)
    return [n for n in dict.fromkeys([*found[-len(declared) :], *sizes]) if 1 < n <= LONGEST and n not in usual][
        :MOST_LENGTHS
    ]


def _count(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims)) if tensor.dims else 1


def _whole(tensor: onnx.TensorProto | None) -> list[int]:
    if tensor is None or tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return []
    return [int(n) for n in onnx.numpy_helper.to_array(tensor).ravel()]
