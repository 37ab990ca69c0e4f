"""Models whose weights protobuf does not take: what leaves them, and what a session makes of both."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_model, run_session
from rnnqc.proto.large_models import loaded_size, without_large_weights
from tests.generate.layers import RecurrentCase

CASE = RecurrentCase(T=5, B=2, I=8, H=16)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte of weights is too many."""
    monkeypatch.setattr("rnnqc.proto.large_models.MOST_BYTES", 1000)
    monkeypatch.setattr("rnnqc.proto.large_models.LEAST_ELEMENTS", 100)


def test_a_model_that_fits_is_itself() -> None:
    proto = CASE.model()
    assert without_large_weights(proto) == (proto, {})


@pytest.mark.usefixtures("small_limits")
def test_large_weights_leave() -> None:
    proto = CASE.model()
    before = proto.SerializeToString(deterministic=True)
    rest, weights = without_large_weights(proto)
    assert proto.SerializeToString(deterministic=True) == before
    assert weights.keys() == {t.name for t in proto.graph.initializer if np.prod(t.dims) >= 100} and len(weights) > 1
    assert rest.ByteSize() < 500 < proto.ByteSize()
    for tensor in rest.graph.initializer:
        assert (tensor.name in weights) == (tensor.data_location == onnx.TensorProto.EXTERNAL)


@pytest.mark.usefixtures("small_limits")
def test_a_session_reads_weights_as_long_as_it_lives() -> None:
    """Would catch: weights that are gone when the session runs."""
    proto, feeds = CASE.model(), CASE.feeds()
    session = make_session(proto)
    gc.collect()
    filler = [np.full(4 * 16 * 8, 7.0, np.float32) for _ in range(100)]
    found = run_session(session, feeds)
    assert len(filler) == 100
    for name, value in run_model(proto.SerializeToString(), feeds, optimize=True).items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.usefixtures("small_limits")
def test_models_are_compared() -> None:
    proto = CASE.model()
    assert rnnqc.verify(proto, rnnqc.lower(proto), [CASE.feeds()], min_sqnr=20.0).ok


@pytest.mark.usefixtures("small_limits")
def test_the_size_of_what_cannot_be_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise CompileError("cannot be written as one ONNX file.")

    proto = CASE.model()
    assert loaded_size(proto, "it") == proto.ByteSize()
    monkeypatch.setattr("rnnqc.proto.large_models.proto_size", refused)
    assert loaded_size(proto, "it") == sum(a.nbytes for a in without_large_weights(proto)[1].values())
    with pytest.raises(CompileError):
        loaded_size(RecurrentCase(T=5, B=2, I=1, H=2).model(), "it")
