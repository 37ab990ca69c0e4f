"""Cases of one layer that the law of equal bits (tests/laws) omits: large layers, saturation, signs, errors.

What these would catch: products that are split among threads and added up in another order; 16-bit sums of pairs that
saturate; a lost sign of zero; "native" tests that compare stock with stock; sizes that a session remembers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnqc
from tests.generate.float_layer import Activation, Direction
from tests.laws.law import law
from tests.passes.pass_testing import plain_op
from tests.runs.lowered import INTEGER, NATIVE, STOCK, lower_all, session
from tests.runs.sessions import assert_same_bits, options, run
from tests.subjects.lstm_models import RecurrentCase

OPS: tuple[dict[str, Any], ...] = (
    {"op": "LSTM"},
    {"op": "GRU"},
    {"op": "GRU", "linear_before_reset": True},
    {"op": "RNN"},
)
every_op = pytest.mark.parametrize("op", OPS, ids=lambda o: o["op"] + ("_linear" if len(o) > 1 else ""))
WAYS = (STOCK, NATIVE)


@pytest.mark.few(1)
@every_op
def test_threads_on_a_large_layer(op: dict[str, Any]) -> None:
    """Large enough for onnxruntime and the kernel to split the products."""
    case = RecurrentCase(T=12, B=8, I=260, H=200, **op)
    lowered, feeds = rnnqc.lower(case.model()), case.feeds()
    expected = run(session(lowered.proto, STOCK), feeds)
    for way, threads in ((STOCK, 2), (STOCK, 4), (NATIVE, 1), (NATIVE, 2), (NATIVE, 4)):
        found = run(session(lowered.proto, way, threads=threads), feeds)
        assert_same_bits(expected, found, f"{way}, {threads} threads")


@pytest.mark.few(1)
@every_op
def test_saturated_weights_and_inputs(op: dict[str, Any]) -> None:
    """Weights of one magnitude become codes of +-127: 16-bit pair products saturate on processors without VNNI."""
    case = RecurrentCase(T=3, B=2, I=70, H=65, initial_h=True, **op)
    model = case.model()
    for tensor in model.graph.initializer:
        signs = np.sign(np.frombuffer(tensor.raw_data, np.float32))
        tensor.raw_data = signs.astype(np.float32).tobytes()
    feeds = {k: np.where(v < 0, np.float32(-1), np.float32(1)) for k, v in case.feeds().items()}
    law(model, feeds=[feeds], settings=())


@pytest.mark.few(2)
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
    found = law(case.model(), feeds=[], settings=()).same_bits(case.feeds())
    assert not found["Y"].any(), "the case does not reach 0"
    assert np.signbit(found["Y"]).all() == (lens is None)


@pytest.mark.few(1)
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


@pytest.mark.few(2)
@every_op
def test_length_out_of_range_is_an_error(op: dict[str, Any]) -> None:
    case = RecurrentCase(lens=(5, 1), **op)
    proto = rnnqc.lower(case.model()).proto
    for way in WAYS:
        chosen = session(proto, way)
        for lens in ((6, 1), (-1, 1)):
            with pytest.raises(Exception, match=r"(?i)sequence_lens|length|bounds|range"):
                run(chosen, case.feeds() | {"sequence_lens": np.array(lens, np.int32)})


@pytest.mark.few(2)
@every_op
def test_empty_sequence_or_batch_is_an_error(op: dict[str, Any]) -> None:
    proto = rnnqc.lower(RecurrentCase(dynamic_time=True, dynamic_batch=True, **op).model()).proto
    for way in WAYS:
        chosen = session(proto, way)
        for shape in ((0, 2, 3), (5, 0, 3)):
            with pytest.raises(Exception, match=r".") as caught:
                run(chosen, {"X": np.zeros(shape, np.float32)})
            assert str(caught.value).strip()
