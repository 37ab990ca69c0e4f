"""split-fused-operators: fires, declines, and what follows from it.

What these would catch: an attribute or the fourth input of a convolution that is lost, an activation with parameters
that is taken for one without, a recurrence that is not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, SplitFusedOperators
from tests.passes.pass_testing import apply, op_types
from tests.subjects.protos import parse

HEAD = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g '


def canonical(text: str, **weights: Any) -> Model:
    model = Model.load(parse(HEAD + text, **weights))
    PassManager([Canonicalize()]).run(model)
    return model


def random(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "Tanh"])
def test_a_gemm(activation: str) -> None:
    model = canonical(
        f'(float[5,2] x) => (float[2,4] y) {{ y = com.microsoft.FusedGemm <activation = "{activation}", alpha = 0.5, '
        "beta = 2.0, transA = 1, transB = 1> (x, w, b) }",
        w=random(4, 5),
        b=random(4),
    )
    assert apply(SplitFusedOperators(), model).modified
    assert op_types(model.graph) == ["Gemm", activation]


@pytest.mark.parametrize("sum_", ["", ", z"])
def test_a_convolution(sum_: str) -> None:
    model = canonical(
        "(float[1,2,6,6] x, float[1,4,6,6] z) => (float[1,4,6,6] y) { "
        f'y = com.microsoft.FusedConv <activation = "Relu", pads = [1, 1, 1, 1]> (x, w, b{sum_}) }}',
        w=random(4, 2, 3, 3),
        b=random(4),
    )
    assert apply(SplitFusedOperators(), model).modified
    assert op_types(model.graph) == ["Conv", *(["Add"] if sum_ else []), "Relu"]


@pytest.mark.parametrize("activation", ['activation = "LeakyRelu", activation_alpha = 0.2', 'activation = "Other"'])
def test_others_stay(activation: str) -> None:
    model = canonical(
        f"(float[2,5] x) => (float[2,4] y) {{ y = com.microsoft.FusedGemm <{activation}> (x, w) }}", w=random(5, 4)
    )
    assert not SplitFusedOperators()(model).modified


def test_a_recurrence_of_fused_steps_is_a_layer() -> None:
    steps = " ".join(
        f"x{k} = Gather <axis = 0> (x, i{k}) j{k} = Concat <axis = 1> (x{k}, h{k}) "
        f'h{k + 1} = com.microsoft.FusedGemm <activation = "Tanh"> (j{k}, w, b)'
        for k in range(4)
    )
    proto = parse(
        HEAD + f"(float[4,2,5] x) => (float[2,6] y) {{ {steps} y = Identity (h4) }}",
        w=random(11, 6),
        b=random(6),
        h0=np.zeros((2, 6), np.float32),
        **{f"i{k}": np.array(k) for k in range(4)},
    )
    assert [(e.op, e.status) for e in rnnqc.lower(proto, strict=True).report.entries] == [("RNN", "lowered")]
