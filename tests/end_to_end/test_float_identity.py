"""With all quantizers off the decomposed and the unrolled layer equal onnxruntime's and the float64 reference.

What these would catch: a wrong gate order, a wrong rule for an attribute or an absent input, a mask off by one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from lstm_models import BACKEND_CASES, RecurrentCase
from onnx import numpy_helper
from running import assert_close, assert_same_bits, plain_session, run
from running_lowered import all_nodes
from strategies import any_cases, gru_and_rnn_cases, lstm_cases

import rnnqc
from rnnqc.passes import Canonicalize, DecomposeLstm, Unroll

TOLERANCE = 1e-5
EXAMPLES = settings().max_examples
OFF = ["*.bits=none"]
CONSTANTS = ("W", "R", "B", "P")


def _compiled(case: RecurrentCase, unroll: bool) -> onnx.ModelProto:
    dims = case.dims if unroll else {}
    lowered = rnnqc.lower(case.model(), form="qcdq", overrides=OFF, unroll=unroll, dims=dims)
    model: onnx.ModelProto = lowered.proto
    present = {n.op_type for n in all_nodes(model) if n.domain == ""}
    assert not present & {"LSTM", "GRU", "RNN", "QuantizeLinear", "DequantizeLinear"}, present
    if unroll and case.placement not in ("loop", "scan"):
        assert not present & {"Scan", "Loop"}, present
    return model


def _compare(unroll: bool, case: RecurrentCase, *, runtime: bool = True) -> None:
    feeds = case.feeds(padding=0.0)
    got = run(plain_session(_compiled(case, unroll)), feeds)
    if runtime:
        assert_close(run(plain_session(case.model()), feeds), got, TOLERANCE, "against onnxruntime")
    assert_close(case.expected(feeds), got, TOLERANCE, "against the reference")


@pytest.mark.parametrize("unroll", [False, True], ids=["decomposed", "unrolled"])
@settings(max_examples=4 * EXAMPLES)
@given(case=lstm_cases())
def test_equals_onnxruntime_and_the_reference(unroll: bool, case: RecurrentCase) -> None:
    _compare(unroll, case)


@pytest.mark.parametrize("unroll", [False, True], ids=["decomposed", "unrolled"])
@settings(max_examples=4 * EXAMPLES)
@given(case=gru_and_rnn_cases())
def test_equals_onnxruntime_and_the_reference_gru_and_rnn(unroll: bool, case: RecurrentCase) -> None:
    _compare(unroll, case)


@pytest.mark.parametrize("unroll", [False, True], ids=["decomposed", "unrolled"])
@given(case=any_cases(layouts=(1,)))
def test_layout_1_equals_the_reference(unroll: bool, case: RecurrentCase) -> None:
    _compare(unroll, case, runtime=False)


@settings(max_examples=2 * EXAMPLES)
@given(case=any_cases(placements=("main",)))
def test_unrolling_keeps_the_bits(case: RecurrentCase) -> None:
    feeds = case.feeds(padding=0.0)
    decomposed = run(plain_session(_compiled(case, False)), feeds)
    assert_same_bits(decomposed, run(plain_session(_compiled(case, True)), feeds), "unrolled")


@given(case=any_cases(placements=("main",), dynamic_time=False))
def test_passes_by_hand(case: RecurrentCase) -> None:
    """The pass manager gives what lower gives."""
    feeds = case.feeds(padding=0.0)
    expected = run(plain_session(_compiled(case, False)), feeds)
    for passes in ([Canonicalize(), DecomposeLstm()], [Canonicalize(), DecomposeLstm(), Unroll()]):
        model = rnnqc.Model.load(case.model())
        rnnqc.PassManager(passes).run(model)
        assert_same_bits(expected, run(plain_session(model.proto), feeds), str([p.info.name for p in passes]))


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
