"""16-bit codes as planes of bytes.

What these would catch: a byte that is rounded instead of cut off, planes in the other order, a zero point of one plane
used for the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from rnnqc.ir import Model, Value, Variable
from rnnqc.ir.builder import Builder
from rnnqc.passes.render.operands.byte_weights import ByteWeights
from rnnqc.passes.render.operands.emit_wide_codes import (
    combined,
    low_correction,
    planes,
    separate_planes,
    weighted_sum,
    wide_codes,
    zero_planes,
)
from tests.laws.parametrize import every_pair
from tests.runs.sessions import options

OPSETS = [13, 17, 18, 22]


def _builder(opset: int) -> tuple[Builder, Variable]:
    proto = onnx.ModelProto(ir_version=8)
    proto.opset_import.add(domain="", version=opset)
    proto.graph.name = "graph"
    model = Model(proto)
    x = Variable("x", dtype=np.dtype(np.float32), shape=["n", "k"])
    model.graph.inputs.append(x)
    return Builder(model), x


def _run(b: Builder, results: list[Value], x: npt.NDArray[np.float32]) -> list[npt.NDArray[np.generic]]:
    for value in results:
        b.model.graph.outputs.append(value)
    b.model.graph.nodes.extend(b.nodes)
    proto = b.model.proto
    session = ort.InferenceSession(proto.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def _typed(value: Value, dtype: type[np.generic]) -> Value:
    value.dtype, value.shape = np.dtype(dtype), [None, None]
    return value


@pytest.mark.parametrize("opset", OPSETS)
def test_every_code(opset: int) -> None:
    b, x = _builder(opset)
    codes = np.arange(65536)
    high, low = separate_planes(b, x, "apart")
    both = planes(b, x, "stacked")
    got = _run(b, [_typed(v, np.uint8) for v in (high, low, both)], codes.reshape(256, 256).astype(np.float32))
    np.testing.assert_array_equal(got[0].ravel(), codes >> 8)
    np.testing.assert_array_equal(got[1].ravel(), codes & 255)
    np.testing.assert_array_equal(got[2], np.concatenate([got[0], got[1]]))


def test_codes_round_half_to_even_and_saturate() -> None:
    b, x = _builder(17)
    codes = wide_codes(b, x, b.f32(0.5), b.f32(1001), "codes")
    values = [0.0, -0.0, 0.25, 0.75, -0.25, -500.5, -501.0, 32267.0, 32267.5, 3e38, -np.inf, np.inf]
    (got,) = _run(b, [_typed(codes, np.float32)], np.float32([values]))
    assert got.tolist() == [[1001, 1001, 1001, 1003, 1001, 0, 0, 65535, 65535, 65535, 0, 65535]]


@every_pair(zero_point=[0, 255, 256, 257, 30001, 32768, 65535], opset=OPSETS, weight_zero_point=[None, 128])
def test_products(opset: int, zero_point: int, weight_zero_point: int | None) -> None:
    """With planes stacked and apart; every sum is below 2**24, where float32 is exact."""
    rng = np.random.default_rng(0)
    # Products with int8 weights beyond 64 saturate on x86 without VNNI, where cells have weights with a zero point.
    largest = 128 if weight_zero_point is not None else 64
    codes, signed = rng.integers(0, 65536, (3, 40)), rng.integers(-largest, largest, (40, 6))
    signed[:, 0] = -largest
    b, x = _builder(opset)
    stored = (signed + weight_zero_point).astype(np.uint8) if weight_zero_point is not None else signed.astype(np.int8)
    w = b.model.add_initializer("w", stored)
    weights = ByteWeights(w) if weight_zero_point is not None else ByteWeights(w, w)
    zero_points = [b.u8(128)] if weight_zero_point is not None else []
    stacked = b.op("MatMulInteger", [planes(b, x, "x"), w, b.u8(zero_point >> 8), *zero_points], "product")
    first = combined(b, stacked, low_correction(b, weights, zero_point, "w"), "sum")
    apart = [
        b.op("MatMulInteger", [plane, w, b.u8(z), *zero_points], f"product.{k}")
        for k, (plane, z) in enumerate(
            zip(separate_planes(b, x, "x2"), (zero_point >> 8, zero_point & 255), strict=True)
        )
    ]
    second = weighted_sum(b, apart[0], apart[1], "sum2")
    got = _run(b, [_typed(v, np.float32) for v in (first, second)], codes.astype(np.float32))
    high, low = (p @ signed for p in ((codes >> 8) - (zero_point >> 8), (codes & 255) - (zero_point & 255)))
    assert max(np.abs(high).max(), np.abs(low).max()) < 2**24
    expected = high.astype(np.float32) * np.float32(256) + low.astype(np.float32)
    np.testing.assert_array_equal(got[0], expected)
    np.testing.assert_array_equal(got[1], expected)


def test_a_correction_only_where_the_bytes_of_the_zero_point_differ() -> None:
    b, _ = _builder(17)
    w = ByteWeights(b.model.add_initializer("w", np.ones((2, 2), np.uint8)))
    assert low_correction(b, w, 257, "w") is None
    assert low_correction(b, w, 256, "w") is not None


def test_zero() -> None:
    b, x = _builder(17)
    zeros = zero_planes(b, 30001, b.op("Shape", [x], "shape"), "zeros")
    (got,) = _run(b, [_typed(zeros, np.uint8)], np.zeros((2, 3), np.float32))
    assert got.tolist() == [[117] * 3] * 2 + [[49] * 3] * 2
