"""Every way of executing a lowered model gives the same bytes.

What these would catch: a native kernel that rounds, saturates or reduces differently from the function body; a body
whose result depends on onnxruntime's optimizations, on threads, on other rows of a batch or on how a sequence is cut.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariance import (
    assert_chunks_make_the_whole,
    assert_levels_and_threads_do_not_matter,
    assert_rows_are_independent,
)
from lstm_models import OUTPUTS, RecurrentCase, stacked_model
from pass_testing import plain_op
from running import Outputs, assert_same_bits, options, run
from running_lowered import (
    INTEGER,
    NATIVE,
    STOCK,
    UNROLLED,
    all_nodes,
    assert_equals_reference,
    lower_all,
    run_all,
    session,
)
from strategies import any_cases, gru_and_rnn_cases, lstm_cases

import rnnqc
from rnnqc.testing.float_layer import Activation, Direction

pytestmark = pytest.mark.sampled(2)  # cases cross what other cases have, too

EXAMPLES = settings().max_examples
FEW = max(2, EXAMPLES // 3)
OPS: tuple[dict[str, Any], ...] = (
    {"op": "LSTM"},
    {"op": "GRU"},
    {"op": "GRU", "linear_before_reset": True},
    {"op": "RNN"},
)
every_op = pytest.mark.parametrize("op", OPS, ids=lambda o: o["op"] + ("_linear" if len(o) > 1 else ""))
PADDINGS = (float("nan"), float("inf"), -1e30, 0.0)


def _assert_equal(outputs: dict[str, Outputs], what: str = "") -> None:
    for way, got in outputs.items():
        assert_same_bits(outputs[STOCK], got, f"{way} against stock {what}")


@settings(max_examples=2 * EXAMPLES)
@given(lstm_cases(layouts=(0, 0, 0, 1)))
def test_every_form(case: RecurrentCase) -> None:
    _every_form(case)


@settings(max_examples=2 * EXAMPLES)
@given(gru_and_rnn_cases(layouts=(0, 0, 0, 1)))
def test_every_form_of_gru_and_rnn(case: RecurrentCase) -> None:
    results = _every_form(case)
    if case.placement == "main":
        cells = assert_equals_reference(results[STOCK].proto, case.feeds())
        assert cells == case.directions


def _every_form(case: RecurrentCase) -> dict[str, Any]:
    results = lower_all(case.model(), case.dims)
    outputs = run_all(results, case.feeds())
    _assert_equal(outputs)
    expected = case.expected(case.feeds())
    assert {k: v.shape for k, v in outputs[STOCK].items()} == {k: v.shape for k, v in expected.items()}
    for name, value in outputs[STOCK].items():
        assert np.isfinite(value).all(), name
    if case.placement not in ("loop", "scan"):
        assert not [n.name for n in all_nodes(results[UNROLLED].proto) if n.op_type in ("Loop", "Scan")]
    return results


@settings(max_examples=FEW)
@given(any_cases(placements=("if",)))
def test_other_branch(case: RecurrentCase) -> None:
    _assert_equal(run_all(lower_all(case.model(), case.dims), case.feeds(condition=False)))


@settings(max_examples=FEW)
@given(any_cases())
def test_optimization_levels_and_threads(case: RecurrentCase) -> None:
    results = lower_all(case.model(), case.dims)
    feeds = case.feeds()
    expected = run(session(results[STOCK].proto, STOCK), feeds)
    for way, lowered in results.items():
        assert_levels_and_threads_do_not_matter(expected, lowered.proto, way, feeds)


@every_op
@pytest.mark.parametrize("way", [STOCK, NATIVE])
def test_threads_on_a_large_layer(way: str, op: dict[str, Any]) -> None:
    """Large enough for onnxruntime and the kernel to split the products."""
    case = RecurrentCase(T=12, B=8, I=260, H=200, **op)
    lowered = rnnqc.lower(case.model())
    expected = run(session(lowered.proto, STOCK), case.feeds())
    for threads in (1, 2, 4):
        assert_same_bits(
            expected, run(session(lowered.proto, way, threads=threads), case.feeds()), f"{threads} threads"
        )


@settings(max_examples=FEW)
@given(any_cases(placements=("main",), dynamic_batch=True))
def test_batch_equals_row_by_row(case: RecurrentCase) -> None:
    results = lower_all(case.model(), case.dims)
    feeds = case.feeds()
    for way, lowered in results.items():
        assert_rows_are_independent(session(lowered.proto, way), feeds, case.B, way)


@settings(max_examples=FEW)
@given(
    st.sampled_from(["forward", "reverse"]).flatmap(
        lambda direction: any_cases(
            placements=("main",),
            direction=direction,
            dynamic_time=True,
            lens=None,
            initial_h=True,
            initial_c=True,
            outputs=OUTPUTS,
        )
    ),
    st.integers(1, 4),
)
def test_chunks_with_carried_states(case: RecurrentCase, size: int) -> None:
    """The unrounded float Y_h and, of LSTM, the Y_c of one chunk are the initial states of the next."""
    fused, integer = rnnqc.lower(case.model()), rnnqc.lower(case.model(), form="integer")
    starts = range(0, case.T, size)
    for way, lowered in ((STOCK, fused), (NATIVE, fused), (INTEGER, integer)):
        chosen = session(lowered.proto, way)
        assert_chunks_make_the_whole(chosen, case.feeds(), starts, case.direction == "reverse", way)


@settings(max_examples=FEW)
@given(st.integers(1, 3).flatmap(lambda b: any_cases(B=b, lens=(0, 2, 1)[:b], T=3)))
def test_padding_does_not_matter(case: RecurrentCase) -> None:
    results = lower_all(case.model(), case.dims)
    for way, lowered in results.items():
        chosen = session(lowered.proto, way)
        expected = run(chosen, case.feeds(padding=1.0))
        for padding in PADDINGS:
            assert_same_bits(expected, run(chosen, case.feeds(padding=padding)), f"{way}, padding {padding}")


@settings(max_examples=FEW)
@given(any_cases(placements=("main",), initial_h=True, initial_c=True), st.integers(0, 2**16))
def test_special_values(case: RecurrentCase, seed: int) -> None:
    """NaN counts as 0, infinities saturate; denormals, extremes and signed zeros are ordinary."""
    rng = np.random.default_rng(seed)
    special = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-40, -0.0, 1e-30], np.float32)
    feeds = case.feeds(padding=0.0)
    for name in ("X", *case.states):
        mask = rng.random(feeds[name].shape) < 0.3
        feeds[name] = np.where(mask, rng.choice(special, feeds[name].shape), feeds[name])
    without_nan = {k: np.where(np.isnan(v), np.float32(0), v) if v.dtype == np.float32 else v for k, v in feeds.items()}
    results = lower_all(case.model(), case.dims)
    outputs = run_all(results, feeds)
    _assert_equal(outputs, "with special values")
    _assert_equal({STOCK: outputs[STOCK], "with 0 for NaN": run(session(results[STOCK].proto, STOCK), without_nan)})
    for name, value in outputs[STOCK].items():
        assert not np.isnan(value).any(), name


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("shared_weights", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_in_a_row(direction: str, shared_weights: bool, dynamic: bool) -> None:
    _layers_in_a_row(direction, shared_weights, dynamic, [{}] * 3)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("order", [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 0, 2), (3, 2, 0), (0, 3, 1)], ids=str)
def test_layers_of_all_operators_in_a_row(direction: str, order: tuple[int, ...]) -> None:
    """A layer takes the codes of the one before, whatever operator that is."""
    _layers_in_a_row(direction, False, True, [OPS[k] for k in order])


def _layers_in_a_row(direction: str, shared_weights: bool, dynamic: bool, ops: Sequence[dict[str, Any]]) -> None:
    directions = 2 if direction == "bidirectional" else 1
    width = 6 * directions
    case = RecurrentCase(T=7, B=3, I=width, H=6, dynamic_time=dynamic, dynamic_batch=dynamic)
    layers = [case.replace(direction=direction, seed=k, **op) for k, op in enumerate(ops)]
    results = lower_all(stacked_model(layers, shared_weights), case.dims)
    assert [e.node for e in results[STOCK].report.entries] == ["layer0", "layer1", "layer2"]
    _assert_equal(run_all(results, {"X": case.feeds()["X"]}))


@every_op
def test_saturated_weights_and_inputs(op: dict[str, Any]) -> None:
    """Weights of one magnitude become codes of +-127: 16-bit pair products saturate on processors without VNNI."""
    case = RecurrentCase(T=3, B=2, I=70, H=65, initial_h=True, **op)
    model = case.model()
    for tensor in model.graph.initializer:
        signs = np.sign(np.frombuffer(tensor.raw_data, np.float32))
        tensor.raw_data = signs.astype(np.float32).tobytes()
    feeds = case.feeds()
    feeds = {k: np.where(v < 0, np.float32(-1), np.float32(1)) for k, v in feeds.items()}
    _assert_equal(run_all(lower_all(model), feeds))


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("lens", [None, (1,)])
def test_negative_zero(direction: Direction, lens: tuple[int, ...] | None) -> None:
    """A negative gate times an output activation of 0; with lengths there is no -0, because Where may lose the sign."""
    activations = (
        Activation("ScaledTanh", 0.9775390625, 0.5),
        Activation("Softsign"),
        Activation("ThresholdedRelu", 0.125),
    )
    case = RecurrentCase(
        T=1, B=1, I=8, H=1, direction=direction, lens=lens, bias=False, activations=activations, gain=0.125, seed=3
    )
    outputs = run_all(lower_all(case.model()), case.feeds())
    _assert_equal(outputs)
    assert not outputs[NATIVE]["Y"].any(), "the case does not reach 0"
    assert np.signbit(outputs[NATIVE]["Y"]).all() == (lens is None)


@every_op
def test_second_shape_in_the_same_session(op: dict[str, Any]) -> None:
    case = RecurrentCase(dynamic_time=True, dynamic_batch=True, lens=(5, 0), initial_h=True, **op)
    other = case.replace(T=9, B=4, lens=(3, 9, 0, 1))
    results = lower_all(case.model(), case.dims)
    for way in (STOCK, NATIVE, INTEGER):
        chosen = session(results[way].proto, way)
        run(chosen, case.feeds())
        fresh = run(session(results[STOCK].proto, STOCK), other.feeds())
        assert_same_bits(fresh, run(chosen, other.feeds()), way)


@pytest.mark.parametrize(("native", "present"), [(True, True), (False, False)])
def test_native_session_takes_the_kernel(native: bool, present: bool, tmp_path: Path) -> None:
    """Otherwise "native" would compare stock with stock."""
    case = RecurrentCase()
    chosen = options()
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(tmp_path / "profile")
    running = rnnqc.session(rnnqc.lower(case.model()).proto, native=native, options=chosen)
    run(running, case.feeds())
    events = json.loads(Path(running.end_profiling()).read_text())
    executed = {plain_op(event["args"]["op_name"]) for event in events if "op_name" in event.get("args", {})}
    assert ("QuantLSTMCell" in executed) == present, executed


@every_op
@pytest.mark.parametrize("way", [STOCK, NATIVE])
@pytest.mark.parametrize("lens", [(6, 1), (-1, 1)])
def test_length_out_of_range_is_an_error(way: str, lens: tuple[int, int], op: dict[str, Any]) -> None:
    case = RecurrentCase(lens=(5, 1), **op)
    chosen = session(rnnqc.lower(case.model()).proto, way)
    feeds = case.feeds() | {"sequence_lens": np.array(lens, np.int32)}
    with pytest.raises(Exception, match=r"(?i)sequence_lens|length|bounds|range"):
        run(chosen, feeds)


@every_op
@pytest.mark.parametrize("way", [STOCK, NATIVE])
@pytest.mark.parametrize("empty", ["T", "B"])
def test_empty_sequence_or_batch_is_an_error(way: str, empty: str, op: dict[str, Any]) -> None:
    case = RecurrentCase(dynamic_time=True, dynamic_batch=True, **op)
    chosen = session(rnnqc.lower(case.model()).proto, way)
    shape = (0, 2, 3) if empty == "T" else (5, 0, 3)
    with pytest.raises(Exception, match=r".") as caught:
        run(chosen, {"X": np.zeros(shape, np.float32)})
    assert str(caught.value).strip()
