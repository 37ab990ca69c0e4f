"""The behaviour of onnxruntime on the processor that runs the tests."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx.parser
import onnxruntime as ort

_PRODUCT = """<ir_version: 8, opset_import: ["": 17]> g (uint8[1,2] x) => (int32[1,1] y) <int8[2,1] w = {127, 127}>
{ y = MatMulInteger(x, w) }"""


@cache
def product_branch() -> str:
    """The branch of a lowered loop that runs: "int8", or "uint8" on x86 without VNNI, where products saturate."""
    proto = onnx.parser.parse_model(_PRODUCT)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"x": np.full((1, 2), 255, np.uint8)})
    return "int8" if product.item() == 2 * 255 * 127 else "uint8"
