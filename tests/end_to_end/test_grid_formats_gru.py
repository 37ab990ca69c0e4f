"""Static formats at every point of GRU and RNN: the same bytes however a model is executed, and those of the reference.

What these would catch: what test_grid_formats.py would, where it is not what it is for LSTM: the two places of the
reset gate, three or one gates, a hidden state that is read beside its codes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from invariance import (
    assert_chunks_make_the_whole,
    assert_levels_and_threads_do_not_matter,
    assert_rows_are_independent,
)
from lstm_models import RecurrentCase, stacked_model
from running import assert_same_bits, plain_session, run, sqnr
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
from strategies import gru_and_rnn_cases

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.testing.float_layer import Activation, Direction

pytestmark = pytest.mark.sampled(3)  # cases cross what other cases have, too

EXAMPLES = settings().max_examples
FEW = max(1, EXAMPLES // 10)
OPS = {
    "GRU": {"op": "GRU"},
    "GRU_linear": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}
each_op = pytest.mark.parametrize("op", OPS)


def _points(op: str) -> list[str]:
    state = ["*.kept", "*.added", "*.hidden_state"] if op == "GRU" else []
    return ["*_product", "*.acc", "*.hidden", "*.input", *state]


def fixed_point(op: str, bits: int, weight_bits: int, rounding: str) -> list[str]:
    """Powers of two, one rounding, a quantizer at every point: the arithmetic of fixed-point processors."""
    step = 2.0 ** (4 - bits)
    return [
        *(f"{p}.{k}" for p in _points(op) for k in (f"bits={bits}", f"rounding={rounding}", f"scale={step!r}")),
        *("*.input.mode=static", "*.hidden.mode=static", "*.input.signed=true", "*.hidden.signed=true"),
        *("*.input.zero_point=0", "*.hidden.zero_point=0", f"*.weight.bits={weight_bits}", "*.acc.mode=static"),
        *(f"*.weight.scale={2.0 ** -max(weight_bits, 4)!r}", "*.activation.table=exact"),
        *("*.activation.bits=16", "*.activation.scale=0.000030517578125", "*.activation.signed=true"),
    ]


def uneven(op: str, bits: int) -> list[str]:
    """Scales that are no powers of two, zero points away from the middle, other formats for every gate."""
    top = 2**bits
    gates = {"GRU": ("update", "reset", "hidden"), "RNN": ("hidden",)}[op]
    state = [f"*.kept.bits={bits}", f"*.kept.scale={2.7 / top!r}", "*.kept.rounding=half_even"] if op == "GRU" else []
    return [
        *(f"*.input.bits={bits}", "*.input.mode=static", f"*.input.scale={7.3 / top!r}", "*.input.signed=false"),
        *(f"*.input.zero_point={top // 3}", f"*.hidden.bits={bits}", f"*.hidden.scale={2.1 / top!r}"),
        *("*.hidden.signed=false", f"*.hidden.zero_point={top // 2 - 3}", "*.hidden.mode=static"),
        *(f"*.acc.bits={bits}", "*.acc.mode=static"),
        *(f"*.{g}_gate.acc.scale={(12.7 + k) / top!r}" for k, g in enumerate(gates)),
        *(f"*.{g}_gate.acc.rounding={r}" for g, r in zip(gates, ("half_even", "half_up", "floor"), strict=False)),
        *state,
        *("*.hidden_gate.hidden_product.bits=12", "*.hidden_gate.hidden_product.scale=0.01"),
        *("*.activation.table=exact", "*.activation.bits=8", "*.activation.scale=0.007874015748031496"),
        *("*.activation.signed=true", "*.weight.symmetric=false", "*.weight.narrow=false"),
    ]


def formats(op: str) -> dict[str, list[str]]:
    """Overrides of the default recipe by what they are."""
    return {
        "fixed point, 16 bits, floor": fixed_point(op, 16, 16, "floor"),
        "fixed point, 8 bits, half up": fixed_point(op, 8, 8, "half_up"),
        "fixed point, 8 bits, weights of 16": fixed_point(op, 8, 16, "half_away"),
        "fixed point, 12 bits, binary weights, ceil": fixed_point(op, 12, 1, "ceil"),
        "uneven, 8 bits": uneven(op, 8),
        "uneven, 16 bits": uneven(op, 16),
        "uneven, 5 bits, weights of 4": [*uneven(op, 5), "*.weight.bits=4"],
        "accumulators of 12 bits": [*uneven(op, 8), "*.accumulator.bits=12"],
    }


NAMES = tuple(formats("GRU"))
POWERS_OF_TWO = [n for n in NAMES if n.startswith("fixed")]
each_format = pytest.mark.parametrize("name", NAMES)
TELLING = ("fixed point, 16 bits, floor", "uneven, 8 bits", "accumulators of 12 bits")
most_formats_slow = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in TELLING else [pytest.mark.slow]) for n in NAMES]
)


def _assert_on_grids(lowered: rnnqc.Lowered) -> None:
    nodes = [n for n in all_nodes(lowered.proto) if n.op_type.startswith(("QuantGRUCell", "QuantRNNCell"))]
    assert nodes
    for node in nodes:
        assert {a.s for a in node.attribute if a.name == "arithmetic"} == {b"grid"}, node.name


@each_format
@settings(max_examples=2 * FEW)
@given(gru_and_rnn_cases(layouts=(0, 0, 0, 1), activations=None))
def test_every_form(name: str, case: RecurrentCase) -> None:
    results = lower_all(case.model(), case.dims, overrides=formats(case.op)[name])
    _assert_on_grids(results[STOCK])
    outputs = run_all(results, case.feeds())
    for way, got in outputs.items():
        assert_same_bits(outputs[STOCK], got, f"{way} against stock")


@each_format
@settings(max_examples=2 * FEW)
@given(gru_and_rnn_cases(placements=("main",), activations=None))
def test_stock_is_the_reference(name: str, case: RecurrentCase) -> None:
    lowered = rnnqc.lower(case.model(), overrides=formats(case.op)[name])
    _assert_on_grids(lowered)
    assert assert_equals_reference(lowered.proto, case.feeds()) == case.directions


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 22])
@each_op
def test_stock_is_the_reference_in_rows_of_layers(op: str, opset: int) -> None:
    layers = [
        RecurrentCase(T=4, B=3, I=40, H=70, opset=opset, **OPS[op]),
        RecurrentCase(T=4, B=3, I=70, H=35, opset=opset, seed=1, **OPS[op]),
    ]
    lowered = rnnqc.lower(stacked_model(layers), overrides=formats(layers[0].op)["uneven, 8 bits"])
    _assert_on_grids(lowered)
    assert assert_equals_reference(lowered.proto, {"X": layers[0].feeds()["X"]}) == 2


@each_op
def test_codes_pass_between_layers(op: str) -> None:
    """Without going back to float, where both have the format; between operators, too."""
    layers = [RecurrentCase(T=4, B=3, I=40, H=70, **OPS[op]), RecurrentCase(T=4, B=3, I=70, H=35, seed=1, op="RNN")]
    for bits, passes in ((8, True), (16, False)):
        overrides = fixed_point("RNN", bits, 8, "floor")
        lowered = rnnqc.lower(stacked_model(layers), overrides=overrides)
        modes = [a.s for n in all_nodes(lowered.proto) for a in n.attribute if a.name == "x_mode"]
        assert sorted(modes) == ([b"codes", b"static"] if passes else [b"static"] * 2)
        assert assert_equals_reference(lowered.proto, {"X": layers[0].feeds()["X"]}) == 2


CASE = RecurrentCase(T=6, B=3, I=70, H=65, direction="bidirectional", lens=(6, 0, 4), initial_h=True, clip=1.5)


@cache
def _lowered(name: str, case: RecurrentCase, form: str = "fused") -> rnnqc.Lowered:
    return rnnqc.lower(case.model(), form=form, overrides=formats(case.op)[name])


each_way = pytest.mark.parametrize("way", [STOCK, NATIVE])


@each_op
@pytest.mark.parametrize("way", [STOCK, NATIVE, INTEGER])
@pytest.mark.parametrize("name", ["fixed point, 16 bits, floor", "uneven, 8 bits"])
def test_optimization_levels_and_threads(name: str, way: str, op: str) -> None:
    for dynamic in (False, True):
        case = CASE.replace(dynamic_batch=dynamic, **OPS[op])
        expected = run(session(_lowered(name, case).proto, STOCK), case.feeds())
        proto = _lowered(name, case, "integer" if way == INTEGER else "fused").proto
        assert_levels_and_threads_do_not_matter(expected, proto, way, case.feeds())


@each_op
@each_way
@most_formats_slow
def test_batch_equals_row_by_row(name: str, way: str, op: str) -> None:
    case = CASE.replace(dynamic_batch=True, **OPS[op])
    assert_rows_are_independent(session(_lowered(name, case).proto, way), case.feeds(), case.B, way)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@each_op
@each_way
@most_formats_slow
def test_chunks_with_carried_states(name: str, way: str, op: str, direction: Direction) -> None:
    outputs = ("Y", "Y_h")
    case = CASE.replace(direction=direction, lens=None, dynamic_time=True, T=7, outputs=outputs, **OPS[op])
    chosen = session(_lowered(name, case).proto, way)
    assert_chunks_make_the_whole(chosen, case.feeds(), [0, 1, 4], direction == "reverse", way)


@each_op
@pytest.mark.parametrize("name", NAMES)
def test_qcdq_form_is_close(name: str, op: str) -> None:
    """Float32 quantizers at the same points, exact for powers of two but for long sums and onnxruntime's Sigmoid, Tanh.

    There, states are one step of the grid apart at most.
    """
    case = CASE.replace(direction="forward", lens=None, T=3, **OPS[op])
    feeds, overrides = case.feeds(), formats(case.op)[name]
    found = run(plain_session(rnnqc.lower(case.model(), form="qcdq", overrides=overrides).proto), feeds)
    fused = run(session(_lowered(name, case).proto, STOCK), feeds)
    if name in POWERS_OF_TWO:
        step = next(float(o.split("=")[1]) for o in overrides if o.startswith("*.hidden.scale"))
        assert np.abs(found["Y"].astype(np.float64) - fused["Y"]).max() <= step
    assert sqnr(found["Y"], fused["Y"]) > 40.0


@pytest.mark.parametrize("way", [STOCK, NATIVE, UNROLLED])
@each_op
@pytest.mark.parametrize("names", [("HardSigmoid", "Relu"), ("Sigmoid", "Elu"), ("ScaledTanh", "Softplus")])
def test_every_activation_is_a_table(names: tuple[str, ...], op: str, way: str) -> None:
    parameters = {"ScaledTanh": (0.75, 1.25), "HardSigmoid": (0.2, 0.5)}
    activations = tuple(Activation(n, *parameters.get(n, ())) for n in (names if op != "RNN" else names[1:]))
    case = RecurrentCase(T=4, B=2, I=20, H=17, activations=activations, gain=0.5, **OPS[op])
    results = lower_all(
        case.model(), case.dims, overrides=["*.activation.bits=none", *fixed_point(case.op, 12, 8, "half_even")]
    )
    _assert_on_grids(results[STOCK])
    assert assert_equals_reference(results[STOCK].proto, case.feeds()) == 1
    expected = run(session(results[STOCK].proto, STOCK), case.feeds())
    assert_same_bits(expected, run(session(results[way].proto, way), case.feeds()), way)
    assert sqnr(case.expected(case.feeds())["Y"], expected["Y"]) > 12.0


@pytest.mark.parametrize("recipe", ["pow2-int16", "brevitas-int8", "distiller-avg"])
@each_op
def test_special_values(op: str, recipe: str) -> None:
    """NaN counts as 0 and infinities saturate, where the hidden state has a grid and where it has none."""
    case = RecurrentCase(T=6, B=4, I=12, H=9, lens=(6, 2, 0, 5), initial_h=True, **OPS[op])
    rng = np.random.default_rng(0)
    special = np.float32([np.nan, np.inf, -np.inf, 3e38, -0.0, 1e-45])
    feeds = case.feeds()
    statistics = calibrate(case.model(), [case.replace(lens=(6,) * 4).feeds()])
    for name in ("X", "initial_h"):
        chosen = rng.random(feeds[name].shape) < 0.3
        feeds[name] = np.where(chosen, rng.choice(special, feeds[name].shape), feeds[name])
    results = lower_all(case.model(), case.dims, recipe=recipe, stats=statistics)
    outputs = run_all(results, feeds)
    for way, got in outputs.items():
        assert_same_bits(outputs[STOCK], got, way)
    assert assert_equals_reference(results[STOCK].proto, feeds) == 1
    assert np.isfinite(outputs[STOCK]["Y"]).all()


@each_op
@pytest.mark.parametrize("name", TELLING[:2])
def test_passes_keep_what_they_declare(name: str, op: str) -> None:
    case: Any = CASE.replace(**OPS[op])
    assert rnnqc.lower(case.model(), overrides=formats(case.op)[name], verify=True).report.checks
