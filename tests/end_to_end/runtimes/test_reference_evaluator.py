"""onnx's own evaluator, in numpy, runs lowered files of opset 21: integer forms give the bits of onnxruntime.

It shows that files mean in ONNX's own words what onnxruntime makes of them. What these would catch: a reliance on what
onnxruntime does beside the standard, a rounding that it alone has.

Three things stand in its way, which the last test pins. It has DequantizeLinear from opset 19 only, so float models are
converted first. Its GatherElements goes through numpy.choose, which takes at most 64 entries, so it is given another
one, which does not reach into functions: they are inlined. Its Scan goes forwards only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, QCDQ
from tests.generate.layers import RecurrentCase
from tests.runs.sessions import Array, Outputs, assert_same_bits, options, run, sqnr

OPSET = 21
ROUNDING_DB = 120.0
LAYER = RecurrentCase(T=5, B=2, I=5, H=12)
BIDIRECTIONAL = LAYER.replace(direction="bidirectional")
CASES = {
    "LSTM": LAYER.replace(initial_h=True, initial_c=True),
    "LSTM, bidirectional": BIDIRECTIONAL,
    "GRU": LAYER.replace(op="GRU", initial_h=True),
    "RNN": LAYER.replace(op="RNN"),
}
EXACT: dict[str, dict[str, Any]] = {
    "integer": {"form": INTEGER},
    "fused": {"form": FUSED},
    "unrolled": {"form": INTEGER, "unroll": True},
    "static": {"form": INTEGER, "unroll": True, "recipe": "int8-static"},
}
ROUNDED: dict[str, dict[str, Any]] = {
    "qcdq": {"form": QCDQ},
    "unrolled qcdq": {"form": QCDQ, "unroll": True},
    "weight-only": {"recipe": "weight-only-int8"},
}


class GatherElements(OpRun):
    """As ONNX says, for any number of entries."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
        return (np.take_along_axis(data, indices.astype(np.int64), axis or 0),)


def lowered(case: RecurrentCase, lowering: dict[str, Any], opset: int = OPSET) -> onnx.ModelProto:
    model = onnx.version_converter.convert_version(case.model(), opset)
    calibration = [case.feeds()] if lowering.get("recipe") == "int8-static" else None
    return rnnqc.lower(model, strict=True, calibration=calibration, **lowering).proto


def evaluated(model: onnx.ModelProto, feeds: dict[str, Array], own: bool = True) -> Outputs:
    plain = onnx.inliner.inline_local_functions(model)
    outputs = ReferenceEvaluator(plain, new_ops=[GatherElements] if own else []).run(None, feeds)
    return dict(zip((o.name for o in model.graph.output), outputs, strict=True))


def pairs(lowerings: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Cases and lowerings that it can run."""
    return [
        (case, name)
        for case, layer in CASES.items()
        for name, lowering in lowerings.items()
        if layer is not BIDIRECTIONAL or "unroll" in lowering or "recipe" in lowering
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize(("case", "name"), pairs(EXACT))
def test_integers_have_the_bits_of_onnxruntime(case: str, name: str) -> None:
    model, feeds = lowered(CASES[case], EXACT[name]), CASES[case].feeds()
    expected = run(rnnqc.session(model, native=False, options=options()), feeds)
    assert_same_bits(expected, evaluated(model, feeds), f"{case}, {name}")


@pytest.mark.few(3)
@pytest.mark.parametrize(("case", "name"), pairs(ROUNDED))
def test_floats_are_right_within_rounding(case: str, name: str) -> None:
    """Sums of floats in another order; onnxruntime without the fusions that replace pairs of quantizers."""
    model, feeds = lowered(CASES[case], ROUNDED[name]), CASES[case].feeds()
    expected = run(rnnqc.session(model, native=False, options=options("ORT_ENABLE_BASIC")), feeds)
    found = evaluated(model, feeds)
    assert all(sqnr(expected[n], found[n]) > ROUNDING_DB for n in expected), [
        sqnr(expected[n], found[n]) for n in expected
    ]


def test_what_it_cannot_run() -> None:
    """If one of these begins to work, docs/deploy.md and what is above can be simpler."""
    feeds = LAYER.feeds()
    with pytest.raises(RuntimeError, match="No implementation for operator 'DequantizeLinear'"):
        evaluated(lowered(LAYER, ROUNDED["qcdq"], opset=17), feeds)
    with pytest.raises(ValueError, match="at most 64 array objects"):
        evaluated(lowered(LAYER, EXACT["integer"]), feeds, own=False)
    with pytest.raises(RuntimeError, match="Scan is not implemented for other output input_direction than 0"):
        evaluated(lowered(BIDIRECTIONAL, EXACT["integer"]), BIDIRECTIONAL.feeds())
