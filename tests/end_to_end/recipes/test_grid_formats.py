"""Recipes whose points are all static, besides equal bits (tests/laws): codes between layers, form qcdq, tables.

What these would catch: scales, zero points or tables that are folded otherwise than the recipe says; a point of the
recipe that the integer form leaves out; codes that go back to float between layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rnnqc
from tests.generate.float_layer import ACTIVATION_NAMES, Activation
from tests.generate.layers import RecurrentCase, stacked_model
from tests.laws.formats import STATIC, fixed_point, static_formats
from tests.laws.law import assert_on_grids, law
from tests.laws.parametrize import in_turn
from tests.runs.lowered import INTEGER, STOCK, UNROLLED, all_nodes, assert_equals_reference, session
from tests.runs.sessions import plain_session, run, sqnr

OPS: dict[str, dict[str, Any]] = {
    "LSTM": {"op": "LSTM"},
    "GRU": {"op": "GRU"},
    "GRU_linear": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}
CASE = RecurrentCase(T=3, B=3, I=70, H=65, initial_h=True)
# ONNX and onnxruntime do not agree on the defaults of ThresholdedRelu.
PARAMETERS: dict[str, tuple[float, ...]] = {
    "Affine": (0.5, 0.25), "ScaledTanh": (0.75, 1.25), "HardSigmoid": (0.2, 0.5), "ThresholdedRelu": (0.125,),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("op", OPS)
def test_codes_pass_between_layers(op: str) -> None:
    """Without going back to float, where both have the format; between operators, too."""
    behind = "LSTM" if op == "LSTM" else "RNN"
    layers = [
        RecurrentCase(T=4, B=3, I=40, H=70, **OPS[op]),
        RecurrentCase(T=4, B=3, I=70, H=35, seed=1, op=behind),  # type: ignore[arg-type]
    ]
    for bits, passes in ((8, True), (16, False)):
        lowered = rnnqc.lower(stacked_model(layers), overrides=fixed_point(behind, bits, 8, "floor"))
        modes = [a.s for n in all_nodes(lowered.proto) for a in n.attribute if a.name == "x_mode"]
        assert sorted(modes) == ([b"codes", b"static"] if passes else [b"static"] * 2)
        assert assert_equals_reference(lowered.proto, {"X": layers[0].feeds()["X"]}) == 2


@pytest.mark.few(1)
@in_turn(name=[n for n in STATIC for _ in range(2)], op=OPS)
def test_qcdq_form_is_close(name: str, op: str) -> None:
    """Float32 quantizers at the same points, exact for powers of two but for long sums and onnxruntime's Sigmoid, Tanh.

    Hidden states differ by at most one LSB there. (An initial cell state stays float in this form.)
    """
    case = CASE.replace(**OPS[op])
    feeds, overrides = case.feeds(), static_formats(case.op)[name]
    qcdq, fused = (rnnqc.lower(case.model(), form=form, overrides=overrides).proto for form in ("qcdq", "fused"))
    found, wanted = run(plain_session(qcdq), feeds), run(session(fused, STOCK), feeds)
    if name.startswith("fixed point"):
        step = next(float(o.split("=")[1]) for o in overrides if o.startswith("*.hidden.scale"))
        assert np.abs(found["Y"].astype(np.float64) - wanted["Y"]).max() <= step
    assert sqnr(found["Y"], wanted["Y"]) > (40.0 if op != "LSTM" or name.startswith("fixed point") else 30.0)


def _activations(names: tuple[str, ...]) -> tuple[Activation, ...]:
    return tuple(Activation(n, *PARAMETERS.get(n, ())) for n in names)


EVERY_ACTIVATION = [
    *(("LSTM", (gate, "Tanh", gate)) for gate in ACTIVATION_NAMES),
    *(("GRU", names) for names in (("HardSigmoid", "Relu"), ("ScaledTanh", "Softplus"))),
    *(("GRU_linear", names) for names in (("Sigmoid", "Elu"),)),
    *(("RNN", names) for names in (("Relu",), ("Softplus",))),
]


@pytest.mark.few(1)
@in_turn(case=EVERY_ACTIVATION, way=[INTEGER, UNROLLED])
def test_every_activation_is_a_table(case: tuple[str, tuple[str, ...]], way: str) -> None:
    """Also those that the other arithmetic computes without one: the codes of their arguments are few."""
    op, names = case
    layer = RecurrentCase(T=4, B=2, I=20, H=17, activations=_activations(names), gain=0.5, **OPS[op])
    overrides = ["*.acc.mode=static", "*.activation.bits=none", *fixed_point(layer.op, 12, 8, "half_even")]
    feeds = layer.feeds()
    forms = law(layer.model(), overrides=overrides, feeds=[feeds], dims=layer.dims, settings=(), ways=[way])
    assert_on_grids(forms.stock)
    assert forms.reference(feeds) == 1
    # A threshold makes steps of small errors.
    assert sqnr(layer.expected(feeds)["Y"], run(forms.session(STOCK), feeds)["Y"]) > 12.0
