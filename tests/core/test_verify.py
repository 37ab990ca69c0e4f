"""Comparing two models.

What these would catch: a measure that mixes feeds up, models of different signatures compared as if they belonged
together.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from protos import parse

from rnnqc.diagnostics import CompileError
from rnnqc.verify import compare_models

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
FLOAT = parse(f"{HEADER} g (float[2] x) => (float[2] y, int64[2] k) {{ y = Identity(x) k = Cast <to = 7> (x) }}")
OFF = parse(
    f"{HEADER} g (float[2] x) => (float[2] y, int64[2] k) {{ y = Add(x, d) k = Cast <to = 7> (x) }}",
    d=np.array([0.5, 0], np.float32),
)
FEEDS = [{"x": np.array([3, 4], np.float32)}, {"x": np.array([0, 5], np.float32)}]


def test_measures_over_all_feeds() -> None:
    y, k = compare_models(FLOAT, OFF, FEEDS)
    assert (y.name, k.name) == ("y", "k")
    assert y.sqnr_db == pytest.approx(20.0)
    assert (y.max_abs, y.equal) == (0.5, 0.5)
    a, b = np.array([3, 4, 0, 5]), np.array([3.5, 4, 0.5, 5])
    assert y.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert (k.sqnr_db, k.max_abs, k.equal) == (math.inf, 0.0, 1.0)
    assert k.cosine == pytest.approx(1.0)


def test_other_outputs() -> None:
    other = parse(f"{HEADER} g (float[2] x) => (float[2] z) {{ z = Neg(x) }}")
    with pytest.raises(
        CompileError, match=r"the float model and the lowered model have different outputs: \['k', 'y'\] and \['z'\]"
    ):
        compare_models(FLOAT, other, FEEDS)


def test_other_shapes() -> None:
    other = parse(
        f"{HEADER} g (float[2] x) => (float[N] y, int64[2] k) {{ y = Concat <axis = 0> (x, x) k = Cast <to = 7> (x) }}"
    )
    with pytest.raises(CompileError, match=r"output 'y' has shape \[2\] and \[4\] in a and b"):
        compare_models(FLOAT, other, FEEDS, names=("a", "b"))


@pytest.mark.parametrize("broken", ["the float model", "the lowered model"])
def test_model_that_does_not_run_is_named(broken: str) -> None:
    bad = parse(f"{HEADER} g (float[2] x) => (float[2] y, int64[2] k) {{ y = Mystery(x) k = Cast <to = 7> (x) }}")
    models = (bad, FLOAT) if broken == "the float model" else (FLOAT, bad)
    with pytest.raises(CompileError, match=f"^{broken}: onnxruntime .* refuses the model"):
        compare_models(*models, FEEDS)
