"""The numpy reference against onnxruntime's LSTM and against onnx's own node cases.

What these would catch: an error in the oracle that the other tests compare with, or in the model builder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_lstm import run_node
from hypothesis import given, settings
from lstm_models import LstmCase
from running import assert_close, assert_same_bits, plain_session, run
from strategies import lstm_cases

TOLERANCE = 1e-5
BACKEND_CASES = ("defaults", "with_initial_bias", "with_peepholes", "reverse", "bidirectional", "batchwise")


@settings(max_examples=10 * settings().max_examples)
@given(lstm_cases())
def test_reference_equals_onnxruntime(case: LstmCase) -> None:
    feeds = case.feeds(padding=0.0)
    assert_close(case.expected(feeds), run(plain_session(case.model()), feeds), TOLERANCE, "onnxruntime")


@given(lstm_cases(layouts=(0, 1)))
def test_models_are_valid(case: LstmCase) -> None:
    onnx.checker.check_model(case.model(), full_check=True)


@given(lstm_cases(placements=("main",)))
def test_reference_ignores_the_padding(case: LstmCase) -> None:
    assert_same_bits(case.expected(case.feeds(padding=0.0)), case.expected(case.feeds()), "NaN in the padding")


@given(lstm_cases(layouts=(1,), placements=("main",)))
def test_layout_1_is_layout_0_transposed(case: LstmCase) -> None:
    plain = case.replace(layout=0)
    expected = run(plain_session(plain.model()), plain.feeds(padding=0.0))
    axes = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
    transposed = {name: np.transpose(value, axes[name]) for name, value in expected.items()}
    assert_close(transposed, case.expected(case.feeds(padding=0.0)), TOLERANCE, "layout 1")


@given(lstm_cases(placements=("if",)))
def test_other_branch(case: LstmCase) -> None:
    feeds = case.feeds(padding=0.0, condition=False)
    assert_close(case.expected(feeds), run(plain_session(case.model()), feeds), TOLERANCE, "else branch")


@pytest.mark.parametrize("name", BACKEND_CASES)
def test_onnx_node_case(name: str, shared: Callable[[str], Path]) -> None:
    folder = shared(f"models/onnx_backend_node/test_lstm_{name}")
    (node,) = onnx.load(folder / "model.onnx").graph.node
    with np.load(folder / "data_set_0.npz") as data:
        values = iter([data[f"in{k}"] for k in range(sum(1 for key in data if key.startswith("in")))])
        wanted = [data[f"out{k}"] for k in range(sum(1 for key in data if key.startswith("out")))]
    result = run_node(node, [next(values) if name else None for name in node.input])
    outputs = [getattr(result, field) for field, name in zip(("Y", "Y_h", "Y_c"), node.output, strict=False) if name]
    for k, (value, expected) in enumerate(zip(outputs, wanted, strict=True)):
        assert_close({f"out{k}": expected}, {f"out{k}": value}, TOLERANCE, name)
