"""Recipes whose points are all static: the same bytes however a model is executed, and those of the reference.

What these would catch: what test_same_bits.py would, for the arithmetic "grid"; scales, zero points or tables that are
folded otherwise than the recipe says; a point of the recipe that the integer form leaves out.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from invariance import (
    assert_chunks_make_the_whole,
    assert_levels_and_threads_do_not_matter,
    assert_rows_are_independent,
)
from lstm_models import OUTPUTS, LstmCase, stacked_model
from running import assert_same_bits, options, run, sqnr
from running_lowered import INTEGER, NATIVE, STOCK, UNROLLED, all_nodes, assert_equals_reference, lower_all, session
from strategies import lstm_cases

import rnnqc
from rnnqc.testing.float_layer import ACTIVATION_NAMES, Activation, Direction

pytestmark = pytest.mark.sampled(3)  # cases cross what other cases have, too

EXAMPLES = settings().max_examples
FEW = max(1, EXAMPLES // 10)


def fixed_point(bits: int, weight_bits: int, rounding: str) -> list[str]:
    """Powers of two, one rounding, a quantizer at every point: the arithmetic of fixed-point processors."""
    step = 2.0 ** (4 - bits)
    points = ("*_product", "*.acc", "*.kept", "*.added", "*.cell_state", "*.hidden", "*.input")
    return [
        *(f"{p}.{k}" for p in points for k in (f"bits={bits}", f"rounding={rounding}", f"scale={step!r}")),
        *("*.input.mode=static", "*.input.signed=true", "*.hidden.signed=true", "*.cell_state.mode=static"),
        *("*.input.zero_point=0", "*.hidden.zero_point=0", f"*.weight.bits={weight_bits}"),
        *(f"*.weight.scale={2.0 ** -max(weight_bits, 4)!r}", "*.activation.table=exact"),
        *("*.activation.bits=16", "*.activation.scale=0.000030517578125", "*.activation.signed=true"),
    ]


def uneven(bits: int) -> list[str]:
    """Scales that are no powers of two, zero points away from the middle, no quantizers of products."""
    top = 2**bits
    return [
        *(f"*.input.bits={bits}", "*.input.mode=static", f"*.input.scale={7.3 / top!r}", "*.input.signed=false"),
        *(f"*.input.zero_point={top // 3}", f"*.hidden.bits={bits}", f"*.hidden.scale={2.1 / top!r}"),
        *("*.hidden.signed=false", f"*.hidden.zero_point={top // 2 - 3}", "*.hidden.mode=static"),
        *(f"*.acc.bits={bits}", f"*.acc.scale={12.7 / top!r}", "*.acc.rounding=half_even"),
        *(f"*.cell_state.bits={bits}", f"*.cell_state.scale={9.1 / top!r}", "*.cell_state.mode=static"),
        *(f"*.kept.bits={bits}", f"*.kept.scale={9.7 / top!r}", "*.kept.rounding=half_even"),
        *("*.activation.table=exact", "*.activation.bits=8", "*.activation.scale=0.007874015748031496"),
        "*.activation.signed=true",
    ]


FORMATS: dict[str, list[str]] = {
    "fixed point, 16 bits, floor": fixed_point(16, 16, "floor"),
    "fixed point, 8 bits, half up": fixed_point(8, 8, "half_up"),
    "fixed point, 8 bits, weights of 16": fixed_point(8, 16, "half_away"),
    "fixed point, 12 bits, binary weights, ceil": fixed_point(12, 1, "ceil"),
    "uneven, 8 bits": uneven(8),
    "uneven, 16 bits": uneven(16),
    "uneven, 5 bits, weights of 4": [*uneven(5), "*.weight.bits=4"],
    "accumulators of 12 bits": [*uneven(8), "*.accumulator.bits=12"],
}
POWERS_OF_TWO = [n for n in FORMATS if n.startswith("fixed")]

each_format = pytest.mark.parametrize("name", FORMATS)
each_way = pytest.mark.parametrize("way", [NATIVE, INTEGER, UNROLLED])


def _assert_on_grids(lowered: rnnqc.Lowered) -> None:
    nodes = [n for n in all_nodes(lowered.proto) if n.op_type.startswith("QuantLSTMCell")]
    assert nodes
    for node in nodes:
        assert {a.s for a in node.attribute if a.name == "arithmetic"} in ({b"grid"}, {b"grid32"}), node.name


@each_way
@each_format
@settings(max_examples=FEW)
@given(lstm_cases(layouts=(0, 0, 0, 1), activations=None))
def test_every_form(name: str, way: str, case: LstmCase) -> None:
    results = lower_all(case.model(), case.dims, overrides=FORMATS[name])
    _assert_on_grids(results[STOCK])
    feeds = case.feeds()
    expected = run(session(results[STOCK].proto, STOCK), feeds)
    assert_same_bits(expected, run(session(results[way].proto, way), feeds), f"{way} against stock")


@each_format
@settings(max_examples=FEW)
@given(lstm_cases(placements=("main",), activations=None))
def test_stock_is_the_reference(name: str, case: LstmCase) -> None:
    lowered = rnnqc.lower(case.model(), overrides=FORMATS[name])
    _assert_on_grids(lowered)
    assert assert_equals_reference(lowered.proto, case.feeds()) == case.directions


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 22])
@each_format
def test_stock_is_the_reference_in_rows_of_layers(name: str, opset: int) -> None:
    layers = [LstmCase(T=4, B=3, I=40, H=70, opset=opset), LstmCase(T=4, B=3, I=70, H=35, opset=opset, seed=1)]
    lowered = rnnqc.lower(stacked_model(layers), overrides=FORMATS[name])
    _assert_on_grids(lowered)
    feeds = {"X": layers[0].feeds()["X"]}
    assert assert_equals_reference(lowered.proto, feeds) == 2
    assert_same_bits(run(session(lowered.proto, STOCK), feeds), run(session(lowered.proto, NATIVE), feeds), "native")


def test_codes_pass_between_layers() -> None:
    """Without going back to float, where both have the format."""
    layers = [LstmCase(T=4, B=3, I=40, H=70), LstmCase(T=4, B=3, I=70, H=35, seed=1)]
    for bits, passes in ((8, True), (16, False)):
        lowered = rnnqc.lower(stacked_model(layers), overrides=fixed_point(bits, 8, "floor"))
        modes = [a.s for n in all_nodes(lowered.proto) for a in n.attribute if a.name == "x_mode"]
        assert sorted(modes) == ([b"codes", b"static"] if passes else [b"static"] * 2)


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
    case = CASE.replace(direction=direction, lens=None, dynamic_time=True, T=7, outputs=OUTPUTS)
    chosen = session(_lowered(name, case).proto, way)
    assert_chunks_make_the_whole(chosen, case.feeds(), [0, 1, 4], direction == "reverse", way)


@pytest.mark.parametrize("name", POWERS_OF_TWO)
def test_qcdq_form_is_close(name: str) -> None:
    """Float32 quantizers at the same points, exact for powers of two but for long sums and onnxruntime's Sigmoid, Tanh.

    Hidden states are one step of the grid apart at most. (The initial cell state stays float in this form.)
    """
    case = CASE.replace(direction="forward", lens=None, T=3, initial_c=False)
    feeds = case.feeds()
    qcdq = rnnqc.lower(case.model(), form="qcdq", overrides=FORMATS[name])
    session_ = ort.InferenceSession(qcdq.proto.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    found = run(session_, feeds)
    fused = run(session(_lowered(name, case).proto, STOCK), feeds)
    step = next(float(o.split("=")[1]) for o in FORMATS[name] if o.startswith("*.hidden.scale"))
    assert np.abs(found["Y"].astype(np.float64) - fused["Y"]).max() <= step
    assert sqnr(found["Y"], fused["Y"]) > 40.0


@pytest.mark.parametrize("way", [STOCK, NATIVE, UNROLLED])
@pytest.mark.parametrize("gate", ACTIVATION_NAMES)
def test_every_activation_is_a_table(gate: str, way: str) -> None:
    """Also those that the other arithmetic computes without one: the codes of their arguments are few."""
    # ONNX and onnxruntime do not agree on the defaults of ThresholdedRelu.
    parameters = {
        "Affine": (0.5, 0.25),
        "ScaledTanh": (0.75, 1.25),
        "HardSigmoid": (0.2, 0.5),
        "ThresholdedRelu": (0.125,),
    }
    activations = (
        Activation(gate, *parameters.get(gate, ())),
        Activation("Tanh"),
        Activation(gate, *parameters.get(gate, ())),
    )
    case = LstmCase(T=4, B=2, I=20, H=17, activations=activations, gain=0.5)
    overrides = ["*.acc.mode=static", "*.activation.bits=none", *fixed_point(12, 8, "half_even")]
    results = lower_all(case.model(), case.dims, overrides=overrides)
    _assert_on_grids(results[STOCK])
    assert assert_equals_reference(results[STOCK].proto, case.feeds()) == 1
    expected = run(session(results[STOCK].proto, STOCK), case.feeds())
    assert_same_bits(expected, run(session(results[way].proto, way), case.feeds()), way)
    assert sqnr(case.expected(case.feeds())["Y"], expected["Y"]) > 12.0  # a threshold makes steps of small errors


# How close to float they have to be, in dB, on a small random model: 16 bits, or 8 bits everywhere.
NAMED = {
    "pow2-int16": 34.0, "pow2-int8": 20.0, "brevitas-int8": 20.0,
    "distiller-sym": 22.0, "distiller-asym": 22.0, "distiller-avg": 10.0,
}  # fmt: skip


@pytest.mark.parametrize("recipe", NAMED)
def test_named_recipes(recipe: str) -> None:
    """Those whose points are all static: calibrated, with states and lengths, executed in every way."""
    case = LstmCase(T=12, B=4, I=24, H=32, gain=2.0, lens=(12, 7, 0, 12), initial_h=True, initial_c=True)
    feeds = case.feeds()
    results = lower_all(case.model(), case.dims, recipe=recipe, calibration=[feeds])
    _assert_on_grids(results[STOCK])
    assert assert_equals_reference(results[STOCK].proto, feeds) == 1
    expected = run(session(results[STOCK].proto, STOCK), feeds)
    for way in (NATIVE, INTEGER, UNROLLED):
        assert_same_bits(expected, run(session(results[way].proto, way), feeds), f"{way} against stock")
    assert sqnr(case.expected(feeds)["Y"], expected["Y"]) > NAMED[recipe]


@pytest.mark.parametrize("name", [n for n in FORMATS if "accumulators" not in n])
def test_passes_keep_what_they_declare(name: str) -> None:
    assert rnnqc.lower(CASE.model(), overrides=FORMATS[name], verify=True).report.checks
