"""The numpy reference against onnxruntime's LSTM, GRU and RNN and against onnx's own node cases.

What these would catch: an error in the oracle that the other tests compare with, or in the model builder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from tests.generate.float_layer import run_node
from tests.generate.layers import RecurrentCase
from tests.generate.random_layers import SMALL_GAIN
from tests.generate.strategies import any_cases, gru_and_rnn_cases, lstm_cases
from tests.runs.sessions import assert_close, assert_same_bits, plain_session, run
from tests.subjects.backend_cases import BACKEND_CASES

TOLERANCE = 1e-5
EXAMPLES = settings().max_examples


@settings(max_examples=5 * EXAMPLES)
@given(lstm_cases())
def test_reference_equals_onnxruntime(case: RecurrentCase) -> None:
    _compare(case, condition=True)


@settings(max_examples=5 * EXAMPLES)
@given(gru_and_rnn_cases())
def test_reference_equals_onnxruntime_gru_and_rnn(case: RecurrentCase) -> None:
    _compare(case, condition=True)


def _compare(case: RecurrentCase, *, condition: bool) -> None:
    """Within the tolerance; an activation steeper than 1, which makes differences grow, gets small weights."""
    if any(a.name == "ScaledTanh" and a.alpha * a.beta > 1 for a in case.activations or ()):
        case = case.replace(gain=SMALL_GAIN)
    feeds = case.feeds(padding=0.0, condition=condition)
    assert_close(case.expected(feeds), run(plain_session(case.model()), feeds), TOLERANCE, "onnxruntime")


@given(any_cases(layouts=(0, 1)))
def test_models_are_valid(case: RecurrentCase) -> None:
    onnx.checker.check_model(case.model(), full_check=True)


@given(any_cases(placements=("main",)))
def test_reference_ignores_the_padding(case: RecurrentCase) -> None:
    assert_same_bits(case.expected(case.feeds(padding=0.0)), case.expected(case.feeds()), "NaN in the padding")


@given(any_cases(layouts=(1,), placements=("main",)))
def test_layout_1_is_layout_0_transposed(case: RecurrentCase) -> None:
    plain = case.replace(layout=0)
    expected = run(plain_session(plain.model()), plain.feeds(padding=0.0))
    axes = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
    transposed = {name: np.transpose(value, axes[name]) for name, value in expected.items()}
    assert_close(transposed, case.expected(case.feeds(padding=0.0)), TOLERANCE, "layout 1")


@given(any_cases(placements=("if",)))
def test_other_branch(case: RecurrentCase) -> None:
    _compare(case, condition=False)


@pytest.mark.parametrize("field", ["initial_c", "peepholes", "input_forget"])
@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_cases_have_what_their_operator_has(op: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"{op} has no cell state"):
        RecurrentCase(op=op, **{field: True})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no reset gate"):
        RecurrentCase(op="RNN", linear_before_reset=True)


@pytest.mark.parametrize("name", BACKEND_CASES)
def test_onnx_node_case(name: str, shared: Callable[[str], Path]) -> None:
    folder = shared(f"models/onnx_backend_node/test_{name}")
    (node,) = onnx.load(folder / "model.onnx").graph.node
    with np.load(folder / "data_set_0.npz") as data:
        values = iter([data[f"in{k}"] for k in range(sum(1 for key in data if key.startswith("in")))])
        wanted = [data[f"out{k}"] for k in range(sum(1 for key in data if key.startswith("out")))]
    result = run_node(node, [next(values) if name else None for name in node.input])
    outputs = [getattr(result, field) for field, name in zip(("Y", "Y_h", "Y_c"), node.output, strict=False) if name]
    for k, (value, expected) in enumerate(zip(outputs, wanted, strict=True)):
        assert_close({f"out{k}": expected}, {f"out{k}": value}, TOLERANCE, name)
