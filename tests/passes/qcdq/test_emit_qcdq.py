"""The nodes that quantize a value, against the number format they stand for.

What these would catch: a rounding whose nodes differ from `Format` at a tie, a zero point clipped away.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.formats.format import Format
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model
from rnnqc.ir.builder import Builder
from rnnqc.passes.qcdq.emit_qcdq import emit_fake_quant
from tests.generate.layer_specs import Op
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.runs.sessions import assert_same_bits, options, plain_session, run


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize(("bits", "signed", "zero_point"), [(8, True, 0), (5, False, 3), (13, True, -7)])
def test_fake_quant_is_the_encoding(bits: int, signed: bool, zero_point: int, rounding: Rounding) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 1] x) => (float[N, 1] y) { y = Identity(x) }'
    )
    encoding = Format(bits, signed, (0.25,), zero_point=zero_point, rounding=rounding)
    model = Model(proto)
    (identity,) = model.graph.nodes
    b = Builder(model)
    identity.inputs[0] = emit_fake_quant(b, "point", model.graph.inputs[0], encoding)
    model.graph.nodes[:0] = b.nodes
    halves = np.arange(-(2.0**bits), 2.0**bits, 0.5)
    x = (np.concatenate([halves, halves + 0.2, halves + 0.4]) * 0.25).astype(np.float32)[:, None]
    expected = encoding.dequantize(encoding.quantize(x))
    np.testing.assert_array_equal(run(plain_session(model.proto), {"x": x})["y"], expected)


@pytest.mark.few(1)
@in_turn(recipe=["distiller-avg", "distiller-sym", "pow2-int8", "brevitas-int8"], op=["LSTM", "GRU", "RNN"])
def test_signed_codes_in_new_operator_sets(recipe: str, op: Op) -> None:
    """Optimized and not, operator set 21 gives the bits of 20: onnxruntime moves Q and DQ there and breaks models.

    Weights have 7 bits: products of 8 bits that onnxruntime fuses saturate on x86 without VNNI.
    """
    outputs = []
    for opset in (20, 21):
        case = RecurrentCase(op=op, opset=opset, T=4, I=10, H=6)
        lowered = rnnqc.lower(
            case.model(), recipe, calibration=[case.feeds()], form="qcdq", overrides=["*.weight.bits=7"]
        )
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
            session = rnnqc.session(lowered.proto, native=False, options=options(level))
            # Written out, a code of 0 may come back as -0.
            outputs.append({name: value + np.float32(0.0) for name, value in run(session, case.feeds()).items()})
    for other in outputs[1:]:
        assert_same_bits(outputs[0], other, recipe)
