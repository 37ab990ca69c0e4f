"""Products of quantized values, of ONNX and of onnxruntime."""

from __future__ import annotations

from rnnqc.cells.forms import ORT_DOMAIN

QUANTIZED_PRODUCTS = frozenset(
    {
        ("", "ConvInteger"),
        ("", "MatMulInteger"),
        ("", "QLinearConv"),
        ("", "QLinearMatMul"),
        (ORT_DOMAIN, "DynamicQuantizeMatMul"),
        (ORT_DOMAIN, "MatMulBnb4"),
        (ORT_DOMAIN, "MatMulInteger16"),
        (ORT_DOMAIN, "MatMulIntegerToFloat"),
        (ORT_DOMAIN, "MatMulNBits"),
        (ORT_DOMAIN, "QGemm"),
        (ORT_DOMAIN, "QLinearConv"),
    }
)
"""By domain and operator."""
