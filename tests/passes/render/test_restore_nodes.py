"""restore-nodes: a layer that the recipe leaves float is a node again.

What these would catch: an attribute, a state or a direction lost on the way; a loop that stays; a quantized cell that
goes; a file whose second lowering quantizes the layer.
"""

from __future__ import annotations

import pytest

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.laws.layers import float_layers
from tests.runs.lowered import all_nodes
from tests.runs.sessions import assert_close, plain_session, run

OFF = ["*.bits=none"]
OPERATORS = {"LSTM", "GRU", "RNN"}


@pytest.mark.few(5)
@pytest.mark.parametrize("case", float_layers(), ids=lambda c: f"{c.seed} {c.op}")
def test_computes_as_before(case: RecurrentCase) -> None:
    lowered = rnnqc.lower(case.model(), overrides=OFF)
    nodes = [n for n in all_nodes(lowered.proto) if n.op_type in OPERATORS]
    assert {n.op_type for n in nodes} == {case.op}
    assert not lowered.model.cells
    feeds = case.feeds(padding=0.0)
    assert_close(case.expected(feeds), run(plain_session(lowered.proto), feeds), 1e-5, "against the reference")
    again = rnnqc.lower(lowered.proto)
    assert [n.op_type for n in all_nodes(again.proto) if n.op_type in OPERATORS] == [n.op_type for n in nodes]
    assert {e.status for e in again.report.entries} == {"float"}


def test_the_other_direction_is_quantized() -> None:
    found = (c for c in float_layers() if c.direction == "bidirectional" and not c.layout and c.placement == "main")
    case = next(found)
    lowered = rnnqc.lower(case.model(), overrides=["*.reverse.*.bits=none"])
    assert [c.name.rpartition(".")[2] for c in lowered.model.cells.values()] == ["forward"]
    (node,) = (n for n in all_nodes(lowered.proto) if n.op_type in OPERATORS)
    assert {a.name: a.s for a in node.attribute}["direction"] == b"reverse"
    feeds = case.feeds(padding=0.0)
    for name, expected in case.expected(feeds).items():
        got = run(plain_session(lowered.proto), feeds)[name]
        halves = [v[:, 1] if v.ndim == 4 else v[1] for v in (expected, got)]
        assert_close({name: halves[0]}, {name: halves[1]}, 1e-5, "the float direction")


def test_unrolled_steps_stay_steps() -> None:
    case = next(c for c in float_layers() if c.placement == "main" and not c.dynamic_time)
    lowered = rnnqc.lower(case.model(), overrides=OFF, unroll=True, dims=case.dims)
    assert not {n.op_type for n in all_nodes(lowered.proto)} & {*OPERATORS, "Scan"}
