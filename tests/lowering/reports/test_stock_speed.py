"""`lower` names the layers that are slower in standard operators than the float layers in onnxruntime.

What these would catch: a slow custom cell that `lower` does not name, a fast one that it calls slow.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.lowering.reports.stock_speed import STOCK_WEIGHTS
from tests.subjects.protos import parse

HEADER = '<ir_version: 8, opset_import: ["": 17]> '
STEP = (
    "p{k} = MatMul ({x}, W) s{k} = MatMul ({h}, R) g{k} = Add (p{k}, s{k}) "
    "f{k} = Sigmoid (g{k}) a{k} = Tanh (g{k}) {y} = Mul (f{k}, a{k})"
)
SLOW, BREAK_EVEN = 32, 364
assert SLOW**2 < STOCK_WEIGHTS <= BREAK_EVEN**2


def weights(model: onnx.ModelProto, units: int) -> onnx.ModelProto:
    """The model with W and R."""
    rng = np.random.default_rng(0)
    for name in "WR":
        held = rng.standard_normal((units, units)) / units**0.5
        model.graph.initializer.append(numpy_helper.from_array(held.astype(np.float32), name))
    return model


def looped(units: int) -> onnx.ModelProto:
    """A custom cell in a loop."""
    step = STEP.format(x="x", h="h", k="", y="h_next")
    text = f"cell (float[B,{units}] x, float[B,{units}] h) => (float[B,{units}] h_next) {{ {step} }}"
    return rnnqc.layer(weights(parse(HEADER + text), units))


def unrolled(units: int) -> onnx.ModelProto:
    """The same cell in three unrolled steps, the last of which differs, so that they do not become a Scan."""
    steps = [STEP.format(x=f"x{k}", h=f"h{k}", k=k, y=f"h{k + 1}") for k in range(3)]
    steps[-1] = steps[-1].replace("Tanh", "Softsign")
    inputs = ", ".join(f"float[B,{units}] {n}" for n in ("x0", "x1", "x2", "h0"))
    text = f"steps ({inputs}) => (float[B,{units}] h3) {{ {' '.join(steps)} }}"
    return weights(parse(HEADER + text), units)


@pytest.mark.parametrize(("units", "slow"), [(SLOW, True), (BREAK_EVEN, False)])
def test_a_custom_cell_with_a_kernel(units: int, slow: bool) -> None:
    report = rnnqc.lower(looped(units)).report
    assert [e.status for e in report.entries] == ["lowered"]
    assert bool(report.slow_stock) == slow
    assert ("1 custom cell(s)" in report.slow_stock) == slow
    assert not report.warnings
    assert rnnqc.inspect(looped(units)).slow_stock == report.slow_stock


@pytest.mark.parametrize(("units", "slow"), [(SLOW, True), (BREAK_EVEN, False)])
def test_a_custom_cell_without_a_kernel(units: int, slow: bool) -> None:
    found = [w for w in rnnqc.lower(unrolled(units)).report.warnings if "slower there than in float" in w]
    assert len(found) == slow
    if not slow:
        return
    assert "matmuls have 1024 weights" in found[0] and "`rnnqc layer`" in found[0]
    (override,) = (text for text in found[0].split("'") if text.endswith(".bits=none"))
    (entry,) = rnnqc.lower(unrolled(units), overrides=[override]).report.entries
    assert entry.status == "float"


def test_forms_without_integer_matmuls() -> None:
    assert not rnnqc.lower(looped(SLOW), form="qcdq").report.slow_stock
