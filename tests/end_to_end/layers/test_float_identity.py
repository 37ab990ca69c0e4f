"""With all quantizers off the decomposed and the unrolled layer equal onnxruntime's and the float64 reference.

What these would catch: a wrong gate order, a wrong rule for an attribute or an absent input, a mask off by one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.passes import Canonicalize, DecomposeLstm
from tests.generate.layers import RecurrentCase
from tests.laws.layers import float_layers
from tests.runs.lowered import all_nodes
from tests.runs.sessions import assert_close, assert_same_bits, plain_session, run
from tests.subjects.backend_cases import BACKEND_CASES

TOLERANCE = 1e-5
OFF = ["*.bits=none"]
CONSTANTS = ("W", "R", "B", "P")


def _compiled(case: RecurrentCase, unroll: bool) -> onnx.ModelProto:
    """By `lower`, which leaves a layer without quantizers a node unless it is unrolled, or by the passes alone."""
    if unroll:
        model = rnnqc.lower(case.model(), form="qcdq", overrides=OFF, unroll=True, dims=case.dims).proto
    else:
        loaded = rnnqc.Model.load(case.model())
        rnnqc.PassManager([Canonicalize(), DecomposeLstm()]).run(loaded)
        model = loaded.proto
    present = {n.op_type for n in all_nodes(model) if n.domain == ""}
    assert not present & {"LSTM", "GRU", "RNN", "QuantizeLinear", "DequantizeLinear"}, present
    if unroll and case.placement not in ("loop", "scan"):
        assert not present & {"Scan", "Loop"}, present
    return model


@pytest.mark.few(16)
@pytest.mark.parametrize("case", float_layers(), ids=lambda c: f"{c.seed} {c.op}")
def test_equals_onnxruntime_and_the_reference(case: RecurrentCase) -> None:
    """Unrolling also keeps the bits. (onnxruntime has no layout 1.)"""
    feeds = case.feeds(padding=0.0)
    got = run(plain_session(_compiled(case, False)), feeds)
    assert_close(case.expected(feeds), got, TOLERANCE, "against the reference")
    if not case.layout:
        assert_close(run(plain_session(case.model()), feeds), got, TOLERANCE, "against onnxruntime")
    assert_same_bits(got, run(plain_session(_compiled(case, True)), feeds), "unrolled")


@pytest.mark.few(24)
@pytest.mark.parametrize("name", BACKEND_CASES)
@pytest.mark.parametrize("unroll", [False, True], ids=["decomposed", "unrolled"])
def test_onnx_node_case(name: str, unroll: bool, shared: Callable[[str], Path]) -> None:
    """W, R, B and P, graph inputs in onnx's file, become initializers."""
    folder = shared(f"models/onnx_backend_node/test_{name}")
    model = onnx.load(folder / "model.onnx")
    operator = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    formal = {actual: formal for formal, actual in zip(operator, model.graph.node[0].input, strict=False) if actual}
    with np.load(folder / "data_set_0.npz") as data:
        values = {v.name: data[f"in{k}"] for k, v in enumerate(model.graph.input)}
        expected = {v.name: data[f"out{k}"] for k, v in enumerate(model.graph.output)}
    constants = {k: v for k, v in values.items() if formal[k] in CONSTANTS}
    feeds = {k: v for k, v in values.items() if k not in constants}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    kept = [v for v in model.graph.input if v.name in feeds]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    lowered = rnnqc.lower(model, form="qcdq", overrides=OFF, unroll=unroll)
    assert_close(expected, run(plain_session(lowered.proto), feeds), TOLERANCE, name)
