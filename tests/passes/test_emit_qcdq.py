"""The nodes that quantize a value, against the number format they stand for.

What these would catch: a rounding whose nodes differ from `Encoding` at a tie, a zero point clipped away.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from running import plain_session, run

from rnnqc.builder import Builder
from rnnqc.encoding import Encoding, Rounding
from rnnqc.ir import Model
from rnnqc.passes.emit_qcdq import emit_fake_quant


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize(("bits", "signed", "zero_point"), [(8, True, 0), (5, False, 3), (13, True, -7)])
def test_fake_quant_is_the_encoding(bits: int, signed: bool, zero_point: int, rounding: Rounding) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 1] x) => (float[N, 1] y) { y = Identity(x) }'
    )
    encoding = Encoding(bits, signed, (0.25,), zero_point, rounding=rounding)
    model = Model(proto)
    (identity,) = model.graph.nodes
    b = Builder(model)
    identity.inputs[0] = emit_fake_quant(b, "point", model.graph.inputs[0], encoding)
    model.graph.nodes[:0] = b.nodes
    halves = np.arange(-(2.0**bits), 2.0**bits, 0.5)
    x = (np.concatenate([halves, halves + 0.2, halves + 0.4]) * 0.25).astype(np.float32)[:, None]
    expected = encoding.dequantize(encoding.quantize(x))
    np.testing.assert_array_equal(run(plain_session(model.proto), {"x": x})["y"], expected)
