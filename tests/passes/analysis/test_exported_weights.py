"""Operators whose weights came quantized.

What these would catch: a quantized linear layer that no list has, one that is counted as float or fails a strict
lowering, a weight of a recurrent layer or of a computed tensor that is taken for one.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.lowering.inspection import inspect
from rnnqc.passes.analysis.exported_weights import CAME_QUANTIZED, exported_weights
from tests.generate.layers import RecurrentCase
from tests.subjects.brevitas.models import Exported, draw_feeds, random_lstm
from tests.subjects.brevitas.reference import Quant
from tests.subjects.protos import parse

LSTM = random_lstm(6, pow2=True)


def with_linear(bits: int = 8) -> onnx.ModelProto:
    """A cell and a linear layer as Brevitas exports them: MatMul with the transposed weight behind a quantizer."""
    e = Exported()
    x = e.quant("x", LSTM.quantizers["output"], "x_quant")
    outputs = e.cell(LSTM, x, "cell")
    raw = e.constant("linear_raw", np.random.default_rng(0).normal(0, 0.3, (4, 9)))
    e.op(
        "Transpose",
        [e.quant(raw, Quant(np.float32(2.0 ** (2 - bits)), bits), "linear_quant")],
        "linear_weight",
        perm=[1, 0],
    )
    e.op("MatMul", [outputs[0], "linear_weight"], "y")
    return e.model({"x": (6, 3, 7)}, {"y": 3})


def test_a_linear_layer_of_brevitas() -> None:
    (found,) = exported_weights(Model.load(with_linear()))
    assert (found.path, found.op, found.kind, found.shape) == ("y_node", "MatMul", "linear layers", (9, 4))


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_it_is_told_and_fails_nothing(form: str) -> None:
    proto = with_linear()
    lowered = rnnqc.lower(proto, form=form, rest="int8", strict=True, strict_rest=True)
    rest = lowered.report.rest
    (entry,) = rest.exported
    assert (entry.node, entry.status, entry.reason) == ("y_node", "exported", CAME_QUANTIZED[0])
    assert not rest.left and not rest.is_changed and rest.float_bytes == rest.bytes == 0
    told = [text for _, text in lowered.report.told() if "y_node" in text]
    assert len(told) == 1 and told[0].startswith("Operator \"MatMul\" (node 'y_node') stays as it is: ")
    assert not [text for _, text in rnnqc.lower(proto, form=form).report.told() if "y_node" in text], "nobody asked"
    assert inspect(proto).rest.exported == rest.exported
    feeds = draw_feeds(LSTM, 5, False, True)
    exact = rnnqc.session(rnnqc.lower(proto, form=form).proto).run(None, feeds)[0]
    assert np.array_equal(rnnqc.session(lowered.proto).run(None, feeds)[0], exact)


def test_weights_that_become_floats_are_no_exported_ones() -> None:
    """Those of more than 8 bits are constants in float32, which --rest int8 stores."""
    report = rnnqc.lower(with_linear(bits=12)).report
    assert report.rest.exported == []
    assert [e.node for e in report.rest.entries] == ["y_node"]


def test_what_is_none() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,4] x, int8[4,2] given) => (float[1,2] y, float[1,2] z, float[1,2] u)
    <float s = {0.5}, int8[4,2] w = {1,2,3,4, 5,6,7,8}, float[4,2] f = {1,2,3,4, 5,6,7,8}>
    {
      v = DequantizeLinear (w, s)
      o = DequantizeLinear (given, s)
      [known] y = MatMul (x, v)
      [computed] z = MatMul (x, o)
      [float] u = MatMul (x, f)
    }"""
    assert [e.path for e in exported_weights(Model.load(parse(text)))] == ["known"]
    for form in ("fused", "qcdq"):
        lowered = rnnqc.lower(RecurrentCase().model(), form=form)
        assert exported_weights(Model.load(lowered.proto)) == []
