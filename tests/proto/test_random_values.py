"""Models that draw random numbers.

What these would catch: the difference of two draws that is taken for the error of quantization, and nobody says so.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from tests.subjects.protos import parse


def noisy(node: str) -> onnx.ModelProto:
    """An RNN with noise on its outputs."""
    rng = np.random.default_rng(0)
    return parse(
        f'<ir_version: 8, opset_import: ["": 17]> m (float[T,B,8] x) => (float[T,D,B,8] y) '
        f"{{ r = RNN <hidden_size = 8> (x, W, R) {node} y = Add (r, n) }}",
        W=rng.normal(0, 0.4, (1, 8, 8)).astype(np.float32), R=rng.normal(0, 0.4, (1, 8, 8)).astype(np.float32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ("n = RandomNormalLike (r)", True),
        ("p = Sigmoid (r) n = Bernoulli (p)", True),
        ("n = RandomNormalLike <seed = 3.0> (r)", False),
        ("n = Neg (r)", False),
    ],
)
def test_draws_are_told(node: str, told: bool) -> None:
    model = noisy(node)
    lowered = rnnqc.lower(model, measure=True)
    for warnings in (lowered.report.warnings, rnnqc.verify(model, lowered).warnings):
        assert any("draws random numbers" in w and w.endswith("[random-values]") for w in warnings) == told
    if not told:
        assert min(lowered.report.sqnr_db.values()) > 20
