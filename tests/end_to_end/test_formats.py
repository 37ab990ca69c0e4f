"""Number formats besides the default ones: the same bytes however a model is executed, and those of the reference.

What these would catch: what test_same_bits.py would, for packed weights and 16-bit codes; a function body that unpacks
weights or takes codes apart otherwise than the reference; a form whose weights have other codes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariance import (
    assert_chunks_make_the_whole,
    assert_levels_and_threads_do_not_matter,
    assert_rows_are_independent,
)
from lstm_models import OUTPUTS, LstmCase, stacked_model
from running import assert_same_bits, options, run, sqnr
from running_lowered import INTEGER, NATIVE, STOCK, UNROLLED, assert_equals_reference, lower_all, session
from strategies import lstm_cases

import rnnqc
from rnnqc.testing.float_layer import Direction

pytestmark = pytest.mark.sampled(3)  # cases cross what other cases have, too

EXAMPLES = settings().max_examples
FEW = max(1, EXAMPLES // 8)

FORMATS: dict[str, list[str]] = {
    "int4": ["*.weight.bits=4"],
    "int4, groups of 32": ["*.weight.bits=4", "*.weight.group_size=32"],
    "int4 recurrence, groups of 64": ["*.R.weight.bits=4", "*.R.weight.group_size=64"],
    "int4 input, row scales of the hidden state": ["*.W.weight.bits=4", "*.hidden.mode=dynamic-row"],
    "int3, some channels int8": ["*.weight.bits=3", "*.weight.wide_channels=0.2"],
    "16-bit input": ["*.input.bits=16"],
    "16-bit hidden state": ["*.hidden.bits=16"],
    "16 bits": ["*.input.bits=16", "*.hidden.bits=16"],
    "16-bit row scales": ["*.input.bits=16", "*.hidden.bits=16", "*.hidden.mode=dynamic-row"],
    "16 bits, static, uneven zero points": [
        *("*.input.bits=16", "*.input.mode=static", "*.input.scale=0.0001", "*.input.zero_point=258"),
        *("*.hidden.bits=16", "*.hidden.scale=0.00005", "*.hidden.zero_point=30001"),
    ],
    "16 bits, row scales, zero points at the ends, int4": [
        *("*.input.bits=16", "*.hidden.bits=16", "*.hidden.mode=dynamic-row", "*.hidden.zero_point=65535"),
        *("*.weight.bits=4", "*.weight.group_size=32"),
    ],
}

each_format = pytest.mark.parametrize("name", FORMATS)
each_way = pytest.mark.parametrize("way", [NATIVE, INTEGER, UNROLLED])


@each_way
@each_format
@settings(max_examples=FEW)
@given(lstm_cases(layouts=(0, 0, 0, 1)))
def test_every_form(name: str, way: str, case: LstmCase) -> None:
    results = lower_all(case.model(), case.dims, overrides=FORMATS[name])
    feeds = case.feeds()
    expected = run(session(results[STOCK].proto, STOCK), feeds)
    assert_same_bits(expected, run(session(results[way].proto, way), feeds), f"{way} against stock")


@each_format
@settings(max_examples=FEW)
@given(lstm_cases(placements=("main",)))
def test_stock_is_the_reference(name: str, case: LstmCase) -> None:
    lowered = rnnqc.lower(case.model(), overrides=FORMATS[name])
    assert assert_equals_reference(lowered.proto, case.feeds()) == case.directions


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 22])
@each_format
def test_stock_is_the_reference_in_rows_of_layers(name: str, opset: int) -> None:
    layers = [LstmCase(T=4, B=3, I=40, H=70, opset=opset), LstmCase(T=4, B=3, I=70, H=35, opset=opset, seed=1)]
    lowered = rnnqc.lower(stacked_model(layers), overrides=FORMATS[name])
    assert assert_equals_reference(lowered.proto, {"X": layers[0].feeds()["X"]}) == 2


CASE = LstmCase(T=6, B=3, I=70, H=65, direction="bidirectional", lens=(6, 0, 4), initial_h=True, initial_c=True)


@cache
def _lowered(name: str, case: LstmCase, form: str = "fused") -> rnnqc.Lowered:
    return rnnqc.lower(case.model(), form=form, overrides=FORMATS[name])


@pytest.mark.parametrize("way", [STOCK, NATIVE, INTEGER])
@each_format
def test_optimization_levels_and_threads(name: str, way: str) -> None:
    for dynamic in (False, True):
        case = CASE.replace(dynamic_batch=dynamic)
        expected = run(session(_lowered(name, case).proto, STOCK), case.feeds())
        proto = _lowered(name, case, "integer" if way == INTEGER else "fused").proto
        assert_levels_and_threads_do_not_matter(expected, proto, way, case.feeds())


@pytest.mark.parametrize("way", [STOCK, NATIVE])
@each_format
def test_batch_equals_row_by_row(name: str, way: str) -> None:
    case = CASE.replace(dynamic_batch=True)
    assert_rows_are_independent(session(_lowered(name, case).proto, way), case.feeds(), case.B, way)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("way", [STOCK, NATIVE])
@each_format
def test_chunks_with_carried_states(name: str, way: str, direction: Direction) -> None:
    """The unrounded float Y_h and the Y_c of one chunk are the initial states of the next."""
    case = CASE.replace(direction=direction, lens=None, dynamic_time=True, T=7, outputs=OUTPUTS)
    chosen = session(_lowered(name, case).proto, way)
    assert_chunks_make_the_whole(chosen, case.feeds(), [0, 1, 4], direction == "reverse", way)


@each_way
@each_format
@given(seed=st.integers(0, 2**16))
@settings(max_examples=FEW)
def test_special_values(name: str, way: str, seed: int) -> None:
    """NaN counts as 0, infinities saturate; denormals, extremes and signed zeros are ordinary."""
    case = CASE.replace(direction="forward", lens=None)
    rng = np.random.default_rng(seed)
    special = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-40, -0.0, 1e-30], np.float32)
    feeds = case.feeds()
    for key, value in feeds.items():
        feeds[key] = np.where(rng.random(value.shape) < 0.3, rng.choice(special, value.shape), value)
    results = lower_all(case.model(), overrides=FORMATS[name])
    expected = run(session(results[STOCK].proto, STOCK), feeds)
    assert_same_bits(expected, run(session(results[way].proto, way), feeds), f"{way} against stock")
    assert_equals_reference(results[STOCK].proto, feeds)
    for key, value in expected.items():
        assert np.isfinite(value).all(), key


@each_format
def test_qcdq_form_is_close(name: str) -> None:
    """The same number formats, in standard quantizers: gates are exact there, and everything else is rounded alike."""
    case = CASE.replace(direction="forward", lens=None)
    feeds = case.feeds()
    qcdq = rnnqc.lower(case.model(), form="qcdq", overrides=FORMATS[name])
    session_ = ort.InferenceSession(qcdq.proto.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    found = run(session_, feeds)
    fused = run(session(_lowered(name, case).proto, STOCK), feeds)
    assert sqnr(found["Y"], fused["Y"]) > 35.0


def test_size() -> None:
    """An eighth of float; multipliers of groups are a 32nd of the packed codes for groups of 64."""
    case = LstmCase(I=256, H=256, bias=False)
    float_bytes = 4 * 512 * 1024
    sizes = {n: rnnqc.lower(case.model(), overrides=o).report.entries[0].bytes for n, o in FORMATS.items()}
    others = 3 * 4 * 1024
    assert sizes["int4"] - others == float_bytes // 8
    assert sizes["int4, groups of 32"] - others == float_bytes // 8 + 16 * 1024
    assert sizes["int4 recurrence, groups of 64"] - others == 256 * 1024 + 128 * 1024 + 4 * 1024
    assert sizes["int3, some channels int8"] - others == float_bytes // 4
