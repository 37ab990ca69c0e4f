"""Products that onnxruntime computes in saturating integers on some processors.

What these would catch: a warning for a file that is exact everywhere, none for one that is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rnnqc

DIGITS = Path(__file__).resolve().parents[3] / "models" / "digits_lstm.onnx"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"form": "qcdq"}, True),
        ({"form": "qcdq", "overrides": ["*.weight.bits=7"]}, False),  # 255 * (64 + 64) is an int16
        ({"form": "qcdq", "overrides": ["*.input.bits=16", "*.hidden.bits=16"]}, False),
        ({}, False),
    ],
)
def test_only_where_fused_products_may_saturate(options: dict[str, Any], expected: bool) -> None:
    lowered = rnnqc.lower(DIGITS, **options)
    assert any("disable_quant_qdq" in text for text in lowered.report.warnings) is expected
