"""One model under many laws: embedding, packed states and linear layer of a stream.

Forms, levels of optimization, threads and chunks of all three are here. Instruction sets are here and, for every
configuration of QuantLinear, in `tests/runtime_ops/operators/test_quant_linear.py`; an embedding is standard operators.
Versions of onnxruntime: `tests/runs/version_cases.py` has this model, and every kind of QuantLinear.

What these would catch: a state that is cut from the wrong place of the packed tensor, or put back there; bits that
depend on the form, the optimizations, the threads, the instruction set or on how a stream is cut.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.laws.law import Forms, law
from tests.native.kernel_calls import ISAS
from tests.native.quant_lstm_cases import native_session
from tests.runs.lowered import INTEGER, NATIVE, STOCK
from tests.runs.sessions import assert_same_bits, plain_session, run, sqnr
from tests.subjects.packed_streams import packed_feeds, packed_stream

STEPS = 5


@pytest.fixture(scope="module")
def forms() -> Forms:
    """Stock, native, integer, unrolled; also without optimizations and with two threads."""
    settings = (("ORT_DISABLE_ALL", 2),)
    return law(packed_stream(), feeds=[packed_feeds(STEPS)], dims={"T": STEPS}, settings=settings, rest="int8")


@pytest.mark.slow
def test_what_it_is_made_of(forms: Forms) -> None:
    """One integer decoder, an int8 table for it and the embedding; fewer views around the states; the same model."""
    proto = forms.stock.proto
    operators = [n.op_type for n in proto.graph.node]
    assert (operators.count("QuantLinear"), operators.count("Slice")) == (1, 0)
    assert {e.form for e in forms.stock.report.rest.entries} == {"int8 matmul", "int8 rows"}
    feeds = packed_feeds(STEPS)
    expected, found = run(plain_session(packed_stream()), feeds), run(forms.session(NATIVE), feeds)
    assert {name: sqnr(expected[name], found[name]) > 30 for name in expected} == {"logits": True, "next": True}


@pytest.mark.parametrize("way", [STOCK, NATIVE, INTEGER])
def test_chunks(forms: Forms, way: str) -> None:
    feeds = packed_feeds(STEPS)
    whole, parts = run(forms.session(way), feeds), []
    for start, end in ((0, 1), (1, 4), (4, STEPS)):
        parts.append(run(forms.session(way), feeds | {"tokens": packed_feeds(STEPS)["tokens"][start:end]}))
        feeds["state"] = parts[-1]["next"]
    joined = {"logits": np.concatenate([p["logits"] for p in parts]), "next": parts[-1]["next"]}
    assert_same_bits(whole, joined, way)


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets(forms: Forms, isa: str) -> None:
    expected = run(forms.session(STOCK), packed_feeds(STEPS, 1))
    assert_same_bits(expected, run(native_session(forms.stock.proto, 1, isa), packed_feeds(STEPS, 1)), isa)


def test_a_state_beyond_the_bound(forms: Forms) -> None:
    """Initial states from outside are not clipped, in any layer."""
    feeds = packed_feeds(STEPS, 2)
    feeds["state"] *= np.float32(3.0)
    expected = run(plain_session(packed_stream()), feeds)["logits"]
    assert sqnr(expected, forms.same_bits(feeds)["logits"]) > 30
