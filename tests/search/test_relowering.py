"""Repeated lowerings of one model.

What these would catch: a model in normal form that is lowered to another model than the one that it was made of, layers
that every repetition has to recover again.
"""

from __future__ import annotations

import numpy as np
import pytest

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.recipes.recipe_record import read_record
from rnnqc.recipes.rules import Rule
from rnnqc.search.relowering import QCDQ, Relowering
from tests.generate.recurrences import RecurrenceCase

CASES = {
    "unrolled steps": (RecurrenceCase(op="GRU", form="unrolled"), "GRU"),
    "a loop": (RecurrenceCase(op="LSTM", form="loop", dynamic_time=True), "LSTM"),
}
NARROW = Rule("*.weight", {"bits": 4})


@pytest.mark.parametrize("name", CASES)
def test_the_normal_form_is_lowered_to_the_same_outputs(name: str) -> None:
    case, op = CASES[name]
    model, feeds = case.model(), case.feeds()
    first = rnnqc.lower(model, "w6a8")
    record = read_record(first.model.metadata, "the model")
    assert record is not None
    given = Relowering(model, record)
    ready = given.in_normal_form()
    assert op not in {n.op_type for n in model.graph.node}
    assert [n.op_type for n in ready.model.graph.node].count(op) == 1
    for rules, form in (((), None), ((NARROW,), None), ((NARROW,), QCDQ)):
        one, other = given.lower(rules, form), ready.lower(rules, form)
        assert one.report.entries == other.report.entries
        expected, got = run_model(one.proto, feeds), run_model(other.proto, feeds)
        for output, array in expected.items():
            np.testing.assert_array_equal(got[output], array)
