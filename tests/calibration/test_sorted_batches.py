"""Calibration of models that sort their batch by length: rows are samples there, too.

What this would catch: all rows of a feed run and counted as one sample, since the sorted batch has a name of its own.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from tests.subjects.protos import parse

# As PyTorch writes pack_padded_sequence(..., enforce_sorted=False): two layers between a sort and its inverse.
SORTED = """<ir_version: 8, opset_import: ["": 17]> g (float[T, B, 2] X, int64[B] lens) => (float[T, 1, B, 4] Z)
<int64[1] zeroth = {0}, int64[1] one = {1}, int64 nothing = {0}, int64 step = {1}> {
  size = Shape (lens)
  ordered, p = TopK (lens, size)
  x = Gather <axis = 1> (X, p)
  L = Cast <to = 6> (ordered)
  count = Squeeze (size, zeroth)
  numbers = Range (nothing, count, step)
  empty = ConstantOfShape <value = int64[1] {0}> (size)
  q = ScatterElements (empty, p, numbers)
  Y = GRU <hidden_size = 4> (x, W, R, "", L)
  y = Squeeze (Y, one)
  Y2 = GRU <hidden_size = 4> (y, W2, R, "", L)
  Z = Gather <axis = 2> (Y2, q)
}"""


@pytest.fixture(name="model")
def model_() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 12, 2), "R": (1, 12, 4), "W2": (1, 12, 4)}
    return parse(SORTED, **{n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in shapes.items()})


FEED = {"X": np.random.default_rng(1).standard_normal((5, 7, 2)).astype(np.float32), "lens": np.arange(7) % 5 + 1}


def test_rows_are_samples(model: onnx.ModelProto) -> None:
    few = rnnqc.calibrate(model, FEED, limit=3)
    assert few.settings["samples"] == 3
    batches = rnnqc.calibrate(model, FEED, batch=2)
    whole = rnnqc.calibrate(model, FEED)
    assert (batches.settings["samples"], whole.settings["samples"]) == (7, 7)
    assert batches.points.keys() == whole.points.keys()
