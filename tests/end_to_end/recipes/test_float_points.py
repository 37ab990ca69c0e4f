"""One kind of tensor stays float in recipes where other formats follow from its own, as with a quantizer that is None.

What these would catch: a recipe that refuses such an override, formats that other points lose with it, and bits that
depend on the native library.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import sqnr_db
from tests.laws.parametrize import every_pair
from tests.runs.sessions import Array, assert_same_bits, plain_session, run
from tests.subjects.protos import parse

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LEAST = {"brevitas-int8": 18.0, "distiller-asym": 18.0, "pow2-int16": 40.0}
FLOAT = {
    "weight": ["W.weight", "R.weight"], "W.weight": ["W.weight"], "input": ["input"], "hidden": ["hidden"],
}  # fmt: skip
BIAS_FOLLOWS = {"brevitas-int8": ("weight", "W.weight", "input"), "distiller-asym": ("weight", "W.weight", "input")}
"""Its scale is the product of the scales of the input and of W; in pow2-int16 it is that of a product's result."""


def feeds(seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((7, 3, 6)).astype(np.float32)}


@functools.cache
def subject(op: str) -> tuple[onnx.ModelProto, Statistics]:
    rows, rng = GATES[op] * 8, np.random.default_rng(0)
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[T,B,6] x) => (float[T,1,B,8] y) '
        f"{{ y = {op} <hidden_size = 8> (x, W, R, bias) }}"
    )
    for name, shape in {"W": (1, rows, 6), "R": (1, rows, 8), "bias": (1, 2 * rows)}.items():
        array = (rng.standard_normal(shape) * 0.4).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto, rnnqc.calibrate(proto, [feeds(k) for k in range(1, 4)])


@pytest.mark.few(2)
@every_pair(op=list(GATES), recipe=list(LEAST), kind=list(FLOAT))
def test_one_kind_is_float(op: str, recipe: str, kind: str) -> None:
    proto, statistics = subject(op)
    plain = rnnqc.lower(proto, recipe, stats=statistics).report.points
    lowered = rnnqc.lower(proto, recipe, stats=statistics, overrides=[f"*.{kind}.bits=none"], strict=True)
    points = lowered.report.points
    lost = {name.partition("forward.")[2] for name in plain if _bits(plain, name) and not _bits(points, name)}
    assert set(FLOAT[kind]) <= lost
    if kind != "hidden":  # of which others say that they have the same format
        assert ("bias" in lost) == (kind in BIAS_FOLLOWS.get(recipe, ()))
        assert lost <= {*FLOAT[kind], "bias"}
    want, stock = run(plain_session(proto), feeds(0)), run(rnnqc.session(lowered.proto, native=False), feeds(0))
    assert sqnr_db(want["y"], stock["y"]) > LEAST[recipe]
    assert_same_bits(stock, run(rnnqc.session(lowered.proto), feeds(0)), "stock and native")


def test_strict_refuses_what_stays_float_and_not_what_an_override_leaves_float() -> None:
    """A layer whose weights are asked to be float is lowered; one of which nothing is quantized is not."""
    proto, _ = subject("LSTM")
    weights = rnnqc.lower(proto, "int8", overrides=["*.weight.bits=none"], strict=True)
    assert [e.status for e in weights.report.entries] == ["lowered"]
    with pytest.raises(CompileError, match="the recipe quantizes nothing in it"):
        rnnqc.lower(proto, "int8", overrides=["*.bits=none"], strict=True)


def _bits(points: dict[str, dict[str, object]], name: str) -> bool:
    return points.get(name, {}).get("bits") not in (None, "none")
