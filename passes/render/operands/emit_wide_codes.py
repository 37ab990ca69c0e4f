"""16-bit activations with 8-bit matmuls of standard operators: two planes of bytes.

A quantized value `q` of 0 .. 65535 is `256 * (q >> 8) + (q & 255)`, and a matmul with it

    sum_k (q - z) W[k] = 256 * sum_k ((q >> 8) - (z >> 8)) W[k] + sum_k ((q & 255) - (z & 255)) W[k].

Planes of a sequence are separate values: two matmuls of many rows take as long as one, and need no Split. Those of a
step are stacked along the first axis, so that one MatMulInteger reads the weights once for both sums.
"""

from __future__ import annotations

import numpy as np

from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.render.operands.byte_weights import ByteWeights

WIDE_BITS = 16
WIDE_TOP = 2.0**WIDE_BITS - 1


def wide_codes(b: Builder, value: Value, scale: Value, zero_point: Value, name: str) -> Value:
    """Quantizes to 0 .. 65535 as float: rounds half to even, then adds the zero point."""
    units = b.op("Round", [b.op("Div", [value, scale], f"{name}.units")], f"{name}.rounded")
    shifted = b.op("Add", [units, zero_point], f"{name}.shifted")
    return b.op("Clip", [shifted, b.f32(0.0), b.f32(WIDE_TOP)], name)


def separate_planes(b: Builder, codes: Value, name: str) -> tuple[Value, Value]:
    """Returns the high bytes of float `codes` and the low ones, uint8 of the same shape."""
    high = b.cast(b.op("Mul", [codes, b.f32(2.0**-8)], f"{name}.high.float"), np.uint8, f"{name}.high")
    return high, b.cast(b.cast(codes, np.int32, f"{name}.int32"), np.uint8, f"{name}.low")


def planes(b: Builder, codes: Value, name: str) -> Value:
    """Stacks the high bytes of `codes` and the low ones: uint8 `[2n,...]` from float `[n,...]`."""
    high = b.op("Mul", [codes, b.f32(2.0**-8)], f"{name}.high")
    both = b.op("Concat", [high, codes], f"{name}.planes.float", axis=0)
    # The first Cast drops the fraction of the high byte, the second all but the lowest byte.
    return b.cast(b.cast(both, np.int32, f"{name}.planes.int32"), np.uint8, f"{name}.planes")


def zero_planes(b: Builder, zero_point: int, shape: Value, name: str) -> Value:
    """Returns the planes of a matrix of `shape` that is zero."""
    halves = [
        b.op("Expand", [b.u8(v), shape], f"{name}.{n}")
        for n, v in (("high", zero_point >> 8), ("low", zero_point & 255))
    ]
    return b.op("Concat", halves, name, axis=0)


def low_correction(b: Builder, w: ByteWeights, zero_point: int, name: str) -> Value | None:
    """Returns the correction of the low bytes' matmul, which has the zero point of the high ones, int32 `[1,n]`.

    MatMulInteger takes one zero point for both planes. With -128 <= W < 128 and K <= 65024 all sums fit into int32.

    Args:
        b: Collects the nodes.
        w: The weights `[K,n]`.
        zero_point: The zero point of the 16-bit values.
        name: Prefix of the values.

    Returns:
        None if the two bytes of the zero point are equal.
    """
    difference = (zero_point >> 8) - (zero_point & 255)
    if not difference:
        return None
    sums = b.reduce_sum(w.int32(b, name), [0], f"{name}.column_sums", keepdims=1)
    return b.op("Mul", [sums, b.i32(difference)], f"{name}.low_correction")


def weighted_sum(b: Builder, high: Value, low: Value, name: str) -> Value:
    """Returns `f32(high) * 256 + f32(low)` for the matmuls of both planes."""
    scaled = b.op("Mul", [b.cast(high, np.float32, f"{name}.high.float"), b.f32(256.0)], f"{name}.high.scaled")
    return b.op("Add", [scaled, b.cast(low, np.float32, f"{name}.low.float")], f"{name}.float")


def combined(b: Builder, product: Value, correction: Value | None, name: str) -> Value:
    """Returns the weighted sum of the matmul of stacked planes."""
    even = {"num_outputs": 2} if b.model.opset >= 18 else {}
    high, low = b.ops("Split", [product], [f"{name}.high", f"{name}.low"], axis=0, **even)
    if correction is not None:
        low = b.op("Add", [low, correction], f"{name}.low.corrected")
    return weighted_sum(b, high, low, name)
