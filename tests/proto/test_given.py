"""Models as programs hold them.

What these would catch: an exported program of torch that is refused, a module whose message does not say how to export
it, a function of rnnqc that takes a path alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.proto.given import as_given, name_of, proto_of

MODELS = Path(__file__).resolve().parents[2] / "models"
DIGITS, DATA = MODELS / "digits_lstm.onnx", MODELS / "digits_calibration.npz"
FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "inspect": rnnqc.inspect,
    "lower": rnnqc.lower,
    "calibrate": lambda model: rnnqc.calibrate(model, DATA, limit=2),
    "verify": lambda model: rnnqc.verify(model, rnnqc.lower(model), DATA),
    "evaluate": lambda model: rnnqc.evaluate(model, MODELS / "digits_test.npz", "accuracy"),
    "session": rnnqc.session,
    "bench": lambda model: rnnqc.bench(model, rounds=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_that_torch_exported(name: str) -> None:
    """`torch.onnx.ONNXProgram` has the model as `model_proto`; torch itself is not needed."""
    assert FUNCTIONS[name](SimpleNamespace(model_proto=onnx.load(DIGITS))) is not None


def test_what_lower_returns() -> None:
    """A lowered model goes into the other functions as it is."""
    lowered = rnnqc.lower(DIGITS)
    assert as_given(lowered) is lowered.proto
    feed = {"x": np.zeros((1, 8, 8), np.float32)}
    (a,), (b,) = (rnnqc.session(m).run(None, feed) for m in (lowered, lowered.proto))
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert {n.status for n in rnnqc.inspect(lowered).nodes} == {"done"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_objects(name: str) -> None:
    """A module that was not exported: the message says what to do, wherever it is given."""
    with pytest.raises(rnnqc.UsageError, match=r"SimpleNamespace.*Supported: a path.*Resolution: export.*torch\.onnx"):
        FUNCTIONS[name](SimpleNamespace(forward=None))


def test_names_and_protos() -> None:
    assert name_of(DIGITS) == str(DIGITS) and name_of(onnx.load(DIGITS)) == "the model"
    assert proto_of(str(DIGITS)).SerializeToString() == proto_of(DIGITS).SerializeToString()
